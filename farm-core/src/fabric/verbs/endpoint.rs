//! A worker's posts and polls.

use std::collections::VecDeque;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use smallvec::SmallVec;

use super::checked::{CheckedRead, ObjectReads, Phase};
use super::completions::Completions;
use super::connection::{Action, Connection, Data, Purpose};
use super::error::VerbsError;
use super::queue_pair::QueuePair;
use super::queues::{PostError, Queues, ReadCounters};
use super::registration::{Reach, Registration};
use super::shared::{Peer, Shared};
use crate::fabric::access::{self, Fault, fits};
use crate::fabric::{
    Arena, ArenaConfig, Atomic, Backend, Capabilities, Capability, Completion, Counters, Departure,
    Eviction, ImportError, Lease, LeaseTerms, Read, ReadKind, Rejected, Remote, RemoteMemory, Slot,
    Source, Status, Wake, Write,
};
use crate::ids::{MachineId, WorkerId};
use crate::mem::{Memory, WORD_BYTES};
use crate::time::Clock;

/// Number of polls between two readings of the clock for the throttle.
const POLLS_PER_TICK: u32 = 64;

/// A worker's access to its queues.
pub(super) enum Access {
    /// The worker owns the queues.
    Own(Box<Queues>),
    /// Several workers share the queues.
    Shared(Arc<Mutex<Queues>>),
}

impl Access {
    #[inline]
    fn with<T>(&mut self, work: impl FnOnce(&mut Queues) -> T) -> T {
        match self {
            Access::Own(queues) => work(queues),
            Access::Shared(queues) => work(
                &mut queues
                    .lock()
                    .expect("no worker panics while it holds the lock of its queues"),
            ),
        }
    }
}

/// Memory of a peer, imported by this endpoint.
struct Import {
    /// Index of the machine among the peers, and the generation of the connection over which the
    /// memory was imported.
    peer: usize,
    generation: u32,
    key: u32,
    bytes: u64,
    writable: bool,
    /// The memory itself, if it is this machine's own.
    local: Option<Memory>,
}

/// The state of a peer as last noticed by this worker.
struct Known {
    machine: MachineId,
    generation: u32,
    workers: u16,
    parks: bool,
    is_open: bool,
}

/// Changes among the peers since a worker last looked, as indexes and generations.
#[derive(Default)]
struct Changes {
    arrived: Vec<(usize, u32, QueuePair)>,
    gone: Vec<(usize, u32)>,
}

impl Changes {
    /// Collects the changes for a worker of `group`, and updates what the worker knows.
    fn take(
        peers: &mut [Peer],
        group: usize,
        known: &mut Vec<Known>,
        departed: &mut VecDeque<(MachineId, Departure)>,
    ) -> Self {
        let mut changes = Self::default();
        for (index, peer) in peers.iter_mut().enumerate() {
            let before = known.get(index);
            if before.is_none_or(|before| before.generation != peer.generation) {
                if let Some(before) = before.filter(|before| before.is_open) {
                    let how = peer.before.unwrap_or(Departure::Lost);
                    departed.push_back((before.machine, how));
                }
                let now = Known {
                    machine: peer.machine,
                    generation: peer.generation,
                    workers: peer.workers,
                    parks: peer.parks,
                    is_open: true,
                };
                match known.get_mut(index) {
                    Some(place) => *place = now,
                    None => known.push(now),
                }
            }
            if let Some(pair) = peer.pairs.get_mut(group).and_then(Option::take) {
                changes.arrived.push((index, peer.generation, pair));
            }
            if let Some(how) = peer.departed
                && std::mem::replace(&mut known[index].is_open, false)
            {
                departed.push_back((peer.machine, how));
                changes.gone.push((index, peer.generation));
            }
        }
        changes
    }
}

/// The verbs endpoint of one worker.
pub struct VerbsEndpoint {
    shared: Arc<Shared>,
    worker: WorkerId,
    member: u16,
    capabilities: Capabilities,
    // Declared before the arena, so that own connections are dropped first: their requests use the
    // arena's memory. Shared connections outlive the endpoint, whose `drop` passes them the arena.
    queues: Access,
    registration: Option<Registration>,
    /// Key of the registration.
    local_key: u32,
    arena: Arena,
    /// Start address of the arena's memory.
    arena_start: u64,
    completions: Arc<Completions>,
    imports: Vec<Import>,
    known: Vec<Known>,
    changes_seen: u32,
    departed: VecDeque<(MachineId, Departure)>,
    /// Completions of operations on this machine's own memory, which took place during the post.
    done: VecDeque<Completion>,
    /// Number of atomics on this machine's own memory in flight.
    own_atomics: usize,
    /// Workers to notify at the next flush, with their peer's index.
    notify: SmallVec<[(usize, WorkerId); 16]>,
    /// Number of operations posted whose completion has not been polled.
    outstanding: usize,
    polls: u32,
    counters: Counters,
}

impl VerbsEndpoint {
    pub(super) fn new(
        shared: Arc<Shared>,
        worker: WorkerId,
        (mut queues, member): (Access, u16),
        arena: &ArenaConfig,
        most: usize,
    ) -> Result<Self, VerbsError> {
        let completions = queues.with(|queues| Arc::clone(queues.completions()));
        let mut arena = Arena::new(arena);
        let (start, bytes) = arena.memory();
        let domain = Arc::clone(&completions.domain);
        // SAFETY: the arena's memory is freed after the registration, and does not move. A slot is
        // accessed only after the request that uses it has ended.
        let registration = unsafe { Registration::new(domain, start, bytes, Reach::Own) }?;
        let whole_lines = shared.object_reads() == ObjectReads::WholeLines;
        let mut endpoint = Self {
            worker,
            member,
            capabilities: Capabilities {
                whole_lines,
                imports_are_checked: false,
                ordered_placement: shared.lands_in_order(),
                reads_begin_at_poll: false,
                leases_by_time: shared.leases.is_some(),
                reads_of_any_age: !whole_lines,
                atomics: shared.device.atomic_scope(),
                max_inline_bytes: shared.inline_bytes(),
                max_outstanding_reads: most,
                max_outstanding_writes: most,
            },
            queues,
            local_key: registration.local_key(),
            registration: Some(registration),
            arena,
            arena_start: start as u64,
            completions,
            imports: Vec::with_capacity(64),
            known: Vec::new(),
            changes_seen: 0,
            departed: VecDeque::new(),
            done: VecDeque::with_capacity(most),
            own_atomics: 0,
            notify: SmallVec::new(),
            outstanding: 0,
            polls: 0,
            counters: Counters::default(),
            shared,
        };
        endpoint.notice_changes();
        Ok(endpoint)
    }

    /// Adopts the changes among the peers. Holds the lock of the queues, which other workers may
    /// share, throughout: if another of these workers sees a peer's new connection, the queues then
    /// contain it. No thread waits for queues while it holds the lock of the peers, so this cannot
    /// deadlock.
    #[cold]
    fn notice_changes(&mut self) {
        self.changes_seen = self.shared.changes.load(Ordering::Acquire);
        let shared = &self.shared;
        let (known, departed) = (&mut self.known, &mut self.departed);
        let group = self.worker.index() / shared.config.workers_per_queue;
        self.queues.with(|queues| {
            let changes = Changes::take(&mut shared.peers(), group, known, departed);
            for (index, generation, pair) in changes.arrived {
                let connection = Connection::new(pair, shared.config.connection.send_depth);
                queues.adopt(index, generation, connection);
            }
            for (index, generation) in changes.gone {
                queues.tear_down(index, generation);
            }
        });
    }

    /// Returns the imported memory that an access addresses, or the fault if the access is invalid
    /// or not permitted.
    #[inline]
    fn checked(&self, at: Remote, bytes: usize, write: bool) -> Result<&Import, Fault> {
        let import = self
            .imports
            .get(at.memory.index() as usize)
            .ok_or(Fault::BadAccess)?;
        let known = &self.known[import.peer];
        if !known.is_open || known.generation != import.generation {
            return Err(Fault::Closed);
        }
        let fits = fits(at.offset, bytes, import.bytes);
        if fits && (!write || import.writable) {
            Ok(import)
        } else {
            Err(Fault::BadAccess)
        }
    }

    /// Returns whether no room is left for reads and atomics.
    fn is_full(&self) -> bool {
        self.outstanding >= self.capabilities.max_outstanding_reads
    }

    /// Returns whether no room is left for signalled writes, which have a limit in addition to that
    /// of reads.
    fn is_full_of_writes(&self) -> bool {
        let Capabilities {
            max_outstanding_reads: reads,
            max_outstanding_writes: writes,
            ..
        } = self.capabilities;
        self.outstanding >= reads + writes
    }

    /// Returns the address of a slot's memory, and the key of its registration.
    #[inline]
    fn place(&self, slot: &Slot) -> (u64, u32) {
        let address = self.arena_start + self.arena.offset(slot) as u64;
        (address, self.local_key)
    }

    /// Waits for the atomics on this machine's own memory, because the processor's loads and stores
    /// would otherwise pass them. The wait is short: these atomics involve only the local device.
    fn settle_own_atomics(&mut self) {
        while self.own_atomics > 0 {
            self.progress(0, &mut Vec::new());
        }
    }

    /// Polls the queues, and takes at most `most` of this worker's completions. Returns how many.
    #[inline]
    fn progress(&mut self, most: usize, out: &mut Vec<Completion>) -> usize {
        if self.shared.changes.load(Ordering::Acquire) != self.changes_seen {
            self.notice_changes();
        }
        self.polls = self.polls.wrapping_add(1);
        let ticks = self.polls.is_multiple_of(POLLS_PER_TICK);
        let (member, worker) = (usize::from(self.member), self.worker);
        let (shared, arena) = (&self.shared, &mut self.arena);
        let (counters, own_atomics) = (&mut self.counters, &mut self.own_atomics);
        let (broken, taken) = self.queues.with(|queues| {
            if ticks {
                queues.tick(Clock::Host.now());
            }
            queues.poll();
            for notified in queues.notified.drain(..) {
                if notified != worker && shared.parking.ring(notified) {
                    counters.wakes += 1;
                }
            }
            for (other, outbox) in queues.outboxes.iter().enumerate() {
                if other != member && !(outbox.done.is_empty() && outbox.slots.is_empty()) {
                    shared.ring_member(worker, other);
                }
            }
            let outbox = &mut queues.outboxes[member];
            let taken = take(&mut outbox.done, most, out);
            outbox.slots.drain(..).for_each(|slot| arena.give(slot));
            *own_atomics -= std::mem::take(&mut outbox.own_atomics);
            let ReadCounters { retries, torn } = std::mem::take(&mut outbox.counters);
            counters.read_retries += retries;
            counters.reads_torn += torn;
            (std::mem::take(&mut queues.broken), taken)
        });
        // Break the links only after the lock of the queues is released: other workers may be
        // waiting for it, and `break_link` wakes all workers.
        for broken in broken {
            shared.break_link(broken.link, broken.generation, &broken.why);
        }
        if self.shared.changes.load(Ordering::Acquire) != self.changes_seen {
            self.notice_changes();
        }
        taken
    }

    /// Performs a read of this machine's own memory.
    fn read_own(&mut self, memory: &Memory, read: &Read, mut slot: Slot) {
        let (arena, counters) = (&mut self.arena, &mut self.counters);
        let status = access::copy(memory, read, &mut slot, arena, counters);
        self.done.push_back(Completion {
            token: read.token,
            status,
            slot: Some(slot),
            value: 0,
        });
    }

    fn post_remote_read(&mut self, read: &Read, slot: Slot) -> Result<(), Rejected> {
        let import = &self.imports[read.from.memory.index() as usize];
        let (link, at, key) = (import.peer, read.from.offset, import.key);
        let (address, local_key) = self.place(&slot);
        let (member, token) = (self.member, read.token);
        let data = Data::Registered {
            address,
            bytes: read.bytes,
            key: local_key,
        };
        let whole_lines = self.capabilities.whole_lines;
        let taken = self.queues.with(|queues| match read.kind {
            ReadKind::Objects { stride } if !whole_lines => queues.post_checked(CheckedRead {
                member,
                token,
                slot,
                into: (address, local_key),
                link,
                from: (at, key),
                bytes: read.bytes,
                stride,
                fence: read.fence,
                cell: 0,
                phase: Phase::After,
                seen: 0,
                before: Vec::new(),
                tries: 0,
            }),
            _ => {
                let action = Action::Read { at, key };
                let purpose = Purpose::Read { token, slot };
                let posted = queues.post(link, (action, data, read.fence), member, purpose);
                posted.map_err(|(why, purpose)| {
                    (
                        why,
                        purpose
                            .into_slot()
                            .expect("every read has a slot for the bytes that it fetches"),
                    )
                })
            }
        });
        taken.map_err(|(why, slot)| why.reject(Some(slot)))
    }

    /// Performs a write to this machine's own memory.
    fn write_own(&mut self, memory: &Memory, write: &Write, source: Source<'_>) {
        if write.fence {
            self.settle_own_atomics();
        }
        memory.write_words(write.to.offset as usize, source.words(&self.arena));
        match (write.signal, source.into_slot()) {
            (Some(token), slot) => self.done.push_back(Completion {
                token,
                status: Status::Ok,
                slot,
                value: 0,
            }),
            (None, Some(slot)) => self.arena.give(slot),
            (None, None) => {}
        }
    }

    fn post_remote_write(
        &mut self,
        (link, key): (usize, u32),
        write: &Write,
        source: Source<'_>,
    ) -> Result<(), Rejected> {
        let data = match &source {
            Source::Inline(words) => Data::Inline(words),
            Source::Slot { slot, bytes } => {
                let (address, key) = self.place(slot);
                Data::Registered {
                    address,
                    bytes: *bytes,
                    key,
                }
            }
        };
        let at = write.to.offset;
        let request = (Action::Write { at, key }, data, write.fence);
        let member = self.member;
        let purpose = Purpose::Write {
            token: write.signal,
            slot: source.into_slot(),
        };
        let posted = self
            .queues
            .with(|queues| queues.post(link, request, member, purpose));
        posted.map_err(|(why, purpose)| why.reject(purpose.into_slot()))
    }
}

/// Moves the oldest completions, at most `most`, to `out`. Returns how many.
#[inline]
fn take(done: &mut VecDeque<Completion>, most: usize, out: &mut Vec<Completion>) -> usize {
    let count = most.min(done.len());
    for _ in 0..count {
        out.extend(done.pop_front());
    }
    count
}

impl Drop for VerbsEndpoint {
    fn drop(&mut self) {
        self.shared.turns.end(self.worker);
        let Access::Shared(queues) = &self.queues else {
            return;
        };
        // Requests of this worker may still be in flight on the shared connections, which continue
        // without it.
        let nothing = ArenaConfig {
            classes: Vec::new(),
        };
        let arena = std::mem::replace(&mut self.arena, Arena::new(&nothing));
        let mut queues = queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.keep(self.registration.take(), arena);
    }
}

impl PostError {
    fn reject(self, slot: Option<Slot>) -> Rejected {
        match self {
            PostError::Full => Rejected::Full(slot),
            PostError::Closed => Rejected::Closed(slot),
        }
    }
}

impl Backend for VerbsEndpoint {
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
        let (peer, generation, local) = self.shared.import(capability)?;
        self.notice_changes();
        self.imports.push(Import {
            peer,
            generation,
            key: capability.key as u32,
            bytes: capability.bytes,
            writable: capability.writable,
            local,
        });
        Ok(RemoteMemory::from_index(self.imports.len() as u32 - 1))
    }

    #[inline]
    fn post_read(&mut self, read: Read, slot: Slot) -> Result<(), Rejected> {
        let bytes = read.bytes as usize;
        let local = match self.checked(read.from, bytes, false) {
            Ok(import) if read.is_well_formed(slot.bytes()) => import.local.clone(),
            Ok(_) => return Err(Rejected::BadAccess(Some(slot))),
            Err(fault) => return Err(fault.reject(Some(slot))),
        };
        if self.is_full() {
            return Err(Rejected::Full(Some(slot)));
        }
        match local {
            Some(memory) => {
                if read.fence {
                    self.settle_own_atomics();
                }
                self.read_own(&memory, &read, slot);
            }
            None => self.post_remote_read(&read, slot)?,
        }
        self.outstanding += 1;
        self.counters.reads += 1;
        self.counters.read_bytes += bytes as u64;
        Ok(())
    }

    #[inline]
    fn post_write(&mut self, write: Write, source: Source<'_>) -> Result<(), Rejected> {
        let bytes = source.bytes();
        let too_long = source.is_too_long(self.capabilities.max_inline_bytes);
        let import = match self.checked(write.to, bytes, true) {
            Ok(import) if !too_long && self.can_notify(import.peer, write.notify) => import,
            Ok(_) => return Err(Rejected::BadAccess(source.into_slot())),
            Err(fault) => return Err(fault.reject(source.into_slot())),
        };
        if write.signal.is_some() && self.is_full_of_writes() {
            return Err(Rejected::Full(source.into_slot()));
        }
        let (peer, key) = (import.peer, import.key);
        match import.local.clone() {
            Some(memory) => self.write_own(&memory, &write, source),
            None => self.post_remote_write((peer, key), &write, source)?,
        }
        self.outstanding += usize::from(write.signal.is_some());
        self.counters.writes += 1;
        self.counters.write_bytes += bytes as u64;
        if let Some(worker) = write.notify
            && self.known[peer].parks
            && !self.notify.contains(&(peer, worker))
        {
            self.notify.push((peer, worker));
        }
        Ok(())
    }

    fn post_atomic(
        &mut self,
        at: Remote,
        op: Atomic,
        fence: bool,
        token: crate::fabric::Token,
    ) -> Result<(), Rejected> {
        let import = self
            .checked(at, WORD_BYTES, true)
            .map_err(|fault| fault.reject(None))?;
        if !self.shared.device.has_atomics() {
            return Err(Rejected::BadAccess(None));
        }
        if self.is_full() {
            return Err(Rejected::Full(None));
        }
        let (link, key, is_own) = (import.peer, import.key, import.local.is_some());
        let at = at.offset;
        let action = match op {
            Atomic::CompareSwap { expected, new } => Action::CompareSwap {
                at,
                key,
                expected,
                new,
            },
            Atomic::FetchAdd { delta } => Action::FetchAdd { at, key, delta },
        };
        let whose = (self.member, token, is_own);
        self.queues
            .with(|queues| queues.post_atomic(link, action, fence, whose))
            .map_err(|why| why.reject(None))?;
        self.own_atomics += usize::from(is_own);
        self.outstanding += 1;
        self.counters.atomics += 1;
        Ok(())
    }

    #[inline]
    fn poll(&mut self, most: usize, out: &mut Vec<Completion>) -> usize {
        let mut count = take(&mut self.done, most, out);
        count += self.progress(most - count, out);
        self.outstanding -= count;
        count
    }

    #[inline]
    fn flush(&mut self) {
        self.shared.turns.count(self.worker);
        if !self.notify.is_empty() {
            self.notify_all();
        }
        self.queues.with(Queues::flush);
    }

    #[inline]
    fn outstanding(&self) -> usize {
        self.outstanding
    }

    fn take_broken(&mut self) -> Option<(MachineId, Departure)> {
        self.departed.pop_front()
    }

    fn take_lease(&mut self) -> Option<Lease> {
        self.shared.leases.as_ref()?.take_change()
    }

    fn eviction(&self) -> Eviction {
        let leases = self.shared.leases.as_ref();
        leases.map_or_else(Eviction::never, |leases| leases.eviction())
    }

    fn evict(&self, machine: MachineId, boot: u64) -> bool {
        self.shared.leases.is_some() && !self.may_hold_a_lease(machine, boot)
    }

    fn may_hold_a_lease(&self, machine: MachineId, boot: u64) -> bool {
        let leases = self.shared.leases.as_ref();
        leases.is_some_and(|leases| leases.may_hold((machine, boot)))
    }

    fn set_lease_terms(&self, terms: LeaseTerms) {
        if let Some(leases) = &self.shared.leases {
            leases.set_terms(terms);
        }
    }

    fn close_start(&mut self, machine: MachineId, boot: u64) {
        let peers = self.shared.peers();
        let peer = peers.iter().find(|peer| peer.machine == machine);
        let generation = peer
            .filter(|peer| peer.boot == boot)
            .map(|peer| peer.generation);
        drop(peers);
        if let Some(generation) = generation {
            self.shared
                .depart(machine, generation, Departure::Lost, None);
        }
    }

    fn close(&mut self, machine: MachineId) {
        let known = self.known.iter().find(|known| known.machine == machine);
        if let Some(known) = known {
            self.shared
                .depart(machine, known.generation, Departure::Lost, None);
        }
    }

    fn arm(&mut self) {
        self.shared.parking.arm(self.worker);
        self.completions.request_event();
    }

    fn disarm(&mut self) {
        self.shared.parking.disarm(self.worker);
    }

    fn wait(&mut self, most: Duration) -> Wake {
        // Notifications are pending that the next flush must send, so this worker must not sleep.
        if !self.notify.is_empty() {
            self.disarm();
            return Wake::Notified;
        }
        let channel = self.completions.channel();
        let woken = self.shared.parking.wait(self.worker, channel, most);
        // The next poll reads the clock: a worker that sleeps polls rarely.
        self.polls = POLLS_PER_TICK - 1;
        self.completions.take_events();
        match woken {
            true => Wake::Notified,
            false => Wake::TimedOut,
        }
    }
}

impl VerbsEndpoint {
    /// Returns whether the peer has the worker that a write notifies, or the write notifies no
    /// worker.
    #[inline]
    fn can_notify(&self, peer: usize, notify: Option<WorkerId>) -> bool {
        notify.is_none_or(|worker| worker.index() < usize::from(self.known[peer].workers))
    }

    /// Sends the pending notifications, after all requests that were posted before. If a connection
    /// has no room for a notification, a later flush sends it.
    fn notify_all(&mut self) {
        fence(Ordering::SeqCst);
        let own = self.shared.config.machine;
        let mut later = SmallVec::new();
        for (peer, worker) in self.notify.drain(..) {
            if self.known[peer].machine == own {
                self.counters.wakes += u64::from(self.shared.parking.ring(worker));
                continue;
            }
            // A peer that is gone needs no notification.
            if let Err(PostError::Full) = self.queues.with(|queues| queues.notify(peer, worker)) {
                later.push((peer, worker));
            }
        }
        self.notify = later;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression test: a worker that had not noticed that a machine had left in order, before the machine came back, took it for
    /// lost, which stops the cluster.
    #[test]
    fn a_machine_that_left_in_order_and_came_back_is_not_lost() {
        let machine = MachineId::new(3).expect("a valid id");
        let peer = |generation, before| Peer {
            machine,
            boot: u64::from(generation),
            workers: 1,
            parks: false,
            generation,
            departed: None,
            before,
            pairs: Vec::new(),
        };
        let (mut known, mut departed) = (Vec::new(), VecDeque::new());
        let mut peers = vec![peer(1, None)];
        Changes::take(&mut peers, 0, &mut known, &mut departed);
        peers[0] = peer(2, Some(Departure::Left));
        Changes::take(&mut peers, 0, &mut known, &mut departed);
        assert_eq!(departed, [(machine, Departure::Left)]);
    }
}
