//! Many threads, random operations, one account at the end: too big for loom, so shuttle's schedulers and the plain run
//! only.

use super::*;

/// C1, C3, C7, C10. Producers that push, cancel and reschedule; consumers that block, wait a while, await, poll once
/// and drop, or look only; the clock and the close in between. Nobody hangs, nothing is early, and every entry leaves
/// exactly once: taken, cancelled, refused, or given back by the close. 8 threads.
#[test]
fn shuttle_every_entry_leaves_exactly_once() {
    model(|| {
        let mut dice = Dice::new();
        let account = Arc::new(Account { timed: Timed::new(), ledger: Mutex::new(Vec::new()) });
        let producers = [0; 2].map(|_| account.spawn(dice.fork(), Account::produce));
        let consumers = [0; 3].map(|_| account.spawn(dice.fork(), Account::consume));
        let monitor = account.spawn(dice.fork(), |account, _| (0..5).for_each(|_| account.timed.assert_covered()));
        for step in 1..5 {
            account.timed.advance_to(step * dice.roll(10));
        }
        producers.into_iter().for_each(|producer| producer.join().unwrap());
        let left = if dice.roll(4) == 0 { account.timed.queue.close_now() } else { account.timed.queue.close() };
        left.into_iter().for_each(|item| account.leave(item));
        // Later than every due: whoever is armed wakes, and one after the other takes what is left.
        account.timed.advance_to(100);
        consumers.into_iter().for_each(|consumer| consumer.join().unwrap());
        monitor.join().unwrap();
        assert!(account.ledger.lock().iter().all(|row| row.left));
        assert!(account.timed.queue.is_empty());
    });
}

struct Account {
    /// Its items are indices of the ledger.
    timed: Timed,
    ledger: Mutex<Vec<Row>>,
}

struct Row {
    key: Option<Key>,
    /// The earliest due it ever had, in milliseconds.
    earliest: u64,
    left: bool,
}

impl Account {
    fn spawn(
        self: &Arc<Self>,
        mut dice: Dice,
        body: impl FnOnce(&Self, &mut Dice) + Send + 'static,
    ) -> thread::JoinHandle<()> {
        let account = Arc::clone(self);
        thread::spawn(move || body(&account, &mut dice))
    }

    fn produce(&self, dice: &mut Dice) {
        for _ in 0..6 {
            match dice.roll(6) {
                0..3 => self.push(dice),
                3 => self.cancel(dice),
                _ => self.reschedule(dice),
            }
        }
    }

    fn push(&self, dice: &mut Dice) {
        let never = dice.roll(10) == 0;
        let earliest = if never { u64::MAX } else { dice.roll(30) };
        let mut ledger = self.ledger.lock();
        let row = ledger.len();
        ledger.push(Row { key: None, earliest, left: false });
        drop(ledger);
        let due = if never { Duration::MAX.into() } else { Due::from(self.timed.start + ms(earliest)) };
        match self.timed.queue.push(row as u64, due) {
            Ok(key) => self.ledger.lock()[row].key = Some(key),
            Err(refused) => self.leave(refused.into_item()),
        }
    }

    fn cancel(&self, dice: &mut Dice) {
        if let Some((_, key)) = self.any(dice)
            && let Some(item) = self.timed.queue.cancel(key)
        {
            self.leave(item);
        }
    }

    fn reschedule(&self, dice: &mut Dice) {
        if let Some((row, key)) = self.any(dice) {
            if dice.roll(8) == 0 {
                self.timed.queue.reschedule(key, Duration::MAX);
                return;
            }
            let due = dice.roll(40);
            let earliest = &mut self.ledger.lock()[row].earliest;
            *earliest = due.min(*earliest);
            self.timed.reschedule(key, due);
        }
    }

    /// Any entry that was ever accepted.
    fn any(&self, dice: &mut Dice) -> Option<(usize, Key)> {
        let ledger = self.ledger.lock();
        let row = dice.roll(ledger.len().max(1) as u64) as usize;
        ledger.get(row).and_then(|entry| entry.key).map(|key| (row, key))
    }

    /// Takes in one way or another until the end.
    fn consume(&self, dice: &mut Dice) {
        let queue = &self.timed.queue;
        loop {
            let taken = match dice.roll(6) {
                0 | 1 => queue.take().ok_or(TakeTimeoutError::Closed),
                2 => queue.take_timeout(ms(dice.roll(5))),
                3 => block_on(queue.take_async()).ok_or(TakeTimeoutError::Closed),
                4 => match poll_once(&mut queue.take_async(), &Waker::from(Bell::new())) {
                    Poll::Ready(taken) => taken.ok_or(TakeTimeoutError::Closed),
                    Poll::Pending => Err(TakeTimeoutError::TimedOut),
                },
                _ => queue.drain_due(1).pop().ok_or(TakeTimeoutError::TimedOut),
            };
            match taken {
                Ok(item) => self.take(item),
                Err(TakeTimeoutError::TimedOut) => {}
                Err(TakeTimeoutError::Closed) => return,
            }
        }
    }

    fn take(&self, item: u64) {
        let earliest = self.ledger.lock()[item as usize].earliest;
        self.timed.assert_due(earliest);
        self.leave(item);
    }

    fn leave(&self, item: u64) {
        let left = &mut self.ledger.lock()[item as usize].left;
        assert!(!std::mem::replace(left, true), "entry {item} left twice");
    }
}

/// Small numbers that look random (splitmix64), from a seed that the checker can replay.
struct Dice(u64);

impl Dice {
    #[cfg(shuttle)]
    fn new() -> Self {
        Self(shuttle::rand::RngCore::next_u64(&mut shuttle::rand::thread_rng()))
    }

    #[cfg(not(shuttle))]
    fn new() -> Self {
        use std::sync::atomic::{AtomicU64, Ordering};
        static SEED: AtomicU64 = AtomicU64::new(0);
        Self(SEED.fetch_add(1, Ordering::Relaxed))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn fork(&mut self) -> Self {
        Self(self.next())
    }

    fn roll(&mut self, sides: u64) -> u64 {
        self.next() % sides
    }
}
