//! One worker's lookups against the memory of *other* machines: the figure that the raw memory limit
//! ([`crate::micro::limit`]) is held against, in one process and one run.
//!
//! Machine 1 has one worker, which looks up and does nothing else; machine 2 has seven, which own
//! seven eighths of the shards and sleep while the lookups run. Only keys of machine 2's shards are
//! loaded and asked for, so every lookup is a one-sided read of another machine's memory.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use farm_core::config::Config;
use farm_core::ids::WorkerRef;
use farm_core::machine::{Attach, Machine, start_all};
use farm_core::mem::Memory;
use farm_core::time::Nanos;
use farm_core::worker::{Cont, Worker};
use farm_kv::shard::Changed;
use farm_kv::{Change, GetCont, Key, KvError, LookupCounters, TableId, TableSpec};
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::Serialize;

/// Workers of the machine that holds the data.
const OWNERS: u16 = 7;
/// Lookups begin when every worker has opened the table.
const OPEN: &str = "the table is open on every worker";

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
        let records = (self.spec.slots() as f64 * 0.9) as u64;
        let (send, done) = channel();
        for worker in 0..self.machines[1].workers() {
            let (send, table, value_bytes) = (send.clone(), self.table, self.options.value_bytes);
            self.machines[1].submit(worker, move |worker| {
                let now = worker.clock().now();
                let load = Loader {
                    table,
                    next: 0,
                    end: records,
                    loaded: 0,
                    began: now,
                    value: vec![7; value_bytes],
                    done: send,
                };
                worker.put_layer(Box::new(load));
                load_next(worker, 0, Ok(Changed::Exists));
            })?;
        }
        drop(send);
        for _ in 0..self.machines[1].workers() {
            let (pairs, seconds) = done.recv().map_err(|_| LookupBenchError::NoAnswer)??;
            self.pairs += pairs;
            self.load_pairs_per_s += pairs as f64 / seconds;
        }
        Ok(())
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

    /// Measures with so many lookups in flight, of keys that are there.
    ///
    /// # Errors
    /// [`LookupBenchError`].
    pub fn measure(&self, in_flight: usize) -> Result<LookupRate, LookupBenchError> {
        self.measure_lookups(in_flight, true)
    }

    /// The same of keys that are not there.
    ///
    /// # Errors
    /// [`LookupBenchError`].
    pub fn measure_misses(&self, in_flight: usize) -> Result<LookupRate, LookupBenchError> {
        self.measure_lookups(in_flight, false)
    }

    fn measure_lookups(
        &self,
        in_flight: usize,
        present: bool,
    ) -> Result<LookupRate, LookupBenchError> {
        let layout = farm_kv::layout::Layout::new(self.spec.neighbourhood, self.spec.value_bytes)?;
        let mut rates = Vec::new();
        let (mut reads, mut lookups) = (0, 0);
        for repeat in 0..self.options.repeats {
            let (send, done) = channel();
            let (table, duration, records) = (
                self.table,
                self.options.duration,
                (self.spec.slots() as f64 * 0.9) as u64,
            );
            self.machines[0].submit(0, move |worker| {
                let rng = Xoshiro256PlusPlus::seed_from_u64(repeat as u64 + 1);
                let now = worker.clock().now();
                let before = (worker.fabric_counters().reads, farm_kv::counters(worker));
                let first = if present { 0 } else { records };
                let asker = Asker {
                    table,
                    numbers: first..first + records,
                    present,
                    rng,
                    began: now,
                    ends: now.after(duration),
                    done: send,
                    busy: in_flight,
                    before,
                };
                worker.put_layer(Box::new(asker));
                for _ in 0..in_flight {
                    ask(worker);
                }
            })?;
            let asked = done.recv().map_err(|_| LookupBenchError::NoAnswer)??;
            rates.push(asked.lookups as f64 / asked.seconds);
            reads += asked.reads;
            lookups += asked.lookups;
        }
        rates.sort_by(f64::total_cmp);
        Ok(LookupRate {
            lookups_per_s: rates[rates.len() / 2],
            repeats: rates,
            reads_per_lookup: reads as f64 / lookups as f64,
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

type Loaded = Result<(u64, f64), KvError>;

struct Loader {
    table: TableId,
    next: u64,
    end: u64,
    loaded: u64,
    began: Nanos,
    value: Vec<u8>,
    done: Sender<Loaded>,
}

fn load_next(worker: &mut Worker, _: u64, outcome: Result<Changed, KvError>) {
    let mut load = worker.take_layer::<Loader>();
    if let Err(error) = outcome {
        let _ = load.done.send(Err(error));
        return;
    }
    load.loaded += u64::from(outcome == Ok(Changed::Inserted));
    while load.next < load.end {
        let key = key_of(load.next);
        load.next += 1;
        if owner(worker, load.table, &key) == Ok(worker.me()) {
            let change = Change::Insert(&load.value);
            if farm_kv::change(worker, load.table, &key, change, Cont::new(load_next, 0)).is_ok() {
                return worker.put_layer(load);
            }
        }
    }
    let seconds = (worker.clock().now() - load.began) as f64 / 1e9;
    let _ = load.done.send(Ok((load.loaded, seconds)));
}

struct Asked {
    lookups: u64,
    reads: u64,
    seconds: f64,
}

struct Asker {
    table: TableId,
    /// Of the keys that are asked for, and whether they are there.
    numbers: Range<u64>,
    present: bool,
    rng: Xoshiro256PlusPlus,
    began: Nanos,
    ends: Nanos,
    done: Sender<Result<Asked, KvError>>,
    busy: usize,
    before: (u64, LookupCounters),
}

#[inline]
fn ask(worker: &mut Worker) {
    let me = worker.me().machine;
    loop {
        let asker = worker.layer::<Asker>().expect("the asker is attached");
        let table = asker.table;
        let key = key_of(asker.rng.random_range(asker.numbers.clone()));
        let place = farm_kv::lookup::place_of(worker, table, &key).expect(OPEN);
        let owner = farm_kv::lookup::owner_of(worker, place).expect(OPEN);
        if owner.machine != me {
            let cont = GetCont::new(answered, 0);
            let started = farm_kv::lookup::get_at(worker, place, &key, cont);
            debug_assert!(started.is_ok(), "{started:?}");
            return;
        }
    }
}

#[inline]
fn answered(worker: &mut Worker, _: u64, value: Result<Option<&[u8]>, KvError>) {
    let now = worker.now();
    let asker = worker.layer::<Asker>().expect("the asker is attached");
    let failed = match value {
        Ok(found) if found.is_some() == asker.present => None,
        Ok(_) => Some(KvError::Damaged(
            "a loaded key was not found, or one that was not loaded was".into(),
        )),
        Err(error) => Some(error),
    };
    if let Some(error) = failed {
        let _ = asker.done.send(Err(error));
        return;
    }
    if now < asker.ends {
        return ask(worker);
    }
    asker.busy -= 1;
    if asker.busy == 0 {
        let asker = worker.take_layer::<Asker>();
        let seconds = (worker.clock().now() - asker.began) as f64 / 1e9;
        let after = farm_kv::counters(worker);
        let asked = Asked {
            lookups: after.hits + after.misses - asker.before.1.hits - asker.before.1.misses,
            reads: worker.fabric_counters().reads - asker.before.0,
            seconds,
        };
        let _ = asker.done.send(Ok(asked));
    }
}
