//! Completion of lock-free reads: checks the result, and then retries the read or calls its continuation.

use rand::Rng;

use super::{PREFETCH_AHEAD, Polled};
use crate::fabric::{Completion, Slot, Status};
use crate::limits::ReadTries;
use crate::marks;
use crate::mem::Memory;
use crate::object::{Incarnation, Misread, all_consistent, misread};
use crate::region::table::Access;
use crate::time::Nanos;
use crate::worker::request::{ReadError, ReadRequest, ReadResult, UNCHECKED};
use crate::worker::token::Completed;
use crate::worker::{Cont, Worker};

/// A read that took longer than this many nanoseconds from start to end is not trusted: the 16-bit line versions could
/// have wrapped. An object of three lines cannot be written 65,535 times in less time.
pub(super) const WRAP_BOUND: u64 = 500_000;
/// The bound for a larger object, in nanoseconds per line: a writer writes all lines of the object for each version.
const WRAP_BOUND_OF_LINE: u64 = 160_000;
/// Shortest backoff of a read that met a writer, in nanoseconds. The upper bound of the random backoff doubles with
/// each try, up to [`MAX_BACKOFF_NANOS`].
const MIN_BACKOFF_NANOS: u64 = 200;
const MAX_BACKOFF_NANOS: u64 = 20_000;

impl Worker {
    /// Calls the continuations of reads that failed when they were started.
    pub(in crate::worker) fn end_failed_reads(&mut self) -> bool {
        let count = self.failed_reads.len();
        // That an object is gone may be as old as a value.
        if count > 0 && !self.may_report() {
            return false;
        }
        for _ in 0..count {
            let Some((cont, slot, error)) = self.failed_reads.pop_front() else {
                break;
            };
            self.endpoint.arena().give(slot);
            cont.resume(self, Err(error));
        }
        count > 0
    }

    /// Returns whether continuations of reads that failed when they were started can be called.
    pub(in crate::worker) fn has_failed_reads(&self) -> bool {
        !self.failed_reads.is_empty() && !self.waits_to_report()
    }

    /// Performs at most `most` queued reads of local memory, and returns their number.
    pub(in crate::worker) fn poll_local_reads(&mut self, most: usize) -> usize {
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
                    ahead.request.bytes(),
                );
            }
            let read = self.reads.of(&slot);
            let Access::Local(memory) = self.regions.at(read.region) else {
                unreachable!("the region of a local read is never replaced by a remote one")
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

    /// Takes at most `most` completions from the fabric, and returns their numbers.
    ///
    /// `looked` is a time before this poll. If completions arrive, it is set to a time after the poll. The difference
    /// bounds the duration of a read that takes place inside the poll.
    #[inline]
    pub(in crate::worker) fn poll_fabric(&mut self, most: usize, looked: &mut Nanos) -> Polled {
        let mut completions = std::mem::take(&mut self.completions);
        let count = self.endpoint.poll(most, &mut completions);
        let mut reads = 0;
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
                if let Completed::LogWrite(ack) = Completed::of(token) {
                    crate::worker::log::return_slot(&mut self.endpoint, slot);
                    self.acknowledged(ack, status);
                    continue;
                }
                reads += 1;
                let slot = slot.expect("every completed read returns the slot of its buffer");
                let took = match (of_any_age, inside) {
                    (true, _) => 0,
                    (_, true) => poll_took,
                    _ => ended - self.reads.of(&slot).posted,
                };
                self.read_done(slot, status, took);
            }
        }
        self.completions = completions;
        Polled { all: count, reads }
    }

    /// Handles a read that completed after `took` nanoseconds.
    #[inline]
    fn read_done(&mut self, slot: Slot, status: Status, took: u64) {
        let read = self.reads.of(&slot);
        let (request, cont) = (read.request, read.cont);
        match status {
            Status::Ok if request.lines() == UNCHECKED => self.succeed(slot, cont),
            Status::Ok if took <= WRAP_BOUND || took <= wrap_bound(request.lines()) => {
                let words = &self.endpoint.arena().words(&slot)[..request.bytes() / 8];
                if !all_consistent(words, request.stride() as usize / 8, request.class()) {
                    return self.handle_inconsistent(slot);
                }
                self.succeed(slot, cont);
            }
            Status::Ok => self.retry_read(
                slot,
                "read: repeated because it took longer than a version lasts",
            ),
            Status::Torn => {
                self.retry_read(slot, "read: repeated because the object was locked or torn")
            }
            Status::Broken => self.peer_lost(slot),
        }
    }

    #[inline]
    fn succeed(&mut self, slot: Slot, cont: Cont<ReadResult>) {
        if !self.may_report() {
            // What was read may be out of date. The machine stops, or reads it again when it may report.
            return self.read_again_later(slot);
        }
        let guard = self.reads.of(&slot).guard.take();
        self.unpin_own(guard);
        cont.resume(self, Ok(slot));
    }

    #[cold]
    fn read_again_later(&mut self, slot: Slot) {
        let index = slot.index() as u64;
        self.reads.backing_off.push(slot);
        self.hold(Cont::new(Self::backoff_expired, index));
    }

    /// Handles images that failed [`all_consistent`].
    #[cold]
    fn handle_inconsistent(&mut self, slot: Slot) {
        let read = self.reads.of(&slot);
        let (request, cont) = (read.request, read.cont);
        let words = &self.endpoint.arena().words(&slot)[..request.bytes() / 8];
        let in_copies = self.membership.survives();
        let stride = request.stride() as usize / 8;
        let why = misread(words, stride, request.class(), in_copies);
        let found = Incarnation(words[1]);
        let address = |index: usize| {
            let further = request.address.checked_add(index as u32 * request.stride());
            further.expect("objects that were read have addresses inside their region")
        };
        let named = self.reads.named[slot.index()].filter(|_| request.is_named());
        // A new object in a copy has no incarnation until it is written, and the pointer may be its own.
        let is_new = in_copies && why == Some(Misread::Busy) && found == Incarnation(0);
        let error = match why {
            Some(_) if !is_new && named.is_some_and(|named| named.is_stale(found)) => {
                ReadError::Gone(request.address)
            }
            Some(Misread::Busy) => {
                return self
                    .retry_read(slot, "read: repeated because the object was locked or torn");
            }
            Some(Misread::OtherClass { index, is }) => ReadError::WrongSize {
                address: address(index),
                asked: request.class(),
                is,
            },
            Some(Misread::NoHeader { index }) => ReadError::BadAddress(address(index)),
            None => return self.succeed(slot, cont),
        };
        marks::mark("read: of another class");
        self.finish(slot, error);
    }

    #[cold]
    fn retry_read(&mut self, slot: Slot, why: &'static str) {
        marks::mark(why);
        self.back_off(slot);
    }

    #[cold]
    fn peer_lost(&mut self, slot: Slot) {
        let region = self.reads.of(&slot).region;
        let machine = match *self.regions.at(region) {
            Access::Remote { machine, .. } if !self.survives() => machine,
            _ => return self.wait_for_region(slot),
        };
        marks::mark("read: peer lost");
        let read = self.reads.of(&slot);
        let (cont, guard) = (read.cont, read.guard.take());
        self.unpin_own(guard);
        self.endpoint.arena().give(slot);
        cont.resume(self, Err(ReadError::PeerLost(machine)));
    }

    #[cold]
    fn back_off(&mut self, slot: Slot) {
        self.reads.counters.restarts += 1;
        let ReadTries { soon, later, wait } = self.reads.tries;
        let read = self.reads.of(&slot);
        read.tries += 1;
        let tries = read.tries;
        if tries > soon + later {
            marks::mark("read: given up");
            let address = read.request.address;
            return self.finish(slot, ReadError::StaysLocked(address));
        }
        if tries == 1 {
            // A write takes well under a microsecond: it has ended by the next turn.
            return self.repost(slot);
        }
        marks::mark("read: backed off");
        let index = slot.index() as u64;
        self.reads.backing_off.push(slot);
        let bound = match tries > soon {
            true => (wait.as_nanos() as u64).max(MAX_BACKOFF_NANOS),
            false => (MIN_BACKOFF_NANOS << tries.min(16)).min(MAX_BACKOFF_NANOS),
        };
        let wait = self.rng.random_range(MIN_BACKOFF_NANOS..=bound);
        self.timers
            .set(self.now + wait, Cont::new(Self::backoff_expired, index));
    }

    fn backoff_expired(&mut self, index: u64, (): ()) {
        let waiting = &mut self.reads.backing_off;
        let place = waiting.iter().position(|slot| slot.index() as u64 == index);
        let slot = waiting.swap_remove(
            place.expect("`backing_off` has the slot of every read whose backoff has not expired"),
        );
        self.repost(slot);
    }

    pub(super) fn repost(&mut self, slot: Slot) {
        let now = self.now;
        let read = self.reads.of(&slot);
        read.posted = now;
        let (request, region) = (read.request, read.region);
        self.post(request, region, slot);
    }
}

/// Returns the nanoseconds after which a read of an object of `lines` lines is not trusted.
#[inline]
pub(super) fn wrap_bound(lines: u16) -> u64 {
    WRAP_BOUND_OF_LINE * u64::from(lines)
}

fn copy(memory: &Memory, request: &ReadRequest, out: &mut [u64]) -> Status {
    let out = &mut out[..request.bytes() / 8];
    let at = request.address.offset() as usize;
    if request.lines() == UNCHECKED {
        memory.read_words(at, out);
        return Status::Ok;
    }
    match memory.copy_objects(at, request.stride() as usize, out) {
        Ok(_) => Status::Ok,
        Err(_) => Status::Torn,
    }
}
