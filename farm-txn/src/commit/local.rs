//! Commit of a transaction whose objects all lie on this machine (`FaRM'14 §3.4`): no message, no
//! log record yet.
//!
//! 1. Lock every written object at the version that was read, in the mode that lets lock-free reads
//!    pass. Any failure gives all locks back and aborts.
//! 2. Take *all* locks exclusively before installing *any* object, so that no lock-free read sees a
//!    new object and then an old one.
//! 3. Validate the objects that were only read: unchanged and not locked in either mode (else write
//!    skew). A sequentially consistent fence stands between 2 and 3, so that of two transactions
//!    that each write what the other reads at least one sees the other's lock. Not before 2: what was
//!    validated could be overwritten, and heard of, while lock-free reads still see what this
//!    transaction is to replace (docs/decisions/0007).
//! 4. Install and unlock, and fence. Only then does anybody hear of the commit: without the fence the
//!    new versions could wait in the processor's buffer while others, told by a clock, read the old.

use std::sync::atomic::Ordering;

use farm_core::object::{LockMode, write};
use farm_core::worker::Worker;
use farm_core::{marks, mutants};

use super::{conflict, is_unchanged, local, release};
use crate::error::{Abort, TxError};
use crate::layer::transactions;
use crate::tx::{Entry, Intent, Tx};

impl Tx {
    /// Commits, and leaves the context empty either way.
    ///
    /// # Errors
    /// [`Abort`]: nothing took effect, and what was allocated has been given back.
    /// [`TxError::Distributed`], likewise, if it has objects of other machines.
    pub fn commit(&mut self, worker: &mut Worker) -> Result<(), TxError> {
        let result = self.commit_here(worker);
        transactions(worker).counters.count(false, &result);
        result
    }

    fn commit_here(&mut self, worker: &mut Worker) -> Result<(), TxError> {
        if self.is_distributed() {
            self.abort(worker);
            return Err(TxError::Distributed);
        }
        if mutants::is_on("lock at a newer version than read") {
            self.forget_versions(worker);
        }
        if let Err(abort) = self.lock_and_validate(worker) {
            self.abort(worker);
            return Err(abort.into());
        }
        if mutants::is_on("validate before all are exclusive")
            || mutants::is_on("validation accepts a readable lock")
        {
            self.dawdle(worker);
            self.make_exclusive(worker);
        }
        for entry in self.entries.iter().filter(|entry| entry.is_written()) {
            if mutants::is_on("install before all are exclusive") {
                let (memory, at) = local(worker, entry.address);
                write::make_exclusive(memory, at, entry.version);
            }
            self.install(worker, entry);
        }
        let fenced = !mutants::is_on("fence missing after the commit");
        if let Some(entry) = self
            .entries
            .iter()
            .find(|entry| fenced && entry.is_written())
        {
            // What this processor still buffers nobody else sees, and the caller may tell others by
            // ways that are no message.
            local(worker, entry.address).0.fence(Ordering::SeqCst);
        }
        for entry in self
            .entries
            .iter()
            .filter(|entry| entry.intent == Intent::Free)
        {
            release(worker, entry.address);
        }
        self.clear();
        Ok(())
    }

    #[inline]
    fn install(&self, worker: &mut Worker, entry: &Entry) {
        let (memory, at) = local(worker, entry.address);
        let bytes = entry.class.object_bytes();
        let payload = if entry.intent == Intent::Free {
            &[]
        } else {
            self.payload_of(entry)
        };
        write::install(
            memory,
            at,
            bytes,
            entry.version.next(),
            entry.installed_incarnation(),
            payload,
        );
    }

    /// Time in which others may run, for bugs that would seldom show without.
    #[cold]
    fn dawdle(&self, worker: &mut Worker) {
        if let Some(entry) = self.entries.iter().find(|entry| entry.is_written()) {
            for _ in 0..200 {
                local(worker, entry.address).0.fence(Ordering::SeqCst);
            }
        }
    }

    /// Takes the versions that written objects have now for those that were read.
    #[cold]
    fn forget_versions(&mut self, worker: &mut Worker) {
        for entry in self.entries.iter_mut().filter(|entry| entry.is_written()) {
            let (memory, at) = local(worker, entry.address);
            entry.version = write::load_version(memory, at).version();
        }
    }

    fn lock_and_validate(&self, worker: &mut Worker) -> Result<(), Abort> {
        let mut locked = 0;
        let mut outcome = Ok(());
        for (index, entry) in self
            .entries
            .iter()
            .enumerate()
            .filter(|(_, entry)| entry.is_written())
        {
            let (memory, at) = local(worker, entry.address);
            if !write::try_lock(memory, at, entry.version, LockMode::Readable) {
                marks::mark("tx: lock conflict");
                outcome = Err(conflict(
                    write::load_version(memory, at),
                    entry.version,
                    entry.address,
                ));
                break;
            }
            locked = index + 1;
        }
        let late = mutants::is_on("validate before all are exclusive")
            || mutants::is_on("install before all are exclusive")
            || mutants::is_on("validation accepts a readable lock");
        if outcome.is_ok() && !late {
            self.make_exclusive(worker);
        }
        // Nothing written is nothing locked: a transaction that only read validates alone.
        if outcome.is_ok() && self.entries.len() > 1 {
            outcome = self.validate(worker);
        }
        if outcome.is_err() {
            let kept = usize::from(mutants::is_on("abort keeps the lock"));
            for entry in self.entries[..locked]
                .iter()
                .filter(|entry| entry.is_written())
                .skip(kept)
            {
                let (memory, at) = local(worker, entry.address);
                write::unlock(memory, at, entry.version);
            }
        }
        outcome
    }

    /// Takes all locks, which this transaction holds in the readable mode, exclusively.
    fn make_exclusive(&self, worker: &mut Worker) {
        for entry in self.entries.iter().filter(|entry| entry.is_written()) {
            let (memory, at) = local(worker, entry.address);
            write::make_exclusive(memory, at, entry.version);
        }
    }

    fn validate(&self, worker: &mut Worker) -> Result<(), Abort> {
        if let Some(first) = self.entries.first() {
            local(worker, first.address).0.fence(Ordering::SeqCst);
        }
        for entry in self.entries.iter().filter(|entry| !entry.is_written()) {
            let (memory, at) = local(worker, entry.address);
            let now = write::load_version(memory, at);
            if !is_unchanged(now, entry.version) {
                marks::mark("tx: validation failed");
                return Err(conflict(now, entry.version, entry.address));
            }
        }
        Ok(())
    }
}
