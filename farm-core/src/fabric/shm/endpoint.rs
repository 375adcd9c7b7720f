//! A worker's posts and polls.
//!
//! Writes and atomics take place when they are posted. They therefore pass outstanding reads, as
//! the fabric permits. Reads take place when they are polled. The post only prefetches the lines,
//! so that the cache misses of many reads overlap instead of adding up.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use smallvec::SmallVec;

use super::pending::PendingReads;
use super::shared::{PeerState, Shared};
use crate::fabric::access::{self, Fault, fits};
use crate::fabric::{
    Arena, ArenaConfig, Atomic, AtomicScope, Backend, Capabilities, Capability, Completion,
    Counters, Departure, Eviction, ImportError, Lease, Read, Rejected, Remote, RemoteMemory, Slot,
    Source, Status, Token, Wake, Write,
};
use crate::ids::{MachineId, WorkerId};
use crate::mem::{Access, LINE_BYTES, Memory, WORD_BYTES};

/// Maximum number of reads whose lines are all prefetched. Every post prefetches the lines of one
/// more read, so that the line-fill buffers drain while the worker computes between posts.
const FETCH_AHEAD: usize = 16;
/// Maximum number of reads whose first line is prefetched early, in batches: a prefetch may need a
/// page-table walk, and the walks of many reads overlap only if they start together.
const TOUCH_AHEAD: usize = 64;
/// Maximum number of reads with a prefetched first line when the next batch is prefetched.
const TOUCH_AGAIN: usize = 32;
/// Longest inline write, in bytes, which is copied during the post.
const MAX_INLINE_BYTES: usize = 256;

struct Import {
    memory: Memory,
    /// Index of the connection to the peer that exports the memory.
    peer: usize,
}

/// The shared-memory endpoint of one worker.
///
/// If a write notifies a worker that the receiving machine does not have, its post is rejected with
/// [`Rejected::BadAccess`]: nothing is written, and the caller gets its slot back.
pub struct ShmEndpoint {
    shared: Arc<Shared>,
    worker: WorkerId,
    capabilities: Capabilities,
    arena: Arena,
    imports: Vec<Import>,
    /// The connections to peers, by index; `None` for those that have ended.
    peers: Vec<Option<Arc<PeerState>>>,
    /// Reads not copied yet, oldest first.
    reads: PendingReads,
    /// Number of reads, from the oldest, whose first line is prefetched.
    touched: usize,
    /// Number of reads, from the oldest, whose lines are all prefetched; at most `touched`.
    fetched: usize,
    /// Completions of atomics, and of reads that were completed outside of a poll.
    done: VecDeque<Completion>,
    /// Completions of signalled writes. They have their own limit.
    written: VecDeque<Completion>,
    /// Workers to notify at the next flush, with their peer's index.
    notify: SmallVec<[(usize, WorkerId); 16]>,
    /// The shared counter of arrivals and departures when it was last read.
    changes_seen: u32,
    departed: VecDeque<(MachineId, Departure)>,
    counters: Counters,
}

impl ShmEndpoint {
    pub(super) fn new(
        shared: Arc<Shared>,
        worker: WorkerId,
        arena: &ArenaConfig,
        most: usize,
    ) -> Self {
        // Read before the peers, so that no change is missed.
        let changes_seen = shared.changes.load(Ordering::Acquire);
        let peers: Vec<_> = shared.peers().iter().cloned().map(Some).collect();
        Self {
            shared,
            worker,
            capabilities: Capabilities {
                whole_lines: true,
                imports_are_checked: true,
                ordered_placement: true,
                reads_begin_at_poll: true,
                reads_of_any_age: false,
                atomics: AtomicScope::Global,
                leases_by_time: false,
                max_inline_bytes: MAX_INLINE_BYTES,
                max_outstanding_reads: most,
                max_outstanding_writes: most,
            },
            arena: Arena::new(arena),
            imports: Vec::with_capacity(64),
            reads: PendingReads::with_capacity(most),
            touched: 0,
            fetched: 0,
            done: VecDeque::with_capacity(most),
            written: VecDeque::with_capacity(most),
            notify: SmallVec::new(),
            changes_seen,
            departed: VecDeque::with_capacity(peers.len()),
            peers,
            counters: Counters::default(),
        }
    }

    /// Returns the imported memory that an access addresses, or the fault if the access is invalid
    /// or not permitted.
    #[inline]
    fn checked(&self, at: Remote, bytes: usize, write: bool) -> Result<&Import, Fault> {
        let import = self
            .imports
            .get(at.memory.index() as usize)
            .ok_or(Fault::BadAccess)?;
        if self.peers[import.peer].is_none() {
            return Err(Fault::Closed);
        }
        let fits = fits(at.offset, bytes, import.memory.len() as u64);
        let allowed = !write || import.memory.access() == Access::ReadWrite;
        if fits && allowed {
            Ok(import)
        } else {
            Err(Fault::BadAccess)
        }
    }

    /// Prefetches the first lines of the next reads, many at a time.
    #[inline]
    fn touch_ahead(&mut self) {
        if self.touched <= TOUCH_AGAIN && self.touched < self.reads.len() {
            let until = self.reads.len().min(TOUCH_AHEAD);
            for (memory, offset, _) in self.reads.sources(self.touched..until) {
                let memory = &self.imports[memory as usize].memory;
                memory.prefetch(offset, WORD_BYTES);
            }
            self.touched = until;
        }
    }

    /// Prefetches all lines of the next read whose first line is prefetched.
    #[inline]
    fn fetch_one(&mut self) {
        if self.fetched < self.touched {
            let (memory, offset, bytes) = self.reads.source(self.fetched);
            let memory = &self.imports[memory as usize].memory;
            memory.prefetch(offset, bytes);
            self.fetched += 1;
        }
    }

    /// Copies the oldest read and returns its completion.
    #[inline]
    fn take_read(&mut self) -> Option<Completion> {
        self.touch_ahead();
        let (read, mut slot) = self.reads.pop()?;
        self.touched -= 1;
        self.fetched = self.fetched.saturating_sub(1);
        let status = self.copy(&read, &mut slot);
        Some(Completion {
            token: read.token,
            status,
            slot: Some(slot),
            value: 0,
        })
    }

    #[inline]
    fn copy(&mut self, read: &Read, slot: &mut Slot) -> Status {
        let memory = &self.imports[read.from.memory.index() as usize].memory;
        access::copy(memory, read, slot, &mut self.arena, &mut self.counters)
    }

    /// Copies every outstanding read of one connection, for a fence.
    fn settle(&mut self, peer: usize) {
        (self.touched, self.fetched) = (0, 0);
        for _ in 0..self.reads.len() {
            let Some((read, mut slot)) = self.reads.pop() else {
                return;
            };
            if self.imports[read.from.memory.index() as usize].peer == peer {
                let status = self.copy(&read, &mut slot);
                self.done.push_back(Completion {
                    token: read.token,
                    status,
                    slot: Some(slot),
                    value: 0,
                });
            } else {
                self.reads.push(read, slot);
            }
        }
    }

    #[cold]
    fn notice_changes(&mut self, changes: u32) {
        self.changes_seen = changes;
        for index in 0..self.peers.len() {
            let Some(peer) = &self.peers[index] else {
                continue;
            };
            if let Some(how) = peer.departure() {
                self.departed.push_back((peer.machine, how));
                self.end_connection(index);
            }
        }
        let shared = Arc::clone(&self.shared);
        for peer in shared.peers().iter() {
            if peer.departure().is_none() {
                self.connection(peer);
            }
        }
    }

    /// Completes the outstanding reads of a connection that has ended, and unmaps the memory that was imported from the peer.
    fn end_connection(&mut self, index: usize) {
        (self.touched, self.fetched) = (0, 0);
        for _ in 0..self.reads.len() {
            let Some((read, slot)) = self.reads.pop() else {
                break;
            };
            if self.imports[read.from.memory.index() as usize].peer == index {
                self.done.push_back(Completion {
                    token: read.token,
                    status: Status::Broken,
                    slot: Some(slot),
                    value: 0,
                });
            } else {
                self.reads.push(read, slot);
            }
        }
        self.notify.retain(|(peer, _)| *peer != index);
        self.peers[index] = None;
        let nothing = Memory::anonymous(LINE_BYTES).window(0, 0);
        let imports = self.imports.iter_mut();
        for import in imports.filter(|import| import.peer == index) {
            import.memory = nothing.clone();
        }
    }

    /// Returns the index of a connection.
    fn connection(&mut self, peer: &Arc<PeerState>) -> usize {
        let is_it = |known: &Option<Arc<PeerState>>| {
            known.as_ref().is_some_and(|known| Arc::ptr_eq(known, peer))
        };
        let known = self.peers.iter().position(is_it);
        known.unwrap_or_else(|| {
            self.peers.push(Some(Arc::clone(peer)));
            self.peers.len() - 1
        })
    }

    /// Returns whether the peer has the worker that a write notifies, or the write notifies no
    /// worker.
    #[inline]
    fn can_notify(&self, peer: usize, notify: Option<WorkerId>) -> bool {
        let peer = self.peers[peer].as_ref();
        notify.is_none_or(|worker| peer.is_some_and(|peer| peer.has(worker)))
    }

    /// Returns whether no room is left for reads and atomics.
    fn is_full(&self) -> bool {
        self.reads.len() + self.done.len() >= self.capabilities.max_outstanding_reads
    }

    /// Returns whether no room is left for signalled writes.
    fn is_full_of_writes(&self) -> bool {
        self.written.len() >= self.capabilities.max_outstanding_writes
    }
}

impl Drop for ShmEndpoint {
    fn drop(&mut self) {
        self.shared.turns.end(self.worker);
    }
}

impl Backend for ShmEndpoint {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    #[inline]
    fn arena(&mut self) -> &mut Arena {
        &mut self.arena
    }

    fn import(&mut self, capability: &Capability) -> Result<RemoteMemory, ImportError> {
        let (memory, peer) = self.shared.import(capability)?;
        let peer = self.connection(&peer);
        self.imports.push(Import { memory, peer });
        Ok(RemoteMemory::from_index(self.imports.len() as u32 - 1))
    }

    #[inline]
    fn post_read(&mut self, read: Read, slot: Slot) -> Result<(), Rejected> {
        let bytes = read.bytes as usize;
        let import = match self.checked(read.from, bytes, false) {
            Ok(import) if read.is_well_formed(slot.bytes()) => import,
            Ok(_) => return Err(Rejected::BadAccess(Some(slot))),
            Err(fault) => return Err(fault.reject(Some(slot))),
        };
        if self.is_full() {
            return Err(Rejected::Full(Some(slot)));
        }
        let peer = import.peer;
        if read.fence {
            self.settle(peer);
        }
        self.counters.reads += 1;
        self.counters.read_bytes += bytes as u64;
        self.reads.push(read, slot);
        if self.fetched < FETCH_AHEAD {
            self.fetch_one();
        }
        Ok(())
    }

    #[inline]
    fn prefetch(&self, from: Remote, bytes: usize) {
        if let Some(import) = self.imports.get(from.memory.index() as usize)
            && fits(from.offset, bytes, import.memory.len() as u64)
        {
            import.memory.prefetch(from.offset as usize, bytes);
        }
    }

    #[inline]
    fn read_now(&mut self, from: Remote, stride: usize, out: &mut [u64]) -> Option<Status> {
        let bytes = out.len() * WORD_BYTES;
        self.checked(from, bytes, false).ok()?;
        let whole = (from.offset as usize | stride | bytes).is_multiple_of(LINE_BYTES);
        if stride == 0 || !whole {
            return None;
        }
        self.counters.reads += 1;
        self.counters.read_bytes += bytes as u64;
        let memory = &self.imports[from.memory.index() as usize].memory;
        let offset = from.offset as usize;
        Some(access::copy_objects(
            memory,
            offset,
            stride,
            out,
            &mut self.counters,
        ))
    }

    #[inline]
    fn post_write(&mut self, write: Write, source: Source<'_>) -> Result<(), Rejected> {
        let bytes = source.bytes();
        let too_long = source.is_too_long(MAX_INLINE_BYTES);
        let peer = match self.checked(write.to, bytes, true) {
            Ok(import) if !too_long && self.can_notify(import.peer, write.notify) => import.peer,
            Ok(_) => return Err(Rejected::BadAccess(source.into_slot())),
            Err(fault) => return Err(fault.reject(source.into_slot())),
        };
        if write.signal.is_some() && self.is_full_of_writes() {
            return Err(Rejected::Full(source.into_slot()));
        }
        if write.fence {
            self.settle(peer);
        }
        let memory = &self.imports[write.to.memory.index() as usize].memory;
        memory.write_words(write.to.offset as usize, source.words(&self.arena));
        self.counters.writes += 1;
        self.counters.write_bytes += bytes as u64;
        if let Some(worker) = write.notify
            && !self.notify.contains(&(peer, worker))
        {
            self.notify.push((peer, worker));
        }
        match (write.signal, source.into_slot()) {
            (Some(token), slot) => {
                self.written.push_back(Completion {
                    token,
                    status: Status::Ok,
                    slot,
                    value: 0,
                });
            }
            (None, Some(slot)) => self.arena.give(slot),
            (None, None) => {}
        }
        Ok(())
    }

    fn post_atomic(
        &mut self,
        at: Remote,
        op: Atomic,
        fence: bool,
        token: Token,
    ) -> Result<(), Rejected> {
        let peer = self
            .checked(at, WORD_BYTES, true)
            .map_err(|fault| fault.reject(None))?
            .peer;
        if self.is_full() {
            return Err(Rejected::Full(None));
        }
        if fence {
            self.settle(peer);
        }
        let memory = &self.imports[at.memory.index() as usize].memory;
        let offset = at.offset as usize;
        let value = match op {
            Atomic::CompareSwap { expected, new } => {
                match memory.compare_exchange(offset, expected, new) {
                    Ok(old) | Err(old) => old,
                }
            }
            Atomic::FetchAdd { delta } => memory.fetch_add(offset, delta),
        };
        self.counters.atomics += 1;
        self.done.push_back(Completion {
            token,
            status: Status::Ok,
            slot: None,
            value,
        });
        Ok(())
    }

    #[inline]
    fn poll(&mut self, most: usize, out: &mut Vec<Completion>) -> usize {
        let changes = self.shared.changes.load(Ordering::Acquire);
        if changes != self.changes_seen {
            self.notice_changes(changes);
        }
        let before = out.len();
        // Half of the completions are of reads, if that many wait: a worker that posts writes faster than it polls them would
        // otherwise never complete a read.
        let early = most - self.reads.len().min(most / 2);
        for queue in [&mut self.written, &mut self.done] {
            if !queue.is_empty() {
                let taken = queue.len().min(early - (out.len() - before));
                out.extend(queue.drain(..taken));
            }
        }
        for _ in out.len() - before..most {
            let Some(completion) = self.take_read() else {
                break;
            };
            out.push(completion);
        }
        out.len() - before
    }

    #[inline]
    fn flush(&mut self) {
        self.shared.turns.count(self.worker);
        if self.notify.is_empty() {
            return;
        }
        fence(Ordering::SeqCst);
        for (peer, worker) in self.notify.drain(..) {
            let peer = self.peers[peer].as_ref();
            self.counters.wakes += u64::from(peer.is_some_and(|peer| peer.ring(worker)));
        }
    }

    #[inline]
    fn outstanding(&self) -> usize {
        self.reads.len() + self.done.len() + self.written.len()
    }

    fn take_broken(&mut self) -> Option<(MachineId, Departure)> {
        self.departed.pop_front()
    }

    fn has_died(&self, machine: MachineId, boot: u64) -> bool {
        match self.shared.peer(machine).filter(|peer| peer.boot == boot) {
            Some(peer) => peer.has_died(),
            None => self.shared.has_died(machine, boot),
        }
    }

    #[inline]
    fn take_lease(&mut self) -> Option<Lease> {
        self.shared.take_lease()
    }

    fn eviction(&self) -> Eviction {
        self.shared.signs.eviction()
    }

    fn evict(&self, machine: MachineId, boot: u64) -> bool {
        let peer = self.shared.peer(machine).filter(|peer| peer.boot == boot);
        if let Some(peer) = &peer {
            peer.signs.eviction().set();
        }
        peer.is_some()
    }

    fn close(&mut self, machine: MachineId) {
        if let Some(peer) = self.shared.peer(machine) {
            self.shared.depart(&peer, Departure::Lost, None);
        }
    }

    fn close_start(&mut self, machine: MachineId, boot: u64) {
        let peer = self.shared.peer(machine);
        if let Some(peer) = peer.filter(|peer| peer.boot == boot) {
            self.shared.depart(&peer, Departure::Lost, None);
        }
    }

    fn arm(&mut self) {
        self.shared.doorbells.arm(self.worker);
    }

    fn disarm(&mut self) {
        self.shared.doorbells.disarm(self.worker);
    }

    fn wait(&mut self, most: Duration) -> Wake {
        self.shared.doorbells.wait(self.worker, most)
    }
}
