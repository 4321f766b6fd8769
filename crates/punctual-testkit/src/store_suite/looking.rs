//! Looking at jobs, and forgetting them.

use std::time::Duration;

use punctual::{Limits, Rate, Stage};
use punctual_durable::{Gate, JobId, Moment, NewJob, OnConflict, Outcome, Query, Refused, Retention, Unique, Verdict};

use crate::{Bed, NODE, SECOND, job, unique};

fn ids(bed: &Bed, query: &Query) -> Vec<u128> {
    bed.all(query).iter().map(|record| record.job.id.to_u128()).collect()
}

/// Live and ended, by id, in pages.
pub fn a_query_goes_through_all_jobs_in_pages(bed: &Bed) {
    for id in [5, 3, 9, 1, 7] {
        bed.take_in(job(id));
    }
    bed.cancel(job(5).id);
    let page = bed.ask(|store| store.query(Query { max: 2, ..Query::default() }));
    assert_eq!(page.jobs.iter().map(|record| record.job.id.to_u128()).collect::<Vec<_>>(), [1, 3]);
    assert_eq!(page.next, Some(job(3).id));
    assert_eq!(ids(bed, &Query { max: 2, ..Query::default() }), [1, 3, 5, 7, 9]);
    assert_eq!(ids(bed, &Query::default()), [1, 3, 5, 7, 9]);
    let rest = bed.ask(|store| store.query(Query { after: Some(job(8).id), ..Query::default() }));
    assert_eq!((rest.jobs.len(), rest.next), (1, None));
    assert_eq!(rest.jobs[0], bed.get(job(9).id));
}

/// Each filter, and several at once.
pub fn a_query_finds_by_every_mark(bed: &Bed) {
    bed.take_in(NewJob { tags: vec!["red".into(), "blue".into()], ..job(1) });
    bed.take_in(NewJob { tenant: "other".into(), tags: vec!["red".into()], ..job(2) });
    bed.take_in(NewJob { kind: "strange".into(), schedule: Some("nightly".into()), ..job(3) });
    bed.take_in(NewJob { due: Moment::After(SECOND), ..job(4) });
    bed.take_in(job(5));
    bed.cancel(job(5).id);
    let text = |text: &str| Some(text.to_owned());
    let of = |query: Query| ids(bed, &query);
    assert_eq!(of(Query { tenant: text("acme"), ..Query::default() }), [1, 3, 4, 5]);
    assert_eq!(of(Query { tenant: text("nobody"), ..Query::default() }), [0; 0]);
    assert_eq!(of(Query { kind: text("strange"), ..Query::default() }), [3]);
    assert_eq!(of(Query { tag: text("red"), ..Query::default() }), [1, 2]);
    assert_eq!(of(Query { tag: text("re"), ..Query::default() }), [0; 0]);
    assert_eq!(of(Query { schedule: text("nightly"), ..Query::default() }), [3]);
    assert_eq!(of(Query { stage: Some(Stage::Ready), ..Query::default() }), [1, 2, 3]);
    assert_eq!(of(Query { stage: Some(Stage::Stopped), ..Query::default() }), [5]);
    assert_eq!(of(Query { outcome: Some(Outcome::Cancelled), ..Query::default() }), [5]);
    let both = Query { tag: text("red"), tenant: text("acme"), stage: Some(Stage::Ready), max: 1, ..Query::default() };
    assert_eq!(of(both), [1]);
}

/// C43: a query sees the world as of now, tended or not.
pub fn a_query_sees_what_time_brought(bed: &Bed) {
    bed.take_in(NewJob { due: Moment::After(SECOND), ..job(1) });
    bed.take_in(NewJob { start_within: Some(SECOND), ..job(2) });
    let running = NewJob { deadline: Some(Moment::After(SECOND)), tenant: "other".into(), kind: "o".into(), ..job(3) };
    bed.take_in(running);
    assert_eq!(bed.claim_as(NODE, 1, &[("o", 1)]).jobs.len(), 1);
    bed.advance(SECOND);
    let stage = |stage| Query { stage: Some(stage), ..Query::default() };
    assert_eq!(ids(bed, &stage(Stage::Ready)), [1]);
    assert_eq!(ids(bed, &stage(Stage::Stopped)), [2]);
    assert_eq!(ids(bed, &Query { outcome: Some(Outcome::Expired), ..Query::default() }), [2, 3]);
    bed.assert_totals_are_true();
    assert_eq!(bed.totals().stopping, 1);
    bed.ask(|store| store.tend());
    assert_eq!(ids(bed, &stage(Stage::Ready)), [1]);
    bed.assert_totals_are_true();
}

/// The first gate that is closed is named.
pub fn explain_names_the_first_gate(bed: &Bed) {
    bed.limit(Limits::new().running_max(1).rate(Rate::per_second(1)));
    let now = bed.now();
    let later = bed.take_in(NewJob { due: Moment::After(SECOND), ..job(1) });
    assert_eq!(bed.gate(later), Gate::NotDue(now.after(SECOND)));
    let first = bed.take_in(job(2));
    assert_eq!(bed.gate(first), Gate::Turn);
    let running = bed.claim(1).remove(0);
    assert_eq!(bed.gate(first), Gate::Running(NODE));
    let next = bed.take_in(job(3));
    assert_eq!(bed.gate(next), Gate::TenantLimit { running: 1, max: 1 }, "before the rate");
    bed.cancel(first);
    assert_eq!(bed.gate(first), Gate::Stopping(Outcome::Cancelled));
    bed.finish(&running, Verdict::Stopped);
    assert_eq!(bed.gate(first), Gate::Ended(Outcome::Cancelled));
    assert_eq!(bed.gate(next), Gate::Rate(now.after(SECOND)));
    bed.ask(|store| store.leave(NODE));
    assert_eq!(bed.gate(next), Gate::NoWorker, "before the rate");
    let explanation = bed.ask(|store| store.explain(next)).unwrap();
    assert_eq!(explanation.since, bed.get(next).since);
    assert_eq!(bed.ask(|store| store.explain(JobId::from_u128(99))), None);
}

/// C46: each outcome has its own retention, counted from the end.
pub fn pruning_forgets_by_outcome_and_age(bed: &Bed) {
    let retention = Retention { succeeded: 5 * SECOND, failed: 9 * SECOND, ..Retention::default() };
    for (id, verdict) in [(1, Verdict::Succeeded("1".into())), (2, Verdict::Failed("no".into()))] {
        let running = bed.running(job(id));
        bed.finish(&running, verdict);
    }
    bed.take_in(job(3));
    bed.advance(5 * SECOND - SECOND / 1_000);
    let prune = |max| bed.ask(|store| store.prune(retention, max));
    assert_eq!(prune(9), 0);
    bed.advance(SECOND / 1_000);
    assert_eq!(prune(9), 1);
    assert!(bed.find(job(1).id).is_none());
    bed.advance(60 * SECOND);
    assert_eq!(prune(0), 0);
    assert_eq!(prune(9), 1);
    assert_eq!(ids(bed, &Query::default()), [3], "what is live stays");
    assert_eq!(bed.totals().ended.values().sum::<u64>(), 2, "and the numbers do not fall");
}

/// At most so many at once, the oldest first; expired ones too, tended or not.
pub fn pruning_forgets_the_oldest_first(bed: &Bed) {
    for id in 1..=3 {
        let within = SECOND * (4 - u32::try_from(id).unwrap());
        bed.take_in(NewJob { start_within: Some(within), ..job(id) });
    }
    bed.advance(9 * SECOND);
    let all = Retention { expired: Duration::ZERO, ..Retention::default() };
    assert_eq!(bed.ask(|store| store.prune(all, 2)), 2);
    assert_eq!(ids(bed, &Query::default()), [1]);
}

/// C47: a key that is taken for a period is not freed by the broom.
pub fn pruning_does_not_free_a_key_that_its_period_holds(bed: &Bed) {
    let unique = Unique { key: "u".into(), on_conflict: OnConflict::Reject, period: Some(60 * SECOND) };
    let keyed = |id| NewJob { unique: Some(unique.clone()), ..job(id) };
    let id = bed.take_in(keyed(1));
    bed.cancel(id);
    let all = Retention { cancelled: Duration::ZERO, ..Retention::default() };
    assert_eq!(bed.ask(|store| store.prune(all, 9)), 0);
    assert_eq!(bed.enqueue(keyed(2)), Err(Refused::Conflict(id)));
    bed.advance(60 * SECOND);
    assert_eq!(bed.ask(|store| store.prune(all, 9)), 1);
    bed.take_in(keyed(2));
}

/// C46: dead letters are purged by name; what lives is not.
pub fn purging_forgets_what_has_ended(bed: &Bed) {
    bed.take_in_all((1..=3).map(|id| NewJob { unique: unique(&id.to_string(), OnConflict::Reject), ..job(id) }));
    bed.cancel(job(1).id);
    bed.cancel(job(2).id);
    let purged = bed.ask(|store| store.purge(vec![job(1).id, job(3).id, job(9).id, job(1).id]));
    assert_eq!(purged, 1);
    assert_eq!(ids(bed, &Query::default()), [2, 3]);
    bed.take_in(NewJob { payload: "again".into(), ..job(1) });
    assert_eq!(bed.get(job(1).id).job.payload, "again", "a forgotten id is new");
}
