//! Writes the edges that are loaded, each with its two objects, on the machine of the worker.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use farm_core::worker::Worker;
use farm_graph::ids::Place;
use farm_graph::{GraphError, tasks};
use farm_txn::{Handle, Transaction, TxError};

use super::edges::{Owner, value};
use super::loaded::Loaded;
use super::store::{object, put_edge};
use crate::closed_loop::{self, Clients, ClosedLoop, Ran};
use crate::recorder::Outcome;

/// What a worker loads.
pub struct Load {
    /// All edges.
    pub loaded: Arc<Loaded>,
    /// The numbers of the worker's edges.
    pub numbers: Range<u64>,
    /// Number of transactions in flight.
    pub in_flight: usize,
    /// Counts the edges that were written.
    pub progress: Arc<AtomicU64>,
}

/// The function that receives the result, on the worker's thread.
pub type Done = Box<dyn FnOnce(anyhow::Result<Ran>) + Send>;

struct Loader {
    load: Load,
    done: Done,
}

type Driver = ClosedLoop<Loader>;

/// Writes the edges. Calls `done` at the end.
pub fn run(worker: &mut Worker, load: Load, done: Done) {
    let in_flight = load.in_flight;
    closed_loop::start_untimed(worker, Loader { load, done }, in_flight, None);
}

impl Clients for Loader {
    type Operation = u64;
    type Costs = ();

    fn draw(&mut self, _: &mut Worker) -> Option<u64> {
        self.load.numbers.next()
    }

    fn begin(own: &mut Driver, worker: &mut Worker, seat: usize) {
        let number = *own.operation(seat);
        let loaded = Arc::clone(&own.clients.load.loaded);
        let task = async move |farm: Handle| {
            let add = async |tx: Transaction<'_>| add(tx, &loaded, number).await;
            farm.transact(add).await
        };
        closed_loop::spawn(worker, task, move |own: &mut Driver, worker, added| {
            own.added(worker, seat, added);
        });
    }

    fn end(self, _: &mut Worker, ran: Ran) {
        (self.done)(ran.unless_failed());
    }
}

impl Driver {
    fn added(&mut self, worker: &mut Worker, seat: usize, added: Result<(), TxError>) {
        let number = *self.operation(seat);
        match added {
            Ok(()) => {
                let progress = &self.clients.load.progress;
                progress.fetch_add(1, Ordering::Relaxed);
                self.finish(worker, seat, 0, Outcome::Committed);
            }
            Err(error) => {
                let error = GraphError::from(error);
                self.stop(seat, format!("cannot add edge number {number}: {error}"));
            }
        }
    }
}

/// Adds an edge and its objects.
async fn add(tx: Transaction<'_>, loaded: &Loaded, number: u64) -> Result<(), TxError> {
    let (edge, time) = (loaded.get(number), loaded.time(number));
    let mut near = None;
    let mut nodes = [None; 2];
    for (node, id) in nodes.iter_mut().zip([edge.id1, edge.id2]) {
        let data = value(Owner::Object(id), time);
        let place = Place { id: Some(id), near };
        let new = tasks::obj_add(tx, place, object(time, &data)).await?;
        near = Some(new.node.address);
        *node = Some(new.node);
    }
    let [Some(first), target] = nodes else {
        unreachable!("both objects were added");
    };
    put_edge(tx, first, edge, target, time).await
}
