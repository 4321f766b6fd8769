//! Stored series.

use punctual::{Limits, Missed, Reason};
use punctual_durable::{
    Fire, Fired, Moment, NewJob, OnConflict, Refused, Rule, Schedule, TenantPolicy, Timestamp, Verdict,
};

use crate::{Bed, SECOND, block_on, job, unique};

fn schedule(name: &str, next: Timestamp) -> Schedule {
    Schedule {
        name: name.to_owned(),
        rule: Rule::Every { period: 60 * SECOND, anchor: Timestamp::from_micros(0) },
        missed: Missed::Once,
        template: NewJob { schedule: Some(name.to_owned()), tags: vec!["a".into()], ..job(0) },
        next: Some(next),
        paused: false,
        last: None,
        fired: 0,
        missed_count: 0,
    }
}

/// Puts a schedule whose tick has come.
fn due(bed: &Bed) -> Timestamp {
    let tick = bed.now();
    bed.ask(|store| store.put_schedule(schedule("s", tick)));
    tick
}

fn fire(bed: &Bed, tick: Timestamp, next: Timestamp, job: Option<NewJob>) -> Fired {
    let fire = Fire { schedule: "s".into(), tick, next: Some(next), missed: 0, job };
    bed.ask(|store| store.fire(fire))
}

fn the(bed: &Bed) -> Schedule {
    bed.ask(|store| store.schedules(None, 9)).remove(0)
}

/// C48
pub fn a_schedule_is_kept(bed: &Bed) {
    let cron = Schedule {
        rule: Rule::Cron { expression: "0 9 * * MON".into(), zone: "Europe/Paris".into() },
        missed: Missed::All { max: 7 },
        paused: true,
        ..schedule("b", bed.now().after(SECOND))
    };
    let skip = Schedule { missed: Missed::Skip, next: None, ..schedule("a", bed.now()) };
    bed.ask(|store| store.put_schedule(cron.clone()));
    bed.ask(|store| store.put_schedule(skip.clone()));
    assert_eq!(bed.ask(|store| store.schedules(None, 9)), [skip.clone(), cron.clone()]);
    assert_eq!(bed.ask(|store| store.schedules(None, 1)), [skip]);
    assert_eq!(bed.ask(|store| store.schedules(Some("a".into()), 9)), [cron]);
    assert!(bed.ask(|store| store.remove_schedule("a".into())));
    assert!(!bed.ask(|store| store.remove_schedule("a".into())));
    assert_eq!(bed.ask(|store| store.schedules(None, 9)).len(), 1);
}

/// C36: so is a schedule whose jobs no store would take.
pub fn a_schedule_with_too_long_a_name_is_refused(bed: &Bed) {
    let long = "n".repeat(NewJob::WORD_MAX + 1);
    let tagged = NewJob { tags: vec![long.clone()], ..job(0) };
    for put in [schedule(&long, bed.now()), Schedule { template: tagged, ..schedule("s", bed.now()) }] {
        let error = block_on(bed.store().put_schedule(put)).unwrap_err();
        assert!(!error.is_transient() && error.to_string().ends_with("has 513 bytes (at most 512)"), "{error}");
    }
    assert!(bed.ask(|store| store.schedules(None, 9)).is_empty());
}

/// C48: one job per tick, whoever fires.
pub fn a_tick_fires_once(bed: &Bed) {
    let tick = due(bed);
    let next = tick.after(60 * SECOND);
    assert_eq!(fire(bed, tick, next, Some(job(1))), Fired::Enqueued(job(1).id));
    assert_eq!(fire(bed, tick, next, Some(job(2))), Fired::Lost);
    assert!(bed.find(job(2).id).is_none());
    let schedule = the(bed);
    assert_eq!((schedule.next, schedule.last), (Some(next), Some(job(1).id)));
    assert_eq!((schedule.fired, schedule.missed_count), (1, 0));
    assert_eq!(bed.claim_ids(9), [1]);
}

/// C48: not if it is gone or paused.
pub fn a_paused_or_removed_schedule_does_not_fire(bed: &Bed) {
    let tick = due(bed);
    let next = tick.after(60 * SECOND);
    assert!(bed.ask(|store| store.pause_schedule("s".into(), true)));
    assert_eq!(fire(bed, tick, next, Some(job(1))), Fired::Lost);
    assert!(bed.ask(|store| store.tend()).schedules.is_empty());
    assert_eq!(the(bed).next, Some(tick));
    assert!(bed.ask(|store| store.pause_schedule("s".into(), false)));
    assert!(!bed.ask(|store| store.pause_schedule("stranger".into(), false)));
    assert_eq!(fire(bed, tick, next, Some(job(1))), Fired::Enqueued(job(1).id));
    assert!(bed.ask(|store| store.remove_schedule("s".into())));
    assert_eq!(fire(bed, next, next.after(SECOND), Some(job(2))), Fired::Lost);
    assert_eq!(bed.claim_ids(9), [1], "the jobs it made go on");
}

/// C48: a schedule rests while the job of its last tick is live, and what it misses then is up to its policy.
pub fn a_schedule_rests_while_its_last_job_is_live(bed: &Bed) {
    let tick = due(bed);
    let (next, later) = (tick.after(SECOND), tick.after(2 * SECOND));
    assert_eq!(fire(bed, tick, next, Some(job(1))), Fired::Enqueued(job(1).id));
    bed.advance(SECOND);
    let rests = |bed: &Bed, why: &str| {
        assert!(bed.ask(|store| store.tend()).schedules.is_empty(), "{why}");
        assert_eq!(fire(bed, next, later, Some(job(2))), Fired::Overlapped(job(1).id), "{why}");
        assert_eq!((the(bed).next, the(bed).missed_count), (Some(next), 0), "{why}");
    };
    rests(bed, "waiting");
    let running = bed.claim(1).remove(0);
    rests(bed, "running");
    bed.cancel(running.job.id);
    rests(bed, "stopping");
    bed.finish(&running, Verdict::Stopped);
    assert_eq!(bed.ask(|store| store.tend()).schedules.len(), 1);
    assert_eq!(fire(bed, next, later, Some(job(2))), Fired::Enqueued(job(2).id));
    assert_eq!((the(bed).fired, the(bed).next), (2, Some(later)));
}

/// C17: what was missed is counted, and so is a tick without a job.
pub fn missed_ticks_are_counted(bed: &Bed) {
    let tick = due(bed);
    let next = tick.after(60 * SECOND);
    let skipped = Fire { schedule: "s".into(), tick, next: Some(next), missed: 5, job: None };
    assert_eq!(bed.ask(|store| store.fire(skipped)), Fired::Missed);
    let schedule = the(bed);
    assert_eq!((schedule.fired, schedule.missed_count, schedule.next), (0, 6, Some(next)));
    let made_up = NewJob { missed: 5, ..job(1) };
    let last = Fire { schedule: "s".into(), tick: next, next: None, missed: 2, job: Some(made_up) };
    assert_eq!(bed.ask(|store| store.fire(last)), Fired::Enqueued(job(1).id));
    let schedule = the(bed);
    assert_eq!((schedule.fired, schedule.missed_count, schedule.next), (1, 8, None));
    assert_eq!(bed.get(job(1).id).job.missed, 5);
}

/// C48: a full tenant misses the tick; the series goes on.
pub fn a_refused_tick_is_missed_and_the_series_goes_on(bed: &Bed) {
    let tick = due(bed);
    let next = tick.after(60 * SECOND);
    bed.set_policy("acme", TenantPolicy { closed: true, ..TenantPolicy::default() });
    let refused = Refused::Rejected { reason: Reason::Closed, retry_after: None };
    assert_eq!(fire(bed, tick, next, Some(job(1))), Fired::Refused(refused));
    let schedule = the(bed);
    assert_eq!((schedule.next, schedule.last, schedule.missed_count), (Some(next), None, 1));
    bed.limit(Limits::new());
    assert_eq!(fire(bed, next, next.after(SECOND), Some(job(2))), Fired::Enqueued(job(2).id));
}

/// C47, C48: a job that joins another stands for its tick.
pub fn a_tick_that_joins_has_the_others_job(bed: &Bed) {
    let tick = due(bed);
    bed.take_in(NewJob { unique: unique("u", OnConflict::Join), ..job(1) });
    let joining = NewJob { unique: unique("u", OnConflict::Join), ..job(2) };
    assert_eq!(fire(bed, tick, tick.after(SECOND), Some(joining)), Fired::Enqueued(job(1).id));
    assert_eq!((the(bed).last, the(bed).fired), (Some(job(1).id), 1));
}

/// C48: a restart that states the same rule again moves nothing.
pub fn the_same_rule_keeps_its_place(bed: &Bed) {
    let tick = due(bed);
    let next = tick.after(60 * SECOND);
    assert_eq!(fire(bed, tick, next, Some(job(1))), Fired::Enqueued(job(1).id));
    bed.ask(|store| store.pause_schedule("s".into(), true));
    let mut again = schedule("s", tick);
    again.template.payload = "new".into();
    bed.ask(|store| store.put_schedule(again.clone()));
    let kept = Schedule { next: Some(next), last: Some(job(1).id), fired: 1, paused: true, ..again.clone() };
    assert_eq!(the(bed), kept);
    again.rule = Rule::Every { period: 30 * SECOND, anchor: Timestamp::from_micros(0) };
    again.next = Some(tick.after(30 * SECOND));
    bed.ask(|store| store.put_schedule(again.clone()));
    assert_eq!(the(bed), Schedule { last: Some(job(1).id), fired: 1, paused: true, ..again });
}

/// C42: a tick that has come is named until it is fired; the next one is an instant to come back at.
pub fn tend_names_the_ticks_that_have_come(bed: &Bed) {
    let tick = bed.now().after(2 * SECOND);
    bed.ask(|store| store.put_schedule(schedule("s", tick)));
    let tended = bed.ask(|store| store.tend());
    assert!(tended.schedules.is_empty());
    assert_eq!(tended.next, Some(tick));
    bed.advance(2 * SECOND);
    for _ in 0..2 {
        let named: Vec<String> = bed.ask(|store| store.tend()).schedules.into_iter().map(|it| it.name).collect();
        assert_eq!(named, ["s"]);
    }
    let next = tick.after(3 * SECOND);
    assert_eq!(fire(bed, tick, next, Some(job(1))), Fired::Enqueued(job(1).id));
    let tended = bed.ask(|store| store.tend());
    assert!(tended.schedules.is_empty());
    assert_eq!(tended.next, Some(next));
}

/// An erased tenant takes its schedules along; others keep theirs.
pub fn erasing_a_tenant_removes_its_schedules(bed: &Bed) {
    due(bed);
    let mut other = schedule("t", bed.now());
    other.template.tenant = "other".into();
    bed.ask(|store| store.put_schedule(other));
    bed.ask(|store| store.erase("acme".into()));
    let left: Vec<String> = bed.ask(|store| store.schedules(None, 9)).into_iter().map(|it| it.name).collect();
    assert_eq!(left, ["t"]);
}

/// The job of a tick may be due later than the tick is fired.
pub fn a_tick_may_be_fired_ahead(bed: &Bed) {
    let tick = due(bed);
    let later = NewJob { due: Moment::After(SECOND), ..job(1) };
    assert_eq!(fire(bed, tick, tick.after(60 * SECOND), Some(later)), Fired::Enqueued(job(1).id));
    assert!(bed.claim(9).is_empty());
    bed.advance(SECOND);
    assert_eq!(bed.claim_ids(9), [1]);
}
