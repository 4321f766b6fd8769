//! What can happen, and the dice. Operations do not depend on answers, so that a history can be replayed and cut.

use std::time::Duration;

use fastrand::Rng;
use punctual::{Limits, Missed, Rate};
use punctual_durable::{
    Edit, JobId, Moment, NewJob, NodeId, OnConflict, Retention, Rule, Schedule, TenantPolicy, Timestamp, Unique,
    Verdict,
};

use crate::{SECOND, job};

/// One operation.
#[derive(Debug, Clone)]
pub(super) enum Op {
    Enqueue(Vec<NewJob>),
    Claim {
        node: NodeId,
        max: usize,
        kinds: Vec<(String, usize)>,
        ahead: usize,
    },
    /// Of the runs that were ever given out, counted from the last; by a wrong node or fence, if so.
    Finish {
        back: usize,
        wrong_node: bool,
        wrong_fence: bool,
        verdict: Verdict,
    },
    Cancel(JobId),
    Edit(JobId, Edit),
    Explain(JobId),
    Redrive(JobId),
    Want(JobId, NodeId),
    Unwant(JobId, NodeId),
    Advance(Duration),
    Tend,
    /// So much time that all nodes are dead, if there are leases; then the first comes back.
    Crash,
    Join(NodeId),
    Beat(NodeId),
    Leave(NodeId),
    SetTenant(String, TenantPolicy),
    CancelTenant(String),
    Erase(String),
    Prune(Retention),
    Purge(Vec<JobId>),
    PutSchedule(Box<Schedule>),
    RemoveSchedule(String),
    PauseSchedule(String, bool),
    /// The next tick of a schedule, or a wrong one.
    Fire {
        schedule: String,
        wrong: bool,
        missed: u64,
        job: Option<Box<NewJob>>,
    },
}

/// The tenants of a history, in the order in which the stores hear of them.
pub(super) const TENANTS: [&str; 3] = ["red", "green", "blue"];
const KINDS: [&str; 2] = ["k", "other"];

/// The same history for the same seed.
pub(super) fn history(seed: u64, length: usize) -> Vec<Op> {
    let mut dice = Dice { rng: Rng::with_seed(seed), jobs: 0 };
    (0..length).map(|_| dice.op()).collect()
}

struct Dice {
    rng: Rng,
    jobs: u128,
}

impl Dice {
    fn op(&mut self) -> Op {
        match self.rng.u32(0..100) {
            0..16 => Op::Enqueue((0..self.rng.usize(1..4)).map(|_| self.new_job()).collect()),
            16..22 => Op::Enqueue(self.alike()),
            22..38 => self.claim(),
            38..54 => self.finish(),
            54..66 => Op::Advance(self.duration()),
            66..70 => Op::Cancel(self.id()),
            70..73 => Op::Edit(self.id(), self.edit()),
            73..76 => Op::Redrive(self.id()),
            76..78 => Op::Explain(self.id()),
            78..82 => Op::Tend,
            82..84 => Op::Beat(self.node()),
            84 => Op::Join(self.node()),
            85 => Op::Leave(self.node()),
            86 => Op::Want(self.id(), self.node()),
            87 => Op::Unwant(self.id(), self.node()),
            88..92 => Op::SetTenant(self.tenant(), self.policy()),
            92 => self.rare(),
            93 => Op::PutSchedule(Box::new(self.schedule())),
            94 => Op::PauseSchedule(self.schedule_name(), self.rng.bool()),
            95 => Op::Crash,
            96.. => Op::Fire {
                schedule: self.schedule_name(),
                wrong: self.rng.u8(0..6) == 0,
                missed: self.rng.u64(0..3),
                job: (self.rng.u8(0..5) > 0).then(|| Box::new(self.new_job())),
            },
        }
    }

    /// What would end most histories early.
    fn rare(&mut self) -> Op {
        match self.rng.u8(0..6) {
            0 => Op::CancelTenant(self.tenant()),
            1 => Op::Erase(self.tenant()),
            2 => Op::RemoveSchedule(self.schedule_name()),
            3 => Op::Purge((0..4).map(|_| self.id()).collect()),
            _ => {
                let [succeeded, failed, cancelled, expired] = [(); 4].map(|()| self.duration());
                Op::Prune(Retention { succeeded, failed, cancelled, expired })
            }
        }
    }

    fn new_job(&mut self) -> NewJob {
        // Now and then one that is known already; ids do not rise, so that arrival is not their order.
        let is_new = self.jobs == 0 || self.rng.u8(0..20) > 0;
        self.jobs += u128::from(is_new);
        let due = self.moment(3);
        let start_within = (self.rng.u8(0..4) == 0).then(|| self.duration());
        let deadline = (self.rng.u8(0..4) == 0).then(|| self.moment(0));
        let keyed = self.rng.u8(0..3) == 0;
        let wanted = self.rng.u8(0..5) == 0;
        NewJob {
            kind: self.kind(),
            tenant: self.tenant(),
            payload: format!("[{}]", self.jobs),
            tags: if self.rng.bool() { vec!["a".into()] } else { Vec::new() },
            priority: self.rng.i8(-1..2),
            cost: self.rng.u32(0..4),
            due,
            start_within,
            deadline,
            max_crashes: [1, 2, 2, 2, 3][self.rng.usize(0..5)],
            unique: keyed.then(|| self.unique()),
            wanted_by: wanted.then(|| self.node()),
            missed: self.rng.u64(0..3),
            is_id_fresh: is_new && self.rng.bool(),
            ..job(scramble(self.jobs))
        }
    }

    /// What one plan enqueues: new jobs that differ in nothing else, and about which nothing is to be decided.
    fn alike(&mut self) -> Vec<NewJob> {
        let first = NewJob {
            start_within: None,
            deadline: None,
            unique: None,
            wanted_by: None,
            missed: 0,
            is_id_fresh: true,
            ..self.new_job()
        };
        let count = self.rng.u128(1..5);
        let ids = (self.jobs + 1..=self.jobs + count).map(|number| JobId::from_u128(scramble(number)));
        self.jobs += count;
        ids.map(|id| NewJob { id, ..first.clone() }).collect()
    }

    fn unique(&mut self) -> Unique {
        let rules = [OnConflict::Reject, OnConflict::Join, OnConflict::Replace];
        Unique {
            key: format!("key-{}", self.rng.u8(0..2)),
            on_conflict: rules[self.rng.usize(0..3)],
            period: (self.rng.u8(0..3) == 0).then(|| self.duration()),
        }
    }

    fn claim(&mut self) -> Op {
        let both = self.rng.u8(0..3) > 0;
        // Now and then all that is ready, and what is about to be.
        let sizes = if self.rng.u8(0..3) == 0 { 6..12 } else { 0..4 };
        let kinds = KINDS.iter().filter(|&&kind| both || kind == "k");
        let kinds = kinds.map(|&kind| (kind.to_owned(), self.rng.usize(sizes.clone()))).collect();
        Op::Claim { node: self.node(), max: self.rng.usize(sizes.clone()), kinds, ahead: self.rng.usize(sizes) }
    }

    fn finish(&mut self) -> Op {
        let verdict = match self.rng.u8(0..10) {
            0..4 => Verdict::Succeeded("[1]".into()),
            4 => Verdict::Failed("it failed".into()),
            5 => Verdict::Retry { at: self.moment(1), error: "it may work".into() },
            6 => Verdict::Snooze(self.moment(1)),
            7 => Verdict::Cancelled("moot".into()),
            8 => Verdict::Release,
            _ => Verdict::Stopped,
        };
        let wrong_node = self.rng.u8(0..12) == 0;
        Op::Finish { back: self.rng.usize(0..5), wrong_node, wrong_fence: self.rng.u8(0..12) == 0, verdict }
    }

    fn edit(&mut self) -> Edit {
        Edit {
            due: self.rng.bool().then(|| self.moment(1)),
            priority: self.rng.bool().then(|| self.rng.i8(-1..2)),
            payload: self.rng.bool().then(|| "\"edited\"".into()),
            deadline: (self.rng.u8(0..4) == 0).then(|| self.moment(0)),
            max_attempts: self.rng.bool().then(|| self.rng.u32(1..9)),
        }
    }

    fn policy(&mut self) -> TenantPolicy {
        let mut limits = Limits::new().weight(self.rng.u32(1..4));
        if self.rng.bool() {
            limits = limits.running_max(self.rng.usize(0..4));
        }
        if self.rng.bool() {
            limits = limits.backlog_max(self.rng.usize(0..6)).scheduled_max(self.rng.usize(0..4));
        }
        if self.rng.u8(0..3) == 0 {
            limits = limits.rate(Rate::per_second(self.rng.u32(1..4)).burst(self.rng.u32(1..3)));
        }
        TenantPolicy { limits, paused: self.rng.u8(0..8) == 0, closed: self.rng.u8(0..10) == 0 }
    }

    fn schedule(&mut self) -> Schedule {
        let name = self.schedule_name();
        Schedule {
            rule: Rule::Every { period: SECOND * self.rng.u32(1..3), anchor: Timestamp::from_micros(0) },
            missed: [Missed::Once, Missed::Skip, Missed::All { max: 3 }][self.rng.usize(0..3)],
            template: NewJob { tenant: self.tenant(), schedule: Some(name.clone()), ..job(0) },
            next: Some(Timestamp::from_micros(1_000_000_000_000_000 + self.rng.i64(0..20_000_000))),
            paused: self.rng.u8(0..5) == 0,
            last: None,
            fired: 0,
            missed_count: 0,
            name,
        }
    }

    /// At once `weight` times out of `weight + 4`.
    fn moment(&mut self, weight: u8) -> Moment {
        match self.rng.u8(0..weight + 4) {
            0 => Moment::At(Timestamp::from_micros(1_000_000_000_000_000 + self.rng.i64(-1_000_000..30_000_000))),
            1..4 => Moment::After(self.duration()),
            _ => Moment::NOW,
        }
    }

    /// Few different ones, so that instants meet.
    fn duration(&mut self) -> Duration {
        let millis = [0, 1, 250, 500, 1_000, 2_000, 4_000, 11_000];
        Duration::from_millis(millis[self.rng.usize(0..millis.len())])
    }

    fn id(&mut self) -> JobId {
        JobId::from_u128(scramble(self.rng.u128(0..self.jobs + 2)))
    }

    fn node(&mut self) -> NodeId {
        NodeId::from_u64([1, 1, 1, 2, 2, 3][self.rng.usize(0..6)])
    }

    fn tenant(&mut self) -> String {
        TENANTS[self.rng.usize(0..3)].to_owned()
    }

    fn kind(&mut self) -> String {
        KINDS[usize::from(self.rng.u8(0..4) == 0)].to_owned()
    }

    fn schedule_name(&mut self) -> String {
        format!("schedule-{}", self.rng.u8(0..2))
    }
}

/// A number for a number, in another order.
fn scramble(number: u128) -> u128 {
    (number * 7_919) % 100_003
}
