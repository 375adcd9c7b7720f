//! Operations on a graph, by all workers: alone, in transactions by continuations, and in transactions of tasks. They are
//! recorded in the [history](crate::history::graph).
//!
//! Read in this order: `draw` (the choice of operations) → `running` (from the request to the record) → `calls`,
//! `several` and `results` (the functions of the graph store) → `values` (nodes and associations that describe
//! themselves) → `set_up`, `closing` and `audit` (the beginning and the end).

mod audit;
mod calls;
mod closing;
mod draw;
mod results;
mod running;
mod set_up;
mod several;
mod state;
mod values;

use farm_core::worker::Worker;

pub use audit::AuditedNode;
pub(super) use audit::{check, finish};
pub(super) use closing::{answer, close};
pub(super) use set_up::set_up;

use state::GraphWork;

/// Begins the next operations of a client.
pub(super) fn begin(worker: &mut Worker, client: usize) {
    if !closing::begin_last(worker, client) {
        let (via, steps) = draw::draw(worker, client);
        running::begin(worker, client, via, steps);
    }
}

/// Records the operations that are under way and will get no result.
pub(super) fn note_unanswered(worker: &mut Worker) {
    if worker.layer::<GraphWork>().is_some() {
        running::note_unanswered(worker);
    }
}

/// Returns a description of operations that this worker has not ended, once the graph is open.
pub(super) fn left_over(worker: &mut Worker) -> Option<String> {
    let is_open = worker
        .layer::<GraphWork>()
        .is_some_and(|state| state.is_open);
    is_open.then(|| farm_graph::left_over(worker)).flatten()
}
