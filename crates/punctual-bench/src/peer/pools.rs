//! The ways people run bounded work today: a channel and threads, a runtime and a semaphore, a pool that steals.
//!
//! Each is started, lent to the measurement as "spawn this", and ended with the process.

use std::sync::Arc;
use std::thread;

use tokio::runtime::Builder;
use tokio::sync::Semaphore;

use super::Job;

/// Threads that take boxed closures from one unbounded channel.
pub(crate) fn crossbeam<T>(threads: usize, measure: impl FnOnce(&(dyn Fn(Job) + Sync)) -> T) -> T {
    let (sender, receiver) = crossbeam_channel::unbounded::<Job>();
    for _ in 0..threads {
        let receiver = receiver.clone();
        thread::spawn(move || receiver.iter().for_each(|job| job()));
    }
    measure(&|job| sender.send(job).expect("the threads take until the end"))
}

/// A task per job, which waits for one of so many permits.
pub(crate) fn tokio<T>(threads: usize, measure: impl FnOnce(&(dyn Fn(Job) + Sync)) -> T) -> T {
    let runtime = Builder::new_multi_thread().worker_threads(threads).build().expect("a runtime starts");
    let permits = Arc::new(Semaphore::new(threads));
    measure(&|job| {
        let permits = Arc::clone(&permits);
        runtime.spawn(async move {
            let _permit = permits.acquire().await.expect("the semaphore is never closed");
            job();
        });
    })
}

pub(crate) fn rayon<T>(threads: usize, measure: impl FnOnce(&(dyn Fn(Job) + Sync)) -> T) -> T {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool starts");
    measure(&|job| pool.spawn(job))
}
