//! C38: the state table, all of it: every operation in every state, compared with `State::after`.

use punctual::Stage;
use punctual_durable::{
    Cancelled, Edit, Edited, Finished, Moment, NewJob, Outcome, Record, Redriven, State, Step, Verdict,
};

use crate::{Bed, NODE, SECOND, job};

/// What is tried.
#[derive(Debug, Clone)]
enum Try {
    FallDue,
    Claim,
    Finish(Verdict),
    Cancel,
    Edit,
    Redrive,
    Leave,
    Deadline,
    Tend,
}

const HOUR: std::time::Duration = std::time::Duration::from_secs(3600);

fn tries() -> Vec<Try> {
    let retry = Verdict::Retry { at: Moment::After(9 * SECOND), error: "no".into() };
    let verdicts = [
        Verdict::Succeeded("1".into()),
        Verdict::Failed("no".into()),
        retry,
        Verdict::Snooze(Moment::After(9 * SECOND)),
        Verdict::Cancelled("moot".into()),
        Verdict::Release,
        Verdict::Stopped,
    ];
    let others = [Try::FallDue, Try::Claim, Try::Cancel, Try::Edit, Try::Redrive, Try::Leave, Try::Deadline, Try::Tend];
    verdicts.into_iter().map(Try::Finish).chain(others).collect()
}

/// The states a job can be in.
fn states() -> Vec<State> {
    let waiting = [State::SCHEDULED, State::READY, State::RUNNING];
    let stopping = [Outcome::Cancelled, Outcome::Expired].map(|outcome| State::new(Stage::Running, Some(outcome)));
    let ended = Outcome::ALL.map(|outcome| State::new(Stage::Stopped, Some(outcome)));
    waiting.into_iter().chain(stopping).chain(ended).collect()
}

/// Brings a fresh job into a state. Its deadline is an hour away, or in the next instant if it is to expire.
fn bring(bed: &Bed, id: u128, state: State) -> Record {
    let expires = state.outcome == Some(Outcome::Expired);
    let deadline = Some(Moment::After(if expires { SECOND } else { HOUR }));
    if state == State::SCHEDULED {
        let id = bed.take_in(NewJob { due: Moment::After(5 * SECOND), deadline, ..job(id) });
        return bed.get(id);
    }
    if state == State::READY {
        let id = bed.take_in(NewJob { deadline, ..job(id) });
        return bed.get(id);
    }
    let running = bed.running(NewJob { deadline, ..job(id) });
    match (state.stage, state.outcome) {
        (Stage::Running, Some(Outcome::Cancelled)) => {
            bed.cancel(running.job.id);
        }
        (_, Some(Outcome::Expired)) => {
            bed.advance(SECOND);
            if state.stage == Stage::Stopped {
                bed.finish(&running, Verdict::Stopped);
            }
        }
        (_, Some(Outcome::Succeeded)) => {
            bed.finish(&running, Verdict::Succeeded("1".into()));
        }
        (_, Some(Outcome::Failed)) => {
            bed.finish(&running, Verdict::Failed("no".into()));
        }
        (_, Some(Outcome::Cancelled)) => {
            bed.finish(&running, Verdict::Cancelled("moot".into()));
        }
        (_, None) => {}
    }
    bed.get(running.job.id)
}

/// The step that a try is in a state; `None` if it is no step there.
fn step(state: State, tried: &Try) -> Option<Step> {
    let runs = state.stage == Stage::Running;
    Some(match tried {
        Try::FallDue => Step::FallDue,
        Try::Claim => Step::Claim,
        Try::Finish(_) if !runs => return None,
        Try::Finish(_) if state.outcome.is_some() => Step::Stop,
        Try::Finish(Verdict::Succeeded(_)) => Step::End(Outcome::Succeeded),
        Try::Finish(Verdict::Failed(_)) => Step::End(Outcome::Failed),
        Try::Finish(Verdict::Cancelled(_)) => Step::End(Outcome::Cancelled),
        Try::Finish(_) => Step::Retry,
        Try::Cancel if runs => Step::Settle(Outcome::Cancelled),
        Try::Cancel => Step::End(Outcome::Cancelled),
        Try::Deadline if runs => Step::Settle(Outcome::Expired),
        Try::Deadline => Step::End(Outcome::Expired),
        Try::Edit => Step::Reschedule,
        Try::Redrive => Step::Redrive,
        Try::Leave if !runs => return None,
        Try::Leave => Step::Lose,
        Try::Tend => return None,
    })
}

/// Does it, and checks that the answer says the same as the table.
fn attempt(bed: &Bed, record: &Record, tried: &Try, possible: bool) {
    let id = record.job.id;
    match tried.clone() {
        Try::FallDue => bed.advance(5 * SECOND),
        Try::Deadline => bed.advance(HOUR),
        Try::Claim => assert_eq!(bed.claim(1).len(), usize::from(possible)),
        Try::Finish(verdict) => {
            let stale = bed.finish_as(NODE, id, record.fence, verdict) == Finished::Stale;
            assert_eq!(stale, !possible);
        }
        Try::Cancel => assert_eq!(matches!(bed.cancel(id), Cancelled::Now(_)), possible),
        Try::Edit => {
            let edit = Edit { due: Some(Moment::After(3 * SECOND)), ..Edit::default() };
            assert_eq!(bed.ask(|store| store.edit(id, edit)) == Edited::Done, possible);
        }
        Try::Redrive => assert_eq!(bed.ask(|store| store.redrive(id)) == Redriven::Done, possible),
        Try::Leave => {
            bed.ask(|store| store.leave(NODE));
            bed.join(NODE, &["k"]);
        }
        Try::Tend => drop(bed.ask(|store| store.tend())),
    }
}

/// C38
pub fn every_operation_in_every_state_does_what_the_table_says(bed: &Bed) {
    let mut id = 0;
    for state in states() {
        for tried in tries() {
            id += 1;
            // So that its lease, if there is one, is not what ends the run.
            bed.join(NODE, &["k"]);
            let before = bring(bed, id, state);
            assert_eq!(before.state, state, "could not bring a job into this state");
            let told = format!("{tried:?} in {state:?}");
            let after = step(state, &tried).and_then(|step| state.after(step));
            attempt(bed, &before, &tried, after.is_some());
            let record = bed.get(before.job.id);
            match after {
                None => assert_eq!(record, before, "{told}: nothing may change"),
                Some(State::SCHEDULED) if record.due <= bed.now() => assert_eq!(record.state, State::READY, "{told}"),
                Some(after) => assert_eq!(record.state, after, "{told}"),
            }
            bed.assert_totals_are_true();
            bed.ask(|store| store.erase("acme".into()));
            if bed.find(before.job.id).is_some() {
                bed.ask(|store| store.leave(NODE));
                bed.join(NODE, &["k"]);
            }
            assert_eq!(bed.find(before.job.id), None, "{told}: it is erased and stopped");
        }
    }
}
