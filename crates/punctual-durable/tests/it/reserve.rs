//! Jobs that a node claims a moment before it has a worker for them, from a store over a network.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use punctual::{Limits, Scheduler, Stage};
use punctual_durable::{Cancelled, Handle, Node, Outcome, Totals};

use crate::bed::{Bed, HOUR, Log, Say, say, wait, with_foresight};

const MILLI: Duration = Duration::from_millis(1);
const FORESIGHT: Duration = Duration::from_millis(20);
const WORKERS: usize = 4;

/// A node whose jobs take a millisecond, and those that are called slow an hour.
struct Room {
    bed: Bed,
    log: Log,
    node: Node,
    most_at_once: Arc<AtomicUsize>,
}

impl Room {
    fn new(limits: Limits) -> Self {
        let bed = with_foresight(FORESIGHT);
        wait(bed.jobs.tenant("acme").set_limits(limits)).unwrap();
        let (log, running, most_at_once) =
            (Log::default(), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let timer = Scheduler::builder().clock(&bed.clock).build().unwrap();
        let (noted, most) = (log.clone(), most_at_once.clone());
        bed.jobs.on(move |job: Say, _| {
            noted.add(job.0.clone());
            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            let time = timer.after(if job.0.starts_with("slow") { HOUR } else { MILLI }).run(|_| ()).unwrap();
            let running = running.clone();
            async move {
                let _ = time.await;
                running.fetch_sub(1, Ordering::SeqCst);
                Ok(job.0)
            }
        });
        let node = wait(bed.jobs.node().workers(WORKERS).start()).unwrap();
        Self { bed, log, node, most_at_once }
    }

    fn enqueue(&self, what: &str, count: usize) -> Vec<Handle<String>> {
        let words = (0..count).map(|number| say(&format!("{what} {number:03}")));
        wait(self.bed.jobs.tenant("acme").now().enqueue_many(words)).into_iter().map(Result::unwrap).collect()
    }

    /// A millisecond at a time, as the handlers go.
    fn advance(&self, millis: u32) {
        (0..millis).for_each(|_| self.bed.advance(MILLI));
    }

    fn totals(&self) -> Totals {
        wait(self.bed.jobs.totals()).unwrap()
    }
}

/// C42: of short jobs more are claimed than there are workers; they begin in their order as workers get free, and no
/// more at once than there are.
#[test]
fn short_jobs_are_at_hand_when_a_worker_is_free() {
    let room = Room::new(Limits::new());
    room.enqueue("fast", 200);
    room.advance(12);
    let running = room.totals().running;
    assert!((WORKERS + 1..=9 * WORKERS).contains(&running), "{running} are claimed");
    room.advance(60);
    assert_eq!(room.totals().ended[&Outcome::Succeeded], 200);
    assert_eq!(room.most_at_once.load(Ordering::SeqCst), WORKERS);
    // In their order, as far as threads that log at the same moment keep it.
    for (place, line) in room.log.lines().iter().enumerate() {
        let number: usize = line.trim_start_matches("fast ").parse().unwrap();
        assert!(number.abs_diff(place) <= WORKERS, "{line} is number {place}");
    }
}

/// C40: not those of a tenant that would be at its limit for it.
#[test]
fn no_place_of_a_limit_is_taken_by_what_does_not_run() {
    let room = Room::new(Limits::new().running_max(10));
    room.enqueue("fast", 100);
    for _ in 0..40 {
        room.advance(1);
        assert!(room.totals().running <= WORKERS);
    }
    assert_eq!(room.totals().ended[&Outcome::Succeeded], 100);
}

/// C38: what finds no worker for long goes back, and its attempt does not count; others run it.
#[test]
fn what_waits_too_long_goes_to_others() {
    let room = Room::new(Limits::new());
    room.enqueue("fast", 40);
    let slow = room.enqueue("slow", 10);
    room.advance(15);
    assert!(room.totals().running > WORKERS, "some wait behind those that take long");
    room.advance(100);
    let totals = room.totals();
    assert_eq!((totals.running, totals.ready), (WORKERS, 10 - WORKERS));
    let other = room.bed.another();
    let log = Log::default();
    other.on(log.handler());
    let _other = wait(other.node().workers(WORKERS).start()).unwrap();
    room.advance(2);
    assert_eq!(log.lines().len(), 10 - WORKERS);
    let attempts = slow.iter().map(|job| wait(room.bed.jobs.get(job.id())).unwrap().unwrap().attempt);
    assert_eq!(attempts.max(), Some(1));
}

/// A room with jobs that wait at the node, and the last of those that do.
fn with_some_waiting() -> (Room, Handle<String>) {
    let room = Room::new(Limits::new());
    room.enqueue("fast", 40);
    let mut slow = room.enqueue("slow", 10);
    room.advance(15);
    assert_eq!(room.totals().running, 10, "all are claimed");
    (room, slow.pop().unwrap())
}

/// C49: what is cancelled while it waits at a node never begins.
#[test]
fn what_is_cancelled_while_it_waits_does_not_run() {
    let (room, last) = with_some_waiting();
    assert_eq!(wait(last.cancel()).unwrap(), Cancelled::Now(Stage::Running));
    room.advance(1);
    let record = wait(room.bed.jobs.get(last.id())).unwrap().unwrap();
    assert_eq!((record.state.stage, record.state.outcome), (Stage::Stopped, Some(Outcome::Cancelled)));
    room.bed.advance(2 * HOUR);
    assert!(!room.log.lines().contains(&"slow 009".to_owned()));
}

/// C39: a shutdown gives back at once what has not begun.
#[test]
fn a_shutdown_gives_back_what_waits() {
    let (room, last) = with_some_waiting();
    let report = wait(room.node.shutdown(Duration::ZERO));
    assert_eq!((report.released, report.still_running), (10, 0));
    let record = wait(room.bed.jobs.get(last.id())).unwrap().unwrap();
    assert_eq!((record.state.stage, record.attempt), (Stage::Ready, 0));
}

/// What a node no longer handles does not begin there.
#[test]
fn what_waits_of_a_kind_that_is_paused_goes_back() {
    let (room, last) = with_some_waiting();
    room.node.pause("say");
    room.bed.advance(2 * HOUR);
    let record = wait(room.bed.jobs.get(last.id())).unwrap().unwrap();
    assert_eq!((record.state.stage, record.attempt), (Stage::Ready, 0));
    assert!(!room.log.lines().contains(&"slow 009".to_owned()));
}
