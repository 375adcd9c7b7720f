//! A whole cluster in one thread under virtual time: production workers, assembled from the same parts as in
//! production, on the simulated fabric.
//!
//! Nothing in this module depends on a protocol. The scheduler calls [`Worker::turn`] and [`Worker::sleep`], as a
//! worker's thread does; the worker's memory and endpoint belong to the simulator. The seed determines which worker
//! runs next and how long processors pause.
//!
//! | file | what |
//! |---|---|
//! | `limits` | sizes, drawn small so that rare paths become common ones |
//! | `build` | assembles machines and workers from their parts |
//! | `restart` | starts machines again that have left |
//! | `kept` | what outlives the process of a machine |
//! | `resume` | starts all machines again after all had ended |
//! | `schedule` | which worker runs next; nested turns |
//! | `rest` | what must hold when no operation is under way |

mod build;
mod config_store;
mod kept;
mod limits;
mod rest;
mod restart;
mod resume;
mod schedule;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use farm_core::control::Control;
use farm_core::fabric::Standing;
use farm_core::ids::{MachineId, RegionId, WorkerRef};
use farm_core::mem::Memory;
use farm_core::messaging::SegmentLayout;
use farm_core::region::map::Replicas;
use farm_core::region::store::Store;
use farm_core::ring::KeptLog;
use farm_core::time::Nanos;
use farm_core::worker::{Inbox, Linking, Worker};

use crate::fabric::{Event, SimFabric};
use config_store::SimStore;
use kept::SimKept;

pub use limits::{ClusterLimits, Pace};
pub use schedule::Stepped;

/// A worker of the cluster. While the worker's turn runs, `worker` is `None`.
struct Seat {
    me: WorkerRef,
    /// Index of its machine.
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
    process: RefCell<Process>,
    /// What its processes have kept, by the numbers of their starts.
    kept: RefCell<BTreeMap<u64, Arc<SimKept>>>,
    /// The machine's processors are paused until this virtual time in nanoseconds.
    paused_until: AtomicU64,
    /// Whether the machine's processors stop for good at the next interruption of a turn of one of its workers.
    stopping: AtomicBool,
    /// Whether the machine's processors stop at the next interruption of a turn, until others have evicted it.
    stalls: AtomicBool,
    /// Whether the machine's process then ends, so that the others notice it.
    ends: AtomicBool,
    /// Whether the process was killed.
    killed: AtomicBool,
    /// Whether the machine has left the fabric, or was killed.
    gone: AtomicBool,
    /// Whether the machine's memory is lost.
    lost: AtomicBool,
}

/// What one start of a machine has.
struct Process {
    control: Arc<Control>,
    store: Arc<Store>,
    /// What it exports for the rings and logs that others write, and itself.
    segments: Vec<Segment>,
    /// Those of its workers.
    inboxes: Vec<Arc<Inbox>>,
    /// What it keeps.
    kept: Option<Arc<SimKept>>,
}

/// A worker that will be connected to a machine that was started again.
struct PendingLink {
    /// Index of the worker among all workers.
    seat: usize,
    /// The machine that was started again.
    to: MachineId,
    /// The moment from which on the worker gets the work item that connects it.
    due: Nanos,
    linking: Arc<Linking>,
}

/// Memory that one machine exports for the rings and logs that another writes, or for those of its own workers.
struct Segment {
    peer: MachineId,
    layout: SegmentLayout,
    memory: Memory,
}

/// A region and its replicas on machines whose memory is not lost, the primary first unless it is lost.
pub struct Copies {
    /// The region.
    pub region: RegionId,
    /// The machine that is its primary.
    pub primary: MachineId,
    /// The machines, with their memory.
    pub copies: Vec<(MachineId, Memory)>,
}

struct Parts {
    fabric: SimFabric,
    pace: Pace,
    seats: Vec<Seat>,
    machines: Vec<Machine>,
    /// Workers that are not connected yet to a machine that was started again.
    links: RefCell<Vec<PendingLink>>,
    /// Machines that are connected, and wait until the configuration does not have their earlier processes.
    connected: RefCell<BTreeMap<usize, restart::Begun>>,
    /// Number of interruptions that are nested now: each may run turns inside of the interrupted turn.
    depth: AtomicU32,
    limits: ClusterLimits,
    /// The store of the configuration.
    changes: SimStore,
    seed: u64,
    /// Indices of the workers whose turns are running, the innermost last.
    under_way: Mutex<Vec<usize>>,
    turns: AtomicU64,
    /// Number of turns since the last turn that did any work.
    idle_turns: AtomicU32,
}

/// A simulated cluster.
pub struct Cluster {
    parts: Rc<Parts>,
}

impl Cluster {
    /// Returns the fabric.
    pub fn fabric(&self) -> &SimFabric {
        &self.parts.fabric
    }

    /// Returns the virtual time.
    pub fn now(&self) -> Nanos {
        self.parts.fabric.now()
    }

    /// Returns the ids of all machines.
    pub fn machines(&self) -> impl Iterator<Item = MachineId> + '_ {
        self.parts.machines.iter().map(|machine| machine.id)
    }

    /// Returns the number of workers of all machines.
    pub fn workers(&self) -> usize {
        self.parts.seats.len()
    }

    /// Returns the number of turns that workers have taken.
    pub fn turns(&self) -> u64 {
        self.parts.turns.load(Ordering::Relaxed)
    }

    /// Calls `work` on a worker, as in a turn of that worker. Workers are numbered over all machines.
    ///
    /// # Panics
    /// If there is no such worker, or a turn of that worker is running.
    pub fn on<T>(&self, worker: usize, work: impl FnOnce(&mut Worker) -> T) -> T {
        let seat = &self.parts.seats[worker];
        let mut worker = seat
            .take()
            .expect("`Cluster::on` must not be called during a turn of the same worker");
        let turn = self.parts.fabric.begin_turn(seat.me);
        let done = work(&mut worker);
        self.parts.fabric.end_turn(turn);
        seat.put(worker);
        done
    }

    /// Calls `look` on a worker, outside of any turn: its stores are visible at once, and no interruption occurs.
    ///
    /// # Panics
    /// As [`Cluster::on`].
    pub fn inspect<T>(&self, worker: usize, look: impl FnOnce(&mut Worker) -> T) -> T {
        let mut guard = lock(&self.parts.seats[worker].worker);
        look(
            guard
                .as_mut()
                .expect("`Cluster::inspect` must not be called during a turn of the same worker"),
        )
    }

    /// Submits a work item to a worker, as a thread of its machine does. The worker runs it in one of its next turns, when its machine
    /// has joined the cluster.
    ///
    /// # Panics
    /// If there is no such worker, or too many items wait for it.
    pub fn submit(&self, worker: usize, item: impl FnOnce(&mut Worker) + Send + 'static) {
        self.parts.submit(worker, item);
    }

    /// Returns true if the machine of a worker still runs.
    pub fn is_running(&self, worker: usize) -> bool {
        self.parts.machines[self.parts.seats[worker].machine].is_running()
    }

    /// Returns true if every machine has stopped.
    pub fn has_stopped(&self) -> bool {
        !self.parts.machines.iter().any(Machine::is_running)
    }

    /// Returns the failures that stopped machines, a text for each such machine. A machine that could not join, because the
    /// configuration has changed meanwhile, can be started again.
    pub fn failures(&self) -> Vec<String> {
        let failure = |machine: &Machine| {
            if machine.control().may_join_again() || machine.control().was_evicted() {
                return None;
            }
            let why = machine.control().failure()?;
            Some(format!("machine {}: {why}", machine.id))
        };
        self.parts.machines.iter().filter_map(failure).collect()
    }

    /// Pauses a machine's processors for `nanos` nanoseconds. Its memory still serves remote operations.
    pub fn pause(&self, machine: usize, nanos: u64) {
        let machine = &self.parts.machines[machine];
        let until = self.now() + nanos;
        machine.paused_until.fetch_max(until.0, Ordering::Relaxed);
        let id = machine.id;
        self.parts.fabric.note(Event::Paused { machine: id, until });
    }

    /// Stops a machine's processors for good, at the next interruption of a turn of one of its workers. Its memory
    /// still serves remote operations, and locks that the turn held stay locked.
    pub fn stop_processors(&self, machine: usize) {
        self.parts.machines[machine]
            .stopping
            .store(true, Ordering::Relaxed);
    }

    /// Kills a machine's process, at the next interruption of a turn of one of its workers: its heap is gone, and its connections
    /// end. What its processors have stored, and what has landed in its memory, survives. Does nothing if it does not run.
    pub fn kill_process(&self, machine: usize) {
        let machine = &self.parts.machines[machine];
        if !machine.is_running() {
            return;
        }
        machine.ends.store(true, Ordering::Relaxed);
        machine.stopping.store(true, Ordering::Relaxed);
        self.wake(machine);
    }

    /// Ends the sleep of the workers of a machine: a worker that sleeps takes no turn.
    fn wake(&self, machine: &Machine) {
        let seats = self.parts.seats.iter();
        for seat in seats.filter(|seat| seat.me.machine == machine.id) {
            self.parts.fabric.unpark(seat.me.machine, seat.me.worker);
        }
    }

    /// Stops a machine's processors, at the next interruption of a turn of one of its workers, until the others have gone on without it,
    /// and lets them go on then in the middle of this turn. If the others do not go on without it, its process is killed.
    pub fn stall(&self, machine: usize) {
        let machine = &self.parts.machines[machine];
        if machine.is_running() {
            machine.stalls.store(true, Ordering::Relaxed);
            self.wake(machine);
        }
    }

    /// Returns whether a process is to be killed, and still runs.
    pub fn is_killing(&self) -> bool {
        let is_killing = |machine: &Machine| {
            machine.is_running()
                && (machine.ends.load(Ordering::Relaxed) || machine.stalls.load(Ordering::Relaxed))
        };
        self.parts.machines.iter().any(is_killing)
    }

    /// Removes a machine and its memory, as by a loss of power, without notice to its peers.
    pub fn kill(&self, machine: usize) {
        let machine = &self.parts.machines[machine];
        machine.gone.store(true, Ordering::Relaxed);
        machine.lost.store(true, Ordering::Relaxed);
        self.parts.fabric.kill(machine.id);
    }

    /// Returns true if the processors of all machines have stopped for good.
    pub fn processors_have_stopped(&self) -> bool {
        let stopped = |machine: &Machine| {
            !machine.is_running() || machine.paused_until.load(Ordering::Relaxed) == u64::MAX
        };
        self.parts.machines.iter().all(stopped)
    }

    /// Returns the machines whose memory is not lost.
    fn present(&self) -> impl Iterator<Item = &Machine> {
        self.parts
            .machines
            .iter()
            .filter(|machine| !machine.is_lost())
    }

    /// Returns the logs in the memory of machines that is not lost, with the machines that store them.
    pub fn kept_logs(&self) -> Vec<(MachineId, KeptLog)> {
        let mut logs = Vec::new();
        for machine in self.present() {
            let boot = self.parts.fabric.boot(machine.id);
            for segment in &machine.process.borrow().segments {
                let (layout, peer) = (segment.layout, segment.peer);
                let kept = layout.kept_logs(&segment.memory, peer, boot);
                logs.extend(kept.map(|log| (machine.id, log)));
            }
        }
        logs
    }

    /// Returns all regions that a machine knows whose memory is not lost, with their replicas.
    pub fn copies(&self) -> Vec<Copies> {
        // A machine that was lost knows an earlier configuration.
        let survives = self.parts.limits.survives;
        let known: BTreeMap<RegionId, Replicas> = self
            .present()
            .filter(|machine| !survives || machine.is_running())
            .flat_map(|machine| machine.store().map().all())
            .collect();
        let memory_on = |region: RegionId, id: MachineId| {
            let machine = self.present().find(|machine| machine.id == id);
            machine?.store().replica(region)
        };
        let copies = known.into_iter().map(|(region, replicas)| {
            let machines = replicas.all().iter();
            Copies {
                region,
                primary: replicas.primary(),
                copies: machines
                    .filter_map(|id| Some((*id, memory_on(region, *id)?)))
                    .collect(),
            }
        });
        copies.collect()
    }

    /// Requests that a machine without memory leave in order: see [`Worker::leave`].
    pub fn leave(&self, machine: usize) {
        self.parts.machines[machine].control().leave();
        let seats = self.parts.seats.iter();
        for seat in seats.filter(|seat| seat.machine == machine) {
            self.parts.fabric.unpark(seat.me.machine, seat.me.worker);
        }
    }

    /// Cuts the network between some machines and all others for a time, if leases end by time.
    pub fn part(&self, some: impl IntoIterator<Item = usize>, nanos: u64) {
        let some = some.into_iter().map(|one| self.parts.machines[one].id);
        self.parts.fabric.part(&some.collect::<Vec<_>>(), nanos);
    }

    /// Has no lease reach a machine for a time, if leases end by time.
    pub fn make_deaf(&self, machine: usize, nanos: u64) {
        self.parts
            .fabric
            .make_deaf(self.parts.machines[machine].id, nanos);
    }

    /// Describes what the machines that run know of the configuration.
    pub fn membership(&self) -> String {
        let newest = self.parts.changes.newest();
        let mut text = format!("\n  newest configuration: {}", newest.version);
        let machines = self.parts.machines.iter().enumerate();
        for (place, machine) in machines.filter(|(_, machine)| machine.is_running()) {
            let first = place * self.parts.limits.workers;
            let status = self.inspect(first, |worker| worker.members_status());
            let standing = self.parts.fabric.standing(machine.id);
            text += &format!("\n  {}: {standing:?}, {status:?}", machine.id);
        }
        text
    }

    /// Returns a region that two machines may serve as its primary at this moment, with both; `None` if there is none.
    pub fn two_primaries(&self) -> Option<(RegionId, [MachineId; 2])> {
        let mut primaries: BTreeMap<RegionId, MachineId> = BTreeMap::new();
        let machines = self.parts.machines.iter().enumerate();
        for (place, machine) in machines.filter(|(_, machine)| machine.is_running()) {
            let id = machine.id;
            let first = &self.parts.seats[place * self.parts.limits.workers];
            let worker = lock(&first.worker);
            let in_effect = worker.as_ref().and_then(|worker| worker.in_effect());
            let Some(in_effect) =
                in_effect.filter(|_| self.parts.fabric.standing(id) == Standing::Good)
            else {
                continue;
            };
            let served = in_effect.regions.iter().filter(|one| one.primary() == id);
            for region in served.map(|one| one.region) {
                if let Some(other) = primaries.insert(region, id) {
                    return Some((region, [other, id]));
                }
            }
        }
        None
    }

    /// Breaks the connections between two machines.
    pub fn break_connection(&self, one: usize, other: usize) {
        let id = |machine: usize| self.parts.machines[machine].id;
        self.parts.fabric.break_connection(id(one), id(other));
    }
}

impl Parts {
    fn submit(&self, worker: usize, item: impl FnOnce(&mut Worker) + Send + 'static) {
        let submitted = self.wake(worker, |inbox| inbox.submit(item));
        submitted.expect("only few work items wait for a simulated worker");
    }

    /// As [`Parts::submit`], for an item that connects the worker to a machine: it need not have joined the cluster.
    fn connect(&self, worker: usize, item: impl FnOnce(&mut Worker) + Send + 'static) {
        self.wake(worker, |inbox| inbox.connect(item));
    }

    /// Puts something into the inbox of a worker, and wakes it.
    fn wake<T>(&self, worker: usize, put: impl FnOnce(&Inbox) -> T) -> T {
        let seat = &self.seats[worker];
        let process = self.machines[seat.machine].process.borrow();
        let done = put(&process.inboxes[seat.me.worker.index()]);
        self.fabric.unpark(seat.me.machine, seat.me.worker);
        done
    }
}

impl Machine {
    fn control(&self) -> Arc<Control> {
        Arc::clone(&self.process.borrow().control)
    }

    fn store(&self) -> Arc<Store> {
        Arc::clone(&self.process.borrow().store)
    }

    fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    fn is_running(&self) -> bool {
        !self.gone.load(Ordering::Relaxed) && !self.process.borrow().control.is_stopping()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .expect("cannot lock the simulated cluster: an earlier panic poisoned the lock")
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Breaks a reference cycle: the fabric's callback owns the parts, and the parts own the fabric.
        self.parts.fabric.set_interruption(|| {});
    }
}
