//! Messages that no worker of a correct cluster sends: they are rejected, and the table stays unchanged.

use std::collections::BTreeMap;
use std::sync::mpsc;

use farm_core::ids::WorkerRef;
use farm_core::messaging::{CallError, MessageId, ReplyCont};
use farm_core::worker::Worker;
use farm_kv::blocking::{self, OwnedChange};
use farm_kv::{Key, TableSpec};
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::cluster::{Cluster, cluster, key, owner_of};

/// Requests of the hashtable: to create a table, to change one, and to make a shard.
const CREATE: MessageId = MessageId(MessageId::KV);
const CHANGE: MessageId = MessageId(MessageId::KV + 1);
const MAKE: MessageId = MessageId(MessageId::KV + 4);
/// Reply to a change that was rejected.
const REFUSED: u8 = 8;

type Reply = mpsc::Sender<Vec<u8>>;

/// Sends a request from the first machine, and returns its reply.
fn send(cluster: &Cluster, to: WorkerRef, id: MessageId, body: Vec<u8>) -> Vec<u8> {
    fn replied(worker: &mut Worker, _: u64, reply: Result<&[u8], CallError>) {
        let reply = reply.unwrap().to_vec();
        worker.take_layer::<Reply>().send(reply).unwrap();
    }
    cluster.machines[0]
        .ask(0, move |worker, answer| {
            worker.put_layer(Box::new(answer));
            let cont = ReplyCont::new(replied, 0);
            worker.call(to, id, &[&body], 8, cont).unwrap();
        })
        .unwrap()
}

/// Returns the message of a change.
fn message(code: u8, table: u16, shard: u32, bucket: u32, pair: &[u8]) -> Vec<u8> {
    let mut body = vec![code, farm_kv::KEY_BYTES as u8 - 1];
    body.extend_from_slice(&table.to_le_bytes());
    body.extend_from_slice(&shard.to_le_bytes());
    body.extend_from_slice(&bucket.to_le_bytes());
    body.extend_from_slice(pair);
    body
}

#[test]
fn garbage_is_rejected_and_changes_nothing() {
    let spec = TableSpec {
        id: 9,
        neighbourhood: 4,
        key_bytes: farm_kv::KEY_BYTES,
        value_bytes: 32,
        shards: 2,
        buckets: 8,
    };
    let cluster = cluster("garbage", 2, 1, spec);
    let (table, asker) = (cluster.table, &cluster.machines[0]);
    let mut pairs: BTreeMap<Key, Vec<u8>> = BTreeMap::new();
    for number in 0..30 {
        let value = vec![number as u8; 32];
        let insert = OwnedChange::Insert(value.clone());
        blocking::change(asker, 0, table, key(number), insert).unwrap();
        pairs.insert(key(number), value);
    }
    let far = cluster.machines[1].id();
    let (owner, known) = cluster.on(0, 0, move |worker| {
        let mut owned = (0..30).map(|number| (owner_of(worker, table, &key(number)), number));
        let (owner, number) = owned.find(|(owner, _)| owner.machine == far).unwrap();
        (owner, key(number))
    });
    let pair = [&known[..], &[0xEE; 32]].concat();
    // The change is accepted only with the right code and in the only bucket in which the key can be.
    let mut made = 0;
    for shard in 0..3 {
        for bucket in (0..10).chain([u32::MAX]) {
            let body = message(2, 9, shard, bucket, &pair);
            made += u32::from(send(&cluster, owner, CHANGE, body) != [REFUSED]);
            for code in [0, 5, 255] {
                let body = message(code, 9, shard, bucket, &pair);
                assert_eq!(send(&cluster, owner, CHANGE, body), [REFUSED]);
            }
        }
    }
    assert_eq!(
        made, 1,
        "a change was accepted in the wrong number of buckets"
    );
    pairs.insert(known, vec![0xEE; 32]);
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
    for _ in 0..500 {
        let mut noise = vec![0; rng.random_range(0..80)];
        rng.fill(&mut noise[..]);
        if rng.random() && noise.len() > 12 {
            noise[..4].copy_from_slice(&[rng.random_range(1..5), rng.random(), 9, 0]);
        }
        assert_eq!(send(&cluster, owner, CHANGE, noise.clone()), [REFUSED]);
        assert_eq!(send(&cluster, owner, CREATE, noise.clone()).len(), 1);
        assert!(send(&cluster, owner, MAKE, noise).is_empty());
    }
    assert_eq!(cluster.check().pairs, pairs.len() as u64);
    for (key, value) in pairs {
        assert_eq!(blocking::get(asker, 0, table, key).unwrap(), Some(value));
    }
    cluster.stop();
}
