//! One simulated node: what it knows, which is not always what is.

use fastrand::Rng;
use punctual_durable::{Finished, Moment, NodeId, Record, Timestamp, Verdict};

use super::LEASE;
use super::witness::Witness;
use crate::{Bed, SECOND, beat};

pub(super) struct Node {
    pub(super) id: NodeId,
    /// What it runs, and when each run is over.
    runs: Vec<(Record, Timestamp)>,
    beats_at: Timestamp,
    /// It does nothing before this: it crashed and is restarted, or its process is paused.
    away_until: Option<Timestamp>,
    /// It was not paused but killed: it comes back with nothing.
    died: bool,
}

impl Node {
    pub(super) fn join(id: NodeId, bed: &Bed) -> Self {
        bed.join(id, &["k"]);
        Self { id, runs: Vec::new(), beats_at: bed.now().after(LEASE / 3), away_until: None, died: false }
    }

    /// What a node does when it is its turn, and what is done to it.
    pub(super) fn act(
        &mut self,
        new_name: NodeId,
        in_trouble: bool,
        rng: &mut Rng,
        bed: &Bed,
        witness: &mut Witness,
    ) -> Result<(), String> {
        let now = bed.now();
        let one_in = |rng: &mut Rng, times: u32| in_trouble && rng.u32(0..times) == 0;
        if self.away_until.is_some_and(|until| until > now) {
            return Ok(());
        }
        self.away_until = None;
        if std::mem::take(&mut self.died) {
            *self = Self::join(new_name, bed);
        }
        if one_in(rng, 60) {
            self.died = rng.bool();
            self.away_until = Some(now.after(SECOND * rng.u32(1..30)));
            return Ok(());
        }
        // Whoever comes back from a pause does not know it, and finishes first: this is what fences are for.
        self.finish_what_is_over(in_trouble, rng, bed, witness)?;
        if one_in(rng, 80) {
            bed.ask(|store| store.leave(self.id));
            witness.left(self.id);
            *self = Self::join(new_name, bed);
        }
        if self.beats_at <= now {
            let pulse = bed.ask(|store| store.heartbeat(beat(self.id, &["k"])));
            if one_in(rng, 10) {
                witness.summary.unheard += 1;
            } else if !pulse.known {
                *self = Self::join(new_name, bed);
            } else {
                self.beats_at = now.after(LEASE / 3);
                // What it is told to stop is over now.
                for (run, ends_at) in &mut self.runs {
                    if pulse.stop.contains(&(run.job.id, run.fence)) {
                        *ends_at = now;
                    }
                }
            }
        }
        if rng.u32(0..4) == 0 {
            let before = bed.ask(|store| store.nodes());
            let lost = bed.ask(|store| store.tend()).lost;
            let after = bed.ask(|store| store.nodes());
            witness.tended(&before, &after, lost)?;
        }
        self.claim(new_name, in_trouble, rng, bed, witness)
    }

    fn claim(
        &mut self,
        new_name: NodeId,
        in_trouble: bool,
        rng: &mut Rng,
        bed: &Bed,
        witness: &mut Witness,
    ) -> Result<(), String> {
        let room = 4usize.saturating_sub(self.runs.len());
        let claimed = bed.claim_as(self.id, rng.usize(0..4), &[("k", room)]).jobs;
        witness.claimed(self.id, &claimed)?;
        if in_trouble && !claimed.is_empty() && rng.u32(0..15) == 0 {
            // It does not know what it was given, and would keep it for ever: it gives everything back and starts anew.
            witness.summary.unheard += 1;
            bed.ask(|store| store.leave(self.id));
            witness.left(self.id);
            *self = Self::join(new_name, bed);
            return Ok(());
        }
        let now = bed.now();
        self.runs.extend(claimed.into_iter().map(|run| (run, now.after(SECOND * rng.u32(0..12)))));
        Ok(())
    }

    fn finish_what_is_over(
        &mut self,
        in_trouble: bool,
        rng: &mut Rng,
        bed: &Bed,
        witness: &mut Witness,
    ) -> Result<(), String> {
        let now = bed.now();
        let (over, still): (Vec<_>, Vec<_>) = self.runs.drain(..).partition(|(_, ends_at)| *ends_at <= now);
        self.runs = still;
        for (run, ends_at) in over {
            let verdict = match rng.u32(0..20) {
                0..14 => Verdict::Succeeded("1".into()),
                14..17 => Verdict::Retry { at: Moment::After(SECOND * rng.u32(0..5)), error: "no".into() },
                17 => Verdict::Snooze(Moment::After(SECOND)),
                18 => Verdict::Release,
                _ => Verdict::Failed("no".into()),
            };
            let finished: Finished = bed.finish_as(self.id, run.job.id, run.fence, verdict);
            witness.finished(self.id, &run, finished)?;
            if in_trouble && rng.u32(0..12) == 0 {
                // It did not hear that, and says it again the next time.
                witness.summary.unheard += 1;
                self.runs.push((run, ends_at));
            }
        }
        Ok(())
    }
}
