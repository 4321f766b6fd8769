//! The store's clock decides, and this process's may say what it likes.

use std::time::Duration;

use punctual_durable::{DurableError, Failure, Outcome};

use crate::bed::{HOUR, Log, SECOND, Say, on_every_store, over_a_network, say, wait};

/// C42, C43: a node set its alarm for a date of the local wall clock, also where the store has a clock of its own: when
/// the local one was set back by an hour, the node slept for an hour longer. It counts the time until then, and nobody
/// can set that back.
#[test]
fn a_local_clock_that_is_set_back_puts_off_nothing_of_a_store_with_its_own() {
    let (bed, theirs) = over_a_network(|line| line.far(SECOND * 60));
    let log = Log::default();
    bed.jobs.on(log.handler());
    let _node = wait(bed.jobs.start()).unwrap();
    wait(bed.jobs.after(SECOND * 10).enqueue(say("x"))).unwrap().detach();
    bed.settle();
    bed.clock.step_wall(bed.clock.wall() - HOUR).unwrap();
    theirs.advance(SECOND * 10).unwrap();
    bed.advance(SECOND * 10);
    assert_eq!(log.lines(), ["x"]);
}

/// C12, C43: where it is the store's clock that is set, what waits for a date moves with it.
#[test]
fn setting_the_clock_of_a_local_store_moves_what_waits() {
    on_every_store(|bed| {
        let log = Log::default();
        bed.jobs.on(log.handler());
        let _node = wait(bed.jobs.start()).unwrap();
        for (word, hours) in [("early", 1), ("late", 2)] {
            wait(bed.jobs.after(HOUR * hours).enqueue(say(word))).unwrap().detach();
        }
        bed.settle();
        bed.clock.step_wall(bed.clock.wall() + HOUR).unwrap();
        bed.settle();
        assert_eq!(log.lines(), ["early"]);
        bed.clock.step_wall(bed.clock.wall() - HOUR).unwrap();
        bed.advance(HOUR);
        assert_eq!(log.lines(), ["early"]);
        bed.advance(HOUR);
        assert_eq!(log.lines(), ["early", "late"]);
    });
}

/// C46, C43: a deadline that comes a moment earlier by the clock here than by the store's, as it may by an error of
/// measurement, was taken for a run that took too long: the last attempt was used up, and the job failed, because it
/// had run "longer than 0ns". It waits for its deadline where the clock is that counts, and expires.
#[test]
fn a_deadline_that_comes_early_here_costs_no_attempt() {
    let (bed, theirs) = over_a_network(|line| line.far(SECOND * 60));
    let log = Log::default();
    let seen = log.clone();
    bed.jobs.on(move |say: Say, _| {
        seen.add(say.0);
        std::future::pending::<Result<String, Failure>>()
    });
    let _node = wait(bed.jobs.start()).unwrap();
    let plans = [bed.jobs.now(), bed.jobs.now().run_timeout(HOUR)];
    let jobs = plans.map(|plan| wait(plan.deadline(SECOND * 30).max_attempts(1).enqueue(say("x"))).unwrap());
    bed.settle();
    theirs.advance(SECOND * 30 - Duration::from_millis(1)).unwrap();
    bed.advance(SECOND * 30);
    theirs.advance(Duration::from_millis(1)).unwrap();
    bed.advance(SECOND * 60);
    for job in jobs {
        assert!(matches!(wait(job.result()), Err(DurableError::Expired { .. })));
        let record = wait(bed.jobs.get(job.id())).unwrap().unwrap();
        assert_eq!((record.state.outcome, record.attempt), (Some(Outcome::Expired), 0));
    }
    assert_eq!(log.lines(), ["x", "x"], "each began once");
}
