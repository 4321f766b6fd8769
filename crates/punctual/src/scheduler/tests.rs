//! The races of a job under model checkers. Each body runs plainly, under loom and under shuttle: see `model.rs`.
//!
//! A scheduler under loom has two threads of its own (watch and worker) besides the model's; loom has room for five.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::*;
use crate::clock::VirtualClock;
use crate::error::{JobError, Reason};
use crate::model::model;
use crate::policy::Rate;
use crate::sync::thread;

const MS: Duration = Duration::from_millis(1);

/// A scheduler with one worker, its clock, and a count of the jobs that ran.
struct Rig {
    clock: VirtualClock,
    scheduler: Scheduler,
    ran: Arc<AtomicUsize>,
}

impl Rig {
    fn new() -> Self {
        let clock = VirtualClock::new();
        let scheduler = Scheduler::builder().workers(1).clock(&clock).build().unwrap();
        Self { clock, scheduler, ran: Arc::default() }
    }

    fn job(&self) -> impl FnOnce(Ctx) + Send + 'static + use<> {
        let ran = Arc::clone(&self.ran);
        move |_| {
            ran.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn ran(&self) -> usize {
        self.ran.load(Ordering::Relaxed)
    }

    /// Time passes on another thread.
    fn advance_elsewhere(&self) -> thread::JoinHandle<()> {
        let clock = self.clock.clone();
        thread::spawn(move || clock.advance(MS).unwrap())
    }

    /// When all is quiet, every gauge is at zero and so many jobs have ended.
    fn assert_quiet(&self, ended: u64) {
        self.clock.settle().unwrap();
        let snapshot = self.scheduler.snapshot();
        assert_eq!((snapshot.scheduled, snapshot.ready, snapshot.running, snapshot.zombies), (0, 0, 0, 0));
        assert_eq!(snapshot.finished.total(), ended);
    }
}

/// C34: 5,000 tenants are opened, each has a job that runs, is cancelled or expires, and is let go of. None is left,
/// although each owed something for its start when it went.
#[test]
#[cfg(not(any(loom, shuttle)))]
fn tenants_that_nobody_uses_are_forgotten() {
    let rig = Rig::new();
    let known = || rig.scheduler.shared().core.lock().tenants.count();
    for n in 0..5_000 {
        let tenant = rig.scheduler.tenant(&format!("tenant {n}"), Limits::new()).unwrap();
        match n % 4 {
            0 => tenant.now().run(rig.job()).unwrap().detach(),
            1 => drop(tenant.after(MS).run(rig.job())),
            2 => tenant.after(MS).run(rig.job()).unwrap().detach(),
            _ => tenant.after(MS).run_timeout(MS).spawn(|_| std::future::pending::<()>()).unwrap().detach(),
        }
        if n % 2 == 0 {
            // The handle goes first, or the job does.
            drop(tenant);
            rig.clock.advance(2 * MS).unwrap();
        } else {
            rig.clock.advance(2 * MS).unwrap();
            drop(tenant);
        }
    }
    assert!(known() <= 3, "{} tenants are known, the default one included", known());
    // One with limits of its own, a closed one and a paused one would lose something.
    let limited = rig.scheduler.tenant("limited", Limits::new().weight(2)).unwrap();
    let (closed, paused) = (
        rig.scheduler.tenant("closed", Limits::new()).unwrap(),
        rig.scheduler.tenant("paused", Limits::new()).unwrap(),
    );
    closed.close();
    paused.pause();
    drop((limited, closed, paused));
    let again = rig.scheduler.tenant("closed", Limits::new()).unwrap();
    assert!(again.now().run(rig.job()).is_err());
    assert!(known() >= 4);
}

/// C34: the same while another tenant always has work waiting, so that nobody is ever even.
#[test]
#[cfg(not(any(loom, shuttle)))]
fn tenants_are_forgotten_while_others_are_busy() {
    let rig = Rig::new();
    let known = || rig.scheduler.shared().core.lock().tenants.count();
    let (busy, rest) =
        (rig.scheduler.tenant("busy", Limits::new()).unwrap(), crate::DelayQueue::<()>::with_clock(&rig.clock));
    for _ in 0..2_000 {
        let rest = rest.clone();
        busy.now().run(move |_| rest.take_timeout(MS).is_ok()).unwrap().detach();
    }
    for n in 0..500 {
        let tenant = rig.scheduler.tenant(&format!("tenant {n}"), Limits::new()).unwrap();
        tenant.now().run(rig.job()).unwrap().detach();
        drop(tenant);
        rig.clock.advance(3 * MS).unwrap();
    }
    assert_eq!(rig.ran(), 500);
    assert!(busy.snapshot().ready > 0);
    assert!(known() <= 6, "{} tenants are known, the default one and the busy one included", known());
    busy.cancel_all();
}

/// C33, C34: a rate that is spent is not forgotten with the limits that set it.
#[test]
#[cfg(not(any(loom, shuttle)))]
fn a_tenant_that_owes_is_remembered_until_it_does_not() {
    let rig = Rig::new();
    let rate = Limits::new().rate(Rate::per_minute(1));
    let acme = rig.scheduler.tenant("acme", rate).unwrap();
    acme.now().run(rig.job()).unwrap().detach();
    rig.clock.settle().unwrap();
    acme.set_limits(Limits::new());
    drop(acme);
    let acme = rig.scheduler.tenant("acme", Limits::new()).unwrap();
    acme.set_limits(rate);
    let mut job = acme.now().run(rig.job()).unwrap();
    rig.clock.advance(59_999 * MS).unwrap();
    assert_eq!(job.wait_timeout(Duration::ZERO), None, "it did not buy itself a start by leaving");
    rig.clock.advance(MS).unwrap();
    assert_eq!(job.wait_timeout(Duration::ZERO), Some(Ok(())));
    acme.set_limits(Limits::new());
    drop(acme);
    rig.clock.advance(60_000 * MS).unwrap();
    (0..3).for_each(|_| drop(rig.scheduler.tenant("other", Limits::new())));
    assert_eq!(rig.scheduler.shared().core.lock().tenants.count(), 1, "only the default one is left");
}

/// C23, C27, C34: 4 threads. A submit, a cancel and a limit that is raised compete with the dispatch: a place is given
/// back once, the permit is used once, and all end.
#[test]
fn loom_submit_against_cancel_against_limit_change() {
    model(|| {
        let rig = Rig::new();
        let limits = Limits::new().running_max(0).backlog_max(1);
        let acme = rig.scheduler.tenant("acme", limits).unwrap();
        let mut first = acme.now().run(rig.job()).unwrap();
        let raise = {
            let acme = acme.clone();
            thread::spawn(move || acme.set_limits(limits.running_max(1)))
        };
        let answer = first.cancel();
        if answer != Cancel::Prevented {
            first.stopped().wait();
        }
        // Its place is free now, whoever was first, and whatever the limit is.
        let mut second = acme.now().run(rig.job()).expect("the place is free at once");
        raise.join().unwrap();
        assert_eq!(second.wait(), Ok(()));
        assert_eq!(first.wait().is_ok(), answer == Cancel::TooLate);
        rig.assert_quiet(2);
        let snapshot = acme.snapshot();
        assert_eq!((snapshot.ready, snapshot.running, snapshot.rejected), (0, 0, 0));
        assert_eq!(rig.ran(), 2 - usize::from(answer == Cancel::Prevented));
    });
}

/// C23: 4 threads. Two callers race into the one place there is; one gets it, and gives it back.
#[test]
fn loom_two_callers_race_into_one_place() {
    model(|| {
        let rig = Rig::new();
        let acme = rig.scheduler.tenant("acme", Limits::new().running_max(0).backlog_max(1)).unwrap();
        let other = {
            let (acme, job) = (acme.clone(), rig.job());
            thread::spawn(move || acme.now().run(job).ok())
        };
        let mine = acme.now().run(rig.job()).ok();
        let theirs = other.join().unwrap();
        assert_ne!(mine.is_some(), theirs.is_some());
        drop((mine, theirs));
        assert_eq!(acme.snapshot().rejected, 1);
        assert!(acme.now().run(rig.job()).is_ok(), "the place is free again");
        rig.assert_quiet(2);
        assert_eq!(rig.ran(), 0);
    });
}

/// C26, C34: 4 threads. The permit passes on while the one who is next loses interest: it goes to the one behind, or
/// comes back, and is never lost with the dying.
#[test]
fn loom_a_permit_is_not_lost_with_a_dying_waiter() {
    model(|| {
        let rig = Rig::new();
        let acme = rig.scheduler.tenant("acme", Limits::new().running_max(1)).unwrap();
        let first = acme.now().run(rig.job()).unwrap();
        let (dying, mut last) = (acme.now().run(rig.job()).unwrap(), acme.now().run(rig.job()).unwrap());
        let leaver = thread::spawn(move || drop(dying));
        assert_eq!(last.wait(), Ok(()));
        leaver.join().unwrap();
        first.stopped().wait();
        rig.assert_quiet(3);
        let finished = acme.snapshot().finished;
        assert_eq!((finished.succeeded + finished.cancelled, rig.ran() >= 2), (3, true));
    });
}

/// C34: 4 threads. Everything of a tenant is cancelled while it starts: nothing is left, and what has run has run once.
#[test]
fn loom_cancel_all_against_dispatch() {
    model(|| {
        let rig = Rig::new();
        let acme = rig.scheduler.tenant("acme", Limits::new().running_max(1)).unwrap();
        let jobs = [acme.after(MS).run(rig.job()).unwrap(), acme.after(MS).run(rig.job()).unwrap()];
        let advance = rig.advance_elsewhere();
        let cancelled = acme.cancel_all();
        advance.join().unwrap();
        rig.assert_quiet(2);
        let finished = acme.snapshot().finished;
        assert_eq!((finished.cancelled as usize, finished.succeeded as usize), (cancelled, 2 - cancelled));
        drop(jobs);
    });
}

/// C7, C14, C29: 4 threads. Either the cancel prevents the start, or the job runs once.
#[test]
fn loom_cancel_against_fire() {
    model(|| {
        let rig = Rig::new();
        let mut job = rig.scheduler.after(MS).run(rig.job()).unwrap();
        let advance = rig.advance_elsewhere();
        let answer = job.cancel();
        advance.join().unwrap();
        job.stopped().wait();
        assert_eq!(rig.ran(), usize::from(answer != Cancel::Prevented));
        assert_eq!(job.wait().is_ok(), answer == Cancel::TooLate);
        rig.assert_quiet(1);
    });
}

/// C15: 4 threads. A dropped handle withdraws the job, or the job runs once; nothing is left behind.
#[test]
fn loom_handle_drop_against_start() {
    model(|| {
        let rig = Rig::new();
        let job = rig.scheduler.after(MS).run(rig.job()).unwrap();
        let advance = rig.advance_elsewhere();
        drop(job);
        advance.join().unwrap();
        rig.assert_quiet(1);
        let finished = rig.scheduler.snapshot().finished;
        assert!(finished.cancelled == 1 || rig.ran() == 1);
    });
}

/// C30: 4 threads. The deadline and the end of the run compete; exactly one decides.
#[test]
fn loom_deadline_against_finish() {
    model(|| {
        let rig = Rig::new();
        let mut job = rig.scheduler.now().deadline(MS).run(rig.job()).unwrap();
        let advance = rig.advance_elsewhere();
        let result = job.wait();
        advance.join().unwrap();
        job.stopped().wait();
        assert!(matches!(result, Ok(()) | Err(JobError::Expired { .. })));
        assert_eq!(result.is_ok(), rig.scheduler.snapshot().finished.succeeded == 1);
        rig.assert_quiet(1);
    });
}

/// C19, C25: 4 threads. A submit that races a shutdown is admitted and accounted for, or the job is given back.
#[test]
fn loom_submit_against_shutdown() {
    model(|| {
        let rig = Rig::new();
        let first = rig.scheduler.now().run(rig.job()).unwrap();
        let scheduler = rig.scheduler.clone();
        let closer = thread::spawn(move || scheduler.shutdown(Duration::MAX));
        match rig.scheduler.now().run(rig.job()) {
            Ok(mut second) => assert_eq!(second.wait(), Ok(())),
            Err(rejected) => assert_eq!(rejected.reason(), &Reason::Closed),
        }
        let report = closer.join().unwrap();
        assert_eq!((report.cancelled, report.never_started, report.still_running), (0, 0, 0));
        drop(first);
        assert_eq!(rig.scheduler.snapshot().running, 0);
    });
}

/// C3, C20: 4 threads. The only worker is away with a job that ends when the next one's deadline has passed.
#[test]
fn loom_watch_keeps_deadlines_while_the_worker_is_away() {
    model(|| {
        let rig = Rig::new();
        let mut queued = None;
        let blocker = rig.scheduler.now().run(|ctx| {
            // A wait inside the library: the clock may go on.
            ctx.after(Duration::MAX).run(|_| ()).unwrap().wait_timeout(2 * MS)
        });
        rig.clock.settle().unwrap();
        queued.replace(rig.scheduler.now().deadline(MS).run(rig.job()).unwrap());
        rig.clock.advance(MS).unwrap();
        let mut queued = queued.unwrap();
        assert!(matches!(queued.wait(), Err(JobError::Expired { .. })));
        assert_eq!(rig.ran(), 0);
        rig.clock.advance(MS).unwrap();
        assert_eq!(blocker.unwrap().wait(), Ok(None));
    });
}

/// C7, C23, C27: 4 threads. Of two who want the only permit one goes away as it is given back: the other gets it.
#[test]
fn loom_a_wait_for_a_permit_is_dropped_as_it_is_granted() {
    model(|| {
        let rig = Rig::new();
        let acme = rig.scheduler.tenant("acme", Limits::new().running_max(1)).unwrap();
        let held = acme.now().acquire().unwrap().wait().unwrap();
        let first = acme.now().acquire().unwrap();
        let mut second = acme.now().acquire().unwrap();
        let goes_away = thread::spawn(move || drop(first));
        drop(held);
        drop(second.wait().unwrap());
        goes_away.join().unwrap();
        rig.assert_quiet(3);
    });
}

/// C26, C30: 4 threads. The deadline of a permit and its return compete; exactly one decides, and the permit is free.
#[test]
fn loom_the_deadline_of_a_permit_against_its_return() {
    model(|| {
        let rig = Rig::new();
        let permit = rig.scheduler.now().deadline(MS).acquire().unwrap().wait();
        let advance = rig.advance_elsewhere();
        drop(permit);
        advance.join().unwrap();
        rig.assert_quiet(1);
        let finished = rig.scheduler.snapshot().finished;
        assert_eq!(finished.succeeded + finished.expired, 1);
    });
}
