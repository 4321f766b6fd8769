use std::time::Duration;

use punctual_durable::{Failure, Outcome};

use crate::bed::{Log, SECOND, Say, say, wait, with_leases};

/// C39, C38: a node that is gone without a word; its job runs elsewhere within the lease, with a higher fence and the same attempt.
#[test]
fn the_jobs_of_a_dead_node_run_elsewhere() {
    let bed = with_leases(SECOND * 10);
    let log = Log::default();
    let seen = log.clone();
    bed.jobs.on(move |_: Say, ctx| {
        seen.add(format!("first {} {}", ctx.attempt(), ctx.fence()));
        std::future::pending::<Result<String, Failure>>()
    });
    let node = wait(bed.jobs.start()).unwrap();
    let job = wait(bed.jobs.now().enqueue(say("x"))).unwrap();
    bed.settle();
    let other = bed.another();
    let seen = log.clone();
    other.on(move |say: Say, ctx| {
        seen.add(format!("second {} {}", ctx.attempt(), ctx.fence()));
        std::future::ready(Ok(say.0))
    });
    let _other_node = wait(other.start()).unwrap();
    bed.advance(SECOND * 60);
    assert_eq!(log.lines(), ["first 1 1"], "a lease that is kept alive is not lost");
    // As good as dead: its store does not hear of it any more.
    let was = node.id();
    bed.cut_off();
    bed.advance(SECOND * 15);
    assert_eq!(log.lines(), ["first 1 1", "second 1 2"]);
    assert_eq!(wait(other.handle::<String>(job.id()).result()).unwrap(), "x");
    assert_ne!(node.id(), was, "it knows by its own clock that its lease is gone");
}

/// C39: while both are alive their leases are, however long.
#[test]
fn two_nodes_share_the_work() {
    let bed = with_leases(SECOND * 10);
    let log = Log::default();
    bed.jobs.on(log.handler());
    let other = bed.another();
    other.on(log.handler());
    let nodes = [wait(bed.jobs.start()).unwrap(), wait(other.start()).unwrap()];
    for n in 0..20u32 {
        wait(bed.jobs.after(Duration::from_secs(u64::from(n))).enqueue(say(&n.to_string()))).unwrap();
    }
    bed.advance(SECOND * 30);
    assert_eq!(log.lines().len(), 20);
    assert_eq!(wait(bed.jobs.totals()).unwrap().ended[&Outcome::Succeeded], 20);
    assert_eq!(wait(bed.jobs.nodes()).unwrap().len(), 2);
    drop(nodes);
}
