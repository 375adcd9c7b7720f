//! Lock-free reads (`FaRM'14 §3.5`): one one-sided read of one object or of adjacent ones, checked,
//! and tried again after a randomized backoff while a writer is in the way.
//!
//! A read of this machine's own memory takes the same path with a queue of its own in place of the
//! fabric's: the post asks for the lines, the poll makes the checked copy.

use std::collections::VecDeque;
use std::time::Duration;

use rand::Rng;
use slab::Slab;

use super::{Cont, Worker};
use crate::fabric::{Completion, Read, ReadKind, Rejected, Remote, Slot, Status, Token};
use crate::ids::{Address, MachineId};
use crate::mem::{LINE_BYTES, Memory};
use crate::object::all_consistent;
use crate::region::table::{Access, RegionIndex};
use crate::time::Nanos;

/// A read that took longer than this from start to end is not trusted: 16 bits of line version
/// could have come round. An object of three lines cannot be written 65,535 times in less.
const WRAP_BOUND: Duration = Duration::from_micros(500);
/// The same for each line of a larger object, of which a writer touches every one.
const WRAP_BOUND_OF_LINE: Duration = Duration::from_micros(160);
/// First backoff of a read that met a writer; doubled each time up to `MAX_BACKOFF`.
const MIN_BACKOFF_NANOS: u64 = 200;
const MAX_BACKOFF_NANOS: u64 = 20_000;
/// Tries before a read is given up: its object is locked and stays so.
const MAX_TRIES: u32 = 10_000;
/// Local reads whose lines are on their way at one time.
const PREFETCH_AHEAD: usize = 32;

/// What to read: one object, or adjacent ones of the same size.
#[derive(Clone, Copy, Debug)]
pub struct ReadRequest {
    /// The first object.
    pub address: Address,
    /// Bytes of one object, whole lines.
    pub stride: u32,
    /// Bytes to read, whole lines; the last object may be cut short.
    pub bytes: u32,
}

/// Why a lock-free read failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The connection to the machine that holds the object is broken.
    #[error("machine {0}, which holds the object, is lost")]
    PeerLost(MachineId),
    /// The address is outside of its region, or not that of an object.
    #[error("address {0} is not an object's")]
    BadAddress(Address),
    /// Nobody knows the region.
    #[error("the region of address {0} does not exist")]
    NoRegion(Address),
    /// The object stayed locked for all of a bounded number of tries.
    #[error("the object at {0} stayed locked")]
    StaysLocked(Address),
    /// Too many reads are in flight: the arena has no slot. Wait for some to complete.
    #[error("too many reads in flight")]
    Busy,
}

/// The end of a lock-free read: the slot holds consistent images. Give it back to the arena.
pub type ReadResult = Result<Slot, ReadError>;

/// Counts of lock-free reads; the fabric counts its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadCounters {
    /// Reads of this machine's own memory, retries included.
    pub local: u64,
    /// Reads of other machines' memory, retries included.
    pub remote: u64,
    /// Reads tried again: locked, torn, or too slow to be trusted.
    pub restarts: u64,
}

struct InFlight {
    request: ReadRequest,
    region: RegionIndex,
    tries: u32,
    posted: Nanos,
    cont: Cont<ReadResult>,
    /// Held while the read backs off.
    slot: Option<Slot>,
}

/// The reads of one worker.
pub(crate) struct Reads {
    in_flight: Slab<InFlight>,
    /// Reads of local memory not copied yet, oldest first.
    local: VecDeque<(u32, Slot)>,
    pub(crate) counters: ReadCounters,
}

impl Reads {
    pub(crate) fn with_capacity(reads: usize) -> Self {
        Self {
            in_flight: Slab::with_capacity(reads),
            local: VecDeque::with_capacity(reads),
            counters: ReadCounters::default(),
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.local.is_empty()
    }
}

impl Worker {
    /// Starts a lock-free read; the continuation gets the slot with consistent images, one for each
    /// object of the request. Never calls the continuation before it returns.
    ///
    /// # Errors
    /// [`ReadError::Busy`] when the arena has no slot: nothing was started.
    #[inline]
    pub fn read_lock_free(
        &mut self,
        request: ReadRequest,
        cont: Cont<ReadResult>,
    ) -> Result<(), ReadError> {
        let slot = self
            .endpoint
            .arena()
            .take(request.bytes as usize)
            .ok_or(ReadError::Busy)?;
        match self.regions.find(request.address.region()) {
            Some(region) => self.start_read(request, region, cont, slot),
            None => self.find_region_then_read(request, cont, slot),
        }
        Ok(())
    }

    #[inline]
    pub(super) fn start_read(
        &mut self,
        request: ReadRequest,
        region: RegionIndex,
        cont: Cont<ReadResult>,
        slot: Slot,
    ) {
        let posted = self.now;
        let read = InFlight {
            request,
            region,
            tries: 0,
            posted,
            cont,
            slot: None,
        };
        let key = self.reads.in_flight.insert(read);
        self.post(key, slot);
    }

    #[inline]
    fn post(&mut self, key: usize, slot: Slot) {
        let read = &mut self.reads.in_flight[key];
        let request = read.request;
        read.posted = self.now;
        match self.regions.at(read.region) {
            Access::Local(memory) => {
                let (at, bytes) = (request.address.offset() as usize, request.bytes as usize);
                if !fits(at as u64, &request, memory.len() as u64) || bytes > slot.bytes() {
                    return self.finish(key, slot, Err(ReadError::BadAddress(request.address)));
                }
                if self.reads.local.len() < PREFETCH_AHEAD {
                    memory.prefetch(at, bytes);
                }
                self.reads.counters.local += 1;
                self.reads.local.push_back((key as u32, slot));
            }
            &Access::Remote {
                machine,
                memory,
                bytes,
            } => {
                let offset = u64::from(request.address.offset());
                if !fits(offset, &request, bytes) {
                    return self.finish(key, slot, Err(ReadError::BadAddress(request.address)));
                }
                self.reads.counters.remote += 1;
                let read = Read {
                    from: Remote { memory, offset },
                    bytes: request.bytes,
                    kind: ReadKind::Objects {
                        stride: request.stride,
                    },
                    fence: false,
                    token: Token(key as u64),
                };
                match self.endpoint.post_read(read, slot) {
                    Ok(()) => {}
                    Err(rejected) => self.post_refused(key, machine, rejected),
                }
            }
        }
    }

    #[cold]
    fn post_refused(&mut self, key: usize, machine: MachineId, rejected: Rejected) {
        self.reads.counters.remote -= 1;
        let address = self.reads.in_flight[key].request.address;
        match rejected {
            Rejected::Full(Some(slot)) => self.back_off(key, slot),
            Rejected::Closed(Some(slot)) => {
                self.finish(key, slot, Err(ReadError::PeerLost(machine)))
            }
            Rejected::BadAccess(Some(slot)) => {
                self.finish(key, slot, Err(ReadError::BadAddress(address)))
            }
            Rejected::Full(None) | Rejected::Closed(None) | Rejected::BadAccess(None) => {
                unreachable!("a rejected read gives its slot back")
            }
        }
    }

    /// Ends a read from the event loop, or, where it ends in the call that began it, soon.
    #[cold]
    fn finish(&mut self, key: usize, slot: Slot, result: Result<(), ReadError>) {
        let read = self.reads.in_flight.remove(key);
        self.end_read_soon(read.cont, slot, result);
    }

    pub(super) fn end_read_soon(
        &mut self,
        cont: Cont<ReadResult>,
        slot: Slot,
        result: Result<(), ReadError>,
    ) {
        let result = match result {
            Ok(()) => Ok(slot),
            Err(error) => {
                self.endpoint.arena().give(slot);
                Err(error)
            }
        };
        self.ready.push_back((cont, result));
    }

    /// Copies reads of local memory, at most `most`.
    pub(super) fn poll_local_reads(&mut self, most: usize) -> usize {
        let batch = most.min(self.reads.local.len());
        if batch == 0 {
            return 0;
        }
        let started = self.now;
        for _ in 0..batch {
            let Some((key, mut slot)) = self.reads.local.pop_front() else {
                break;
            };
            if let Some((ahead, _)) = self.reads.local.get(PREFETCH_AHEAD - 1) {
                let ahead = &self.reads.in_flight[*ahead as usize];
                if let Access::Local(memory) = self.regions.at(ahead.region) {
                    memory.prefetch(
                        ahead.request.address.offset() as usize,
                        ahead.request.bytes as usize,
                    );
                }
            }
            let read = &self.reads.in_flight[key as usize];
            let Access::Local(memory) = self.regions.at(read.region) else {
                unreachable!("a local region stays local")
            };
            let status = copy(
                memory,
                &read.request,
                self.endpoint.arena().words_mut(&mut slot),
            );
            self.local_done.push((key, slot, status));
        }
        let took = self.clock.now().since(started);
        let mut done = std::mem::take(&mut self.local_done);
        for (key, slot, status) in done.drain(..) {
            let slow = self.is_too_slow(key as usize, took);
            self.read_done(key as usize, slot, if slow { Status::Torn } else { status });
        }
        self.local_done = done;
        batch
    }

    /// Takes the fabric's completions of lock-free reads, at most `most`.
    ///
    /// `looked` is a moment before this poll, and is moved on to one after it: together they bound
    /// how long a read that takes place inside the poll can have lasted.
    #[inline]
    pub(super) fn poll_fabric(&mut self, most: usize, looked: &mut Nanos) -> usize {
        let mut completions = std::mem::take(&mut self.completions);
        let count = self.endpoint.poll(most, &mut completions);
        if count > 0 {
            let inside = self.endpoint.capabilities().reads_begin_at_poll;
            let ended = self.clock.now();
            let poll_took = ended.since(*looked);
            *looked = ended;
            for completion in completions.drain(..) {
                let Completion {
                    token,
                    status,
                    slot,
                    ..
                } = completion;
                let slot = slot.expect("every read has a slot");
                let key = token.0 as usize;
                let took = if inside {
                    poll_took
                } else {
                    ended.since(self.reads.in_flight[key].posted)
                };
                let slow = self.is_too_slow(key, took);
                let status = if slow && status == Status::Ok {
                    Status::Torn
                } else {
                    status
                };
                self.read_done(key, slot, status);
            }
        }
        self.completions = completions;
        count
    }

    /// Whether a read took so long that line versions could have come round.
    #[inline]
    fn is_too_slow(&self, key: usize, took: Duration) -> bool {
        took > WRAP_BOUND && {
            let lines = self.reads.in_flight[key].request.stride / LINE_BYTES as u32;
            took > WRAP_BOUND_OF_LINE * lines
        }
    }

    #[inline]
    fn read_done(&mut self, key: usize, slot: Slot, status: Status) {
        let read = &self.reads.in_flight[key];
        let ReadRequest { stride, bytes, .. } = read.request;
        let consistent = match status {
            Status::Ok => {
                let words = &self.endpoint.arena().words(&slot)[..bytes as usize / 8];
                all_consistent(words, stride as usize / 8)
            }
            Status::Torn => false,
            Status::Broken => return self.peer_lost(key, slot),
        };
        if consistent {
            let cont = self.reads.in_flight.remove(key).cont;
            cont.resume(self, Ok(slot));
        } else {
            self.back_off(key, slot);
        }
    }

    #[cold]
    fn peer_lost(&mut self, key: usize, slot: Slot) {
        let read = self.reads.in_flight.remove(key);
        let Access::Remote { machine, .. } = *self.regions.at(read.region) else {
            unreachable!("only a connection breaks")
        };
        self.endpoint.arena().give(slot);
        read.cont.resume(self, Err(ReadError::PeerLost(machine)));
    }

    #[cold]
    fn back_off(&mut self, key: usize, slot: Slot) {
        self.reads.counters.restarts += 1;
        let read = &mut self.reads.in_flight[key];
        read.tries += 1;
        if read.tries > MAX_TRIES {
            let address = read.request.address;
            return self.finish(key, slot, Err(ReadError::StaysLocked(address)));
        }
        if read.tries == 1 {
            // A writer takes well under a microsecond: the next turn finds it gone.
            return self.post(key, slot);
        }
        read.slot = Some(slot);
        let bound = (MIN_BACKOFF_NANOS << read.tries.min(16)).min(MAX_BACKOFF_NANOS);
        let wait = self.rng.random_range(MIN_BACKOFF_NANOS..=bound);
        self.timers
            .set(self.now + wait, Cont::new(Self::read_again, key as u64));
    }

    fn read_again(&mut self, key: u64, (): ()) {
        let slot = self.reads.in_flight[key as usize].slot.take();
        self.post(
            key as usize,
            slot.expect("a read that backs off holds its slot"),
        );
    }
}

fn fits(offset: u64, request: &ReadRequest, region_bytes: u64) -> bool {
    let line = LINE_BYTES as u64;
    let (stride, bytes) = (u64::from(request.stride), u64::from(request.bytes));
    stride > 0
        && bytes > 0
        && (offset | stride | bytes).is_multiple_of(line)
        && offset + bytes <= region_bytes
}

fn copy(memory: &Memory, request: &ReadRequest, out: &mut [u64]) -> Status {
    let out = &mut out[..request.bytes as usize / 8];
    match memory.copy_objects(
        request.address.offset() as usize,
        request.stride as usize,
        out,
    ) {
        Ok(_) => Status::Ok,
        Err(_) => Status::Torn,
    }
}
