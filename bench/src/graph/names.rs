//! The names of nodes with consecutive ids: their fat pointers, which a client keeps to read nodes without a lookup.

use std::sync::Arc;

use farm_core::object::FatPointer;
use farm_core::worker::{Cont, Worker};
use farm_graph::{GraphError, ids};

use crate::closed_loop::{self, Clients, ClosedLoop, Ran};
use crate::recorder::Outcome;

/// The names of the nodes with consecutive ids, shared by the workers of a process.
#[derive(Clone, Debug)]
pub struct Names {
    first: u64,
    all: Arc<[FatPointer]>,
}

impl Names {
    /// Creates the names of the nodes from id `first` on.
    pub fn new(first: u64, all: Vec<FatPointer>) -> Self {
        let all = all.into();
        Self { first, all }
    }

    /// Returns the name of a node.
    ///
    /// # Panics
    /// If the id is not one of the consecutive ids.
    #[inline]
    pub fn get(&self, id: u64) -> FatPointer {
        self.all[(id - self.first) as usize]
    }

    /// Returns the number of nodes.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns whether there is no node.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}

/// The function that receives the names of the ids, in their order, on the worker's thread.
pub type Done = Box<dyn FnOnce(anyhow::Result<Vec<FatPointer>>) + Send>;

struct Finder {
    /// Returns an id by its position.
    id: IdOf,
    next: usize,
    found: Vec<Option<FatPointer>>,
    done: Done,
}

type Driver = ClosedLoop<Finder>;

/// A function that returns an id by its position.
pub type IdOf = Box<dyn Fn(usize) -> u64 + Send>;

/// Looks up the names of `count` ids, `in_flight` at a time. Calls `done` at the end; with an error if an id has no node.
pub fn find(worker: &mut Worker, (count, id): (usize, IdOf), in_flight: usize, done: Done) {
    let finder = Finder {
        id,
        next: 0,
        found: vec![None; count],
        done,
    };
    closed_loop::start_untimed(worker, finder, in_flight.max(1), None);
}

impl Clients for Finder {
    type Operation = usize;
    type Costs = ();

    fn draw(&mut self, _: &mut Worker) -> Option<usize> {
        let at = self.next;
        self.next += 1;
        (at < self.found.len()).then_some(at)
    }

    fn begin(own: &mut Driver, worker: &mut Worker, seat: usize) {
        let at = *own.operation(seat);
        let id = (own.clients.id)(at);
        ids::find(worker, id, Cont::new(found, seat));
    }

    fn end(self, _: &mut Worker, ran: Ran) {
        let found = ran.unless_failed().and_then(|_| {
            let all = self.found.iter().copied().collect();
            let missing = || anyhow::anyhow!("some ids were not looked up: the worker is stopping");
            Option::ok_or_else(all, missing)
        });
        (self.done)(found);
    }
}

fn found(worker: &mut Worker, seat: usize, found: Result<Option<FatPointer>, GraphError>) {
    closed_loop::resume(worker, |own: &mut Driver, worker| {
        let at = *own.operation(seat);
        let id = (own.clients.id)(at);
        match found {
            Ok(Some(node)) => {
                own.clients.found[at] = Some(node);
                own.finish(worker, seat, 0, Outcome::Committed);
            }
            Ok(None) => own.stop(
                seat,
                format!("no node has the id {id}: load the nodes first"),
            ),
            Err(error) => own.stop(seat, format!("cannot look up the node {id}: {error}")),
        }
    });
}
