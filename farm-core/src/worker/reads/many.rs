//! Many lock-free reads at once, where the processor itself performs reads: of this machine's own memory, and of others' by a
//! backend such as shared memory. A read costs little more than its copy: no slot, no entry in a table, no completion.
//!
//! Reads pass three steps, several reads at a time in each. First their first lines are prefetched, so that the processor
//! looks up their pages at the same time; then their other lines; then they are copied, while the lines of the next ones
//! arrive. docs/decisions/0028-lookups-of-many-keys.md has the figures.

use std::ops::Range;

use super::done::{WRAP_BOUND, wrap_bound};
use crate::fabric::{Remote, Status};
use crate::mem::{LINE_BYTES, WORD_BYTES};
use crate::object::all_consistent;
use crate::region::table::{Access, RegionIndex};
use crate::worker::Worker;
use crate::worker::request::ReadRequest;

/// Number of reads whose first lines are prefetched together. The processor looks up the pages of several reads at the same
/// time, but only of those whose instructions follow one another closely.
const TOGETHER: usize = 8;
/// Number of reads not copied yet from which on the next first lines are not prefetched.
const ENOUGH: usize = 5;
/// Number of reads all of whose lines are prefetched. A core has room for some dozen lines under way; a prefetch beyond that
/// blocks it.
const AHEAD: usize = 5;
/// Room for reads that are not copied yet.
const ROOM: usize = 16;
const _: () = assert!(ENOUGH <= ROOM - TOGETHER && ROOM.is_power_of_two());

/// A read that is not copied yet.
#[derive(Clone, Copy)]
struct Pending {
    index: usize,
    /// Whether `visit` has returned the request.
    again: bool,
    request: ReadRequest,
    /// `None` if the worker does not know the region.
    region: Option<RegionIndex>,
}

/// Reads that are not copied yet, by number, oldest first.
struct Queue {
    reads: [Option<Pending>; ROOM],
    pushed: usize,
    /// Reads below this number have all of their lines prefetched, the others only their first line.
    fetched: usize,
    popped: usize,
}

impl Queue {
    #[inline(always)]
    fn push(&mut self, read: Pending) {
        self.reads[self.pushed % ROOM] = Some(read);
        self.pushed += 1;
    }

    #[inline(always)]
    fn get(&self, number: usize) -> Option<&Pending> {
        self.reads[number % ROOM].as_ref()
    }

    #[inline(always)]
    fn pop(&mut self) -> Option<Pending> {
        if self.popped == self.pushed {
            return None;
        }
        self.popped += 1;
        self.reads[(self.popped - 1) % ROOM]
    }
}

impl Worker {
    /// Reads objects without locks, as far as that is possible at once. `request` returns the request of each index below
    /// `count`. `visit` receives the index and consistent images, one for each object of the request; or `None` if the read
    /// is not possible at once: a device would have to perform it, a writer interferes, or it fails.
    /// [`Worker::read_lock_free`] performs such a read, or reports why it fails. If `visit` returns another request, it is
    /// called again for the same index, with `true` and the images of that request. Requests of this kind are read in the
    /// order in which they were returned. `buffer` has room for the longest of the requests.
    ///
    /// Returns whether the images can be trusted. If not, all of them must be discarded: the thread was interrupted for so
    /// long that the versions in the lines may have wrapped around.
    ///
    /// The caller must hold an [`EpochGuard`](crate::worker::EpochGuard). To let other work of the worker run, it should not
    /// request more than some hundred reads at a time.
    ///
    /// # Panics
    /// If `buffer` is too short for a request.
    #[inline]
    pub fn read_many(
        &mut self,
        count: usize,
        mut request: impl FnMut(usize) -> ReadRequest,
        buffer: &mut [u64],
        mut visit: impl FnMut(usize, bool, Option<&[u64]>) -> Option<ReadRequest>,
    ) -> bool {
        debug_assert!(
            self.epochs.open() > 0,
            "read_many needs a guard of an open epoch of this worker"
        );
        let started = self.clock.now();
        let mut queue = Queue {
            reads: [None; ROOM],
            pushed: 0,
            fetched: 0,
            popped: 0,
        };
        let (mut next, mut lines) = (0, 0);
        loop {
            if queue.pushed - queue.popped < ENOUGH && next < count {
                let from = queue.pushed;
                let until = count.min(next + TOGETHER);
                for index in next..until {
                    queue.push(self.pending(index, false, request(index)));
                }
                next = until;
                for number in from..queue.pushed {
                    if let Some(read) = queue.get(number) {
                        self.prefetch(read, 0..LINE_BYTES);
                    }
                }
            }
            while queue.fetched < queue.pushed && queue.fetched - queue.popped < AHEAD {
                if let Some(read) = queue.get(queue.fetched) {
                    self.prefetch(read, LINE_BYTES..read.request.bytes());
                }
                queue.fetched += 1;
            }
            let Some(read) = queue.pop() else {
                break;
            };
            let out = &mut buffer[..read.request.bytes() / WORD_BYTES];
            let is_read = self.read_at_once(&read, out);
            lines = lines.max(read.request.lines());
            let images = is_read.then_some(&*out);
            if let Some(request) = visit(read.index, read.again, images) {
                let read = self.pending(read.index, true, request);
                self.prefetch(&read, 0..LINE_BYTES);
                queue.push(read);
            }
        }
        let took = self.clock.now() - started;
        (took <= WRAP_BOUND || took <= wrap_bound(lines)) && self.may_report()
    }

    #[inline(always)]
    fn pending(&self, index: usize, again: bool, request: ReadRequest) -> Pending {
        let region = self.regions.find(request.address.region());
        Pending {
            index,
            again,
            request,
            region,
        }
    }

    /// Prefetches the lines of a part of a read.
    #[inline(always)]
    fn prefetch(&self, read: &Pending, part: Range<usize>) {
        let request = &read.request;
        let offset = u64::from(request.address.offset());
        let from = offset + part.start as u64;
        match read.region.map(|region| self.regions.at(region)) {
            Some(Access::Local(memory)) if super::fits(offset, request, memory.len() as u64) => {
                memory.prefetch(from as usize, part.len());
            }
            Some(&Access::Remote { memory, .. }) => {
                let from = Remote {
                    memory,
                    offset: from,
                };
                self.endpoint.prefetch(from, part.len());
            }
            _ => {}
        }
    }

    /// Copies the objects of a read. Returns whether it did, and the images are consistent.
    #[inline]
    fn read_at_once(&mut self, read: &Pending, out: &mut [u64]) -> bool {
        let (request, Some(region)) = (read.request, read.region) else {
            return false;
        };
        let (offset, stride) = (request.address.offset(), request.stride() as usize);
        let copied = match self.regions.at(region) {
            Access::Local(memory) => {
                if !super::fits(u64::from(offset), &request, memory.len() as u64) {
                    return false;
                }
                self.reads.counters.local += 1;
                memory.copy_objects(offset as usize, stride, out).is_ok()
            }
            Access::Lost => return false,
            &Access::Remote { memory, .. } => {
                let offset = u64::from(offset);
                let from = Remote { memory, offset };
                let status = self.endpoint.read_now(from, stride, out);
                self.reads.counters.remote += u64::from(status.is_some());
                status == Some(Status::Ok)
            }
        };
        copied && all_consistent(out, stride / WORD_BYTES, request.class())
    }
}
