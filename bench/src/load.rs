//! Loads tables: each worker inserts its part of the pairs, by a closed loop.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use farm_core::worker::{Cont, Worker};
use farm_kv::shard::Changed;
use farm_kv::{Change, Key, KvError, TableId};

use crate::closed_loop::{self, Clients, ClosedLoop, Done, Ran};
use crate::recorder::Outcome;

/// The name of a pair in messages: a row, or the number of a record.
pub trait Name: Copy + fmt::Display + Send + 'static {}

impl<N: Copy + fmt::Display + Send + 'static> Name for N {}

/// The pairs that a worker inserts.
pub struct Pairs<N> {
    /// What a pair is, in messages.
    pub what: &'static str,
    /// Whether a pair may exist already; then its value is replaced.
    pub may_exist: bool,
    /// Returns the name, the table and the key of the next pair, or `None` after the last one. Writes the value of the
    /// pair to the vector, which contains the value of the previous pair.
    pub next: Next<N>,
}

/// The function that returns the next pair.
pub type Next<N> = Box<dyn FnMut(&mut Worker, &mut Vec<u8>) -> Option<(N, TableId, Key)> + Send>;

struct Loader<N> {
    pairs: Pairs<N>,
    /// Value of the pair that was drawn last.
    value: Vec<u8>,
    progress: Arc<AtomicU64>,
    done: Done,
}

/// Inserts pairs, `in_flight` at a time, and counts them in `progress`. Calls `done` on the worker's thread when all
/// are inserted, or after the first failure. Each inserted pair is an executed operation of the result.
pub fn load<N: Name>(
    worker: &mut Worker,
    pairs: Pairs<N>,
    in_flight: usize,
    progress: Arc<AtomicU64>,
    done: Done,
) {
    let loader = Loader {
        pairs,
        value: Vec::new(),
        progress,
        done,
    };
    closed_loop::start_untimed(worker, loader, in_flight.max(1), None);
}

impl<N: Name> Clients for Loader<N> {
    type Operation = (N, TableId, Key);
    type Costs = ();

    fn draw(&mut self, worker: &mut Worker) -> Option<Self::Operation> {
        (self.pairs.next)(worker, &mut self.value)
    }

    fn begin(own: &mut ClosedLoop<Self>, worker: &mut Worker, seat: usize) {
        let (_, table, key) = *own.operation(seat);
        let value = &own.clients.value;
        let change = match own.clients.pairs.may_exist {
            true => Change::Upsert(value),
            false => Change::Insert(value),
        };
        let done = Cont::new(inserted::<N>, seat);
        if let Err(error) = farm_kv::change(worker, table, &key, change, done) {
            own.refused(seat, &error.to_string());
        }
    }

    fn end(self, _: &mut Worker, ran: Ran) {
        (self.done)(ran);
    }
}

impl<N: Name> ClosedLoop<Loader<N>> {
    #[cold]
    fn refused(&mut self, seat: usize, why: &str) {
        let (name, ..) = *self.operation(seat);
        let what = self.clients.pairs.what;
        self.stop(seat, format!("the {what} {name} cannot be inserted: {why}"));
    }
}

fn inserted<N: Name>(worker: &mut Worker, seat: usize, outcome: Result<Changed, KvError>) {
    closed_loop::resume(
        worker,
        |own: &mut ClosedLoop<Loader<N>>, worker| match outcome {
            Ok(changed) if own.clients.pairs.may_exist || changed == Changed::Inserted => {
                own.clients.progress.fetch_add(1, Ordering::Relaxed);
                own.finish(worker, seat, 0, Outcome::Committed);
            }
            Ok(_) => own.refused(seat, "it exists already"),
            Err(error) => own.refused(seat, &error.to_string()),
        },
    );
}
