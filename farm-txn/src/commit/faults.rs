//! Deliberate errors of a commit that are more than an expression, for tests of the checkers. They run only in programs
//! with the feature `mutants`.

use std::sync::atomic::Ordering;

use farm_core::object::write;
use farm_core::worker::{Cont, Context, LogId, LogRecord, Worker};

use super::local;
use super::lock::{lock_record, read_again};
use super::reply::Verdict;
use crate::layer::transactions;
use crate::tx::Tx;

/// A LOCK record whose reply was sent before its objects are locked.
#[derive(Clone, Copy)]
struct LateLock {
    log: LogId,
    sequence: u64,
}

impl Context for LateLock {
    fn to_word(self) -> u64 {
        self.sequence << 8 | self.log.to_word()
    }

    fn from_word(word: u64) -> Self {
        Self {
            log: LogId::from_word(word & 0xFF),
            sequence: word >> 8,
        }
    }
}

/// Grants a LOCK record, and locks its objects later.
#[cold]
pub(super) fn lock_later(worker: &mut Worker, at: LogRecord) -> Verdict {
    let late = LateLock {
        log: at.log,
        sequence: at.token,
    };
    worker.defer(Cont::new(lock_now, late));
    Verdict::Granted
}

fn lock_now(worker: &mut Worker, late: LateLock, (): ()) {
    let log = transactions(worker).primary.log(late.log);
    if let Some(at) = log.locked(late.sequence) {
        // Whether the locks are held is not checked any more: that is the error.
        let _ = read_again(worker, late.log, at, |worker, lock| {
            lock_record(worker, lock).map(drop)
        });
    }
}

/// Lets time pass in which other threads run, for errors that seldom show otherwise.
#[cold]
pub(super) fn dawdle(worker: &mut Worker, tx: &Tx) {
    if let Some(entry) = tx.entries.iter().find(|entry| entry.is_written()) {
        for _ in 0..200 {
            local(worker, entry.address).0.fence(Ordering::SeqCst);
        }
    }
}

/// Replaces the versions that were read by the present versions of the written objects of this machine.
#[cold]
pub(super) fn forget_versions(worker: &mut Worker, tx: &mut Tx) {
    for entry in tx.entries.iter_mut().filter(|entry| entry.is_written()) {
        let (memory, at) = local(worker, entry.address);
        entry.version = write::load_version(memory, at).version();
    }
}
