//! Deliberate errors of a commit that take more than one expression, for tests of the checkers. They run only in
//! programs with the feature `mutants`.

use std::sync::atomic::Ordering;

use farm_core::mem::Memory;
use farm_core::mutants;
use farm_core::object::{VersionWord, write};
use farm_core::worker::{Cont, Context, LogId, LogRecord, Worker};

use super::coordinator::{Coordinator, validates_before_exclusive};
use super::lock::{Rejected, lock_record, mode, read_again};
use super::reply::Verdict;
use super::steps::{CommitSteps, Correct};
use super::{local, truncate};
use crate::layer::transactions;
use crate::record::{Kind, Lock, Object};
use crate::tx::Tx;

/// Steps with the bug that is switched on.
pub(super) enum Faulty {}

impl CommitSteps for Faulty {
    fn before_local_commit(worker: &mut Worker, tx: &mut Tx) {
        if mutants::is_on("lock at a newer version than read") {
            forget_versions(worker, tx);
        }
    }

    fn before_exclusive(worker: &mut Worker, tx: &Tx) {
        if validates_before_exclusive() {
            dawdle(worker, tx);
        }
    }

    fn acknowledged(worker: &mut Worker, commit: &mut Coordinator, is_first: bool) {
        if is_first && mutants::is_on("truncate before all primaries acknowledged") {
            truncate::end(&mut transactions(worker).truncations, commit);
            truncate::soon(worker);
            commit.sequence = 0;
        }
    }

    fn lock(worker: &mut Worker, at: LogRecord, lock: &Lock<'_>) -> Result<Verdict, Rejected> {
        match mutants::is_on("answer LOCK-REPLY before locking") {
            true => Ok(lock_later(worker, at)),
            false => Correct::lock(worker, at, lock),
        }
    }

    fn held_exclusively(
        memory: &Memory,
        at: usize,
        object: &Object<'_>,
    ) -> Result<VersionWord, Rejected> {
        if !mutants::is_on("answer LOCK-REPLY before locking") {
            return Correct::held_exclusively(memory, at, object);
        }
        let held = VersionWord::of(write::load_version(memory, at).version(), mode());
        write::make_exclusive(memory, at, held.version());
        Ok(held)
    }
}

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
fn lock_later(worker: &mut Worker, at: LogRecord) -> Verdict {
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
        // The deliberate error: nothing checks whether the locks are held.
        let _ = read_again(worker, late.log, (Kind::Lock, at), |worker, lock| {
            lock_record(worker, lock).map(drop)
        });
    }
}

/// Lets time pass in which other threads run, for errors that seldom show otherwise.
#[cold]
fn dawdle(worker: &mut Worker, tx: &Tx) {
    if let Some(entry) = tx.entries.iter().find(|entry| entry.is_written()) {
        for _ in 0..200 {
            local(worker, entry.address).0.fence(Ordering::SeqCst);
        }
    }
}

/// Replaces the versions that were read by the present versions of the written objects of this machine.
#[cold]
fn forget_versions(worker: &mut Worker, tx: &mut Tx) {
    for entry in tx.entries.iter_mut().filter(|entry| entry.is_written()) {
        let (memory, at) = local(worker, entry.address);
        entry.version = write::load_version(memory, at).version();
    }
}
