//! A cluster with a table that is open on every worker.

use std::ops::Deref;

use farm_core::config::Config;
use farm_core::ids::WorkerRef;
use farm_core::worker::Worker;
use farm_kv::layout::Layout;
use farm_kv::ops::{self, OwnShards};
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
        self.check_counts(&sum);
        sum
    }

    /// Checks that counts and estimates agree with what the shards contain.
    fn check_counts(&self, facts: &ShardFacts) {
        let (table, slots) = (self.table, self.spec.slots());
        for (index, machine) in self.machines.iter().enumerate() {
            let worker = index % machine.workers();
            let counted = farm_txn::block_on(machine, worker, async move |farm| {
                farm_kv::tasks::count(&farm, table).await
            });
            assert_eq!(counted.unwrap().unwrap(), facts.pairs);
        }
        let mut sum = OwnShards::default();
        for machine in &self.machines {
            for worker in 0..machine.workers() {
                let own = farm_txn::block_on(machine, worker, async move |farm| {
                    let own = ops::own_shards(&farm, table, u32::MAX).await;
                    let estimated = ops::own_shards(&farm, table, 1).await;
                    own.map(|own| (own, estimated))
                });
                let (own, estimated) = own.unwrap().unwrap();
                let estimated = estimated.unwrap();
                assert_eq!(estimated.slots, own.slots);
                assert!(own.pairs > 0 || estimated.pairs == 0);
                sum.pairs += own.pairs;
                sum.slots += own.slots;
            }
        }
        assert_eq!((sum.pairs, sum.slots), (facts.pairs, slots));
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
