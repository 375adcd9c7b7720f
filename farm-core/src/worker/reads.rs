//! Lock-free reads (`FaRM'14 §3.5`): one one-sided read of one object or of adjacent ones, checked,
//! and tried again after a randomized backoff while a writer is in the way. A read with a wrong size class ends at
//! once.
//!
//! A read of this machine's own memory takes the same path with a queue of its own in place of the
//! fabric's: the post asks for the lines, the poll makes the checked copy.

use std::collections::VecDeque;

use rand::Rng;

use super::request::{HEADER_ONLY, ReadError, ReadRequest, ReadResult};
use super::{Cont, Operation, Worker};
use crate::fabric::{Completion, Read, ReadKind, Rejected, Remote, Slot, Status, Token};
use crate::ids::{Address, MachineId};
use crate::marks;
use crate::mem::{LINE_BYTES, Memory};
use crate::object::{FatPointer, HEADER_BYTES, Incarnation, Misread, all_consistent, misread};
use crate::region::table::{Access, RegionIndex};
use crate::time::Nanos;

/// A read that took longer than so many nanoseconds from start to end is not trusted: 16 bits of line version
/// could have come round. An object of three lines cannot be written 65,535 times in less.
const WRAP_BOUND: u64 = 500_000;
/// The same for each line of a larger object, of which a writer touches every one.
const WRAP_BOUND_OF_LINE: u64 = 160_000;
/// First backoff of a read that met a writer; doubled each time up to `MAX_BACKOFF`.
const MIN_BACKOFF_NANOS: u64 = 200;
const MAX_BACKOFF_NANOS: u64 = 20_000;
/// Local reads whose lines are on their way at one time.
const PREFETCH_AHEAD: usize = 32;

/// The token of every read; others are of writes whose acknowledgement is waited for.
const READ: Token = Token(0);

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

/// A read that is to be posted.
pub(super) struct Begun {
    pub(super) request: ReadRequest,
    /// The read's own operation; none if it is within its caller's.
    operation: Option<Operation>,
    cont: Cont<ReadResult>,
}

struct InFlight {
    request: ReadRequest,
    region: RegionIndex,
    tries: u16,
    operation: Option<Operation>,
    posted: Nanos,
    cont: Cont<ReadResult>,
}

/// The reads of one worker.
pub(crate) struct Reads {
    most_tries: u16,
    /// The read that has a slot, by the slot's number; what stands at the number of a slot that no
    /// read has is of no meaning.
    of_slot: Vec<Option<InFlight>>,
    /// The pointer that it follows, by the same number. Stale where the read's request has none.
    named: Vec<Option<FatPointer>>,
    /// Reads of local memory not copied yet, oldest first.
    local: VecDeque<Slot>,
    /// Slots of reads that back off, until their timers run out.
    backing_off: Vec<Slot>,
    pub(crate) counters: ReadCounters,
}

impl Reads {
    /// For an arena of so many slots, so many reads in flight, and so many tries of each.
    pub(crate) fn new(slots: usize, reads: usize, most_tries: u16) -> Self {
        Self {
            most_tries,
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
            .expect("a slot on its way has a read")
    }

    /// What the read that has a slot asks for.
    pub(super) fn request(&self, slot: &Slot) -> ReadRequest {
        let read = self.of_slot[slot.index()].as_ref();
        read.expect("a slot on its way has a read").request
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.local.is_empty()
    }

    /// Reads that back off.
    pub(crate) fn backing_off(&self) -> usize {
        self.backing_off.len()
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
        let Some(slot) = self.endpoint.arena().take(request.bytes as usize) else {
            marks::mark("read: arena full");
            return Err(ReadError::Busy);
        };
        self.begin_read(slot, request, cont);
        Ok(())
    }

    /// As [`Worker::read_lock_free`], of the object that a fat pointer names. Ends with [`ReadError::Gone`] if the header is
    /// that of a later object, or memory that serves other sizes. If the read succeeds, the caller still has to check
    /// that the pointer [names](FatPointer::names) what it brought.
    ///
    /// # Errors
    /// As [`Worker::read_lock_free`].
    pub fn read_pointer_lock_free(
        &mut self,
        pointer: FatPointer,
        cont: Cont<ReadResult>,
    ) -> Result<(), ReadError> {
        let request = ReadRequest::named(pointer);
        let Some(slot) = self.endpoint.arena().take(request.bytes as usize) else {
            marks::mark("read: arena full");
            return Err(ReadError::Busy);
        };
        self.reads.named[slot.index()] = Some(pointer);
        self.begin_read(slot, request, cont);
        Ok(())
    }

    /// As [`Worker::read_lock_free`], to a slot that the caller has, and within an [`Operation`] of the caller, which
    /// is to end after the continuation was called. The [`Slot::index`] is the caller's until it gives the slot
    /// back. A read that fails gives the slot back just before the continuation is called.
    #[inline]
    pub fn read_within(&mut self, slot: Slot, request: ReadRequest, cont: Cont<ReadResult>) {
        debug_assert!(self.epochs.open() > 0, "a read within no operation");
        let operation = None;
        self.route_read(
            Begun {
                request,
                operation,
                cont,
            },
            slot,
        );
    }

    /// Begins a read that is an operation of its own.
    #[inline]
    fn begin_read(&mut self, slot: Slot, request: ReadRequest, cont: Cont<ReadResult>) {
        let operation = Some(self.begin_operation());
        self.route_read(
            Begun {
                request,
                operation,
                cont,
            },
            slot,
        );
    }

    #[inline]
    fn route_read(&mut self, read: Begun, slot: Slot) {
        match self.regions.find(read.request.address.region()) {
            Some(region) => self.start_read(read, region, slot),
            None => self.find_region_then_read(read, slot),
        }
    }

    /// Reads the first words of an object's header as they are, without asking whether it is locked or
    /// whole: what validation needs (`FaRM'15 §4`).
    ///
    /// # Errors
    /// [`ReadError::Busy`] when the arena has no slot: nothing was started.
    #[inline]
    pub fn read_header(
        &mut self,
        address: Address,
        cont: Cont<ReadResult>,
    ) -> Result<(), ReadError> {
        let request = ReadRequest::header(address);
        let Some(slot) = self.endpoint.arena().take_to_send(HEADER_BYTES) else {
            marks::mark("read: arena full");
            return Err(ReadError::Busy);
        };
        self.begin_read(slot, request, cont);
        Ok(())
    }

    #[inline]
    pub(super) fn start_read(
        &mut self,
        Begun {
            request,
            operation,
            cont,
        }: Begun,
        region: RegionIndex,
        slot: Slot,
    ) {
        self.reads.of_slot[slot.index()] = Some(InFlight {
            request,
            region,
            tries: 0,
            operation,
            posted: self.now,
            cont,
        });
        self.post(request, region, slot);
    }

    #[inline]
    fn post(&mut self, request: ReadRequest, region: RegionIndex, slot: Slot) {
        match self.regions.at(region) {
            Access::Local(memory) => {
                let (at, bytes) = (request.address.offset() as usize, request.bytes as usize);
                if !fits(at as u64, &request, memory.len() as u64) || bytes > slot.bytes() {
                    return self.finish(slot, ReadError::BadAddress(request.address));
                }
                if self.reads.local.len() < PREFETCH_AHEAD {
                    memory.prefetch(at, bytes);
                }
                self.reads.counters.local += 1;
                self.reads.local.push_back(slot);
            }
            &Access::Remote { machine, .. } => {
                // Reads that wait for room go first, but for headers, whose commit holds locks.
                if self.unposted.len() > 0 && request.lines != HEADER_ONLY {
                    return self.post_later(machine, slot);
                }
                if let Err(slot) = self.post_to(request, region, slot) {
                    self.post_later(machine, slot);
                }
            }
        }
    }

    /// Posts a read of another machine's memory that has waited; its slot comes back if there is no room now.
    pub(super) fn post_remote(&mut self, slot: Slot) -> Result<(), Slot> {
        let now = self.now;
        let read = self.reads.of(&slot);
        read.posted = now;
        let (request, region) = (read.request, read.region);
        self.post_to(request, region, slot)
    }

    /// Posts a read of another machine's memory; its slot comes back if there is no room now.
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
            unreachable!("a remote region stays remote")
        };
        let offset = u64::from(request.address.offset());
        // The endpoint looks at the place of objects itself; all that it knows of a raw read is its words.
        if request.lines == HEADER_ONLY && !fits(offset, &request, bytes) {
            self.finish(slot, ReadError::BadAddress(request.address));
            return Ok(());
        }
        let read = Read {
            from: Remote { memory, offset },
            bytes: request.bytes,
            kind: match request.lines {
                HEADER_ONLY => ReadKind::Raw,
                _ => ReadKind::Objects {
                    stride: request.stride(),
                },
            },
            fence: false,
            token: READ,
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
                marks::mark("read: peer lost");
                self.finish(slot, ReadError::PeerLost(machine));
            }
            Rejected::BadAccess(Some(slot)) => {
                let address = self.reads.of(&slot).request.address;
                self.finish(slot, ReadError::BadAddress(address));
            }
            Rejected::Full(None) | Rejected::Closed(None) | Rejected::BadAccess(None) => {
                unreachable!("a rejected read gives its slot back")
            }
        }
        Ok(())
    }

    /// Ends a read that failed, from the event loop: perhaps this is the call that began it.
    #[cold]
    fn finish(&mut self, slot: Slot, error: ReadError) {
        let read = self.reads.of(&slot);
        let (operation, cont) = (read.operation.take(), read.cont);
        self.fail_soon(operation, cont, slot, error);
    }

    /// As [`Worker::finish`], of a read that was never posted.
    pub(super) fn fail_begun(&mut self, read: Begun, slot: Slot, error: ReadError) {
        self.fail_soon(read.operation, read.cont, slot, error);
    }

    fn fail_soon(
        &mut self,
        operation: Option<Operation>,
        cont: Cont<ReadResult>,
        slot: Slot,
        error: ReadError,
    ) {
        self.end_own(operation);
        self.failed_reads.push_back((cont, slot, error));
    }

    /// Ends the operation of a read that has one of its own.
    #[inline]
    fn end_own(&mut self, operation: Option<Operation>) {
        if let Some(operation) = operation {
            self.end_operation(operation);
        }
    }

    /// Tells of reads that failed when they were begun.
    pub(super) fn end_failed_reads(&mut self) -> bool {
        let count = self.failed_reads.len();
        for _ in 0..count {
            let Some((cont, slot, error)) = self.failed_reads.pop_front() else {
                break;
            };
            self.endpoint.arena().give(slot);
            cont.resume(self, Err(error));
        }
        count > 0
    }

    /// Copies reads of local memory, at most `most`.
    pub(super) fn poll_local_reads(&mut self, most: usize) -> usize {
        let batch = most.min(self.reads.local.len());
        if batch == 0 {
            return 0;
        }
        let started = self.now;
        for _ in 0..batch {
            let Some(mut slot) = self.reads.local.pop_front() else {
                break;
            };
            if let Some(ahead) = self.reads.local.get(PREFETCH_AHEAD - 1)
                && let Some(ahead) = &self.reads.of_slot[ahead.index()]
                && let Access::Local(memory) = self.regions.at(ahead.region)
            {
                memory.prefetch(
                    ahead.request.address.offset() as usize,
                    ahead.request.bytes as usize,
                );
            }
            let read = self.reads.of(&slot);
            let Access::Local(memory) = self.regions.at(read.region) else {
                unreachable!("a local region stays local")
            };
            let status = copy(
                memory,
                &read.request,
                self.endpoint.arena().words_mut(&mut slot),
            );
            self.local_done.push((slot, status));
        }
        let took = self.clock.now() - started;
        let mut done = std::mem::take(&mut self.local_done);
        for (slot, status) in done.drain(..) {
            self.read_done(slot, status, took);
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
            let capabilities = self.endpoint.capabilities();
            let inside = capabilities.reads_begin_at_poll;
            let of_any_age = capabilities.reads_of_any_age;
            let ended = self.clock.now();
            let poll_took = ended - *looked;
            *looked = ended;
            for Completion {
                token,
                status,
                slot,
                ..
            } in completions.drain(..)
            {
                if token != READ {
                    super::log::give_back(&mut self.endpoint, slot);
                    self.acknowledged(token, status);
                    continue;
                }
                let slot = slot.expect("every read has a slot");
                let took = match (of_any_age, inside) {
                    (true, _) => 0,
                    (_, true) => poll_took,
                    _ => ended - self.reads.of(&slot).posted,
                };
                self.read_done(slot, status, took);
            }
        }
        self.completions = completions;
        count
    }

    /// A read came back after so many nanoseconds.
    #[inline]
    fn read_done(&mut self, slot: Slot, status: Status, took: u64) {
        let read = self.reads.of(&slot);
        let (request, cont) = (read.request, read.cont);
        let consistent = match status {
            Status::Ok if request.lines == HEADER_ONLY => true,
            Status::Ok if took <= WRAP_BOUND || took <= wrap_bound(request.lines) => {
                let words = &self.endpoint.arena().words(&slot)[..request.bytes as usize / 8];
                if !all_consistent(words, request.stride() as usize / 8, request.class) {
                    return self.not_consistent(slot);
                }
                true
            }
            Status::Ok => return self.again(slot, "read: too slow to be trusted"),
            Status::Torn => false,
            Status::Broken => return self.peer_lost(slot),
        };
        if consistent {
            let operation = self.reads.of(&slot).operation.take();
            self.end_own(operation);
            cont.resume(self, Ok(slot));
        } else {
            self.again(slot, "read: locked or torn, again");
        }
    }

    /// Handles images that did not pass [`all_consistent`].
    #[cold]
    fn not_consistent(&mut self, slot: Slot) {
        let read = self.reads.of(&slot);
        let (request, cont) = (read.request, read.cont);
        let words = &self.endpoint.arena().words(&slot)[..request.bytes as usize / 8];
        let why = misread(words, request.stride() as usize / 8, request.class);
        let found = Incarnation(words[1]);
        let address = |index: usize| {
            let further = request.address.checked_add(index as u32 * request.stride());
            further.expect("it was read from the region")
        };
        let named = self.reads.named[slot.index()].filter(|_| request.is_named);
        let error = match why {
            Some(_) if named.is_some_and(|named| named.is_stale(found)) => {
                ReadError::Gone(request.address)
            }
            Some(Misread::Busy) => return self.again(slot, "read: locked or torn, again"),
            Some(Misread::OtherClass { index, is }) => ReadError::WrongSize {
                address: address(index),
                asked: request.class,
                is,
            },
            Some(Misread::NoHeader { index }) => ReadError::BadAddress(address(index)),
            None => {
                let operation = self.reads.of(&slot).operation.take();
                self.end_own(operation);
                return cont.resume(self, Ok(slot));
            }
        };
        marks::mark("read: of another class");
        self.finish(slot, error);
    }

    #[cold]
    fn again(&mut self, slot: Slot, why: &'static str) {
        marks::mark(why);
        self.back_off(slot);
    }

    #[cold]
    fn peer_lost(&mut self, slot: Slot) {
        marks::mark("read: peer lost");
        let read = self.reads.of(&slot);
        let (cont, region, operation) = (read.cont, read.region, read.operation.take());
        let Access::Remote { machine, .. } = *self.regions.at(region) else {
            unreachable!("only a connection breaks")
        };
        self.end_own(operation);
        self.endpoint.arena().give(slot);
        cont.resume(self, Err(ReadError::PeerLost(machine)));
    }

    #[cold]
    fn back_off(&mut self, slot: Slot) {
        self.reads.counters.restarts += 1;
        let most = self.reads.most_tries;
        let read = self.reads.of(&slot);
        read.tries += 1;
        let tries = read.tries;
        if tries > most {
            marks::mark("read: given up");
            let address = read.request.address;
            return self.finish(slot, ReadError::StaysLocked(address));
        }
        if tries == 1 {
            // A writer takes well under a microsecond: the next turn finds it gone.
            return self.post_again(slot);
        }
        marks::mark("read: backed off");
        let index = slot.index() as u64;
        self.reads.backing_off.push(slot);
        let bound = (MIN_BACKOFF_NANOS << tries.min(16)).min(MAX_BACKOFF_NANOS);
        let wait = self.rng.random_range(MIN_BACKOFF_NANOS..=bound);
        self.timers
            .set(self.now + wait, Cont::new(Self::read_again, index));
    }

    fn read_again(&mut self, index: u64, (): ()) {
        let waiting = &mut self.reads.backing_off;
        let place = waiting.iter().position(|slot| slot.index() as u64 == index);
        let slot = waiting.swap_remove(place.expect("a read that backs off holds its slot"));
        self.post_again(slot);
    }

    fn post_again(&mut self, slot: Slot) {
        let now = self.now;
        let read = self.reads.of(&slot);
        read.posted = now;
        let (request, region) = (read.request, read.region);
        self.post(request, region, slot);
    }
}

/// The time after which a read of an object of so many lines is not trusted, in nanoseconds.
#[inline]
fn wrap_bound(lines: u16) -> u64 {
    WRAP_BOUND_OF_LINE * u64::from(lines)
}

fn fits(offset: u64, request: &ReadRequest, region_bytes: u64) -> bool {
    let line = LINE_BYTES as u64;
    let bytes = match request.lines {
        HEADER_ONLY => line,
        _ => u64::from(request.bytes),
    };
    bytes > 0 && offset.is_multiple_of(line) && offset + bytes <= region_bytes
}

fn copy(memory: &Memory, request: &ReadRequest, out: &mut [u64]) -> Status {
    let out = &mut out[..request.bytes as usize / 8];
    let at = request.address.offset() as usize;
    if request.lines == HEADER_ONLY {
        memory.read_words(at, out);
        return Status::Ok;
    }
    match memory.copy_objects(at, request.stride() as usize, out) {
        Ok(_) => Status::Ok,
        Err(_) => Status::Torn,
    }
}
