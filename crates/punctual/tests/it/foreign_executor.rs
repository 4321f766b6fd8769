//! What others promise of their timer pools, held against ours: the behaviours that OpenJDK's tests assert of Java's
//! `ScheduledThreadPoolExecutor`, of any pool, and of the futures they give out. Written anew in our terms;
//! `docs/foreign-suites.md` lists which is which, which of them other modules prove already, and what has no
//! counterpart.

#![allow(clippy::unwrap_used, reason = "these are tests, their helpers included")]

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use punctual::{
    Cancel, Cause, Cron, Ctx, Event, JobError, JobHandle, Limits, Outcome, Reason, Scheduler, SeriesPlan, Stage,
    VirtualClock,
};

use crate::jobs::{Gate, Log, SOON, block_a_worker, on_virtual_clock, panic_with, secs, until};
#[cfg(target_os = "linux")]
use crate::jobs::{in_own_process_of, in_time};
use crate::queue::{background, block_on, ms, ns, shown};

/// Notes how much time has passed since now whenever it is called.
fn stopwatch(clock: &VirtualClock, log: &Log<Duration>) -> impl FnMut(Ctx) + Send + use<> {
    let (clock, log, start) = (clock.clone(), log.clone(), clock.now());
    move |_| log.add(clock.now() - start)
}

/// C17
#[test]
fn the_first_delay_and_the_period_are_two_things_for_both_kinds_of_series() {
    let kinds: [fn(SeriesPlan<'_>) -> SeriesPlan<'_>; 2] = [|rate| rate, |delay| delay.fixed_delay()];
    for kind in kinds {
        let (clock, scheduler) = on_virtual_clock(1);
        let runs = Log::new();
        let series = kind(scheduler.every(secs(3_600)).first(ms(250))).run(stopwatch(&clock, &runs)).unwrap();
        clock.advance(ms(250) - ns(1)).unwrap();
        assert_eq!(runs.len(), 0, "not before its first delay");
        clock.advance(secs(3_600)).unwrap();
        assert_eq!(runs.all(), [ms(250)], "and the period only afterwards");
        assert_eq!(series.cancel(), Cancel::Prevented);
        clock.advance(secs(36_000)).unwrap();
        assert_eq!(runs.len(), 1);
    }
}

/// C17
#[test]
fn eight_runs_span_seven_periods_exactly_whatever_the_period() {
    let kinds: [fn(SeriesPlan<'_>) -> SeriesPlan<'_>; 2] = [|rate| rate, |delay| delay.fixed_delay()];
    for power in 0..17 {
        for kind in kinds {
            let (clock, scheduler) = on_virtual_clock(1);
            let (period, runs) = (ns(10u64.pow(power)), Log::new());
            let series = kind(scheduler.every(period).first(Duration::ZERO)).run(stopwatch(&clock, &runs)).unwrap();
            clock.advance(period * 7).unwrap();
            assert_eq!(runs.all(), (0..8).map(|n| period * n).collect::<Vec<_>>());
            assert_eq!((series.runs(), series.missed()), (8, 0));
        }
    }
}

/// Tries every kind of submit, and counts those that are refused because the scheduler is closed, with the work given
/// back.
fn refusals(scheduler: &Scheduler, clock: &VirtualClock) -> usize {
    let (work, mut refused) = (Arc::new(()), 0);
    let closure = || {
        let work = Arc::clone(&work);
        move |_: Ctx| drop(Arc::clone(&work))
    };
    let plans = [scheduler.now(), scheduler.after(secs(1)), scheduler.at(clock.now()), scheduler.at(clock.wall())];
    for plan in plans {
        let rejected = plan.run(closure()).unwrap_err();
        assert_eq!((rejected.reason(), Arc::strong_count(&work)), (&Reason::Closed, 2), "the work is given back");
        refused += 1;
    }
    let minutely = Cron::parse("* * * * *").unwrap();
    let series = [scheduler.every(secs(1)), scheduler.every(secs(1)).fixed_delay(), scheduler.cron(minutely)];
    for plan in series {
        let rejected = plan.run(closure()).unwrap_err();
        assert_eq!((rejected.reason(), Arc::strong_count(&work)), (&Reason::Closed, 2), "the work is given back");
        refused += 1;
    }
    assert_eq!(scheduler.now().spawn(|_| async {}).unwrap_err().reason(), &Reason::Closed);
    assert_eq!(scheduler.every(secs(1)).spawn(|_| async {}).unwrap_err().reason(), &Reason::Closed);
    refused + 2
}

/// C19
#[test]
fn every_kind_of_submit_is_refused_from_the_first_moment_of_a_shutdown() {
    for grace in [Duration::ZERO, Duration::MAX] {
        let (clock, scheduler) = on_virtual_clock(2);
        let (gate, mut first) = block_a_worker(&clock, &scheduler);
        let (other_gate, mut second) = block_a_worker(&clock, &scheduler);
        let mut report = pin!(scheduler.shutdown_async(grace));
        let mut refused = refusals(&scheduler, &clock);
        let now = scheduler.snapshot();
        assert_eq!((now.running, now.scheduled, now.ready), (2, 0, 0), "the jobs of before still run");
        // Without a grace, the report does not wait for them.
        let early = grace.is_zero().then(|| block_on(report.as_mut()));
        gate.open();
        other_gate.open();
        let report = early.unwrap_or_else(|| block_on(report));
        clock.settle().unwrap();
        refused += refusals(&scheduler, &clock);
        let expected = if grace.is_zero() { (0, 2) } else { (2, 0) };
        assert_eq!((report.done, report.still_running), expected);
        assert_eq!((first.wait().is_ok(), second.wait().is_ok()), (!grace.is_zero(), !grace.is_zero()));
        let now = scheduler.snapshot();
        assert_eq!((now.finished.total(), now.rejected, refused), (2, 18, 18));
    }
}

/// C13: no more and no less, also for a job that looks at its own scheduler.
#[test]
fn counts_read_from_inside_a_job_are_exact() {
    let (clock, scheduler) = on_virtual_clock(2);
    let look = |scheduler: &Scheduler| {
        let now = scheduler.snapshot();
        (now.scheduled + now.ready, now.running, now.finished.total())
    };
    assert_eq!(look(&scheduler), (0, 0, 0));
    let mut alone = scheduler.now().run({
        let scheduler = scheduler.clone();
        move |_| look(&scheduler)
    });
    assert_eq!(alone.as_mut().unwrap().wait(), Ok((0, 1, 0)), "it runs, and has not ended");
    clock.settle().unwrap();
    assert_eq!(look(&scheduler), (0, 0, 1));
}

/// C13
#[test]
fn what_waits_what_runs_and_what_has_ended_add_up_to_what_was_submitted() {
    let (clock, scheduler) = on_virtual_clock(1);
    let (gate, blocker) = block_a_worker(&clock, &scheduler);
    let mut jobs = Vec::new();
    for n in 0..6 {
        let now = scheduler.snapshot();
        assert_eq!((now.scheduled + now.ready, now.running, now.finished.total()), (n, 1, 0));
        let delay = if n % 2 == 0 { Duration::ZERO } else { secs(1) };
        jobs.push(scheduler.after(delay).run(|_| ()).unwrap());
    }
    let now = scheduler.snapshot();
    assert_eq!((now.scheduled, now.ready, now.running, now.finished.total()), (3, 3, 1, 0));
    gate.open();
    clock.advance(secs(1)).unwrap();
    let now = scheduler.snapshot();
    assert_eq!((now.scheduled, now.ready, now.running, now.finished.succeeded), (0, 0, 0, 7));
    assert!(jobs.iter_mut().all(|job| job.wait() == Ok(())));
    drop(blocker);
}

/// C20
#[test]
fn there_are_as_many_workers_as_blocked_jobs_and_never_more_than_allowed() {
    let (clock, scheduler) = on_virtual_clock(3);
    assert_eq!(scheduler.snapshot().workers, 0);
    let mut blocked = Vec::new();
    for n in 1..=5usize {
        let gate = Gate::on(&clock);
        let inside = gate.clone();
        blocked.push((gate, scheduler.now().run(move |_| inside.pass()).unwrap()));
        clock.settle().unwrap();
        let now = scheduler.snapshot();
        assert_eq!((now.running, now.ready), (n.min(3), n.saturating_sub(3)));
        assert!((n.min(3)..=3).contains(&now.workers), "{} workers for {n} jobs", now.workers);
    }
    blocked.iter().for_each(|(gate, _)| gate.open());
    clock.settle().unwrap();
    let now = scheduler.snapshot();
    assert_eq!((now.workers, now.running, now.finished.succeeded), (3, 0, 5));
}

/// C14: four questions about five jobs, of which one runs.
#[test]
fn a_queued_job_can_be_removed_once_and_a_running_one_cannot() {
    let (clock, scheduler) = on_virtual_clock(1);
    let gate = Gate::on(&clock);
    let ran = Log::new();
    let jobs: Vec<JobHandle<()>> = (0..5)
        .map(|n| {
            let (gate, ran) = (gate.clone(), ran.clone());
            let run = move |_: Ctx| {
                ran.add(n);
                gate.pass();
            };
            scheduler.after(ms(1)).run(run).unwrap()
        })
        .collect();
    clock.advance(ms(1)).unwrap();
    assert_eq!((ran.all(), scheduler.snapshot().ready), (vec![0], 4));
    assert_eq!(jobs[4].cancel(), Cancel::Prevented);
    assert_eq!((jobs[4].cancel(), scheduler.snapshot().ready), (Cancel::TooLate, 3));
    assert_eq!((jobs[3].cancel(), scheduler.snapshot().ready), (Cancel::Prevented, 2));
    assert_eq!((jobs[0].cancel(), scheduler.snapshot().running), (Cancel::Requested, 1), "told, but not removed");
    gate.open();
    clock.settle().unwrap();
    assert_eq!(ran.all(), [0, 1, 2]);
}

/// C8, for jobs: nothing is left of what was cancelled, neither in the books nor in memory, and nobody has to purge.
#[test]
fn a_scheduler_whose_jobs_are_all_cancelled_holds_nothing() {
    let (clock, scheduler) = on_virtual_clock(1);
    let payload = Arc::new(());
    for n in 0..100_000u64 {
        let inside = Arc::clone(&payload);
        let job = scheduler.after(secs(600 + n % 7)).run(move |_| drop(inside)).unwrap();
        assert_eq!(job.cancel(), Cancel::Prevented);
        assert_eq!(Arc::strong_count(&payload), 1, "its closure is gone, although the handle is still held");
    }
    let now = scheduler.snapshot();
    assert_eq!((now.scheduled, now.finished.cancelled), (0, 100_000));
    let report = scheduler.shutdown(Duration::MAX);
    assert_eq!((report.done, report.cancelled, report.never_started, report.still_running), (0, 0, 0, 0));
    drop(clock);
}

/// C19
#[test]
fn a_shutdown_withdraws_delayed_jobs_and_every_kind_of_series_alike() {
    let (clock, scheduler) = on_virtual_clock(1);
    let (mut jobs, mut series) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        jobs.push(scheduler.after(secs(9)).run(|_| ()).unwrap());
        series.push(scheduler.every(secs(9)).run(|_| ()).unwrap());
        series.push(scheduler.every(secs(9)).fixed_delay().run(|_| ()).unwrap());
        let daily = Cron::parse("0 0 * * *").unwrap();
        series.push(scheduler.cron(daily).run(|_| ()).unwrap());
    }
    let report = scheduler.shutdown(Duration::MAX);
    assert_eq!((report.never_started, report.done, report.cancelled, report.still_running), (12, 0, 0, 0));
    assert_eq!(scheduler.snapshot().scheduled, 0);
    for job in &mut jobs {
        let withdrawn = JobError::Cancelled { cause: Cause::Shutdown, stage: Stage::Scheduled };
        assert_eq!(job.wait(), Err(withdrawn));
    }
    assert!(series.iter().all(|series| series.next_due().is_none() && series.cancel() == Cancel::TooLate));
    clock.advance(secs(1_000_000)).unwrap();
    assert_eq!(scheduler.snapshot().lateness.count(), 0, "none of them ever started");
}

/// C25
#[test]
fn one_closure_may_be_refused_a_thousand_times_and_then_run() {
    let (_clock, closed) = on_virtual_clock(1);
    closed.shutdown(Duration::ZERO);
    let mut job: Box<dyn FnOnce(Ctx) -> &'static str + Send> = Box::new(|_| "at last");
    for _ in 0..1_000 {
        job = closed.now().run(job).unwrap_err().into_job();
    }
    assert_eq!(closed.snapshot().rejected, 1_000);
    let (_clock, open) = on_virtual_clock(1);
    assert_eq!(open.now().run(job).unwrap().wait(), Ok("at last"));
}

#[test]
fn the_results_of_many_come_in_the_order_they_are_asked_for() {
    let (clock, scheduler) = on_virtual_clock(2);
    let submit =
        |n: u64| scheduler.after(ms(n * 7 % 5)).run(move |_| if n == 3 { panic_with("the third") } else { n }).unwrap();
    let mut jobs: Vec<_> = (0..6).map(submit).collect();
    clock.advance(ms(5)).unwrap();
    let results: Vec<_> = jobs.iter_mut().map(JobHandle::wait).collect();
    let failed = || Err(JobError::Panicked("the third".to_owned()));
    assert_eq!(results, [Ok(0), Ok(1), Ok(2), failed(), Ok(4), Ok(5)], "one that fails fails alone");
}

/// The first result of several; the handles of the others are dropped. If all fail, the last error.
async fn first_of(mut jobs: Vec<JobHandle<&'static str>>) -> Result<&'static str, JobError> {
    std::future::poll_fn(|cx| {
        let mut at = 0;
        while at < jobs.len() {
            match Pin::new(&mut jobs[at]).poll(cx) {
                Poll::Pending => at += 1,
                Poll::Ready(Err(_)) if jobs.len() > 1 => drop(jobs.swap_remove(at)),
                Poll::Ready(result) => return Poll::Ready(result),
            }
        }
        Poll::Pending
    })
    .await
}

/// C15: who has one result loses interest in the others.
#[test]
fn the_first_of_several_wins_and_the_others_are_withdrawn() {
    let (clock, scheduler) = on_virtual_clock(1);
    let fails = |delay| scheduler.after(delay).run(|_| panic_with("no")).unwrap();
    let returns = |delay, result| scheduler.after(delay).run(move |_| result).unwrap();
    let race = vec![returns(secs(3), "third"), fails(secs(1)), returns(secs(2), "second"), returns(secs(9), "late")];
    let mut winner = scheduler.now().spawn(|_| first_of(race)).unwrap();
    clock.advance(secs(2)).unwrap();
    assert_eq!(winner.wait(), Ok(Ok("second")));
    let now = scheduler.snapshot();
    assert_eq!((now.scheduled, now.finished.cancelled), (0, 2), "both losers, at once");
    let hopeless = vec![fails(secs(1)), fails(secs(2))];
    let mut nobody = scheduler.now().spawn(|_| first_of(hopeless)).unwrap();
    clock.advance(secs(2)).unwrap();
    assert_eq!(nobody.wait(), Ok(Err(JobError::Panicked("no".to_owned()))));
}

/// C30
#[test]
fn a_common_deadline_ends_those_that_are_late_and_spares_those_that_are_done() {
    let (clock, scheduler) = on_virtual_clock(2);
    let (gate, due_with_it) = (Gate::on(&clock), clock.now() + secs(5));
    let inside = gate.clone();
    let waits = move |ctx: Ctx| {
        inside.pass();
        assert!(ctx.is_cancelled());
        "too late"
    };
    let mut jobs = [
        scheduler.now().deadline(due_with_it).run(|_| "first").unwrap(),
        scheduler.now().deadline(due_with_it).run(waits).unwrap(),
        scheduler.after(secs(4)).deadline(due_with_it).run(|_| "last").unwrap(),
    ];
    clock.advance(secs(5)).unwrap();
    let [first, blocked, last] = jobs.each_mut().map(JobHandle::wait);
    assert_eq!((first, last), (Ok("first"), Ok("last")));
    assert_eq!(blocked, Err(JobError::Expired { stage: Stage::Running, waited: secs(5) }));
    gate.open();
    jobs.iter().for_each(|job| job.stopped().wait());
}

/// Four ways to submit something with a first delay; each adds one to the count when it first runs.
fn four_ways(scheduler: &Scheduler, way: usize, delay: Duration, count: &Arc<AtomicUsize>) {
    let count = Arc::clone(count);
    let run = move |_: Ctx| _ = count.fetch_add(1, Ordering::SeqCst);
    match way {
        0 => scheduler.after(delay).run(run).unwrap().detach(),
        1 => scheduler.after(delay).spawn(move |ctx| async move { run(ctx) }).unwrap().detach(),
        2 => scheduler.every(secs(1)).first(delay).fixed_delay().run(run).unwrap().detach(),
        _ => scheduler.every(secs(1)).first(delay).run(run).unwrap().detach(),
    }
}

/// C5: Java once compared due times by their difference, which overflows between now and the end of time.
#[test]
fn a_job_at_the_end_of_time_does_not_hide_one_that_is_due() {
    for (now, far) in (0..16).map(|pair| (pair / 4, pair % 4)) {
        let (clock, scheduler) = on_virtual_clock(1);
        let (gate, blocker) = block_a_worker(&clock, &scheduler);
        let (near_runs, far_runs) = (Arc::default(), Arc::default());
        four_ways(&scheduler, now, Duration::ZERO, &near_runs);
        clock.advance(ns(1)).unwrap();
        four_ways(&scheduler, far, Duration::MAX, &far_runs);
        four_ways(&scheduler, far, Duration::from_nanos(u64::MAX - 2), &far_runs);
        gate.open();
        clock.settle().unwrap();
        assert_eq!((near_runs.load(Ordering::SeqCst), far_runs.load(Ordering::SeqCst)), (1, 0), "{now} and {far}");
        drop(blocker);
    }
}

/// C5: a series whose second run never comes holds nobody up, the jobs it submits itself included.
#[test]
fn a_series_with_an_endless_period_lets_others_run() {
    for way in 0..4 {
        let (clock, scheduler) = on_virtual_clock(1);
        let (count, inside) = (Arc::default(), Arc::default());
        let run = {
            let (scheduler, inside) = (scheduler.clone(), Arc::clone(&inside));
            move |_: Ctx| four_ways(&scheduler, way, Duration::ZERO, &inside)
        };
        let series = scheduler.every(Duration::MAX).first(Duration::ZERO).fixed_delay().run(run).unwrap();
        four_ways(&scheduler, way, ms(1), &count);
        clock.advance(ms(1)).unwrap();
        assert_eq!((count.load(Ordering::SeqCst), inside.load(Ordering::SeqCst), series.runs()), (1, 1, 1));
    }
}

/// What Java has `beforeExecute` and `afterExecute` for.
#[test]
fn a_listener_hears_of_every_run_before_and_after_it_also_of_one_that_panics() {
    let (clock, heard) = (VirtualClock::with_patience(SOON), Log::new());
    let log = heard.clone();
    let hook = move |event: &Event| {
        log.add(match event {
            Event::Started { name, .. } => format!("{} starts", name.as_deref().unwrap_or_default()),
            Event::Panicked { message, .. } => format!("panic: {message}"),
            Event::Finished { outcome: Outcome::Succeeded, .. } => "succeeded".to_owned(),
            Event::Finished { outcome: Outcome::Panicked, .. } => "panicked".to_owned(),
            other => format!("{other:?}"),
        });
    };
    let scheduler = Scheduler::builder().workers(1).clock(&clock).on_event(hook).build().unwrap();
    let log = heard.clone();
    scheduler.after(ms(1)).name("a").run(move |_| log.add("runs".to_owned())).unwrap().detach();
    scheduler.after(ms(2)).name("b").run(|_| panic_with("oh")).unwrap().detach();
    clock.advance(ms(2)).unwrap();
    assert_eq!(heard.all(), ["a starts", "runs", "succeeded", "b starts", "panic: oh", "panicked"]);
}

/// Counts the runs of what it wraps.
fn counted<T, F>(count: &Arc<AtomicUsize>, mut work: F) -> impl FnMut(Ctx) -> T + Send + use<T, F>
where
    F: FnMut(Ctx) -> T + Send,
{
    let count = Arc::clone(count);
    move |ctx| {
        count.fetch_add(1, Ordering::SeqCst);
        work(ctx)
    }
}

/// What Java has `decorateTask` for.
#[test]
fn a_closure_around_a_closure_sees_every_run_and_none_that_was_withdrawn() {
    let (clock, scheduler) = on_virtual_clock(1);
    let (runs, withdrawn) = (Arc::default(), Arc::default());
    let mut job = scheduler.after(secs(1)).run(counted(&runs, |_| "result")).unwrap();
    let series = scheduler.every(secs(1)).run(counted(&runs, |_| ())).unwrap();
    let later = scheduler.after(secs(9)).run(counted(&withdrawn, |_| ())).unwrap();
    let later_series = scheduler.every(secs(9)).run(counted(&withdrawn, |_| ())).unwrap();
    clock.advance(secs(3)).unwrap();
    assert_eq!((job.wait(), series.runs(), runs.load(Ordering::SeqCst)), (Ok("result"), 3, 4));
    assert_eq!(scheduler.shutdown(Duration::MAX).never_started, 3);
    clock.advance(secs(20)).unwrap();
    assert_eq!((runs.load(Ordering::SeqCst), withdrawn.load(Ordering::SeqCst)), (4, 0));
    drop((later, later_series));
}

/// C19: one wave of jobs holds every worker, a second wave of the same kinds is due behind it, a third is not due yet.
#[test]
fn of_three_waves_two_drain_at_a_shutdown_and_no_series_goes_on() {
    let (clock, scheduler) = on_virtual_clock(4);
    let (gate, mut jobs, mut series) = (Gate::on(&clock), Vec::new(), Vec::new());
    for _ in 0..3 {
        let pass = || {
            let gate = gate.clone();
            move |_: Ctx| gate.pass()
        };
        let steady = scheduler.every(ms(1)).run(pass()).unwrap();
        let spaced = scheduler.every(ms(1)).fixed_delay().run(pass()).unwrap();
        jobs.extend([scheduler.after(ms(1)).run(pass()).unwrap(), scheduler.after(ms(1)).run(pass()).unwrap()]);
        series.extend([steady, spaced]);
        if jobs.len() < 6 {
            clock.advance(ms(1)).unwrap();
        }
    }
    let now = scheduler.snapshot();
    assert_eq!((now.running, now.ready, now.scheduled), (4, 4, 4));
    let report = scheduler.shutdown_async(Duration::MAX);
    let withdrawn = Err(JobError::Cancelled { cause: Cause::Shutdown, stage: Stage::Scheduled });
    assert_eq!(jobs.split_off(4).iter_mut().map(JobHandle::wait).collect::<Vec<_>>(), [withdrawn.clone(), withdrawn]);
    assert!(jobs.iter_mut().all(|job| job.wait_timeout(Duration::ZERO).is_none()), "those that are due go on");
    gate.open();
    let report = block_on(report);
    assert_eq!((report.done, report.never_started, report.cancelled, report.still_running), (8, 4, 0, 0));
    assert!(jobs.iter_mut().all(|job| job.wait() == Ok(())));
    assert_eq!(series.iter().map(|series| series.runs()).collect::<Vec<_>>(), [1, 1, 1, 1, 0, 0]);
    assert!(series.iter().all(|series| series.next_due().is_none() && series.cancel() == Cancel::TooLate));
}

/// C23, C25: a refusal is no trace of a job, neither while the tenant is full nor when its scheduler is closed.
#[test]
fn a_full_tenant_refuses_every_kind_of_submit_and_is_as_it_was() {
    let (clock, scheduler) = on_virtual_clock(2);
    let acme = scheduler.tenant("acme", Limits::new().running_max(1).backlog_max(1).scheduled_max(1)).unwrap();
    let gate = Gate::on(&clock);
    let inside = gate.clone();
    let mut runs = acme.now().run(move |_| inside.pass()).unwrap();
    let mut waits = acme.now().run(|_| ()).unwrap();
    let mut later = acme.after(secs(1)).run(|_| ()).unwrap();
    clock.settle().unwrap();
    let refusals = || {
        let minutely = Cron::parse("* * * * *").unwrap();
        [
            acme.now().run(|_| ()).map(drop).map_err(|no| no.reason().clone()),
            acme.at(clock.now()).run(|_| ()).map(drop).map_err(|no| no.reason().clone()),
            acme.now().spawn(|_| async {}).map(drop).map_err(|no| no.reason().clone()),
            acme.now().acquire().map(drop).map_err(|no| no.reason().clone()),
            acme.every(secs(1)).first(Duration::ZERO).run(|_| ()).map(drop).map_err(|no| no.reason().clone()),
            acme.after(secs(1)).run(|_| ()).map(drop).map_err(|no| no.reason().clone()),
            acme.every(secs(1)).run(|_| ()).map(drop).map_err(|no| no.reason().clone()),
            acme.every(secs(1)).fixed_delay().run(|_| ()).map(drop).map_err(|no| no.reason().clone()),
            acme.cron(minutely).run(|_| ()).map(drop).map_err(|no| no.reason().clone()),
        ]
    };
    let (due, not_due) =
        refusals().into_iter().partition::<Vec<_>, _>(|refusal| matches!(refusal, Err(Reason::BacklogFull { .. })));
    assert_eq!((due.len(), not_due.len()), (5, 4));
    assert!(not_due.iter().all(|refusal| matches!(refusal, Err(Reason::ScheduledFull { .. }))), "{not_due:?}");
    let now = acme.snapshot();
    assert_eq!((now.running, now.ready, now.scheduled, now.finished.total(), now.rejected), (1, 1, 1, 0, 9));
    gate.open();
    clock.advance(secs(1)).unwrap();
    assert_eq!((runs.wait(), waits.wait(), later.wait()), (Ok(()), Ok(()), Ok(())));
    assert_eq!(acme.now().run(|_| "room again").unwrap().wait(), Ok("room again"));
    scheduler.shutdown(Duration::ZERO);
    assert!(refusals().iter().all(|refusal| refusal == &Err(Reason::Closed)));
    assert_eq!(acme.snapshot().rejected, 18);
}

/// C25, C27: what Java has handlers for is the caller's next line.
#[test]
fn a_caller_may_let_go_of_what_was_refused_or_make_room_for_it() {
    let (clock, scheduler) = on_virtual_clock(1);
    let acme = scheduler.tenant("acme", Limits::new().running_max(1).backlog_max(1)).unwrap();
    let (gate, ran, alive) = (Gate::on(&clock), Log::new(), Arc::new(()));
    let job = |name: &'static str| {
        let (gate, ran, alive) = (gate.clone(), ran.clone(), Arc::clone(&alive));
        move |_: Ctx| {
            let _alive = alive;
            ran.add(name);
            gate.pass();
        }
    };
    let _oldest = acme.now().run(job("runs")).unwrap();
    clock.settle().unwrap();
    let waits = acme.now().run(job("waits")).unwrap();
    drop(acme.now().run(job("let go")).unwrap_err());
    assert_eq!(Arc::strong_count(&alive), 3, "nothing is left of it");
    let refused = acme.now().run(job("wins")).unwrap_err();
    assert_eq!(waits.cancel(), Cancel::Prevented);
    let _newest = acme.now().run(refused.into_job()).expect("the place is free at once");
    assert_eq!((acme.snapshot().running, acme.snapshot().ready), (1, 1));
    gate.open();
    clock.settle().unwrap();
    assert_eq!(ran.all(), ["runs", "wins"]);
}

/// C36: of the three stacks that the process has addresses for, the watch and one worker take two, and the test itself
/// a part of the third.
#[cfg(target_os = "linux")]
#[test]
fn one_worker_is_enough_if_no_other_can_be_started() {
    const STACK: usize = 1 << 30;
    const THREE_STACKS_IN_KIB: usize = 3 * STACK / 1024;
    let name = "foreign_executor::one_worker_is_enough_if_no_other_can_be_started";
    in_own_process_of(THREE_STACKS_IN_KIB, name, || {
        let clock = VirtualClock::with_patience(SOON);
        let scheduler = Scheduler::builder().workers(100).clock(&clock).stack_size(STACK).build().unwrap();
        let (gate, mut blocker) = block_a_worker(&clock, &scheduler);
        let jobs: Vec<_> = (0..100).map(|n| scheduler.now().run(move |_| n).unwrap()).collect();
        let now = scheduler.snapshot();
        assert_eq!((now.workers, now.running, now.ready), (1, 1, 100), "accepted, although they have to wait");
        gate.open();
        let results = in_time(move || jobs.into_iter().map(|mut job| job.wait().unwrap()).collect::<Vec<_>>());
        assert_eq!((blocker.wait(), results), (Ok(()), (0..100).collect()));
        assert_eq!(scheduler.snapshot().workers, 1);
    });
}

/// C3, for handles
#[test]
fn whoever_waits_on_a_thread_gets_the_result_with_a_time_out_or_without() {
    let (clock, scheduler) = on_virtual_clock(1);
    let mut one = scheduler.after(secs(1)).run(|_| 1).unwrap();
    let mut two = scheduler.after(secs(1)).run(|_| 2).unwrap();
    let (first, second) = (background(move || one.wait()), background(move || two.wait_timeout(secs(7_200))));
    until("both sleep, and the worker", || shown(&clock, "sleepers") >= 3);
    assert_eq!(scheduler.snapshot().finished.total(), 0);
    clock.advance(secs(1)).unwrap();
    assert_eq!((first.outcome(), second.outcome()), (Ok(1), Some(Ok(2))));
}

/// C14: and a cancel, although the work itself goes on.
#[test]
fn whoever_waits_on_a_thread_hears_of_a_cancel_before_the_work_has_stopped() {
    let (clock, scheduler) = on_virtual_clock(2);
    let acme = scheduler.tenant("acme", Limits::new()).unwrap();
    let gate = Gate::on(&clock);
    let [mut one, mut two] = [(); 2].map(|()| {
        let gate = gate.clone();
        acme.now().run(move |_| gate.pass()).unwrap()
    });
    clock.settle().unwrap();
    let (first, second) = (background(move || (one.wait(), one)), background(move || two.wait_timeout(secs(7_200))));
    until("both sleep, and the workers", || shown(&clock, "sleepers") >= 4);
    assert_eq!(acme.cancel_all(), 2);
    let cancelled = || Err(JobError::Cancelled { cause: Cause::Tenant, stage: Stage::Running });
    let (answer, one) = first.outcome();
    assert_eq!((answer, second.outcome()), (cancelled(), Some(cancelled())));
    assert_eq!((acme.snapshot().running, acme.snapshot().zombies), (2, 2));
    gate.open();
    one.stopped().wait();
    clock.settle().unwrap();
    let now = acme.snapshot();
    assert_eq!((now.running, now.finished.cancelled, now.finished.succeeded), (0, 2, 0));
}

/// What Java's futures say of themselves.
#[test]
fn a_printed_handle_says_whether_its_job_is_settled() {
    let (clock, scheduler) = on_virtual_clock(1);
    let returns = scheduler.after(secs(1)).run(|_| ()).unwrap();
    let panics = scheduler.after(secs(1)).run(|_| panic_with("no")).unwrap();
    let cancelled = scheduler.after(secs(9)).run(|_| ()).unwrap();
    let handles = [&returns, &panics, &cancelled];
    assert!(handles.iter().all(|job| format!("{job:?}").contains("settled: false")));
    clock.advance(secs(1)).unwrap();
    cancelled.cancel();
    assert!(handles.iter().all(|job| format!("{job:?}").contains("settled: true")));
}
