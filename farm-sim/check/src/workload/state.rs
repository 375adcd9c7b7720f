//! The workload's state on one worker.

use std::collections::BTreeSet;

use farm_core::ids::{Address, MachineId, WorkerId};
use farm_core::time::Clock;
use farm_core::worker::Worker;
use farm_kv::TableId;

use farm_bench::oltp::{RowBytes, RowName, Stream};

use super::doing::Client;
use super::log::Log;
use super::named::Named;
use super::running::{Committing, Retried, Running};
use super::spec::Spec;
use crate::history::ObjectId;

/// Called when the clients of a worker have ended.
pub type Done = Box<dyn FnOnce(&mut Worker) + Send>;

/// The progress of a worker's clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Operations begun.
    pub begun: u64,
    /// Operations ended.
    pub ended: u64,
}

/// Lets a client begin its next operation, or end.
pub(super) type Next = fn(&mut Worker, usize);

/// The workload on one worker.
#[derive(Default)]
pub(super) struct Work {
    pub(super) spec: Spec,
    /// Address of each object; null until it is known.
    pub(super) addresses: Vec<Address>,
    pub(super) missing: usize,
    /// Objects of this worker that are being created: their numbers and addresses.
    pub(super) making: slab::Slab<(usize, Address)>,
    /// Whether the set-up of the workload failed on this worker. Never reset.
    pub(super) gave_up: bool,
    pub(super) table: Option<TableId>,
    pub(super) rows: Option<Rows>,
    pub(super) clients: Vec<Client>,
    /// Pointers that churn's clients follow later.
    pub(super) kept: Vec<Named>,
    /// Clients that have not ended.
    pub(super) clients_left: usize,
    /// The clients' loop; set while the workload runs.
    pub(super) next: Option<Next>,
    /// Transactions that this worker runs by continuations. The inner value is `None` while a step runs.
    pub(super) running: slab::Slab<Option<Running>>,
    /// Transactions on this machine's objects whose commits have not ended.
    pub(super) committing: slab::Slab<Committing>,
    /// The transactions by continuations that are retried until they commit.
    pub(super) retried: slab::Slab<Retried>,
    pub(super) progress: Progress,
    /// Number of earlier starts of the machine.
    pub(super) starts: u32,
    pub(super) done: Option<Done>,
    pub(super) log: Log,
}

/// The tables of a workload over rows, on one worker.
pub(super) struct Rows {
    pub(super) stream: Stream,
    pub(super) tables: Vec<TableId>,
    /// Rows that this worker still has to load, the next one last.
    pub(super) to_load: Vec<(RowName, RowBytes)>,
    /// The moment at which the load of the next row of `to_load` began.
    pub(super) begun: u64,
    pub(super) loaded: bool,
    /// Number of other workers that have not replied that their rows are loaded.
    pub(super) missing: usize,
    /// The objects of rows that were loaded and are never removed.
    pub(super) stay: BTreeSet<ObjectId>,
}

/// Returns the workload of a worker.
pub(super) fn work(worker: &mut Worker) -> &mut Work {
    worker
        .layer()
        .expect("workload::attach must be called for a worker before it runs a workload")
}

/// Returns the rows of a worker.
pub(super) fn rows(worker: &mut Worker) -> &mut Rows {
    let rows = work(worker).rows.as_mut();
    rows.expect("only the workloads smallbank and tatp begin transactions over rows")
}

/// Returns the current moment of a clock that all machines share: that of the simulation, in which no two
/// moments are equal, or the host's.
pub(super) fn moment(worker: &Worker) -> u64 {
    match worker.clock() {
        clock @ Clock::Virtual(_) => clock.tick(),
        Clock::Host => {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
            now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
        }
    }
}

/// Returns this worker's position among all workers of the cluster.
pub(super) fn place(worker: &Worker) -> usize {
    let me = worker.me();
    let machines = worker.machines().iter();
    let before = machines.take_while(|machine| machine.0 < me.machine);
    before.map(|machine| machine.1).sum::<usize>() + me.worker.index()
}

/// Returns the machines that store objects, with their numbers of workers.
pub(super) fn owners(worker: &Worker) -> Vec<(MachineId, usize)> {
    owning(worker).collect()
}

fn owning(worker: &Worker) -> impl Iterator<Item = (MachineId, usize)> + '_ {
    let placement = worker.store().placement();
    let machines = worker.machines().iter().copied();
    machines.filter(|(machine, _)| placement.contains(*machine))
}

/// Returns the position of this worker's machine among those that store objects; `None` if it stores none.
pub(super) fn owner_place(worker: &Worker) -> Option<usize> {
    let me = worker.me().machine;
    owning(worker).position(|(machine, _)| machine == me)
}

/// Returns the number of the first client of this worker. The clients of each start of a machine have numbers of their own.
pub(super) fn first_client(worker: &mut Worker) -> usize {
    let place = place(worker);
    let total: usize = worker.machines().iter().map(|machine| machine.1).sum();
    let work = work(worker);
    (work.starts as usize * total + place) * work.spec.clients
}

/// Returns the number of workers of a machine.
pub(super) fn workers(worker: &Worker, machine: usize) -> usize {
    worker.machines()[machine].1
}

/// Returns the id of a worker.
pub(super) fn id(index: usize) -> WorkerId {
    WorkerId::new(index as u16).expect("the index is that of a worker of the cluster")
}
