//! A cluster with a table that is open on every worker.

use std::ops::Deref;

use farm_core::config::Config;
use farm_core::ids::WorkerRef;
use farm_core::worker::Worker;
use farm_kv::layout::Layout;
use farm_kv::shard::ShardFacts;
use farm_kv::{Key, TableId, TableSpec, blocking};
use farm_testing::TestCluster;

use crate::common::start;

pub(crate) struct Cluster {
    cluster: TestCluster,
    pub(crate) table: TableId,
    spec: TableSpec,
}

impl Deref for Cluster {
    type Target = TestCluster;

    fn deref(&self) -> &TestCluster {
        &self.cluster
    }
}

/// Returns a configuration with little memory, and with room for more operations than the default of tests.
pub(crate) fn config(machines: u16, workers: u16) -> Config {
    let mut config = Config::tiny_for(machines, workers);
    config.rings.ring_bytes = 64 << 10;
    config.worker.operations_in_flight = 256;
    config
}

/// Starts machines without a table.
pub(crate) fn machines(name: &str, machines: u16, workers: u16) -> TestCluster {
    start(name, config(machines, workers))
}

pub(crate) fn cluster(name: &str, machines: u16, workers: u16, spec: TableSpec) -> Cluster {
    cluster_of(name, config(machines, workers), spec)
}

pub(crate) fn cluster_of(name: &str, config: Config, spec: TableSpec) -> Cluster {
    let cluster = start(name, config);
    let table = blocking::open(&cluster.machines, spec).unwrap();
    Cluster {
        cluster,
        table,
        spec,
    }
}

impl Cluster {
    /// Checks the invariants of every shard, compares every allocator with the memory and with the blocks in use, and
    /// checks every arena for leaks. Returns the sum of the shards' counts. Call it only while no operations are in
    /// flight.
    pub(crate) fn check(&self) -> ShardFacts {
        let table = self.table;
        let layout = Layout::new(
            self.spec.neighbourhood,
            self.spec.key_bytes,
            self.spec.value_bytes,
        )
        .unwrap();
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

    /// As [`TestCluster::stop`].
    pub(crate) fn stop(self) {
        self.cluster.stop();
    }
}

pub(crate) fn key(number: u64) -> Key {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&number.to_le_bytes());
    key[8..].copy_from_slice(&(!number).to_le_bytes());
    key
}

/// Returns the worker that owns the shard of a key.
pub(crate) fn owner_of(worker: &mut Worker, table: TableId, key: &Key) -> WorkerRef {
    let place = farm_kv::lookup::place_of(worker, table, key);
    place.unwrap().owner()
}
