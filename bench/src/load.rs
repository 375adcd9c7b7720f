//! Loads tables: each worker inserts its part of the pairs, by a closed loop.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use farm_core::worker::{Cont, Worker};
use farm_kv::shard::Changed;
use farm_kv::{Change, Key, KvError, TableId};

use crate::closed_loop::{self, Clients, ClosedLoop, Done, Ran};
use crate::recorder::Outcome;

/// The pairs that a worker inserts.
pub trait Pairs: Send + 'static {
    /// Name of a pair in messages.
    type Name: Copy + fmt::Display + Send;
    /// What the pairs are, in messages: `row`, for example.
    const WHAT: &'static str;
    /// Whether pairs may exist already; then their values are replaced.
    const MAY_EXIST: bool = false;

    /// Returns the name, the table and the key of the next pair, and writes its value to `value`, which contains the
    /// value of the previous pair. Returns `None` if there are no more pairs.
    fn next(
        &mut self,
        worker: &mut Worker,
        value: &mut Vec<u8>,
    ) -> Option<(Self::Name, TableId, Key)>;
}

struct Loader<P> {
    pairs: P,
    /// Value of the pair that was drawn last.
    value: Vec<u8>,
    progress: Arc<AtomicU64>,
    done: Done,
}

/// Inserts pairs, `in_flight` at a time, and counts them in `progress`. Calls `done` on the worker's thread when all are
/// inserted, or after the first failure. Each inserted pair is an executed operation of the result.
pub fn load<P: Pairs>(
    worker: &mut Worker,
    pairs: P,
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

impl<P: Pairs> Clients for Loader<P> {
    type Operation = (P::Name, TableId, Key);
    type Costs = ();

    fn draw(&mut self, worker: &mut Worker) -> Option<Self::Operation> {
        self.pairs.next(worker, &mut self.value)
    }

    fn begin(own: &mut ClosedLoop<Self>, worker: &mut Worker, seat: usize) {
        let (_, table, key) = *own.operation(seat);
        let value = &own.clients.value;
        let change = match P::MAY_EXIST {
            true => Change::Upsert(value),
            false => Change::Insert(value),
        };
        let done = Cont::new(inserted::<P>, seat);
        if let Err(error) = farm_kv::change(worker, table, &key, change, done) {
            own.refused(seat, &error.to_string());
        }
    }

    fn end(self, _: &mut Worker, ran: Ran) {
        (self.done)(ran);
    }
}

impl<P: Pairs> ClosedLoop<Loader<P>> {
    #[cold]
    fn refused(&mut self, seat: usize, why: &str) {
        let (name, ..) = self.operation(seat);
        let why = format!("the {} {name} cannot be inserted: {why}", P::WHAT);
        self.stop(seat, why);
    }
}

fn inserted<P: Pairs>(worker: &mut Worker, seat: usize, outcome: Result<Changed, KvError>) {
    closed_loop::resume(
        worker,
        |own: &mut ClosedLoop<Loader<P>>, worker| match outcome {
            Ok(changed) if P::MAY_EXIST || changed == Changed::Inserted => {
                own.clients.progress.fetch_add(1, Ordering::Relaxed);
                own.finish(worker, seat, 0, Outcome::Committed);
            }
            Ok(_) => own.refused(seat, "it exists already"),
            Err(error) => own.refused(seat, &error.to_string()),
        },
    );
}
