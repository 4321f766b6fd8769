use std::task::{Context, Poll, Waker};

use punctual_durable::{DurableError, OnConflict, Outcome};

use crate::bed::{HOUR, Log, SECOND, on_every_store, say, wait, with_leases};

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
