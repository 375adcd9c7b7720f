//! A fabric in one thread under virtual time, with every weakness that the guarantees of [`farm_core::fabric`] permit.
//!
//! Writes land a few words at a time, in increasing address order unless the odds say otherwise. Reads collect their
//! lines at different moments and in any order. Operations pass each other wherever no fence forbids it. Completions
//! arrive late and out of order. Posts are rejected. Connections stall for heavy-tailed times and break while
//! operations are half done. All of these choices are drawn from the seed: the same seed and the same calls produce the
//! same run, and the same [`SimFabric::trace_hash`].
//!
//! Time and data advance when the scheduler calls [`SimFabric::step`], and by a few steps at each poll and between the
//! accesses of a turn. An endpoint's `wait` never blocks: it returns `Notified` if a notification has arrived.
//! Otherwise it returns `TimedOut` and the worker is [`SimFabric::parked`]: the scheduler must not run the worker until
//! it is notified or its sleep has ended.
//!
//! | file | what |
//! |---|---|
//! | `config` | odds, limits, and deliberate bugs |
//! | `state` | machines, exports and sleeping workers; how connections end |
//! | `connection` | the operations in flight, and the table of which may pass which |
//! | `step` | one step of one operation |
//! | `lease_net`, `leases` | leases by time, and cuts of the network |
//! | `buffers` | store buffers |
//! | `processor` | when stores become visible, late arrival of remote writes, and interruptions between the accesses of a turn |
//! | `endpoint` | posts and polls |
//! | `trace` | the events of a run, as a hash and as readable lines |
//!
//! ```
//! use farm_core::fabric::{ArenaConfig, Remote, Source, Write};
//! use farm_core::ids::{MachineId, WorkerId};
//! use farm_sim::fabric::{SimConfig, SimFabric};
//! use std::sync::atomic::Ordering;
//!
//! let machines = [1, 2].map(|number| MachineId::new(number).unwrap());
//! let fabric = SimFabric::new(SimConfig::seeded(7), &machines);
//! let (memory, capability) = fabric.export(machines[1], 4096, true);
//! let mut endpoint = fabric.endpoint(machines[0], WorkerId::FIRST, &ArenaConfig::for_reads(8, 0));
//! let to = Remote { memory: endpoint.import(&capability).unwrap(), offset: 64 };
//! let write = Write { to, fence: false, notify: None, signal: None };
//! while endpoint.post_write(write, Source::Inline(&[42])).is_err() {} // Sometimes `Full`.
//! fabric.settle();
//! assert_eq!(memory.load(64, Ordering::Acquire), 42);
//! ```

mod buffers;
mod config;
mod connection;
mod endpoint;
mod lease_net;
mod leases;
mod processor;
mod state;
mod step;
mod trace;

use std::sync::{Arc, Mutex, MutexGuard};

use farm_core::fabric::{ArenaConfig, Capability, Departure, Endpoint, Standing};
use farm_core::ids::{MachineId, WorkerId, WorkerRef};
use farm_core::mem::Memory;
use farm_core::time::{Clock, Nanos};
use rand::Rng;
use send_wrapper::SendWrapper;

pub use config::{Defect, Odds, SimConfig};
pub use trace::{Event, Operation};

use endpoint::SimEndpoint;
use processor::ProcessorHook;
use state::{Sleeper, State};

/// The worker whose turn was running when [`SimFabric::begin_turn`] was called, if any.
pub struct Turn(Option<usize>);

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state
        .lock()
        .expect("cannot lock the simulated fabric: an earlier panic poisoned the lock")
}

/// A simulated fabric and the machines on it. A clone is a handle of the same fabric.
#[derive(Clone)]
pub struct SimFabric {
    state: Arc<Mutex<State>>,
    config: SimConfig,
}

impl SimFabric {
    /// Creates a fabric of `machines`, each connected to all machines including itself.
    pub fn new(config: SimConfig, machines: &[MachineId]) -> Self {
        Self {
            state: Arc::new(Mutex::new(State::new(&config, machines))),
            config,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Exports new memory of a machine, which its peers can import.
    ///
    /// # Panics
    /// If the machine is not on this fabric.
    pub fn export(&self, machine: MachineId, bytes: usize, writable: bool) -> (Memory, Capability) {
        let memory = Memory::anonymous(bytes).window(0, bytes);
        self.export_memory(machine, memory, writable)
    }

    /// Exports memory that an earlier process of a machine has exported, by its [local view](SimFabric::local_view), so that peers can
    /// read it.
    ///
    /// # Panics
    /// If the machine is not on this fabric.
    pub fn export_again(&self, machine: MachineId, memory: Memory) -> (Memory, Capability) {
        self.export_memory(machine, memory, false)
    }

    fn export_memory(
        &self,
        machine: MachineId,
        memory: Memory,
        writable: bool,
    ) -> (Memory, Capability) {
        let (memory, capability, export) = self.state().export(machine, memory, writable);
        if !self.config.processors {
            return (memory, capability);
        }
        let state = Arc::clone(&self.state);
        let hook = ProcessorHook::new(state, export);
        (memory.hooked(Box::new(hook)), capability)
    }

    /// Returns exported memory as all processors see it: without the stores that are still buffered. Accesses to the
    /// returned memory bypass the simulated processors, so they let no other worker run.
    ///
    /// # Panics
    /// If the capability does not belong to this fabric.
    pub fn local_view(&self, capability: &Capability) -> Memory {
        self.state().local_view(capability)
    }

    /// Begins a turn of the worker: until the turn ends, memory accesses are attributed to this worker. Pass the
    /// returned value to [`SimFabric::end_turn`] when the turn ends. Turns nest.
    pub fn begin_turn(&self, worker: WorkerRef) -> Turn {
        Turn(self.state().begin_turn(worker))
    }

    /// Ends the turn, and continues the turn that was running before it.
    pub fn end_turn(&self, turn: Turn) {
        self.state().end_turn(turn.0);
    }

    /// Sets the function that lets other workers take turns. The fabric calls it at some interruptions of a turn, which
    /// occur between two memory accesses. The odds determine how often.
    ///
    /// All workers of the fabric run on the thread that calls this, and the function is dropped there.
    pub fn set_interruption(&self, others: impl Fn() + 'static) {
        self.state().processors.others = Some(Arc::new(SendWrapper::new(Box::new(others))));
    }

    /// Makes every buffered store visible, and every word of a remote write that processors do not see yet.
    pub fn drain(&self) {
        self.state().drain_all();
    }

    /// As [`SimFabric::drain`], for the stores of one machine's workers and the words in its memory.
    pub fn drain_machine(&self, machine: MachineId) {
        let mut state = self.state();
        state.drain_machine(machine);
    }

    /// Draws a random number below `below` from the fabric's generator, for schedulers.
    pub fn draw(&self, below: u64) -> u64 {
        self.state().rng.random_range(0..below)
    }

    /// Adds an event of the scheduler to the trace, and so to the hash.
    pub fn note(&self, event: Event) {
        self.state().note(event);
    }

    /// Creates the endpoint of a worker.
    ///
    /// # Panics
    /// If the machine is not on this fabric or has no such worker.
    pub fn endpoint(&self, machine: MachineId, worker: WorkerId, arena: &ArenaConfig) -> Endpoint {
        let worker = WorkerRef::new(machine, worker);
        let endpoint = SimEndpoint::new(Arc::clone(&self.state), &self.config, worker, arena);
        Endpoint::Other(Box::new(endpoint))
    }

    /// Takes one step of something that is in flight. Returns false if nothing is.
    pub fn step(&self) -> bool {
        self.state().step()
    }

    /// Takes steps until nothing is in flight.
    pub fn settle(&self) {
        while self.step() {}
    }

    /// Returns the virtual time.
    pub fn now(&self) -> Nanos {
        self.state().now
    }

    /// Returns virtual time as a clock for workers.
    pub fn clock(&self) -> Clock {
        Clock::Virtual(Arc::clone(&self.state().clock))
    }

    /// Advances virtual time to `moment`, unless that has passed.
    pub fn advance_to(&self, moment: Nanos) {
        let mut state = self.state();
        let moment = moment.max(state.now);
        state.set_now(moment);
        state.run_leases();
    }

    /// Returns the end of a worker's sleep; `None` if the worker is awake or was notified.
    pub fn parked(&self, machine: MachineId, worker: WorkerId) -> Option<Nanos> {
        self.state().sleeper(WorkerRef::new(machine, worker)).parked
    }

    /// Ends a worker's sleep: its time limit has passed, or a thread of the machine wakes the worker.
    pub fn unpark(&self, machine: MachineId, worker: WorkerId) {
        *self.state().sleeper(WorkerRef::new(machine, worker)) = Sleeper::default();
    }

    /// Returns true if a worker is awake. If the time limit of its sleep has passed, ends the sleep first.
    pub fn is_awake(&self, worker: WorkerRef) -> bool {
        let mut state = self.state();
        let now = state.now;
        let sleeper = state.sleeper(worker);
        match sleeper.parked {
            Some(until) if until > now => false,
            Some(_) => {
                *sleeper = Sleeper::default();
                true
            }
            None => true,
        }
    }

    /// Returns the earliest future moment at which a sleep ends without a notification.
    pub fn next_wake(&self) -> Option<Nanos> {
        self.state().next_wake()
    }

    /// Breaks the connections between two machines, for all their workers and in both directions. Operations in flight
    /// take no further steps. Their earlier steps remain in effect.
    pub fn break_connection(&self, one: MachineId, other: MachineId) {
        self.state().disconnect(one, other, Departure::Lost);
    }

    /// Removes a machine without notice: its peers observe [`Departure::Lost`].
    pub fn kill(&self, machine: MachineId) {
        self.state().depart(machine, Departure::Lost);
    }

    /// Has all other machines notice that the lease of a machine has expired, or is renewed. If leases end by time, they find out, because
    /// the machine does not ask for leases meanwhile.
    pub fn change_lease(&self, machine: MachineId, has_expired: bool) {
        let mut state = self.state();
        match state.leases {
            Some(_) => state.stop_leases(machine, has_expired),
            None => state.change_lease(machine, has_expired),
        }
    }

    /// Returns whether leases end by time.
    pub fn has_leases_by_time(&self) -> bool {
        self.state().leases.is_some()
    }

    /// Returns whether a machine may report what it finds out.
    pub fn standing(&self, machine: MachineId) -> Standing {
        self.state().eviction(machine).standing()
    }

    /// Cuts the network between some machines and all others for a time, if leases end by time. Connections between them stand still, and
    /// break if that takes too long for them. The others of their connections, and leases, go on.
    pub fn part(&self, some: &[MachineId], nanos: u64) {
        self.state().part(some, nanos);
    }

    /// Has no lease reach a machine for a time, if leases end by time.
    pub fn make_deaf(&self, machine: MachineId, nanos: u64) {
        self.state().make_deaf(machine, nanos);
    }

    /// Evicts the last start of a machine, as others do that go on without it.
    pub fn evict(&self, machine: MachineId) {
        self.state().eviction(machine).set();
    }

    /// Returns whether others have evicted the last start of a machine.
    pub fn is_evicted(&self, machine: MachineId) -> bool {
        self.state().eviction(machine).standing() == Standing::Evicted
    }

    /// Removes a machine that announces its departure: its peers observe [`Departure::Left`].
    pub fn leave(&self, machine: MachineId) {
        self.state().depart(machine, Departure::Left);
    }

    /// Starts a machine that has gone again, with another number. What it exported before cannot be imported any more.
    ///
    /// # Panics
    /// If the machine has not gone.
    pub fn restart(&self, machine: MachineId) {
        self.state().restart(machine);
    }

    /// Returns the number of a machine's start.
    pub fn boot(&self, machine: MachineId) -> u64 {
        self.state().boot(machine)
    }

    /// Returns the hash of all events: equal for equal seeds and equal calls.
    pub fn trace_hash(&self) -> u64 {
        self.state().trace.hash()
    }

    /// Returns the events so far as lines of text; none unless the configuration keeps events.
    pub fn trace(&self) -> Vec<String> {
        let line = |(at, event): &(Nanos, Event)| format!("{:>12} {event}", at.0);
        self.state().trace.events().iter().map(line).collect()
    }

    /// Returns the events so far; none unless the configuration keeps events.
    pub fn events(&self) -> Vec<Event> {
        self.state()
            .trace
            .events()
            .iter()
            .map(|(_, event)| *event)
            .collect()
    }
}
