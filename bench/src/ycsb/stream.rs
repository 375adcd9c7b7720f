//! The stream of operations of one worker.

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
    /// Kind of the operation.
    pub kind: OpKind,
    /// Number of the record; [`super::key::key_bytes`] converts it to a key.
    pub keynum: u64,
}

/// Returns the random number generator of one worker: the same for the same seed and worker, and independent of those
/// of other workers.
pub fn worker_rng(seed: u64, worker: u64) -> Xoshiro256PlusPlus {
    // Seeding hashes its argument, so neighbouring seeds give very different generators. Hashing the worker first
    // distinguishes (seed 1, worker 0) from (seed 0, worker 1).
    let mut of_worker = Xoshiro256PlusPlus::seed_from_u64(worker);
    Xoshiro256PlusPlus::seed_from_u64(seed ^ of_worker.next_u64())
}

/// Draws the operations of one worker.
///
/// The stream depends on the random numbers that are passed in and, if the workload inserts, on the progress of the
/// [`InsertTracker`]: a record is requested only after its insert is acknowledged.
#[derive(Debug)]
pub struct OpStream {
    operations: OperationChooser,
    keys: KeyChooser,
    lane: InsertLane,
    tracker: Arc<InsertTracker>,
}

impl OpStream {
    /// Creates the stream of `worker`, a number within this process, for a workload whose inserts `tracker` tracks.
    ///
    /// A tracker can be reused for the next run over a table, if nothing is in flight between the runs: the inserts
    /// continue after the earlier ones.
    ///
    /// # Panics
    /// If this process has no such worker, or if a field of the spec was changed to a value that
    /// [`WorkloadSpec::from_properties`] would reject.
    pub fn new(spec: &WorkloadSpec, tracker: Arc<InsertTracker>, worker: u64) -> Self {
        let span = tracker.span();
        Self {
            operations: OperationChooser::new(&spec.mix),
            keys: KeyChooser::new(spec, span.first + worker, span.total),
            lane: InsertLane::new(Arc::clone(&tracker), worker),
            tracker,
        }
    }

    /// Returns the next operation. Does not allocate.
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

    /// Records that an insert of this stream is acknowledged.
    ///
    /// An insert that failed permanently must be acknowledged, too, as in the reference client; otherwise no later
    /// record of the process would ever be read. Reads of it miss.
    ///
    /// # Panics
    /// If this stream did not request an insert of `keynum`.
    pub fn acknowledge(&mut self, keynum: u64) {
        self.lane.acknowledge(keynum);
    }
}
