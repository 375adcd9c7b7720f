//! Workloads that know what a correct platform answers: each keeps an invariant, writes values that
//! describe themselves, and records a history that checkers judge.
//!
//! The simulator runs them under faults, and `farm workload` on real machines.
//!
//! | file | contents |
//! |---|---|
//! | `spec` | the parameters of a workload |
//! | `value` | payloads that describe themselves |
//! | `state`, `doing`, `running`, `notes` | a worker's state, its clients', and that of transactions |
//! | `message` | the messages between workers |
//! | `clients` | the beginning and the end of clients, and of what each does |
//! | `client` | the clients' loop: ship a transaction, read without locks, use the table |
//! | `objects` | making the objects, and learning where all of them are |
//! | `shipped` | the handler of transactions that are shipped |
//! | `execute` | running transactions, in place or by continuations |
//! | `retried` | transactions that the platform's helper retries until they commit |
//! | `script` | what transactions do, a step at a time |
//! | `table` | operations on a hashtable |
//! | `churn`, `named`, `follow` | objects that come and go, and reads by pointers to them |
//! | `rows` | SmallBank and TATP |
//! | `finish`, `finished` | what must hold at the end |
//! | `log` | records of a worker, to be merged into a [`history`](crate::history) |

mod churn;
mod client;
mod clients;
mod doing;
mod execute;
mod finish;
mod finished;
mod follow;
mod log;
mod message;
mod named;
mod notes;
mod objects;
mod retried;
mod rows;
mod running;
mod script;
mod shipped;
mod spec;
mod state;
mod table;
pub mod value;

use farm_core::ids::Address;
use farm_core::messaging::Request;
use farm_core::worker::Worker;

pub use finished::Finished;
pub use log::Log;
pub use spec::{Kind, NoKind, Spec};
pub use state::{Done, Progress};

use message::{LOADED, RUN, WHERE};
use state::{Work, work};

/// Registers the workload's messages on a worker, on top of [`farm_kv::attach`].
pub fn attach(worker: &mut Worker) {
    worker.put_layer(Box::<Work>::default());
    worker.register(WHERE, answer);
    worker.register(RUN, shipped::handle);
}

/// Starts the workload on a worker; every worker of the cluster has to. `done` is called when the
/// clients of this one have ended; it serves the others' transactions on.
///
/// # Panics
/// If the workload is not attached.
pub fn start(worker: &mut Worker, spec: Spec, done: Done) {
    let machines = worker.machines().len();
    let kind = spec.kind;
    let work = work(worker);
    *work = Work {
        addresses: vec![Address::NULL; spec.objects(machines)],
        missing: spec.objects(machines),
        clients_left: spec.clients,
        spec,
        next: Some(client::next),
        done: Some(done),
        ..Work::default()
    };
    retried::configure(worker);
    match kind {
        Kind::Table => table::set_up(worker),
        kind if kind.has_rows() => rows::set_up(worker),
        _ => objects::set_up(worker),
    }
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
    clients::note_unanswered(worker);
    std::mem::take(&mut work(worker).log)
}

/// Looks at what this worker holds when nothing is under way any more.
///
/// # Errors
/// What is not as it must be.
pub fn finish(worker: &mut Worker) -> Result<Finished, String> {
    finish::finish(worker)
}

/// Answers where objects are, or whether rows are loaded.
fn answer(worker: &mut Worker, request: Request, body: &[u8]) {
    if body == LOADED {
        rows::answer(worker, request);
    } else {
        objects::answer(worker, request, body);
    }
}
