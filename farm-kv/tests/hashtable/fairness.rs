//! Changes that wait for room in the rings are sent before later ones.
//!
//! Room becomes free call by call, with each reply. A client that starts its next change when one has ended would take
//! all of that room, and a waiting change would starve.

use std::sync::mpsc;

use farm_core::worker::{Cont, Worker};
use farm_kv::shard::Changed;
use farm_kv::{Change, KvError, TableId, TableSpec};
use farm_testing::receive;

use crate::cluster::{cluster_of, config, key, owner_of};

const DEPTH: u64 = 64;
const CHANGES: u64 = 4000;

struct Client {
    table: TableId,
    keys: Vec<farm_kv::Key>,
    begun: u64,
    ended: u64,
    /// Maximum number of changes that were started and ended while one change was in flight.
    longest: u64,
    done: mpsc::Sender<u64>,
}

fn begin(worker: &mut Worker) {
    let client = worker.layer::<Client>().unwrap();
    let (table, number) = (client.table, client.begun);
    let key = client.keys[number as usize % client.keys.len()];
    client.begun += 1;
    let change = Change::Upsert(&[number as u8; 32]);
    farm_kv::change(worker, table, &key, change, Cont::new(end, number)).unwrap();
}

fn end(worker: &mut Worker, number: u64, changed: Result<Changed, KvError>) {
    changed.unwrap();
    let client = worker.layer::<Client>().unwrap();
    client.ended += 1;
    client.longest = client.longest.max(client.ended.saturating_sub(number));
    if client.ended == CHANGES {
        client.done.send(client.longest).unwrap();
    } else if client.begun < CHANGES {
        begin(worker);
    }
}

#[test]
fn changes_that_wait_for_room_are_not_overtaken() {
    let spec = TableSpec {
        id: 1,
        neighbourhood: 6,
        key_bytes: farm_kv::KEY_BYTES,
        value_bytes: 32,
        shards: 2,
        buckets: 64,
    };
    // Room for sixteen replies, and four times as many changes.
    let mut config = config(2, 1);
    config.rings.ring_bytes = 4 << 10;
    let cluster = cluster_of("fair", config, spec);
    let (table, owner) = (cluster.table, cluster.machines[1].id());
    let (done, longest) = mpsc::channel();
    cluster.on(0, 0, move |worker| {
        let keys = (0..100).map(key);
        let far = |key: &_| owner_of(worker, table, key).machine == owner;
        let keys: Vec<_> = keys.filter(far).collect();
        worker.put_layer(Box::new(Client {
            table,
            keys,
            begun: 0,
            ended: 0,
            longest: 0,
            done,
        }));
        (0..DEPTH).for_each(|_| begin(worker));
    });
    let longest = receive(&longest);
    assert!(
        longest <= 2 * DEPTH,
        "one change waited while {longest} were made"
    );
    let busy = cluster.on(0, 0, |worker| worker.message_counters().busy);
    assert!(
        busy > 0,
        "the rings were never full: the test proves nothing"
    );
    cluster.stop();
}
