//! The store's clock decides, and this process's may say what it likes.

use crate::bed::{HOUR, Log, SECOND, on_every_store, over_a_network, say, wait};

/// C42, C43: a node set its alarm for a date of the local wall clock, also where the store has a clock of its own: when the local one was set back by an hour, the node slept
/// for an hour longer. It counts the time until then, and nobody can set that back.
#[test]
fn a_local_clock_that_is_set_back_puts_off_nothing_of_a_store_with_its_own() {
    let (bed, theirs) = over_a_network(|line| line.far(SECOND * 60));
    let log = Log::default();
    bed.jobs.on(log.handler());
    let _node = wait(bed.jobs.start()).unwrap();
    wait(bed.jobs.after(SECOND * 10).enqueue(say("x"))).unwrap().detach();
    bed.settle();
    bed.clock.step_wall(bed.clock.wall() - HOUR).unwrap();
    theirs.advance(SECOND * 10).unwrap();
    bed.advance(SECOND * 10);
    assert_eq!(log.lines(), ["x"]);
}

/// C12, C43: where it is the store's clock that is set, what waits for a date moves with it.
#[test]
fn setting_the_clock_of_a_local_store_moves_what_waits() {
    on_every_store(|bed| {
        let log = Log::default();
        bed.jobs.on(log.handler());
        let _node = wait(bed.jobs.start()).unwrap();
        for (word, hours) in [("early", 1), ("late", 2)] {
            wait(bed.jobs.after(HOUR * hours).enqueue(say(word))).unwrap().detach();
        }
        bed.settle();
        bed.clock.step_wall(bed.clock.wall() + HOUR).unwrap();
        bed.settle();
        assert_eq!(log.lines(), ["early"]);
        bed.clock.step_wall(bed.clock.wall() - HOUR).unwrap();
        bed.advance(HOUR);
        assert_eq!(log.lines(), ["early"]);
        bed.advance(HOUR);
        assert_eq!(log.lines(), ["early", "late"]);
    });
}
