//! One worker's stream of operations.

use std::sync::Arc;

use rand::{RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::generators::KeyChooser;
use super::inserts::{InsertLane, InsertTracker};
use super::operation::{OpKind, OperationChooser};
use super::spec::WorkloadSpec;

/// An operation to perform.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Op {
    /// What to do.
    pub kind: OpKind,
    /// On which record; [`super::key::key_bytes`] makes it a key.
    pub keynum: u64,
}

/// The random numbers of one worker: the same for the same seed and worker, and
/// unrelated to those of other workers.
pub fn worker_rng(seed: u64, worker: u64) -> Xoshiro256PlusPlus {
    // Seeding hashes its argument, so that neighbouring seeds are far apart; hashing
    // the worker first keeps (seed 1, worker 0) apart from (seed 0, worker 1).
    let mut of_worker = Xoshiro256PlusPlus::seed_from_u64(worker);
    Xoshiro256PlusPlus::seed_from_u64(seed ^ of_worker.next_u64())
}

/// Draws the operations of one worker.
///
/// The stream depends on the random numbers handed in and, where the workload
/// inserts, on how far the [`InsertTracker`] has come: a record is asked for only
/// once its insert is acknowledged.
#[derive(Debug)]
pub struct OpStream {
    operations: OperationChooser,
    keys: KeyChooser,
    lane: InsertLane,
    tracker: Arc<InsertTracker>,
}

impl OpStream {
    /// The stream of `worker`, counted within this process, for a workload whose
    /// inserts `tracker` follows.
    ///
    /// A tracker can be passed on from one run over a table to the next, if nothing
    /// is under way between them: inserts then go on after the earlier ones.
    ///
    /// # Panics
    /// If this process has no such worker, or a field of the spec was changed to
    /// something [`WorkloadSpec::from_properties`] would refuse.
    pub fn new(spec: &WorkloadSpec, tracker: Arc<InsertTracker>, worker: u64) -> Self {
        let span = tracker.span();
        Self {
            operations: OperationChooser::new(&spec.mix),
            keys: KeyChooser::new(spec, span.first + worker, span.total),
            lane: InsertLane::new(Arc::clone(&tracker), worker),
            tracker,
        }
    }

    /// The next operation. Allocates nothing.
    #[inline]
    pub fn next_op<R: RngCore + ?Sized>(&mut self, rng: &mut R) -> Op {
        let kind = self.operations.next(rng);
        let keynum = if kind == OpKind::Insert {
            self.lane.next_key()
        } else {
            let place = self.keys.next(rng, self.tracker.last());
            self.tracker.key_at(place)
        };
        Op { kind, keynum }
    }

    /// Takes note that an insert this stream asked for is done.
    ///
    /// An insert that failed for good is acknowledged too, as in the reference client:
    /// otherwise no later record of the process would ever be read. Reads of it miss.
    ///
    /// # Panics
    /// If this stream did not ask for an insert of `keynum`.
    pub fn acknowledge(&mut self, keynum: u64) {
        self.lane.acknowledge(keynum);
    }
}
