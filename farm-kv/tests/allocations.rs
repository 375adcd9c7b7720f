//! Warm gets and updates allocate no memory on the threads of workers, neither on the caller's worker nor on the owner.

mod common;
#[path = "../../farm-txn/tests/counting/mod.rs"]
mod counting;

use std::sync::mpsc;

use farm_core::config::Config;
use farm_core::worker::{Cont, Worker};
use farm_kv::blocking;
use farm_kv::shard::Changed;
use farm_kv::{Change, GetCont, Key, KvError, TableId, TableSpec};
use farm_testing::receive;
use rand::Rng;

const KEYS: u64 = 2000;
const VALUE_BYTES: usize = 32;
/// Concurrent operations of each worker.
const DEPTH: usize = 64;
const WARM: u64 = 50_000;
const COUNTED: u64 = 20_000;

fn key(number: u64) -> Key {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&number.to_le_bytes());
    key
}

/// The operations of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mix {
    Gets,
    Updates,
    Both,
}

struct Client {
    table: TableId,
    mix: Mix,
    left: u64,
    under_way: usize,
    done: mpsc::Sender<()>,
}

fn begin(worker: &mut Worker) {
    let (number, update): (u64, bool) = (worker.rng().random_range(0..KEYS), worker.rng().random());
    let client = worker.layer::<Client>().unwrap();
    if client.left == 0 {
        client.under_way -= 1;
        if client.under_way == 0 {
            // The receiver is another thread, and waking it allocates. That is not part of an operation.
            let counts = counting::count(false);
            client.done.send(()).unwrap();
            counting::count(counts);
        }
        return;
    }
    client.left -= 1;
    let table = client.table;
    let update = client.mix == Mix::Updates || client.mix == Mix::Both && update;
    if update {
        let change = Change::Upsert(&[number as u8; VALUE_BYTES]);
        farm_kv::change(worker, table, &key(number), change, Cont::new(changed, 0)).unwrap();
    } else {
        farm_kv::get(worker, table, &key(number), GetCont::new(got, number)).unwrap();
    }
}

fn got(worker: &mut Worker, number: u64, value: Result<Option<&[u8]>, &KvError>) {
    assert_eq!(value.unwrap(), Some(&[number as u8; VALUE_BYTES][..]));
    begin(worker);
}

fn changed(worker: &mut Worker, _: u64, changed: Result<Changed, KvError>) {
    assert_eq!(changed.unwrap(), Changed::Updated);
    begin(worker);
}

#[test]
fn a_warm_table_allocates_nothing() {
    let mut config = Config::tiny_for(2, 2);
    config.rings.ring_bytes = 64 << 10;
    config.worker.operations_in_flight = 256;
    let cluster = common::start("allocations", config);
    let machines = &cluster.machines;
    // Four shards, one per worker: the worker's own shard, that of the machine's other worker, and remote ones. At 90 %
    // occupancy some pairs are in chains.
    let spec = TableSpec::sized(1, 6, VALUE_BYTES, 4, KEYS, 0.9).unwrap();
    let table = blocking::open(machines, spec).unwrap();
    for number in 0..KEYS {
        let insert = blocking::OwnedChange::Insert(vec![number as u8; VALUE_BYTES]);
        blocking::change(&machines[0], 0, table, key(number), insert).unwrap();
    }
    let workers: Vec<_> = machines
        .iter()
        .flat_map(|machine| [(machine, 0), (machine, 1)])
        .collect();
    let work = |mix: Mix, operations: u64, counts: bool| {
        let (done, all_done) = mpsc::channel();
        for (machine, worker) in &workers {
            let client = Client {
                table,
                mix,
                left: operations,
                under_way: DEPTH,
                done: done.clone(),
            };
            assert!(
                machine
                    .submit(*worker, move |worker| {
                        worker.put_layer(Box::new(client));
                        counting::count(counts);
                        (0..DEPTH).for_each(|_| begin(worker));
                    })
                    .is_ok()
            );
        }
        for _ in &workers {
            receive(&all_done);
        }
        cluster.on_all(|_| {
            counting::count(false);
            counting::take().times
        })
    };
    let warm = work(Mix::Both, WARM, true);
    println!("during the warm-up: {warm:?}");
    for mix in [Mix::Gets, Mix::Updates, Mix::Both] {
        assert_eq!(work(mix, COUNTED, true), [0; 4], "{mix:?}");
    }
    cluster.stop();
}
