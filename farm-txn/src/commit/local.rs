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

use farm_core::mutants;
use farm_core::object::{LockMode, write};
use farm_core::worker::Worker;

use super::install::install_local;
use super::local;
use super::lock::{lock_local, make_exclusive, unlock_local};
use super::validate::{fence, validate_local};
use crate::error::{Abort, TxError};
use crate::layer::transactions;
use crate::tx::Tx;

impl Tx {
    /// Commits, and leaves the context empty either way.
    ///
    /// # Errors
    /// [`Abort`]: nothing took effect, and what was allocated has been given back.
    /// [`TxError::Distributed`], likewise, if it has objects of other machines.
    pub fn commit(&mut self, worker: &mut Worker) -> Result<(), TxError> {
        let given_up = self.has_given_up();
        let result = self.commit_here(worker);
        let counters = &mut transactions(worker).counters;
        counters.count(false, given_up, &result);
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
        if late() && !transactions(worker).locks_exclusively {
            self.dawdle(worker);
            make_exclusive(worker, self);
        }
        install_local(worker, self);
        let told = std::mem::take(&mut self.when_committed);
        self.clear();
        for cont in told {
            cont.resume(worker, ());
        }
        Ok(())
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
        let exclusive = transactions(worker).locks_exclusively;
        let mode = match exclusive {
            true => LockMode::Exclusive,
            false => LockMode::Readable,
        };
        lock_local(worker, self, mode)?;
        if !exclusive && !late() && !mutants::is_on("install before all are exclusive") {
            make_exclusive(worker, self);
        }
        // One object that was only read is as it was at that moment. What a transaction that has given up found
        // out may be about more than that object.
        if self.entries.len() > 1 || self.has_given_up() {
            fence(worker, self);
            let validated = validate_local(worker, self, 0..self.entries.len());
            validated.inspect_err(|_| unlock_local(worker, self))?;
        }
        Ok(())
    }
}

/// The bugs that validate while objects are locked in the readable mode.
fn late() -> bool {
    mutants::is_on("validate before all are exclusive")
        || mutants::is_on("validation accepts a readable lock")
}
