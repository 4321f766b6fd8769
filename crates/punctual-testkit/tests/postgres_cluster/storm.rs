//! A storm: nodes die, freeze and restart under load, while limits change, by dice. After the first storm the server
//! crashes too, now and then.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use fastrand::Rng;
use postgres::{Client, NoTls};
use punctual::Clock;
use punctual_durable::JobId;
use punctual_testkit::cluster::{Stubborn, Work, pause};
use punctual_testkit::postgres::{Schema, Server};
use punctual_testkit::seeds;

use crate::judge::{Report, approve};
use crate::process::Process;
use crate::site::{LEASE, Site, enqueue, number, until};

const NODES: usize = 4;

/// The tenants, and how many of their jobs may run at once; the limit of the second changes all the time.
const TENANTS: [(&str, Option<usize>); 4] =
    [("two", Some(2)), ("swings", Some(SWINGS)), ("seven", Some(7)), ("free", None)];
const SWINGS: usize = 4;

/// C36, C37, C38, C39, C40, C41: several nodes on one store, killed, stopped beyond their leases and restarted, while
/// limits change: no limit is exceeded, every job ends once, nothing runs twice without a higher fence, and in the end
/// every limit can be used to the full.
#[test]
fn a_cluster_keeps_its_promises_in_a_storm() {
    let mut seen = Seen::default();
    for seed in seeds(1) {
        let mut storm = Storm::new(seed);
        storm.rage();
        seen.add(storm.calm());
    }
    // A storm without accidents would prove nothing.
    assert!(seen.lost > 0 && seen.again > 0 && seen.at_limit > 0, "{seen:?}");
    assert!(seen.killed > 0 && seen.frozen > 0 && seen.restarted > 0 && seen.swung > 0, "{seen:?}");
}

/// What happened in all storms together.
#[derive(Debug, Default)]
struct Seen {
    lost: i64,
    again: i64,
    at_limit: i64,
    killed: usize,
    frozen: usize,
    restarted: usize,
    swung: usize,
}

impl Seen {
    fn add(&mut self, (report, storm): (Report, Storm)) {
        self.lost += report.lost;
        self.again += report.again;
        self.at_limit += report.at_limit;
        self.killed += storm.killed;
        self.frozen += storm.frozen;
        self.restarted += storm.restarted;
        self.swung += storm.swung;
    }
}

struct Storm {
    seed: u64,
    dice: Rng,
    // Before the site, so that nobody is at work there when it goes.
    nodes: Vec<Process>,
    sampler: Sampler,
    site: Site,
    /// If it is the storm's own, to be crashed.
    server: Option<Server>,
    acknowledged: Vec<JobId>,
    killed: usize,
    frozen: usize,
    restarted: usize,
    /// How often the limit that swings was another one than before, and which it is.
    swung: usize,
    swings: usize,
}

impl Storm {
    fn new(seed: u64) -> Self {
        let server = (seed > 0).then(Server::start);
        let site = server.as_ref().map_or_else(Site::new, |server| Site::at(Schema::at(server.url())));
        for (tenant, max) in TENANTS {
            site.set_limit(tenant, max);
        }
        let nodes: Vec<Process> = (0..NODES).map(|_| site.node(LEASE)).collect();
        let sampler = Sampler::start(site.schema.url(), site.schema.name());
        let (dice, acknowledged) = (Rng::with_seed(seed), Vec::new());
        let (killed, frozen, restarted, swung, swings) = (0, 0, 0, 0, SWINGS);
        Self { seed, dice, nodes, sampler, site, server, acknowledged, killed, frozen, restarted, swung, swings }
    }

    /// Trouble of each kind, and more by chance, for as long as there is time.
    fn rage(&mut self) {
        let clock = Clock::system();
        let seconds = std::env::var("PUNCTUAL_STORM").ok().and_then(|text| text.parse().ok()).unwrap_or(5);
        let until = clock.now() + Duration::from_secs(seconds);
        let mut step = 0;
        while step < 8 || clock.now() < until {
            for _ in 0..self.dice.usize(1..4) {
                self.enqueue();
            }
            let at = self.dice.usize(..NODES);
            match if step < 5 { step } else { self.dice.u32(0..7) } {
                0 => self.kill(at),
                1 => self.freeze(at),
                2 => self.restart(at),
                3 => self.crash_the_server(),
                _ => self.swing(),
            }
            step += 1;
        }
    }

    /// Another limit, from 1 to 6.
    fn swing(&mut self) {
        self.swings = (self.swings - 1 + self.dice.usize(1..6)) % 6 + 1;
        self.site.set_limit("swings", Some(self.swings));
        self.swung += 1;
        pause(Duration::from_millis(self.dice.u64(1..300)));
    }

    fn enqueue(&mut self) {
        let (tenant, _) = TENANTS[self.dice.usize(..TENANTS.len())];
        let plan =
            self.site.jobs.tenant(tenant).after(Duration::from_millis(self.dice.u64(0..2) * self.dice.u64(0..1_500)));
        let millis = self.dice.u64(0..30);
        let count = self.dice.usize(50..150);
        let ids = if self.dice.u32(0..5) == 0 {
            enqueue(&plan, (0..count / 4).map(|_| Stubborn { millis }))
        } else {
            enqueue(&plan, (0..count).map(|_| Work { millis }))
        };
        self.acknowledged.extend(ids);
    }

    /// Has a node run something that takes a while, so that there is something to be lost: all others together cannot
    /// run all of this.
    fn occupy(&mut self, at: usize) {
        let jobs = enqueue(&self.site.jobs.tenant("free").now(), (0..(NODES + 1) * 8).map(|_| Work { millis: 1_000 }));
        let (mut client, name) = (self.site.client(), self.nodes[at].name());
        let begun = "SELECT count(*) FROM witness WHERE process = $1 AND job::text = ANY ($2)";
        let ids: Vec<String> = jobs.iter().map(ToString::to_string).collect();
        until("a node is occupied", || number(&mut client, begun, &[&name, &ids]) > 0);
        self.acknowledged.extend(jobs);
    }

    fn kill(&mut self, at: usize) {
        let new = self.site.node(LEASE);
        self.occupy(at);
        std::mem::replace(&mut self.nodes[at], new).kill();
        self.killed += 1;
    }

    /// Stops a node until the others have taken what it had, and lets it go on.
    fn freeze(&mut self, at: usize) {
        let before = self.nodes[at].status().node;
        self.occupy(at);
        self.nodes[at].freeze();
        let mut client = self.site.client();
        let gone = "SELECT count(*) FROM leases WHERE what = 'gone' AND node = $1";
        until("a stopped node is taken for dead", || number(&mut client, gone, &[&before.cast_signed()]) > 0);
        self.nodes[at].thaw();
        until("it is another one from now on", || self.nodes[at].status().node != before);
        self.frozen += 1;
    }

    fn restart(&mut self, at: usize) {
        let new = self.site.node(LEASE);
        let grace = Duration::from_millis(self.dice.u64(0..100));
        std::mem::replace(&mut self.nodes[at], new).stop(grace);
        self.restarted += 1;
    }

    fn crash_the_server(&mut self) {
        if let Some(server) = &self.server {
            server.stop();
            pause(Duration::from_millis(self.dice.u64(0..4_000)));
            server.start_again();
        }
    }

    /// No more trouble: everything comes to its end, and is judged.
    fn calm(mut self) -> (Report, Self) {
        let story = format!("PUNCTUAL_SEED={}", self.seed);
        let mut client = self.site.client();
        until("everything has ended", || {
            number(&mut client, "SELECT (SELECT count(*) FROM job) + (SELECT count(*) FROM sched)", &[]) == 0
        });
        let snapshots = self.sampler.stop(&story);
        assert!(snapshots > 50, "{snapshots} snapshots are not many");
        let rows = client.query("SELECT id::text, outcome, count(*) OVER (PARTITION BY id) FROM history", &[]).unwrap();
        let mut ended = BTreeSet::new();
        for row in rows {
            assert_eq!((row.get(1), row.get(2)), ("succeeded", 1_i64), "{story}: job {}", row.get::<_, &str>(0));
            ended.insert(row.get::<_, &str>(0).parse::<JobId>().unwrap());
        }
        let lost = self.acknowledged.iter().filter(|id| !ended.contains(id)).count();
        assert_eq!((lost, ended.len()), (0, self.acknowledged.len()), "{story}: acknowledged, and lost");
        let swung = number(&mut client, "SELECT count(*) FROM limit_log WHERE tenant = 'swings'", &[]);
        // And once when it was set at first.
        assert_eq!(swung, 1 + i64::try_from(self.swung).unwrap(), "{story}: limits changed under load");
        let report = approve(&mut client, &story);
        self.use_limits_to_the_full(&mut client);
        approve(&mut client, &story);
        eprintln!("{story}: {report:?}, {snapshots} snapshots");
        (report, self)
    }

    /// C36: nothing has leaked: exactly as many run as may.
    fn use_limits_to_the_full(&mut self, client: &mut Client) {
        self.site.set_limit("swings", Some(SWINGS));
        for (tenant, max) in TENANTS {
            let Some(max) = max else { continue };
            self.site.hold(tenant, max + 3);
            let max = i64::try_from(max).unwrap();
            let running = "SELECT count(*) FROM job WHERE tenant = $1 AND stage = 'running'";
            until("the limit is used to the full", || number(client, running, &[&tenant]) == max);
        }
        for node in &mut self.nodes {
            node.ask("open", "opened");
        }
        until("what was held has ended", || number(client, "SELECT count(*) FROM job", &[]) == 0);
    }
}

/// Looks at the store from outside, all the time: in no snapshot does a tenant run more than it may. After a limit was
/// lowered that holds from the first claim on that began under it.
struct Sampler {
    is_over: Arc<AtomicBool>,
    snapshots: Arc<AtomicU64>,
    thread: Option<JoinHandle<Vec<String>>>,
}

const ABOVE: &str = "
    SELECT t.name || ' runs ' || count(*) || ' of ' || t.running_max
    FROM tenant t JOIN job j ON j.tenant = t.name AND j.stage = 'running'
    WHERE t.running_max IS NOT NULL
    GROUP BY t.name, t.running_max
    HAVING count(*) > t.running_max
       AND max(j.started_at) > coalesce((SELECT max(l.at) FROM limit_log l WHERE l.tenant = t.name), 0)";

impl Sampler {
    fn start(url: &str, schema: &str) -> Self {
        let (is_over, snapshots) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (ends, count) = (is_over.clone(), snapshots.clone());
        let config = format!("{url}?options=-csearch_path%3D{schema}");
        let thread = std::thread::spawn(move || {
            let mut above = Vec::new();
            let mut client = None;
            while !ends.load(Ordering::Relaxed) {
                pause(Duration::from_millis(3));
                client = client.or_else(|| Client::connect(&config, NoTls).ok());
                // The server may be away.
                match client.as_mut().map(|client| client.query(ABOVE, &[])) {
                    Some(Ok(rows)) => above.extend(rows.iter().map(|row| row.get::<_, String>(0))),
                    _ => client = None,
                }
                count.fetch_add(u64::from(client.is_some()), Ordering::Relaxed);
            }
            above
        });
        Self { is_over, snapshots, thread: Some(thread) }
    }

    /// Answers how many snapshots it took.
    fn stop(&mut self, story: &str) -> u64 {
        self.is_over.store(true, Ordering::Relaxed);
        let above = self.thread.take().unwrap().join().unwrap();
        assert!(above.is_empty(), "{story}: {above:?}");
        self.snapshots.load(Ordering::Relaxed)
    }
}
