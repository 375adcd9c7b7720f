//! A table on machines of one process, compared with a map.

mod common;

use std::collections::BTreeMap;

use farm_core::config::Config;
use farm_core::worker::Worker;
use farm_kv::blocking::{self, BlockingError, OwnedChange};
use farm_kv::shard::{Changed, ShardFacts};
use farm_kv::{Key, KvError, TableId, TableSpec};
use farm_testing::TestCluster;
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

struct Cluster {
    cluster: TestCluster,
    table: TableId,
}

fn cluster(
    name: &str,
    machines: u16,
    workers: u16,
    spec: TableSpec,
    tune: impl Fn(&mut Config),
) -> Cluster {
    let mut config = Config::default_for(machines, workers);
    config.memory.region_bytes = 64 << 20;
    config.memory.per_machine_bytes = 256 << 20;
    tune(&mut config);
    let cluster = common::start(name, config);
    let table = blocking::open(&cluster.machines, spec).unwrap();
    Cluster { cluster, table }
}

impl Cluster {
    fn get(&self, machine: usize, worker: usize, key: Key) -> Result<Option<Vec<u8>>, KvError> {
        table_error(blocking::get(
            &self.cluster.machines[machine],
            worker,
            self.table,
            key,
        ))
    }

    fn change(
        &self,
        machine: usize,
        worker: usize,
        kind: u8,
        key: Key,
        value: Vec<u8>,
    ) -> Result<Changed, KvError> {
        let change = match kind {
            0 => OwnedChange::Insert(value),
            1 => OwnedChange::Update(value),
            2 => OwnedChange::Upsert(value),
            _ => OwnedChange::Remove,
        };
        table_error(blocking::change(
            &self.cluster.machines[machine],
            worker,
            self.table,
            key,
            change,
        ))
    }

    fn check(&self) -> ShardFacts {
        let table = self.table;
        let check = move |worker: &mut Worker| farm_kv::ops::check(worker, table).unwrap();
        let mut sum = ShardFacts::default();
        for shard in self.cluster.on_all(check).into_iter().flatten() {
            sum.pairs += shard.pairs;
            sum.chained += shard.chained;
            sum.blocks += shard.blocks;
        }
        sum
    }

    fn stop(self) {
        self.cluster.stop();
    }
}

fn table_error<T>(result: Result<T, BlockingError>) -> Result<T, KvError> {
    result.map_err(|error| match error {
        BlockingError::Table(error) => error,
        BlockingError::Machine(error) => panic!("{error}"),
    })
}

fn key(number: u64) -> Key {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&number.to_be_bytes());
    key
}

/// Makes random operations on random workers, in so few buckets that there are always chains, displacements, and chains
/// that become empty. The table must agree with a map after every operation.
fn agrees_with_a_map(h: u32, value_bytes: usize) {
    let spec = TableSpec {
        id: 3,
        neighbourhood: h,
        key_bytes: farm_kv::KEY_BYTES,
        value_bytes,
        shards: 5,
        buckets: 6,
    };
    let cluster = cluster(&format!("map-{h}-{value_bytes}"), 3, 2, spec, |_| {});
    let mut model: BTreeMap<Key, Vec<u8>> = BTreeMap::new();
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(u64::from(h));
    let slots = spec.slots();
    for step in 0..3000u64 {
        // The number of keys changes periodically, so that the table fills and empties.
        let keys = if step / 500 % 2 == 0 {
            slots * 2
        } else {
            slots / 2
        };
        let (machine, worker) = (rng.random_range(0..3), rng.random_range(0..2));
        let key = key(rng.random_range(0..keys.max(1)));
        let value: Vec<u8> = (0..value_bytes)
            .map(|i| (step as usize + i) as u8)
            .collect();
        let present = model.contains_key(&key);
        let kind = rng.random_range(0..6u8);
        let expected = match (kind, present) {
            (0 | 2, false) => Changed::Inserted,
            (0, true) => Changed::Exists,
            (1 | 2, true) => Changed::Updated,
            (3, true) => Changed::Removed,
            (1 | 3, false) => Changed::Absent,
            _ => {
                assert_eq!(
                    cluster.get(machine, worker, key),
                    Ok(model.get(&key).cloned()),
                    "step {step}"
                );
                continue;
            }
        };
        assert_eq!(
            cluster.change(machine, worker, kind, key, value.clone()),
            Ok(expected),
            "step {step}"
        );
        match expected {
            Changed::Inserted | Changed::Updated => drop(model.insert(key, value)),
            Changed::Removed => drop(model.remove(&key)),
            Changed::Exists | Changed::Absent => {}
        }
        if step % 100 == 0 {
            assert_eq!(cluster.check().pairs, model.len() as u64, "step {step}");
        }
    }
    for (key, value) in &model {
        assert_eq!(cluster.get(0, 0, *key), Ok(Some(value.clone())));
    }
    let keys: Vec<Key> = model.keys().copied().collect();
    for key in keys {
        assert_eq!(cluster.change(1, 1, 3, key, vec![]), Ok(Changed::Removed));
    }
    assert_eq!(
        cluster.check(),
        ShardFacts::default(),
        "an empty table has pairs or blocks"
    );
    cluster.stop();
}

#[test]
fn a_table_of_h_2_agrees_with_a_map() {
    agrees_with_a_map(2, 32);
}

#[test]
fn a_table_of_h_4_agrees_with_a_map() {
    agrees_with_a_map(4, 32);
}

#[test]
fn a_table_of_h_6_agrees_with_a_map() {
    agrees_with_a_map(6, 32);
}

#[test]
fn a_table_of_h_8_agrees_with_a_map() {
    agrees_with_a_map(8, 32);
}

#[test]
fn a_table_of_h_12_and_long_values_agrees_with_a_map() {
    agrees_with_a_map(12, 1000);
}

#[test]
fn values_of_odd_lengths_agree_with_a_map() {
    agrees_with_a_map(6, 45);
}

#[test]
fn a_full_machine_is_a_typed_error_and_loses_nothing() {
    let spec = TableSpec {
        id: 1,
        neighbourhood: 6,
        key_bytes: farm_kv::KEY_BYTES,
        value_bytes: 32,
        shards: 1,
        buckets: 2000,
    };
    let cluster = cluster("full", 1, 1, spec, |config| {
        config.memory.region_bytes = 4 << 20;
        config.memory.per_machine_bytes = 4 << 20;
    });
    let mut stored = 0;
    let refused = loop {
        match cluster.change(0, 0, 0, key(stored), vec![stored as u8; 32]) {
            Ok(Changed::Inserted) => stored += 1,
            other => break other,
        }
    };
    assert!(matches!(refused, Err(KvError::Full(_))), "{refused:?}");
    assert!(
        refused
            .unwrap_err()
            .to_string()
            .contains("per_machine_bytes")
    );
    assert_eq!(cluster.check().pairs, stored);
    for number in [0, stored / 2, stored - 1] {
        assert_eq!(
            cluster.get(0, 0, key(number)),
            Ok(Some(vec![number as u8; 32]))
        );
    }
    for number in 0..stored / 2 {
        assert_eq!(
            cluster.change(0, 0, 3, key(number), vec![]),
            Ok(Changed::Removed)
        );
    }
    assert_eq!(
        cluster.change(0, 0, 0, key(stored), vec![1; 32]),
        Ok(Changed::Inserted),
        "the removes freed no room"
    );
    cluster.stop();
}

/// Thousands of pairs in very few buckets: the limit is the number of objects that one transaction can read.
#[test]
fn a_crowded_bucket_is_a_typed_error_and_loses_nothing() {
    let spec = TableSpec {
        id: 1,
        neighbourhood: 2,
        key_bytes: farm_kv::KEY_BYTES,
        value_bytes: 32,
        shards: 1,
        buckets: 1,
    };
    let cluster = cluster("crowded", 1, 1, spec, |_| {});
    let mut stored = 0;
    let refused = loop {
        match cluster.change(0, 0, 0, key(stored), vec![stored as u8; 32]) {
            Ok(Changed::Inserted) => stored += 1,
            other => break other,
        }
    };
    assert!(matches!(refused, Err(KvError::Crowded(_))), "{refused:?}");
    assert_eq!(cluster.check().pairs, stored);
    cluster.stop();
}

#[test]
fn a_value_of_another_length_is_refused() {
    let spec = TableSpec {
        id: 1,
        neighbourhood: 6,
        key_bytes: farm_kv::KEY_BYTES,
        value_bytes: 32,
        shards: 1,
        buckets: 4,
    };
    let cluster = cluster("length", 1, 1, spec, |_| {});
    let refused = cluster.change(0, 0, 2, key(1), vec![0; 33]);
    assert_eq!(
        refused,
        Err(KvError::ValueLength {
            expected: 32,
            found: 33
        })
    );
    cluster.stop();
}
