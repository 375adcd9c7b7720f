//! One worker's lookups in the memory of *another* machine. Their rate is compared with the limit of raw reads
//! ([`crate::micro::limit`]) of the same memory, which is measured in the same run.
//!
//! Both machines are in one process. Machine 1 has one worker, which only performs lookups. Machine 2 has seven
//! workers, which own seven eighths of the shards and sleep while the lookups run. Only keys of machine 2's shards are
//! loaded and looked up, so that every lookup is a one-sided read of the other machine's memory.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use farm::{Farm, LocalFarm, Table};
use farm_core::config::Config;
use farm_core::ids::WorkerRef;
use farm_core::machine::{Attach, Machine, start_all};
use farm_core::mem::Memory;
use farm_core::worker::Worker;
use farm_kv::layout::Layout;
use farm_kv::lookup::Place;
use farm_kv::{GetCont, Key, KvError, TableId, TableSpec};
use futures_util::future::try_join_all;
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::Serialize;

use crate::closed_loop::{self, Clients, ClosedLoop, Ran, start_untimed};
use crate::counters::{Costs, Counters as _, counters};
use crate::load::{self, Pairs};
use crate::recorder::Outcome;

/// Bytes of a value in the measurement of tasks.
pub const TASK_VALUE_BYTES: usize = 32;
/// Number of keys that the tasks look up one after another.
const TASK_KEYS: usize = 1 << 20;
/// Number of keys that a task that looks up single keys takes at a time; divides [`TASK_KEYS`].
const TASK_CHUNK: usize = 64;

/// Number of workers of the machine that owns the data.
const OWNERS: u32 = 7;
/// Text of the panic if a lookup begins before the table is open.
const OPEN: &str = "lookups begin only after every worker has opened the table";

/// Options of the benchmark.
#[derive(Clone, Debug)]
pub struct LookupOptions {
    /// Minimum size of the shards of machine 2, in bytes.
    pub bytes: u64,
    /// Neighbourhood H of the table.
    pub neighbourhood: u32,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Number of lookups in flight.
    pub in_flight: usize,
    /// Duration of each repeat.
    pub duration: Duration,
    /// Number of repeats; the median counts.
    pub repeats: usize,
}

/// The result with one number of lookups in flight.
#[derive(Clone, Debug, Serialize)]
pub struct LookupRate {
    /// Lookups per second, in the median of the repeats.
    pub lookups_per_s: f64,
    /// Lookups per second of every repeat, in ascending order.
    pub repeats: Vec<f64>,
    /// One-sided reads per lookup, as counted by the endpoint.
    pub reads_per_lookup: f64,
    /// Number of lookups in flight.
    pub in_flight: usize,
    /// Number of pairs in the shards that were read.
    pub pairs: u64,
    /// Bytes of the buckets of these shards.
    pub bytes: u64,
    /// Bytes of the first read of a lookup.
    pub bytes_per_read: usize,
    /// Bytes of a bucket.
    pub bucket_bytes: usize,
    /// Pairs loaded per second by all owners together, each into its own shards.
    pub load_pairs_per_s: f64,
}

/// The rate of lookups by tasks.
#[derive(Clone, Debug, Serialize)]
pub struct TaskRate {
    /// Number of tasks, each of which has one operation in flight.
    pub tasks: usize,
    /// Number of keys that an operation looks up.
    pub batch: usize,
    /// Lookups per second, in the median of the repeats.
    pub lookups_per_s: f64,
    /// Lookups per second of every repeat, in ascending order.
    pub repeats: Vec<f64>,
}

/// A loaded cluster of two machines in this process. Its methods fail if a machine or a worker fails.
pub struct LookupBench {
    machines: Vec<Machine>,
    table: TableId,
    spec: TableSpec,
    options: LookupOptions,
    pairs: u64,
    load_pairs_per_s: f64,
}

/// Changes the configuration to two machines, with memory for shards of `options.bytes` bytes on the second machine.
pub fn configure(config: &mut Config, options: &LookupOptions) {
    config.resize_machines(2);
    config.set_workers(1);
    config.machines[1].workers = OWNERS as u16;
    for machine in &mut config.machines {
        machine.cores = vec![];
    }
    config.machines[0].cores = vec![0];
    config.worker.operations_in_flight = options.in_flight as u32;
    // The bytes of the buckets, plus half as much for overflow blocks, plus a region for rounding.
    config.memory.per_machine_bytes = (options.bytes * 3 / 2 + config.memory.region_bytes)
        .next_multiple_of(config.memory.region_bytes);
    config.rings.ring_bytes = 1 << 20;
}

fn table(options: &LookupOptions, config: &Config) -> Result<TableSpec> {
    let layout = Layout::new(
        options.neighbourhood,
        farm_kv::KEY_BYTES,
        options.value_bytes,
    )?;
    let region = config.memory.region_bytes - 2 * config.memory.block_bytes;
    let mut spec = TableSpec {
        id: 1,
        neighbourhood: options.neighbourhood,
        key_bytes: farm_kv::KEY_BYTES,
        value_bytes: options.value_bytes,
        shards: 0,
        buckets: u32::MAX,
    };
    let bucket_bytes = layout.bucket_bytes() as u64;
    while (u64::from(spec.buckets) + 1) * bucket_bytes > region {
        spec.shards += OWNERS + 1;
        let buckets = options.bytes.div_ceil(owned_shards(&spec) * bucket_bytes);
        spec.buckets = u32::try_from(buckets).unwrap_or(u32::MAX);
    }
    Ok(spec)
}

/// Returns the number of shards of machine 2.
fn owned_shards(spec: &TableSpec) -> u64 {
    u64::from(spec.shards / (OWNERS + 1) * OWNERS)
}

impl LookupBench {
    /// Starts the machines and loads the shards of machine 2 to 90 % occupancy.
    pub fn start(config: &Config, options: &LookupOptions) -> Result<Self> {
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

    /// Loads the shards of machine 2: each of its workers inserts the keys of its own shards, in the order of their
    /// numbers.
    fn load(&mut self) -> Result<()> {
        let (send, done) = channel();
        for worker in 0..self.machines[1].workers() {
            let keys = own_keys(self.table, 0..self.records(), self.options.value_bytes);
            let send = send.clone();
            // Sending fails if the benchmark has failed and dropped the receiver.
            let done = Box::new(move |ran| _ = send.send(ran));
            self.machines[1].submit(worker, move |worker| {
                load::load(worker, keys, 1, Arc::default(), done);
            })?;
        }
        drop(send);
        for _ in 0..self.machines[1].workers() {
            let ran = answer(&done)?;
            let pairs = ran.recorder.executed();
            self.pairs += pairs;
            self.load_pairs_per_s += pairs as f64 / ran.duration_s;
        }
        Ok(())
    }

    /// Returns the number of keys that fill 90 % of the slots of all shards.
    fn records(&self) -> u64 {
        (self.spec.slots() as f64 * 0.9) as u64
    }

    /// Returns the number of pairs in the shards that are read.
    pub fn pairs(&self) -> u64 {
        self.pairs
    }

    /// Returns the memory of the shards that are read, on which the raw limit is to be measured.
    pub fn memory(&self) -> Result<Vec<Memory>> {
        let owner = &self.machines[1];
        let mut windows = Vec::new();
        for index in 0..owner.workers() {
            let table = self.table;
            let spans = owner.ask(index, move |worker, answer| {
                // Fails if the calling thread no longer waits, because the machine is stopping.
                let _ = answer.send(farm_kv::ops::own_spans(worker, table));
            })??;
            for (first, bytes) in spans {
                let (memory, _) = owner
                    .store()
                    .region(first.region())
                    .context("the owner of a shard has no such region")?;
                windows.push(memory.window(first.offset() as usize, bytes as usize));
            }
        }
        Ok(windows)
    }

    /// Measures with `in_flight` lookups in flight: of loaded keys if `present`, otherwise of absent keys.
    pub fn measure(&self, in_flight: usize, present: bool) -> Result<LookupRate> {
        let TableSpec {
            neighbourhood,
            key_bytes,
            value_bytes,
            ..
        } = self.spec;
        let bucket_bytes = Layout::new(neighbourhood, key_bytes, value_bytes)?.bucket_bytes();
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
            bytes: owned_shards(&self.spec) * u64::from(self.spec.buckets) * bucket_bytes as u64,
            bytes_per_read: 2 * bucket_bytes,
            bucket_bytes,
            load_pairs_per_s: self.load_pairs_per_s,
        })
    }
}

/// The state of the tasks of a measurement, which all run on one worker.
struct Tasks {
    table: Table<Key, [u8; TASK_VALUE_BYTES]>,
    keys: Vec<Key>,
    /// Index of the next key.
    next: Cell<usize>,
    lookups: Cell<u64>,
    /// Whether the time is over.
    over: Cell<bool>,
    failed: RefCell<Option<String>>,
}

impl Tasks {
    /// Looks up one key after another.
    async fn look_up(self: Rc<Self>, here: LocalFarm) {
        let mut keys = Vec::with_capacity(TASK_CHUNK);
        while !self.over.get() {
            self.draw(&mut keys, TASK_CHUNK);
            for &key in &keys {
                match self.table.get(&here, key).await {
                    Ok(Some(_)) => self.lookups.set(self.lookups.get() + 1),
                    Ok(None) => return self.fail("a lookup did not find a loaded key".to_owned()),
                    Err(error) => return self.fail(error.to_string()),
                }
            }
        }
    }

    /// Looks up `batch` keys at a time, one batch after another.
    async fn look_up_many(self: Rc<Self>, here: LocalFarm, batch: usize) {
        let mut keys = Vec::with_capacity(batch);
        while !self.over.get() {
            self.draw(&mut keys, batch);
            match self.table.get_many(&here, &keys).await {
                Ok(values) if values.iter().all(Option::is_some) => {
                    self.lookups.set(self.lookups.get() + batch as u64);
                }
                Ok(_) => return self.fail("a lookup did not find a loaded key".to_owned()),
                Err(error) => return self.fail(error.to_string()),
            }
        }
    }

    /// Takes the next keys. Several at a time, because a cache miss for each would be part of what is measured.
    fn draw(&self, keys: &mut Vec<Key>, count: usize) {
        let next = self.next.get();
        keys.clear();
        keys.extend_from_slice(&self.keys[next..next + count]);
        self.next.set((next + count) % self.keys.len());
    }

    fn fail(&self, why: String) {
        self.failed.replace(Some(why));
        self.over.set(true);
    }
}

impl LookupBench {
    /// Measures lookups by tasks on the worker, through the interface for programs.
    ///
    /// # Errors
    /// If the values of the table do not have [`TASK_VALUE_BYTES`].
    pub fn measure_tasks(&self, tasks: usize) -> Result<TaskRate> {
        self.run_tasks(tasks, 1)
    }

    /// Measures lookups of `batch` keys at a time, one batch after another, by one task on the worker. The number is a
    /// power of two.
    ///
    /// # Errors
    /// If the values of the table do not have [`TASK_VALUE_BYTES`].
    pub fn measure_batches(&self, batch: usize) -> Result<TaskRate> {
        self.run_tasks(1, batch)
    }

    /// Measures lookups by tasks of another thread, which share one [`Farm`] and await one lookup at a time each.
    ///
    /// # Errors
    /// If the values of the table do not have [`TASK_VALUE_BYTES`].
    pub fn measure_outside(&self, tasks: usize) -> Result<TaskRate> {
        let table: Table<Key, [u8; TASK_VALUE_BYTES]> = Table::of_spec(self.spec)?;
        let (farm, records) = (Farm::of(&self.machines[0])?, self.records());
        let mut rates = Vec::new();
        for repeat in 0..self.options.repeats {
            let keys = self.machines[0].ask(0, move |worker, answer| {
                let keys = remote_keys(worker, table.spec().table(), records, repeat as u64 + 1);
                // Fails if the benchmark has failed and no longer waits.
                let _ = answer.send(keys);
            })?;
            let (began, lookups) = (Instant::now(), Cell::new(0));
            let task = async |first: usize| {
                for key in keys.iter().cycle().skip(first * TASK_CHUNK) {
                    if began.elapsed() >= self.options.duration {
                        break;
                    }
                    let found = table.get(&farm, *key).await?;
                    found.context("a lookup did not find a loaded key")?;
                    lookups.set(lookups.get() + 1);
                }
                anyhow::Ok(())
            };
            pollster::block_on(try_join_all((0..tasks).map(task)))?;
            rates.push(lookups.get() as f64 / began.elapsed().as_secs_f64());
        }
        Ok(TaskRate::of(tasks, 1, rates))
    }

    fn run_tasks(&self, tasks: usize, batch: usize) -> Result<TaskRate> {
        let table = Table::of_spec(self.spec)?;
        let (duration, records, count) = (self.options.duration, self.records(), tasks);
        let mut rates = Vec::new();
        for repeat in 0..self.options.repeats {
            let (send, done) = channel();
            self.machines[0].submit(0, move |worker| {
                let keys = remote_keys(worker, table.spec().table(), records, repeat as u64 + 1);
                let tasks = Rc::new(Tasks {
                    table,
                    keys,
                    next: Cell::new(0),
                    lookups: Cell::new(0),
                    over: Cell::new(false),
                    failed: RefCell::new(None),
                });
                for _ in 0..count {
                    let tasks = Rc::clone(&tasks);
                    match batch {
                        1 => farm::spawn(worker, |here| tasks.look_up(here)),
                        _ => farm::spawn(worker, |here| tasks.look_up_many(here, batch)),
                    }
                }
                farm::spawn(worker, async move |here: LocalFarm| {
                    let began = Instant::now();
                    here.sleep(duration).await;
                    tasks.over.set(true);
                    let rate = tasks.lookups.get() as f64 / began.elapsed().as_secs_f64();
                    let result = tasks.failed.take().map_or(Ok(rate), Err);
                    // Fails if the benchmark has failed and dropped the receiver.
                    let _ = send.send(result);
                });
            })?;
            let rate = done.recv().context("a worker of the benchmark ended")?;
            rates.push(rate.map_err(anyhow::Error::msg)?);
        }
        Ok(TaskRate::of(tasks, batch, rates))
    }
}

impl TaskRate {
    fn of(tasks: usize, batch: usize, mut repeats: Vec<f64>) -> Self {
        repeats.sort_by(f64::total_cmp);
        Self {
            tasks,
            batch,
            lookups_per_s: repeats[repeats.len() / 2],
            repeats,
        }
    }
}

/// Draws keys of other machines.
fn remote_keys(worker: &mut Worker, table: TableId, records: u64, seed: u64) -> Vec<Key> {
    let me = worker.me().machine;
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut keys = Vec::with_capacity(TASK_KEYS);
    while keys.len() < TASK_KEYS {
        let key = key_of(rng.random_range(0..records));
        if owner(worker, table, &key).expect(OPEN).machine != me {
            keys.push(key);
        }
    }
    keys
}

/// Returns the key of a number. The key contains the number unhashed, which is fast: the table hashes keys anyway.
#[inline]
pub(crate) fn key_of(number: u64) -> Key {
    let mut key = [0; farm_kv::KEY_BYTES];
    key[..8].copy_from_slice(&number.to_le_bytes());
    key
}

fn owner(worker: &mut Worker, table: TableId, key: &Key) -> Result<WorkerRef, KvError> {
    farm_kv::lookup::place_of(worker, table, key).map(Place::owner)
}

/// Waits for the result of a worker's clients.
fn answer<C>(done: &Receiver<Ran<C>>) -> Result<Ran<C>> {
    let ran = done.recv();
    ran.context("a worker of the benchmark ended before it sent its result")?
        .unless_failed()
}

/// Returns the keys of a worker's own shards, in the order of their numbers.
fn own_keys(table: TableId, mut numbers: Range<u64>, value_bytes: usize) -> Pairs<u64> {
    Pairs {
        what: "key",
        may_exist: false,
        next: Box::new(move |worker, value| {
            let me = worker.me();
            let number = numbers.find(|number| owner(worker, table, &key_of(*number)) == Ok(me))?;
            value.resize(value_bytes, 7);
            Some((number, table, key_of(number)))
        }),
    }
}

counters! {
    /// Counters of lookups and their reads.
    pub struct LookupCosts {
        /// Number of lookups that ended.
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
    /// Numbers of the keys.
    numbers: Range<u64>,
    /// Whether the keys are loaded.
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
            if place.owner().machine != me {
                let cont = GetCont::new(answered, seat);
                let started = farm_kv::lookup::get_at(worker, place, &key, cont);
                debug_assert!(started.is_ok(), "{started:?}");
                return;
            }
        }
    }

    fn end(self, _: &mut Worker, ran: Ran<LookupCosts>) {
        // Fails if the benchmark has failed and dropped the receiver.
        _ = self.done.send(ran);
    }
}

#[inline]
fn answered(worker: &mut Worker, seat: usize, value: Result<Option<&[u8]>, &KvError>) {
    closed_loop::resume(worker, |own: &mut ClosedLoop<Asker>, worker| match value {
        Ok(found) if found.is_some() == own.clients.present => {
            own.finish(worker, seat, 0, Outcome::Committed);
        }
        Ok(_) => {
            let why = "a lookup did not find a loaded key, or found a key that was not loaded";
            own.stop(seat, why.to_owned());
        }
        Err(error) => own.stop(seat, error.to_string()),
    });
}
