//! The service: a router with a tenant in front of each request, and a loop that notices when clients go.
//!
//! # When is a client gone?
//! A client that closes its end and one that only says "I have sent all I will send" (a half-close) look alike: both
//! send a FIN. hyper's default, and so that of `axum::serve`, is to take either for gone, which breaks off answers that
//! are still waited for. With `half_close(true)` hyper reads no more while it answers, so that it would notice a reset
//! only when it writes. Here the three cases are told apart:
//!
//! | the client | what it sends | what happens |
//! |---|---|---|
//! | resets (or its process dies with unread data) | RST | the socket reports an error: the work stops at once |
//! | half-closes | FIN | the work goes on, and the answer is sent |
//! | closes | FIN | the first page that is sent to it is answered by an RST: the work stops |

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::error_handling::HandleErrorLayer;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Router, routing};
use futures_util::stream;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use punctual::{JobError, Limits, Reason, Scheduler, Stage};
use punctual_tower::{BoxError, CallError, HoldBodyLayer, TenantLayer};
use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream};
use tower::ServiceBuilder;

use crate::press::Press;

/// What each tenant may have.
pub(crate) fn limits() -> Limits {
    Limits::new().running_max(2).backlog_max(3)
}

pub(crate) fn router(scheduler: &Scheduler, press: &Press) -> Router {
    let tenants = TenantLayer::by_name(scheduler, limits(), |request: &Request| tenant_of(request.headers()))
        .plan(|_, plan| plan.start_within(Duration::from_secs(10)).deadline(Duration::from_secs(60)))
        .pass_permit(|request, permit| _ = request.extensions_mut().insert(permit.clone()));
    let layers = ServiceBuilder::new()
        .layer(HandleErrorLayer::new(|error| std::future::ready(refusal(&error))))
        .layer(tenants)
        // Pages are rendered while they are sent, so the permit is held until the last one is.
        .layer(HoldBodyLayer::new());
    Router::new().route("/render/{pages}", routing::get(render)).layer(layers).with_state(press.clone())
}

/// Where there are accounts, this is the place to look at the token.
fn tenant_of(headers: &HeaderMap) -> String {
    headers.get("x-tenant").and_then(|name| name.to_str().ok()).unwrap_or("nobody").to_owned()
}

async fn render(State(press): State<Press>, Path(pages): Path<u32>, headers: HeaderMap) -> Response {
    let document = press.begin(tenant_of(&headers), pages);
    let pages = stream::unfold(document, |mut document| async {
        let page = document.next_page().await?;
        Some((Ok::<_, Infallible>(page), document))
    });
    Body::from_stream(pages).into_response()
}

/// What a client is told that gets no document, and when to come again.
fn refusal(error: &BoxError) -> Response {
    let status = match error.downcast_ref::<CallError>() {
        Some(CallError::Rejected(rejected)) if *rejected.reason() == Reason::Closed => StatusCode::SERVICE_UNAVAILABLE,
        Some(CallError::Rejected(_)) => StatusCode::TOO_MANY_REQUESTS,
        Some(CallError::Ended(JobError::Expired { stage: Stage::Running, .. })) => StatusCode::GATEWAY_TIMEOUT,
        Some(CallError::Ended(JobError::Expired { .. } | JobError::Cancelled { .. })) => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        Some(_) | None => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let again = error.downcast_ref::<CallError>().and_then(CallError::retry_after);
    // Whole seconds, rounded up: to come a moment too early is to be refused again.
    let seconds = again.map_or(1, |wait| wait.as_secs() + u64::from(wait.subsec_nanos() > 0));
    (status, [(header::RETRY_AFTER, seconds.to_string())], format!("{error}\n")).into_response()
}

/// Serves until it is dropped; what runs for open connections ends with them.
pub(crate) async fn serve(listener: TcpListener, router: Router) -> std::io::Result<()> {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                // A connection that failed before it was accepted is its client's affair.
                if let Ok((stream, _)) = accepted {
                    connections.spawn(connection(stream, router.clone()));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(stream: TcpStream, router: Router) -> std::io::Result<()> {
    let stream = stream.into_std()?;
    let errors = TcpStream::from_std(stream.try_clone()?)?;
    let io = TokioIo::new(TcpStream::from_std(stream)?);
    let mut http = hyper::server::conn::http1::Builder::new();
    let served = http.half_close(true).serve_connection(io, TowerToHyperService::new(router));
    tokio::select! {
        // How a connection ended is its client's affair.
        _ = served => Ok(()),
        // The client is gone: dropping the connection drops the response, and that the work.
        gone = errors.ready(Interest::ERROR) => gone.map(drop),
    }
}
