//! Workers of several machines get, insert, update and remove a few keys in a few buckets, with many concurrent
//! operations. The history of every key must be linearizable.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};

use farm_check::checkers::linear;
use farm_check::history::{KeyOperation, KeyRequest, KeyResult};
use farm_core::worker::{Cont, Worker};
use farm_kv::shard::Changed;
use farm_kv::{Change, GetCont, KvError, TableId, TableSpec, blocking};
use farm_testing::receive;
use rand::Rng;

use crate::cluster::{cluster, key};

const VALUE_BYTES: usize = 40;

fn value(number: u64) -> [u8; VALUE_BYTES] {
    let mut value = [0; VALUE_BYTES];
    for part in value.chunks_exact_mut(8) {
        part.copy_from_slice(&number.to_le_bytes());
    }
    value
}

fn number(bytes: &[u8]) -> u64 {
    let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert_eq!(
        bytes,
        value(number),
        "the value contains bytes of two writers"
    );
    number
}

/// The operations of one worker. Moments are values of a counter that all workers share.
struct Clients {
    table: TableId,
    keys: u64,
    moments: Arc<AtomicU64>,
    values: Arc<AtomicU64>,
    /// The current operation of each client of the worker.
    under_way: Vec<Option<KeyOperation>>,
    /// Number of the worker's first client in the history.
    first: u64,
    left: usize,
    history: Vec<KeyOperation>,
    done: mpsc::Sender<Vec<KeyOperation>>,
}

fn begin(worker: &mut Worker, place: u64, (): ()) {
    let (choice, number): (u32, u64) = (worker.rng().random_range(0..10), worker.rng().random());
    let clients = worker.layer::<Clients>().unwrap();
    if clients.left == 0 {
        if clients.under_way.iter().all(Option::is_none) {
            let history = std::mem::take(&mut clients.history);
            clients.done.send(history).unwrap();
        }
        return;
    }
    clients.left -= 1;
    let new = clients.values.fetch_add(1, Ordering::Relaxed);
    let request = match choice {
        0..=3 => KeyRequest::Get,
        4..=5 => KeyRequest::Insert(new),
        6 => KeyRequest::Update(new),
        7 => KeyRequest::Upsert(new),
        _ => KeyRequest::Remove,
    };
    let (table, number) = (clients.table, number % clients.keys);
    let begun = clients.moments.fetch_add(1, Ordering::SeqCst);
    clients.under_way[place as usize] = Some(KeyOperation {
        client: (clients.first + place) as u32,
        key: number,
        begun,
        ended: begun,
        request,
        result: None,
    });
    let (key, value) = (key(number), value(new));
    let change = match request {
        KeyRequest::Get => {
            let cont = GetCont::new(got, place);
            return farm_kv::get(worker, table, &key, cont).unwrap();
        }
        KeyRequest::Insert(_) => Change::Insert(&value),
        KeyRequest::Update(_) => Change::Update(&value),
        KeyRequest::Upsert(_) => Change::Upsert(&value),
        KeyRequest::Remove => Change::Remove,
    };
    farm_kv::change(worker, table, &key, change, Cont::new(changed, place)).unwrap();
}

fn got(worker: &mut Worker, place: u64, value: Result<Option<&[u8]>, &KvError>) {
    let result = KeyResult::Value(value.unwrap().map(number));
    end(worker, place, result);
}

fn changed(worker: &mut Worker, place: u64, changed: Result<Changed, KvError>) {
    end(worker, place, changed.unwrap().into());
}

fn end(worker: &mut Worker, place: u64, result: KeyResult) {
    let clients = worker.layer::<Clients>().unwrap();
    let ended = clients.moments.fetch_add(1, Ordering::SeqCst);
    let operation = clients.under_way[place as usize]
        .take()
        .expect("an operation has one result");
    clients.history.push(KeyOperation {
        ended,
        result: Some(result),
        ..operation
    });
    begin(worker, place, ());
}

/// Runs operations on every worker and checks every key. Returns the number of restarts of lookups.
fn is_linearizable(name: &str, spec: TableSpec, keys: u64, depth: u64, operations: usize) -> u64 {
    let cluster = cluster(name, 3, 2, spec);
    let table = cluster.table;
    let (moments, values) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(1)));
    let (done, histories) = mpsc::channel();
    for (index, machine) in cluster.machines.iter().enumerate() {
        for worker in 0..machine.workers() {
            let clients = Clients {
                table,
                keys,
                moments: Arc::clone(&moments),
                values: Arc::clone(&values),
                under_way: vec![None; depth as usize],
                first: (index * machine.workers() + worker) as u64 * depth,
                left: operations,
                history: vec![],
                done: done.clone(),
            };
            assert!(
                machine
                    .submit(worker, move |worker| {
                        worker.put_layer(Box::new(clients));
                        for place in 0..depth {
                            begin(worker, place, ());
                        }
                    })
                    .is_ok()
            );
        }
    }
    let history: Vec<KeyOperation> = (0..6).flat_map(|_| receive(&histories)).collect();
    let facts = cluster.check();
    let mut pairs = BTreeMap::new();
    for at in 0..keys {
        let machine = &cluster.machines[at as usize % 3];
        let found = blocking::get(machine, 0, table, key(at)).unwrap();
        pairs.extend(found.map(|value| (at, number(&value))));
    }
    assert_eq!(facts.pairs, pairs.len() as u64);
    linear::check_with_final(&history, &pairs).unwrap_or_else(|why| panic!("{name}: {why}"));
    let counters = cluster.on_all(farm_kv::counters);
    assert!(counters.iter().map(|counters| counters.hits).sum::<u64>() > 0);
    assert!(counters.iter().map(|counters| counters.misses).sum::<u64>() > 0);
    cluster.stop();
    counters.iter().map(|counters| counters.restarts).sum()
}

fn spec(neighbourhood: u32, shards: u32, buckets: u32) -> TableSpec {
    TableSpec {
        id: 1,
        neighbourhood,
        key_bytes: farm_kv::KEY_BYTES,
        value_bytes: VALUE_BYTES,
        shards,
        buckets,
    }
}

/// One slot per bucket and many more keys than slots: most pairs are in chains, which shrink and grow.
#[test]
fn chains_are_linearizable() {
    let mut runs = (0..5).map(|_| is_linearizable("lin-chains", spec(2, 1, 2), 12, 4, 6000));
    assert!(
        runs.any(|restarts| restarts > 0),
        "no lookup overlapped a change: the test proves nothing"
    );
}

/// About as many keys as slots: pairs are displaced in both directions.
#[test]
fn displacements_are_linearizable() {
    is_linearizable("lin-moves", spec(4, 2, 4), 16, 4, 6000);
    is_linearizable("lin-wide", spec(8, 3, 2), 24, 4, 4000);
}

/// Two keys that all workers access.
#[test]
fn hot_keys_are_linearizable() {
    is_linearizable("lin-hot", spec(6, 1, 1), 2, 2, 2500);
}
