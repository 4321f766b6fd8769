//! Which code runs which kind of job.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};

use crate::ctx::Ctx;
use crate::job::Job;
use crate::retry::Failure;

/// What a run gives: a result as JSON, or why there is none.
pub(crate) type Ran = Result<String, Failure>;
pub(crate) type RunFuture = Pin<Box<dyn Future<Output = Ran> + Send>>;

/// The code for one kind.
#[derive(Clone)]
pub(crate) enum Handler {
    Async(Arc<dyn Fn(Ctx) -> RunFuture + Send + Sync>),
    Blocking(Arc<dyn Fn(Ctx) -> Ran + Send + Sync>),
}

impl Handler {
    pub(crate) fn future<J, F, Fut>(handler: F) -> Self
    where
        J: Job,
        F: Fn(J, Ctx) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<J::Output, Failure>> + Send + 'static,
    {
        Self::Async(Arc::new(move |ctx| match decode::<J>(&ctx) {
            Ok(job) => {
                let run = handler(job, ctx);
                Box::pin(async move { encode::<J>(&run.await?) })
            }
            Err(bad) => Box::pin(std::future::ready(Err(bad))),
        }))
    }

    pub(crate) fn blocking<J, F>(handler: F) -> Self
    where
        J: Job,
        F: Fn(J, Ctx) -> Result<J::Output, Failure> + Send + Sync + 'static,
    {
        Self::Blocking(Arc::new(move |ctx| encode::<J>(&handler(decode::<J>(&ctx)?, ctx)?)))
    }
}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Async(_) => "Handler(async)",
            Self::Blocking(_) => "Handler(blocking)",
        })
    }
}

/// A payload that does not fit will not fit the next time either.
fn decode<J: Job>(ctx: &Ctx) -> Result<J, Failure> {
    let mut reader = serde_json::Deserializer::from_str(&ctx.record().job.payload);
    serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        Failure::give_up(format!(
            "the payload of kind {:?} does not fit at `{}`: {}",
            J::KIND,
            error.path(),
            error.inner()
        ))
    })
}

fn encode<J: Job>(output: &J::Output) -> Ran {
    serde_json::to_string(output)
        .map_err(|error| Failure::give_up(format!("the result of kind {:?} cannot be written down: {error}", J::KIND)))
}

/// The handlers of a process, by kind.
#[derive(Debug, Default)]
pub(crate) struct Handlers(RwLock<BTreeMap<&'static str, Handler>>);

impl Handlers {
    /// # Panics
    /// If the kind has one already.
    pub(crate) fn add(&self, kind: &'static str, handler: Handler) {
        let taken = self.0.write().unwrap_or_else(PoisonError::into_inner).insert(kind, handler).is_some();
        assert!(!taken, "kind {kind:?} has a handler already");
    }

    pub(crate) fn get(&self, kind: &str) -> Option<Handler> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(kind).cloned()
    }

    pub(crate) fn kinds(&self) -> Vec<&'static str> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).keys().copied().collect()
    }
}
