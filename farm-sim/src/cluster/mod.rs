//! A whole cluster in one thread, under virtual time: the workers of production, put together from the
//! same parts, on the simulated fabric.
//!
//! Nothing here knows a protocol. A worker is stepped by [`Worker::turn`] and sleeps by
//! [`Worker::sleep`], as its thread would do it; its memory and its endpoint are the simulator's. Who
//! runs next, how long a processor stops, and what breaks is drawn from the seed.
//!
//! | file | what |
//! |---|---|
//! | `limits` | sizes, drawn small so that rare paths become common ones |
//! | `build` | machines and workers from their parts |
//! | `schedule` | who runs next; turns inside of turns |
//! | `rest` | what must hold when nothing is under way |

mod build;
mod limits;
mod rest;
mod schedule;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use farm_core::control::Control;
use farm_core::ids::{MachineId, WorkerRef};
use farm_core::mem::Memory;
use farm_core::region::store::Store;
use farm_core::time::Nanos;
use farm_core::worker::Worker;

use crate::fabric::{Event, SimFabric};

pub use limits::{ClusterLimits, Pace};
pub use schedule::Stepped;

/// A place for a worker: empty while it is in its turn.
struct Seat {
    me: WorkerRef,
    /// Its machine's place.
    machine: usize,
    worker: Mutex<Option<Box<Worker>>>,
    in_turn: AtomicBool,
}

impl Seat {
    fn take(&self) -> Option<Box<Worker>> {
        self.in_turn.store(true, Ordering::Relaxed);
        lock(&self.worker).take()
    }

    fn put(&self, worker: Box<Worker>) {
        *lock(&self.worker) = Some(worker);
        self.in_turn.store(false, Ordering::Relaxed);
    }
}

struct Machine {
    id: MachineId,
    control: Arc<Control>,
    store: Arc<Store>,
    /// Its processors stand still until then.
    paused_until: AtomicU64,
    /// Its processors stop for good at the next moment at which one stands inside of a turn.
    stopping: AtomicBool,
    /// Its end was told to the others, or it was killed.
    gone: AtomicBool,
    /// The rings in its memory, that were made with it.
    rings: Vec<Memory>,
}

struct Parts {
    fabric: SimFabric,
    pace: Pace,
    seats: Vec<Seat>,
    machines: Vec<Machine>,
    /// Turns that stand inside of one another now.
    depth: AtomicU32,
    /// Places of the workers whose turns they are, the innermost last.
    under_way: Mutex<Vec<usize>>,
    turns: AtomicU64,
    /// Turns since one found anything to do.
    idle_turns: AtomicU32,
}

/// A simulated cluster.
pub struct Cluster {
    parts: Arc<Parts>,
}

impl Cluster {
    /// Its fabric.
    pub fn fabric(&self) -> &SimFabric {
        &self.parts.fabric
    }

    /// The moment it is.
    pub fn now(&self) -> Nanos {
        self.parts.fabric.now()
    }

    /// Its machines.
    pub fn machines(&self) -> impl Iterator<Item = MachineId> + '_ {
        self.parts.machines.iter().map(|machine| machine.id)
    }

    /// Workers, counted over all machines.
    pub fn workers(&self) -> usize {
        self.parts.seats.len()
    }

    /// Turns that workers have taken.
    pub fn turns(&self) -> u64 {
        self.parts.turns.load(Ordering::Relaxed)
    }

    /// Does something on a worker, as if it were in its turn.
    ///
    /// # Panics
    /// If there is no such worker, or this is called from inside of a turn.
    pub fn on<T>(&self, worker: usize, work: impl FnOnce(&mut Worker) -> T) -> T {
        let seat = &self.parts.seats[worker];
        let mut worker = seat.take().expect("no turn is under way");
        let turn = self.parts.fabric.begin_turn(seat.me);
        let done = work(&mut worker);
        self.parts.fabric.end_turn(turn);
        seat.put(worker);
        done
    }

    /// Looks at a worker from outside: what it does to memory is seen at once, and nobody else runs.
    ///
    /// # Panics
    /// As [`Cluster::on`].
    pub fn inspect<T>(&self, worker: usize, look: impl FnOnce(&mut Worker) -> T) -> T {
        let mut guard = lock(&self.parts.seats[worker].worker);
        look(guard.as_mut().expect("no turn is under way"))
    }

    /// Whether the machine of a worker still runs.
    pub fn is_running(&self, worker: usize) -> bool {
        self.parts.machines[self.parts.seats[worker].machine].is_running()
    }

    /// Whether every machine has stopped.
    pub fn has_stopped(&self) -> bool {
        !self.parts.machines.iter().any(Machine::is_running)
    }

    /// Why machines stopped, if one did because of a failure.
    pub fn failures(&self) -> Vec<String> {
        let failure = |machine: &Machine| {
            let why = machine.control.failure()?;
            Some(format!("machine {}: {why}", machine.id))
        };
        self.parts.machines.iter().filter_map(failure).collect()
    }

    /// A machine's processors stand still for so many nanoseconds; its memory still answers.
    pub fn pause(&self, machine: usize, nanos: u64) {
        let machine = &self.parts.machines[machine];
        let until = self.now() + nanos;
        machine.paused_until.fetch_max(until.0, Ordering::Relaxed);
        let id = machine.id;
        self.parts.fabric.note(Event::Paused { machine: id, until });
    }

    /// A machine's processors stop for good, in the middle of a turn if they come to be in one; its
    /// memory still answers, with the locks that were held.
    pub fn stop_processors(&self, machine: usize) {
        self.parts.machines[machine]
            .stopping
            .store(true, Ordering::Relaxed);
    }

    /// A machine is gone without a word, its memory with it.
    pub fn kill(&self, machine: usize) {
        let machine = &self.parts.machines[machine];
        machine.gone.store(true, Ordering::Relaxed);
        self.parts.fabric.kill(machine.id);
    }

    /// The connection between two machines breaks.
    pub fn break_connection(&self, one: usize, other: usize) {
        let id = |machine: usize| self.parts.machines[machine].id;
        self.parts.fabric.break_connection(id(one), id(other));
    }
}

impl Machine {
    fn is_running(&self) -> bool {
        !self.gone.load(Ordering::Relaxed) && !self.control.is_stopping()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("the simulation has failed elsewhere")
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // The fabric's callback holds the parts, and they hold the fabric.
        self.parts.fabric.let_others_run(Arc::new(|| {}));
    }
}
