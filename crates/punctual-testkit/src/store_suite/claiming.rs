//! Giving jobs out: order, kinds, turns, limits, rates.

use std::collections::BTreeMap;
use std::sync::Arc;

use punctual::{Limits, Rate};
use punctual_durable::{Beat, Claim, Edit, Gate, JobId, Moment, NewJob, OnConflict, State, TenantPolicy, Verdict};

use crate::{Bed, NODE, OTHER, SECOND, beat, job, unique};

/// C38: a claim is one more fence, and says who runs what since when.
pub fn a_claim_numbers_the_run(bed: &Bed) {
    let record = bed.running(job(1));
    assert_eq!((record.state, record.attempt, record.fence), (State::RUNNING, 1, 1));
    assert_eq!((record.node, record.started_at, record.since), (Some(NODE), Some(bed.now()), bed.now()));
    assert_eq!(bed.get(record.job.id), record);
    assert!(bed.claim(9).is_empty(), "nobody else gets it");
}

/// C39: only a node that is there can hold a lease.
pub fn an_unknown_node_gets_nothing(bed: &Bed) {
    bed.take_in(job(1));
    assert!(bed.claim_as(OTHER, 9, &[("k", 9)]).jobs.is_empty());
    bed.join(OTHER, &["k"]);
    assert_eq!(bed.claim_as(OTHER, 9, &[("k", 9)]).jobs.len(), 1);
}

/// C38, C40: a node that did not hear the answer to a claim begins another era, so that it gives nothing if it is done
/// only then; and nothing that is heard late brings the old one back.
pub fn a_claim_of_an_era_that_is_over_gets_nothing(bed: &Bed) {
    bed.take_in_all([job(1), job(2)]);
    let claim = |era| {
        let kinds = Arc::from([("k".to_owned(), 1)]);
        bed.ask(|store| store.claim(Claim { node: NODE, era, max: 1, kinds, ahead: 0, spare: 0 })).jobs.len()
    };
    assert_eq!(claim(0), 1);
    let pulse = bed.ask(|store| store.heartbeat(Beat { era: 1, ..beat(NODE, &["k"]) }));
    assert_eq!(pulse.running.len(), 1, "what was done before is the node's");
    assert_eq!(claim(0), 0);
    bed.ask(|store| store.heartbeat(beat(NODE, &["k"])));
    assert_eq!(claim(0), 0);
    bed.ask(|store| store.join(beat(NODE, &["k"])));
    assert_eq!((claim(0), claim(1)), (0, 1));
    assert_eq!(bed.ask(|store| store.nodes()).remove(0).beat.era, 1);
}

/// C42: in the order of their due instants, and of their arrival between equals.
pub fn jobs_of_a_tenant_come_by_due_and_arrival(bed: &Bed) {
    let due = |id, after: u32| NewJob { due: Moment::After(SECOND * after), ..job(id) };
    bed.take_in_all([due(9, 2), due(3, 1), due(7, 1), due(1, 2), job(8)]);
    assert_eq!(bed.claim_ids(9), [8]);
    bed.advance(2 * SECOND);
    assert_eq!(bed.claim_ids(9), [3, 7, 9, 1]);
}

/// A step of priority is worth 30 seconds of waiting, so nothing starves.
pub fn a_priority_step_counts_like_thirty_seconds(bed: &Bed) {
    bed.take_in(job(1));
    bed.advance(29 * SECOND);
    bed.take_in(NewJob { priority: -1, ..job(2) });
    assert_eq!(bed.claim_ids(1), [2]);
    bed.advance(2 * SECOND);
    bed.take_in(NewJob { priority: -1, ..job(3) });
    bed.take_in(NewJob { priority: 1, ..job(4) });
    bed.take_in(job(5));
    assert_eq!(bed.claim_ids(9), [1, 3, 5, 4]);
}

/// C43: never early.
pub fn nothing_is_given_out_before_it_is_due(bed: &Bed) {
    bed.take_in(NewJob { due: Moment::After(SECOND), ..job(1) });
    bed.advance(SECOND - SECOND / 1_000_000);
    assert!(bed.claim(9).is_empty());
    bed.advance(SECOND / 1_000_000);
    assert_eq!(bed.claim_ids(9), [1], "and nobody has to tend the store for it");
}

/// Between equals the tenant goes first that was heard of first, also of one batch, whether its jobs were due or had a
/// key.
pub fn tenants_of_a_batch_come_in_the_order_of_the_batch(bed: &Bed) {
    let of = |id, tenant: &str| NewJob { tenant: tenant.into(), ..job(id) };
    let later = |id, tenant| NewJob { due: Moment::After(SECOND), ..of(id, tenant) };
    let keyed = |id, tenant| NewJob { unique: unique("key", OnConflict::Reject), ..of(id, tenant) };
    for batch in [
        vec![of(1, "b"), of(2, "a"), of(3, "c")],
        vec![later(4, "e"), later(5, "d"), later(6, "f")],
        vec![keyed(7, "h"), keyed(8, "g"), keyed(9, "i")],
    ] {
        let ids: Vec<u128> = batch.iter().map(|job| job.id.to_u128()).collect();
        assert!(bed.ask(|store| store.enqueue(batch)).iter().all(Result::is_ok));
        bed.advance(SECOND);
        assert_eq!(bed.claim_ids(9), ids);
    }
}

/// C52: a kind that nobody asks for stays where it is and holds nobody back.
pub fn other_kinds_stay_where_they_are(bed: &Bed) {
    let strange = bed.take_in(NewJob { kind: "strange".into(), ..job(1) });
    bed.take_in(job(2));
    assert_eq!(bed.claim_ids(9), [2]);
    assert_eq!(bed.get(strange).state, State::READY);
    assert_eq!(bed.gate(strange), Gate::NoWorker);
    assert!(bed.claim_as(NODE, 9, &[]).jobs.is_empty());
    assert_eq!(bed.claim_as(NODE, 9, &[("strange", 1)]).jobs.len(), 1);
}

/// No kind gets more than its node has room for, and `more` says that a batch was cut.
pub fn a_claim_keeps_to_the_room_of_each_kind(bed: &Bed) {
    for id in 1..=6 {
        let kind = if id % 2 == 0 { "even" } else { "odd" };
        bed.take_in(NewJob { kind: kind.into(), ..job(id) });
    }
    let ids = |claimed: &punctual_durable::Claimed| -> Vec<u128> {
        claimed.jobs.iter().map(|record| record.job.id.to_u128()).collect()
    };
    let first = bed.claim_as(NODE, 9, &[("even", 1), ("odd", 2)]);
    assert_eq!(ids(&first), [1, 2, 3]);
    let cut = bed.claim_as(NODE, 1, &[("even", 9), ("odd", 0)]);
    assert_eq!((ids(&cut), cut.more), (vec![4], true));
    assert!(bed.claim_as(NODE, 0, &[("even", 9)]).jobs.is_empty());
}

/// C40: no claim takes a tenant above its limit.
pub fn a_tenant_never_runs_more_than_it_may(bed: &Bed) {
    bed.join(OTHER, &["k"]);
    bed.limit(Limits::new().running_max(2));
    bed.take_in_all((1..=5).map(job));
    let mut running = bed.claim(1);
    running.extend(bed.claim_as(OTHER, 9, &[("k", 9)]).jobs);
    assert_eq!(running.len(), 2);
    assert_eq!(bed.gate(job(3).id), Gate::TenantLimit { running: 2, max: 2 });
    bed.cancel(running[0].job.id);
    assert!(bed.claim(9).is_empty(), "a job that is stopping keeps its permit");
    bed.finish(&running[0], Verdict::Succeeded("late".into()));
    assert_eq!(bed.claim(9).len(), 1);
    bed.finish(&running[1], Verdict::Retry { at: Moment::After(SECOND), error: "no".into() });
    assert_eq!(bed.claim(9).len(), 1);
}

/// C34: a lower cap kills nothing and drains down; a higher one acts at the next claim.
pub fn limits_change_while_jobs_run(bed: &Bed) {
    bed.take_in_all((1..=6).map(job));
    let running = bed.claim(3);
    bed.limit(Limits::new().running_max(2).backlog_max(0));
    assert_eq!(bed.totals().ready, 3, "a smaller bound evicts nothing");
    bed.finish(&running[0], Verdict::Succeeded("1".into()));
    assert!(bed.claim(9).is_empty());
    bed.finish(&running[1], Verdict::Succeeded("1".into()));
    assert_eq!(bed.claim(9).len(), 1);
    bed.limit(Limits::new().running_max(0));
    bed.finish(&running[2], Verdict::Succeeded("1".into()));
    assert!(bed.claim(9).is_empty());
    bed.limit(Limits::new());
    assert_eq!(bed.claim(9).len(), 2);
}

/// C32: a tenant that cannot run holds nobody back.
pub fn a_paused_tenant_starts_nothing_and_holds_nobody_back(bed: &Bed) {
    bed.set_policy("acme", TenantPolicy { paused: true, ..TenantPolicy::default() });
    bed.take_in(job(1));
    bed.take_in(NewJob { tenant: "other".into(), ..job(2) });
    assert_eq!(bed.claim_ids(9), [2]);
    assert_eq!(bed.gate(job(1).id), Gate::TenantPaused);
    bed.set_policy("acme", TenantPolicy { closed: true, ..TenantPolicy::default() });
    assert_eq!(bed.claim_ids(9), [1], "a closed tenant still runs what it has");
}

/// C33: spent at the start; and the claim says when to come back.
pub fn a_rate_holds_over_time(bed: &Bed) {
    bed.limit(Limits::new().rate(Rate::per_second(2).burst(3)));
    bed.take_in_all((1..=8).map(job));
    bed.cancel(job(8).id);
    let claimed = bed.claim_as(NODE, 9, &[("k", 9)]);
    assert_eq!((claimed.jobs.len(), claimed.again_at), (3, Some(bed.now().after(SECOND / 2))));
    assert!(!claimed.more, "waiting is all there is to do");
    assert_eq!(bed.gate(job(4).id), Gate::Rate(bed.now().after(SECOND / 2)));
    bed.advance(SECOND / 2 - SECOND / 1_000_000);
    assert!(bed.claim(9).is_empty());
    bed.advance(SECOND / 1_000_000);
    assert_eq!(bed.claim_ids(9), [4]);
    bed.advance(SECOND);
    assert_eq!(bed.claim_ids(9), [5, 6]);
    bed.limit(Limits::new());
    let claimed = bed.claim_as(NODE, 9, &[("k", 9)]);
    assert_eq!((claimed.jobs.len(), claimed.again_at), (1, None));
}

/// C33: `again_at` is for those whom only the rate holds back, from the kinds that were asked for.
pub fn only_a_rate_makes_a_claim_come_back(bed: &Bed) {
    bed.limit(Limits::new().rate(Rate::per_second(1)).running_max(1));
    bed.take_in(job(1));
    bed.take_in(job(2));
    let claimed = bed.claim_as(NODE, 9, &[("k", 9)]);
    assert_eq!((claimed.jobs.len(), claimed.again_at), (1, None), "its limit holds it back");
    bed.finish(&claimed.jobs[0], Verdict::Succeeded("1".into()));
    assert_eq!(bed.claim_as(NODE, 9, &[("z", 9)]).again_at, None);
    assert_eq!(bed.claim_as(NODE, 9, &[("k", 9)]).again_at, Some(bed.now().after(SECOND)));
}

/// C31: |S_i/w_i - S_j/w_j| <= (D+1)(c_i/w_i + c_j/w_j), with D jobs in service.
pub fn tenants_share_by_weight_and_cost(bed: &Bed) {
    let tenants = [("a", 1, 1), ("b", 2, 3), ("c", 5, 1), ("d", 10, 7)];
    let mut id = 0;
    for (name, weight, cost) in tenants {
        bed.limit_of(name, Limits::new().weight(weight));
        let batch: Vec<NewJob> = (0..120)
            .map(|_| {
                id += 1;
                NewJob { tenant: name.into(), cost, ..job(id) }
            })
            .collect();
        assert!(bed.ask(|store| store.enqueue(batch)).iter().all(Result::is_ok));
    }
    let mut served: BTreeMap<String, f64> = BTreeMap::new();
    let in_service = 4;
    for _ in 0..35 {
        let claimed = bed.claim(in_service);
        assert_eq!(claimed.len(), in_service, "the workers are kept busy");
        for record in claimed {
            *served.entry(record.job.tenant.clone()).or_default() += f64::from(record.job.cost);
            bed.finish(&record, Verdict::Succeeded("1".into()));
        }
        for (one, one_weight, one_cost) in tenants {
            for (two, two_weight, two_cost) in tenants {
                let share = |name: &str, weight: u32| served.get(name).copied().unwrap_or(0.0) / f64::from(weight);
                let step = f64::from(one_cost) / f64::from(one_weight) + f64::from(two_cost) / f64::from(two_weight);
                let apart = (share(one, one_weight) - share(two, two_weight)).abs();
                assert!(apart <= (in_service + 1) as f64 * step, "{one} and {two} are {apart} apart: {served:?}");
            }
        }
    }
}

/// C31: being idle banks no credit, and a newcomer does not wait for the others to drain.
pub fn an_idle_tenant_banks_no_credit_and_a_newcomer_waits_for_nobody(bed: &Bed) {
    bed.take_in_all((1..=40).map(job));
    assert_eq!(bed.claim(20).len(), 20);
    for id in 101..=120 {
        bed.take_in(NewJob { tenant: "new".into(), ..job(id) });
    }
    let claimed = bed.claim(10);
    let of_new = claimed.iter().filter(|record| record.job.tenant == "new").count();
    assert!((4..=6).contains(&of_new), "{of_new} of 10");
    assert!(claimed[..2].iter().any(|record| record.job.tenant == "new"), "it is among the first two");
}

/// C39: so that a process which dies takes the last chance of one job at most.
pub fn jobs_with_a_last_chance_run_one_at_a_time(bed: &Bed) {
    for id in 1..=3 {
        bed.take_in(NewJob { max_crashes: if id == 3 { 9 } else { 2 }, tenant: format!("t{id}"), ..job(id) });
    }
    assert_eq!(bed.claim(9).len(), 3);
    if !bed.crash() {
        return;
    }
    let mut claimed = bed.claim(9);
    claimed.sort_by_key(|record| record.job.id);
    let ids: Vec<u128> = claimed.iter().map(|record| record.job.id.to_u128()).collect();
    let (last_chance, other) = (ids[0], if ids[0] == 1 { 2 } else { 1 });
    assert_eq!(ids, [last_chance, 3]);
    assert_eq!(bed.gate(job(other).id), Gate::Alone);
    bed.cancel(claimed[0].job.id);
    assert!(bed.claim(9).is_empty(), "the first has not stopped");
    bed.finish(&claimed[0], Verdict::Stopped);
    assert_eq!(bed.claim_ids(9), [other]);
}

/// What an edit moves to the front is given out first.
pub fn a_new_priority_counts_at_the_next_claim(bed: &Bed) {
    bed.take_in(job(1));
    bed.take_in(job(2));
    bed.ask(|store| store.edit(job(2).id, Edit { priority: Some(-1), ..Edit::default() }));
    assert_eq!(bed.claim_ids(1), [2]);
}

/// C31: two tenants want the one worker there is for a slow kind, and a third, on a fast one, has had many turns
/// between theirs. That put both behind the present each time, where the order of their first jobs decided, always for
/// the same one. Now whoever was served longest ago goes first.
pub fn tenants_of_a_slow_kind_take_turns_beside_a_fast_one(bed: &Bed) {
    bed.join(OTHER, &["slow", "fast"]);
    let add = |from: u128, tenant: &str, kind: &str, count: u128| {
        for id in from..from + count {
            bed.take_in(NewJob { tenant: tenant.into(), ..NewJob::new(JobId::from_u128(id), kind) });
        }
    };
    add(100, "busy", "fast", 60);
    add(200, "first", "slow", 20);
    add(300, "second", "slow", 20);
    let mut served = BTreeMap::<String, u32>::new();
    for _ in 0..12 {
        for record in bed.claim_as(OTHER, 5, &[("slow", 1), ("fast", 4)]).jobs {
            *served.entry(record.job.tenant).or_default() += 1;
        }
    }
    assert_eq!(
        served,
        [("busy", 48), ("first", 6), ("second", 6)].map(|(tenant, jobs)| (tenant.to_owned(), jobs)).into()
    );
}
