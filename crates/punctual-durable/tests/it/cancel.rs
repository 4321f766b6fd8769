use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use punctual::Stage;
use punctual_durable::{Cancelled, DurableError, Failure, Outcome};

use crate::bed::{HOUR, Say, on_every_store, say, wait, with_faults};

/// C49
#[test]
fn a_waiting_job_ends_at_once() {
    on_every_store(|bed| {
        let job = wait(bed.jobs.after(HOUR).enqueue(say("x"))).unwrap();
        assert_eq!(wait(job.cancel()).unwrap(), Cancelled::Now(Stage::Scheduled));
        assert_eq!(wait(job.cancel()).unwrap(), Cancelled::Ended(Outcome::Cancelled));
        let reason = "cancelled by a caller".to_owned();
        assert_eq!(wait(job.result()).unwrap_err(), DurableError::Cancelled { reason });
        assert_eq!(wait(bed.jobs.totals()).unwrap().scheduled, 0);
    });
}

/// C49, C26: the caller hears at once; a future is dropped; the capacity is free again.
#[test]
fn a_running_future_is_dropped_wherever_it_runs() {
    struct Dropped(Arc<AtomicBool>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    on_every_store(|bed| {
        let dropped = Arc::new(AtomicBool::new(false));
        let seen = dropped.clone();
        bed.jobs.on(move |say: Say, _| {
            let guard = Dropped(seen.clone());
            async move {
                std::future::pending::<()>().await;
                drop(guard);
                Ok(say.0)
            }
        });
        let node = wait(bed.jobs.start()).unwrap();
        let job = wait(bed.jobs.now().enqueue(say("x"))).unwrap();
        bed.settle();
        assert_eq!(wait(bed.another().cancel(job.id())).unwrap(), Cancelled::Now(Stage::Running));
        assert!(matches!(wait(job.result()), Err(DurableError::Cancelled { .. })));
        wait(node.drain());
        assert!(dropped.load(Ordering::SeqCst));
        let totals = wait(bed.jobs.totals()).unwrap();
        assert_eq!((totals.running, totals.stopping), (0, 0));
    });
}

/// C49: a cancel that came between a claim and its answer was told to a node that did not run the job yet, and thrown
/// away there. Then the answer came, and the handler began and was never told: in one file a claim and a cancel of one
/// commit were enough for that. What is to stop before it has begun is stopped as it begins.
#[test]
fn a_cancel_that_overtakes_the_answer_to_a_claim_is_heeded() {
    let (bed, line) = with_faults();
    bed.jobs.on(|_: Say, _| std::future::pending::<Result<String, Failure>>());
    let _node = wait(bed.jobs.start()).unwrap();
    let other = bed.another();
    // The node may look what the other brings: that claim is not the one.
    bed.settle();
    line.hold_answers_of("claim");
    let job = wait(other.now().enqueue(say("x"))).unwrap();
    bed.settle();
    assert_eq!(wait(job.cancel()).unwrap(), Cancelled::Now(Stage::Running));
    bed.settle();
    line.hold_answers(false);
    bed.advance(HOUR);
    let totals = wait(other.totals()).unwrap();
    assert_eq!((totals.running, totals.stopping), (0, 0));
}

/// C26, C40: a blocking handler that does not look keeps its permit until it returns, and its late result is thrown
/// away.
#[test]
fn a_late_result_is_thrown_away() {
    on_every_store(|bed| {
        let (go, gate) = std::sync::mpsc::channel::<()>();
        let gate = std::sync::Mutex::new(gate);
        bed.jobs.on_blocking(move |say: Say, ctx| {
            gate.lock().unwrap().recv().unwrap();
            while !ctx.is_cancelled() {
                std::thread::yield_now();
            }
            Ok(say.0)
        });
        let node = wait(bed.jobs.start()).unwrap();
        let job = wait(bed.jobs.now().enqueue(say("x"))).unwrap();
        while wait(bed.jobs.totals()).unwrap().running == 0 {
            std::thread::yield_now();
        }
        assert_eq!(wait(job.cancel()).unwrap(), Cancelled::Now(Stage::Running));
        let totals = wait(bed.jobs.totals()).unwrap();
        assert_eq!((totals.running, totals.stopping), (1, 1));
        go.send(()).unwrap();
        wait(node.drain());
        assert!(matches!(wait(job.result()), Err(DurableError::Cancelled { .. })));
        assert_eq!(wait(bed.jobs.totals()).unwrap().running, 0);
    });
}
