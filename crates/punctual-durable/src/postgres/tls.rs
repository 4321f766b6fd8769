//! Whom to believe that it is the server, as libpq has it.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::error::StoreError;

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
        let config = config.map_err(|error| StoreError::permanent(format!("cannot prepare TLS: {error}")))?;
        let config = match self {
            Self::Named(roots) => config.with_root_certificates(roots.load()?),
            Self::Vouched(roots) => {
                let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots.load()?), provider.clone());
                let verifier =
                    verifier.build().map_err(|error| StoreError::permanent(format!("cannot prepare TLS: {error}")))?;
                config
                    .dangerous()
                    .with_custom_certificate_verifier(Arc::new(Lenient { roots: Some(verifier), provider }))
            }
            Self::Anybody => {
                config.dangerous().with_custom_certificate_verifier(Arc::new(Lenient { roots: None, provider }))
            }
        };
        Ok(MakeRustlsConnect::new(config.with_no_client_auth()))
    }
}

impl Roots {
    fn load(&self) -> Result<RootCertStore, StoreError> {
        let mut store = RootCertStore::empty();
        match self {
            Self::System => {
                // What cannot be read is not trusted; what is missing then is told at the handshake.
                store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
            Self::File(path) => {
                let bad =
                    |why: String| StoreError::permanent(format!("cannot read sslrootcert {}: {why}", path.display()));
                let certificates = CertificateDer::pem_file_iter(path).map_err(|error| bad(error.to_string()))?;
                for certificate in certificates {
                    let certificate = certificate.map_err(|error| bad(error.to_string()))?;
                    store.add(certificate).map_err(|error| bad(error.to_string()))?;
                }
                if store.is_empty() {
                    return Err(bad("there is no certificate in it".to_owned()));
                }
            }
        }
        Ok(store)
    }
}

/// Asks for less than rustls does: no name, or nothing at all. That the server has the key of its certificate is always asked.
#[derive(Debug)]
struct Lenient {
    roots: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(roots) = &self.roots else { return Ok(ServerCertVerified::assertion()) };
        match roots.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            // The name is the last thing it looks at.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
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
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
