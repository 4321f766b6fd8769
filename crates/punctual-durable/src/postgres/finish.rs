//! The ends of runs, those of a node together.

use punctual::Stage;
use tokio_postgres::types::Type;

use super::Shared;
use super::connect::Function;
use super::error::Fault;
use super::rows::{Parameter, Reader, moment, node_sql, uuid};
use crate::id::NodeId;
use crate::state::{Outcome, State};
use crate::store::{Finish, Finished, Moment, Verdict};

const FINISH: Function = Function::new("finish", "finish jobs").of_node();

impl Shared {
    pub(super) async fn finish(&self, node: NodeId, finishes: Vec<Finish>) -> Result<Vec<Finished>, Fault> {
        let (by, at) = (node_sql(node), self.clock.given());
        // Rows are locked in this order: by everybody in the same one, so that nobody waits for each other.
        let mut order: Vec<usize> = (0..finishes.len()).collect();
        order.sort_by_key(|&place| finishes[place].id);
        let sorted = || order.iter().map(|&place| &finishes[place]);
        let ids: Vec<_> = sorted().map(|finish| uuid(finish.id)).collect();
        let fences: Vec<i64> = sorted().map(|finish| finish.fence.cast_signed()).collect();
        let said: Vec<_> = sorted().map(|finish| said(&finish.verdict)).collect();
        let verdicts: Vec<&str> = said.iter().map(|said| said.0).collect();
        let texts: Vec<Option<&str>> = said.iter().map(|said| said.1.as_deref()).collect();
        let (due_at, due_in): (Vec<_>, Vec<_>) = said.iter().map(|said| moment(said.2)).unzip();
        let parameters: [Parameter<'_>; 8] = [
            (&by, Type::INT8),
            (&ids, Type::UUID_ARRAY),
            (&fences, Type::INT8_ARRAY),
            (&verdicts, Type::TEXT_ARRAY),
            (&texts, Type::TEXT_ARRAY),
            (&due_at, Type::INT8_ARRAY),
            (&due_in, Type::INT8_ARRAY),
            (&at, Type::INT8),
        ];
        let rows = self.database.call(FINISH, "*", &parameters).await?;
        let mut finished = vec![Finished::Stale; finishes.len()];
        let (mut ended, mut is_waiting, mut has_room) = (Vec::new(), false, None::<bool>);
        for row in &rows {
            let mut read = Reader::new(FINISH.what, row);
            let number = read.number::<usize>()?;
            let state = maybe_state(&mut read)?;
            if number == 0 {
                // All have ended as was said.
                let done = |finish: &Finish| Finished::Done(State::new(Stage::Stopped, outcome(&finish.verdict)));
                finished = finishes.iter().map(done).collect();
                ended = finishes.iter().map(|finish| finish.id).collect();
                has_room = read.next()?;
                break;
            }
            let (Some(&place), Some(state)) = (order.get(number - 1), state) else { continue };
            let Finish { id, verdict, .. } = &finishes[place];
            finished[place] = Finished::Done(state);
            // The outcome of one that only stopped was told when it was settled.
            if state.outcome.is_some() && !matches!(verdict, Verdict::Stopped | Verdict::Release | Verdict::Snooze(_)) {
                ended.push(*id);
            }
            is_waiting |= state.is_waiting();
            has_room = has_room.max(read.next()?);
        }
        self.signals.ended(ended);
        match has_room {
            _ if is_waiting => self.tell_work(),
            Some(true) => self.tell_ready(),
            // A claim of this process, at the same moment, may have seen the limit and not this end.
            Some(false) => self.signals.ready(),
            None => {}
        }
        Ok(finished)
    }
}

/// A verdict's word, its text and its moment.
fn said(verdict: &Verdict) -> (&'static str, Option<String>, Option<Moment>) {
    // The error of a handler is for people to read. That it cannot be written as it stands must not keep the job from ending.
    let readable = |text: &String| Some(text.replace('\0', "\u{fffd}"));
    match verdict {
        Verdict::Succeeded(result) => ("succeeded", readable(result), None),
        Verdict::Failed(error) => ("failed", readable(error), None),
        Verdict::Retry { at, error } => ("retry", readable(error), Some(*at)),
        Verdict::Snooze(at) => ("snooze", None, Some(*at)),
        Verdict::Cancelled(reason) => ("cancelled", readable(reason), None),
        Verdict::Release => ("release", None, None),
        Verdict::Stopped => ("stopped", None, None),
    }
}

/// How a job has ended of which this was said, if it has.
fn outcome(verdict: &Verdict) -> Option<Outcome> {
    match verdict {
        Verdict::Succeeded(_) => Some(Outcome::Succeeded),
        Verdict::Failed(_) => Some(Outcome::Failed),
        Verdict::Cancelled(_) => Some(Outcome::Cancelled),
        Verdict::Retry { .. } | Verdict::Snooze(_) | Verdict::Release | Verdict::Stopped => None,
    }
}

fn maybe_state(read: &mut Reader<'_>) -> Result<Option<State>, Fault> {
    let (stage, outcome) = (read.maybe_stage()?, read.maybe_outcome()?);
    Ok(stage.map(|stage| State::new(stage, outcome)))
}
