//! A simulated cluster: several nodes on one store, one virtual clock, one seed. No threads: each node is a few
//! numbers, and the dice say who acts next and what goes wrong.
//!
//! What goes wrong: nodes crash and come back under a new name; pause beyond their lease and then finish what they ran;
//! do not hear the answer to what was done; the clock is set forward and back; callers cancel; limits change. What must
//! hold all the same is in `witness.rs`, which believes only what it saw itself.
//!
//! Steps are counted, not timed: after a clock is set back an instant can come twice, a step cannot.

mod node;
mod witness;

use std::time::Duration;

use fastrand::Rng;
use punctual::{Limits, VirtualClock};
use punctual_durable::{JobId, MemoryStore, Moment, NewJob, NodeId, TenantPolicy};

use crate::{Bed, SECOND, job};
use node::Node;
use witness::Witness;

/// How long a node lives without a heartbeat.
const LEASE: Duration = Duration::from_secs(10);
const TENANTS: [&str; 3] = ["red", "green", "blue"];
const NODES: usize = 4;

/// What happened in a simulation: to see that it was not a quiet one.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// Jobs taken in.
    pub jobs: usize,
    /// Runs begun.
    pub runs: usize,
    /// Runs lost with their nodes.
    pub lost: usize,
    /// Finishes that came too late.
    pub stale: usize,
    /// Answers that were not heard.
    pub unheard: usize,
}

/// Lets a cluster live through `steps` of trouble and then come to rest.
///
/// # Errors
/// What was promised and not kept.
pub fn simulate(seed: u64, steps: usize) -> Result<Summary, String> {
    let mut cluster = Cluster::new(seed);
    for step in 0..steps {
        cluster.trouble().map_err(|broken| format!("at step {step}: {broken}"))?;
    }
    cluster.rest()?;
    Ok(cluster.witness.summary)
}

struct Cluster {
    rng: Rng,
    bed: Bed,
    nodes: Vec<Node>,
    witness: Witness,
    next_node: u64,
    next_job: u128,
}

impl Cluster {
    fn new(seed: u64) -> Self {
        let clock = VirtualClock::new();
        let bed = Bed::new(&clock, MemoryStore::with_lease(&clock, LEASE));
        let mut cluster = Self {
            rng: Rng::with_seed(seed),
            bed,
            nodes: Vec::new(),
            witness: Witness::default(),
            next_node: 100,
            next_job: 0,
        };
        for tenant in TENANTS {
            cluster.limit(tenant);
        }
        for _ in 0..NODES {
            let id = cluster.new_name();
            cluster.nodes.push(Node::join(id, &cluster.bed));
        }
        cluster
    }

    /// A name that was never used.
    fn new_name(&mut self) -> NodeId {
        self.next_node += 1;
        NodeId::from_u64(self.next_node)
    }

    /// One in so many times.
    fn one_in(&mut self, times: u32) -> bool {
        self.rng.u32(0..times) == 0
    }

    /// Some time passes, somebody asks for something, every node acts.
    fn trouble(&mut self) -> Result<(), String> {
        self.bed.advance(Duration::from_millis(self.rng.u64(1..1_500)));
        if self.one_in(100) {
            self.set_the_clock();
        }
        if self.one_in(2) {
            self.enqueue()?;
        }
        if self.one_in(8) && self.next_job > 0 {
            let id = JobId::from_u128(self.rng.u128(1..=self.next_job));
            let cancelled = self.bed.cancel(id);
            self.witness.cancelled(id, cancelled)?;
        }
        if self.one_in(20) {
            let tenant = TENANTS[self.rng.usize(0..TENANTS.len())];
            self.limit(tenant);
        }
        self.everybody_acts(true)
    }

    /// No more trouble: every job must come to its end, and every limit be usable to the full.
    fn rest(&mut self) -> Result<(), String> {
        for tenant in TENANTS {
            self.set_limits(tenant, Limits::new().running_max(3));
        }
        for step in 0.. {
            let totals = self.bed.totals();
            if totals.scheduled + totals.ready + totals.running == 0 {
                break;
            }
            if step == 2_000 {
                return Err(format!("not everything ends: {totals:?}"));
            }
            self.bed.advance(SECOND);
            self.everybody_acts(false)?;
        }
        self.witness.at_the_end(&self.bed)?;
        self.bed.assert_totals_are_true();
        for tenant in TENANTS {
            for _ in 0..4 {
                self.next_job += 1;
                let job = NewJob { tenant: tenant.to_owned(), ..job(self.next_job) };
                self.bed.take_in(job);
            }
        }
        let id = self.new_name();
        self.bed.join(id, &["k"]);
        let claimed = self.bed.claim_as(id, 100, &[("k", 100)]).jobs.len();
        if claimed == 3 * TENANTS.len() { Ok(()) } else { Err(format!("{claimed} of 9 permits are usable")) }
    }

    /// Forward beyond leases and deadlines, or back a little.
    fn set_the_clock(&mut self) {
        let wall = self.bed.clock.wall();
        let to = if self.rng.bool() { wall + Duration::from_secs(self.rng.u64(1..60)) } else { wall - 5 * SECOND };
        self.bed.clock.step_wall(to).unwrap();
    }

    fn enqueue(&mut self) -> Result<(), String> {
        self.next_job += 1;
        let wanted_by = self.one_in(8).then(|| self.nodes[self.rng.usize(0..NODES)].id);
        let job = NewJob {
            tenant: TENANTS[self.rng.usize(0..TENANTS.len())].to_owned(),
            due: if self.rng.bool() { Moment::NOW } else { Moment::After(SECOND * self.rng.u32(0..20)) },
            start_within: self.one_in(6).then(|| SECOND * self.rng.u32(1..30)),
            deadline: self.one_in(6).then(|| Moment::After(SECOND * self.rng.u32(21..60))),
            wanted_by,
            ..job(self.next_job)
        };
        let unheard = self.one_in(10);
        let mut answer = self.bed.enqueue(job.clone());
        if unheard {
            // The answer was lost, so it is asked again, under the same id.
            self.witness.summary.unheard += 1;
            answer = self.bed.enqueue(job.clone());
        }
        self.witness.enqueued(job.id, &job.tenant, &answer)
    }

    fn limit(&mut self, tenant: &str) {
        let limits = if self.one_in(3) { Limits::new() } else { Limits::new().running_max(self.rng.usize(1..4)) };
        self.set_limits(tenant, limits);
    }

    fn set_limits(&mut self, tenant: &str, limits: Limits) {
        self.bed.set_policy(tenant, TenantPolicy { limits, ..TenantPolicy::default() });
        self.witness.limits.insert(tenant.to_owned(), limits.running_max);
    }

    fn everybody_acts(&mut self, in_trouble: bool) -> Result<(), String> {
        let mut order: Vec<usize> = (0..NODES).collect();
        self.rng.shuffle(&mut order);
        for at in order {
            let name = self.new_name();
            let Self { rng, bed, nodes, witness, .. } = self;
            nodes[at].act(name, in_trouble, rng, bed, witness)?;
        }
        Ok(())
    }
}
