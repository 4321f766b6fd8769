use punctual_durable::Outcome;

use crate::bed::{HOUR, Log, SECOND, Say, over_a_network, say, wait, with_faults, with_leases};

/// C51: no loss, no spinning, work resumes soon after.
#[test]
fn an_outage_is_waited_for_without_spinning() {
    let (bed, store) = with_faults();
    let log = Log::default();
    bed.jobs.on(log.handler());
    let _node = wait(bed.jobs.start()).unwrap();
    let job = wait(bed.jobs.after(SECOND).enqueue(say("x"))).unwrap();
    store.set_outage(true);
    bed.advance(HOUR);
    assert!(log.lines().is_empty());
    let tries = store.refusals();
    assert!((1..=3 * 3_700).contains(&tries), "{tries} tries in an hour");
    store.set_outage(false);
    bed.advance(SECOND * 5);
    assert_eq!(log.lines(), ["x"]);
    assert_eq!(wait(job.result()).unwrap(), "x");
}

/// C51, C38: a result that the store did not hear is told again, and the job does not run twice.
#[test]
fn a_result_outlives_an_outage() {
    let (bed, store) = with_faults();
    let log = Log::default();
    let (seen, cut) = (log.clone(), store.clone());
    bed.jobs.on(move |say: Say, _| {
        seen.add(say.0.clone());
        cut.set_outage(true);
        std::future::ready(Ok(say.0))
    });
    let _node = wait(bed.jobs.start()).unwrap();
    let job = wait(bed.jobs.now().enqueue(say("x"))).unwrap();
    bed.advance(SECOND * 60);
    store.set_outage(false);
    bed.advance(SECOND * 5);
    assert_eq!(wait(job.result()).unwrap(), "x");
    assert_eq!(log.lines(), ["x"]);
}

/// C36, C38, C40: a claim whose answer was lost may be done after the node has asked what came of it: on a connection
/// that is cut a server goes on. Once it gave jobs then of which nobody here knew, and they waited for as long as the
/// node lived, later for half a lease. It gives nothing: the node is in another era.
#[test]
fn a_claim_that_is_done_late_gives_nothing() {
    let bed = with_leases(SECOND * 10);
    let log = Log::default();
    let seen = log.clone();
    bed.jobs.on(move |say: Say, ctx| {
        seen.add(format!("{} {}", say.0, ctx.fence()));
        std::future::ready(Ok(say.0))
    });
    let node = wait(bed.jobs.start()).unwrap();
    bed.settle();
    let (was, other) = (node.id(), bed.another());
    bed.line().overtake("claim");
    let job = wait(other.now().enqueue(say("x"))).unwrap();
    bed.advance(SECOND);
    assert!(bed.line().has_overtaken(), "the fault happened");
    assert_eq!((log.lines(), node.id()), (vec!["x 1".to_owned()], was));
    let record = wait(other.get(job.id())).unwrap().unwrap();
    assert_eq!((record.state.outcome, record.attempt, record.crashes), (Some(Outcome::Succeeded), 1, 0));
}

/// C38, C51: whatever answer is lost, also that to a claim, every job ends well and nothing is held for ever.
#[test]
fn lost_answers_lose_no_job() {
    let (bed, store) = with_faults();
    let log = Log::default();
    bed.jobs.on(log.handler());
    let _node = wait(bed.jobs.node().workers(3).start()).unwrap();
    store.lose_answers(3);
    let other = bed.another();
    let answers = wait(other.now().enqueue_many((0..40).map(|n| say(&n.to_string()))));
    assert!(answers.iter().all(Result::is_ok));
    bed.advance(HOUR);
    store.lose_answers(0);
    bed.advance(SECOND * 5);
    let totals = wait(other.totals()).unwrap();
    assert_eq!((totals.ready, totals.running, totals.ended[&Outcome::Succeeded]), (0, 0, 40));
    // A claim that was not heard is given back before it ran; nothing runs twice in one process.
    assert_eq!(log.lines().len(), 40);
}

/// C42, C51: the poll, which is the net under notifications that are lost, was put off by everything that woke the
/// loop: a node that was disturbed once a second never looked. It looks at its instants, whatever happens in between.
#[test]
fn a_node_that_is_often_woken_polls_all_the_same() {
    let (bed, _) = over_a_network(|line| line.far(SECOND).deaf());
    let log = Log::default();
    bed.jobs.on(log.handler());
    let node = wait(bed.jobs.start()).unwrap();
    bed.advance(SECOND * 5 / 2);
    wait(bed.another().now().enqueue(say("x"))).unwrap().detach();
    for _ in 0..5 {
        // Wakes it, and changes nothing.
        node.resume("shout");
        bed.advance(SECOND / 5);
    }
    assert_eq!(log.lines(), ["x"]);
}
