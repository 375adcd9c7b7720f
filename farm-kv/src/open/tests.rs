//! Tests of the creation of tables, and of their owners.

use super::*;
use crate::blocking::{self, BlockingError, OwnedChange};
use crate::testing::cluster;
use farm_testing::TestCluster;

#[test]
fn a_table_is_sized_by_its_occupancy() {
    let spec = TableSpec::sized(1, 6, 32, 3, 1_000_000, 0.9).unwrap();
    let occupancy = 1_000_000.0 / spec.slots() as f64;
    assert!((occupancy - 0.9).abs() < 1e-5, "{occupancy}");
    for (shards, pairs, occupancy) in [
        (0, 1, 0.9),
        (1, 0, 0.9),
        (1, 1, 0.0),
        (1, 1, 1.1),
        (1, 1, f64::NAN),
    ] {
        assert!(TableSpec::sized(1, 6, 32, shards, pairs, occupancy).is_err());
    }
}

fn spec(id: u16, shards: u32) -> TableSpec {
    TableSpec::sized(id, 4, 8, shards, 64, 0.9).unwrap()
}

/// Returns the number of objects of the catalog, as the worker that creates tables counts them.
fn catalog_objects(cluster: &TestCluster) -> u64 {
    let counts = cluster.on_all(|worker| crate::ops::check_catalog(worker).unwrap());
    counts.iter().sum()
}

#[test]
fn tables_of_one_chain_are_all_found() {
    let cluster = cluster("catalog-chain", 2);
    let chain = [1, 33, 65, 2];
    for id in chain {
        blocking::open(&cluster.machines[..1], spec(id, 3)).unwrap();
    }
    for id in chain {
        let opened = blocking::open(&cluster.machines[1..], spec(id, 3));
        assert_eq!(opened.unwrap(), TableId(id));
    }
    assert_eq!(catalog_objects(&cluster), 1 + 4);
    cluster.stop();
}

/// A list of several objects, read by several reads.
#[test]
fn a_table_of_many_shards_is_found() {
    let cluster = cluster("catalog-list", 2);
    let spec = TableSpec {
        buckets: 1,
        ..spec(1, 200)
    };
    blocking::open(&cluster.machines[..1], spec).unwrap();
    blocking::open(&cluster.machines[1..], spec).unwrap();
    let firsts = |worker: &mut Worker| -> Vec<Address> {
        let shards = kv(worker).tables[&1].shards.iter();
        shards.map(|shard| shard.first).collect()
    };
    let [one, two] = [0, 1].map(|machine| cluster.on(machine, 0, firsts));
    assert_eq!(one.len(), 200);
    assert_eq!(one, two);
    cluster.stop();
}

/// A creation that fails because one machine has no memory frees what the others have made.
#[test]
fn a_failed_creation_leaves_nothing() {
    let cluster = cluster("catalog-full", 2);
    blocking::open(&cluster.machines, spec(1, 2)).unwrap();
    let used = |cluster: &TestCluster| -> u64 {
        let used = |worker: &mut Worker| worker.store().usage().unwrap().array_objects;
        cluster.on_all(used).iter().sum()
    };
    let before = used(&cluster);
    // Together the shards need more memory than there is, but the first ones can be made.
    let large = TableSpec {
        buckets: 3000,
        ..spec(2, 200)
    };
    let failed = blocking::open(&cluster.machines[..1], large);
    let is_memory = matches!(failed, Err(BlockingError::Table(KvError::Memory { .. })));
    assert!(is_memory, "{failed:?}");
    // A transaction that frees objects is reported as committed before the last primary has applied it.
    cluster.wait_for("what was made to be freed", |cluster| {
        used(cluster) == before
    });
    assert_eq!(catalog_objects(&cluster), 2);
    // The number can be used.
    blocking::open(&cluster.machines, spec(2, 2)).unwrap();
    cluster.stop();
}

/// A worker that takes another one for the owner of a shard, as before it knows a new configuration.
#[test]
fn a_worker_that_does_not_own_a_shard_refuses_and_the_caller_looks_up_again() {
    let cluster = cluster("moved-owner", 3);
    let table = blocking::open(&cluster.machines, spec(1, 3)).unwrap();
    for key in 0..30u8 {
        let next = |worker: &mut Worker| {
            let machines = worker.machines().to_vec();
            for shard in 0..3 {
                let open = kv(worker).tables.get_mut(&1).unwrap();
                let owner = &mut open.shards[shard].owner;
                let at = machines.iter().position(|one| one.0 == owner.machine);
                owner.machine = machines[(at.unwrap() + 1) % 3].0;
            }
        };
        cluster.on_all(next);
        let put = OwnedChange::Insert(vec![key; 8]);
        blocking::change(&cluster.machines[0], 0, table, [key; 16], put).unwrap();
    }
    let pairs = |worker: &mut Worker| {
        let facts = crate::ops::check(worker, TableId(1)).unwrap();
        facts.iter().map(|shard| shard.pairs).sum::<u64>()
    };
    assert_eq!(cluster.on_all(pairs).iter().sum::<u64>(), 30);
    cluster.stop();
}
