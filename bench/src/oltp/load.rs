//! Loads the tables of a benchmark: each worker inserts the rows of its share of the items.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use farm_core::worker::{Cont, Worker};
use farm_kv::shard::Changed;
use farm_kv::{Change, KvError};

use super::attempt::table_of;
use super::benchmark::Rows;
use super::{Benchmark, RowBytes, RowName};
use crate::closed_loop::{self, Clients, ClosedLoop, Done, Ran};
use crate::recorder::Outcome;

/// The task of one worker.
#[derive(Clone, Debug)]
pub struct Load {
    /// The benchmark.
    pub benchmark: Benchmark,
    /// Seed of the population.
    pub seed: u64,
    /// Range of the items whose rows this worker inserts.
    pub items: Range<u64>,
    /// Number of concurrent inserts.
    pub in_flight: usize,
    /// Counter of inserted rows.
    pub progress: Arc<AtomicU64>,
}

struct Loader {
    load: Load,
    /// Rows of the current item whose inserts were not started yet.
    rows: Rows,
    done: Done,
}

/// Inserts rows. Calls `done` on the worker's thread when all are inserted; each row is an executed operation.
/// [`super::attempt::attach`] must have been called on the worker before.
pub fn load(worker: &mut Worker, load: Load, done: Done) {
    let in_flight = load.in_flight.max(1);
    let rows = Rows::new();
    let loader = Loader { load, rows, done };
    closed_loop::start_untimed(worker, loader, in_flight, None);
}

impl Clients for Loader {
    type Operation = (RowName, RowBytes);
    type Costs = ();

    fn draw(&mut self, _: &mut Worker) -> Option<(RowName, RowBytes)> {
        loop {
            if let Some(row) = self.rows.pop() {
                return Some(row);
            }
            let item = self.load.items.next()?;
            self.rows = self.load.benchmark.rows(self.load.seed, item);
        }
    }

    fn begin(own: &mut ClosedLoop<Self>, worker: &mut Worker, seat: usize) {
        let (name, row) = *own.operation(seat);
        let table = table_of(worker, &name);
        let (change, done) = (Change::Insert(&row), Cont::new(inserted, seat));
        let begun = farm_kv::change(worker, table, &name.table_key(), change, done);
        if let Err(error) = begun {
            own.refused(seat, &error.to_string());
        }
    }

    fn end(self, _: &mut Worker, ran: Ran) {
        (self.done)(ran);
    }
}

impl ClosedLoop<Loader> {
    #[cold]
    fn refused(&mut self, seat: usize, why: &str) {
        let name = self.operation(seat).0;
        self.stop(seat, format!("the row {name} cannot be inserted: {why}"));
    }
}

fn inserted(worker: &mut Worker, seat: usize, outcome: Result<Changed, KvError>) {
    closed_loop::resume(
        worker,
        |own: &mut ClosedLoop<Loader>, worker| match outcome {
            Ok(Changed::Inserted) => {
                own.clients.load.progress.fetch_add(1, Ordering::Relaxed);
                own.finish(worker, seat, 0, Outcome::Committed);
            }
            Ok(_) => own.refused(seat, "the row exists already"),
            Err(error) => own.refused(seat, &error.to_string()),
        },
    );
}
