//! Nodes: their signs of life, what they want, and what time brings.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use tokio_postgres::types::Type;

use super::Shared;
use super::connect::Function;
use super::error::{Fault, Kind};
use super::jobs::{PRESENT, next_instant};
use super::rows::{Parameter, Reader, SCHEDULE, count, micros, node, node_sql, schedules, uuid};
use crate::id::{JobId, NodeId};
use crate::store::{Beat, NodeRecord, Pulse, Tended};

const JOIN: Function = Function::new("join_node", "join").of_node().repeatable();
const HEARTBEAT: Function = Function::new("heartbeat", "beat").of_node().repeatable();
const GET_READY: Function = Function::new("get_ready", "get ready");
const LEAVE: Function = Function::new("leave", "leave").of_node().repeatable();
const TEND: Function = Function::new("tend", "tend the store").of_node().repeatable();
const DUE_SCHEDULES: Function = Function::new("due_schedules", "look for schedules to fire").of_node().repeatable();
const WANT: Function = Function::new("want", "want a job").repeatable();
const UNWANT: Function = Function::new("unwant", "stop wanting a job").repeatable();
const NODES: Function = Function::new("nodes", "look up the nodes").repeatable();

impl Shared {
    /// A process that runs nothing needs no lease to enqueue, and if its role may not have one, it goes without.
    pub(super) async fn join(&self, beat: Beat) -> Result<(), Fault> {
        match self.beat(JOIN, &beat).await {
            Err(fault) if fault.kind == Kind::Denied && beat.workers == 0 => {
                self.is_guest.store(true, Ordering::Release);
                return Ok(());
            }
            joined => joined?,
        };
        // Others may have thought that they were alone.
        self.notifier.greet();
        // The newest first: an older one may be what this process was before it lost its lease.
        self.change_nodes(|nodes| {
            nodes.retain(|&node| node != beat.node);
            nodes.insert(0, beat.node);
        });
        Ok(())
    }

    pub(super) async fn get_ready(&self, node: NodeId) -> Result<(), Fault> {
        let (node, at) = (node_sql(node), self.clock.given());
        self.database.call_on_several(GET_READY, &[(&node, Type::INT8), (&at, Type::INT8)]).await
    }

    pub(super) async fn heartbeat(&self, beat: Beat) -> Result<Pulse, Fault> {
        let rows = self.beat(HEARTBEAT, &beat).await?;
        let mut pulse = Pulse { known: false, running: Vec::new(), stop: Vec::new() };
        for row in &rows {
            let mut read = Reader::new(HEARTBEAT.what, row);
            pulse.known = true;
            let Some(id) = read.maybe_id()? else {
                let (_, _) = (read.next::<Option<i64>>()?, read.next::<Option<bool>>()?);
                self.notifier.has_company(read.next()?);
                continue;
            };
            let fence = read.next::<i64>()?.cast_unsigned();
            pulse.running.push((id, fence));
            if read.next()? {
                pulse.stop.push((id, fence));
            }
        }
        if !pulse.known {
            self.change_nodes(|nodes| nodes.retain(|&node| node != beat.node));
        }
        Ok(pulse)
    }

    async fn beat(&self, function: Function, beat: &Beat) -> Result<Vec<tokio_postgres::Row>, Fault> {
        let (node, workers, era) = (node_sql(beat.node), count(beat.workers), beat.era.cast_signed());
        let (lease, at, offset) = (micros(self.lease), self.clock.given(), self.clock.offset_us());
        let parameters: [Parameter<'_>; 9] = [
            (&node, Type::INT8),
            (&beat.name, Type::TEXT),
            (&beat.kinds, Type::TEXT_ARRAY),
            (&beat.paused, Type::TEXT_ARRAY),
            (&workers, Type::INT8),
            (&lease, Type::INT8),
            (&at, Type::INT8),
            (&offset, Type::INT8),
            (&era, Type::INT8),
        ];
        let mut answer = std::pin::pin!(self.database.call(function, "*", &parameters));
        // Before the third beat, which is to go by a connection that is sound, and is answered in time. Not before the
        // second: who is slow would have to make new connections for each, which takes him several times as long as an
        // answer.
        let silence = self.lease * 3 / 8;
        match tokio::time::timeout(silence, answer.as_mut()).await {
            Ok(answer) => answer,
            Err(_) => {
                self.database.doubt(silence);
                answer.await
            }
        }
    }

    /// Whether the role of this process may only enqueue: then it is no node, and has no lease.
    pub(super) fn is_guest(&self) -> bool {
        self.is_guest.load(Ordering::Acquire)
    }

    pub(super) async fn leave(&self, node: NodeId) -> Result<(), Fault> {
        if self.is_guest() {
            return Ok(());
        }
        let (id, at) = (node_sql(node), self.clock.given());
        self.database.call(LEAVE, "*", &[(&id, Type::INT8), (&at, Type::INT8)]).await?;
        self.change_nodes(|nodes| nodes.retain(|&other| other != node));
        // What it ran can run elsewhere; what only it wanted was cancelled.
        self.tell_work();
        self.signals.look();
        Ok(())
    }

    /// The nodes of this process. If another one is the first from now on, those who wait are written down as waiting
    /// there.
    fn change_nodes(&self, change: impl FnOnce(&mut Vec<NodeId>)) {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let before = nodes.first().copied();
        change(&mut nodes);
        if nodes.first().copied() != before {
            self.waits_anew.notify_one();
        }
    }

    /// Who waits in the name of this process: a node that is alive, or it would be forgotten.
    pub(super) fn waiting_node(&self) -> Option<NodeId> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner).first().copied()
    }

    pub(super) async fn tend(&self) -> Result<Tended, Fault> {
        let at = self.clock.given();
        let parameters: [Parameter<'_>; 1] = [(&at, Type::INT8)];
        let select = format!("r.promoted, r.expired, r.lost, r.next, r.has_ticks, {}", PRESENT.join(", "));
        let sent = self.clock.local().now();
        let rows = self.database.call(TEND, &select, &parameters).await?;
        let (mut tended, mut has_ticks) = (Tended::default(), false);
        if let Some(row) = rows.first() {
            let mut read = Reader::new(TEND.what, row);
            tended.promoted = read.number()?;
            tended.expired = read.number()?;
            tended.lost = read.number()?;
            tended.next = next_instant(read.next()?);
            has_ticks = read.next()?;
            self.clock.overheard(sent, (read.next()?, read.next()?));
        }
        if has_ticks {
            let rows = self.database.call(DUE_SCHEDULES, SCHEDULE, &parameters).await?;
            let (schedules, unreadable) = schedules(DUE_SCHEDULES.what, &rows)?;
            self.unreadable.lock().unwrap_or_else(PoisonError::into_inner).found(unreadable);
            tended.schedules = schedules;
        }
        if tended.promoted + tended.expired + tended.lost > 0 {
            self.signals.ready();
        }
        if tended.expired + tended.lost > 0 {
            self.signals.look();
        }
        Ok(tended)
    }

    pub(super) async fn want(&self, id: JobId, node: NodeId) -> Result<bool, Fault> {
        let (job, node, at) = (uuid(id), node_sql(node), self.clock.given());
        self.whether(WANT, &[(&job, Type::UUID), (&node, Type::INT8), (&at, Type::INT8)]).await
    }

    pub(super) async fn unwant(&self, id: JobId, node: NodeId) -> Result<(), Fault> {
        let (job, node, at) = (uuid(id), node_sql(node), self.clock.given());
        let parameters: [Parameter<'_>; 3] = [(&job, Type::UUID), (&node, Type::INT8), (&at, Type::INT8)];
        self.database.call(UNWANT, "*", &parameters).await?;
        // It may have been the last that wanted it.
        self.signals.ended([id]);
        self.tell_work();
        Ok(())
    }

    pub(super) async fn node_records(&self) -> Result<Vec<NodeRecord>, Fault> {
        let at = self.clock.given();
        let select = "r.id, r.name, r.kinds, r.paused, r.workers, r.era, r.expires_at, r.running, r.clock_offset";
        let rows = self.database.call(NODES, select, &[(&at, Type::INT8)]).await?;
        rows.iter().map(|row| node(&mut Reader::new(NODES.what, row))).collect()
    }
}
