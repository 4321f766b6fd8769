//! Jobs that a node is given before they are due, as a store over a network gives them.

use std::time::Duration;

use punctual::{Limits, Stage};
use punctual_durable::Cancelled;

use crate::bed::{Bed, HOUR, Log, SECOND, say, wait, with_foresight};

const FORESIGHT: Duration = Duration::from_millis(20);
const MICROSECOND: Duration = Duration::from_micros(1);

fn stage(bed: &Bed, id: punctual_durable::JobId) -> Stage {
    wait(bed.jobs.get(id)).unwrap().unwrap().state.stage
}

/// C1, C42: it is on the node when its instant comes, and starts then and not before.
#[test]
fn what_is_foreseen_starts_at_its_instant() {
    let bed = with_foresight(FORESIGHT);
    let log = Log::default();
    bed.jobs.on(log.handler());
    let _node = wait(bed.jobs.start()).unwrap();
    let job = wait(bed.jobs.after(SECOND).enqueue(say("x"))).unwrap();
    bed.advance(SECOND - FORESIGHT - MICROSECOND);
    assert_eq!(stage(&bed, job.id()), Stage::Scheduled);
    bed.advance(MICROSECOND);
    assert_eq!(stage(&bed, job.id()), Stage::Running);
    bed.advance(FORESIGHT - MICROSECOND);
    assert!(log.lines().is_empty(), "it was early");
    bed.advance(MICROSECOND);
    assert_eq!(log.lines(), ["x"]);
    let record = wait(bed.jobs.get(job.id())).unwrap().unwrap();
    assert_eq!(record.started_at, Some(record.due));
}

/// C42: a stream of them starts each at its own instant, whatever is asked for when.
#[test]
fn each_of_a_stream_starts_at_its_instant() {
    let bed = with_foresight(FORESIGHT);
    let log = Log::default();
    bed.jobs.on(log.handler());
    let _node = wait(bed.jobs.node().workers(4).start()).unwrap();
    for at in 1..=100_u32 {
        wait(bed.jobs.after(at * Duration::from_millis(3)).enqueue(say(&at.to_string()))).unwrap();
    }
    for at in 1..=100 {
        bed.advance(Duration::from_millis(3) - MICROSECOND);
        assert_eq!(log.lines().len(), at - 1, "one was early");
        bed.advance(MICROSECOND);
        assert_eq!(log.lines().len(), at, "one was late");
    }
}

/// C49: whoever is cancelled before its instant does not run.
#[test]
fn what_is_cancelled_in_time_does_not_run() {
    let bed = with_foresight(FORESIGHT);
    let log = Log::default();
    bed.jobs.on(log.handler());
    let node = wait(bed.jobs.start()).unwrap();
    let job = wait(bed.jobs.after(FORESIGHT).enqueue(say("x"))).unwrap();
    bed.settle();
    assert_eq!(wait(job.cancel()).unwrap(), Cancelled::Now(Stage::Running));
    bed.settle();
    assert_eq!(stage(&bed, job.id()), Stage::Stopped, "its place is free at once");
    bed.advance(SECOND);
    wait(node.drain());
    assert!(log.lines().is_empty());
    assert_eq!(wait(bed.jobs.totals()).unwrap().running, 0);
}

/// C23, C40: no place of a limit is taken before its time.
#[test]
fn tenants_with_limits_are_not_looked_ahead_for() {
    let bed = with_foresight(FORESIGHT);
    let log = Log::default();
    bed.jobs.on(log.handler());
    let limited = bed.jobs.tenant("limited");
    wait(limited.set_limits(Limits::new().running_max(1))).unwrap();
    let _node = wait(bed.jobs.start()).unwrap();
    let later = wait(limited.after(FORESIGHT).enqueue(say("later"))).unwrap();
    bed.settle();
    assert_eq!(stage(&bed, later.id()), Stage::Scheduled);
    wait(limited.now().enqueue(say("now"))).unwrap();
    bed.settle();
    assert_eq!(log.lines(), ["now"]);
    bed.advance(FORESIGHT);
    assert_eq!(log.lines(), ["now", "later"]);
}

/// C42: however much is about to fall due, what is ready finds a hand.
#[test]
fn half_of_the_hands_stay_free() {
    let bed = with_foresight(FORESIGHT);
    let log = Log::default();
    bed.jobs.on(log.handler());
    let _node = wait(bed.jobs.node().workers(3).start()).unwrap();
    for _ in 0..9 {
        wait(bed.jobs.after(FORESIGHT).enqueue(say("later"))).unwrap();
    }
    bed.settle();
    assert_eq!(wait(bed.jobs.totals()).unwrap().running, 1);
    wait(bed.jobs.now().enqueue(say("now"))).unwrap();
    bed.settle();
    assert_eq!(log.lines(), ["now"]);
    bed.advance(FORESIGHT);
    assert_eq!(log.lines().len(), 10);
}

/// C39: a node that goes gives back what it did not start; it waits for its instant as before.
#[test]
fn a_shutdown_gives_back_what_has_not_started() {
    let bed = with_foresight(FORESIGHT);
    let log = Log::default();
    bed.jobs.on(log.handler());
    let node = wait(bed.jobs.start()).unwrap();
    let job = wait(bed.jobs.after(FORESIGHT).enqueue(say("x"))).unwrap();
    bed.settle();
    let report = wait(node.shutdown(Duration::ZERO));
    assert_eq!((report.released, report.still_running), (1, 0));
    let record = wait(bed.jobs.get(job.id())).unwrap().unwrap();
    assert_eq!((record.state.stage, record.attempt, record.crashes), (Stage::Scheduled, 0, 0));
    let other = bed.another();
    other.on(log.handler());
    let _node = wait(other.start()).unwrap();
    bed.advance(FORESIGHT - MICROSECOND);
    assert!(log.lines().is_empty(), "it was early");
    bed.advance(MICROSECOND);
    assert_eq!(log.lines(), ["x"]);
}

/// What could expire before it starts is left where it can.
#[test]
fn what_may_expire_by_then_is_not_given_out() {
    let bed = with_foresight(FORESIGHT);
    let log = Log::default();
    bed.jobs.on(log.handler());
    let _node = wait(bed.jobs.start()).unwrap();
    let short = wait(bed.jobs.after(FORESIGHT / 2).start_within(FORESIGHT / 4).enqueue(say("short"))).unwrap();
    let long = wait(bed.jobs.after(FORESIGHT / 2).start_within(HOUR).enqueue(say("long"))).unwrap();
    bed.settle();
    assert_eq!((stage(&bed, short.id()), stage(&bed, long.id())), (Stage::Scheduled, Stage::Running));
    bed.advance(FORESIGHT / 2);
    let mut lines = log.lines();
    lines.sort();
    assert_eq!(lines, ["long", "short"]);
}
