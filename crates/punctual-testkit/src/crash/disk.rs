//! What a disk holds of a file, and what it was told and may forget.

use std::ops::Range;

/// The smallest thing that a disk writes as a whole.
const SECTOR: usize = 512;

/// How much of what was not synced a power cut takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// All of it.
    All,
    /// Some of the writes, in no order.
    Some,
    /// Some of their sectors, in no order.
    Torn,
}

impl Loss {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::All, Self::Some, Self::Torn];
}

/// One file as the disk has it: what is safe, and the changes since the last sync.
#[derive(Debug, Default)]
pub struct Disk {
    safe: Vec<u8>,
    changes: Vec<Change>,
}

#[derive(Debug)]
enum Change {
    Write(usize, Vec<u8>),
    Truncate(usize),
}

impl Disk {
    /// A file that holds this, safely.
    #[must_use]
    pub fn new(safe: Vec<u8>) -> Self {
        Self { safe, changes: Vec::new() }
    }

    /// The file is written to.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        self.changes.push(Change::Write(at, bytes.to_vec()));
    }

    /// The file ends here from now on.
    pub fn truncate(&mut self, length: usize) {
        self.changes.push(Change::Truncate(length));
    }

    /// All is safe.
    pub fn sync(&mut self) {
        for change in std::mem::take(&mut self.changes) {
            change.apply(&mut self.safe, |_| true);
        }
    }

    /// What is there when the power comes back.
    #[must_use]
    pub fn after_cut(&self, loss: Loss, dice: &mut fastrand::Rng) -> Vec<u8> {
        let mut left = self.safe.clone();
        for change in &self.changes {
            match loss {
                Loss::All => {}
                Loss::Some if dice.bool() => change.apply(&mut left, |_| true),
                Loss::Some => {}
                Loss::Torn => change.apply(&mut left, |_| dice.bool()),
            }
        }
        left
    }
}

impl Change {
    /// Makes the parts of the change that are kept.
    fn apply(&self, file: &mut Vec<u8>, mut is_kept: impl FnMut(&Range<usize>) -> bool) {
        match self {
            Self::Truncate(length) => {
                if *length < file.len() && is_kept(&(0..*length)) {
                    file.truncate(*length);
                }
            }
            Self::Write(at, bytes) => {
                for part in sectors(*at, bytes.len()).filter(|part| is_kept(part)) {
                    if file.len() < part.end {
                        file.resize(part.end, 0);
                    }
                    file[part.clone()].copy_from_slice(&bytes[part.start - at..part.end - at]);
                }
            }
        }
    }
}

/// A range of a file, cut where its sectors end.
fn sectors(at: usize, length: usize) -> impl Iterator<Item = Range<usize>> {
    let end = at + length;
    let mut from = at;
    std::iter::from_fn(move || {
        let part = from..end.min((from / SECTOR + 1) * SECTOR);
        from = part.end;
        (!part.is_empty()).then_some(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sync_makes_safe_and_a_cut_takes_the_rest() {
        let mut disk = Disk::new(Vec::new());
        disk.write(0, &[1; 10]);
        disk.sync();
        disk.write(5, &[2; 10]);
        disk.truncate(3);
        assert_eq!(disk.after_cut(Loss::All, &mut fastrand::Rng::with_seed(1)), [1; 10]);
        disk.sync();
        assert_eq!(disk.after_cut(Loss::All, &mut fastrand::Rng::with_seed(1)), [1; 3]);
    }

    #[test]
    fn what_is_torn_is_torn_at_sectors() {
        let mut disk = Disk::new(vec![0; 4 * SECTOR]);
        disk.write(100, &[1; 3 * SECTOR]);
        let mut torn = 0;
        for seed in 0..50 {
            let left = disk.after_cut(Loss::Torn, &mut fastrand::Rng::with_seed(seed));
            let parts: Vec<bool> = sectors(100, 3 * SECTOR).map(|part| left[part.start] == 1).collect();
            for (part, &is_kept) in sectors(100, 3 * SECTOR).zip(&parts) {
                assert!(left[part].iter().all(|&byte| (byte == 1) == is_kept));
            }
            torn += usize::from(parts.contains(&true) && parts.contains(&false));
        }
        assert!(torn > 25, "{torn} of 50");
    }

    #[test]
    fn some_writes_are_lost_and_later_ones_are_not() {
        let mut disk = Disk::new(Vec::new());
        disk.write(0, &[1; SECTOR]);
        disk.write(SECTOR, &[2; SECTOR]);
        let is_hole = |seed| {
            let left = disk.after_cut(Loss::Some, &mut fastrand::Rng::with_seed(seed));
            left.len() == 2 * SECTOR && left[0] == 0 && left[SECTOR] == 2
        };
        assert!((0..50).any(is_hole));
    }
}
