//! A worker's endpoint on the simulated fabric.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use farm_core::fabric::{
    Arena, ArenaConfig, Atomic, AtomicScope, Backend, Capabilities, Capability, Completion,
    Counters, Departure, Eviction, ImportError, Lease, LeaseTerms, Read, ReadKind, Rejected,
    Remote, RemoteMemory, Slot, Source, Token, Wake, Write,
};
use farm_core::ids::{MachineId, WorkerRef};
use farm_core::mem::{LINE_WORDS, WORD_BYTES};
use rand::Rng;

use super::config::{Defect, SimConfig};
use super::connection::{Kind, Location, Operation, Reading, Writing};
use super::lock;
use super::state::{Sleeper, State};
use super::trace::{self, Event};

/// Virtual nanoseconds that a poll takes if nothing is in flight.
const IDLE_POLL_NANOS: u64 = 50;
/// Maximum number of unsignalled writes in flight, as a multiple of `most_outstanding`.
const UNSIGNALLED_SHARE: usize = 4;

/// The simulated endpoint of one worker.
pub(super) struct SimEndpoint {
    state: Arc<Mutex<State>>,
    port: usize,
    worker: WorkerRef,
    capabilities: Capabilities,
    arena: Arena,
    /// Workers to notify at the next flush, each with the index of the connection to its machine.
    notify: Vec<(usize, WorkerRef)>,
}

/// An access that passed all checks.
struct Access {
    at: Location,
    connection: usize,
}

/// The limit of the endpoint that a post counts against.
#[derive(Clone, Copy)]
enum Room {
    /// The limit for a read or an atomic: fewer than `most_outstanding` signalled operations are outstanding.
    Read,
    /// The limit for a signalled write: fewer than twice `most_outstanding` signalled operations are outstanding. So
    /// reads leave room for writes.
    Write,
    /// The limit for an unsignalled write: fewer than `UNSIGNALLED_SHARE * most_outstanding` unsignalled writes are in
    /// flight.
    Unsignalled,
}

enum Fault {
    Full,
    Closed,
    BadAccess,
}

impl Fault {
    fn reject(self, slot: Option<Slot>) -> Rejected {
        match self {
            Fault::Full => Rejected::Full(slot),
            Fault::Closed => Rejected::Closed(slot),
            Fault::BadAccess => Rejected::BadAccess(slot),
        }
    }
}

impl SimEndpoint {
    pub(super) fn new(
        state: Arc<Mutex<State>>,
        config: &SimConfig,
        worker: WorkerRef,
        arena: &ArenaConfig,
    ) -> Self {
        let port = lock(&state).add_port(worker, config.most_outstanding);
        Self {
            state,
            port,
            worker,
            capabilities: Capabilities {
                whole_lines: true,
                imports_are_checked: true,
                ordered_placement: config.odds.as_ref().is_none_or(|odds| odds.places_in_order),
                reads_begin_at_poll: false,
                reads_of_any_age: false,
                atomics: AtomicScope::Device,
                leases_by_time: config.lease.is_some(),
                max_inline_bytes: config.max_inline_bytes,
                max_outstanding_reads: config.most_outstanding,
                max_outstanding_writes: config.most_outstanding,
            },
            arena: Arena::new(arena),
            notify: Vec::new(),
        }
    }

    /// Checks a post: the range, the right to write, the connection, and the room. Rejects some posts as full by
    /// chance.
    fn check_access(
        &self,
        state: &mut State,
        at: Remote,
        bytes: usize,
        write: bool,
        room: Room,
    ) -> Result<Access, Fault> {
        let port = &state.ports[self.port];
        let import = port
            .imports
            .get(at.memory.index() as usize)
            .ok_or(Fault::BadAccess)?
            .clone();
        let len = import.bytes;
        let offset = usize::try_from(at.offset).map_err(|_| Fault::BadAccess)?;
        if state.connections[import.connection].broken {
            return Err(Fault::Closed);
        }
        let aligned = offset.is_multiple_of(WORD_BYTES) && bytes.is_multiple_of(WORD_BYTES);
        let fits = aligned && bytes <= len && offset <= len - bytes;
        if !(fits && (import.writable || !write)) {
            return Err(Fault::BadAccess);
        }
        let most = port.most_outstanding;
        let full = match room {
            Room::Read => port.outstanding >= most,
            Room::Write => port.outstanding >= 2 * most,
            Room::Unsignalled => port.unsignalled >= most * UNSIGNALLED_SHARE,
        };
        if full {
            return Err(Fault::Full);
        }
        let share = state.odds.full;
        if state.chance(share) {
            state.note(Event::Refused { by: self.worker });
            return Err(Fault::Full);
        }
        Ok(Access {
            at: Location {
                export: import.export,
                offset,
            },
            connection: import.connection,
        })
    }

    /// Appends a checked operation to its connection.
    fn enqueue(&self, state: &mut State, connection: usize, fence: bool, kind: Kind, bytes: usize) {
        let (what, signalled) = match &kind {
            Kind::Write(write) => (trace::Operation::Write, write.signal.is_some()),
            Kind::Read(_) => (trace::Operation::Read, true),
            Kind::Atomic { .. } => (trace::Operation::Atomic, true),
            Kind::Notify(_) => (trace::Operation::Notify, false),
        };
        state.next_operation += 1;
        let number = state.next_operation;
        let port = &mut state.ports[self.port];
        match what {
            trace::Operation::Notify => {}
            _ if signalled => port.outstanding += 1,
            _ => port.unsignalled += 1,
        }
        let to = state.connections[connection].to;
        let event = Event::Posted {
            by: self.worker,
            to,
            operation: number,
            what,
            bytes: bytes as u64,
            fence,
        };
        state.note(event);
        state.connections[connection]
            .operations
            .push_back(Operation {
                number,
                fence,
                kind,
            });
    }

    /// Returns the slots of landed unsignalled writes to the arena.
    fn reclaim(arena: &mut Arena, state: &mut State, port: usize) {
        for slot in state.ports[port].returned.drain(..) {
            arena.give(slot);
        }
    }

    /// Ends the worker's sleep: a worker that posts or polls is awake.
    fn wake_up(&self, state: &mut State) {
        let sleeper = state.sleeper(self.worker);
        if sleeper.parked.is_some() {
            *sleeper = Sleeper::default();
        }
    }
}

impl Backend for SimEndpoint {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn counters(&self) -> Counters {
        lock(&self.state).ports[self.port].counters
    }

    fn arena(&mut self) -> &mut Arena {
        &mut self.arena
    }

    fn import(&mut self, capability: &Capability) -> Result<RemoteMemory, ImportError> {
        lock(&self.state)
            .import(self.port, capability)
            .map(RemoteMemory::from_index)
    }

    fn post_read(&mut self, read: Read, slot: Slot) -> Result<(), Rejected> {
        let mut state = lock(&self.state);
        self.wake_up(&mut state);
        let bytes = read.bytes as usize;
        if !read.is_well_formed(slot.bytes()) {
            return Err(Rejected::BadAccess(Some(slot)));
        }
        let access = match self.check_access(&mut state, read.from, bytes, false, Room::Read) {
            Ok(access) => access,
            Err(fault) => return Err(fault.reject(Some(slot))),
        };
        let counters = &mut state.ports[self.port].counters;
        counters.reads += 1;
        counters.read_bytes += bytes as u64;
        if state.has(Defect::Miscounted) {
            state.ports[self.port].counters.reads += 1;
        }
        let stride = match read.kind {
            ReadKind::Raw => None,
            ReadKind::Objects { stride } => Some(stride as usize),
        };
        let whole_lines = stride.is_some() && !state.has(Defect::LinesTorn);
        let most_retries = state.odds.most_retries;
        let mut reading = Reading {
            from: access.at,
            stride,
            headers: Vec::new(),
            out: vec![0; bytes / WORD_BYTES],
            left: Vec::new(),
            piece: if whole_lines { LINE_WORDS } else { 1 },
            retries_left: state.rng.random_range(0..=most_retries),
            token: read.token,
            slot,
        };
        reading.restart();
        self.enqueue(
            &mut state,
            access.connection,
            read.fence,
            Kind::Read(reading),
            bytes,
        );
        Ok(())
    }

    fn post_write(&mut self, write: Write, source: Source<'_>) -> Result<(), Rejected> {
        let mut state = lock(&self.state);
        self.wake_up(&mut state);
        state.drain(self.port);
        Self::reclaim(&mut self.arena, &mut state, self.port);
        let (bytes, most, inline, slot) = match source {
            Source::Inline(words) => (
                words.len() * WORD_BYTES,
                self.capabilities.max_inline_bytes,
                words,
                None,
            ),
            Source::Slot { slot, bytes } => (bytes as usize, slot.bytes(), &[][..], Some(slot)),
        };
        if bytes > most {
            return Err(Rejected::BadAccess(slot));
        }
        let room = match write.signal {
            Some(_) => Room::Write,
            None => Room::Unsignalled,
        };
        let checked = self.check_access(&mut state, write.to, bytes, true, room);
        let access = match checked {
            Ok(access) => access,
            Err(Fault::BadAccess) if state.has(Defect::AccessUnchecked) => {
                slot.into_iter().for_each(|slot| self.arena.give(slot));
                return Ok(());
            }
            Err(fault) => return Err(fault.reject(slot)),
        };
        let words = slot.as_ref().map_or(inline, |slot| self.arena.words(slot));
        let words = words[..bytes / WORD_BYTES].to_vec();
        let counters = &mut state.ports[self.port].counters;
        counters.writes += 1;
        counters.write_bytes += bytes as u64;
        let kind = Kind::Write(Writing {
            to: access.at,
            words,
            landed: 0,
            order: None,
            signal: write.signal,
            slot,
        });
        self.enqueue(&mut state, access.connection, write.fence, kind, bytes);
        if let Some(worker) = write.notify {
            let sleeper = WorkerRef::new(state.connections[access.connection].to, worker);
            if !self.notify.contains(&(access.connection, sleeper)) {
                self.notify.push((access.connection, sleeper));
            }
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
        let mut state = lock(&self.state);
        self.wake_up(&mut state);
        state.drain(self.port);
        let access = self
            .check_access(&mut state, at, WORD_BYTES, true, Room::Read)
            .map_err(|fault| fault.reject(None))?;
        state.ports[self.port].counters.atomics += 1;
        let kind = Kind::Atomic {
            at: access.at,
            op,
            token,
            seen: None,
        };
        self.enqueue(&mut state, access.connection, fence, kind, WORD_BYTES);
        Ok(())
    }

    fn poll(&mut self, most: usize, out: &mut Vec<Completion>) -> usize {
        let mut state = lock(&self.state);
        self.wake_up(&mut state);
        let most_steps = state.odds.steps_per_poll;
        for _ in 0..state.rng.random_range(0..=most_steps) {
            if !state.step() {
                let now = state.now + IDLE_POLL_NANOS;
                state.set_now(now);
                break;
            }
        }
        Self::reclaim(&mut self.arena, &mut state, self.port);
        let port = &mut state.ports[self.port];
        let count = most.min(port.arrived.len());
        for (mut completion, data) in port.arrived.drain(..count) {
            if let Some(slot) = &mut completion.slot {
                self.arena.words_mut(slot)[..data.len()].copy_from_slice(&data);
            }
            out.push(completion);
        }
        port.outstanding = port.outstanding.saturating_sub(count);
        count
    }

    fn flush(&mut self) {
        let mut state = lock(&self.state);
        if !self.notify.is_empty() {
            state.drain(self.port);
        }
        for (connection, sleeper) in std::mem::take(&mut self.notify) {
            if !state.connections[connection].broken && state.has_worker(sleeper) {
                self.enqueue(
                    &mut state,
                    connection,
                    false,
                    Kind::Notify(sleeper.worker),
                    0,
                );
            }
        }
    }

    fn outstanding(&self) -> usize {
        lock(&self.state).ports[self.port].outstanding
    }

    fn take_broken(&mut self) -> Option<(MachineId, Departure)> {
        lock(&self.state).ports[self.port].departed.pop_front()
    }

    fn has_died(&self, machine: MachineId, boot: u64) -> bool {
        lock(&self.state).has_died(machine, boot)
    }

    fn take_lease(&mut self) -> Option<Lease> {
        lock(&self.state).take_lease(self.worker.machine)
    }

    fn eviction(&self) -> Eviction {
        lock(&self.state).eviction(self.worker.machine).clone()
    }

    fn evict(&self, machine: MachineId, boot: u64) -> bool {
        let state = lock(&self.state);
        match state.leases {
            Some(_) => !state.may_hold_a_lease(self.worker.machine, (machine, boot)),
            None => state.evict(machine, boot),
        }
    }

    fn may_hold_a_lease(&self, machine: MachineId, boot: u64) -> bool {
        lock(&self.state).may_hold_a_lease(self.worker.machine, (machine, boot))
    }

    fn set_lease_terms(&self, terms: LeaseTerms) {
        lock(&self.state).set_lease_terms(self.worker.machine, terms);
    }

    fn close_start(&mut self, machine: MachineId, boot: u64) {
        let mut state = lock(&self.state);
        if state.machine_has(machine, boot) {
            state.disconnect(self.worker.machine, machine, Departure::Lost);
        }
    }

    fn close(&mut self, machine: MachineId) {
        lock(&self.state).disconnect(self.worker.machine, machine, Departure::Lost);
    }

    fn arm(&mut self) {
        let mut state = lock(&self.state);
        state.drain(self.port);
        *state.sleeper(self.worker) = Sleeper {
            armed: true,
            notified: false,
            parked: None,
        };
    }

    fn disarm(&mut self) {
        *lock(&self.state).sleeper(self.worker) = Sleeper::default();
    }

    /// Never blocks. The worker is parked instead: the scheduler does not run it until it is notified or its sleep has
    /// ended.
    fn wait(&mut self, most: Duration) -> Wake {
        let mut state = lock(&self.state);
        let until = state.now.after(most);
        let spurious_share = state.odds.spurious_wake;
        let spurious = state.chance(spurious_share);
        let sleeper = state.sleeper(self.worker);
        if sleeper.notified || !sleeper.armed || spurious {
            *sleeper = Sleeper::default();
            return Wake::Notified;
        }
        sleeper.parked = Some(until);
        state.note(Event::Slept {
            worker: self.worker,
            until,
        });
        Wake::TimedOut
    }
}
