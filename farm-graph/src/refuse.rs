//! Ends operations that cannot be begun.

use farm_core::worker::{Cont, Worker};

use crate::GraphError;
use crate::pending::AnyCont;
use crate::state::graph;

/// Calls the continuation of an operation with an error, from the event loop.
pub(crate) fn refuse(worker: &mut Worker, cont: AnyCont, error: GraphError) {
    let key = graph(worker).refused.insert((cont, error));
    worker.defer(Cont::new(report, key));
}

fn report(worker: &mut Worker, key: usize, (): ()) {
    let (cont, error) = graph(worker).refused.remove(key);
    cont.resume(worker, Err(error));
}
