//! What happens to the jobs of a node that dies, stands still, or leaves. (One that is cut off:
//! `real_time_postgres.rs`.)

use std::time::Duration;

use punctual_durable::{JobId, Outcome};

use crate::judge::approve;
use crate::process::Process;
use crate::site::{LEASE, LONG, Site, number, running_in, until};

/// A run of this fence has begun, in this process.
const BEGUN: &str = "SELECT count(*) FROM witness WHERE job = $1::text::uuid AND fence = $2 AND process = $3";

fn begun(site: &Site, job: JobId, fence: i64, process: &Process) -> Duration {
    let (mut client, job, name) = (site.client(), job.to_string(), process.name());
    until("a run has begun", || number(&mut client, BEGUN, &[&job, &fence, &name]) == 1)
}

fn all_begun(site: &Site, jobs: &[JobId], fence: i64, process: &Process) {
    for &job in jobs {
        begun(site, job, fence, process);
    }
}

/// C38, C39, C40: a node that stands still beyond its lease loses what it runs. What it says of that afterwards is
/// stale and changes nothing, its own handler is stopped, and it goes on as another node.
#[test]
fn a_node_that_stood_still_changes_nothing_any_more() {
    let site = Site::new();
    site.set_limit("acme", Some(1));
    let mut stopped = site.process(LEASE);
    let before = stopped.work();
    let job = site.hold("acme", 1)[0];
    begun(&site, job, 1, &stopped);
    let mut heir = site.process(LEASE);
    let after = heir.work();

    stopped.freeze();
    begun(&site, job, 2, &heir);
    stopped.thaw();
    assert_eq!(stopped.ask(&format!("finish {job} 1 {before}"), "finished"), ["stale"]);
    assert_eq!(
        stopped.ask(&format!("finish {job} 1 {after}"), "finished"),
        ["stale"],
        "the fence is not the present one"
    );
    assert_eq!(
        stopped.ask(&format!("finish {job} 2 {before}"), "finished"),
        ["stale"],
        "the node is not the one that runs it"
    );
    until("it is another node", || stopped.status().node != before);
    let mut client = site.client();
    until("its handler has stopped", || running_in(&mut client, &stopped) == 0);
    let record = site.record(job);
    assert_eq!((record.state.outcome, record.fence, record.attempt, record.crashes), (None, 2, 1, 1));

    heir.ask("open", "opened");
    until("the job has ended", || site.record(job).state.outcome == Some(Outcome::Succeeded));
    assert_eq!(site.record(job).result, Some(format!("\"{} fence 2\"", heir.name())));
    let report = approve(&mut client, "a stopped node");
    assert_eq!(
        (report.lost, report.claims, report.highest_fence, report.overlaps),
        (1, 2, 2, 1),
        "the fault happened: {report:?}"
    );
    // It works again.
    stopped.ask("open", "opened");
    heir.stop(Duration::ZERO);
    let next = site.hold("acme", 1)[0];
    until("the next job has ended", || site.record(next).state.outcome == Some(Outcome::Succeeded));
}

/// C36, C39, C40: after `kill -9` the jobs run again, and the limit is there to be used, when the lease has ended and
/// somebody has looked. The crash counts as one, the attempt does not.
#[test]
fn what_a_killed_node_held_is_free_after_its_lease() {
    let site = Site::new();
    site.set_limit("acme", Some(3));
    let killed = site.node(LEASE);
    let lost = site.hold("acme", 3);
    all_begun(&site, &lost, 1, &killed);
    let mut heir = site.node(LEASE);
    let more = site.hold("acme", 2);
    killed.kill();
    // C39 says lease + sweep, which is 7 s; this is the path, with room for a machine that has other things to do.
    let mut took = Duration::ZERO;
    for &job in &lost {
        took += begun(&site, job, 2, &heir);
        let record = site.record(job);
        assert_eq!((record.attempt, record.crashes), (1, 1));
    }
    assert!(took < Duration::from_secs(30), "{took:?}");
    assert!(more.iter().all(|&job| site.record(job).fence == 0), "the limit is 3");
    let mut client = site.client();
    let running = "SELECT count(*) FROM job WHERE stage = 'running'";
    assert_eq!(number(&mut client, running, &[]), 3);
    heir.ask("open", "opened");
    until("everything has ended", || number(&mut client, "SELECT count(*) FROM job", &[]) == 0);
    let report = approve(&mut client, "a killed node");
    assert_eq!((report.lost, report.again, report.highest_fence), (3, 3, 2), "the fault happened: {report:?}");
}

/// C39: a node that leaves gives back at once what it still runs: nobody waits for the lease, and neither a crash nor
/// an attempt is counted.
#[test]
fn a_node_that_leaves_gives_back_at_once() {
    let site = Site::new();
    let leaving = site.node(LONG);
    let jobs = site.hold("acme", 3);
    all_begun(&site, &jobs, 1, &leaving);
    let mut heir = site.node(LONG);
    assert_eq!(leaving.stop(Duration::ZERO), 3);
    for &job in &jobs {
        let took = begun(&site, job, 2, &heir);
        assert!(took < LONG / 4, "{took:?}");
        let record = site.record(job);
        assert_eq!((record.attempt, record.crashes), (1, 0));
    }
    heir.ask("open", "opened");
    let mut client = site.client();
    until("everything has ended", || number(&mut client, "SELECT count(*) FROM job", &[]) == 0);
    let report = approve(&mut client, "a node that left");
    assert_eq!((report.lost, report.again, report.overlaps), (0, 3, 0), "{report:?}");
}
