//! Random histories: the store under test and the model live through the same operations on the same clock, and must
//! give the same answers and hold the same jobs after each of them.
//!
//! `PUNCTUAL_SEEDS` says how many, `PUNCTUAL_SEED` replays one. A history that tells the two apart is made
//! as short as leaving out operations makes it before it is shown.

mod op;
mod play;

use punctual::VirtualClock;

use crate::Bed;
use op::Op;

/// How long a history is.
const LENGTH: usize = 120;

/// Plays so many random histories, unless others are asked for, on the store and on the model.
///
/// # Panics
/// When they differ: with the seed and the shortest history found.
pub fn compare(open: impl Fn(&VirtualClock) -> Bed, usual: u64) {
    for seed in crate::seeds(usual) {
        let ops = op::history(seed, LENGTH);
        if let Err(difference) = play::play(&open, &ops) {
            let (ops, difference) = shorten(&open, ops, difference);
            let told: Vec<String> = ops.iter().enumerate().map(|(at, op)| format!("  {at}: {op:?}")).collect();
            panic!(
                "the store and the model differ: replay with PUNCTUAL_SEED={seed}\n{}\n{difference}",
                told.join("\n")
            );
        }
    }
}

/// Leaves out whatever is not needed for a difference, from the end to the beginning.
fn shorten(open: &impl Fn(&VirtualClock) -> Bed, mut ops: Vec<Op>, mut difference: String) -> (Vec<Op>, String) {
    for size in [16, 4, 1] {
        let mut end = ops.len();
        while end > 0 {
            let start = end.saturating_sub(size);
            let fewer: Vec<Op> = ops[..start].iter().chain(&ops[end.min(ops.len())..]).cloned().collect();
            if let Err(still) = play::play(open, &fewer) {
                (ops, difference) = (fewer, still);
            }
            end = start;
        }
    }
    (ops, difference)
}

#[cfg(test)]
mod tests {
    use punctual_durable::{MemoryStore, Outcome, State};

    use super::*;

    /// A generator that never gets anywhere interesting would prove nothing.
    #[test]
    fn histories_reach_every_state_and_every_answer() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..60 {
            let open = |clock: &VirtualClock| {
                let store = MemoryStore::with_lease(clock, 10 * crate::SECOND);
                Bed::new(clock, store.foreseeing(crate::SECOND))
            };
            play::watch(&open, &op::history(seed, LENGTH), &mut |text| {
                seen.insert(text.to_owned());
            })
            .unwrap();
        }
        let reached = |part: &str| seen.iter().any(|text| text.contains(part));
        for outcome in Outcome::ALL {
            let stopped = State::new(punctual::Stage::Stopped, Some(outcome));
            assert!(reached(&format!("{stopped:?}")), "no job ends as {outcome}");
        }
        for part in [
            "Joined",
            "Replaced",
            "Conflict",
            "BacklogFull",
            "ScheduledFull",
            "Closed",
            "Expired",
            "Stale",
            "Overlapped",
            "Enqueued",
            "Lost",
            "Redriven",
            "Alone",
            "TenantLimit",
            "Rate(",
            "TenantPaused",
            "NoWorker",
            "lost: 1",
            "foreseen 2",
        ] {
            assert!(reached(part), "no history has {part}");
        }
    }

    /// C53: the comparison can fail: a store that forgets one thing is found out, and the history is short.
    #[test]
    fn a_store_that_differs_is_found_out() {
        let open = |clock: &VirtualClock| {
            let bed = Bed::new(clock, MemoryStore::new(clock));
            bed.take_in(crate::job(9_999));
            bed
        };
        let ops = op::history(1, 30);
        let difference = play::play(&open, &ops).unwrap_err();
        let (short, _) = shorten(&open, ops, difference);
        assert!(short.is_empty(), "{short:?}");
    }
}
