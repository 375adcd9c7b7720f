//! One worker's lookups against the memory of *other* machines: the figure that the raw memory limit
//! ([`crate::micro::limit`]) is held against, in one process and one run.
//!
//! Machine 1 has one worker, which looks up and does nothing else; machine 2 has seven, which own
//! seven eighths of the shards and sleep while the lookups run. Only keys of machine 2's shards are
//! loaded and asked for, so every lookup is a one-sided read of another machine's memory.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use farm_core::config::Config;
use farm_core::ids::WorkerRef;
use farm_core::machine::{Attach, Machine, start_all};
use farm_core::mem::Memory;
use farm_core::worker::{Cont, Worker};
use farm_kv::shard::Changed;
use farm_kv::{Change, GetCont, Key, KvError, TableId, TableSpec};
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::Serialize;

use crate::closed_loop::{self, Clients, ClosedLoop, Ran, start_untimed};
use crate::counters::{Costs, Counters as _, counters};
use crate::recorder::Outcome;

/// Workers of the machine that holds the data.
const OWNERS: u16 = 7;
/// Lookups begin when every worker has opened the table.
const OPEN: &str = "lookups begin only after every worker has opened the table";

/// What is measured.
#[derive(Clone, Debug)]
pub struct LookupOptions {
    /// Least bytes of the other machine's shards.
    pub bytes: u64,
    /// H.
    pub neighbourhood: u32,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Lookups in flight.
    pub in_flight: usize,
    /// Measured time, of each repeat.
    pub duration: Duration,
    /// Repeats; the median counts.
    pub repeats: usize,
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct LookupRate {
    /// Median of the repeats.
    pub lookups_per_s: f64,
    /// Every repeat.
    pub repeats: Vec<f64>,
    /// One-sided reads of a lookup, as the endpoint counted them.
    pub reads_per_lookup: f64,
    /// Lookups in flight.
    pub in_flight: usize,
    /// Pairs in the shards that were read.
    pub pairs: u64,
    /// Bytes of those shards.
    pub bytes: u64,
    /// Bytes of the first read of a lookup.
    pub bytes_per_read: usize,
    /// Bytes of a bucket.
    pub bucket_bytes: usize,
    /// Pairs loaded a second, by all owners together, each into its own shards.
    pub load_pairs_per_s: f64,
}

/// A loaded cluster of two machines in this process.
pub struct LookupBench {
    machines: Vec<Machine>,
    table: TableId,
    spec: TableSpec,
    options: LookupOptions,
    pairs: u64,
    load_pairs_per_s: f64,
}

/// Why the measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum LookupBenchError {
    /// A machine failed.
    #[error(transparent)]
    Machine(#[from] farm_core::machine::MachineError),
    /// The table could not be opened.
    #[error(transparent)]
    Open(#[from] farm_kv::blocking::BlockingError),
    /// The table failed.
    #[error(transparent)]
    Table(#[from] KvError),
    /// An insert or a lookup failed.
    #[error("{0}")]
    Failed(String),
    /// A worker did not answer.
    #[error("a worker ended before it answered")]
    NoAnswer,
}

/// The configuration that holds `bytes` on the machine that is read.
pub fn configure(config: &mut Config, options: &LookupOptions) {
    config.resize_machines(2);
    config.set_workers(1);
    config.machines[1].workers = OWNERS;
    for machine in &mut config.machines {
        machine.cores = vec![];
    }
    config.machines[0].cores = vec![0];
    config.worker.operations_in_flight = options.in_flight as u32;
    // Buckets, half as much again for overflow blocks and rounding to regions.
    config.memory.per_machine_bytes = (options.bytes * 3 / 2 + config.memory.region_bytes)
        .next_multiple_of(config.memory.region_bytes);
    config.rings.ring_bytes = 1 << 20;
}

fn table(options: &LookupOptions, config: &Config) -> Result<TableSpec, KvError> {
    let layout = farm_kv::layout::Layout::new(options.neighbourhood, options.value_bytes)?;
    let region = config.memory.region_bytes - 2 * config.memory.block_bytes;
    let mut shards = u32::from(OWNERS) + 1;
    loop {
        let own = u64::from(shards / (u32::from(OWNERS) + 1) * u32::from(OWNERS));
        let buckets = options.bytes.div_ceil(own * layout.bucket_bytes() as u64);
        if (buckets + 1) * layout.bucket_bytes() as u64 <= region {
            let (neighbourhood, value_bytes) = (options.neighbourhood, options.value_bytes);
            return Ok(TableSpec {
                id: 1,
                neighbourhood,
                value_bytes,
                shards,
                buckets: buckets as u32,
            });
        }
        shards += u32::from(OWNERS) + 1;
    }
}

impl LookupBench {
    /// Starts the machines and loads the shards of machine 2 to 90 % occupancy.
    ///
    /// # Errors
    /// [`LookupBenchError`].
    pub fn start(config: &Config, options: &LookupOptions) -> Result<Self, LookupBenchError> {
        let spec = table(options, config)?;
        let attach: Attach = Arc::new(|worker: &mut Worker| {
            farm_txn::attach(worker);
            farm_kv::attach(worker);
        });
        let machines = start_all(config, &attach)?;
        let table = farm_kv::blocking::open(&machines, spec)?;
        let mut bench = Self {
            machines,
            table,
            spec,
            options: options.clone(),
            pairs: 0,
            load_pairs_per_s: 0.0,
        };
        bench.load()?;
        Ok(bench)
    }

    /// Keys drawn in number order, each worker of machine 2 keeping those of its own shards.
    fn load(&mut self) -> Result<(), LookupBenchError> {
        let (send, done) = channel();
        for worker in 0..self.machines[1].workers() {
            let loader = Loader {
                table: self.table,
                numbers: 0..self.records(),
                value: vec![7; self.options.value_bytes],
                done: send.clone(),
            };
            self.machines[1].submit(worker, move |worker| {
                start_untimed(worker, loader, 1, None);
            })?;
        }
        drop(send);
        for _ in 0..self.machines[1].workers() {
            let ran = answer(&done)?;
            let pairs = ran.recorder.total(Outcome::Committed);
            self.pairs += pairs;
            self.load_pairs_per_s += pairs as f64 / ran.duration_s;
        }
        Ok(())
    }

    /// Keys of all shards: 90 % of the slots.
    fn records(&self) -> u64 {
        (self.spec.slots() as f64 * 0.9) as u64
    }

    /// The memory of the shards that are read: what the limit is to be measured on.
    ///
    /// # Errors
    /// [`LookupBenchError`].
    pub fn memory(&self) -> Result<Vec<Memory>, LookupBenchError> {
        let owner = &self.machines[1];
        let mut windows = Vec::new();
        for index in 0..owner.workers() {
            let table = self.table;
            let spans = owner.ask(index, move |worker, answer| {
                // The thread waits, unless the machine is stopping.
                let _ = answer.send(farm_kv::ops::own_spans(worker, table));
            })??;
            for (first, bytes) in spans {
                let (memory, _) = owner
                    .store()
                    .region(first.region())
                    .ok_or(LookupBenchError::NoAnswer)?;
                windows.push(memory.window(first.offset() as usize, bytes as usize));
            }
        }
        Ok(windows)
    }

    /// Measures with `in_flight` lookups in flight: of loaded keys if `present`, otherwise of absent keys.
    ///
    /// # Errors
    /// [`LookupBenchError`].
    pub fn measure(&self, in_flight: usize, present: bool) -> Result<LookupRate, LookupBenchError> {
        let layout = farm_kv::layout::Layout::new(self.spec.neighbourhood, self.spec.value_bytes)?;
        let mut rates = Vec::new();
        let mut sum = LookupCosts::default();
        let (duration, records) = (self.options.duration, self.records());
        for repeat in 0..self.options.repeats {
            let (send, done) = channel();
            let first = if present { 0 } else { records };
            let asker = Asker {
                table: self.table,
                numbers: first..first + records,
                present,
                rng: Xoshiro256PlusPlus::seed_from_u64(repeat as u64 + 1),
                done: send,
            };
            self.machines[0].submit(0, move |worker| {
                start_untimed(worker, asker, in_flight, Some(duration));
            })?;
            let ran = answer(&done)?;
            let costs = &ran.recorder.counters;
            rates.push(costs.lookups as f64 / ran.duration_s);
            sum.add(costs);
        }
        rates.sort_by(f64::total_cmp);
        Ok(LookupRate {
            lookups_per_s: rates[rates.len() / 2],
            repeats: rates,
            reads_per_lookup: sum.reads as f64 / sum.lookups as f64,
            in_flight,
            pairs: self.pairs,
            bytes: u64::from(self.spec.shards / (u32::from(OWNERS) + 1) * u32::from(OWNERS))
                * u64::from(self.spec.buckets)
                * layout.bucket_bytes() as u64,
            bytes_per_read: 2 * layout.bucket_bytes(),
            bucket_bytes: layout.bucket_bytes(),
            load_pairs_per_s: self.load_pairs_per_s,
        })
    }
}

/// A key that costs next to nothing to make: the table hashes it anyway.
#[inline]
fn key_of(number: u64) -> Key {
    let mut key = [0; farm_kv::KEY_BYTES];
    key[..8].copy_from_slice(&number.to_le_bytes());
    key
}

fn owner(worker: &mut Worker, table: TableId, key: &Key) -> Result<WorkerRef, KvError> {
    let place = farm_kv::lookup::place_of(worker, table, key)?;
    farm_kv::lookup::owner_of(worker, place)
}

/// Waits for the clients of a worker.
fn answer<C>(done: &Receiver<Ran<C>>) -> Result<Ran<C>, LookupBenchError> {
    let mut ran = done.recv().map_err(|_| LookupBenchError::NoAnswer)?;
    let failure = ran.failure.take();
    failure.map_or(Ok(ran), |why| Err(LookupBenchError::Failed(why)))
}

/// Inserts the keys of a worker's own shards.
struct Loader {
    table: TableId,
    numbers: Range<u64>,
    value: Vec<u8>,
    done: Sender<Ran>,
}

impl Clients for Loader {
    type Operation = Key;
    type Costs = ();

    fn draw(&mut self, worker: &mut Worker) -> Option<Key> {
        let (me, table) = (worker.me(), self.table);
        let mut keys = self.numbers.by_ref().map(key_of);
        keys.find(|key| owner(worker, table, key) == Ok(me))
    }

    fn begin(own: &mut ClosedLoop<Self>, worker: &mut Worker, seat: usize) {
        let key = *own.operation(seat);
        let Loader { table, value, .. } = &own.clients;
        let (change, cont) = (Change::Insert(value), Cont::new(inserted, seat));
        if let Err(error) = farm_kv::change(worker, *table, &key, change, cont) {
            own.stop(seat, error.to_string());
        }
    }

    fn end(self, _: &mut Worker, ran: Ran) {
        // The receiver is gone once the benchmark has given up.
        _ = self.done.send(ran);
    }
}

fn inserted(worker: &mut Worker, seat: usize, outcome: Result<Changed, KvError>) {
    closed_loop::resume(
        worker,
        |own: &mut ClosedLoop<Loader>, worker| match outcome {
            Ok(Changed::Inserted) => own.finish(worker, seat, 0, Outcome::Committed),
            Ok(_) => own.finish(worker, seat, 0, Outcome::Declined),
            Err(error) => own.stop(seat, error.to_string()),
        },
    );
}

counters! {
    /// What lookups cost.
    pub struct LookupCosts {
        /// Lookups that ended.
        pub lookups: u64,
        /// One-sided reads, as the endpoint counted them.
        pub reads: u64,
    }
}

impl Costs for LookupCosts {
    fn of(worker: &mut Worker) -> Self {
        let lookups = farm_kv::counters(worker);
        Self {
            lookups: lookups.hits + lookups.misses,
            reads: worker.fabric_counters().reads,
        }
    }
}

/// Looks up keys of other machines.
struct Asker {
    table: TableId,
    /// Numbers of the keys, and whether the keys are loaded.
    numbers: Range<u64>,
    present: bool,
    rng: Xoshiro256PlusPlus,
    done: Sender<Ran<LookupCosts>>,
}

impl Clients for Asker {
    type Operation = ();
    type Costs = LookupCosts;

    #[inline]
    fn draw(&mut self, _: &mut Worker) -> Option<()> {
        Some(())
    }

    #[inline]
    fn begin(own: &mut ClosedLoop<Self>, worker: &mut Worker, seat: usize) {
        let (me, asker) = (worker.me().machine, &mut own.clients);
        loop {
            let key = key_of(asker.rng.random_range(asker.numbers.clone()));
            let place = farm_kv::lookup::place_of(worker, asker.table, &key).expect(OPEN);
            let owner = farm_kv::lookup::owner_of(worker, place).expect(OPEN);
            if owner.machine != me {
                let cont = GetCont::new(answered, seat as u64);
                let started = farm_kv::lookup::get_at(worker, place, &key, cont);
                debug_assert!(started.is_ok(), "{started:?}");
                return;
            }
        }
    }

    fn end(self, _: &mut Worker, ran: Ran<LookupCosts>) {
        _ = self.done.send(ran);
    }
}

#[inline]
fn answered(worker: &mut Worker, seat: u64, value: Result<Option<&[u8]>, KvError>) {
    let seat = seat as usize;
    // By reference: a copy of the result would wait until the stores of its parts have left the store buffer.
    closed_loop::resume(worker, |own: &mut ClosedLoop<Asker>, worker| match &value {
        Ok(found) if found.is_some() == own.clients.present => {
            own.finish(worker, seat, 0, Outcome::Committed);
        }
        Ok(_) => {
            let why = "a loaded key was not found, or one that was not loaded was";
            own.stop(seat, why.to_owned());
        }
        Err(error) => own.stop(seat, error.to_string()),
    });
}
