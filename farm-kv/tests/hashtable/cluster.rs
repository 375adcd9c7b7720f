//! The machines of a test cluster in one process, with a table open on every worker.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use farm_core::config::Config;
use farm_core::ids::WorkerRef;
use farm_core::machine::{Attach, Machine, start_all};
use farm_core::worker::Worker;
use farm_kv::layout::Layout;
use farm_kv::shard::ShardFacts;
use farm_kv::{Key, TableId, TableSpec, blocking};

pub(crate) struct Cluster {
    pub(crate) machines: Vec<Machine>,
    pub(crate) table: TableId,
    spec: TableSpec,
    _dir: tempfile::TempDir,
}

/// Starts machines without a table, with little memory and rings according to `tune`.
pub(crate) fn machines(
    name: &str,
    machines: u16,
    workers: u16,
    tune: impl Fn(&mut Config),
) -> (Vec<Machine>, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config::tiny_for(machines, workers);
    config.cluster.name = name.into();
    config.cluster.run_dir = dir.path().to_path_buf().into();
    config.rings.ring_bytes = 64 << 10;
    config.worker.operations_in_flight = 256;
    tune(&mut config);
    let attach: Attach = Arc::new(|worker: &mut Worker| {
        farm_txn::attach(worker);
        farm_kv::attach(worker);
    });
    (start_all(&config, &attach).unwrap(), dir)
}

pub(crate) fn cluster(name: &str, machines: u16, workers: u16, spec: TableSpec) -> Cluster {
    tuned_cluster(name, machines, workers, spec, |_| {})
}

pub(crate) fn tuned_cluster(
    name: &str,
    machines: u16,
    workers: u16,
    spec: TableSpec,
    tune: impl Fn(&mut Config),
) -> Cluster {
    let (machines, dir) = self::machines(name, machines, workers, tune);
    let table = blocking::open(&machines, spec).unwrap();
    Cluster {
        machines,
        table,
        spec,
        _dir: dir,
    }
}

impl Cluster {
    /// Runs `work` on a worker, in one of its turns, and returns the result.
    pub(crate) fn on<T: Send + 'static>(
        &self,
        machine: usize,
        worker: usize,
        work: impl FnOnce(&mut Worker) -> T + Send + 'static,
    ) -> T {
        on(&self.machines[machine], worker, work)
    }

    /// Runs `work` on every worker.
    pub(crate) fn on_all<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Worker) -> T + Send + Clone + 'static,
    ) -> Vec<T> {
        let all = self.machines.iter().flat_map(|machine| {
            let work = &work;
            (0..machine.workers()).map(move |worker| on(machine, worker, work.clone()))
        });
        all.collect()
    }

    /// Checks the invariants of every shard, compares every allocator with the memory and with the blocks in use, and
    /// checks every arena for leaks. Returns the sum of the shards' counts. Call it only while no operations are in
    /// flight.
    pub(crate) fn check(&self) -> ShardFacts {
        let table = self.table;
        let layout = Layout::new(self.spec.neighbourhood, self.spec.value_bytes).unwrap();
        let facts = self.on_all(move |worker| {
            assert_eq!(
                worker.arena().taken(),
                0,
                "worker {} leaked slots",
                worker.me()
            );
            worker.check_slab().unwrap();
            let facts = farm_kv::ops::check(worker, table).unwrap();
            let blocks = facts.iter().map(|shard| shard.blocks).sum::<u64>();
            let live = worker.slab_usage(layout.block_class).live;
            assert_eq!(live, blocks, "worker {} leaked blocks", worker.me());
            facts
        });
        let mut sum = ShardFacts::default();
        for shard in facts.into_iter().flatten() {
            sum.pairs += shard.pairs;
            sum.chained += shard.chained;
            sum.blocks += shard.blocks;
        }
        sum
    }

    pub(crate) fn stop(self) {
        for machine in self.machines {
            machine.stop().unwrap();
        }
    }
}

pub(crate) fn on<T: Send + 'static>(
    machine: &Machine,
    worker: usize,
    work: impl FnOnce(&mut Worker) -> T + Send + 'static,
) -> T {
    machine
        .ask(worker, |worker, answer| answer.send(work(worker)).unwrap())
        .unwrap()
}

/// Waits for the result of a worker.
pub(crate) fn wait<T>(answer: &mpsc::Receiver<T>) -> T {
    answer
        .recv_timeout(Duration::from_secs(90))
        .expect("a worker failed, or did not end")
}

pub(crate) fn key(number: u64) -> Key {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&number.to_le_bytes());
    key[8..].copy_from_slice(&(!number).to_le_bytes());
    key
}

/// Returns the worker that owns the shard of a key.
pub(crate) fn owner_of(worker: &mut Worker, table: TableId, key: &Key) -> WorkerRef {
    let place = farm_kv::lookup::place_of(worker, table, key).unwrap();
    farm_kv::lookup::owner_of(worker, place).unwrap()
}
