//! A fabric in one thread, under virtual time, with every weakness that the promises of
//! [`farm_core::fabric`] leave room for.
//!
//! Writes land a few words at a time, in increasing order; reads collect their lines at different
//! moments and in any order; operations pass each other wherever no fence forbids it; completions
//! come late and out of order; posts are refused; connections stall for heavy-tailed times and break
//! with operations half done. Which of it happens is drawn from the seed, and nothing else: the
//! same seed and the same calls give the same run, to the last bit of [`SimFabric::trace_hash`].
//!
//! Time and data move when somebody calls [`SimFabric::step`], and a little at every poll. An
//! endpoint's `wait` never blocks: it answers `Notified` if a notification has come, else it
//! answers `TimedOut` and the worker is [`SimFabric::parked`], which tells the scheduler to leave it
//! alone until it is notified or its time has come.
//!
//! | file | what |
//! |---|---|
//! | `config` | odds, limits, and the deliberate bugs |
//! | `state` | machines, exports, sleepers; how connections end |
//! | `connection` | what is in flight, and which of it may go on: the table of who passes whom |
//! | `step` | one step of one operation |
//! | `processor` | store buffers, late arrival, and others between the accesses of a turn |
//! | `endpoint` | posts and polls |
//! | `trace` | what happened, as a hash and as lines to read |
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
//! while endpoint.post_write(write, Source::Inline(&[42])).is_err() {} // Full, now and then.
//! fabric.settle();
//! assert_eq!(memory.load(64, Ordering::Acquire), 42);
//! ```

mod config;
mod connection;
mod endpoint;
mod processor;
mod state;
mod step;
mod trace;

use std::sync::{Arc, Mutex, MutexGuard};

use farm_core::fabric::{ArenaConfig, Capability, Departure, Endpoint};
use farm_core::ids::{MachineId, WorkerId, WorkerRef};
use farm_core::mem::Memory;
use farm_core::time::{Clock, Nanos};
use rand::Rng;

pub use config::{Defect, Odds, SimConfig};
pub use trace::{Event, Operation};

use endpoint::SimEndpoint;
use processor::ProcessorHook;
use state::{Sleeper, State};

/// Who was in its turn before: see [`SimFabric::begin_turn`].
pub struct Turn(Option<usize>);

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().expect("the simulation has failed elsewhere")
}

/// A simulated fabric and the machines on it. Clones are handles of the same one.
#[derive(Clone)]
pub struct SimFabric {
    state: Arc<Mutex<State>>,
    config: SimConfig,
}

impl SimFabric {
    /// A fabric on which `machines` are, all connected with each other and with themselves.
    pub fn new(config: SimConfig, machines: &[MachineId]) -> Self {
        Self {
            state: Arc::new(Mutex::new(State::new(&config, machines))),
            config,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Memory of a machine that its peers can import.
    ///
    /// # Panics
    /// If the machine is not on this fabric.
    pub fn export(&self, machine: MachineId, bytes: usize, writable: bool) -> (Memory, Capability) {
        let (memory, capability, export) = self.state().export(machine, bytes, writable);
        if !self.config.processors {
            return (memory, capability);
        }
        let state = Arc::clone(&self.state);
        let hook = ProcessorHook::new(state, export);
        (memory.hooked(Box::new(hook)), capability)
    }

    /// Memory that a machine exported, as everybody sees it: no store on its way is in it, and nobody runs
    /// because it is looked at.
    ///
    /// # Panics
    /// If the capability is not of this fabric.
    pub fn as_seen(&self, capability: &Capability) -> Memory {
        self.state().as_seen(capability)
    }

    /// The worker's turn begins: from now on it is the one who accesses memory. Hand what comes back
    /// to [`SimFabric::end_turn`] when it ends; turns may stand inside of others.
    pub fn begin_turn(&self, worker: WorkerRef) -> Turn {
        Turn(self.state().begin_turn(worker))
    }

    /// The turn ends.
    pub fn end_turn(&self, turn: Turn) {
        self.state().end_turn(turn.0);
    }

    /// Calls `others` between two accesses of a turn, as often as the odds say.
    pub fn let_others_run(&self, others: Arc<dyn Fn() + Send + Sync>) {
        self.state().processors.others = Some(others);
    }

    /// Everything that a processor has stored, or is to see, becomes visible.
    pub fn drain(&self) {
        self.state().drain_all();
    }

    /// A random number below `below`, of the fabric's own: for schedulers.
    pub fn draw(&self, below: u64) -> u64 {
        self.state().rng.random_range(0..below)
    }

    /// Adds what else tells runs apart to the trace.
    pub fn note(&self, event: Event) {
        self.state().note(event);
    }

    /// The endpoint of a worker.
    ///
    /// # Panics
    /// If the machine is not on this fabric or has no such worker.
    pub fn endpoint(&self, machine: MachineId, worker: WorkerId, arena: &ArenaConfig) -> Endpoint {
        let worker = WorkerRef::new(machine, worker);
        let endpoint = SimEndpoint::new(Arc::clone(&self.state), &self.config, worker, arena);
        Endpoint::Other(Box::new(endpoint))
    }

    /// Takes one step: something that is in flight goes on. False if nothing is.
    pub fn step(&self) -> bool {
        self.state().step()
    }

    /// Takes steps until nothing is in flight.
    pub fn settle(&self) {
        while self.step() {}
    }

    /// Virtual time.
    pub fn now(&self) -> Nanos {
        self.state().now
    }

    /// Virtual time as a clock to hand to workers.
    pub fn clock(&self) -> Clock {
        Clock::Virtual(Arc::clone(&self.state().clock))
    }

    /// Lets time pass until `moment`, if that is not past.
    pub fn advance_to(&self, moment: Nanos) {
        let mut state = self.state();
        let moment = moment.max(state.now);
        state.set_now(moment);
    }

    /// Until when a worker sleeps; `None` if it is awake or was notified.
    pub fn parked(&self, machine: MachineId, worker: WorkerId) -> Option<Nanos> {
        self.state().sleeper(WorkerRef::new(machine, worker)).parked
    }

    /// Ends a worker's sleep because its time has come.
    pub fn unpark(&self, machine: MachineId, worker: WorkerId) {
        *self.state().sleeper(WorkerRef::new(machine, worker)) = Sleeper::default();
    }

    /// Whether a worker does not sleep; a sleep whose time has come ends.
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

    /// The earliest moment to come at which a sleep ends by itself.
    pub fn next_wake(&self) -> Option<Nanos> {
        self.state().next_wake()
    }

    /// The connection between two machines breaks, for all their workers and in both directions.
    /// Of what was in flight, a prefix has taken place.
    pub fn break_connection(&self, one: MachineId, other: MachineId) {
        self.state().part(one, other, Departure::Lost);
    }

    /// A machine is gone, without a word.
    pub fn kill(&self, machine: MachineId) {
        self.state().depart(machine, Departure::Lost);
    }

    /// A machine says that it is leaving, and is gone.
    pub fn leave(&self, machine: MachineId) {
        self.state().depart(machine, Departure::Left);
    }

    /// Hash of everything that happened: equal for equal seeds and equal calls.
    pub fn trace_hash(&self) -> u64 {
        self.state().trace.hash()
    }

    /// What happened so far, a line each, if the configuration keeps events.
    pub fn trace(&self) -> Vec<String> {
        let line = |(at, event): &(Nanos, Event)| format!("{:>12} {event}", at.0);
        self.state().trace.events().iter().map(line).collect()
    }

    /// The events themselves, if the configuration keeps them.
    pub fn events(&self) -> Vec<Event> {
        self.state()
            .trace
            .events()
            .iter()
            .map(|(_, event)| *event)
            .collect()
    }
}
