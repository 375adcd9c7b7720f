//! The transaction context: what was read, at which version, and what is to be written.

use farm_core::alloc::{Geometry, SizeClass, class_at, class_for_payload};
use farm_core::ids::{Address, MachineId};
use farm_core::mem::Memory;
use farm_core::object::{FatPointer, Image, Incarnation, Version};
use farm_core::worker::{AddressError, Cont, Operation, Worker};
use farm_core::{marks, mutants};
use smallvec::SmallVec;

use crate::error::{Abort, TxError};

mod entries;
mod forget;
mod index;
mod objects;
mod payloads;
mod room;
mod undo;

pub(crate) use entries::Entries;
#[doc(hidden)]
#[cfg(debug_assertions)]
pub use entries::entries_looked_at;
use index::Index;
use objects::Number;
pub use objects::ObjectId;
use payloads::{NOT_HELD, Payloads};
use room::give_back;
pub(crate) use room::reserve;
use undo::Undo;

/// Tries of a local read before the object counts as locked: a transaction whose objects are all here is
/// done in less, unless its thread lost its core; one over several machines takes a round trip, too long
/// for a worker to wait.
const READ_TRIES: u32 = 50;

/// Most that one transaction may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxLimits {
    /// Objects, those that are only read included.
    pub objects: usize,
    /// Bytes of payloads.
    pub bytes: usize,
}

/// What the work of one turn may hold; transactions over many turns have the limits of the configuration.
impl Default for TxLimits {
    fn default() -> Self {
        Self {
            objects: 1024,
            bytes: 4 << 20,
        }
    }
}

/// What a transaction does with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Intent {
    Read,
    /// It was not there, which commit validates as it does what was read.
    Absent,
    Write,
    Allocate,
    Free,
}

impl Intent {
    /// Whether the commit locks and installs the object.
    fn is_written(self) -> bool {
        !matches!(self, Intent::Read | Intent::Absent)
    }
}

/// Where an object is, and how large.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) address: Address,
    pub(crate) machine: Option<MachineId>,
    pub(crate) class: SizeClass,
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) address: Address,
    /// The other machine that it lies on; none for this one.
    pub(crate) machine: Option<MachineId>,
    pub(crate) class: SizeClass,
    /// As they were read.
    pub(crate) version: Version,
    pub(crate) incarnation: Incarnation,
    /// The incarnation goes up with the write.
    pub(crate) bump: bool,
    pub(crate) intent: Intent,
    /// It is recorded as it was when something was tried that may be taken back.
    saved: bool,
    /// No other entry of the transaction had this number.
    serial: u32,
    /// Where the payload is, or [`NOT_HELD`].
    at: u32,
}

// With its place in the index, an object takes less than the 64 bytes that config/local.toml names.
const _: () = assert!(size_of::<Entry>() <= 40);

/// Entries, and bytes of payloads, from which on a context gives its memory back when its transaction ends.
pub(crate) const KEPT_ENTRIES: usize = 4096;
const KEPT_BYTES: usize = 1 << 20;

/// A transaction context. Made once and used again: a warm one allocates nothing.
#[derive(Debug, Default)]
pub struct Tx {
    pub(crate) entries: Entries,
    index: Index,
    payloads: Payloads,
    /// Entries that have forgotten their payloads.
    forgotten: usize,
    words: Vec<u64>,
    limits: TxLimits,
    undo: Undo,
    /// Who hears that it has committed.
    pub(crate) when_committed: SmallVec<[Cont<()>; 2]>,
    /// What its objects are known by; another for each transaction.
    number: Number,
    /// Entries that it has had so far.
    pushed: u32,
    /// It commits to have validated what it read, and writes nothing.
    given_up: bool,
    /// It holds addresses, from [`crate::checkout`] to [`crate::checkin`].
    pub(crate) operation: Option<Operation>,
}

impl Tx {
    /// An empty context that is none of a worker's pool: what it reads may be freed, and serve objects
    /// of another size, once the turn has ended.
    pub fn new() -> Self {
        Self {
            entries: Entries::with_capacity(32),
            payloads: Payloads::with_capacity(8192),
            ..Self::default()
        }
    }

    /// Sets how much it may hold from now on, also after it was used: [`crate::set_limits`] sets that of contexts of
    /// a worker.
    pub fn set_limits(&mut self, limits: TxLimits) {
        self.limits = limits;
    }

    /// Objects in the read and write sets.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it has an object of another machine.
    pub fn is_distributed(&self) -> bool {
        self.entries.iter().any(|entry| entry.machine.is_some())
    }

    /// Whether nothing was read or allocated.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Reads an object of this machine that holds payloads of `payload_bytes`, or gives the one that
    /// this transaction has: its own writes are seen.
    ///
    /// # Errors
    /// [`Abort::Locked`] when another transaction stays in the way. [`TxError::NotAllocated`], which may
    /// be a conflict, too: that the object was not there when the others were read is certain only if
    /// the transaction commits. [`TxError::WrongSize`] when the object has another size class.
    pub fn read(
        &mut self,
        worker: &mut Worker,
        address: Address,
        payload_bytes: usize,
    ) -> Result<ObjectId, TxError> {
        let class = class_for_payload(payload_bytes)?;
        self.read_class(worker, address, class)
    }

    /// As [`Tx::read`], of an object of a known size class.
    ///
    /// # Errors
    /// As [`Tx::read`].
    #[inline]
    pub fn read_class(
        &mut self,
        worker: &mut Worker,
        address: Address,
        class: SizeClass,
    ) -> Result<ObjectId, TxError> {
        if let Some(known) = self.known(address, class) {
            return known;
        }
        self.check_limits_of_read(address, class)?;
        if address.is_null() || !address.is_line_aligned() {
            return Err(AddressError::Nowhere(address).into());
        }
        let geometry = worker.store().geometry();
        let (memory, at) = worker.local_memory(address)?;
        // Where there is no block nothing is allocated, which the copy shows.
        is_slot((memory, geometry, at), address, class)?;
        self.copy_in(memory, at, address, class)?;
        let words = std::mem::take(&mut self.words);
        let read = self.take_in(&words, address, None, class);
        self.words = words;
        read
    }

    /// Reads the object of this machine that a fat pointer names, and no other that came to be in its place
    /// (`FaRM'14 §3.5`).
    ///
    /// # Errors
    /// As [`Tx::read`], but [`TxError::NotAllocated`] in place of [`TxError::WrongSize`]: the object of the pointer was
    /// freed.
    pub fn read_pointer(
        &mut self,
        worker: &mut Worker,
        pointer: FatPointer,
    ) -> Result<ObjectId, TxError> {
        match self.read_class(worker, pointer.address, pointer.class()) {
            Ok(object) => self.named(object, pointer),
            // The memory serves objects of another size now.
            Err(TxError::WrongSize { .. } | TxError::Address(AddressError::Nowhere(_))) => {
                Err(TxError::NotAllocated(pointer.address))
            }
            Err(error) => Err(error),
        }
    }

    /// The object, if a fat pointer names it.
    pub(crate) fn named(&self, object: ObjectId, pointer: FatPointer) -> Result<ObjectId, TxError> {
        match pointer.names(self.incarnation(object)) {
            true => Ok(object),
            false => Err(TxError::NotAllocated(pointer.address)),
        }
    }

    /// The object at an address that this transaction has met, unless it has forgotten its payload.
    #[inline]
    pub(crate) fn known(
        &self,
        address: Address,
        class: SizeClass,
    ) -> Option<Result<ObjectId, TxError>> {
        let known = self.position(address)?;
        let entry = &self.entries[known];
        Some(match entry.intent {
            Intent::Free | Intent::Absent => Err(TxError::NotAllocated(address)),
            _ if entry.class != class => Err(wrong_size(address, class, entry.class)),
            _ if entry.is_forgotten() => return None,
            _ => Ok(self.id(known)),
        })
    }

    /// Adds what was read, a consistent image.
    #[inline]
    pub(crate) fn take_in(
        &mut self,
        words: &[u64],
        address: Address,
        machine: Option<MachineId>,
        class: SizeClass,
    ) -> Result<ObjectId, TxError> {
        let image = Image::check(words).expect("copied until it was consistent");
        let (version, incarnation) = (image.version(), image.incarnation());
        if self.forgotten > 0
            && let Some(known) = self.position(address)
        {
            return self.recall(known, &image);
        }
        let place = Place {
            address,
            machine,
            class,
        };
        // A slot that was never used has a header of zero.
        if incarnation.class() != class && incarnation.0 != 0 {
            return Err(wrong_size(address, class, incarnation.class()));
        }
        if !incarnation.is_allocated() {
            marks::mark("tx: read met a freed object");
            self.push(place, version, incarnation, Intent::Absent, NOT_HELD);
            return Err(TxError::NotAllocated(address));
        }
        let at = self.payloads.add(class.payload_capacity());
        let object = self.push(place, version, incarnation, Intent::Read, at);
        self.copy_payload(&image);
        Ok(object)
    }

    /// Copies the payload of the last entry out of its image.
    #[inline]
    fn copy_payload(&mut self, image: &Image<'_>) {
        let last = self.entries.len() - 1;
        let payload = self.entries[last].payload();
        image.copy_payload(0, self.payloads.get_mut(payload));
    }

    /// A consistent image into `words`.
    #[inline]
    fn copy_in(
        &mut self,
        memory: &Memory,
        at: usize,
        address: Address,
        class: SizeClass,
    ) -> Result<(), TxError> {
        let bytes = class.object_bytes();
        if at + bytes > memory.len() {
            return Err(AddressError::Nowhere(address).into());
        }
        self.words.resize(bytes / 8, 0);
        for _ in 0..READ_TRIES {
            if memory.copy_objects(at, bytes, &mut self.words).is_ok()
                && Image::check(&self.words).is_ok()
            {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        marks::mark("tx: read tries ran out");
        Err(Abort::Locked(address).into())
    }

    /// Whether one more object of so many bytes may be had.
    pub(crate) fn check_limits(&self, more: usize) -> Result<(), TxError> {
        self.check_limits_of(1, more)
    }

    /// Whether an object may be read that is not known, or was forgotten.
    pub(crate) fn check_limits_of_read(
        &self,
        address: Address,
        class: SizeClass,
    ) -> Result<(), TxError> {
        let known = self.forgotten > 0 && self.position(address).is_some();
        self.check_limits_of(usize::from(!known), class.payload_capacity())
    }

    /// Whether so many objects more, of so many bytes together, may be had.
    pub(crate) fn check_limits_of(&self, objects: usize, bytes: usize) -> Result<(), TxError> {
        let objects = self.entries.len() + objects;
        let bytes = self.payloads.held() + bytes;
        if objects > self.limits.objects || bytes > self.limits.bytes {
            return Err(TxError::Limit {
                objects,
                bytes,
                limits: self.limits,
            });
        }
        Ok(())
    }

    fn push(
        &mut self,
        place: Place,
        version: Version,
        incarnation: Incarnation,
        intent: Intent,
        at: u32,
    ) -> ObjectId {
        let entry = Entry {
            address: place.address,
            machine: place.machine,
            class: place.class,
            version,
            incarnation,
            bump: false,
            intent,
            saved: false,
            serial: self.pushed,
            at,
        };
        self.pushed += 1;
        self.entries.push(entry);
        self.index.follow(&self.entries);
        self.id(self.entries.len() - 1)
    }

    #[inline]
    fn position(&self, address: Address) -> Option<usize> {
        self.index.find(&self.entries, address)
    }

    /// What commit installs.
    #[inline]
    pub(crate) fn payload_of(&self, entry: &Entry) -> &[u8] {
        if entry.intent == Intent::Free {
            return &[];
        }
        self.payloads.get(entry.payload())
    }

    /// Forgets everything, and gives back what was reserved.
    pub fn abort(&mut self, worker: &mut Worker) {
        for entry in self.entries.iter() {
            let local = entry.machine.is_none();
            if local && entry.intent == Intent::Free && mutants::is_on("free takes effect on abort")
            {
                crate::slots::release_local(worker, entry.address, entry.class);
            }
        }
        if self.entries.iter().any(Entry::is_reserved) {
            marks::mark("tx: aborted with allocation");
            if !mutants::is_on("allocation leaked on abort") {
                give_back(worker, self.entries.iter().filter(|one| one.is_reserved()));
            }
        }
        self.clear();
    }

    /// Calls `cont` when the transaction has committed; never if it has not. Who awaits the commit
    /// hears of it after.
    pub fn when_committed(&mut self, cont: Cont<()>) {
        self.when_committed.push(cont);
    }

    /// Whether it is only to validate what it read.
    pub(crate) fn has_given_up(&self) -> bool {
        self.given_up
    }

    /// Forgets everything: what it has from now on is another transaction's.
    pub(crate) fn clear(&mut self) {
        self.number.advance();
        self.given_up = false;
        self.pushed = 0;
        self.entries.clear();
        self.index.clear();
        self.payloads.clear();
        self.forgotten = 0;
        self.undo.clear();
        self.when_committed.clear();
    }

    /// Gives back the memory of a large transaction that has ended.
    pub(crate) fn trim(&mut self) {
        debug_assert!(self.is_empty(), "the transaction has ended");
        if self.entries.capacity() > KEPT_ENTRIES || self.index.capacity() > 2 * KEPT_ENTRIES {
            (self.entries, self.index) = (Entries::default(), Index::default());
        }
        if self.payloads.capacity() > KEPT_BYTES {
            self.payloads = Payloads::default();
        }
        if self.undo.capacity() > KEPT_BYTES {
            self.undo = Undo::default();
        }
        if self.words.capacity() > KEPT_BYTES / 8 {
            self.words = Vec::new();
        }
    }
}

/// Whether objects of a class start at an address of this machine, which is `at` in its memory; false where
/// there is no block.
#[inline]
pub(crate) fn is_slot(
    (memory, geometry, at): (&Memory, Geometry, usize),
    address: Address,
    class: SizeClass,
) -> Result<bool, TxError> {
    match class_at(memory, geometry, at) {
        Some((is, _)) if is != class => Err(wrong_size(address, class, is)),
        Some((_, false)) => Err(AddressError::Nowhere(address).into()),
        found => Ok(found.is_some()),
    }
}

/// The error of an object of another class.
pub(crate) fn wrong_size(address: Address, asked: SizeClass, is: SizeClass) -> TxError {
    TxError::WrongSize {
        address,
        asked: asked.payload_capacity(),
        is: is.payload_capacity(),
    }
}

impl Entry {
    /// Whether its payload was forgotten.
    #[inline]
    pub(crate) fn is_forgotten(&self) -> bool {
        self.at == NOT_HELD && self.intent != Intent::Absent
    }

    /// Whether its payload is held.
    #[inline]
    fn is_held(&self) -> bool {
        self.at != NOT_HELD
    }

    /// The place of its payload, which is held.
    #[inline]
    fn payload(&self) -> std::ops::Range<usize> {
        let at = self.at as usize;
        at..at + self.class.payload_capacity()
    }

    /// Room was reserved for it.
    pub(crate) fn is_reserved(&self) -> bool {
        !self.incarnation.is_allocated() && self.is_written()
    }

    /// The incarnation word after the commit.
    pub(crate) fn installed_incarnation(&self) -> Incarnation {
        match self.intent {
            Intent::Free => self.incarnation.freed(),
            Intent::Allocate if self.bump => self.incarnation.allocated().incremented(),
            Intent::Allocate => self.incarnation.allocated(),
            Intent::Read | Intent::Write if self.bump => self.incarnation.incremented(),
            Intent::Read | Intent::Write | Intent::Absent => self.incarnation,
        }
    }

    /// Whether the commit locks and installs it.
    pub(crate) fn is_written(&self) -> bool {
        self.intent.is_written()
    }
}
