//! Waiting: on threads that have nothing else to do, or as tasks of a runtime.

use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use anyhow::{Result, anyhow};

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future on this thread.
pub fn wait<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(answer) => return answer,
            Poll::Pending => thread::park(),
        }
    }
}

/// The sum of what callers answer, each on a thread of its own.
///
/// # Errors
/// If one of them fails.
pub fn in_parallel(callers: u64, caller: impl Fn(u64) -> Result<u64> + Sync) -> Result<u64> {
    let caller = &caller;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..callers).map(|number| scope.spawn(move || caller(number))).collect();
        threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a caller panicked"))?).sum()
    })
}

/// The sum of what callers answer, each a task of one runtime, as those of the peers are.
///
/// # Errors
/// If one of them fails.
pub fn in_tasks<F>(callers: u64, caller: impl Fn(u64) -> F) -> Result<u64>
where
    F: Future<Output = Result<u64>> + Send + 'static,
{
    let runtime = tokio::runtime::Builder::new_multi_thread().build()?;
    let tasks: Vec<_> = (0..callers).map(|number| runtime.spawn(caller(number))).collect();
    tasks.into_iter().map(|task| runtime.block_on(task)?).sum()
}
