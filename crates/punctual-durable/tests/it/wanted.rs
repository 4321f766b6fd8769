use std::task::{Context, Poll, Waker};

use punctual_durable::{DurableError, JobId, Jobs, OnConflict, Outcome, Plan};

use crate::bed::{Bed, HOUR, Log, SECOND, on_every_store, say, wait, with_faults, with_leases};

/// Joins whoever wants the page.
fn page(jobs: &Jobs) -> Plan {
    jobs.after(HOUR).unique("page", OnConflict::Join).while_wanted()
}

fn outcome(bed: &Bed, id: JobId) -> Option<Outcome> {
    bed.settle();
    wait(bed.jobs.get(id)).unwrap().unwrap().state.outcome
}

/// C49
#[test]
fn a_job_nobody_wants_any_more_is_cancelled() {
    on_every_store(|bed| {
        let kept = wait(bed.jobs.after(HOUR).enqueue(say("kept"))).unwrap();
        let kept = kept.id();
        let wanted = wait(bed.jobs.after(HOUR).while_wanted().enqueue(say("wanted"))).unwrap();
        let id = wanted.id();
        drop(wanted);
        bed.settle();
        let outcome = |id| wait(bed.jobs.get(id)).unwrap().unwrap().state.outcome;
        assert_eq!((outcome(kept), outcome(id)), (None, Some(Outcome::Cancelled)));
        let why = wait(bed.jobs.handle::<String>(id).result()).unwrap_err();
        let reason = "cancelled because nobody wanted its result any more".to_owned();
        assert_eq!(why, DurableError::Cancelled { reason });
    });
}

/// C49: those who join are counted, here and elsewhere; the last one out cancels.
#[test]
fn the_last_one_out_cancels() {
    on_every_store(|bed| {
        let other = bed.another();
        let ask = |jobs: &punctual_durable::Jobs| {
            wait(jobs.after(HOUR).unique("page", OnConflict::Join).while_wanted().enqueue(say("page"))).unwrap()
        };
        let handles = [ask(&bed.jobs), ask(&bed.jobs), ask(&other)];
        let id = handles[0].id();
        assert!(handles.iter().all(|handle| handle.id() == id));
        let outcome = || {
            bed.settle();
            wait(bed.jobs.get(id)).unwrap().unwrap().state.outcome
        };
        let mut handles = handles.into_iter();
        for _ in 0..2 {
            drop(handles.next());
            assert_eq!(outcome(), None);
        }
        drop(handles.next());
        assert_eq!(outcome(), Some(Outcome::Cancelled));
    });
}

/// C49: whoever joins has yet to learn which job that is when the last one out leaves; until then nothing is given up.
#[test]
fn a_job_is_not_cancelled_while_somebody_joins_it() {
    on_every_store(|bed| {
        let plan = || bed.jobs.after(HOUR).unique("page", OnConflict::Join).while_wanted();
        let first = wait(plan().enqueue(say("page"))).unwrap();
        let id = first.id();
        let mut joins = Box::pin(plan().enqueue(say("page")));
        let joined = joins.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        // The store has answered by now, and nobody has looked at the answer.
        wait(bed.jobs.totals()).unwrap();
        drop(first);
        let second = match joined {
            Poll::Ready(joined) => joined,
            Poll::Pending => wait(joins),
        };
        let second = second.unwrap();
        let outcome = || {
            bed.settle();
            wait(bed.jobs.get(id)).unwrap().unwrap().state.outcome
        };
        assert_eq!((second.id(), outcome()), (id, None));
        drop(second);
        assert_eq!(outcome(), Some(Outcome::Cancelled), "the last one has left");
    });
}

#[test]
fn a_detached_handle_goes_on_wanting() {
    on_every_store(|bed| {
        let log = Log::default();
        bed.jobs.on(log.handler());
        let _node = wait(bed.jobs.start()).unwrap();
        wait(bed.jobs.after(SECOND).while_wanted().enqueue(say("x"))).unwrap().detach();
        bed.advance(SECOND);
        assert_eq!(log.lines(), ["x"]);
    });
}

/// C49: a process that is gone wants nothing.
#[test]
fn a_process_that_is_gone_wants_nothing() {
    let bed = with_leases(SECOND * 10);
    let other = bed.another();
    let _node = wait(other.start()).unwrap();
    let wanted = wait(bed.jobs.after(HOUR).while_wanted().enqueue(say("x"))).unwrap();
    let id = wanted.id();
    bed.advance(SECOND * 60);
    assert_eq!(wait(other.get(id)).unwrap().unwrap().state.outcome, None);
    bed.cut_off();
    bed.advance(SECOND * 15);
    assert_eq!(wait(other.get(id)).unwrap().unwrap().state.outcome, Some(Outcome::Cancelled));
    drop(wanted);
}

/// C49, C51: that a job is not wanted any more was told once. If the store was out at that moment, the job was wanted
/// for as long as the process lived. Now it is told until it was heard, and the store is not pressed for it.
#[test]
fn a_job_given_up_during_an_outage_is_cancelled_after_it() {
    let (bed, line) = with_faults();
    let handles: Vec<_> =
        (0..3).map(|_| wait(bed.jobs.after(9 * HOUR).while_wanted().enqueue(say("x"))).unwrap()).collect();
    let ids: Vec<JobId> = handles.iter().map(|handle| handle.id()).collect();
    line.set_outage(true);
    drop(handles);
    bed.advance(HOUR);
    let tries = line.refusals();
    assert!((3..=3_700).contains(&tries), "{tries} tries in an hour");
    line.set_outage(false);
    bed.advance(2 * SECOND);
    assert!(ids.iter().all(|&id| outcome(&bed, id) == Some(Outcome::Cancelled)));
}

/// C49: what is wanted again by the time that the store can be told is not given up.
#[test]
fn a_job_that_is_wanted_again_after_an_outage_is_not_cancelled() {
    let (bed, line) = with_faults();
    let first = wait(page(&bed.jobs).enqueue(say("page"))).unwrap();
    let id = first.id();
    line.set_outage(true);
    drop(first);
    bed.settle();
    line.set_outage(false);
    let second = wait(page(&bed.jobs).enqueue(say("page"))).unwrap();
    bed.advance(SECOND * 60);
    assert_eq!((second.id(), outcome(&bed, id)), (id, None));
    drop(second);
    assert_eq!(outcome(&bed, id), Some(Outcome::Cancelled));
}

/// C49: a caller that joined a job of another process, and went before it heard of that, left its interest behind: it
/// gave up the job that it had asked for, and knew of no other. So the job lived for as long as the process. Now the
/// answer is heard whether or not somebody waits for it.
#[test]
fn whoever_goes_before_it_hears_what_it_joined_leaves_no_interest() {
    let (bed, line) = with_faults();
    let first = wait(page(&bed.another()).enqueue(say("page"))).unwrap();
    line.hold_answers(true);
    let mut joins = Box::pin(page(&bed.jobs).enqueue(say("page")));
    assert!(joins.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    drop(joins);
    line.hold_answers(false);
    bed.settle();
    let id = first.id();
    assert_eq!(outcome(&bed, id), None, "the other one wants it");
    drop(first);
    assert_eq!(outcome(&bed, id), Some(Outcome::Cancelled));
}

/// C49, C37: nor did it if the answer was lost. Now the enqueue is repeated, with the same id, until it is known what
/// it has joined.
#[test]
fn whoever_never_hears_what_it_joined_leaves_no_interest() {
    let (bed, line) = with_faults();
    let first = wait(page(&bed.another()).enqueue(say("page"))).unwrap();
    line.lose_answers(1);
    wait(page(&bed.jobs).enqueue(say("page"))).unwrap_err();
    line.lose_answers(0);
    bed.advance(SECOND);
    let id = first.id();
    assert_eq!(outcome(&bed, id), None, "the other one wants it");
    drop(first);
    assert_eq!(outcome(&bed, id), Some(Outcome::Cancelled));
    assert_eq!(wait(bed.jobs.totals()).unwrap().scheduled, 0);
}

/// C49: a process that lost its lease for a moment, and had all its handles still, wanted nothing under its new name:
/// when the old one was reaped, its jobs were cancelled. Now it tells the store what it wants when it has joined, also
/// what it has detached.
#[test]
fn interest_survives_a_lost_lease() {
    let bed = with_leases(SECOND * 10);
    let other = bed.another();
    let _node = wait(other.start()).unwrap();
    let plan = || bed.jobs.after(9 * HOUR).while_wanted();
    let held = wait(plan().enqueue(say("held"))).unwrap();
    let detached = wait(plan().enqueue(say("detached"))).unwrap();
    let given_up = wait(plan().enqueue(say("given up"))).unwrap();
    let ids = [held.id(), detached.id(), given_up.id()];
    detached.detach();
    bed.cut_off();
    drop(given_up);
    bed.advance(SECOND * 8);
    bed.line().set_outage(false);
    bed.advance(SECOND * 60);
    assert_eq!(ids.map(|id| outcome(&bed, id)), [None, None, Some(Outcome::Cancelled)]);
    drop(held);
    assert_eq!(outcome(&bed, ids[0]), Some(Outcome::Cancelled));
}

/// C49: nor does a process that is alone reap what it was before it has said what it wants now, however long it was cut
/// off.
#[test]
fn interest_of_the_only_process_survives_any_outage() {
    let bed = with_leases(SECOND * 10);
    let _node = wait(bed.jobs.start()).unwrap();
    let held = wait(bed.jobs.after(9 * HOUR).while_wanted().enqueue(say("held"))).unwrap();
    bed.cut_off();
    bed.advance(HOUR);
    bed.line().set_outage(false);
    bed.advance(SECOND * 60);
    assert_eq!(outcome(&bed, held.id()), None);
    drop(held);
}

/// C49: a process that has lost its lease, and has yet to join again, is nobody to the store: what it enqueued in that
/// time was cancelled at once. It joins before it does so.
#[test]
fn what_is_enqueued_between_a_lost_lease_and_the_next_join_is_wanted() {
    let bed = with_leases(SECOND * 10);
    let other = bed.another();
    let _node = wait(other.start()).unwrap();
    bed.cut_off();
    bed.advance(SECOND * 8);
    assert!(wait(bed.jobs.after(9 * HOUR).while_wanted().enqueue(say("out"))).is_err(), "nobody is kept waiting");
    // The heart does not try again before the clock goes on.
    bed.line().set_outage(false);
    let first = wait(page(&other).enqueue(say("page"))).unwrap();
    let own = wait(bed.jobs.after(9 * HOUR).while_wanted().enqueue(say("own"))).unwrap();
    let second = wait(page(&bed.jobs).enqueue(say("page"))).unwrap();
    let ids = [own.id(), first.id()];
    drop(first);
    bed.advance(SECOND * 60);
    assert_eq!((second.id(), ids.map(|id| outcome(&bed, id))), (ids[1], [None; 2]));
    drop((own, second));
    assert_eq!(ids.map(|id| outcome(&bed, id)), [Some(Outcome::Cancelled); 2]);
}

/// C49: what was joined under the old name, and is heard of under the new one, is wanted under the new one.
#[test]
fn what_was_joined_before_a_lost_lease_is_wanted_after_it() {
    let bed = with_leases(SECOND * 10);
    let other = bed.another();
    let _node = wait(other.start()).unwrap();
    let first = wait(page(&other).enqueue(say("page"))).unwrap();
    bed.line().hold_answers(true);
    let mut joins = Box::pin(page(&bed.jobs).enqueue(say("page")));
    assert!(joins.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    bed.advance(SECOND * 8);
    bed.line().hold_answers(false);
    bed.settle();
    let second = wait(joins).unwrap();
    bed.advance(SECOND * 60);
    let id = first.id();
    drop(first);
    assert_eq!((second.id(), outcome(&bed, id)), (id, None));
    drop(second);
    assert_eq!(outcome(&bed, id), Some(Outcome::Cancelled));
}
