//! Loads the tables of a benchmark: each worker inserts the rows of its share of the items.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use farm_core::time::Nanos;
use farm_core::worker::{Cont, Worker};
use farm_kv::shard::Changed;
use farm_kv::{Change, KvError};

use super::attempt::table_of;
use super::benchmark::Rows;
use super::{Benchmark, RowName};

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

/// Result of a load.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// Number of inserted rows.
    pub rows: u64,
    /// Duration of the load.
    pub duration: Duration,
    /// The first row that could not be inserted, and the reason.
    pub failure: Option<String>,
}

/// The function that receives the result.
pub type Done = Box<dyn FnOnce(Loaded) + Send>;

struct Loader {
    load: Load,
    /// Rows of the current item whose inserts were not started yet.
    rows: Rows,
    /// Names of the rows in flight, by seat.
    names: slab::Slab<RowName>,
    began: Nanos,
    loaded: u64,
    failure: Option<String>,
    done: Option<Done>,
}

/// Inserts rows. Calls `done` on the worker's thread when all are inserted. [`super::attempt::attach`] must have been
/// called on the worker before.
pub fn load(worker: &mut Worker, load: Load, done: Done) {
    let mut loader = Box::new(Loader {
        rows: Rows::new(),
        names: slab::Slab::with_capacity(load.in_flight),
        began: worker.clock().now(),
        loaded: 0,
        failure: None,
        done: Some(done),
        load,
    });
    loader.fill(worker);
    loader.put_back(worker);
}

impl Loader {
    fn put_back(mut self: Box<Self>, worker: &mut Worker) {
        if !self.names.is_empty() {
            return worker.put_layer(self);
        }
        let loaded = Loaded {
            rows: self.loaded,
            duration: worker.clock().now().since(self.began),
            failure: self.failure,
        };
        if let Some(done) = self.done.take() {
            done(loaded);
        }
    }

    fn fill(&mut self, worker: &mut Worker) {
        while self.names.len() < self.load.in_flight.max(1) && self.failure.is_none() {
            let Some((name, row)) = self.rows.pop() else {
                let Some(item) = self.load.items.next() else {
                    return;
                };
                self.rows = self.load.benchmark.rows(self.load.seed, item);
                continue;
            };
            let seat = self.names.insert(name);
            let table = table_of(worker, &name);
            let done = Cont::new(inserted, seat as u64);
            let change = Change::Insert(&row);
            let begun = farm_kv::change(worker, table, &name.table_key(), change, done);
            if let Err(error) = begun {
                self.names.remove(seat);
                self.fail(name, &error.to_string());
            }
        }
    }

    #[cold]
    fn fail(&mut self, name: RowName, why: &str) {
        self.failure
            .get_or_insert_with(|| format!("the row {name} cannot be inserted: {why}"));
    }
}

fn inserted(worker: &mut Worker, seat: u64, outcome: Result<Changed, KvError>) {
    let mut loader = worker.take_layer::<Loader>();
    let name = loader.names.remove(seat as usize);
    match outcome {
        Ok(Changed::Inserted) => {
            loader.loaded += 1;
            loader.load.progress.fetch_add(1, Ordering::Relaxed);
        }
        Ok(_) => loader.fail(name, "the row exists already"),
        Err(error) => loader.fail(name, &error.to_string()),
    }
    loader.fill(worker);
    loader.put_back(worker);
}
