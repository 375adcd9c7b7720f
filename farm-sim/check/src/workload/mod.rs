//! Judged workloads: each maintains an invariant, writes values that describe themselves, and records a history that
//! checkers judge.
//!
//! The simulator runs the workloads under faults, and `farm workload` runs them on real machines.
//!
//! | file | contents |
//! |---|---|
//! | `spec` | the parameters of a workload |
//! | `value` | payloads that describe themselves |
//! | `state`, `doing`, `running`, `notes` | the state of a worker, of its clients, and of transactions |
//! | `message` | the messages between workers |
//! | `clients` | the beginning and the end of clients and of their operations |
//! | `client` | the clients' loop: ship a transaction, read without locks, use the table |
//! | `objects` | creating a worker's objects, and requesting the addresses of all other objects |
//! | `shipped` | the handler of transactions that are shipped |
//! | `execute` | running transactions, in place or by continuations |
//! | `retried` | transactions that [`farm_txn::retry`] runs until they commit |
//! | `script` | the steps of transactions |
//! | `table` | operations on a hashtable |
//! | `churn`, `named`, `follow` | objects that are allocated and freed, and reads by pointers to them |
//! | `rows` | SmallBank and TATP |
//! | `graph` | operations on a graph |
//! | `finish`, `final_state` | checks of the final state |
//! | `log`, `persist` | the records of a worker, which are merged into a [`history`](crate::history), also in a file |

mod attempt;
mod churn;
mod client;
mod clients;
mod doing;
mod execute;
mod final_state;
mod finish;
mod follow;
mod graph;
mod log;
mod message;
mod named;
mod notes;
mod objects;
mod persist;
mod retried;
mod rows;
mod running;
mod script;
mod shipped;
mod spec;
mod state;
mod table;
mod task;
pub mod value;

use farm_core::ids::Address;
use farm_core::messaging::Request;
use farm_core::worker::Worker;

pub use final_state::FinalState;
pub use graph::AuditedNode;
pub use log::Log;
pub use spec::{GraphShape, Kind, NoKind, Spec};
pub use state::{Done, Progress};

use message::{ASK_FINISHED, ASK_LOADED, RUN, WHERE};
use state::{Work, owners, work};

/// Registers the workload's messages on a worker, on top of [`farm_kv::attach`] and [`farm_graph::attach`].
pub fn attach(worker: &mut Worker) {
    worker.put_layer(Box::<Work>::default());
    worker.register(WHERE, answer);
    worker.register(RUN, shipped::handle);
}

/// Starts the workload on a worker. It must be started on every worker of the cluster. Calls `done` when this worker's
/// clients have ended; the worker then continues to run transactions for other workers' clients.
///
/// # Panics
/// If [`attach`] was not called for this worker.
pub fn start(worker: &mut Worker, spec: Spec, done: Done) {
    start_again(worker, spec, (0, &[]), done);
}

/// As [`start`], on a worker of a machine that has left or was lost and was started again, for the `starts`-th time. The other
/// workers continue to run the workload; if there are none, `known` are the [addresses] of its objects.
///
/// # Panics
/// If [`attach`] was not called for this worker.
pub fn start_again(
    worker: &mut Worker,
    spec: Spec,
    (starts, known): (u32, &[Address]),
    done: Done,
) {
    let machines = owners(worker).len();
    let kind = spec.kind;
    let work = work(worker);
    *work = Work {
        starts,
        addresses: vec![Address::NULL; spec.objects(machines)],
        missing: spec.objects(machines),
        clients_left: spec.clients,
        spec,
        next: Some(client::next),
        done: Some(done),
        // Other workers may have shipped transactions to it.
        ..std::mem::take(work)
    };
    retried::configure(worker);
    match kind {
        Kind::Table => table::set_up(worker),
        Kind::Graph => graph::set_up(worker),
        kind if kind.has_rows() => rows::set_up(worker),
        _ if known.is_empty() => objects::set_up(worker),
        _ => objects::set_up_again(worker, known),
    }
}

/// Writes what is recorded on this worker to a new file, too ([`Log::from_file`]), so that its process can be killed.
/// To be called before the workload is started.
///
/// # Errors
/// If the file exists, or cannot be created.
pub fn keep_log_in(worker: &mut Worker, path: &std::path::Path) -> std::io::Result<()> {
    work(worker).log.keep_in(path)
}

/// Has the clients of this worker end when their operations have ended.
pub fn enough(worker: &mut Worker) {
    for client in &mut work(worker).clients {
        client.left = 0;
    }
}

/// Returns true if the workload was started on this worker.
pub fn is_started(worker: &mut Worker) -> bool {
    work(worker).next.is_some()
}

/// Returns true if the workload is set up on this worker, so that its clients have begun.
pub fn has_begun(worker: &mut Worker) -> bool {
    !work(worker).clients.is_empty()
}

/// Returns the addresses of the workload's objects; none if this worker does not know all of them.
pub fn addresses(worker: &mut Worker) -> Vec<Address> {
    let work = work(worker);
    match work.missing {
        0 => work.addresses.clone(),
        _ => Vec::new(),
    }
}

/// Returns the progress of this worker's clients.
pub fn progress(worker: &mut Worker) -> Progress {
    work(worker).progress
}

/// Returns true if this worker's clients have ended.
pub fn is_done(worker: &mut Worker) -> bool {
    let work = work(worker);
    work.clients_left == 0 && work.done.is_none()
}

/// Takes the log of this worker, including its unfinished operations.
pub fn take_log(worker: &mut Worker) -> Log {
    clients::note_unanswered(worker);
    graph::note_unanswered(worker);
    std::mem::take(&mut work(worker).log)
}

/// Checks the shards that this worker owns, of the tables of the workload, when no operation is under way.
///
/// # Errors
/// The first violation.
pub fn check_tables(worker: &mut Worker) -> Result<(), String> {
    let work = work(worker);
    let rows = work.rows.iter().flat_map(|rows| rows.tables.clone());
    let tables: Vec<_> = work.table.into_iter().chain(rows).collect();
    let check = |table| farm_kv::ops::check(worker, table).map(drop);
    tables.into_iter().try_for_each(check)
}

/// Returns a description of operations on a graph that this worker has not ended; `None` if there are none.
pub fn left_over(worker: &mut Worker) -> Option<String> {
    graph::left_over(worker)
}

/// Checks and returns this worker's part of the final state. To be called when no operation is under way.
///
/// # Errors
/// The first violation.
pub fn finish(worker: &mut Worker) -> Result<FinalState, String> {
    finish::finish(worker)
}

/// Replies with the addresses of objects, whether rows are loaded, or whether clients have ended.
fn answer(worker: &mut Worker, request: Request, body: &[u8]) {
    if body == ASK_LOADED {
        rows::answer(worker, request);
    } else if body == ASK_FINISHED {
        graph::answer(worker, request);
    } else {
        objects::answer(worker, request, body);
    }
}
