//! Objects of a transaction, and what is done with them.
//!
//! An [`ObjectId`] tells its transaction by a number that no other transaction of the process has, so
//! that one of another transaction, or of one that has ended, is found out by one comparison; and by a
//! serial number in it, by which one that [`Tx::all_or_nothing`] took back is.

use std::sync::atomic::{AtomicU64, Ordering};

use farm_core::alloc::SizeClass;
use farm_core::ids::Address;
use farm_core::object::{FatPointer, Incarnation, Version};

use super::{Entry, Intent, Tx};
use crate::error::TxError;

/// Numbers that a context draws at one time.
const DRAWN_AT_ONCE: u64 = 1 << 12;

/// The first number that nobody has drawn.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// An object of a transaction: valid until the transaction ends, and in no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectId {
    tx: u64,
    pub(super) index: u32,
    serial: u32,
}

/// The number of a transaction, which no other of the process has.
#[derive(Debug)]
pub(super) struct Number(u64);

impl Default for Number {
    fn default() -> Self {
        Self(NEXT.fetch_add(DRAWN_AT_ONCE, Ordering::Relaxed))
    }
}

impl Number {
    /// The next transaction's.
    #[inline]
    pub(super) fn advance(&mut self) {
        self.0 += 1;
        if self.0.is_multiple_of(DRAWN_AT_ONCE) {
            *self = Self::default();
        }
    }
}

impl Tx {
    /// Whether an object is one of this transaction, as it is now, and not freed by it.
    ///
    /// # Errors
    /// [`TxError::OtherTransaction`]; [`TxError::NotAllocated`] of one that this transaction has freed.
    #[inline]
    pub fn check(&self, object: ObjectId) -> Result<(), TxError> {
        let entry = self.get(object).ok_or(TxError::OtherTransaction)?;
        match entry.intent {
            Intent::Free => Err(TxError::NotAllocated(entry.address)),
            _ => Ok(()),
        }
    }

    /// As [`Tx::check`], of an object whose payload is wanted.
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
            serial: self.entries[index].serial,
        }
    }

    #[inline]
    fn get(&self, object: ObjectId) -> Option<&Entry> {
        let entry = self.entries.get(object.index as usize)?;
        (object.tx == self.number.0 && object.serial == entry.serial).then_some(entry)
    }

    #[inline]
    pub(super) fn entry(&self, object: ObjectId) -> &Entry {
        self.get(object).unwrap_or_else(|| unusable())
    }

    /// One that is not freed.
    #[inline]
    fn live(&self, object: ObjectId) -> &Entry {
        let entry = self.get(object);
        let live = entry.filter(|entry| entry.intent != Intent::Free);
        live.unwrap_or_else(|| unusable())
    }

    /// One that is not freed, to be changed.
    #[inline]
    fn live_mut(&mut self, object: ObjectId) -> &mut Entry {
        self.live(object);
        let index = object.index as usize;
        self.touch(index);
        &mut self.entries[index]
    }

    /// One that is not freed and has its payload, to be written.
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

    /// The object at an address, if the transaction has it.
    #[inline]
    pub fn find(&self, address: Address) -> Option<ObjectId> {
        self.position(address)
            .filter(|found| self.entries[*found].intent != Intent::Absent)
            .map(|found| self.id(found))
    }

    /// Whether commit writes the object: it was changed, comes to be, or is freed.
    ///
    /// # Panics
    /// If the object is not of this transaction: see [`Tx::check`].
    #[inline]
    pub fn is_written(&self, object: ObjectId) -> bool {
        self.entry(object).is_written()
    }

    /// Where the object is.
    ///
    /// # Panics
    /// If the object is not of this transaction: see [`Tx::check`].
    pub fn address(&self, object: ObjectId) -> Address {
        self.entry(object).address
    }

    /// Its size class.
    ///
    /// # Panics
    /// If the object is not of this transaction: see [`Tx::check`].
    pub fn class(&self, object: ObjectId) -> SizeClass {
        self.entry(object).class
    }

    /// Its version as it was read; of one that this transaction allocates, what its memory had before.
    ///
    /// # Panics
    /// If the object is not of this transaction: see [`Tx::check`].
    pub fn version(&self, object: ObjectId) -> Version {
        self.entry(object).version
    }

    /// The second word of its header, with size class and incarnation, as it will be once the transaction has
    /// committed (`objGetIncarnation`).
    ///
    /// # Panics
    /// If the object is not of this transaction: see [`Tx::check`].
    pub fn incarnation(&self, object: ObjectId) -> Incarnation {
        self.entry(object).installed_incarnation()
    }

    /// The fat pointer that names the object once the transaction has committed.
    ///
    /// # Panics
    /// If the object is not of this transaction, or freed by it: see [`Tx::check`].
    pub fn pointer(&self, object: ObjectId) -> FatPointer {
        let entry = self.live(object);
        FatPointer::new(entry.address, entry.installed_incarnation())
    }

    /// The payload as this transaction sees it.
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

    /// The payload, to be changed: the object is written when the transaction commits.
    ///
    /// # Panics
    /// As [`Tx::payload`].
    #[inline]
    pub fn payload_mut(&mut self, object: ObjectId) -> &mut [u8] {
        let payload = self.write(object).payload();
        self.payloads.get_mut(payload)
    }

    /// Moves the object's incarnation on when the transaction commits, so that pointers held to it
    /// no longer match (`objIncrementIncarnation`).
    ///
    /// # Panics
    /// As [`Tx::payload`].
    pub fn increment_incarnation(&mut self, object: ObjectId) {
        self.write(object).bump = true;
    }

    /// Frees the object when the transaction commits. One that this transaction allocated is given
    /// back then as well.
    ///
    /// # Panics
    /// If the object is not of this transaction, or freed by it before: see [`Tx::check`].
    pub fn free(&mut self, object: ObjectId) {
        self.live_mut(object).intent = Intent::Free;
    }

    /// Frees objects, each of which may stand there several times; or none, if one cannot be.
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
        "the object is of another transaction, or of one that has ended, or was freed or taken back by \
         this one, or its payload was forgotten: see Tx::check_payload"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_is_drawn_twice() {
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
