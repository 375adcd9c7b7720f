//! The kinds of operations, and the choice among them.

use rand::{Rng, RngCore};
use serde::Serialize;

use crate::recorder::kinds;

kinds! {
    /// The kind of an operation, in the order in which proportions are accumulated.
    ///
    /// Scans are missing on purpose: a hashtable has no order.
    pub enum OpKind {
        /// Looks up the record.
        Read = "read",
        /// Replaces the whole value of an existing record.
        Update = "update",
        /// Adds a record.
        Insert = "insert",
        /// Reads a record, then replaces its value: two operations, as in the reference client.
        ReadModifyWrite = "read_modify_write",
    }
}

/// The shares of the kinds of operations; they add up to 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct OperationMix {
    /// Share of reads.
    pub read: f64,
    /// Share of updates.
    pub update: f64,
    /// Share of inserts.
    pub insert: f64,
    /// Share of read-modify-writes.
    pub read_modify_write: f64,
}

impl OperationMix {
    /// Returns the share of a kind.
    pub fn share(&self, kind: OpKind) -> f64 {
        match kind {
            OpKind::Read => self.read,
            OpKind::Update => self.update,
            OpKind::Insert => self.insert,
            OpKind::ReadModifyWrite => self.read_modify_write,
        }
    }
}

/// Chooses the kind of each operation.
///
/// Compares one uniform number with the accumulated shares in the order read, update, insert, (scan,)
/// read-modify-write, as the reference client does.
#[derive(Debug, Clone)]
pub struct OperationChooser {
    /// Upper ends of the shares of all kinds; 1 from the last kind with a share on.
    ends: [f64; OpKind::ALL.len()],
}

impl OperationChooser {
    /// Creates a chooser for these shares, which are scaled to add up to 1.
    ///
    /// # Panics
    /// If a share is negative or not a number, or all are 0.
    pub fn new(mix: &OperationMix) -> Self {
        let shares = OpKind::ALL.map(|kind| mix.share(kind));
        assert!(
            shares.iter().all(|share| *share >= 0.0),
            "every share of {mix:?} must be a number that is not negative"
        );
        let sum: f64 = shares.iter().sum();
        assert!(
            sum > 0.0 && sum.is_finite(),
            "the sum of the shares of {mix:?} must be positive and finite, but is {sum}"
        );
        let mut ends = [0.0; OpKind::ALL.len()];
        let mut end = 0.0;
        for (slot, share) in ends.iter_mut().zip(shares) {
            end += share / sum;
            *slot = end;
        }
        // Rounding must not leave a gap below 1 that would select a kind with share 0.
        let last = shares
            .iter()
            .rposition(|share| *share > 0.0)
            .unwrap_or_default();
        ends[last..].fill(1.0);
        Self { ends }
    }

    /// Returns the kind of the next operation.
    #[inline]
    pub fn next<R: RngCore + ?Sized>(&self, rng: &mut R) -> OpKind {
        let draw: f64 = rng.random();
        if draw < self.ends[0] {
            OpKind::Read
        } else if draw < self.ends[1] {
            OpKind::Update
        } else if draw < self.ends[2] {
            OpKind::Insert
        } else {
            OpKind::ReadModifyWrite
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_xoshiro::Xoshiro256PlusPlus;

    #[test]
    fn kinds_are_drawn_by_their_shares() {
        let mix = OperationMix {
            read: 0.2,
            update: 0.1,
            insert: 0.3,
            read_modify_write: 0.4,
        };
        let chooser = OperationChooser::new(&mix);
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
        let mut counts = [0u32; OpKind::ALL.len()];
        for _ in 0..400_000 {
            counts[chooser.next(&mut rng).index()] += 1;
        }
        for kind in OpKind::ALL {
            let share = f64::from(counts[kind.index()]) / 400_000.0;
            assert!(
                (share - mix.share(kind)).abs() < 0.004,
                "{kind:?}: {share:.4}"
            );
        }
    }

    #[test]
    fn a_kind_without_a_share_is_never_drawn() {
        let only = |kind: OpKind| {
            let share = |of: OpKind| f64::from(u8::from(of == kind)) * 0.3;
            OperationMix {
                read: share(OpKind::Read),
                update: share(OpKind::Update),
                insert: share(OpKind::Insert),
                read_modify_write: share(OpKind::ReadModifyWrite),
            }
        };
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(2);
        for kind in OpKind::ALL {
            let chooser = OperationChooser::new(&only(kind));
            assert!((0..1000).all(|_| chooser.next(&mut rng) == kind));
        }
    }
}
