//! The objects of a transaction, and the operations on them.
//!
//! An [`ObjectId`] contains the number of its transaction, which is unique in the process. One comparison detects an
//! object of another transaction, or of a transaction that has ended.

use std::sync::atomic::{AtomicU64, Ordering};

use farm_core::alloc::SizeClass;
use farm_core::ids::Address;
use farm_core::object::{FatPointer, Incarnation, LockMode, Version, write};
use farm_core::worker::Worker;

use super::{Entry, Intent, Tx};
use crate::error::TxError;

/// Number of transaction numbers that a context draws at a time.
const DRAWN_AT_ONCE: u64 = 1 << 12;

/// The first transaction number that no context has drawn yet.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// An object of a transaction: valid until the transaction ends, and in no other transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectId {
    tx: u64,
    pub(super) index: u32,
}

impl ObjectId {
    pub(crate) fn to_words(self) -> [u64; 2] {
        [self.tx, self.index.into()]
    }

    pub(crate) fn from_words([tx, index]: [u64; 2]) -> Self {
        let index = index as u32;
        Self { tx, index }
    }
}

/// The number of a transaction, unique in the process.
#[derive(Debug)]
pub(super) struct Number(u64);

impl Default for Number {
    fn default() -> Self {
        Self(NEXT.fetch_add(DRAWN_AT_ONCE, Ordering::Relaxed))
    }
}

impl Number {
    /// Changes to the number of the next transaction.
    #[inline]
    pub(super) fn advance(&mut self) {
        self.0 += 1;
        if self.0.is_multiple_of(DRAWN_AT_ONCE) {
            *self = Self::default();
        }
    }
}

impl Tx {
    /// Checks that an object is a current object of this transaction, and that the transaction has not freed it.
    ///
    /// # Errors
    /// [`TxError::OtherTransaction`]; [`TxError::NotAllocated`] if this transaction has freed the object.
    #[inline]
    pub fn check(&self, object: ObjectId) -> Result<(), TxError> {
        let entry = self.get(object).ok_or(TxError::OtherTransaction)?;
        match entry.intent {
            Intent::Free => Err(TxError::NotAllocated(entry.address)),
            _ => Ok(()),
        }
    }

    /// Checks an object as [`Tx::check`] does, and that its payload is held.
    ///
    /// # Errors
    /// As [`Tx::check`]; [`TxError::Forgotten`] after [`Tx::forget_payload`].
    #[inline]
    pub fn check_payload(&self, object: ObjectId) -> Result<(), TxError> {
        self.check(object)?;
        let entry = self.entry(object);
        match entry.is_held() {
            true => Ok(()),
            false => Err(TxError::Forgotten(entry.address)),
        }
    }

    #[inline]
    pub(super) fn id(&self, index: usize) -> ObjectId {
        ObjectId {
            tx: self.number.0,
            index: index as u32,
        }
    }

    #[inline]
    fn get(&self, object: ObjectId) -> Option<&Entry> {
        let of_this = object.tx == self.number.0;
        of_this.then(|| self.entries.get(object.index as usize))?
    }

    #[inline]
    pub(super) fn entry(&self, object: ObjectId) -> &Entry {
        self.get(object).unwrap_or_else(|| unusable())
    }

    /// Returns the entry of an object that is not freed.
    #[inline]
    fn live(&self, object: ObjectId) -> &Entry {
        let entry = self.get(object);
        let live = entry.filter(|entry| entry.intent != Intent::Free);
        live.unwrap_or_else(|| unusable())
    }

    /// Returns the entry of an object that is not freed, for a change.
    #[inline]
    fn live_mut(&mut self, object: ObjectId) -> &mut Entry {
        self.live(object);
        &mut self.entries[object.index as usize]
    }

    /// Returns the entry of an object that is not freed and whose payload is held, and marks it as written.
    #[inline]
    fn write(&mut self, object: ObjectId) -> &mut Entry {
        let entry = self.live_mut(object);
        if !entry.is_held() {
            unusable();
        }
        if entry.intent == Intent::Read {
            entry.intent = Intent::Write;
        }
        entry
    }

    /// Returns the object at an address, if the transaction has it.
    #[inline]
    pub fn find(&self, address: Address) -> Option<ObjectId> {
        self.position(address)
            .filter(|found| self.entries[*found].intent != Intent::Absent)
            .map(|found| self.id(found))
    }

    /// Returns whether the commit writes the object: it was changed, allocated or freed.
    ///
    /// # Panics
    /// If the object is not of this transaction: see [`Tx::check`].
    #[inline]
    pub fn is_written(&self, object: ObjectId) -> bool {
        self.entry(object).is_written()
    }

    /// Returns the address of the object.
    ///
    /// # Panics
    /// If the object is not of this transaction: see [`Tx::check`].
    pub fn address(&self, object: ObjectId) -> Address {
        self.entry(object).address
    }

    /// Returns the size class of the object.
    ///
    /// # Panics
    /// If the object is not of this transaction: see [`Tx::check`].
    pub fn class(&self, object: ObjectId) -> SizeClass {
        self.entry(object).class
    }

    /// Returns the version of the object as it was read. For an object that this transaction allocates, it is the
    /// version that its memory had before.
    ///
    /// # Panics
    /// If the object is not of this transaction: see [`Tx::check`].
    pub fn version(&self, object: ObjectId) -> Version {
        self.entry(object).version
    }

    /// Returns the second word of the header, with size class and incarnation, as it will be after the commit
    /// (`objGetIncarnation`).
    ///
    /// # Panics
    /// If the object is not of this transaction: see [`Tx::check`].
    pub fn incarnation(&self, object: ObjectId) -> Incarnation {
        self.entry(object).installed_incarnation()
    }

    /// Returns the fat pointer that refers to the object after the commit.
    ///
    /// # Panics
    /// If the object is not of this transaction, or freed by it: see [`Tx::check`].
    pub fn pointer(&self, object: ObjectId) -> FatPointer {
        let entry = self.live(object);
        FatPointer::new(entry.address, entry.installed_incarnation())
    }

    /// Returns the payload as this transaction sees it.
    ///
    /// # Panics
    /// If the object is not of this transaction, or freed by it, or its payload was forgotten: see
    /// [`Tx::check_payload`].
    #[inline]
    pub fn payload(&self, object: ObjectId) -> &[u8] {
        let entry = self.live(object);
        if !entry.is_held() {
            unusable();
        }
        self.payloads.get(entry.payload())
    }

    /// Returns the payload for a change: the commit writes the object.
    ///
    /// # Panics
    /// As [`Tx::payload`].
    #[inline]
    pub fn payload_mut(&mut self, object: ObjectId) -> &mut [u8] {
        let payload = self.write(object).payload();
        self.payloads.get_mut(payload)
    }

    /// Returns the address of an object that the transaction has read and that is locked now, in either mode. Ignores
    /// objects of other machines. For checks while no operation is in flight.
    #[doc(hidden)]
    pub fn locked_now(&self, worker: &mut Worker) -> Option<Address> {
        let mut addresses = self.entries.iter().map(|entry| entry.address);
        addresses.find(|address| is_locked(worker, *address))
    }

    /// Returns whether the commit would fail now, because another transaction has locked an object that it writes or
    /// validates. Ignores objects of other machines.
    pub fn is_locked_out(&self, worker: &mut Worker) -> bool {
        let validates = self.validates_reads();
        let mut entries = self.entries.iter();
        entries.any(|entry| (validates || entry.is_written()) && is_locked(worker, entry.address))
    }

    /// Increments the incarnation of the object when the transaction commits, so that existing fat pointers to it no
    /// longer match (`objIncrementIncarnation`).
    ///
    /// # Panics
    /// As [`Tx::payload`].
    pub fn increment_incarnation(&mut self, object: ObjectId) {
        self.write(object).bump = true;
    }

    /// Frees the object when the transaction commits. If this transaction allocated the object, the commit releases its
    /// slot.
    ///
    /// # Panics
    /// If the object is not of this transaction, or freed by it before: see [`Tx::check`].
    pub fn free(&mut self, object: ObjectId) {
        self.live_mut(object).intent = Intent::Free;
    }

    /// Frees objects, which may contain duplicates. If one of them cannot be freed, frees none.
    pub(crate) fn free_all(&mut self, objects: &[ObjectId]) -> Result<(), TxError> {
        objects.iter().try_for_each(|object| self.check(*object))?;
        for object in objects {
            if self.check(*object).is_ok() {
                self.free(*object);
            }
        }
        Ok(())
    }
}

#[cold]
fn unusable() -> ! {
    panic!(
        "invalid ObjectId: its transaction is another one or has ended, or this transaction freed the object or forgot \
         its payload; call Tx::check_payload before"
    );
}

/// Returns whether an object of this machine is locked, in either mode.
fn is_locked(worker: &mut Worker, address: Address) -> bool {
    let local = worker.local_memory(address);
    local.is_ok_and(|(memory, at)| write::load_version(memory, at).mode() != LockMode::Unlocked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transaction_numbers_are_unique() {
        let mut contexts = [Number::default(), Number::default()];
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..3 * DRAWN_AT_ONCE {
            for context in &mut contexts {
                assert!(seen.insert(context.0));
                context.advance();
            }
        }
    }
}
