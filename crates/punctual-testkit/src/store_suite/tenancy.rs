//! Policies, numbers, and getting rid of a tenant.

use punctual::{Limits, Rate, Stage};
use punctual_durable::{
    Erased, Moment, NewJob, OnConflict, Outcome, Query, State, TenantChange, TenantPolicy, TenantRecord, Totals,
    Verdict,
};

use crate::{Bed, SECOND, job, unique};

/// C34
pub fn a_policy_is_kept(bed: &Bed) {
    let limits =
        Limits::new().running_max(3).backlog_max(7).scheduled_max(9).weight(4).rate(Rate::per_minute(90).burst(5));
    let policy = TenantPolicy { limits, paused: true, closed: true };
    bed.set_policy("acme", policy);
    let record = bed.ask(|store| store.tenant("acme".into()));
    assert_eq!((record.name.as_str(), record.policy), ("acme", policy));
    bed.set_policy("acme", TenantPolicy::default());
    assert_eq!(bed.ask(|store| store.tenant("acme".into())).policy, TenantPolicy::default());
    let stranger = bed.ask(|store| store.tenant("stranger".into()));
    assert_eq!(stranger, TenantRecord { name: "stranger".into(), ..TenantRecord::default() });
    assert_eq!(bed.ask(|store| store.tenants(None, 9)).len(), 1, "asking makes no tenant");
}

/// C34: what a change leaves open stays.
pub fn a_change_of_one_thing_leaves_the_others(bed: &Bed) {
    let limits = Limits::new().running_max(3);
    let changes = [
        TenantChange { limits: Some(limits), ..TenantChange::default() },
        TenantChange { paused: Some(true), ..TenantChange::default() },
        TenantChange { closed: Some(true), ..TenantChange::default() },
    ];
    for change in changes {
        bed.ask(|store| store.set_tenant("acme".into(), change));
    }
    let policy = bed.ask(|store| store.tenant("acme".into())).policy;
    assert_eq!(policy, TenantPolicy { limits, paused: true, closed: true });
}

/// C58: counted by tenant, and together.
pub fn numbers_are_kept_by_tenant(bed: &Bed) {
    bed.take_in(job(1));
    bed.take_in(NewJob { due: Moment::After(SECOND), ..job(2) });
    bed.take_in(NewJob { tenant: "other".into(), ..job(3) });
    bed.cancel(job(1).id);
    assert_eq!(bed.claim_ids(9), [3]);
    let ended = [(Outcome::Cancelled, 1)].into();
    assert_eq!(bed.totals_of("acme"), Totals { scheduled: 1, ended, ..Totals::default() });
    assert_eq!(bed.totals_of("other"), Totals { running: 1, ..Totals::default() });
    bed.assert_totals_are_true();
}

/// By name, in pages.
pub fn tenants_with_a_policy_or_jobs_are_listed(bed: &Bed) {
    bed.limit_of("b", Limits::new());
    for (id, tenant) in [(1, "d"), (2, "a"), (3, "")] {
        bed.take_in(NewJob { tenant: tenant.into(), ..job(id) });
    }
    let names = |after: Option<&str>, max| -> Vec<String> {
        let after = after.map(str::to_owned);
        bed.ask(|store| store.tenants(after, max)).into_iter().map(|tenant| tenant.name).collect()
    };
    assert_eq!(names(None, 9), ["", "a", "b", "d"]);
    assert_eq!(names(None, 2), ["", "a"]);
    assert_eq!(names(Some("a"), 9), ["b", "d"]);
    assert_eq!(names(Some("c"), 9), ["d"]);
}

/// C34: `cancel_all`
pub fn cancelling_a_tenant_cancels_all_of_it(bed: &Bed) {
    let running = bed.running(job(1));
    bed.take_in(job(2));
    bed.take_in(NewJob { due: Moment::After(SECOND), ..job(3) });
    bed.take_in(NewJob { tenant: "other".into(), ..job(4) });
    let cancel = || bed.ask(|store| store.cancel_tenant("acme".into()));
    assert_eq!(cancel(), 3);
    assert_eq!(bed.get(running.job.id).state, State::new(Stage::Running, Some(Outcome::Cancelled)));
    assert_eq!(bed.get(job(3).id).last_error.as_deref(), Some("cancelled with everything of its tenant"));
    assert_eq!(cancel(), 0, "once is enough");
    assert_eq!(bed.get(job(4).id).state, State::READY);
    bed.take_in(job(5));
    bed.assert_totals_are_true();
}

/// What runs goes when it stops; the rest at once, with the numbers.
pub fn an_erased_tenant_is_forgotten(bed: &Bed) {
    bed.limit(Limits::new().running_max(1));
    let done = bed.running(job(1));
    bed.finish(&done, Verdict::Succeeded("1".into()));
    let running = bed.running(NewJob { unique: unique("r", OnConflict::Reject), ..job(2) });
    bed.take_in(NewJob { unique: unique("w", OnConflict::Reject), ..job(3) });
    bed.take_in(NewJob { tenant: "other".into(), ..job(4) });
    assert_eq!(bed.ask(|store| store.erase("acme".into())), Erased { removed: 2, stopping: 1 });
    let left = bed.all(&Query { tenant: Some("acme".into()), ..Query::default() });
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].state, State::new(Stage::Running, Some(Outcome::Cancelled)));
    let tenant = bed.ask(|store| store.tenant("acme".into()));
    assert_eq!((tenant.policy, tenant.totals.running), (TenantPolicy::default(), 1));
    bed.finish(&running, Verdict::Stopped);
    assert!(bed.find(running.job.id).is_none());
    assert_eq!(bed.totals_of("acme"), Totals::default(), "its end is counted nowhere");
    assert_eq!(bed.totals(), Totals { ready: 1, ..Totals::default() });
    let names: Vec<_> = bed.ask(|store| store.tenants(None, 9)).into_iter().map(|tenant| tenant.name).collect();
    assert_eq!(names, ["other"]);
    bed.take_in(NewJob { unique: unique("w", OnConflict::Reject), ..job(3) });
}

/// Erasing again while something still stops, or nothing at all.
pub fn erasing_twice_is_harmless(bed: &Bed) {
    let running = bed.running(job(1));
    assert_eq!(bed.ask(|store| store.erase("acme".into())), Erased { removed: 0, stopping: 1 });
    assert_eq!(bed.ask(|store| store.erase("acme".into())), Erased { removed: 0, stopping: 1 });
    assert_eq!(bed.ask(|store| store.erase("stranger".into())), Erased { removed: 0, stopping: 0 });
    bed.take_in(job(2));
    bed.finish(&running, Verdict::Stopped);
    assert!(bed.find(job(1).id).is_none());
    assert_eq!(bed.get(job(2).id).state, State::READY, "what came after is a new life");
    bed.assert_totals_are_true();
}
