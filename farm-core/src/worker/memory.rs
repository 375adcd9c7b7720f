//! A worker's view of the shared address space: its machine's memory, other machines' regions, and
//! the allocation of objects on this machine.

use super::epoch::{Shortage, Source};
use super::reads::Begun;
use super::request::ReadError;
use super::{Cont, Worker};
use crate::alloc::{AllocError, ArrayRun, ClassUsage, Mismatch, ReleaseError, Reserved, SizeClass};
use crate::fabric::{Capability, ImportError, Slot};
use crate::ids::{Address, MachineId, RegionId, WorkerId, WorkerRef};
use crate::limits::LARGEST_REPLY_BYTES;
use crate::marks;
use crate::mem::Memory;
use crate::messaging::{CallError, MessageId, ReplyCont, Request};
use crate::object::write::Room;
use crate::region::remote::Need;
use crate::region::table::{Access, RegionIndex};

/// Asks a machine for the capability of one of its regions.
const REGION_CAPABILITY: MessageId = MessageId(MessageId::CORE);
const CAPABILITY_BYTES: usize = 25;
const _: () = assert!(CAPABILITY_BYTES as u64 <= LARGEST_REPLY_BYTES);
/// One-way, within a machine: the call for the capability of a region has ended.
const CAPABILITY_FETCHED: MessageId = MessageId(MessageId::CORE + 1);

/// Why an address is of no use on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Another machine is its primary.
    #[error("{address} lies on machine {machine}, not here")]
    Elsewhere {
        /// The address.
        address: Address,
        /// Its primary.
        machine: MachineId,
    },
    /// There is no such region, or the offset is beyond it.
    #[error("there is no object at {0}")]
    Nowhere(Address),
}

/// Reads that wait for the capability of a region.
#[derive(Default)]
pub(super) struct RegionWaits {
    waiting: Vec<Waiting>,
}

impl RegionWaits {
    /// Reads that wait.
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
        self.register(REGION_CAPABILITY, Self::answer_capability);
        self.register(CAPABILITY_FETCHED, Self::capability_fetched);
        self.register_epoch_handlers();
    }

    /// The machine that holds an address.
    pub fn machine_of(&self, region: RegionId) -> MachineId {
        match self.regions.lookup(region) {
            Some(Access::Local(_)) => self.me.machine,
            Some(Access::Remote { machine, .. }) => *machine,
            None => self.store.placement().primary(region),
        }
    }

    /// A worker of the machine that holds an address, to which messages about the object go (`msgSend`):
    /// this one, if it is of that machine. All workers of a machine have its memory.
    ///
    /// # Errors
    /// [`CallError::NoWorker`] if that machine is not of the cluster.
    pub fn worker_at(&self, address: Address) -> Result<WorkerRef, CallError> {
        match self.machine_of(address.region()) {
            machine if machine == self.me.machine => Ok(self.me),
            machine => self.log_poller(machine),
        }
    }

    /// The memory of an address of this machine, and the offset in it.
    ///
    /// # Errors
    /// [`AddressError`] when the address is another machine's, or nobody's.
    #[inline]
    pub fn local_memory(&mut self, address: Address) -> Result<(&Memory, usize), AddressError> {
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
        }
    }

    /// A region that another worker of this machine may have made.
    #[cold]
    fn adopt_local(&mut self, region: RegionId) -> Option<RegionIndex> {
        let (memory, _) = self.store.region(region)?;
        Some(self.regions.record(region, Access::Local(memory)))
    }

    /// Why an address of a region that this machine does not store is of no use here.
    #[cold]
    fn not_here(&self, address: Address) -> AddressError {
        match self.store.placement().primary(address.region()) {
            machine if machine == self.me.machine => AddressError::Nowhere(address),
            machine => AddressError::Elsewhere { address, machine },
        }
    }

    /// Reserves room for an object of this machine, near `hint` if it can be. Returns the slot, and the version and
    /// incarnation that the object continues from.
    ///
    /// # Errors
    /// [`AllocError`]; nothing was taken then. Where memory is short, the machine begins to win back the
    /// blocks of freed objects of other sizes: it may come to those who try again. It comes when every
    /// operation has ended that is under way now, the caller's too.
    pub fn reserve_object(
        &mut self,
        class: SizeClass,
        hint: Option<Address>,
    ) -> Result<(Reserved, Room), AllocError> {
        let mut source = Source::of(&self.store);
        let reserved = self.slab.reserve(class, hint, &mut source);
        if let Some(shortage) = source.shortage {
            self.memory_is_short(shortage);
        }
        reserved.map(|reserved| (reserved, self.slab.begin(&reserved)))
    }

    /// Gives room of this machine back: that this worker reserved, or that is in an array. Gives the worker
    /// that is to give it back, if it is in a block of another.
    ///
    /// # Errors
    /// [`ReleaseError`] when the address is none of these, or has been given back.
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

    /// What this worker's slab allocator has of one class.
    pub fn slab_usage(&self, class: SizeClass) -> ClassUsage {
        self.slab.usage(class)
    }

    /// Holds this worker's slab allocator against the allocated bits in memory. They agree while no
    /// transaction of the machine is open and no freed object is on its way home.
    ///
    /// # Errors
    /// The first [`Mismatch`].
    pub fn check_slab(&self) -> Result<(), Mismatch> {
        self.store.check_slab(&self.slab)
    }

    /// Reserves room for an array of adjacent objects on this machine, near `near` if it can be. Each of
    /// them [begins](ArrayRun::begin), comes to be, and is given back, like one that [`Worker::reserve_object`]
    /// reserved; their memory serves again when the last is given back.
    ///
    /// # Errors
    /// [`AllocError`]; nothing was taken then. As [`Worker::reserve_object`], a shortage may pass.
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
        array
    }

    /// The store of this machine.
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
            self.ask_for_region(u64::from(region.to_bits()), ());
        } else {
            marks::mark("region: capability waited for");
        }
    }

    fn ask_for_region(&mut self, region: u64, (): ()) {
        let id = RegionId::from_bits(region as u32).expect("the context is a region id");
        let machine = self.store.placement().primary(id);
        if machine == self.me.machine {
            return self.end_region_wait(id, ReadError::NoRegion);
        }
        match self.store.remote().need(id, self.me.worker) {
            Need::Use(capability) => self.import_region(id, &capability),
            Need::Wait => marks::mark("region: another worker fetches the capability"),
            Need::Call => self.call_for_region(region, ()),
        }
    }

    fn call_for_region(&mut self, region: u64, (): ()) {
        let id = RegionId::from_bits(region as u32).expect("the context is a region id");
        let machine = self.store.placement().primary(id);
        let to = WorkerRef {
            machine,
            worker: WorkerId::FIRST,
        };
        let cont = ReplyCont::new(Self::capability_came, region);
        let body = id.to_bits().to_le_bytes();
        match self.call(to, REGION_CAPABILITY, &[&body], CAPABILITY_BYTES, cont) {
            Ok(()) => {}
            Err(CallError::PeerLost(_)) => {
                self.region_fetched(id, None);
                self.end_region_wait(id, |_| ReadError::PeerLost(machine))
            }
            Err(_) => self.when_room(Cont::new(Self::call_for_region, region)),
        }
    }

    /// Notifies the workers that wait for the end of this worker's call.
    fn region_fetched(&mut self, id: RegionId, capability: Option<Capability>) {
        for worker in self.store.remote().fetched(id, capability) {
            let context = u64::from(worker.index() as u32) << 32 | u64::from(id.to_bits());
            self.notify_fetched(context, ());
        }
    }

    fn notify_fetched(&mut self, context: u64, (): ()) {
        let worker = WorkerId::new((context >> 32) as u16).expect("a worker of this machine");
        let to = WorkerRef::new(self.me.machine, worker);
        let body = (context as u32).to_le_bytes();
        if let Err(CallError::Busy) = self.send(to, CAPABILITY_FETCHED, &[&body]) {
            self.when_room(Cont::new(Self::notify_fetched, context));
        }
    }

    fn capability_fetched(&mut self, request: Request, body: &[u8]) {
        let region = <[u8; 4]>::try_from(body).ok().map(u32::from_le_bytes);
        let region = region.filter(|region| RegionId::from_bits(*region).is_some());
        match region.filter(|_| request.from.machine == self.me.machine) {
            Some(region) => self.ask_for_region(region.into(), ()),
            None => self.distrust(
                request.from.machine,
                "it sent word of a capability that this machine did not ask for".into(),
            ),
        }
    }

    fn capability_came(&mut self, region: u64, reply: Result<&[u8], CallError>) {
        let id = RegionId::from_bits(region as u32).expect("the context is a region id");
        let machine = self.store.placement().primary(id);
        let capability = reply.ok().and_then(|body| decode_capability(machine, body));
        marks::mark("region: capability fetched");
        self.region_fetched(id, capability);
        match (capability, reply) {
            (Some(capability), _) => self.import_region(id, &capability),
            (None, Ok(_)) => self.end_region_wait(id, ReadError::NoRegion),
            (None, Err(_)) => self.end_region_wait(id, |_| ReadError::PeerLost(machine)),
        }
    }

    /// Maps a region, and starts the reads that wait for it.
    fn import_region(&mut self, id: RegionId, capability: &Capability) {
        let machine = capability.machine;
        let memory = match self.endpoint.import(capability) {
            Ok(memory) => memory,
            // It answered, and was lost before this worker has noticed.
            Err(ImportError::NotConnected(machine)) => {
                return self.end_region_wait(id, |_| ReadError::PeerLost(machine));
            }
            Err(error) => {
                tracing::error!(%error, region = %id, "cannot import a region");
                self.store.remote().forget(id);
                return self.end_region_wait(id, ReadError::NoRegion);
            }
        };
        let access = Access::Remote {
            machine,
            memory,
            bytes: capability.bytes,
        };
        let index = self.regions.record(id, access);
        for waiting in self.take_waiting(id) {
            self.start_read(waiting.read, index, waiting.slot);
        }
    }

    fn end_region_wait(&mut self, id: RegionId, error: impl Fn(Address) -> ReadError) {
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

    fn answer_capability(&mut self, request: Request, body: &[u8]) {
        let found = <[u8; 4]>::try_from(body)
            .ok()
            .and_then(|bytes| RegionId::from_bits(u32::from_le_bytes(bytes)))
            .and_then(|id| self.store.region(id));
        match found {
            Some((_, capability)) => self.reply(request, &[&encode_capability(&capability)]),
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
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
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
    fn a_capability_goes_through_a_message_and_short_ones_are_refused() {
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
