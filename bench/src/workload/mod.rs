//! Workloads that know what a correct platform answers: each keeps an invariant, writes values that
//! describe themselves, and records a history that checkers judge.
//!
//! The simulator runs them under faults, and `farm workload` on real machines.
//!
//! | file | what |
//! |---|---|
//! | `spec` | what a workload is of |
//! | `value` | payloads that describe themselves |
//! | `objects` | making the objects, and learning where all of them are |
//! | `client` | closed loops: ship a transaction, read without locks, use the table |
//! | `execute` | running transactions, in place or by continuations |
//! | `retried` | those that the platform's helper tries until they commit |
//! | `script` | what they do, a step at a time |
//! | `table` | operations on a hashtable |
//! | `churn` | objects that come and go |
//! | `rows` | SmallBank and TATP |
//! | `finish` | what must hold at the end |
//! | `log`, [`history`] | what was recorded, and what it means |

mod churn;
mod client;
mod execute;
mod finish;
pub mod history;
mod log;
mod objects;
mod retried;
mod rows;
mod script;
mod spec;
mod table;
pub mod value;

use farm_core::ids::Address;
use farm_core::messaging::MessageId;
use farm_core::time::Clock;
use farm_core::worker::Worker;
use farm_kv::TableId;

pub use finish::Finished;
pub use history::History;
pub use log::Log;
pub use spec::{Kind, NoKind, Spec};

use client::Client;

/// Asks for the addresses of some objects.
const WHERE: MessageId = MessageId(MessageId::APPLICATION);
/// Runs a transaction.
const RUN: MessageId = MessageId(MessageId::APPLICATION + 1);

/// Called when the clients of a worker have ended.
pub type Done = Box<dyn FnOnce(&mut Worker) + Send>;

/// How far a worker's clients are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Operations begun.
    pub begun: u64,
    /// Operations ended.
    pub ended: u64,
}

/// The workload on one worker.
#[derive(Default)]
struct Work {
    spec: Spec,
    /// Of every object; null until it is known.
    addresses: Vec<Address>,
    missing: usize,
    /// Objects of this worker that are being made, with their numbers.
    making: slab::Slab<(usize, Address)>,
    /// This worker's objects could not be made, and will not be.
    gave_up: bool,
    table: Option<TableId>,
    rows: Option<rows::Rows>,
    clients: Vec<Client>,
    /// Pointers that churn's clients follow later.
    kept: Vec<churn::Named>,
    /// Clients that have not ended.
    clients_left: usize,
    /// Transactions that run here by continuations; out while one is gone on with.
    running: slab::Slab<Option<execute::Running>>,
    /// Transactions of this machine's objects whose commits are under way.
    committing: slab::Slab<execute::Committing>,
    /// Those that run by continuations and are tried until they commit.
    retried: slab::Slab<retried::Retried>,
    progress: Progress,
    done: Option<Done>,
    log: Log,
}

/// Registers the workload's messages on a worker, on top of [`farm_kv::attach`].
pub fn attach(worker: &mut Worker) {
    worker.put_layer(Box::<Work>::default());
    worker.register(WHERE, objects::answer);
    worker.register(RUN, execute::handle);
}

/// Starts the workload on a worker; every worker of the cluster has to. `done` is called when the
/// clients of this one have ended; it serves the others' transactions on.
///
/// # Panics
/// If the workload is not attached.
pub fn start(worker: &mut Worker, spec: Spec, done: Done) {
    let machines = worker.machines().len();
    let work = work(worker);
    *work = Work {
        addresses: vec![Address::NULL; spec.objects(machines)],
        missing: spec.objects(machines),
        clients_left: spec.clients,
        spec,
        done: Some(done),
        ..Work::default()
    };
    retried::configure(worker);
    objects::set_up(worker);
}

/// How far this worker's clients are.
pub fn progress(worker: &mut Worker) -> Progress {
    work(worker).progress
}

/// Whether this worker's clients have ended.
pub fn is_done(worker: &mut Worker) -> bool {
    let work = work(worker);
    work.clients_left == 0 && work.done.is_none()
}

/// Takes what this worker recorded.
pub fn take_log(worker: &mut Worker) -> Log {
    client::note_unanswered(worker);
    std::mem::take(&mut work(worker).log)
}

/// Looks at what this worker holds when nothing is under way any more.
///
/// # Errors
/// What is not as it must be.
pub fn finish(worker: &mut Worker) -> Result<Finished, String> {
    finish::finish(worker)
}

fn work(worker: &mut Worker) -> &mut Work {
    worker
        .layer()
        .expect("workload::attach was called for this worker")
}

/// The moment it is, of a clock that all machines share: that of the simulation, in which no two moments
/// are the same, or the host's.
fn moment(worker: &Worker) -> u64 {
    match worker.clock() {
        clock @ Clock::Virtual(_) => clock.tick(),
        Clock::Host => {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
            now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
        }
    }
}

/// This worker's place among all workers of the cluster, and how many machines come before its own.
fn place(worker: &Worker) -> (usize, usize) {
    let me = worker.me();
    let before = worker
        .machines()
        .iter()
        .take_while(|machine| machine.0 < me.machine);
    let (machines, workers) = before.fold((0, 0), |(machines, workers), machine| {
        (machines + 1, workers + machine.1)
    });
    (workers + me.worker.index(), machines)
}
