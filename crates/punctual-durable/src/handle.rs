//! What the caller of a durable job holds.

use std::fmt;
use std::future::{Future, IntoFuture, poll_fn};
use std::marker::PhantomData;
use std::pin::{Pin, pin};
use std::task::Poll;

use serde::de::DeserializeOwned;

use crate::error::{DurableError, StoreError};
use crate::id::JobId;
use crate::interest::Interest;
use crate::jobs::Jobs;
use crate::state::Outcome;
use crate::store::{CancelCause, Cancelled, Record};

/// The caller's end of a durable job: await it for the result, from any process that has the store open. Dropping it
/// changes nothing, unless the job was enqueued [`while_wanted`](crate::Plan::while_wanted).
///
/// # Example
/// ```
/// # use punctual_durable::{Failure, Job, Jobs};
/// # use serde::{Deserialize, Serialize};
/// #[derive(Serialize, Deserialize)]
/// struct Add(u32, u32);
/// impl Job for Add {
///     const KIND: &'static str = "add";
///     type Output = u32;
/// }
///
/// # pollster::block_on(async {
/// let jobs = Jobs::open("memory:").await?;
/// jobs.on(|add: Add, _| async move { Ok(add.0 + add.1) });
/// let node = jobs.start().await?;
/// assert_eq!(jobs.now().enqueue(Add(2, 3)).await?.await?, 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
pub struct Handle<T> {
    jobs: Jobs,
    id: JobId,
    interest: Option<Interest>,
    output: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> Handle<T> {
    pub(crate) fn new(jobs: Jobs, id: JobId, interest: Option<Interest>) -> Self {
        Self { jobs, id, interest, output: PhantomData }
    }

    /// The job's id, to find it again from anywhere.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::Handle;
    /// fn location(handle: &Handle<String>) -> String {
    ///     format!("/jobs/{}", handle.id())
    /// }
    /// ```
    #[must_use]
    pub fn id(&self) -> JobId {
        self.id
    }

    /// Waits for the result; as often as wished.
    ///
    /// # Errors
    /// Why there is none.
    ///
    /// # Cancel safety
    /// Nothing is lost when it is dropped.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{DurableError, Handle};
    /// async fn answer(handle: &Handle<String>) -> Result<String, DurableError> {
    ///     handle.result().await
    /// }
    /// ```
    pub async fn result(&self) -> Result<T, DurableError> {
        let record = self.ended().await?;
        let last_error = record.last_error.unwrap_or_default();
        match record.state.outcome {
            Some(Outcome::Succeeded) => {
                let text = record.result.unwrap_or_default();
                serde_json::from_str(&text).map_err(|error| DurableError::Output(error.to_string()))
            }
            Some(Outcome::Cancelled) => Err(DurableError::Cancelled { reason: last_error }),
            Some(Outcome::Expired) => Err(DurableError::Expired { reason: last_error }),
            Some(Outcome::Failed) | None => Err(DurableError::Failed { attempts: record.attempt, last_error }),
        }
    }

    /// Waits until the outcome is settled.
    async fn ended(&self) -> Result<Record, DurableError> {
        let store = self.jobs.store();
        let end = store.signals().end_of(self.id);
        loop {
            match store.get(self.id).await? {
                None => return Err(DurableError::Gone),
                Some(record) if record.state.outcome.is_some() => return Ok(record),
                Some(_) => {}
            }
            let net = self.jobs.poll_net();
            let mut net = pin!(net);
            let mut told = &end;
            poll_fn(|cx| {
                if Pin::new(&mut told).poll(cx).is_ready() || net.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(());
                }
                Poll::Pending
            })
            .await;
        }
    }

    /// Stops wanting the job, wherever it is: waiting, it ends at once; running, on whatever node, it is told to stop.
    ///
    /// # Errors
    /// The store's.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{Handle, StoreError};
    /// async fn never_mind(handle: Handle<String>) -> Result<(), StoreError> {
    ///     handle.cancel().await?;
    ///     Ok(())
    /// }
    /// ```
    pub async fn cancel(&self) -> Result<Cancelled, StoreError> {
        self.jobs.store().cancel(self.id, CancelCause::Caller).await
    }

    /// Lets go of a job enqueued [`while_wanted`](crate::Plan::while_wanted) without cancelling it, for as long as this
    /// process is there.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::Handle;
    /// fn go_on_without_me(handle: Handle<String>) {
    ///     handle.detach();
    /// }
    /// ```
    pub fn detach(mut self) {
        if let Some(interest) = self.interest.take() {
            interest.keep();
        }
    }
}

impl<T: DeserializeOwned + 'static> IntoFuture for Handle<T> {
    type Output = Result<T, DurableError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.result().await })
    }
}

impl<T> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("id", &self.id).field("wanted", &self.interest.is_some()).finish()
    }
}
