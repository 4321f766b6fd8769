//! What breaks between a store and its PostgreSQL, and what must hold all the same: a reply that is lost after the
//! commit, connections that are cut and reset, a network that swallows everything. Each test asserts that its fault
//! happened.

#![allow(clippy::unwrap_used, reason = "tests panic when they fail")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use punctual::{Missed, VirtualClock};
use punctual_durable::{
    Admitted, CancelCause, Cancelled, Claim, Ctx, Failure, Finish, Finished, Fire, Fired, Job, JobId, Jobs, Moment,
    NewJob, Outcome, PostgresOptions, PostgresStore, Reply, Rule, Schedule, State, Store, StoreError, Terms, Verdict,
};
use punctual_testkit::postgres::{Schema, proxied};
use punctual_testkit::proxy::Proxy;
use punctual_testkit::{Bed, NODE, SECOND, block_on, job};
use serde::{Deserialize, Serialize};

/// A store that is reached through a proxy, and the same one without.
struct Wire {
    proxy: Proxy,
    /// Through the proxy.
    store: PostgresStore,
    /// Without.
    bed: Bed,
}

impl Wire {
    fn new() -> Self {
        Self::with(PostgresOptions::new())
    }

    fn with(options: PostgresOptions) -> Self {
        let clock = VirtualClock::new();
        let schema = Schema::new();
        let (proxy, url) = proxied(schema.url());
        let options = options.clock(&clock).schema(schema.name());
        let bed = Bed::new(&clock, block_on(options.clone().open(schema.url())).unwrap()).keeping(schema);
        let store = block_on(options.open(&url)).unwrap();
        Self { proxy, store, bed }
    }

    /// Asks through the proxy.
    fn ask<T>(&self, question: impl FnOnce(&PostgresStore) -> Reply<T>) -> Result<T, StoreError> {
        block_on(question(&self.store))
    }

    /// Asks through the proxy, which loses the reply after the commit: an error that leaves it open.
    fn ask_unheard<T: std::fmt::Debug>(&self, function: &str, question: impl FnOnce(&PostgresStore) -> Reply<T>) {
        let lost = self.proxy.counts().replies_lost;
        self.proxy.lose_reply_to(&format!(".{function}("));
        let error = self.ask(question).expect_err("the reply was lost");
        assert!(error.is_transient(), "{error}");
        assert_eq!(self.proxy.counts().replies_lost, lost + 1, "the fault happened");
    }
}

/// C37: an enqueue repeated after a lost reply is the same job.
#[test]
fn an_enqueue_whose_reply_was_lost_can_be_repeated() {
    let wire = Wire::new();
    let jobs = || vec![job(1), NewJob { due: Moment::After(SECOND), ..job(2) }];
    wire.ask_unheard("enqueue_batch", |store| store.enqueue(jobs()));
    let totals = wire.bed.totals();
    assert_eq!((totals.ready, totals.scheduled), (1, 1), "it was done");
    assert_eq!(wire.ask(|store| store.enqueue(jobs())).unwrap(), [Ok(Admitted::New), Ok(Admitted::New)]);
    assert_eq!(wire.bed.totals(), totals);
    wire.bed.assert_totals_are_true();
}

/// C38: so is a finish; the result counts once.
#[test]
fn a_finish_whose_reply_was_lost_can_be_repeated() {
    let wire = Wire::new();
    let run = wire.bed.running(job(1));
    let finish = || {
        let verdict = Verdict::Succeeded("1".into());
        vec![Finish { id: run.job.id, fence: run.fence, verdict }]
    };
    wire.ask_unheard("finish", |store| store.finish(NODE, finish()));
    let ended = wire.bed.get(run.job.id);
    assert_eq!((ended.state.outcome, ended.result.as_deref()), (Some(Outcome::Succeeded), Some("1")), "it was done");
    assert_eq!(wire.ask(|store| store.finish(NODE, finish())).unwrap(), [Finished::Stale]);
    assert_eq!(wire.bed.totals().ended[&Outcome::Succeeded], 1);
    assert_eq!(wire.bed.get(run.job.id), ended);
}

/// C38: a claim cannot be repeated, but the store says what it gave, and takes it back.
#[test]
fn a_claim_whose_reply_was_lost_can_be_given_back() {
    let wire = Wire::new();
    wire.bed.take_in_all([job(1), job(2)]);
    let claim = || Claim { node: NODE, max: 9, kinds: Arc::from([("k".to_owned(), 9)]), ahead: 0, spare: 0, era: 0 };
    wire.ask_unheard("claim", |store| store.claim(claim()));
    assert_eq!(wire.ask(|store| store.claim(claim())).unwrap().jobs, []);
    let pulse = wire.ask(|store| store.heartbeat(punctual_testkit::beat(NODE, &["k"]))).unwrap();
    assert_eq!(pulse.running.len(), 2, "it was done");
    let back = |&(id, fence)| Finish { id, fence, verdict: Verdict::Release };
    let told = wire.ask(|store| store.finish(NODE, pulse.running.iter().map(back).collect())).unwrap();
    assert!(told.iter().all(|told| *told == Finished::Done(State::READY)), "{told:?}");
    let again = wire.ask(|store| store.claim(claim())).unwrap().jobs;
    let told: Vec<_> = again.iter().map(|run| (run.job.id.to_u128(), run.attempt, run.fence, run.crashes)).collect();
    assert_eq!(told, [(1, 1, 2, 0), (2, 1, 2, 0)]);
}

/// C14, C49
#[test]
fn a_cancel_whose_reply_was_lost_can_be_repeated() {
    let wire = Wire::new();
    let id = wire.bed.take_in(job(1));
    wire.ask_unheard("cancel", |store| store.cancel(id, CancelCause::Caller));
    let told = wire.ask(|store| store.cancel(id, CancelCause::Caller)).unwrap();
    assert_eq!(told, Cancelled::Ended(Outcome::Cancelled));
    assert_eq!(wire.bed.totals().ended[&Outcome::Cancelled], 1);
}

/// C48: the tick is fired once, though the one who fired it does not know.
#[test]
fn a_tick_whose_reply_was_lost_is_not_fired_again() {
    let wire = Wire::new();
    let tick = wire.bed.now();
    let schedule = Schedule {
        name: "s".into(),
        rule: Rule::Every { period: 60 * SECOND, anchor: tick },
        missed: Missed::Once,
        template: job(0),
        next: Some(tick),
        paused: false,
        last: None,
        fired: 0,
        missed_count: 0,
    };
    wire.bed.ask(|store| store.put_schedule(schedule));
    let fire = |id| {
        let job = Some(NewJob { schedule: Some("s".into()), ..job(id) });
        Fire { schedule: "s".into(), tick, next: Some(tick.after(60 * SECOND)), missed: 0, job }
    };
    wire.ask_unheard("enqueue_batch", |store| store.fire(fire(1)));
    assert_eq!(wire.ask(|store| store.fire(fire(2))).unwrap(), Fired::Lost);
    assert_eq!(wire.bed.totals().ready, 1);
    let schedule = wire.bed.ask(|store| store.schedules(None, 9)).remove(0);
    assert_eq!((schedule.fired, schedule.next), (1, Some(tick.after(60 * SECOND))));
}

/// C38: half of an answer is none, and half of what was asked is not done.
#[test]
fn an_answer_that_breaks_off_is_an_error() {
    let wire = Wire::new();
    wire.bed.take_in_all((1..=20).map(|id| NewJob { payload: format!("\"{}\"", "x".repeat(2_000)), ..job(id) }));
    // Far more than the connection that listens hears meanwhile.
    for bytes in [1_000, 2_500, 10_000, 30_000] {
        let cut = wire.proxy.counts().cut;
        wire.proxy.cut_after(bytes);
        let claim = Claim { node: NODE, max: 20, kinds: Arc::from([("k".to_owned(), 20)]), ahead: 0, spare: 0, era: 0 };
        let answer = wire.ask(|store| store.claim(claim)).map(|claimed| claimed.jobs.len());
        let error = answer.expect_err("the answer broke off");
        assert!(error.is_transient(), "{error}");
        assert_eq!(wire.proxy.counts().cut, cut + 1, "the fault happened");
        let pulse = wire.bed.ask(|store| store.heartbeat(punctual_testkit::beat(NODE, &["k"])));
        // Before it was committed or after: all or nothing.
        assert!([0, 20].contains(&pulse.running.len()), "{}", pulse.running.len());
        for (id, fence) in pulse.running {
            wire.bed.finish_as(NODE, id, fence, Verdict::Release);
        }
    }
}

/// C51: after whatever happened to its connections, the store is at once usable again.
#[test]
fn connections_that_were_lost_are_made_anew() {
    let wire = Wire::new();
    type Break = fn(&Proxy) -> usize;
    let breaks: [(&str, Break); 2] = [("cut", Proxy::cut), ("reset", Proxy::reset)];
    for (number, (how, break_all)) in (1..).zip(breaks) {
        // More than one connection in the pool.
        let asked: Vec<_> = (0..8).map(|_| wire.store.totals()).collect();
        asked.into_iter().for_each(|asked| drop(block_on(asked).unwrap()));
        assert!(break_all(&wire.proxy) > 2, "{how}");
        // What is said on a connection before its end was noticed fails, once for each; nothing is done twice by that.
        let tries = (0..12).position(|_| wire.ask(|store| store.enqueue(vec![job(number)])).is_ok());
        assert!(tries.is_some(), "{how}: none of twelve tries came through");
        assert_eq!(wire.bed.totals().ready, usize::try_from(number).unwrap(), "{how}");
    }
}

/// C51: a network that swallows everything is an error after the time that was set, not a wait without end; and when it
/// is back, so is the store.
#[test]
fn a_network_that_swallows_everything_is_an_error_in_time() {
    let wire = Wire::with(PostgresOptions::new().timeout(Duration::from_millis(300)));
    let id = wire.bed.take_in(job(1));
    wire.proxy.blackhole();
    let asked: Vec<_> = (0..20).map(|_| wire.store.get(id)).collect();
    for asked in asked {
        let error = block_on(asked).expect_err("nobody answered");
        assert!(error.is_transient(), "{error}");
    }
    assert!(wire.proxy.counts().swallowed > 0, "the fault happened");
    wire.proxy.pass();
    let tries = (0..12).position(|_| wire.ask(|store| store.get(id)).is_ok());
    assert!(tries.is_some(), "none of twelve tries came through");
}

/// A job that adds its number to a log.
#[derive(Debug, Serialize, Deserialize)]
struct Note(u32);

impl Job for Note {
    const KIND: &'static str = "note";
    type Output = u32;
    const TERMS: Terms = Terms::new().max_attempts(3);
}

/// C38: what an enqueue gave to the node of its process, and nobody heard of, is given back and runs: once.
#[test]
fn what_an_enqueue_gave_unheard_runs_once() {
    let clock = VirtualClock::new();
    let schema = Schema::new();
    let (proxy, url) = proxied(schema.url());
    let store = block_on(PostgresOptions::new().clock(&clock).schema(schema.name()).open(&url)).unwrap();
    let jobs = block_on(Jobs::builder().clock(&clock).seed(1).over(Arc::new(store))).unwrap();
    let ran = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&ran);
    jobs.on(move |note: Note, ctx: Ctx| {
        log.lock().unwrap().push((note.0, ctx.fence(), ctx.attempt()));
        std::future::ready(Ok::<_, Failure>(note.0))
    });
    let _node = block_on(jobs.start()).unwrap();
    for number in 0..3 {
        block_on(jobs.now().enqueue(Note(number))).unwrap();
        clock.advance(SECOND).unwrap();
    }
    proxy.lose_reply_to(".enqueue_alike(");
    let error = block_on(jobs.now().enqueue(Note(3))).unwrap_err();
    assert_eq!(proxy.counts().replies_lost, 1, "{error}");
    clock.advance(60 * SECOND).unwrap();
    assert_eq!(*ran.lock().unwrap(), [(0, 1, 1), (1, 1, 1), (2, 1, 1), (3, 2, 1)], "the last one was given twice");
    let totals = block_on(jobs.totals()).unwrap();
    assert_eq!((totals.ready, totals.running, totals.ended[&Outcome::Succeeded]), (0, 0, 4));
}

/// C38, C51: whichever replies are lost to a node that works (to its claims, its finishes, its heartbeats and to
/// enqueues), every job ends well, runs once, and nothing is held for ever.
#[test]
fn a_node_lives_with_lost_replies() {
    let clock = VirtualClock::new();
    let schema = Schema::new();
    let (proxy, url) = proxied(schema.url());
    let store = block_on(PostgresOptions::new().clock(&clock).schema(schema.name()).open(&url)).unwrap();
    let jobs = block_on(Jobs::builder().clock(&clock).seed(1).over(Arc::new(store))).unwrap();
    let ran = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&ran);
    jobs.on(move |note: Note, _: Ctx| {
        log.lock().unwrap().push(note.0);
        std::future::ready(Ok::<_, Failure>(note.0))
    });
    let node = block_on(jobs.node().workers(3).start()).unwrap();
    let mut handles = Vec::new();
    for (number, function) in (0..).zip(["claim", "finish", "heartbeat", "enqueue_batch", "tend", "claim", "finish"]) {
        let lost = proxy.counts().replies_lost;
        proxy.lose_reply_to(&format!(".{function}("));
        let id = JobId::from_u128(number.into());
        let enqueue = || block_on(jobs.now().id(id).enqueue(Note(number)));
        // Whoever enqueues is told that it is open whether it was done, and asks again under the same id.
        handles.push(enqueue().or_else(|_| enqueue()).unwrap());
        clock.advance(60 * SECOND).unwrap();
        assert_eq!(proxy.counts().replies_lost, lost + 1, "the reply to {function} was lost");
    }
    clock.advance(60 * SECOND).unwrap();
    let totals = block_on(jobs.totals()).unwrap();
    assert_eq!((totals.ready, totals.running, totals.ended[&Outcome::Succeeded]), (0, 0, 7));
    for (number, handle) in (0..).zip(handles) {
        assert_eq!(block_on(handle.result()).unwrap(), number);
    }
    let mut ran = ran.lock().unwrap().clone();
    ran.sort_unstable();
    assert_eq!(ran, [0, 1, 2, 3, 4, 5, 6]);
    block_on(node.shutdown(SECOND));
    drop(schema);
}
