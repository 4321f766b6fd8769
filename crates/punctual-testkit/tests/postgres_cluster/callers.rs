//! Callers in other processes: they wait for results, cancel, lose interest, and race for keys.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use postgres::Client;
use punctual::Limits;
use punctual_durable::{JobId, Outcome};
use punctual_testkit::block_on;

use crate::process::Process;
use crate::site::{LEASE, LONG, Site, number, running_in, until};

/// Nobody finds out by looking that a job has ended; they must be told.
const NOBODY_LOOKS: &str = "CREATE OR REPLACE FUNCTION ended(ids uuid[], at bigint DEFAULT NULL) RETURNS uuid[] LANGUAGE sql STABLE AS $$ SELECT '{}'::uuid[] $$";

/// Nobody is told that a job has ended; they must look.
const NOBODY_TELLS: &str = "CREATE OR REPLACE FUNCTION tell_ended(ids uuid[]) RETURNS void LANGUAGE sql AS ''";

/// C42, C50: the result comes to whoever waits for it, in another process, by a notification; looking now and then is
/// only for one that was lost.
#[test]
fn a_result_is_told_to_whoever_waits_in_another_process() {
    for (rule, how) in [(NOBODY_LOOKS, "by a notification"), (NOBODY_TELLS, "by looking")] {
        let site = Site::new();
        let mut node = site.node(LONG);
        let mut caller = site.process(LONG);
        let mut client = site.client();
        client.batch_execute(rule).unwrap();
        let job = site.hold("acme", 1)[0];
        until("it runs", || running_in(&mut client, &node) == 1);
        caller.tell(&format!("await {job}"));
        let waits = "SELECT count(*) FROM waiter WHERE job = $1::text::uuid";
        until("the caller waits", || number(&mut client, waits, &[&job.to_string()]) == 1);
        node.ask("open", "opened");
        let said = caller.hear("result");
        assert_eq!(said.join(" "), format!("{job} {} fence 1", node.name()), "{how}");
    }
}

/// C49: a cancel reaches a job that runs on another node, long before the next heartbeat, which would tell of it too.
#[test]
fn a_cancel_reaches_a_job_that_runs_on_another_node() {
    let site = Site::new();
    let node = site.node(LONG);
    let mut caller = site.process(LONG);
    let mut client = site.client();
    let job = site.hold("acme", 1)[0];
    until("it runs", || running_in(&mut client, &node) == 1);
    assert_eq!(caller.ask(&format!("cancel {job}"), "cancelled").join(" "), "Ok(Now(Running))");
    let took = cancelled(&site, &mut client, job, &node);
    assert!(took < LONG / 8, "{took:?}");
    assert_eq!(caller.ask(&format!("cancel {job}"), "cancelled").join(" "), "Ok(Ended(Cancelled))");
}

/// Waits until the job is cancelled and its handler has stopped.
fn cancelled(site: &Site, client: &mut Client, job: JobId, node: &Process) -> Duration {
    let took = until("it has stopped", || running_in(client, node) == 0)
        + until("it has ended", || number(client, "SELECT count(*) FROM job", &[]) == 0);
    assert_eq!(site.record(job).state.outcome, Some(Outcome::Cancelled));
    assert_eq!(number(client, "SELECT count(*) FROM witness WHERE how = 'done'", &[]), 0);
    took
}

/// C49: a job that lives only while it is wanted has callers in several processes: it is cancelled when the last lets
/// go, and not before.
#[test]
fn the_last_caller_who_lets_go_cancels_in_whatever_process() {
    let site = Site::new();
    let node = site.node(LONG);
    let (mut first, mut second) = (site.process(LONG), site.process(LONG));
    let job = first.ask("want report", "wanted");
    assert_eq!(second.ask("want report", "wanted"), job, "they want the same");
    let id: JobId = job[0].parse().unwrap();
    let mut client = site.client();
    until("it runs", || running_in(&mut client, &node) == 1);
    let interest = "SELECT count(*) FROM interest";
    assert_eq!(number(&mut client, interest, &[]), 2);
    first.ask(&format!("drop {id}"), "dropped");
    until("one is left", || number(&mut client, interest, &[]) == 1);
    assert_eq!((site.record(id).state.outcome, running_in(&mut client, &node)), (None, 1));
    second.ask(&format!("drop {id}"), "dropped");
    let took = cancelled(&site, &mut client, id, &node);
    assert!(took < LONG / 8, "{took:?}");
}

/// C49: a caller that is killed wants nothing any more, once its lease has ended; those who are left still do.
#[test]
fn a_caller_that_is_killed_wants_nothing_after_its_lease() {
    let site = Site::new();
    let node = site.node(LONG);
    let (mut first, mut second) = (site.process(LEASE), site.process(LEASE));
    let id: JobId = first.ask("want report", "wanted")[0].parse().unwrap();
    second.ask("want report", "wanted");
    let mut client = site.client();
    until("it runs", || running_in(&mut client, &node) == 1);
    let name = first.kill();
    let gone = "SELECT count(*) FROM leases WHERE what = 'gone' AND name = $1 AND expires_at <= at";
    until("its lease is over", || number(&mut client, gone, &[&name]) == 1);
    assert_eq!(number(&mut client, "SELECT count(*) FROM interest", &[]), 1);
    assert_eq!((site.record(id).state.outcome, running_in(&mut client, &node)), (None, 1));
    let name = second.kill();
    // C49 says lease + sweep, 7 s; this is the path, with room for a busy machine.
    let took = cancelled(&site, &mut client, id, &node);
    assert!(took < Duration::from_secs(30), "{took:?}");
    assert_eq!(number(&mut client, gone, &[&name]), 1, "the fault happened");
}

/// How many keys, and how many tasks in each of two processes want all of them.
const KEYS: usize = 20;
const TASKS: usize = 16;

/// C47: of many writers in several processes exactly one gets the key; the others learn who has it.
#[test]
fn one_of_many_writers_gets_a_unique_key() {
    for conflict in ["reject", "join"] {
        let site = Site::new();
        let said = race_for_keys(&site, conflict);
        let mut winners: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        let mut won = [0, 0];
        for (process, lines) in said.iter().enumerate() {
            for line in lines {
                winners.entry(&line[0]).or_default().insert(&line[1]);
                won[process] += usize::from(line[2] == "new");
            }
        }
        assert_eq!(said.each_ref().map(Vec::len), [KEYS * TASKS; 2]);
        assert!(winners.len() == KEYS && winners.values().all(|ids| ids.len() == 1), "{conflict}: {winners:?}");
        assert_eq!(won[0] + won[1], KEYS, "{conflict}");
        one_live_job_per_key(&site, 0);
    }
}

/// C47: whoever comes later takes the place of the one who waits: however many do so at once, one is left.
#[test]
fn of_many_who_replace_each_other_one_is_left() {
    let site = Site::new();
    let said = race_for_keys(&site, "replace");
    let ids: BTreeSet<&str> = said.iter().flatten().map(|line| line[1].as_str()).collect();
    assert_eq!(ids.len(), 2 * KEYS * TASKS, "each was taken in");
    one_live_job_per_key(&site, 2 * KEYS * TASKS - KEYS);
}

/// C23, C41: many callers in several processes want the last places of several tenants: each gives away exactly those
/// it has.
#[test]
fn many_callers_get_exactly_the_places_there_are() {
    const PLACES: usize = 5;
    let site = Site::new();
    for tenant in 0..KEYS {
        let limits = Limits::new().backlog_max(PLACES);
        block_on(site.jobs.tenant(format!("tenant {tenant}")).set_limits(limits)).unwrap();
    }
    let said = race(&site, "ledger", &format!("places {KEYS} {TASKS}"), "place");
    let mut taken: BTreeMap<&str, usize> = BTreeMap::new();
    for line in said.iter().flatten().filter(|line| line[1] == "new") {
        *taken.entry(&line[0]).or_default() += 1;
    }
    assert_eq!(said.each_ref().map(Vec::len), [KEYS * TASKS; 2]);
    assert!(taken.len() == KEYS && taken.values().all(|&count| count == PLACES), "{taken:?}");
    let mut client = site.client();
    let jobs = "SELECT count(*) FROM job";
    assert_eq!(number(&mut client, jobs, &[]), i64::try_from(KEYS * PLACES).unwrap());
    crate::judge::approve(&mut client, "a race for places");
}

fn race_for_keys(site: &Site, conflict: &str) -> [Vec<Vec<String>>; 2] {
    race(site, "live_key", &format!("keys {KEYS} {TASKS} {conflict}"), "key")
}

/// Two processes do the same, many things at a time. Nobody can write to the table before both are about to, and have
/// seen what was there. Answers what they say with this word.
fn race(site: &Site, table: &str, order: &str, word: &str) -> [Vec<Vec<String>>; 2] {
    let mut processes = [site.process(LONG), site.process(LONG)];
    let (mut gun, mut watcher) = (site.client(), site.client());
    let mut held = gun.transaction().unwrap();
    held.batch_execute(&format!("LOCK TABLE {table} IN SHARE MODE")).unwrap();
    processes.iter_mut().for_each(|process| process.tell(order));
    let at_the_start = "SELECT count(DISTINCT a.application_name) FROM pg_stat_activity a
                        WHERE a.wait_event_type = 'Lock' AND a.application_name IN ($1, $2)";
    let names = processes.each_ref().map(Process::name);
    until("both are there", || number(&mut watcher, at_the_start, &[&names[0], &names[1]]) == 2);
    held.commit().unwrap();
    processes.each_mut().map(|process| {
        process.hear("raced");
        process.heard(word)
    })
}

/// Nobody works here, so everything that was taken in waits or was replaced.
fn one_live_job_per_key(site: &Site, replaced: usize) {
    let mut client = site.client();
    let live =
        "SELECT count(*) FROM job j JOIN live_key k ON k.job = j.id AND k.key = j.unique_key AND k.tenant = j.tenant";
    let keys = i64::try_from(KEYS).unwrap();
    assert_eq!(number(&mut client, live, &[]), keys);
    assert_eq!(number(&mut client, "SELECT count(*) FROM job", &[]), keys);
    assert_eq!(number(&mut client, "SELECT count(*) FROM live_key", &[]), keys);
    let cancelled = "SELECT count(*) FROM history WHERE outcome = 'cancelled'";
    assert_eq!(number(&mut client, cancelled, &[]), i64::try_from(replaced).unwrap());
    crate::judge::approve(&mut client, "a race for keys");
}
