use punctual::{Limits, Rate, Reason};
use punctual_durable::{Outcome, Problem, Refused};

use crate::bed::{HOUR, Log, SECOND, Say, on_every_store, say, wait};

/// C31, C41: ten jobs of a newcomer behind many of another.
#[test]
fn a_newcomer_does_not_wait_for_the_backlog_of_another() {
    on_every_store(|bed| {
        let log = Log::default();
        bed.jobs.on(log.handler());
        wait(bed.jobs.tenant("big").now().enqueue_many((0..500).map(|_| say("big"))));
        wait(bed.jobs.tenant("small").now().enqueue_many((0..10).map(|_| say("small"))));
        let node = wait(bed.jobs.node().workers(1).start()).unwrap();
        wait(node.drain());
        let lines = log.lines();
        assert_eq!(lines.len(), 510);
        let last = lines.iter().rposition(|line| line == "small").unwrap();
        assert!(last <= 21, "the last of ten was number {last}");
    });
}

/// C33, C41: the rate is kept, on the instant.
#[test]
fn a_rate_is_kept() {
    on_every_store(|bed| {
        let log = Log::default();
        bed.jobs.on(log.handler());
        let slow = bed.jobs.tenant("slow");
        wait(slow.set_limits(Limits::new().rate(Rate::per_second(1).burst(2)))).unwrap();
        let _node = wait(bed.jobs.start()).unwrap();
        wait(slow.now().enqueue_many((0..10).map(|_| say("x"))));
        bed.settle();
        assert_eq!(log.lines().len(), 2);
        bed.advance(SECOND * 3);
        assert_eq!(log.lines().len(), 5);
        bed.advance(HOUR);
        assert_eq!(log.lines().len(), 10);
    });
}

/// C23, C25, C41
#[test]
fn a_full_tenant_gives_the_job_back() {
    on_every_store(|bed| {
        let acme = bed.jobs.tenant("acme");
        wait(acme.set_limits(Limits::new().running_max(1).backlog_max(2))).unwrap();
        let answers = wait(acme.now().enqueue_many(["a", "b", "c", "d"].map(say)));
        assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 3);
        let error = answers.into_iter().next_back().unwrap().unwrap_err();
        assert!(matches!(
            error.problem(),
            Problem::Refused(Refused::Rejected { reason: Reason::BacklogFull { count: 3, max: 3, .. }, .. })
        ));
        wait(bed.jobs.tenant("other").now().enqueue(say("fine"))).unwrap();
        wait(acme.close()).unwrap();
        let error = wait(acme.after(HOUR).enqueue(say("late"))).unwrap_err();
        assert_eq!(error.to_string(), "closed to new work");
        wait(acme.reopen()).unwrap();
        wait(acme.after(HOUR).enqueue(say("again"))).unwrap();
    });
}

/// C34, C41
#[test]
fn a_tenant_can_be_paused_cancelled_and_erased() {
    on_every_store(|bed| {
        let log = Log::default();
        bed.jobs.on(log.handler());
        let node = wait(bed.jobs.start()).unwrap();
        let acme = bed.jobs.tenant("acme");
        wait(acme.pause()).unwrap();
        wait(acme.now().enqueue_many(["a", "b"].map(say)));
        wait(node.drain());
        assert!(log.lines().is_empty());
        assert_eq!(wait(acme.cancel_all()).unwrap(), 2);
        wait(acme.now().enqueue(say("c"))).unwrap();
        wait(acme.resume()).unwrap();
        wait(node.drain());
        assert_eq!(log.lines(), ["c"]);
        let totals = wait(acme.record()).unwrap().totals;
        assert_eq!((totals.ended[&Outcome::Cancelled], totals.ended[&Outcome::Succeeded]), (2, 1));
        wait(acme.after(HOUR).enqueue(say("d"))).unwrap();
        wait(acme.every("of-acme", HOUR).enqueue(Say("e".into()))).unwrap();
        let erased = wait(acme.erase()).unwrap();
        assert_eq!((erased.removed, erased.stopping), (4, 0));
        assert_eq!(wait(acme.record()).unwrap().totals, punctual_durable::Totals::default());
        assert!(wait(bed.jobs.schedules(None, 10)).unwrap().is_empty());
    });
}
