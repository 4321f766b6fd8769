//! Bodies that are streamed after the head of the response.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{Request, Response};
use http_body::{Body, Frame};
use punctual::{JobError, Limits, Scheduler, Stage, Tenant};
use punctual_tower::{BoxError, CallError, HoldBody, HoldBodyLayer, TenantLayer};
use tower::{ServiceBuilder, ServiceExt, service_fn};

use crate::{call_error, on_virtual_clock, secs};

/// Chunks, and then the end; or never the end.
struct Chunks {
    left: VecDeque<&'static str>,
    ends: bool,
}

impl Body for Chunks {
    type Data = &'static [u8];
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Self::Data>, BoxError>>> {
        match self.left.pop_front() {
            Some(chunk) => Poll::Ready(Some(Ok(Frame::data(chunk.as_bytes())))),
            None if self.ends => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}

async fn respond(scheduler: &Scheduler, ends: bool) -> (Tenant, Response<HoldBody<Chunks>>) {
    let acme = scheduler.tenant("acme", Limits::new().running_max(1)).expect("a new tenant");
    let chosen = acme.clone();
    let service = ServiceBuilder::new()
        .layer(
            TenantLayer::new(move |_: &Request<()>| chosen.clone())
                .plan(|_, plan| plan.deadline(secs(5)))
                .pass_permit(|request, permit| _ = request.extensions_mut().insert(permit.clone())),
        )
        .layer(HoldBodyLayer::new())
        .service(service_fn(move |_: Request<()>| async move {
            Ok::<_, BoxError>(Response::new(Chunks { left: ["one", "two"].into(), ends }))
        }));
    (acme, service.oneshot(Request::new(())).await.expect("there is room"))
}

type Polled = Poll<Option<Result<Frame<&'static [u8]>, BoxError>>>;

fn frame(response: &mut Response<HoldBody<Chunks>>) -> Polled {
    Pin::new(response.body_mut()).poll_frame(&mut Context::from_waker(std::task::Waker::noop()))
}

#[tokio::test]
async fn a_body_holds_the_permit_until_it_has_ended() {
    let (_clock, scheduler) = on_virtual_clock();
    let (acme, mut response) = respond(&scheduler, true).await;
    for _ in 0..2 {
        assert!(matches!(frame(&mut response), Poll::Ready(Some(Ok(_)))));
        assert_eq!(acme.snapshot().running, 1);
    }
    assert!(matches!(frame(&mut response), Poll::Ready(None)));
    assert_eq!((acme.snapshot().running, acme.snapshot().finished.succeeded), (0, 1));
}

#[tokio::test]
async fn a_body_that_is_dropped_half_way_is_a_caller_that_is_gone() {
    let (_clock, scheduler) = on_virtual_clock();
    let (acme, mut response) = respond(&scheduler, true).await;
    assert!(frame(&mut response).is_ready());
    drop(response);
    assert_eq!((acme.snapshot().running, acme.snapshot().finished.cancelled), (0, 1));
}

#[tokio::test]
async fn a_deadline_breaks_off_a_body() {
    let (clock, scheduler) = on_virtual_clock();
    let (acme, mut response) = respond(&scheduler, false).await;
    assert!(frame(&mut response).is_ready() && frame(&mut response).is_ready());
    assert!(frame(&mut response).is_pending());
    clock.advance(secs(5)).unwrap();
    let Poll::Ready(Some(Err(error))) = frame(&mut response) else { panic!("its time is over") };
    let expired = JobError::Expired { stage: Stage::Running, waited: secs(5) };
    assert!(matches!(call_error(&error), CallError::Ended(error) if *error == expired));
    assert_eq!((acme.snapshot().running, acme.snapshot().finished.expired), (0, 1));
}
