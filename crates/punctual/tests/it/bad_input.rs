//! What nobody should pass and somebody will: no panic, no hang, and an answer that makes sense.

#![allow(clippy::unwrap_used, reason = "these are tests, their helpers included")]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use punctual::{
    BuildError, Cancel, Clock, Cron, JobHandle, Missed, OnFailure, Reason, Scheduler, SeriesHandle, VirtualClock,
};

use crate::jobs::{Gate, in_time, on_virtual_clock, secs};
use crate::queue::{DAY, YEAR, ms};

/// The latest and the earliest date that can be written down.
fn extremes() -> [SystemTime; 2] {
    let mut ends = [UNIX_EPOCH, UNIX_EPOCH];
    let mut step = Duration::new(i64::MAX as u64, 0);
    while !step.is_zero() {
        if let Some(later) = ends[0].checked_add(step) {
            ends[0] = later;
        }
        if let Some(earlier) = ends[1].checked_sub(step) {
            ends[1] = earlier;
        }
        step /= 2;
    }
    ends
}

fn latest_instant(clock: &Clock) -> Instant {
    let (mut end, mut step) = (clock.now(), Duration::new(i64::MAX as u64, 0));
    while !step.is_zero() {
        end = end.checked_add(step).unwrap_or(end);
        step /= 2;
    }
    end
}

/// C5
#[test]
fn a_delay_without_an_end_is_kept_counted_and_cancellable() {
    let (clock, scheduler) = on_virtual_clock(1);
    clock.advance(secs(5)).unwrap();
    let delays = [Duration::MAX, Duration::from_secs(u64::MAX), Duration::from_nanos(u64::MAX)];
    let mut jobs: Vec<_> = delays.iter().map(|&delay| scheduler.after(delay).run(|_| ()).unwrap()).collect();
    jobs.push(scheduler.at(latest_instant(&clock)).run(|_| ()).unwrap());
    jobs.push(scheduler.at(extremes()[0]).run(|_| ()).unwrap());
    assert_eq!(scheduler.snapshot().scheduled, 5);
    clock.advance(YEAR).unwrap();
    assert_eq!(scheduler.snapshot().scheduled, 5);
    for job in &mut jobs {
        assert_eq!(job.wait_timeout(Duration::ZERO), None);
        assert_eq!(job.cancel(), Cancel::Prevented);
    }
    assert_eq!(scheduler.snapshot().scheduled, 0);
}

/// C5, C6
#[test]
fn whatever_lies_in_the_past_is_due_now() {
    let (clock, scheduler) = on_virtual_clock(1);
    let real_past = clock.now().checked_sub(YEAR).unwrap_or_else(|| clock.now());
    assert_eq!(scheduler.at(real_past).run(|_| 1).unwrap().wait(), Ok(1));
    assert_eq!(scheduler.at(extremes()[1]).run(|_| 2).unwrap().wait(), Ok(2));
    assert_eq!(scheduler.at(UNIX_EPOCH).run(|_| 3).unwrap().wait(), Ok(3));
    assert_eq!(scheduler.snapshot().lateness.max(), Duration::ZERO);
}

/// C5
#[test]
fn a_limit_without_an_end_is_no_limit() {
    let (clock, scheduler) = on_virtual_clock(1);
    let plan = scheduler.now().start_within(Duration::MAX).run_timeout(Duration::MAX).deadline(Duration::MAX);
    assert_eq!(plan.run(|ctx| ctx.remaining()).unwrap().wait(), Ok(None));
    let far = scheduler.now().deadline(latest_instant(&clock)).run(|_| 1).unwrap().wait();
    assert_eq!(far, Ok(1));
    let mut job = scheduler.after(secs(1)).run(|_| 1).unwrap();
    clock.advance(secs(1)).unwrap();
    assert_eq!(job.wait_timeout(Duration::MAX), Some(Ok(1)));
    assert!(job.stopped().wait_timeout(Duration::MAX));
}

/// C5
#[test]
fn a_deadline_before_a_due_instant_that_never_comes_is_expired_at_submit() {
    let (_clock, scheduler) = on_virtual_clock(1);
    let rejected = scheduler.after(Duration::MAX).deadline(secs(1)).run(|_| ()).unwrap_err();
    assert_eq!(rejected.reason(), &Reason::Expired);
    let both = scheduler.after(Duration::MAX).deadline(Duration::MAX).run(|_| ()).unwrap();
    assert_eq!(both.cancel(), Cancel::Prevented);
}

/// C5
#[test]
fn a_period_without_an_end_is_one_tick_or_none() {
    let (clock, scheduler) = on_virtual_clock(1);
    let never = scheduler.every(Duration::MAX).run(|_| ()).unwrap();
    let once = scheduler.every(Duration::MAX).first(secs(1)).run(|_| ()).unwrap();
    let delayed = scheduler.every(Duration::MAX).first(secs(1)).fixed_delay().run(|_| ()).unwrap();
    clock.advance(YEAR).unwrap();
    assert_eq!((never.runs(), once.runs(), delayed.runs()), (0, 1, 1));
    assert_eq!((never.next_due(), once.next_due()), (None, None));
    assert_eq!(
        (never.cancel(), once.cancel(), delayed.cancel()),
        (Cancel::Prevented, Cancel::TooLate, Cancel::TooLate)
    );
}

/// C5
#[test]
fn absurd_terms_of_a_series_are_survived() {
    let (clock, scheduler) = on_virtual_clock(1);
    let absurd = OnFailure::Backoff { first: Duration::MAX, max: Duration::MAX };
    let quiet = OnFailure::Backoff { first: Duration::ZERO, max: Duration::ZERO };
    let fails = |_| Err::<(), _>("no");
    let once = scheduler.every(secs(1)).on_failure(absurd).run(fails).unwrap();
    let cron = scheduler.cron(Cron::parse("* * * * * *").unwrap()).on_failure(absurd).run(fails).unwrap();
    let delay = scheduler.every(secs(1)).fixed_delay().on_failure(absurd).run(fails).unwrap();
    let no_pause = scheduler.every(secs(1)).on_failure(quiet).run(fails).unwrap();
    let none = scheduler.every(secs(1)).missed(Missed::All { max: 0 }).start_within(Duration::MAX).run(|_| ()).unwrap();
    clock.advance(secs(10)).unwrap();
    assert_eq!((once.runs(), delay.runs(), no_pause.runs(), none.runs()), (1, 1, 10, 10));
    assert_eq!(cron.runs(), 1, "a pause without an end is one for a cron as well");
}

/// C5, C19
#[test]
fn a_grace_without_an_end_waits_for_all() {
    let (clock, scheduler) = on_virtual_clock(1);
    let gate = Gate::on(&clock);
    let inner = gate.clone();
    let mut job = scheduler.now().run(move |_| inner.pass()).unwrap();
    drop(scheduler.shutdown_async(Duration::MAX));
    clock.advance(YEAR * 100).unwrap();
    assert_eq!(job.wait_timeout(Duration::ZERO), None);
    gate.open();
    let report = in_time(move || scheduler.shutdown(Duration::MAX));
    assert_eq!((report.done, report.still_running), (1, 0));
    assert_eq!(job.wait(), Ok(()));
}

/// C5: time at its end.
#[test]
fn a_clock_at_the_end_of_all_time_still_works() {
    let (clock, scheduler) = on_virtual_clock(1);
    let mut last = scheduler.after(Duration::from_nanos(u64::MAX - 1)).run(|_| "the last").unwrap();
    clock.advance(Duration::MAX).unwrap();
    assert_eq!(last.wait(), Ok("the last"));
    assert_eq!(scheduler.now().run(|_| "now").unwrap().wait(), Ok("now"));
    let beyond = scheduler.after(secs(1)).run(|_| ()).unwrap();
    assert_eq!(
        (scheduler.snapshot().scheduled, beyond.cancel()),
        (1, Cancel::Prevented),
        "it never comes, but is kept"
    );
    let limited = scheduler.now().start_within(secs(1)).run_timeout(secs(1)).run(|_| 1).unwrap().wait();
    assert_eq!(limited, Ok(1));
    clock.advance(secs(1)).unwrap();
    scheduler.shutdown(secs(1));
}

/// C12: whatever the wall clock is set to.
#[test]
fn the_wall_clock_may_be_set_to_anything() {
    for to in [extremes()[0], extremes()[1], UNIX_EPOCH, UNIX_EPOCH + YEAR * 3_000] {
        let (clock, scheduler) = on_virtual_clock(1);
        let dated = scheduler.at(clock.wall() + DAY).run(|_| ()).unwrap();
        let cron = scheduler.cron(Cron::parse("0 0 1 1 *").unwrap()).run(|_| ()).unwrap();
        clock.step_wall(to).unwrap();
        assert_eq!(scheduler.now().run(|_| 1).unwrap().wait(), Ok(1), "at {to:?}");
        clock.advance(secs(10)).unwrap();
        scheduler.at(to).run(|_| ()).unwrap().detach();
        let another = scheduler.cron(Cron::parse("@hourly").unwrap()).run(|_| ()).map(SeriesHandle::detach);
        if let Err(rejected) = another {
            assert_eq!(rejected.reason(), &Reason::NoNextRun, "at {to:?}");
        }
        drop((dated, cron));
    }
}

/// The virtual wall clock shows what it was set to.
#[test]
fn the_wall_clock_shows_what_it_was_set_to() {
    for years in [0u32, 100, 500, 600, 3_000, 7_000] {
        let clock = VirtualClock::new();
        let to = UNIX_EPOCH + YEAR * years;
        clock.step_wall(to).unwrap();
        assert_eq!(clock.wall(), to, "{years} years after 1970");
        clock.advance(secs(1)).unwrap();
        assert_eq!(clock.wall(), to + secs(1));
    }
}

/// C18
#[test]
fn absurd_cron_text_is_an_error_that_names_the_field() {
    let long = "* ".repeat(500);
    let many = format!("{} * * * *", "1,".repeat(100));
    let texts = [
        "",
        " ",
        "*",
        "* * * *",
        "* * * * * * *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * 32 * *",
        "* * * 13 *",
        "* * * * 8",
        "*/0 * * * *",
        "5-1 * * * *",
        "1- * * * *",
        "-1 * * * *",
        "a * * * *",
        "* * * * MONDAYS",
        "@never",
        "0 0 30 2 *",
        "0 0 31 4,6,9,11 *",
        "99999999999999999999 * * * *",
        "* * * * *\0",
        "\u{1F600} * * * *",
        "1,,2 * * * *",
        "* * L-99 * *",
        "* * * * MON#9",
        "*/99999999999 * * * *",
        &long,
        &many,
    ];
    for text in texts {
        let error = Cron::parse(text).expect_err(text);
        assert!(!error.to_string().is_empty());
    }
    assert_eq!(Cron::parse("* 24 * * *").unwrap_err().field(), Some("hours"));
    assert!(Cron::parse("* * * * *").unwrap().in_zone("Nowhere/Land").is_err());
    assert!(Cron::parse("* * * * *").unwrap().in_zone("").is_err());
}

/// C18: a cron whose last run is past.
#[test]
fn a_cron_without_a_next_run_is_refused() {
    let (clock, scheduler) = on_virtual_clock(1);
    clock.step_wall(UNIX_EPOCH + YEAR * 500).unwrap();
    let leap = Cron::parse("0 0 29 2 *").unwrap();
    assert!(scheduler.cron(leap).run(|_| ()).is_ok());
    clock.step_wall(UNIX_EPOCH + YEAR * 4_000).unwrap();
    let rejected = scheduler.cron(Cron::parse("@hourly").unwrap()).run(|_| ()).unwrap_err();
    assert_eq!(rejected.reason(), &Reason::NoNextRun);
}

#[test]
fn no_workers_is_an_error_and_too_many_are_only_a_limit() {
    assert_eq!(Scheduler::builder().workers(0).build().unwrap_err(), BuildError::NoWorkers);
    let clock = VirtualClock::new();
    let scheduler = Scheduler::builder().workers(usize::MAX).clock(&clock).build().unwrap();
    assert_eq!(scheduler.now().run(|_| 1).unwrap().wait(), Ok(1));
    assert!(scheduler.snapshot().workers <= 3);
}

#[test]
fn a_result_can_be_taken_once_and_asking_again_says_so() {
    let (_clock, scheduler) = on_virtual_clock(1);
    let mut job = scheduler.now().run(|_| 1).unwrap();
    assert_eq!(job.wait(), Ok(1));
    assert!(crate::queue::caught(|| _ = job.wait()));
    assert!(crate::queue::caught(|| _ = job.wait_timeout(ms(1))));
    assert_eq!(job.cancel(), Cancel::TooLate);
    drop(job);
    assert_eq!(scheduler.now().run(|_| 2).unwrap().wait(), Ok(2));
}

#[test]
fn names_may_be_anything() {
    let (clock, scheduler) = on_virtual_clock(1);
    for name in [String::new(), "\0\n\"{}".to_owned(), "x".repeat(1 << 20)] {
        let mut job = scheduler.now().name(name.clone()).run(|ctx| ctx.name().map(str::to_owned)).unwrap();
        assert_eq!(job.wait(), Ok(Some(name)));
    }
    clock.settle().unwrap();
}

/// C19: everything on a scheduler that is over.
#[test]
fn a_scheduler_that_is_over_refuses_everything_and_panics_at_nothing() {
    let (clock, scheduler) = on_virtual_clock(1);
    let ctx = scheduler.now().run(|ctx| ctx).unwrap().wait().unwrap();
    scheduler.shutdown(Duration::ZERO);
    let refused = |result: Result<JobHandle<()>, Reason>| assert_eq!(result.map(drop), Err(Reason::Closed));
    let reason = |rejected: punctual::Rejected<_>| rejected.reason().clone();
    refused(scheduler.now().run(|_| ()).map_err(reason));
    refused(scheduler.after(Duration::MAX).run(|_| ()).map_err(|r| r.reason().clone()));
    refused(scheduler.at(UNIX_EPOCH).deadline(Duration::ZERO).run(|_| ()).map_err(|r| r.reason().clone()));
    refused(ctx.now().run(|_| ()).map_err(|r| r.reason().clone()));
    refused(scheduler.now().spawn(|_| async {}).map_err(|r| r.reason().clone()));
    assert_eq!(scheduler.every(Duration::ZERO).run(|_| ()).unwrap_err().reason(), &Reason::Closed);
    assert_eq!(scheduler.cron(Cron::parse("@daily").unwrap()).run(|_| ()).unwrap_err().reason(), &Reason::Closed);
    assert_eq!(scheduler.snapshot().rejected, 7);
    assert!(format!("{scheduler:?}").contains("Scheduler"));
    clock.advance(YEAR).unwrap();
    assert_eq!(scheduler.shutdown(Duration::MAX), scheduler.shutdown(Duration::ZERO));
}

/// C30: what could never start in time is refused at submit, and given back.
#[test]
fn a_job_that_has_no_time_to_start_is_expired_at_submit() {
    let (clock, scheduler) = on_virtual_clock(1);
    let at_once = scheduler.now().start_within(Duration::ZERO).run(|_| ());
    assert_eq!(at_once.unwrap_err().reason(), &Reason::Expired);
    let due_at_its_deadline = scheduler.after(secs(1)).deadline(secs(1)).run(|_| ());
    assert_eq!(due_at_its_deadline.unwrap_err().reason(), &Reason::Expired);
    let mut no_time_to_run = scheduler.now().run_timeout(Duration::ZERO).run(|_| ()).unwrap();
    clock.advance(secs(1)).unwrap();
    assert!(no_time_to_run.wait_timeout(Duration::ZERO).is_some());
    assert_eq!((scheduler.snapshot().rejected, scheduler.snapshot().finished.total()), (2, 1));
}

/// C30: the shortest patience there is, is enough for a job that nobody keeps waiting.
#[test]
fn a_job_with_little_patience_starts_if_a_worker_is_free() {
    let (clock, scheduler) = on_virtual_clock(2);
    scheduler.now().run(|_| ()).unwrap().detach();
    clock.settle().unwrap();
    let mut job = scheduler.after(secs(1)).start_within(Duration::from_nanos(1)).run(|_| "started").unwrap();
    clock.advance(secs(1)).unwrap();
    assert_eq!(job.wait(), Ok("started"), "it did not wait at all");
}
