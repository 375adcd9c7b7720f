//! A worker's access to the shared address space: the memory of its machine, the regions of other machines, and the
//! allocation of objects on this machine.

use rand::seq::IteratorRandom;

use super::epoch::{Shortage, Source};
use super::reads::Begun;
use super::regions::{ASK_AGAIN, NOT_YET};
use super::request::ReadError;
use super::{Cont, Worker};
use crate::alloc::{
    AllocError, ArrayRun, BlockTable, ClassUsage, Mismatch, ReleaseError, Reserved, SizeClass,
};
use crate::fabric::{Capability, ImportError, Slot};
use crate::ids::{Address, MachineId, RegionId, WorkerId, WorkerRef};
use crate::limits::LARGEST_REPLY_BYTES;
use crate::marks;
use crate::mem::Memory;
use crate::messaging::{CallError, MessageId, ReplyCont, Request};
use crate::object::write::Room;
use crate::region::remote::Need;
use crate::region::table::{Access, RegionIndex};

/// Message id of a request for the capability of a region, sent to the machine that stores it.
const REGION_CAPABILITY: MessageId = MessageId(MessageId::CORE);
const CAPABILITY_BYTES: usize = 25;
const _: () = assert!(CAPABILITY_BYTES as u64 <= LARGEST_REPLY_BYTES);
/// Notifies another worker of the same machine that the call for the capability of a region has ended. One-way.
const CAPABILITY_FETCHED: MessageId = MessageId(MessageId::CORE + 1);

/// Why an address cannot be used on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Another machine is the primary of the region.
    #[error("{address} resides on machine {machine}, not on this machine")]
    Elsewhere {
        /// The address.
        address: Address,
        /// Primary of the address's region.
        machine: MachineId,
    },
    /// The region does not exist, or the offset is beyond its end.
    #[error("there is no object at {0}")]
    Nowhere(Address),
    /// The primary of the region was lost, and this machine, which follows it, does not serve the region yet.
    #[error("the machine that stored {0} is lost, and this machine does not serve it yet")]
    NotYet(Address),
}

/// Reads that wait for the capability of a region.
#[derive(Default)]
pub(super) struct RegionWaits {
    waiting: Vec<Waiting>,
}

impl RegionWaits {
    /// Returns the number of reads that wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }
}

struct Waiting {
    region: RegionId,
    read: Begun,
    slot: Slot,
}

impl Worker {
    pub(super) fn register_core_handlers(&mut self) {
        self.register(REGION_CAPABILITY, Self::handle_capability_request);
        self.register(CAPABILITY_FETCHED, Self::handle_capability_fetched);
        self.register_epoch_handlers();
        self.register_region_handlers();
        self.register_leave_handlers();
        self.register_join_handlers();
        self.register_connectivity_handlers();
        self.register_long_handlers();
        self.register_member_handlers();
        self.register_fill_handlers();
        self.register_adopt_handlers();
    }

    /// Returns the primary of a region; this machine if there is no such region.
    pub fn machine_of(&self, region: RegionId) -> MachineId {
        match self.regions.lookup(region) {
            Some(Access::Local(_)) => self.me.machine,
            Some(Access::Remote { machine, .. }) => *machine,
            Some(Access::Lost) | None => match self.store.map().lookup(region) {
                Some(replicas) => replicas.primary(),
                None => self.me.machine,
            },
        }
    }

    /// Returns a worker to which messages about the object at an address go (`msgSend`): this worker if its machine
    /// stores the object. All workers of a machine share its memory.
    ///
    /// # Errors
    /// [`CallError::NoWorker`] if that machine is not in the cluster.
    pub fn worker_at(&self, address: Address) -> Result<WorkerRef, CallError> {
        match self.machine_of(address.region()) {
            machine if machine == self.me.machine => Ok(self.me),
            machine => self.log_poller(machine),
        }
    }

    /// Returns the machine on which an object without a hint is created, if it is another one: a random one, if this machine
    /// stores nothing.
    #[inline]
    pub fn elsewhere_for_new_object(&mut self) -> Option<MachineId> {
        match self.store.is_used() {
            true => None,
            false => self.membership.storing().choose(&mut self.rng),
        }
    }

    /// Returns the memory that stores an address of this machine, and the offset in it.
    ///
    /// # Errors
    /// [`AddressError`] if another machine or no machine stores the address.
    #[inline]
    pub fn local_memory(&mut self, address: Address) -> Result<(&Memory, usize), AddressError> {
        if address.is_null() {
            return Err(AddressError::Nowhere(address));
        }
        let region = address.region();
        let index = match self.regions.find(region) {
            Some(index) => index,
            None => self
                .adopt_local(region)
                .ok_or_else(|| self.not_here(address))?,
        };
        match self.regions.at(index) {
            Access::Local(memory) if (address.offset() as usize) < memory.len() => {
                Ok((memory, address.offset() as usize))
            }
            Access::Local(_) => Err(AddressError::Nowhere(address)),
            Access::Remote { machine, .. } => Err(AddressError::Elsewhere {
                address,
                machine: *machine,
            }),
            Access::Lost => Err(self.not_here(address)),
        }
    }

    /// Records a region of this machine that another of its workers may have created. Returns `None` if this machine
    /// does not store the region.
    #[cold]
    fn adopt_local(&mut self, region: RegionId) -> Option<RegionIndex> {
        let (memory, _) = self.store.region(region)?;
        Some(self.regions.record(region, Access::Local(memory)))
    }

    /// Serves a region of which this machine is the primary, or has become the primary after a loss. Returns false if this machine has
    /// no copy of it.
    pub fn serve_region(&mut self, region: RegionId) -> bool {
        self.store.promote(region)
    }

    /// Returns this machine's copy of a region of another machine, with its block table.
    ///
    /// # Errors
    /// [`AddressError`] if this machine keeps no copy of the region.
    pub fn backup_table(&mut self, region: RegionId) -> Result<&BlockTable, AddressError> {
        if !self.backups.contains_key(&region) {
            let nowhere = || AddressError::Nowhere(Address::new(region, 0));
            let copies = self
                .store
                .backups()
                .and_then(|copies| copies.memory(region));
            // Other workers may be changing it.
            let table = copies.and_then(|memory| BlockTable::open_in_use(memory, region).ok());
            self.backups.insert(region, table.ok_or_else(nowhere)?);
        }
        Ok(&self.backups[&region])
    }

    /// Returns the reason why this machine cannot use an address in a region that it does not store.
    #[cold]
    fn not_here(&self, address: Address) -> AddressError {
        match self.machine_of(address.region()) {
            machine if machine == self.me.machine => {
                match self.store.map().lookup(address.region()) {
                    Some(_) => AddressError::NotYet(address),
                    None => AddressError::Nowhere(address),
                }
            }
            machine => AddressError::Elsewhere { address, machine },
        }
    }

    /// Reserves room for an object on this machine, near `hint` if possible. Returns the slot, and the version and
    /// incarnation from which the object continues.
    ///
    /// # Errors
    /// [`AllocError`]: nothing is reserved. If memory is short, the machine starts to reclaim blocks of freed objects
    /// of other sizes, so that a later attempt may succeed. That memory becomes available after all operations that are
    /// under way now have ended, including the caller's.
    pub fn reserve_object(
        &mut self,
        class: SizeClass,
        hint: Option<Address>,
    ) -> Result<(Reserved, Room), AllocError> {
        self.reserve_from((class, hint), true)
    }

    /// As [`Worker::reserve_object`], for another machine, which can ask again: does not wait until the memory of a region is made.
    ///
    /// # Errors
    /// As [`Worker::reserve_object`]; [`AllocError::NoRegionYet`].
    pub fn reserve_object_soon(
        &mut self,
        class: SizeClass,
        hint: Option<Address>,
    ) -> Result<(Reserved, Room), AllocError> {
        self.reserve_from((class, hint), false)
    }

    fn reserve_from(
        &mut self,
        (class, hint): (SizeClass, Option<Address>),
        waits: bool,
    ) -> Result<(Reserved, Room), AllocError> {
        let hint = hint.filter(|hint| !hint.is_null());
        let mut source = match waits {
            true => Source::of(&self.store),
            false => Source::without_waits(&self.store),
        };
        let reserved = self.slab.reserve(class, hint, &mut source);
        if let Some(shortage) = source.shortage {
            self.memory_is_short(shortage);
        }
        self.record_new_regions();
        reserved.map(|reserved| (reserved, self.slab.begin(&reserved)))
    }

    /// Releases room on this machine: a slot that this worker reserved, or one in an array. If the slot is in a block
    /// of another worker, returns that worker, which must release it.
    ///
    /// # Errors
    /// [`ReleaseError`] if no such slot is at the address, or the slot was released already.
    #[inline]
    pub fn release_object(&mut self, address: Address) -> Result<Option<WorkerId>, ReleaseError> {
        match self.slab.release(address) {
            Ok(_) => Ok(None),
            Err(not_ours @ ReleaseError::NotOurs(_)) => match self.store.release(address)? {
                Some(owner) if owner == self.me.worker => Err(not_ours),
                owner => Ok(owner),
            },
            Err(error) => Err(error),
        }
    }

    /// Returns the usage of one size class in this worker's slab allocator.
    pub fn slab_usage(&self, class: SizeClass) -> ClassUsage {
        self.slab.usage(class)
    }

    /// Compares this worker's slab allocator with the allocated bits in memory. The two agree while no transaction of
    /// the machine is open and no freed object is on its way to the worker that releases it.
    ///
    /// # Errors
    /// The first [`Mismatch`].
    pub fn check_slab(&self) -> Result<(), Mismatch> {
        self.store.check_slab(&self.slab)
    }

    /// Reserves room for an array of adjacent objects on this machine, near `near` if possible. Each object
    /// [begins](ArrayRun::begin), is created and is released like one that [`Worker::reserve_object`] reserved. The
    /// memory of the array is reused after its last object is released.
    ///
    /// # Errors
    /// [`AllocError`]: nothing is reserved. As with [`Worker::reserve_object`], a shortage may pass.
    ///
    /// # Panics
    /// If `count` is zero.
    pub fn reserve_array(
        &mut self,
        class: SizeClass,
        count: u32,
        near: Option<Address>,
    ) -> Result<ArrayRun, AllocError> {
        let me = self.me.worker;
        let near = near.filter(|near| !near.is_null()).map(Address::region);
        let array = self.store.allocate_array(class, count, me, near);
        if let Some(shortage) = Shortage::of(&self.store, &array) {
            self.memory_is_short(shortage);
        }
        self.record_new_regions();
        array
    }

    /// Returns the store of this machine.
    pub fn store(&self) -> &crate::region::store::Store {
        &self.store
    }

    #[cold]
    pub(super) fn find_region_then_read(&mut self, read: Begun, slot: Slot) {
        let region = read.request.address.region();
        if let Some(index) = self.adopt_local(region) {
            return self.start_read(read, index, slot);
        }
        let first = !self
            .region_waits
            .waiting
            .iter()
            .any(|waiting| waiting.region == region);
        self.region_waits
            .waiting
            .push(Waiting { region, read, slot });
        if first {
            self.resolve_region(region, ());
        } else {
            marks::mark("region: capability waited for");
        }
    }

    fn resolve_region(&mut self, id: RegionId, (): ()) {
        let machine = self.machine_of(id);
        if machine == self.me.machine {
            return match self.adopt_local(id) {
                Some(index) => self.start_waiting(id, index),
                // It becomes the primary when what is undecided is locked.
                None if self.store.map().lookup(id).is_some() => self.resolve_later(id),
                None => self.fail_region_wait(id, ReadError::NoRegion),
            };
        }
        match self.store.remote().need(id, self.me.worker) {
            Need::Use(capability) => self.import_region(id, &capability),
            Need::Wait => marks::mark("region: another worker fetches the capability"),
            Need::Call => self.call_for_capability(id, ()),
        }
    }

    fn call_for_capability(&mut self, id: RegionId, (): ()) {
        let machine = self.machine_of(id);
        let to = WorkerRef::first_of(machine);
        let cont = ReplyCont::new(Self::handle_capability_reply, id);
        let body = id.to_bits().to_le_bytes();
        match self.call(to, REGION_CAPABILITY, &[&body], CAPABILITY_BYTES, cont) {
            Ok(()) => {}
            Err(CallError::PeerLost(_)) => {
                self.region_fetched(id, None);
                self.region_lost(id, machine);
            }
            Err(_) => self.when_room(Cont::new(Self::call_for_capability, id)),
        }
    }

    /// Records the end of this worker's call for a capability, and notifies the workers that wait for it.
    fn region_fetched(&mut self, id: RegionId, capability: Option<Capability>) {
        for worker in self.store.remote().fetched(id, capability) {
            let context = u64::from(worker.index() as u32) << 32 | u64::from(id.to_bits());
            self.notify_fetched(context, ());
        }
    }

    fn notify_fetched(&mut self, context: u64, (): ()) {
        let worker = WorkerId::new((context >> 32) as u16)
            .expect("the context contains the id of a worker of this machine");
        let to = WorkerRef::new(self.me.machine, worker);
        let body = (context as u32).to_le_bytes();
        if let Err(CallError::Busy) = self.send(to, CAPABILITY_FETCHED, &[&body]) {
            self.when_room(Cont::new(Self::notify_fetched, context));
        }
    }

    fn handle_capability_fetched(&mut self, request: Request, body: &[u8]) {
        let region = <[u8; 4]>::try_from(body).ok().map(u32::from_le_bytes);
        let region = region.and_then(RegionId::from_bits);
        match region.filter(|_| request.from.machine == self.me.machine) {
            Some(region) => self.resolve_region(region, ()),
            None => self.distrust(
                request.from.machine,
                format!(
                    "{} sent a CAPABILITY_FETCHED that is malformed or from another machine",
                    request.from
                ),
            ),
        }
    }

    fn handle_capability_reply(&mut self, id: RegionId, reply: Result<&[u8], CallError>) {
        let machine = self.machine_of(id);
        let capability = reply.ok().and_then(|body| decode_capability(machine, body));
        marks::mark("region: capability fetched");
        self.region_fetched(id, capability);
        match (capability, reply) {
            (Some(capability), _) => self.import_region(id, &capability),
            (None, Ok([NOT_YET])) => self.resolve_later(id),
            (None, Ok(_)) => self.fail_region_wait(id, ReadError::NoRegion),
            (None, Err(_)) => self.region_lost(id, machine),
        }
    }

    /// Handles that the primary of a region is lost.
    fn region_lost(&mut self, id: RegionId, machine: MachineId) {
        match self.survives() {
            true => self.resolve_later(id),
            false => self.fail_region_wait(id, |_| ReadError::PeerLost(machine)),
        }
    }

    /// Finds a region after a time, because it has no primary that serves it now.
    fn resolve_later(&mut self, id: RegionId) {
        marks::mark("region: waits for its next primary");
        let machine = self.machine_of(id);
        let (headers, others) = self
            .take_waiting(id)
            .into_iter()
            .partition::<Vec<_>, _>(|waiting| waiting.read.request.is_unchecked());
        // Their slots may be those by which messages are sent, without which no machine becomes the primary.
        for waiting in headers {
            self.fail_begun(waiting.read, waiting.slot, ReadError::PeerLost(machine));
        }
        if others.is_empty() {
            return;
        }
        self.region_waits.waiting.extend(others);
        let again = Cont::new(Self::resolve_region, id);
        self.set_timer(ASK_AGAIN, again);
    }

    /// Maps a region, and starts the reads that wait for it.
    fn import_region(&mut self, id: RegionId, capability: &Capability) {
        let machine = capability.machine;
        let memory = match self.endpoint.import(capability) {
            Ok(memory) => memory,
            // The machine was lost after it replied, and this worker has not noticed the loss yet.
            // A capability of a lost primary may be taken for that of the next one.
            Err(ImportError::Restarted { .. }) if self.survives() => {
                self.store.remote().forget(id);
                return self.region_lost(id, machine);
            }
            Err(ImportError::NotConnected(machine)) => {
                self.store.remote().forget(id);
                return self.region_lost(id, machine);
            }
            Err(error) => {
                tracing::error!(%error, region = %id, "mapping a remote region failed; the reads of the region fail");
                self.store.remote().forget(id);
                return self.fail_region_wait(id, ReadError::NoRegion);
            }
        };
        let access = Access::Remote {
            machine,
            memory,
            bytes: capability.bytes,
        };
        let index = self.regions.record(id, access);
        self.start_waiting(id, index);
    }

    /// Starts the reads that wait for a region.
    fn start_waiting(&mut self, id: RegionId, index: RegionIndex) {
        for waiting in self.take_waiting(id) {
            self.start_read(waiting.read, index, waiting.slot);
        }
    }

    fn fail_region_wait(&mut self, id: RegionId, error: impl Fn(Address) -> ReadError) {
        for waiting in self.take_waiting(id) {
            let error = error(waiting.read.request.address);
            self.fail_begun(waiting.read, waiting.slot, error);
        }
    }

    fn take_waiting(&mut self, id: RegionId) -> Vec<Waiting> {
        let all = std::mem::take(&mut self.region_waits.waiting);
        let (taken, left) = all.into_iter().partition(|waiting| waiting.region == id);
        self.region_waits.waiting = left;
        taken
    }

    fn handle_capability_request(&mut self, request: Request, body: &[u8]) {
        let found = <[u8; 4]>::try_from(body)
            .ok()
            .and_then(|bytes| RegionId::from_bits(u32::from_le_bytes(bytes)))
            .and_then(|id| self.store.region(id));
        match found {
            Some((_, capability)) => self.reply(request, &[&encode_capability(&capability)]),
            None if self.survives() => self.reply(request, &[&[NOT_YET]]),
            None => self.reply(request, &[]),
        }
    }
}

fn encode_capability(capability: &Capability) -> [u8; CAPABILITY_BYTES] {
    let mut bytes = [0; CAPABILITY_BYTES];
    bytes[..8].copy_from_slice(&capability.boot.to_le_bytes());
    bytes[8..16].copy_from_slice(&capability.key.to_le_bytes());
    bytes[16..24].copy_from_slice(&capability.bytes.to_le_bytes());
    bytes[24] = u8::from(capability.writable);
    bytes
}

fn decode_capability(machine: MachineId, bytes: &[u8]) -> Option<Capability> {
    let bytes: &[u8; CAPABILITY_BYTES] = bytes.try_into().ok()?;
    let word = |at: usize| {
        u64::from_le_bytes(
            bytes[at..at + 8]
                .try_into()
                .expect("a slice of eight bytes is one word"),
        )
    };
    Some(Capability {
        machine,
        boot: word(0),
        key: word(8),
        bytes: word(16),
        writable: bytes[24] == 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capability_survives_encoding_and_short_ones_are_rejected() {
        let machine = MachineId::new(3).unwrap();
        let capability = Capability {
            machine,
            boot: 1 << 63,
            key: 9,
            bytes: 1 << 28,
            writable: false,
        };
        let bytes = encode_capability(&capability);
        assert_eq!(decode_capability(machine, &bytes), Some(capability));
        assert_eq!(decode_capability(machine, &bytes[1..]), None);
        assert_eq!(decode_capability(machine, &[]), None);
    }
}
