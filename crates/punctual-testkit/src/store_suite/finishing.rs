//! Ending runs, and everything else that ends a job or starts it again.

use punctual::Stage;
use punctual_durable::{
    Cancelled, Edit, Edited, Finish, Finished, Gate, JobId, Moment, NewJob, OnConflict, Outcome, Redriven, State,
    Timestamp, Verdict,
};

use crate::{Bed, NODE, OTHER, SECOND, job, unique};

const fn ended(outcome: Outcome) -> State {
    State::new(Stage::Stopped, Some(outcome))
}

const fn stopping(outcome: Outcome) -> State {
    State::new(Stage::Running, Some(outcome))
}

fn retry(at: Moment) -> Verdict {
    Verdict::Retry { at, error: "no paper".into() }
}

/// C38, C50
pub fn a_result_is_kept(bed: &Bed) {
    let running = bed.running(job(1));
    bed.advance(SECOND);
    assert_eq!(bed.finish(&running, Verdict::Succeeded("[42]".into())), Finished::Done(ended(Outcome::Succeeded)));
    let record = bed.get(running.job.id);
    assert_eq!((record.state, record.result.as_deref()), (ended(Outcome::Succeeded), Some("[42]")));
    assert_eq!((record.since, record.node, record.attempt), (bed.now(), None, 1));
    assert_eq!(record.started_at, running.started_at);
}

/// C46: a dead letter, with its error.
pub fn a_failure_is_kept(bed: &Bed) {
    let running = bed.running(job(1));
    assert_eq!(bed.finish(&running, Verdict::Failed("no".into())), Finished::Done(ended(Outcome::Failed)));
    let record = bed.get(running.job.id);
    assert_eq!((record.last_error.as_deref(), record.result), (Some("no"), None));
    let running = bed.running(job(2));
    assert_eq!(bed.finish(&running, Verdict::Cancelled("moot".into())), Finished::Done(ended(Outcome::Cancelled)));
    assert_eq!(bed.get(running.job.id).last_error.as_deref(), Some("moot"));
}

/// C38: `(id, fence, node)` guards every write.
pub fn a_stale_run_changes_nothing(bed: &Bed) {
    bed.join(OTHER, &["k"]);
    let first = bed.running(job(1));
    let id = first.job.id;
    let won = || Verdict::Succeeded("stale".into());
    assert_eq!(bed.finish_as(NODE, id, 0, won()), Finished::Stale);
    assert_eq!(bed.finish_as(NODE, id, 2, won()), Finished::Stale);
    assert_eq!(bed.finish_as(OTHER, id, 1, won()), Finished::Stale);
    assert_eq!(bed.finish_as(NODE, JobId::from_u128(99), 1, won()), Finished::Stale);
    assert_eq!(bed.get(id), first);
    bed.finish(&first, retry(Moment::NOW));
    let waiting = bed.get(id);
    assert_eq!(bed.finish(&first, won()), Finished::Stale, "it waits");
    assert_eq!(bed.get(id), waiting);
    let second = bed.claim(1).remove(0);
    assert_eq!((second.fence, second.attempt), (2, 2));
    assert_eq!(bed.finish(&first, won()), Finished::Stale, "the second run is not the first");
    assert_eq!(bed.get(id), second);
    bed.finish(&second, Verdict::Succeeded("1".into()));
    let record = bed.get(id);
    assert_eq!(bed.finish(&second, Verdict::Failed("twice".into())), Finished::Stale, "it ended");
    assert_eq!(bed.get(id), record);
    bed.assert_totals_are_true();
}

/// Each finish of a batch is answered for itself.
pub fn a_batch_of_finishes_is_answered_one_by_one(bed: &Bed) {
    bed.take_in_all((1..=3).map(job));
    let finish = |id, fence| Finish { id: job(id).id, fence, verdict: Verdict::Succeeded("1".into()) };
    assert_eq!(bed.claim(9).len(), 3);
    let batch = vec![finish(1, 1), finish(2, 7), finish(1, 1), finish(3, 1)];
    let done = Finished::Done(ended(Outcome::Succeeded));
    assert_eq!(bed.ask(|store| store.finish(NODE, batch)), [done, Finished::Stale, Finished::Stale, done]);
    assert_eq!(bed.totals().running, 1);
}

/// C46
pub fn a_retry_waits_and_counts(bed: &Bed) {
    let running = bed.running(NewJob { start_within: Some(5 * SECOND), ..job(1) });
    assert_eq!(bed.finish(&running, retry(Moment::After(3 * SECOND))), Finished::Done(State::SCHEDULED));
    let at = bed.now().after(3 * SECOND);
    let record = bed.get(running.job.id);
    assert_eq!((record.due, record.start_by), (at, Some(at.after(5 * SECOND))));
    assert_eq!((record.attempt, record.node, record.since), (1, None, bed.now()));
    assert_eq!(record.last_error.as_deref(), Some("no paper"));
    assert_eq!(bed.gate(running.job.id), Gate::Retry { at, error: "no paper".into() });
    bed.advance(3 * SECOND);
    let again = bed.claim(1).remove(0);
    assert_eq!((again.attempt, again.fence), (2, 2));
    assert_eq!(bed.finish(&again, retry(Moment::NOW)), Finished::Done(State::READY), "due at once is ready");
}

/// C46: a retry that cannot start before the deadline is not made.
pub fn a_retry_beyond_the_deadline_fails_instead(bed: &Bed) {
    let deadline = Some(Moment::After(5 * SECOND));
    let running = bed.running(NewJob { deadline, ..job(1) });
    let failed = Finished::Done(ended(Outcome::Failed));
    assert_eq!(bed.finish(&running, retry(Moment::After(5 * SECOND))), failed);
    assert_eq!(bed.get(running.job.id).last_error.as_deref(), Some("no paper"));
    let running = bed.running(NewJob { deadline, ..job(2) });
    let before = Moment::After(5 * SECOND - SECOND / 1_000_000);
    assert_eq!(bed.finish(&running, retry(before)), Finished::Done(State::SCHEDULED));
}

/// C46: snooze does not burn an attempt.
pub fn a_snooze_gives_the_attempt_back(bed: &Bed) {
    let running = bed.running(job(1));
    assert_eq!(bed.finish(&running, Verdict::Snooze(Moment::After(SECOND))), Finished::Done(State::SCHEDULED));
    let record = bed.get(running.job.id);
    assert_eq!((record.attempt, record.fence, record.due), (0, 1, bed.now().after(SECOND)));
    assert_eq!(bed.gate(running.job.id), Gate::NotDue(bed.now().after(SECOND)));
    bed.advance(SECOND);
    assert_eq!(bed.claim(1)[0].attempt, 1);
}

/// C39: a clean shutdown gives the attempt back, and the whole time to start.
pub fn a_release_gives_the_attempt_and_the_place_in_line_back(bed: &Bed) {
    for (id, verdict) in [(1, Verdict::Release), (2, Verdict::Stopped)] {
        let running = bed.running(NewJob { start_within: Some(5 * SECOND), ..job(id) });
        bed.advance(7 * SECOND);
        bed.take_in(job(id + 10));
        assert_eq!(bed.finish(&running, verdict), Finished::Done(State::READY));
        let record = bed.get(running.job.id);
        assert_eq!((record.attempt, record.fence, record.crashes), (0, 1, 0));
        assert_eq!((record.due, record.start_by), (running.due, Some(bed.now().after(5 * SECOND))));
        let again = bed.claim(9);
        assert_eq!(again[0].job.id, running.job.id, "due as it was, so it is first");
        for record in again {
            bed.finish(&record, Verdict::Succeeded("1".into()));
        }
    }
}

/// C49
pub fn cancelling_what_waits_ends_it(bed: &Bed) {
    let ready = bed.take_in(job(1));
    let scheduled = bed.take_in(NewJob { due: Moment::After(SECOND), ..job(2) });
    assert_eq!(bed.cancel(ready), Cancelled::Now(Stage::Ready));
    assert_eq!(bed.cancel(scheduled), Cancelled::Now(Stage::Scheduled));
    assert_eq!(bed.get(ready).state, ended(Outcome::Cancelled));
    assert_eq!(bed.get(ready).last_error.as_deref(), Some("cancelled by a caller"));
    assert_eq!(bed.cancel(ready), Cancelled::Ended(Outcome::Cancelled));
    assert_eq!(bed.cancel(job(9).id), Cancelled::Unknown);
    bed.advance(SECOND);
    assert!(bed.claim(9).is_empty());
}

/// C26, C49: the outcome at once, the permit when the handler has stopped; a late result is thrown away.
pub fn cancelling_what_runs_settles_it(bed: &Bed) {
    let running = bed.running(job(1));
    let id = running.job.id;
    bed.advance(SECOND);
    assert_eq!(bed.cancel(id), Cancelled::Now(Stage::Running));
    let record = bed.get(id);
    assert_eq!((record.state, record.node, record.since), (stopping(Outcome::Cancelled), Some(NODE), bed.now()));
    assert_eq!(bed.cancel(id), Cancelled::Ended(Outcome::Cancelled));
    let pulse = bed.ask(|store| store.heartbeat(crate::beat(NODE, &["k"])));
    assert_eq!((pulse.known, pulse.stop), (true, vec![(id, 1)]));
    assert_eq!((bed.totals().running, bed.totals().stopping), (1, 1));
    assert_eq!(bed.finish_as(NODE, id, 7, Verdict::Stopped), Finished::Stale);
    let done = Finished::Done(ended(Outcome::Cancelled));
    assert_eq!(bed.finish(&running, Verdict::Succeeded("late".into())), done);
    assert_eq!(bed.get(id).result, None);
    let pulse = bed.ask(|store| store.heartbeat(crate::beat(NODE, &["k"])));
    assert!(pulse.stop.is_empty());
    bed.assert_totals_are_true();
}

/// C28: what waits expires on time, and nobody has to tend the store for it.
pub fn what_waits_expires_on_time(bed: &Bed) {
    let start = bed.now();
    let late = bed.take_in(NewJob { start_within: Some(2 * SECOND), ..job(1) });
    let delayed = NewJob { due: Moment::After(SECOND), start_within: Some(2 * SECOND), ..job(2) };
    let delayed = bed.take_in(delayed);
    let dead = bed.take_in(NewJob { deadline: Some(Moment::After(2 * SECOND)), ..job(3) });
    bed.advance(2 * SECOND - SECOND / 1_000_000);
    assert_eq!(bed.outcome(late), None);
    bed.advance(SECOND / 1_000_000);
    for id in [late, dead] {
        let record = bed.get(id);
        assert_eq!((record.state, record.since), (ended(Outcome::Expired), start.after(2 * SECOND)));
        assert!(record.last_error.is_some(), "it says which time ran out");
    }
    assert_eq!(bed.cancel(late), Cancelled::Ended(Outcome::Expired));
    assert_eq!(bed.claim_ids(9), [2], "nothing is given out at its last instant");
    assert_eq!(bed.totals().ended.get(&Outcome::Expired), Some(&2));
    assert_eq!(bed.get(delayed).state, State::RUNNING);
}

/// C30: a scheduled job's deadline is not put off by its due instant.
pub fn a_scheduled_job_expires_by_an_earlier_deadline(bed: &Bed) {
    let id = bed.take_in(NewJob { due: Moment::After(9 * SECOND), ..job(1) });
    let edit = Edit { deadline: Some(Moment::After(SECOND)), ..Edit::default() };
    assert_eq!(bed.ask(|store| store.edit(id, edit)), Edited::Done);
    bed.advance(SECOND);
    assert_eq!(bed.get(id).state, ended(Outcome::Expired));
}

/// C30: the deadline ends a running job; the time to start does not.
pub fn what_runs_past_its_deadline_is_settled(bed: &Bed) {
    let soon = NewJob { start_within: Some(SECOND), deadline: Some(Moment::After(3 * SECOND)), ..job(1) };
    let running = bed.running(soon);
    let id = running.job.id;
    bed.advance(2 * SECOND);
    assert_eq!(bed.get(id).state, State::RUNNING);
    bed.advance(5 * SECOND);
    let record = bed.get(id);
    assert_eq!(record.state, stopping(Outcome::Expired));
    assert_eq!(Some(record.since), record.deadline);
    let pulse = bed.ask(|store| store.heartbeat(crate::beat(NODE, &["k"])));
    assert_eq!(pulse.stop, [(id, 1)]);
    let done = Finished::Done(ended(Outcome::Expired));
    assert_eq!(bed.finish(&running, Verdict::Succeeded("late".into())), done);
    assert_eq!(bed.totals().ended.get(&Outcome::Expired), Some(&1));
}

/// C30: a result that comes at the deadline comes too late, tended or not.
pub fn a_result_at_the_deadline_is_late(bed: &Bed) {
    let running = bed.running(NewJob { deadline: Some(Moment::After(SECOND)), ..job(1) });
    bed.advance(SECOND);
    let done = Finished::Done(ended(Outcome::Expired));
    assert_eq!(bed.finish(&running, Verdict::Succeeded("late".into())), done);
    assert_eq!(bed.get(running.job.id).result, None);
}

/// Only while it waits; each thing by itself.
pub fn an_edit_changes_what_waits(bed: &Bed) {
    let id = bed.take_in(NewJob { start_within: Some(SECOND), ..job(1) });
    let start_by = bed.get(id).start_by;
    bed.advance(SECOND / 2);
    let edit = |edit: Edit| bed.ask(|store| store.edit(id, edit));
    let terms = Edit {
        payload: Some("[7]".into()),
        priority: Some(3),
        deadline: Some(Moment::After(60 * SECOND)),
        max_attempts: Some(9),
        ..Edit::default()
    };
    assert_eq!(edit(terms), Edited::Done);
    let record = bed.get(id);
    assert_eq!((record.job.payload.as_str(), record.job.priority, record.job.max_attempts), ("[7]", 3, 9));
    assert_eq!((record.deadline, record.start_by), (Some(bed.now().after(60 * SECOND)), start_by));
    assert_eq!((record.state, record.since), (State::READY, bed.now()));
    assert_eq!(edit(Edit { due: Some(Moment::After(5 * SECOND)), ..Edit::default() }), Edited::Done);
    let record = bed.get(id);
    assert_eq!((record.state, record.due), (State::SCHEDULED, bed.now().after(5 * SECOND)));
    assert_eq!(record.start_by, Some(bed.now().after(6 * SECOND)));
    assert!(bed.claim(9).is_empty());
    assert_eq!(edit(Edit { due: Some(Moment::NOW), ..Edit::default() }), Edited::Done);
    let running = bed.claim(1).remove(0);
    assert_eq!(edit(Edit { priority: Some(0), ..Edit::default() }), Edited::NotWaiting(State::RUNNING));
    assert_eq!(bed.get(id), running);
    bed.finish(&running, Verdict::Succeeded("1".into()));
    assert_eq!(edit(Edit::default()), Edited::NotWaiting(ended(Outcome::Succeeded)));
    assert_eq!(bed.ask(|store| store.edit(job(9).id, Edit::default())), Edited::Unknown);
    bed.assert_totals_are_true();
}

/// C30: a deadline that is set to the past has passed.
pub fn an_edit_can_let_a_job_expire(bed: &Bed) {
    let id = bed.take_in(job(1));
    bed.advance(SECOND);
    let edit = Edit { deadline: Some(Moment::At(Timestamp::from_micros(1))), ..Edit::default() };
    assert_eq!(bed.ask(|store| store.edit(id, edit)), Edited::Done);
    assert_eq!((bed.get(id).state, bed.get(id).since), (ended(Outcome::Expired), bed.now()));
}

/// C46: dead letters can be redriven, as new, with their old number of fences.
pub fn a_redriven_job_starts_anew(bed: &Bed) {
    let first = NewJob { start_within: Some(SECOND), deadline: Some(Moment::After(3 * SECOND)), ..job(1) };
    let running = bed.running(first);
    let id = running.job.id;
    bed.finish(&running, Verdict::Failed("no".into()));
    bed.advance(10 * SECOND);
    assert_eq!(bed.ask(|store| store.redrive(id)), Redriven::Done);
    let record = bed.get(id);
    assert_eq!((record.state, record.attempt, record.crashes, record.fence), (State::READY, 0, 0, 1));
    assert_eq!((record.due, record.deadline), (bed.now(), None));
    assert_eq!((record.start_by, record.last_error.as_deref()), (Some(bed.now().after(SECOND)), Some("no")));
    assert_eq!(bed.ask(|store| store.redrive(id)), Redriven::NotEnded(State::READY));
    let again = bed.claim(1).remove(0);
    assert_eq!((again.fence, again.attempt), (2, 1));
    assert_eq!(bed.finish(&running, Verdict::Succeeded("stale".into())), Finished::Stale);
    bed.finish(&again, Verdict::Succeeded("1".into()));
    assert_eq!(bed.ask(|store| store.redrive(id)), Redriven::NotEnded(ended(Outcome::Succeeded)));
    assert_eq!(bed.ask(|store| store.redrive(job(9).id)), Redriven::Unknown);
    let totals = bed.totals();
    let counts = [Outcome::Failed, Outcome::Succeeded].map(|outcome| totals.ended.get(&outcome).copied());
    assert_eq!(counts, [Some(1), Some(1)], "each end counts");
}

/// C46: cancelled and expired jobs too; a deadline that is still to come stays.
pub fn cancelled_and_expired_jobs_can_be_redriven(bed: &Bed) {
    let id = bed.take_in(NewJob { deadline: Some(Moment::After(60 * SECOND)), ..job(1) });
    bed.cancel(id);
    assert_eq!(bed.ask(|store| store.redrive(id)), Redriven::Done);
    assert!(bed.get(id).deadline.is_some());
    let late = bed.take_in(NewJob { start_within: Some(SECOND), ..job(2) });
    bed.advance(SECOND);
    assert_eq!(bed.ask(|store| store.redrive(late)), Redriven::Done);
    assert_eq!(bed.claim_ids(9), [1, 2]);
}

/// C47
pub fn a_redriven_job_needs_its_unique_key(bed: &Bed) {
    let keyed = |id| NewJob { unique: unique("u", OnConflict::Reject), ..job(id) };
    let one = bed.take_in(keyed(1));
    bed.cancel(one);
    let two = bed.take_in(keyed(2));
    assert_eq!(bed.ask(|store| store.redrive(one)), Redriven::Conflict(two));
    bed.cancel(two);
    assert_eq!(bed.ask(|store| store.redrive(one)), Redriven::Done);
    assert_eq!(bed.ask(|store| store.redrive(two)), Redriven::Conflict(one));
    assert_eq!(bed.enqueue(keyed(3)), Err(punctual_durable::Refused::Conflict(one)));
}

/// C49: a person wants a redriven job, and no node that leaves ends that.
pub fn a_redriven_job_does_not_depend_on_interest(bed: &Bed) {
    bed.join(OTHER, &[]);
    let id = bed.take_in(NewJob { wanted_by: Some(OTHER), ..job(1) });
    bed.ask(|store| store.unwant(id, OTHER));
    assert_eq!(bed.ask(|store| store.redrive(id)), Redriven::Done);
    bed.ask(|store| store.leave(OTHER));
    assert_eq!(bed.get(id).state, State::READY);
}
