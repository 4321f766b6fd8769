//! The ends of runs, those of a node together.
//!
//! A node says each of them until it was heard. So none may be such that it can never be written: a text that the
//! database cannot hold is written in other words, and its neighbours do not wait for that. Nor do they for a job that
//! somebody's open transaction has in hand.

use std::fmt::Write as _;
use std::time::Duration;

use punctual::Stage;
use tokio_postgres::types::Type;

use super::Shared;
use super::coalesce::LOCK_WAIT;
use super::connect::Function;
use super::error::{Fault, Kind};
use super::rows::{Parameter, Reader, moment, node_sql, uuid};
use crate::id::NodeId;
use crate::state::{Outcome, State};
use crate::store::{Finish, Finished, Moment, Verdict};

const FINISH: Function = Function::new("finish", "finish jobs").of_node();

/// How long to wait for a lock while those who must wait are told apart from those who need not.
const LOCK_WAIT_APART: Duration = Duration::from_millis(5);

impl Shared {
    /// One commit, unless one of them does not fit or is held up by a lock: then halves, until it is found.
    pub(super) async fn finish(&self, node: NodeId, finishes: Vec<Finish>) -> Result<Vec<Finished>, Fault> {
        // Rows are locked in this order: by everybody in the same one, so that nobody waits for each other.
        let mut order: Vec<usize> = (0..finishes.len()).collect();
        order.sort_by_key(|&place| finishes[place].id);
        let mut finished = vec![Finished::Stale; finishes.len()];
        let mut parts = vec![&order[..]];
        let (mut beyond_help, mut lock_wait) = (None, LOCK_WAIT);
        while let Some(part) = parts.pop() {
            let sorted: Vec<&Finish> = part.iter().map(|&place| &finishes[place]).collect();
            let answers = match self.call_to_finish(node, &sorted, lock_wait).await {
                Err(fault) if matches!(fault.kind, Kind::Data | Kind::Held) && part.len() > 1 => {
                    if fault.kind == Kind::Held {
                        lock_wait = LOCK_WAIT_APART;
                    }
                    let (first, second) = part.split_at(part.len() / 2);
                    parts.extend([second, first]);
                    continue;
                }
                Err(fault) if fault.kind == Kind::Data => self.finish_in_other_words(node, sorted[0], fault).await,
                answers => answers,
            };
            match answers {
                Err(fault) if fault.kind == Kind::Held => finished[part[0]] = Finished::Held,
                Ok(answers) => part.iter().zip(answers).for_each(|(&place, answer)| finished[place] = answer),
                // Then it is not the text. The node hears of it after the others have ended.
                Err(fault) if fault.kind == Kind::Data => beyond_help = Some(fault),
                Err(fault) => return Err(fault),
            }
        }
        beyond_help.map_or(Ok(finished), Err)
    }

    /// The end of a run that does not fit: spelled out in ASCII, which fits everywhere; if it is not for its letters,
    /// with a note instead of them.
    async fn finish_in_other_words(&self, node: NodeId, finish: &Finish, fault: Fault) -> Result<Vec<Finished>, Fault> {
        let end = |verdict| Finish { verdict, ..finish.clone() };
        let Some(spelled) = reworded(&finish.verdict, ascii) else { return Err(fault) };
        tracing::warn!(target: "punctual", id = %finish.id, error = %fault.told, "what a job ended with does not fit");
        match self.call_to_finish(node, &[&end(spelled)], LOCK_WAIT).await {
            Err(fault) if fault.kind == Kind::Data => {
                let note = ascii(&format!("its result could not be stored: {}", fault.told));
                let noted = match &finish.verdict {
                    Verdict::Succeeded(_) => Verdict::Failed(note),
                    other => reworded(other, |_| note).unwrap_or_else(|| other.clone()),
                };
                self.call_to_finish(node, &[&end(noted)], LOCK_WAIT).await
            }
            answers => answers,
        }
    }

    /// The ends of runs, in the order of their ids; so are the answers.
    async fn call_to_finish(
        &self,
        node: NodeId,
        finishes: &[&Finish],
        lock_wait: Duration,
    ) -> Result<Vec<Finished>, Fault> {
        let (by, at) = (node_sql(node), self.clock.given());
        let ids: Vec<_> = finishes.iter().map(|finish| uuid(finish.id)).collect();
        let fences: Vec<i64> = finishes.iter().map(|finish| finish.fence.cast_signed()).collect();
        let said: Vec<_> = finishes.iter().map(|finish| said(&finish.verdict)).collect();
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
        let rows = self.database.call_hurried(FINISH, &parameters, lock_wait).await?;
        let mut finished = vec![Finished::Stale; finishes.len()];
        let (mut ended, mut is_waiting, mut has_room) = (Vec::new(), false, None::<bool>);
        for row in &rows {
            let mut read = Reader::new(FINISH.what, row);
            let number = read.number::<usize>()?;
            let state = maybe_state(&mut read)?;
            if number == 0 {
                // All have ended as was said.
                let done = |finish: &&Finish| Finished::Done(State::new(Stage::Stopped, outcome(&finish.verdict)));
                finished = finishes.iter().map(done).collect();
                ended = finishes.iter().map(|finish| finish.id).collect();
                has_room = read.next()?;
                break;
            }
            let (Some(Finish { id, verdict, .. }), Some(state)) = (finishes.get(number - 1), state) else { continue };
            finished[number - 1] = Finished::Done(state);
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
    // The error of a handler is for people to read. That it cannot be written as it stands must not keep the job from
    // ending.
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

/// A verdict in other words, if it has any.
fn reworded(verdict: &Verdict, words: impl FnOnce(&str) -> String) -> Option<Verdict> {
    match verdict {
        Verdict::Succeeded(result) => Some(Verdict::Succeeded(words(result))),
        Verdict::Failed(error) => Some(Verdict::Failed(words(error))),
        Verdict::Retry { at, error } => Some(Verdict::Retry { at: *at, error: words(error) }),
        Verdict::Cancelled(reason) => Some(Verdict::Cancelled(words(reason))),
        Verdict::Snooze(_) | Verdict::Release | Verdict::Stopped => None,
    }
}

/// A text with all but ASCII as JSON escapes it: so JSON, such as a result, means the same.
fn ascii(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_ascii() && c != '\0' {
            plain.push(c);
        } else {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                let _ = write!(plain, "\\u{unit:04x}");
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_that_is_spelled_out_means_the_same() {
        let result = serde_json::to_string("a → b, \u{1f600}, \"é\" \\ \u{7f}").unwrap();
        let spelled = ascii(&result);
        assert!(spelled.is_ascii(), "{spelled}");
        let [before, after] = [result, spelled].map(|text| serde_json::from_str::<String>(&text).unwrap());
        assert_eq!(after, before);
        assert_eq!(ascii("a\0b"), "a\\u0000b");
    }
}
