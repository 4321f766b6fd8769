//! Whom to believe that it is the server, as libpq has it.
//!
//! It is stricter in one thing: a name must be among the certificate's alternative names, its subject does not count.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{
    CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature, verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use tokio_postgres_rustls::MakeRustlsConnect;
use x509_cert::Certificate;
use x509_cert::der::{Decode, Encode};

use crate::error::StoreError;

/// What a client says that it wants to speak. Servers insist on it if encryption comes first (`sslnegotiation=direct`).
const PROTOCOL: &[u8] = b"postgresql";

/// Whom to believe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Trust {
    /// Whoever answers: encrypted, but perhaps by somebody in between.
    Anybody,
    /// Whoever an authority vouches for.
    Vouched(Roots),
    /// Whom an authority vouches for under the name that was dialled.
    Named(Roots),
}

/// Which authorities.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Roots {
    /// Those the operating system trusts.
    System,
    /// Those in a file.
    File(PathBuf),
}

impl Trust {
    pub(super) fn connector(&self) -> Result<MakeRustlsConnect, StoreError> {
        let provider = Arc::new(ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions();
        let config = config.map_err(cannot)?;
        let verifier = Verifier { authorities: self.authorities(&provider)?, asks_name: self.asks_name(), provider };
        let config = config.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
        let mut config = config.with_no_client_auth();
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        Ok(MakeRustlsConnect::new(config))
    }

    fn authorities(&self, provider: &Arc<CryptoProvider>) -> Result<Option<Authorities>, StoreError> {
        let roots = match self {
            Self::Anybody => return Ok(None),
            Self::Vouched(roots) | Self::Named(roots) => roots,
        };
        let certificates = roots.load()?;
        let mut store = RootCertStore::empty();
        match roots {
            // What cannot be understood is not trusted; what is missing then is told at the handshake.
            Roots::System => _ = store.add_parsable_certificates(certificates.iter().cloned()),
            Roots::File(_) => {
                for certificate in &certificates {
                    store.add(certificate.clone()).map_err(|error| roots.bad(error))?;
                }
            }
        }
        let chains = WebPkiServerVerifier::builder_with_provider(Arc::new(store), provider.clone());
        Ok(Some(Authorities { chains: chains.build().map_err(cannot)?, certificates }))
    }

    const fn asks_name(&self) -> bool {
        match self {
            Self::Anybody | Self::Vouched(_) => false,
            Self::Named(_) => true,
        }
    }
}

impl Roots {
    fn load(&self) -> Result<Vec<CertificateDer<'static>>, StoreError> {
        let certificates: Vec<_> = match self {
            Self::System => rustls_native_certs::load_native_certs().certs,
            Self::File(path) => {
                let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
                read.map_err(|error| self.bad(error))?
            }
        };
        if certificates.is_empty() {
            return Err(self.bad("there is no certificate in it"));
        }
        Ok(certificates)
    }

    fn bad(&self, why: impl std::fmt::Display) -> StoreError {
        let named = match self {
            Self::System => "system".into(),
            Self::File(path) => path.display().to_string(),
        };
        StoreError::permanent(format!("cannot read sslrootcert {named}: {why}"))
    }
}

fn cannot(error: impl std::fmt::Display) -> StoreError {
    StoreError::permanent(format!("cannot prepare TLS: {error}"))
}

/// Why a connection was not believed, where rustls is brief about it.
pub(super) fn told(error: &io::Error) -> Option<String> {
    let Error::InvalidCertificate(why) = error.get_ref()?.downcast_ref()? else { return None };
    let why = match why {
        CertificateError::UnknownIssuer => "no authority that is asked vouches for it".to_owned(),
        CertificateError::Other(why) => format!("{:?}", why.0),
        _ => return None,
    };
    Some(format!("the certificate is not trusted: {why}"))
}

/// Asks for as much as is wanted: somebody who vouches, and the name, or neither. That the server has the key of its
/// certificate is always asked.
#[derive(Debug)]
struct Verifier {
    authorities: Option<Authorities>,
    asks_name: bool,
    provider: Arc<CryptoProvider>,
}

#[derive(Debug)]
struct Authorities {
    chains: Arc<WebPkiServerVerifier>,
    /// Who is among them needs nobody else to vouch for him: a server may be its own authority.
    certificates: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(authorities) = &self.authorities else { return Ok(ServerCertVerified::assertion()) };
        if authorities.certificates.iter().any(|certificate| certificate == end_entity) {
            verify_time(&parse(end_entity)?, now)?;
            if self.asks_name {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
            }
            return Ok(ServerCertVerified::assertion());
        }
        match authorities.chains.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            // The name is the last thing it looks at.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if !self.asks_name => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        match verify_tls13_signature(message, cert, dss, algorithms) {
            // It does not read certificates of the first version, which are what PostgreSQL's manual makes with an
            // older OpenSSL. Nothing but the key in it counts any more.
            Err(Error::InvalidCertificate(CertificateError::Other(_))) => {
                let key = parse(cert)?.tbs_certificate.subject_public_key_info.to_der();
                let key = SubjectPublicKeyInfoDer::from(key.map_err(|_| CertificateError::BadEncoding)?);
                verify_tls13_signature_with_raw_key(message, &key, dss, algorithms)
            }
            verified => verified,
        }
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

fn parse(certificate: &CertificateDer<'_>) -> Result<Certificate, Error> {
    Certificate::from_der(certificate).map_err(|_| CertificateError::BadEncoding.into())
}

fn verify_time(certificate: &Certificate, now: UnixTime) -> Result<(), Error> {
    let validity = &certificate.tbs_certificate.validity;
    let time = |time: &x509_cert::time::Time| UnixTime::since_unix_epoch(time.to_unix_duration());
    let (not_before, not_after) = (time(&validity.not_before), time(&validity.not_after));
    if now < not_before {
        return Err(CertificateError::NotValidYetContext { time: now, not_before }.into());
    }
    if now > not_after {
        return Err(CertificateError::ExpiredContext { time: now, not_after }.into());
    }
    Ok(())
}
