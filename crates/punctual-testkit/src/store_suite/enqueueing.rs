//! Taking jobs in: ids, refusals, unique keys, batches.

use punctual::{Limits, Rate, Reason, Stage};
use punctual_durable::{
    Admitted, Moment, NewJob, OnConflict, Outcome, Refused, State, TenantPolicy, Timestamp, Unique, Verdict,
};

use crate::{Bed, NODE, OTHER, SECOND, job, unique};

fn rejected(reason: Reason) -> Result<Admitted, Refused> {
    Err(Refused::Rejected { reason, retry_after: None })
}

fn backlog_full(count: usize, max: usize) -> Result<Admitted, Refused> {
    rejected(Reason::BacklogFull { tenant: "acme".into(), count, max })
}

/// C37: what was taken in is there, with all that was said about it.
pub fn a_job_is_kept_as_it_was_given(bed: &Bed) {
    let given = NewJob {
        tags: vec!["red".into(), "große".into()],
        payload: r#"{"user":7,"quote":"it's \"so\""}"#.into(),
        priority: -3,
        cost: 9,
        due: Moment::After(2 * SECOND),
        start_within: Some(5 * SECOND),
        run_timeout: Some(7 * SECOND),
        deadline: Some(Moment::After(60 * SECOND)),
        max_attempts: 11,
        max_crashes: 12,
        backoff: punctual_durable::Backoff::new(SECOND / 3, 9 * SECOND),
        unique: Some(Unique { key: "a key".into(), on_conflict: OnConflict::Join, period: Some(SECOND) }),
        wanted_by: Some(NODE),
        schedule: Some("nightly".into()),
        missed: 4,
        trace: Some("00-trace-01".into()),
        ..job(1)
    };
    let now = bed.now();
    let record = bed.get(bed.take_in(given.clone()));
    assert_eq!(record.state, State::SCHEDULED);
    assert_eq!((record.due, record.start_by), (now.after(2 * SECOND), Some(now.after(7 * SECOND))));
    assert_eq!((record.deadline, record.enqueued_at, record.since), (Some(now.after(60 * SECOND)), now, now));
    assert_eq!((record.attempt, record.fence, record.crashes), (0, 0, 0));
    assert_eq!((record.node, record.started_at, &record.result, &record.last_error), (None, None, &None, &None));
    let told = NewJob { due: given.due, deadline: given.deadline, ..record.job };
    assert_eq!(told, given);
}

/// C37: ids are made by the client, so a repeated enqueue is the same job, whatever became of it.
pub fn a_known_id_is_answered_as_new_and_changes_nothing(bed: &Bed) {
    let running = bed.running(job(1));
    let again = NewJob { payload: "other".into(), unique: unique("u", OnConflict::Reject), ..job(1) };
    assert_eq!(bed.enqueue(again.clone()), Ok(Admitted::New));
    assert_eq!(bed.get(running.job.id), running);
    bed.finish(&running, Verdict::Succeeded("1".into()));
    let ended = bed.get(running.job.id);
    bed.set_policy("acme", TenantPolicy { closed: true, ..TenantPolicy::default() });
    assert_eq!(bed.enqueue(again), Ok(Admitted::New), "also when its tenant is closed");
    assert_eq!(bed.get(running.job.id), ended);
    assert_eq!(bed.totals().ready, 0);
}

/// C36: a word that a store could not find jobs by is refused at the door, with its length and what it may be, and the
/// others of the batch are taken in. At the bound a job goes all the way.
pub fn a_job_with_too_long_a_word_is_refused_alone(bed: &Bed) {
    // Nothing of it can be made shorter.
    let word = |bytes: usize| (0..bytes).map(|_| char::from(fastrand::u8(b'!'..b'~'))).collect::<String>();
    let due = Moment::After(SECOND);
    let tags = |count: usize, bytes: usize| (0..count).map(|_| word(bytes)).collect();
    let max = NewJob::WORD_MAX;
    let longest = NewJob {
        kind: word(max),
        tenant: word(max),
        unique: unique(&word(max), OnConflict::Reject),
        schedule: Some(word(max)),
        tags: tags(NewJob::TAGS_MAX, max),
        due,
        ..job(1)
    };
    let too_long = [
        ("tenant", NewJob { tenant: word(max + 1), due, ..job(2) }),
        ("kind", NewJob { kind: word(max + 1), due, ..job(3) }),
        ("unique key", NewJob { unique: unique(&word(max + 1), OnConflict::Reject), ..job(4) }),
        ("schedule", NewJob { schedule: Some(word(max + 1)), ..job(5) }),
        ("tag", NewJob { tags: tags(1, max + 1), ..job(6) }),
    ];
    let too_many = NewJob { tags: tags(NewJob::TAGS_MAX + 1, 1), ..job(7) };
    let mut expected = vec![Ok(Admitted::New)];
    expected.extend(too_long.iter().map(|&(what, _)| Err(Refused::TooLong { what, bytes: max + 1, max })));
    expected.push(Err(Refused::TooManyTags { count: NewJob::TAGS_MAX + 1, max: NewJob::TAGS_MAX }));
    let mut batch = vec![longest.clone()];
    batch.extend(too_long.into_iter().map(|(_, job)| job));
    batch.push(too_many);
    assert_eq!(bed.ask(|store| store.enqueue(batch)), expected);
    assert!((2..=7).all(|id| bed.find(job(id).id).is_none()));

    bed.advance(SECOND);
    let given = bed.claim_as(NODE, 1, &[(&longest.kind, 1)]).jobs;
    assert_eq!(given.len(), 1);
    bed.finish(&given[0], Verdict::Succeeded("1".into()));
    assert_eq!(bed.get(longest.id).job.tags, longest.tags);
    bed.assert_totals_are_true();
}

/// C34
pub fn a_closed_tenant_takes_nothing(bed: &Bed) {
    bed.set_policy("acme", TenantPolicy { closed: true, ..TenantPolicy::default() });
    assert_eq!(bed.enqueue(job(1)), rejected(Reason::Closed));
    bed.take_in(NewJob { tenant: "other".into(), ..job(2) });
    bed.limit(Limits::new());
    bed.take_in(job(1));
}

/// C30: what could not start in time is told so before it is queued.
pub fn a_job_that_could_not_start_in_time_is_refused(bed: &Bed) {
    let now = bed.now();
    let at = |due, deadline| NewJob { due, deadline: Some(deadline), ..job(1) };
    assert_eq!(bed.enqueue(at(Moment::NOW, Moment::NOW)), rejected(Reason::Expired));
    assert_eq!(bed.enqueue(at(Moment::NOW, Moment::At(Timestamp::from_micros(5)))), rejected(Reason::Expired));
    let due = Moment::After(SECOND);
    assert_eq!(bed.enqueue(at(due, Moment::At(now.after(SECOND)))), rejected(Reason::Expired));
    let long_ago = Moment::At(Timestamp::from_micros(5));
    assert_eq!(bed.enqueue(at(long_ago, Moment::At(now))), rejected(Reason::Expired));
    let zero = NewJob { start_within: Some(std::time::Duration::ZERO), ..job(1) };
    assert_eq!(bed.enqueue(zero), rejected(Reason::Expired));
    assert!(bed.find(job(1).id).is_none());
    bed.take_in(at(due, Moment::After(SECOND + SECOND / 1_000_000)));
}

/// C43: a job that was due long ago is ready now, and in the order of its due instant.
pub fn a_date_in_the_past_is_due_at_once(bed: &Bed) {
    bed.take_in(job(1));
    let id = bed.take_in(NewJob { due: Moment::At(Timestamp::from_micros(9)), ..job(2) });
    let record = bed.get(id);
    assert_eq!((record.state, record.due, record.since), (State::READY, Timestamp::from_micros(9), bed.now()));
    assert_eq!(bed.claim_ids(9), [2, 1]);
}

/// C23, C41: waiting + running < backlog_max + running_max.
pub fn the_backlog_bound_is_exact(bed: &Bed) {
    bed.limit(Limits::new().running_max(2).backlog_max(1));
    bed.take_in_all((1..=3).map(job));
    assert_eq!(bed.enqueue(job(4)), backlog_full(3, 3));
    let running = bed.claim(9);
    assert_eq!(running.len(), 2);
    assert_eq!(bed.enqueue(job(4)), backlog_full(3, 3), "what runs still counts");
    bed.finish(&running[0], Verdict::Succeeded("1".into()));
    bed.take_in(job(4));
    assert_eq!(bed.enqueue(job(5)), backlog_full(3, 3));
}

/// C23: without a running limit only what waits counts.
pub fn without_a_running_limit_only_what_waits_counts(bed: &Bed) {
    bed.limit(Limits::new().backlog_max(2));
    bed.take_in(job(1));
    bed.take_in(job(2));
    assert_eq!(bed.enqueue(job(3)), backlog_full(2, 2));
    assert_eq!(bed.claim(1).len(), 1);
    bed.take_in(job(3));
}

/// C23: while paused the running limit counts as 0.
pub fn a_paused_tenant_has_no_room_for_running(bed: &Bed) {
    let limits = Limits::new().running_max(5).backlog_max(1);
    bed.set_policy("acme", TenantPolicy { limits, paused: true, closed: false });
    bed.take_in(job(1));
    assert_eq!(bed.enqueue(job(2)), backlog_full(1, 1));
}

/// C23: jobs not yet due are counted apart.
pub fn the_scheduled_bound_is_exact_and_apart(bed: &Bed) {
    bed.limit(Limits::new().scheduled_max(1).backlog_max(1));
    let later = |id| NewJob { due: Moment::After(SECOND), ..job(id) };
    bed.take_in(later(1));
    let full = Reason::ScheduledFull { tenant: "acme".into(), count: 1, max: 1 };
    assert_eq!(bed.enqueue(later(2)), rejected(full));
    bed.take_in(job(3));
    // C24: what falls due overdraws the backlog; it is not refused, but new ones are.
    bed.advance(SECOND);
    assert_eq!(bed.enqueue(job(4)), backlog_full(2, 1));
    bed.take_in(later(5));
}

/// C27: cancel and expiry free a place at once, tended or not.
pub fn a_place_is_free_as_soon_as_its_job_is_not_wanted(bed: &Bed) {
    bed.limit(Limits::new().backlog_max(1));
    let id = bed.take_in(job(1));
    bed.cancel(id);
    bed.take_in(NewJob { start_within: Some(SECOND), ..job(2) });
    assert_eq!(bed.enqueue(job(3)), backlog_full(1, 1));
    bed.advance(SECOND);
    bed.take_in(job(3));
}

/// C25: when the rate is the gate, the answer says when to come back.
pub fn a_refusal_by_a_rated_tenant_says_when_to_come_back(bed: &Bed) {
    bed.limit(Limits::new().backlog_max(1).rate(Rate::per_second(4)));
    bed.take_in(job(1));
    assert_eq!(bed.enqueue(job(2)), backlog_full(1, 1), "nothing is spent yet");
    assert_eq!(bed.claim(9).len(), 1);
    bed.take_in(job(2));
    let reason = Reason::BacklogFull { tenant: "acme".into(), count: 1, max: 1 };
    assert_eq!(bed.enqueue(job(3)), Err(Refused::Rejected { reason, retry_after: Some(SECOND / 4) }));
}

/// A bad item of a batch fails alone, and each sees the ones before it.
pub fn each_item_of_a_batch_is_answered_for_itself(bed: &Bed) {
    bed.limit(Limits::new().backlog_max(2));
    let late = NewJob { deadline: Some(Moment::NOW), ..job(2) };
    let keyed = |id| NewJob { unique: unique("u", OnConflict::Reject), ..job(id) };
    let elsewhere = NewJob { tenant: "other".into(), ..job(6) };
    let batch = vec![keyed(1), late, keyed(3), job(4), job(5), elsewhere, job(1)];
    let answers = bed.ask(|store| store.enqueue(batch));
    let conflict = Err(Refused::Conflict(job(1).id));
    let expected = [
        Ok(Admitted::New),
        rejected(Reason::Expired),
        conflict,
        Ok(Admitted::New),
        backlog_full(2, 2),
        Ok(Admitted::New),
        Ok(Admitted::New),
    ];
    assert_eq!(answers, expected);
    bed.assert_totals_are_true();
    assert_eq!(bed.totals().ready, 3);
    assert!(bed.ask(|store| store.enqueue(Vec::new())).is_empty());
}

/// C47
pub fn a_unique_key_is_taken_while_its_job_is_live(bed: &Bed) {
    let keyed = |id| NewJob { unique: unique("u", OnConflict::Reject), ..job(id) };
    bed.take_in(keyed(1));
    let conflict = Err(Refused::Conflict(job(1).id));
    assert_eq!(bed.enqueue(keyed(2)), conflict);
    bed.take_in(NewJob { tenant: "other".into(), ..keyed(3) });
    let running = bed.claim(1).remove(0);
    assert_eq!(bed.enqueue(keyed(2)), conflict, "running");
    bed.cancel(running.job.id);
    assert_eq!(bed.enqueue(keyed(2)), conflict, "stopping");
    bed.finish(&running, Verdict::Stopped);
    bed.take_in(keyed(2));
}

/// C47: on PostgreSQL it was the one with the least id, for batches that want the same take turns by key and then id.
pub fn the_first_of_a_batch_has_the_key(bed: &Bed) {
    let keyed = |id| NewJob { unique: unique("u", OnConflict::Join), ..job(id) };
    let answers = bed.ask(|store| store.enqueue(vec![keyed(7), keyed(5), keyed(6)]));
    let joined = Ok(Admitted::Joined(job(7).id));
    assert_eq!(answers, [Ok(Admitted::New), joined.clone(), joined]);
}

/// C47: a retry is the same job.
pub fn a_unique_key_is_kept_over_a_retry(bed: &Bed) {
    let keyed = |id| NewJob { unique: unique("u", OnConflict::Reject), ..job(id) };
    let running = bed.running(keyed(1));
    bed.finish(&running, Verdict::Retry { at: Moment::After(SECOND), error: "no".into() });
    assert_eq!(bed.enqueue(keyed(2)), Err(Refused::Conflict(job(1).id)));
}

/// C47: expired jobs are not live, tended or not.
pub fn a_unique_key_is_free_when_its_job_expires(bed: &Bed) {
    let keyed = |id| NewJob { unique: unique("u", OnConflict::Reject), ..job(id) };
    bed.take_in(NewJob { start_within: Some(SECOND), ..keyed(1) });
    bed.advance(SECOND);
    bed.take_in(keyed(2));
}

/// C47
pub fn a_period_holds_the_key_beyond_the_end(bed: &Bed) {
    let unique = Unique { key: "u".into(), on_conflict: OnConflict::Replace, period: Some(10 * SECOND) };
    let keyed = |id| NewJob { unique: Some(unique.clone()), ..job(id) };
    let running = bed.running(keyed(1));
    bed.finish(&running, Verdict::Succeeded("1".into()));
    bed.advance(10 * SECOND - SECOND / 1_000);
    assert_eq!(bed.enqueue(keyed(2)), Err(Refused::Conflict(job(1).id)));
    bed.advance(SECOND / 1_000);
    bed.take_in(keyed(2));
    bed.advance(100 * SECOND);
    assert_eq!(bed.enqueue(keyed(3)), Ok(Admitted::Replaced(job(2).id)), "and a live job longer than its period");
}

/// C47
pub fn join_gives_the_one_that_is_there_even_if_the_tenant_is_full(bed: &Bed) {
    bed.limit(Limits::new().backlog_max(1));
    let keyed = |id| NewJob { unique: unique("u", OnConflict::Join), ..job(id) };
    bed.take_in(keyed(1));
    assert_eq!(bed.enqueue(keyed(2)), Ok(Admitted::Joined(job(1).id)));
    assert!(bed.find(job(2).id).is_none());
    assert_eq!(bed.claim(1).len(), 1);
    assert_eq!(bed.enqueue(keyed(2)), Ok(Admitted::Joined(job(1).id)), "also while it runs");
}

/// C47
pub fn replace_cancels_the_one_that_waits(bed: &Bed) {
    let keyed = |id| NewJob { unique: unique("u", OnConflict::Replace), ..job(id) };
    bed.take_in(NewJob { due: Moment::After(SECOND), ..keyed(1) });
    assert_eq!(bed.enqueue(keyed(2)), Ok(Admitted::Replaced(job(1).id)));
    assert_eq!(bed.outcome(job(1).id), Some(Outcome::Cancelled));
    assert!(bed.get(job(1).id).last_error.is_some_and(|error| error.contains("unique key")));
    assert_eq!(bed.enqueue(keyed(3)), Ok(Admitted::Replaced(job(2).id)), "ready");
    assert_eq!(bed.claim_ids(9), [3]);
    assert_eq!(bed.enqueue(keyed(4)), Err(Refused::Conflict(job(3).id)), "running");
    bed.assert_totals_are_true();
}

/// C47: the place of the other counts as free, and nothing happens if that is not enough.
pub fn replace_is_admitted_as_if_the_other_were_gone(bed: &Bed) {
    let keyed = |id| NewJob { unique: unique("u", OnConflict::Replace), ..job(id) };
    bed.limit(Limits::new().backlog_max(1).scheduled_max(0));
    bed.take_in(keyed(1));
    assert_eq!(bed.enqueue(keyed(2)), Ok(Admitted::Replaced(job(1).id)));
    let later = NewJob { due: Moment::After(SECOND), ..keyed(3) };
    let full = Reason::ScheduledFull { tenant: "acme".into(), count: 0, max: 0 };
    assert_eq!(bed.enqueue(later), rejected(full));
    assert_eq!(bed.get(job(2).id).state, State::READY);
    assert_eq!(bed.enqueue(keyed(4)), Ok(Admitted::Replaced(job(2).id)), "it still had its key");
}

/// C49: a `while wanted` job lives while its node wants it.
pub fn a_wanted_job_is_cancelled_when_its_last_node_lets_go(bed: &Bed) {
    bed.join(OTHER, &[]);
    let id = bed.take_in(NewJob { wanted_by: Some(NODE), ..job(1) });
    assert!(bed.ask(|store| store.want(id, OTHER)));
    assert!(bed.ask(|store| store.want(id, OTHER)), "twice is once");
    bed.ask(|store| store.unwant(id, NODE));
    assert_eq!(bed.outcome(id), None);
    bed.ask(|store| store.unwant(id, NODE));
    assert_eq!(bed.outcome(id), None, "it let go before");
    bed.ask(|store| store.unwant(id, OTHER));
    assert_eq!(bed.outcome(id), Some(Outcome::Cancelled));
    assert!(bed.get(id).last_error.is_some_and(|error| error.contains("nobody wanted")));
    assert!(!bed.ask(|store| store.want(id, OTHER)), "too late");
}

/// C49
pub fn a_running_job_that_nobody_wants_is_told_to_stop(bed: &Bed) {
    let running = bed.running(NewJob { wanted_by: Some(NODE), ..job(1) });
    bed.ask(|store| store.unwant(running.job.id, NODE));
    assert_eq!(bed.get(running.job.id).state, State::new(Stage::Running, Some(Outcome::Cancelled)));
    let pulse = bed.ask(|store| store.heartbeat(crate::beat(NODE, &["k"])));
    assert_eq!(pulse.stop, [(running.job.id, running.fence)]);
}

/// C49: a durable job outlives its caller, unless it was enqueued otherwise.
pub fn letting_go_of_a_plain_job_changes_nothing(bed: &Bed) {
    let id = bed.take_in(job(1));
    assert!(bed.ask(|store| store.want(id, NODE)));
    bed.ask(|store| store.unwant(id, NODE));
    assert_eq!(bed.get(id).state, State::READY);
    assert!(!bed.ask(|store| store.want(job(9).id, NODE)), "unknown");
    bed.ask(|store| store.unwant(job(9).id, NODE));
}

/// C49: those who join are counted.
pub fn whoever_joins_a_wanted_job_wants_it_too(bed: &Bed) {
    bed.join(OTHER, &[]);
    let keyed = |id, node| NewJob { unique: unique("u", OnConflict::Join), wanted_by: Some(node), ..job(id) };
    let id = bed.take_in(keyed(1, NODE));
    assert_eq!(bed.enqueue(keyed(2, OTHER)), Ok(Admitted::Joined(id)));
    bed.ask(|store| store.unwant(id, NODE));
    assert_eq!(bed.outcome(id), None);
    bed.ask(|store| store.leave(OTHER));
    assert_eq!(bed.outcome(id), Some(Outcome::Cancelled), "leaving is letting go");
}

/// C49: interest of a node that is not there could never end.
pub fn a_wanted_job_of_an_unknown_node_is_cancelled_at_once(bed: &Bed) {
    let id = bed.take_in(NewJob { wanted_by: Some(OTHER), ..job(1) });
    assert_eq!(bed.outcome(id), Some(Outcome::Cancelled));
    assert!(bed.claim(1).is_empty());
}
