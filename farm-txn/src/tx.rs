//! The transaction context: the objects that were read, their versions, and the changes to commit.

use farm_core::alloc::{Geometry, SizeClass, class_at, class_for_payload};
use farm_core::ids::{Address, MachineId};
use farm_core::marks;
use farm_core::mem::Memory;
use farm_core::object::{FatPointer, Image, Incarnation, Version};
use farm_core::worker::{AddressError, EpochGuard, Worker};

use crate::error::{Abort, TxError, unusable_here};
use crate::limits::TxLimits;
use crate::record::FIRST_CONFIGURATION;

mod blocks;
mod entries;
#[cfg(feature = "mutants")]
mod faults;
mod forget;
mod index;
mod objects;
mod payloads;
pub(crate) mod reservation;

use blocks::NewBlocks;
pub(crate) use entries::Entries;
#[doc(hidden)]
#[cfg(debug_assertions)]
pub use entries::entries_looked_at;
use index::Index;
use objects::Number;
pub use objects::ObjectId;
use payloads::{NOT_HELD, Payloads};

/// Number of tries of a local read before the object counts as locked. A transaction whose objects are all on this
/// machine commits in less time, unless its thread lost its core. A commit over several machines takes a round trip,
/// which is too long for a worker to wait.
const LOCAL_READ_TRIES: u32 = 50;

/// What a transaction does with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Intent {
    Read,
    /// The object did not exist. The commit validates that in the same way as a read.
    Absent,
    Write,
    Allocate,
    /// Adjacent objects are created, with zero payloads. Nothing has their addresses before the commit, so only the first one is
    /// locked, for all of them.
    Format,
    Free,
}

impl Intent {
    /// Returns whether the commit locks and installs the object.
    fn is_written(self) -> bool {
        !matches!(self, Intent::Read | Intent::Absent)
    }
}

/// Address, machine and size class of an object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) address: Address,
    pub(crate) machine: Option<MachineId>,
    pub(crate) class: SizeClass,
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) address: Address,
    /// Machine that stores the object, if it is another one; `None` for this machine.
    pub(crate) machine: Option<MachineId>,
    pub(crate) class: SizeClass,
    /// Version and incarnation, as they were read.
    pub(crate) version: Version,
    pub(crate) incarnation: Incarnation,
    /// Whether the commit increments the incarnation.
    pub(crate) bump: bool,
    pub(crate) intent: Intent,
    /// Offset of the payload in [`Payloads`], or [`NOT_HELD`]; for [`Intent::Format`] the number of objects.
    at: u32,
}

// Together with its slot in the index, an object takes less than the 64 bytes that config/local.toml names.
const _: () = assert!(size_of::<Entry>() <= 40);

/// If a context has more capacity than these numbers of entries and payload bytes, it frees the memory when its
/// transaction ends.
pub(crate) const KEPT_ENTRIES: usize = 4096;
const KEPT_BYTES: usize = 1 << 20;

/// A transaction context. It is reused: after some transactions it allocates no more memory.
#[derive(Debug, Default)]
pub struct Tx {
    pub(crate) entries: Entries,
    index: Index,
    payloads: Payloads,
    /// Number of entries whose payloads were forgotten.
    forgotten: usize,
    words: Vec<u64>,
    limits: TxLimits,
    /// Number of the current transaction, which is a part of each of its [`ObjectId`]s.
    number: Number,
    /// Whether the commit only validates what was read, and writes nothing.
    given_up: bool,
    /// Whether the commit does not validate objects that were only read.
    ignores_reads: bool,
    /// The blocks of new objects, for their copies, if commits are logged.
    pub(crate) blocks: NewBlocks,
    /// EpochGuard that keeps addresses valid, from [`crate::checkout`] to [`crate::checkin`].
    pub(crate) guard: Option<EpochGuard>,
    /// The configuration in which the transaction began.
    pub(crate) configuration: u64,
}

impl Tx {
    /// Creates an empty context that does not belong to a worker's pool. When the turn has ended, the objects that it
    /// read may be freed, and their memory may be reused for objects of another size.
    pub fn new() -> Self {
        Self {
            entries: Entries::with_capacity(32),
            payloads: Payloads::with_capacity(8192),
            configuration: FIRST_CONFIGURATION,
            ..Self::default()
        }
    }

    /// Sets the limits, also of a context that was used before. [`crate::set_limits`] sets the limits of a worker's
    /// contexts.
    pub fn set_limits(&mut self, limits: TxLimits) {
        self.limits = limits;
    }

    /// Returns the number of objects in the read and write sets.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether the transaction has no objects.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Reads an object of this machine that stores payloads of `payload_bytes`. If the transaction has the object
    /// already, returns that one, so a transaction reads its own writes.
    ///
    /// # Errors
    /// [`Abort::Locked`] if the object stays locked by another transaction. [`TxError::NotAllocated`], which may be the
    /// result of a conflict: only if the transaction commits is it certain that the object did not exist at the moment
    /// of its other reads. [`TxError::WrongSize`] if the object has another size class.
    pub fn read(
        &mut self,
        worker: &mut Worker,
        address: Address,
        payload_bytes: usize,
    ) -> Result<ObjectId, TxError> {
        let class = class_for_payload(payload_bytes)?;
        self.read_class(worker, address, class)
    }

    /// Reads an object of a known size class, as [`Tx::read`] does.
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
        let (memory, at) = worker.local_memory(address).map_err(unusable_here)?;
        // In memory without a block nothing is allocated, and the copied image shows that.
        is_slot((memory, geometry, at), address, class)?;
        self.copy_in(memory, at, address, class)?;
        let words = std::mem::take(&mut self.words);
        let read = self.take_in(&words, address, None, class);
        self.words = words;
        read
    }

    /// Reads the object of this machine to which a fat pointer refers, and not an object that was later allocated in
    /// its place (`FaRM'14 §3.5`).
    ///
    /// # Errors
    /// As [`Tx::read`], but [`TxError::NotAllocated`] instead of [`TxError::WrongSize`]: the object of the pointer was
    /// freed.
    pub fn read_pointer(
        &mut self,
        worker: &mut Worker,
        pointer: FatPointer,
    ) -> Result<ObjectId, TxError> {
        match self.read_class(worker, pointer.address, pointer.class()) {
            Ok(object) => self.named(object, pointer),
            // The memory is now used for objects of another size.
            Err(TxError::WrongSize { .. } | TxError::Address(AddressError::Nowhere(_))) => {
                Err(TxError::NotAllocated(pointer.address))
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the object, if the fat pointer refers to it.
    pub(crate) fn named(&self, object: ObjectId, pointer: FatPointer) -> Result<ObjectId, TxError> {
        match pointer.names(self.incarnation(object)) {
            true => Ok(object),
            false => Err(TxError::NotAllocated(pointer.address)),
        }
    }

    /// Returns the object at an address, if the transaction has it and has not forgotten its payload.
    ///
    /// # Errors
    /// [`TxError::NotAllocated`] if the transaction found no object there or has freed it; [`TxError::WrongSize`].
    #[inline]
    pub fn known(&self, address: Address, class: SizeClass) -> Option<Result<ObjectId, TxError>> {
        let known = self.position(address)?;
        let entry = &self.entries[known];
        Some(match entry.intent {
            Intent::Free | Intent::Absent => Err(TxError::NotAllocated(address)),
            _ if entry.class != class => Err(wrong_size(address, class, entry.class)),
            _ if entry.is_forgotten() => return None,
            _ => Ok(self.id(known)),
        })
    }

    /// Adds an object that was read. `words` must be a consistent image.
    #[inline]
    pub(crate) fn take_in(
        &mut self,
        words: &[u64],
        address: Address,
        machine: Option<MachineId>,
        class: SizeClass,
    ) -> Result<ObjectId, TxError> {
        let image = Image::check(words).expect("`take_in` is called only with a consistent image");
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
        // The header of a slot that was never used is zero.
        if incarnation.class() != class && incarnation.0 != 0 {
            return Err(wrong_size(address, class, incarnation.class()));
        }
        // No object has such a version: the address is that of payload that looks like a header.
        if Version::checked(version.get()).is_none() {
            return Err(AddressError::Nowhere(address).into());
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

    /// Copies the payload of the last entry from its image.
    #[inline]
    fn copy_payload(&mut self, image: &Image<'_>) {
        let last = self.entries.len() - 1;
        let payload = self.entries[last].payload();
        image.copy_payload(0, self.payloads.get_mut(payload));
    }

    /// Copies a consistent image of an object into `words`.
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
        for _ in 0..LOCAL_READ_TRIES {
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

    /// Checks that the limits permit one more object with `more` bytes.
    pub(crate) fn check_limits(&self, more: usize) -> Result<(), TxError> {
        self.check_limits_of(1, more)
    }

    /// Checks that the limits permit a read of an object that is new, or whose payload was forgotten.
    pub(crate) fn check_limits_of_read(
        &self,
        address: Address,
        class: SizeClass,
    ) -> Result<(), TxError> {
        let known = self.forgotten > 0 && self.position(address).is_some();
        self.check_limits_of(usize::from(!known), class.payload_capacity())
    }

    /// Checks that the limits permit `objects` more objects with `bytes` bytes in total.
    pub(crate) fn check_limits_of(&self, objects: usize, bytes: usize) -> Result<(), TxError> {
        let objects = self.entries.len() + objects;
        let has_room = self.payloads.has_room(bytes);
        let bytes = self.payloads.held() + bytes;
        if objects > self.limits.objects || bytes > self.limits.bytes || !has_room {
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
            at,
        };
        self.entries.push(entry);
        self.index.follow(&self.entries);
        self.id(self.entries.len() - 1)
    }

    #[inline]
    fn position(&self, address: Address) -> Option<usize> {
        self.index.find(&self.entries, address)
    }

    /// Returns the payload that the commit installs.
    #[inline]
    pub(crate) fn payload_of(&self, entry: &Entry) -> &[u8] {
        if matches!(entry.intent, Intent::Free | Intent::Format) {
            return &[];
        }
        self.payloads.get(entry.payload())
    }

    /// Returns whether the commit only validates what was read.
    pub(crate) fn has_given_up(&self) -> bool {
        self.given_up
    }

    /// Lets the transaction commit although objects that it only read have changed. It must be correct whenever the objects
    /// that it writes have not changed: for example, it read other objects only to find them.
    pub fn ignore_reads(&mut self) {
        self.ignores_reads = true;
    }

    /// Returns whether the commit validates objects that were only read.
    pub(crate) fn validates_reads(&self) -> bool {
        !self.ignores_reads
    }

    /// Removes all objects, and starts the next transaction.
    pub(crate) fn clear(&mut self) {
        self.number.advance();
        self.given_up = false;
        self.ignores_reads = false;
        self.entries.clear();
        self.index.clear();
        self.payloads.clear();
        self.forgotten = 0;
        self.blocks.clear();
    }

    /// Frees the memory of a large transaction that has ended.
    pub(crate) fn trim(&mut self) {
        debug_assert!(
            self.is_empty(),
            "`trim` is called only after the transaction has ended"
        );
        if self.entries.capacity() > KEPT_ENTRIES || self.index.capacity() > 2 * KEPT_ENTRIES {
            (self.entries, self.index) = (Entries::default(), Index::default());
        }
        if self.payloads.capacity() > KEPT_BYTES {
            self.payloads = Payloads::default();
        }
        if self.words.capacity() > KEPT_BYTES / 8 {
            self.words = Vec::new();
        }
    }
}

/// Checks that an object of `class` can start at an address of this machine, whose offset in `memory` is `at`. Returns
/// false if no block contains the address, and an error if the address is in a block of another class or is not the
/// start of an object.
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

/// Returns the error for an object of another class.
pub(crate) fn wrong_size(address: Address, asked: SizeClass, is: SizeClass) -> TxError {
    TxError::WrongSize {
        address,
        asked: asked.payload_capacity(),
        is: is.payload_capacity(),
    }
}

impl Entry {
    /// Returns whether the payload was forgotten.
    #[inline]
    pub(crate) fn is_forgotten(&self) -> bool {
        self.at == NOT_HELD && self.intent != Intent::Absent
    }

    /// Returns whether the payload is held.
    #[inline]
    fn is_held(&self) -> bool {
        self.at != NOT_HELD
    }

    /// Returns the range of the payload in [`Payloads`]; the payload must be held.
    #[inline]
    fn payload(&self) -> std::ops::Range<usize> {
        let at = self.at as usize;
        at..at + self.class.payload_capacity()
    }

    /// Returns whether this transaction has reserved room for the object.
    pub(crate) fn is_reserved(&self) -> bool {
        !self.incarnation.is_allocated() && self.is_written()
    }

    /// Returns the incarnation word after the commit.
    pub(crate) fn installed_incarnation(&self) -> Incarnation {
        match self.intent {
            Intent::Free => self.incarnation.freed(),
            Intent::Allocate if self.bump => self.incarnation.allocated().incremented(),
            Intent::Allocate | Intent::Format => self.incarnation.allocated(),
            Intent::Read | Intent::Write if self.bump => self.incarnation.incremented(),
            Intent::Read | Intent::Write | Intent::Absent => self.incarnation,
        }
    }

    /// Returns the number of adjacent objects of the entry.
    pub(crate) fn count(&self) -> u32 {
        match self.intent {
            Intent::Format => self.at,
            _ => 1,
        }
    }

    /// Returns whether the commit locks and installs the object.
    pub(crate) fn is_written(&self) -> bool {
        self.intent.is_written()
    }
}
