//! Tables with keys of every kind of length, compared with a map: by lookups and changes of both machines, and inside of
//! transactions.

use std::collections::BTreeMap;

use farm_core::config::Config;
use farm_kv::blocking::{self, BlockingError, OwnedChange};
use farm_kv::shard::Changed;
use farm_kv::{Change, KvError, TableId, TableSpec, tasks};
use farm_testing::TestCluster;
use farm_txn::{Transaction, TxError};
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// Lengths of key and value. The pairs of the first three are stored in a line each, and compared as a number; then come
/// keys that are compared as bytes, pairs that extend over lines, and keys that are longer than what a lookup stores.
const LENGTHS: [(usize, usize); 9] = [
    (8, 8),
    (16, 32),
    (8, 40),
    (1, 4),
    (5, 24),
    (8, 100),
    (17, 20),
    (48, 0),
    (256, 100),
];

/// Returns a key that differs from others only in its first bytes, its last ones, or both.
fn key(number: u8, bytes: usize) -> Vec<u8> {
    let mut key = vec![9; bytes];
    key[if number.is_multiple_of(3) {
        0
    } else {
        bytes - 1
    }] = number;
    key
}

fn value(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|at| (seed ^ at) as u8).collect()
}

fn start(name: &str) -> TestCluster {
    let attach = |worker: &mut farm_core::worker::Worker| {
        farm_txn::attach(worker);
        farm_kv::attach(worker);
    };
    TestCluster::start(name, Config::tiny_for(2, 1), attach)
}

fn spec(index: usize) -> TableSpec {
    let (key_bytes, value_bytes) = LENGTHS[index];
    TableSpec {
        id: 1 + index as u16,
        neighbourhood: [4, 6, 2][index % 3],
        key_bytes,
        value_bytes,
        shards: 2,
        buckets: 12,
    }
}

/// Changes a table from both machines, and looks up every key after each change of it.
fn changes_agree(cluster: &TestCluster, table: TableId, spec: &TableSpec) {
    let mut model = BTreeMap::new();
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(spec.id.into());
    for step in 0..400 {
        let key = key(rng.random_range(0..60), spec.key_bytes);
        let new = value(step, spec.value_bytes);
        let machine = &cluster.machines[step as usize % 2];
        let known = model.contains_key(&key);
        let (change, wanted) = match rng.random_range(0..4) {
            0 => (OwnedChange::Remove, [Changed::Absent, Changed::Removed]),
            1 => (
                OwnedChange::Insert(new.clone()),
                [Changed::Inserted, Changed::Exists],
            ),
            2 => (
                OwnedChange::Update(new.clone()),
                [Changed::Absent, Changed::Updated],
            ),
            _ => (
                OwnedChange::Upsert(new.clone()),
                [Changed::Inserted, Changed::Updated],
            ),
        };
        let changed = blocking::change(machine, 0, table, &key, change).unwrap();
        assert_eq!(changed, wanted[usize::from(known)], "{spec:?}");
        match changed {
            Changed::Inserted | Changed::Updated => _ = model.insert(key.clone(), new),
            Changed::Removed => _ = model.remove(&key),
            Changed::Exists | Changed::Absent => {}
        }
        for machine in &cluster.machines {
            let found = blocking::get(machine, 0, table, &key).unwrap();
            assert_eq!(found.as_ref(), model.get(&key), "{spec:?}");
        }
    }
    for number in 0..60 {
        let key = key(number, spec.key_bytes);
        let found = blocking::get(&cluster.machines[0], 0, table, &key).unwrap();
        assert_eq!(found.as_ref(), model.get(&key), "{spec:?}");
    }
    // Without writers, a lookup of many keys finds all of them at once, on the own machine and on the other one.
    let keys: Vec<_> = (0..80)
        .map(|number| key(number % 70, spec.key_bytes))
        .collect();
    let wanted: Vec<_> = keys.iter().map(|key| model.get(key).cloned()).collect();
    for machine in 0..2 {
        let keys = keys.clone();
        let found = cluster.on(machine, 0, move |worker| {
            let (mut found, mut left) = (vec![None; keys.len()], Vec::new());
            let key = |index: usize| &keys[index];
            // On a busy host the worker may be interrupted for longer than a version lasts. Then no result counts.
            for _ in 0..100 {
                let store =
                    |index: usize, value: Option<&[u8]>| found[index] = value.map(<[u8]>::to_vec);
                left.clear();
                farm_kv::get_many(worker, table, keys.len(), key, store, &mut left).unwrap();
                if left.is_empty() {
                    return found;
                }
                assert_eq!(left.len(), keys.len(), "without writers, all or none");
            }
            panic!("the worker was interrupted a hundred times");
        });
        assert_eq!(found, wanted, "{spec:?}");
    }
}

/// Inserts keys in one transaction, and swaps the values of two of them in another.
fn transactions_agree(cluster: &TestCluster, table: TableId, spec: TableSpec) {
    let (one, two) = (key(100, spec.key_bytes), key(101, spec.key_bytes));
    let values = [1, 2].map(|seed| value(seed, spec.value_bytes));
    let read = farm_txn::block_on(&cluster.machines[1], 0, {
        let (one, two, values) = (one.clone(), two.clone(), values.clone());
        async move |farm: farm_txn::Handle| {
            farm.transact(async |tx: Transaction<'_>| {
                for (key, value) in [&one, &two].into_iter().zip(&values) {
                    tasks::change(tx, table, key, Change::Upsert(value)).await?;
                }
                Ok::<_, TxError>(())
            })
            .await?;
            farm.transact(async |tx: Transaction<'_>| {
                let first = tasks::get(tx, table, &one).await?.expect("it was inserted");
                let second = tasks::get(tx, table, &two).await?.expect("it was inserted");
                tasks::change(tx, table, &one, Change::Update(&second)).await?;
                tasks::change(tx, table, &two, Change::Update(&first)).await?;
                tasks::get(tx, table, &one).await
            })
            .await
        }
    });
    assert_eq!(read.unwrap().unwrap().as_ref(), Some(&values[1]));
    for (key, value) in [(&one, &values[1]), (&two, &values[0])] {
        let found = blocking::get(&cluster.machines[0], 0, table, key).unwrap();
        assert_eq!(found.as_ref(), Some(value), "{spec:?}");
    }
}

#[test]
fn keys_of_all_lengths_agree_with_a_map() {
    let cluster = start("key-lengths");
    let mut tables = Vec::new();
    for index in 0..LENGTHS.len() {
        let spec = spec(index);
        let table = blocking::open(&cluster.machines, spec).unwrap();
        changes_agree(&cluster, table, &spec);
        transactions_agree(&cluster, table, spec);
        tables.push(table);
    }
    for table in tables {
        for checked in cluster.on_all(move |worker| farm_kv::ops::check(worker, table).map(drop)) {
            checked.unwrap();
        }
    }
    cluster.stop();
}

#[test]
fn a_key_of_another_length_is_refused() {
    let cluster = start("key-length");
    let table = blocking::open(&cluster.machines, spec(0)).unwrap();
    let machine = &cluster.machines[0];
    for found in [0, 7, 9, 16, 300] {
        let key = vec![1; found];
        let wrong = KvError::KeyLength { expected: 8, found };
        let got = blocking::get(machine, 0, table, &key).unwrap_err();
        assert!(
            matches!(&got, BlockingError::Table(error) if *error == wrong),
            "{got}"
        );
        let change = OwnedChange::Upsert(vec![0; 8]);
        let changed = blocking::change(machine, 0, table, &key, change).unwrap_err();
        assert!(
            matches!(&changed, BlockingError::Table(error) if *error == wrong),
            "{changed}"
        );
        let in_transaction = farm_txn::block_on(machine, 0, {
            async move |farm: farm_txn::Handle| {
                let get = async |tx: Transaction<'_>| tasks::get(tx, table, &key).await;
                let got = farm.transact(get).await.unwrap_err();
                let change = async |tx: Transaction<'_>| {
                    tasks::change(tx, table, &key, Change::Remove).await
                };
                (got, farm.transact(change).await.unwrap_err())
            }
        });
        let (got, changed) = in_transaction.unwrap();
        for error in [got, changed] {
            let refused =
                matches!(&error, TxError::Layer(why) if why.to_string() == wrong.to_string());
            assert!(refused, "{error}");
        }
    }
    cluster.stop();
}
