//! Lock-free reads (`FaRM'14 §3.5`): one one-sided read of one object or of adjacent objects, which is checked, and
//! retried after a randomized backoff while a writer interferes. A read with a wrong size class fails at once. This
//! file starts and posts reads; `done` handles their completion.
//!
//! A read of this machine's own memory takes the same path, with a separate queue in place of the fabric's: posting the
//! read prefetches the lines, and polling the queue makes the checked copy.

mod done;
mod many;

use std::collections::VecDeque;

use super::request::{ReadError, ReadRequest, ReadResult, UNCHECKED};
use super::token::Completed;
use super::{Cont, EpochGuard, Worker};
use crate::fabric::{Read, ReadKind, Rejected, Remote, Slot};
use crate::ids::{Address, MachineId};
use crate::limits::ReadTries;
use crate::marks;
use crate::mem::LINE_BYTES;
use crate::object::{FatPointer, HEADER_BYTES};
use crate::region::table::{Access, RegionIndex};
use crate::time::Nanos;

/// Maximum number of local reads whose lines are being prefetched at one time.
const PREFETCH_AHEAD: usize = 32;

/// Counts of lock-free reads; the fabric counts its own operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadCounters {
    /// Reads of this machine's own memory, retries included.
    pub local: u64,
    /// Reads of other machines' memory, retries included.
    pub remote: u64,
    /// Reads retried because the object was locked or torn, or because the read took too long to be trusted.
    pub restarts: u64,
}

/// Numbers of completions that were taken from the fabric.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Polled {
    pub(super) all: usize,
    /// Those of reads.
    pub(super) reads: usize,
}

/// A read that is not posted yet.
pub(super) struct Begun {
    pub(super) request: ReadRequest,
    /// Epoch guard of the read itself; `None` if the read runs within an epoch guard of its caller.
    guard: Option<EpochGuard>,
    cont: Cont<ReadResult>,
}

struct InFlight {
    request: ReadRequest,
    region: RegionIndex,
    tries: u16,
    guard: Option<EpochGuard>,
    posted: Nanos,
    cont: Cont<ReadResult>,
}

/// The reads of one worker.
pub(crate) struct Reads {
    tries: ReadTries,
    /// Reads in flight, indexed by slot. The entry of a slot that holds no read is stale.
    of_slot: Vec<Option<InFlight>>,
    /// Fat pointer that the read follows, indexed by slot. Stale unless the read's request has `is_named`.
    named: Vec<Option<FatPointer>>,
    /// Reads of local memory that are not copied yet, oldest first.
    local: VecDeque<Slot>,
    /// Slots of reads that back off, until their timers expire.
    backing_off: Vec<Slot>,
    pub(crate) counters: ReadCounters,
}

impl Reads {
    /// Creates the state for an arena of `slots` slots, for `reads` reads in flight with these `tries`
    /// each.
    pub(crate) fn new(slots: usize, reads: usize, tries: ReadTries) -> Self {
        Self {
            tries,
            of_slot: (0..slots).map(|_| None).collect(),
            named: vec![None; slots],
            local: VecDeque::with_capacity(reads),
            backing_off: Vec::with_capacity(reads),
            counters: ReadCounters::default(),
        }
    }

    #[inline]
    fn of(&mut self, slot: &Slot) -> &mut InFlight {
        self.of_slot[slot.index()]
            .as_mut()
            .expect("the slot of a read in flight has an entry in the table of reads")
    }

    /// Returns the request of the read that uses `slot`.
    pub(super) fn request(&self, slot: &Slot) -> ReadRequest {
        let read = self.of_slot[slot.index()].as_ref();
        read.expect("the slot of a read in flight has an entry in the table of reads")
            .request
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.local.is_empty()
    }

    /// Returns the number of reads that back off.
    pub(crate) fn backing_off(&self) -> usize {
        self.backing_off.len()
    }
}

impl Worker {
    /// Starts a lock-free read. The continuation receives the slot with consistent images, one for each object of the
    /// request. Never calls the continuation before it returns.
    ///
    /// # Errors
    /// [`ReadError::Busy`] if the arena has no slot: nothing was started.
    #[inline]
    pub fn read_lock_free(
        &mut self,
        request: ReadRequest,
        cont: Cont<ReadResult>,
    ) -> Result<(), ReadError> {
        let slot = self.take_slot(&request)?;
        self.begin_read(slot, request, cont);
        Ok(())
    }

    /// As [`Worker::read_lock_free`], for the object that a fat pointer names. Fails with [`ReadError::Gone`] if the
    /// header belongs to a later object, or to memory that now stores other sizes. If the read succeeds, the caller
    /// must still check that the pointer [names](FatPointer::names) the object that was read.
    ///
    /// # Errors
    /// As [`Worker::read_lock_free`].
    pub fn read_pointer_lock_free(
        &mut self,
        pointer: FatPointer,
        cont: Cont<ReadResult>,
    ) -> Result<(), ReadError> {
        let request = ReadRequest::named(pointer);
        let slot = self.take_slot(&request)?;
        self.reads.named[slot.index()] = Some(pointer);
        self.begin_read(slot, request, cont);
        Ok(())
    }

    /// As [`Worker::read_lock_free`], with a slot that the caller provides, and within an [`EpochGuard`] of the caller,
    /// which must not end before the continuation is called. The caller may use [`Slot::index`] until it returns the
    /// slot to the arena. A read that fails returns the slot to the arena just before it calls the continuation.
    #[inline]
    pub fn read_within(&mut self, slot: Slot, request: ReadRequest, cont: Cont<ReadResult>) {
        debug_assert!(
            self.epochs.open() > 0,
            "read_within needs a guard of an open epoch of this worker"
        );
        self.route_read(slot, request, None, cont);
    }

    /// Starts a read that is an operation of its own.
    #[inline]
    fn begin_read(&mut self, slot: Slot, request: ReadRequest, cont: Cont<ReadResult>) {
        let guard = self.pin();
        self.route_read(slot, request, Some(guard), cont);
    }

    #[inline(always)]
    fn route_read(
        &mut self,
        slot: Slot,
        request: ReadRequest,
        guard: Option<EpochGuard>,
        cont: Cont<ReadResult>,
    ) {
        let read = Begun {
            request,
            guard,
            cont,
        };
        match self.regions.find(request.address.region()) {
            Some(region) => self.start_read(read, region, slot),
            None => self.find_region_then_read(read, slot),
        }
    }

    #[inline]
    fn take_slot(&mut self, request: &ReadRequest) -> Result<Slot, ReadError> {
        let slot = self.endpoint.arena().take(request.bytes());
        slot.ok_or_else(|| {
            marks::mark("read: arena full");
            ReadError::Busy
        })
    }

    /// Reads the header of an object as it is, without checking whether the object is locked or torn. Validation uses
    /// it (`FaRM'15 §4`).
    ///
    /// # Errors
    /// [`ReadError::Busy`] if the arena has no slot, or if other header reads wait for a slot: nothing was started.
    #[inline]
    pub fn read_header(
        &mut self,
        address: Address,
        cont: Cont<ReadResult>,
    ) -> Result<(), ReadError> {
        let request = ReadRequest::header(address);
        if self.room.headers_go_first() {
            return Err(ReadError::Busy);
        }
        let Some(slot) = self.endpoint.arena().take_to_send(HEADER_BYTES) else {
            marks::mark("read: arena full");
            return Err(ReadError::Busy);
        };
        self.begin_read(slot, request, cont);
        Ok(())
    }

    #[inline(always)]
    pub(super) fn start_read(
        &mut self,
        Begun {
            request,
            guard,
            cont,
        }: Begun,
        region: RegionIndex,
        slot: Slot,
    ) {
        self.reads.of_slot[slot.index()] = Some(InFlight {
            request,
            region,
            tries: 0,
            guard,
            posted: self.now,
            cont,
        });
        self.post(request, region, slot);
    }

    #[inline]
    fn post(&mut self, request: ReadRequest, region: RegionIndex, slot: Slot) {
        match self.regions.at(region) {
            Access::Local(memory) => {
                let (at, bytes) = (request.address.offset() as usize, request.bytes());
                if !fits(at as u64, &request, memory.len() as u64) || bytes > slot.bytes() {
                    return self.finish(slot, ReadError::BadAddress(request.address));
                }
                if self.reads.local.len() < PREFETCH_AHEAD {
                    memory.prefetch(at, bytes);
                }
                self.reads.counters.local += 1;
                self.reads.local.push_back(slot);
            }
            Access::Lost => self.wait_for_region(slot),
            &Access::Remote { machine, .. } => {
                // Reads that wait for room are posted before this one. Header reads do not wait for them, because the
                // commits that need the headers hold locks.
                if self.unposted.len() > 0 && request.lines() != UNCHECKED {
                    return self.post_later(machine, slot);
                }
                if let Err(slot) = self.post_to(request, region, slot) {
                    self.post_later(machine, slot);
                }
            }
        }
    }

    /// Posts a read of another machine's memory that has waited. Returns its slot if the endpoint has no room now.
    pub(super) fn post_remote(&mut self, slot: Slot) -> Result<(), Slot> {
        let now = self.now;
        let read = self.reads.of(&slot);
        read.posted = now;
        let (request, region) = (read.request, read.region);
        self.post_to(request, region, slot)
    }

    /// Posts a read of another machine's memory. Returns its slot if the endpoint has no room now.
    #[inline]
    fn post_to(
        &mut self,
        request: ReadRequest,
        region: RegionIndex,
        slot: Slot,
    ) -> Result<(), Slot> {
        let &Access::Remote {
            machine,
            memory,
            bytes,
        } = self.regions.at(region)
        else {
            self.repost(slot);
            return Ok(());
        };
        let offset = u64::from(request.address.offset());
        // The endpoint checks where the objects of an object read start and end. Of a raw read it knows only the words,
        // not the object.
        if request.lines() == UNCHECKED && !fits(offset, &request, bytes) {
            self.finish(slot, ReadError::BadAddress(request.address));
            return Ok(());
        }
        let read = Read {
            from: Remote { memory, offset },
            bytes: request.bytes() as u32,
            kind: match request.lines() {
                UNCHECKED => ReadKind::Raw,
                _ => ReadKind::Objects {
                    stride: request.stride(),
                },
            },
            fence: false,
            token: Completed::Read.token(),
        };
        match self.endpoint.post_read(read, slot) {
            Ok(()) => {
                self.reads.counters.remote += 1;
                Ok(())
            }
            Err(rejected) => self.post_refused(machine, rejected),
        }
    }

    #[cold]
    fn post_refused(&mut self, machine: MachineId, rejected: Rejected) -> Result<(), Slot> {
        marks::mark("read: post refused");
        match rejected {
            Rejected::Full(Some(slot)) => return Err(slot),
            Rejected::Closed(Some(slot)) => {
                self.fail_or_wait(slot, machine);
            }
            Rejected::BadAccess(Some(slot)) => {
                let address = self.reads.of(&slot).request.address;
                self.finish(slot, ReadError::BadAddress(address));
            }
            Rejected::Full(None) | Rejected::Closed(None) | Rejected::BadAccess(None) => {
                unreachable!("the rejection of a read contains the slot of the read")
            }
        }
        Ok(())
    }

    /// Fails a read in flight. The event loop calls its continuation later, because the current call may be the call
    /// that started the read.
    #[cold]
    fn finish(&mut self, slot: Slot, error: ReadError) {
        let read = self.reads.of(&slot);
        let (guard, cont) = (read.guard.take(), read.cont);
        self.fail_soon(guard, cont, slot, error);
    }

    /// Handles a read whose machine is lost: it waits for the next primary of its region, if there may be one.
    #[cold]
    fn fail_or_wait(&mut self, slot: Slot, machine: MachineId) {
        marks::mark("read: peer lost");
        match self.survives() {
            true => self.wait_for_region(slot),
            false => self.finish(slot, ReadError::PeerLost(machine)),
        }
    }

    /// Lets a read in flight wait until its region is found again.
    #[cold]
    fn wait_for_region(&mut self, slot: Slot) {
        marks::mark("read: waits for the next primary");
        let read = self.reads.of_slot[slot.index()].take();
        let read = read.expect("the slot of a read in flight has an entry in the table of reads");
        let InFlight {
            request,
            guard,
            cont,
            ..
        } = read;
        let begun = Begun {
            request,
            guard,
            cont,
        };
        self.find_region_then_read(begun, slot);
    }

    /// Fails a read that was never posted, as [`Worker::finish`] does.
    pub(super) fn fail_begun(&mut self, read: Begun, slot: Slot, error: ReadError) {
        self.fail_soon(read.guard, read.cont, slot, error);
    }

    fn fail_soon(
        &mut self,
        guard: Option<EpochGuard>,
        cont: Cont<ReadResult>,
        slot: Slot,
        error: ReadError,
    ) {
        self.unpin_own(guard);
        self.failed_reads.push_back((cont, slot, error));
    }

    /// Ends the epoch guard of a read, if the read has one of its own.
    #[inline]
    fn unpin_own(&mut self, guard: Option<EpochGuard>) {
        if let Some(guard) = guard {
            self.unpin(guard);
        }
    }
}

fn fits(offset: u64, request: &ReadRequest, region_bytes: u64) -> bool {
    let line = LINE_BYTES as u64;
    // Of a header, its line.
    let bytes = (request.bytes() as u64).next_multiple_of(line);
    bytes > 0 && offset.is_multiple_of(line) && offset + bytes <= region_bytes
}
