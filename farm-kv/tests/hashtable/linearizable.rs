//! Workers of several machines get, insert, update and remove a few keys in a few buckets, with many concurrent
//! operations. The history of every key must be linearizable.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};

use farm_core::worker::{Cont, Worker};
use farm_kv::shard::Changed;
use farm_kv::{Change, GetCont, KvError, TableId, TableSpec, blocking};
use farm_testing::receive;
use rand::Rng;

use crate::cluster::{cluster, key};
use crate::history::{Operation, Reply, Request, check};

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

/// An operation whose reply is outstanding.
#[derive(Clone, Copy)]
struct Begun {
    key: u64,
    request: Request,
    at: u64,
}

/// The operations of one worker. Moments are values of a counter that all workers share.
struct Client {
    table: TableId,
    keys: u64,
    moments: Arc<AtomicU64>,
    values: Arc<AtomicU64>,
    /// A slot for each concurrent operation.
    under_way: Vec<Option<Begun>>,
    left: usize,
    history: Vec<(u64, Operation)>,
    done: mpsc::Sender<Vec<(u64, Operation)>>,
}

fn begin(worker: &mut Worker, place: u64, (): ()) {
    let (choice, number): (usize, u64) = (worker.rng().random_range(0..10), worker.rng().random());
    let client = worker.layer::<Client>().unwrap();
    if client.left == 0 {
        if client.under_way.iter().all(Option::is_none) {
            let history = std::mem::take(&mut client.history);
            client.done.send(history).unwrap();
        }
        return;
    }
    client.left -= 1;
    let new = client.values.fetch_add(1, Ordering::Relaxed);
    let request = match choice {
        0..=3 => Request::Get,
        4 => Request::Insert(new),
        5 => Request::Update(new),
        6 => Request::Upsert(new),
        _ => [Request::Remove, Request::Insert(new), Request::Remove][choice - 7],
    };
    let (table, number) = (client.table, number % client.keys);
    let at = client.moments.fetch_add(1, Ordering::SeqCst);
    client.under_way[place as usize] = Some(Begun {
        key: number,
        request,
        at,
    });
    let (key, value) = (key(number), value(new));
    let change = match request {
        Request::Get => {
            let cont = GetCont::new(got, place);
            return farm_kv::get(worker, table, &key, cont).unwrap();
        }
        Request::Insert(_) => Change::Insert(&value),
        Request::Update(_) => Change::Update(&value),
        Request::Upsert(_) => Change::Upsert(&value),
        Request::Remove => Change::Remove,
    };
    farm_kv::change(worker, table, &key, change, Cont::new(changed, place)).unwrap();
}

fn got(worker: &mut Worker, place: u64, value: Result<Option<&[u8]>, KvError>) {
    let reply = Reply::Value(value.unwrap().map(number));
    end(worker, place, reply);
}

fn changed(worker: &mut Worker, place: u64, changed: Result<Changed, KvError>) {
    end(worker, place, Reply::Changed(changed.unwrap()));
}

fn end(worker: &mut Worker, place: u64, reply: Reply) {
    let client = worker.layer::<Client>().unwrap();
    let ended = client.moments.fetch_add(1, Ordering::SeqCst);
    let begun = client.under_way[place as usize]
        .take()
        .expect("an operation has one reply");
    let operation = Operation {
        begun: begun.at,
        ended,
        request: begun.request,
        reply,
    };
    client.history.push((begun.key, operation));
    begin(worker, place, ());
}

/// Runs operations on every worker and checks every key. Returns the number of restarts of lookups.
fn is_linearizable(name: &str, spec: TableSpec, keys: u64, depth: u64, operations: usize) -> u64 {
    let cluster = cluster(name, 3, 2, spec);
    let table = cluster.table;
    let (moments, values) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(1)));
    let (done, histories) = mpsc::channel();
    for machine in &cluster.machines {
        for worker in 0..machine.workers() {
            let client = Client {
                table,
                keys,
                moments: Arc::clone(&moments),
                values: Arc::clone(&values),
                under_way: vec![None; depth as usize],
                left: operations,
                history: vec![],
                done: done.clone(),
            };
            assert!(
                machine
                    .submit(worker, move |worker| {
                        worker.put_layer(Box::new(client));
                        for place in 0..depth {
                            begin(worker, place, ());
                        }
                    })
                    .is_ok()
            );
        }
    }
    let mut by_key: Vec<Vec<Operation>> = vec![vec![]; keys as usize];
    for _ in 0..6 {
        for (key, operation) in receive(&histories) {
            by_key[key as usize].push(operation);
        }
    }
    let facts = cluster.check();
    // Append the final value of each key to its history.
    let moment = || moments.fetch_add(1, Ordering::SeqCst);
    let mut present = 0;
    for (number, history) in by_key.iter_mut().enumerate() {
        let begun = moment();
        let found = blocking::get(&cluster.machines[number % 3], 0, table, key(number as u64));
        let found = found.unwrap().as_deref().map(self::number);
        present += u64::from(found.is_some());
        history.push(Operation {
            begun,
            ended: moment(),
            request: Request::Get,
            reply: Reply::Value(found),
        });
    }
    assert_eq!(facts.pairs, present);
    for (number, history) in by_key.iter().enumerate() {
        check(history).unwrap_or_else(|why| panic!("key {number} of {name}: {why}"));
    }
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
