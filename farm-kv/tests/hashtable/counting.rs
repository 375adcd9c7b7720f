//! The costs of operations, counted at both ends: ring messages and one-sided reads.

use std::sync::mpsc;

use farm_core::fabric::Counters;
use farm_core::messaging::MessageCounters;
use farm_core::worker::{Cont, ReadCounters, Worker};
use farm_kv::blocking::{self, OwnedChange};
use farm_kv::shard::Changed;
use farm_kv::{GetCont, Key, KvError, LookupCounters, TableSpec};
use farm_testing::receive;

use crate::cluster::{Cluster, cluster, key, owner_of};

fn spec(neighbourhood: u32, shards: u32, buckets: u32) -> TableSpec {
    TableSpec {
        id: 1,
        neighbourhood,
        key_bytes: farm_kv::KEY_BYTES,
        value_bytes: 32,
        shards,
        buckets,
    }
}

/// All counters of one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counted {
    messages: MessageCounters,
    fabric: Counters,
    reads: ReadCounters,
    lookups: LookupCounters,
}

fn counted(worker: &mut Worker) -> Counted {
    Counted {
        messages: worker.message_counters(),
        fabric: worker.fabric_counters(),
        reads: worker.read_counters(),
        lookups: farm_kv::counters(worker),
    }
}

/// Returns a key of a shard of a machine with one worker, from number `from` on.
fn key_of(cluster: &Cluster, machine: usize, from: u64) -> Key {
    let table = cluster.table;
    let owner = cluster.machines[machine].id();
    cluster.on(0, 0, move |worker| {
        (from..)
            .map(key)
            .find(|key| owner_of(worker, table, key).machine == owner)
            .unwrap()
    })
}

/// A change of a pair on another machine costs one request and one reply, and no one-sided read. A change of a pair
/// that the worker itself owns costs no message.
#[test]
fn a_shipped_change_is_one_request_and_one_reply() {
    let cluster = cluster("count-messages", 2, 1, spec(6, 2, 64));
    let (table, caller) = (cluster.table, &cluster.machines[0]);
    for number in 0..4 {
        let (far, own) = (
            key_of(&cluster, 1, number * 100),
            key_of(&cluster, 0, number * 100),
        );
        for (change, did) in [
            (OwnedChange::Insert(vec![1; 32]), Changed::Inserted),
            (OwnedChange::Update(vec![2; 32]), Changed::Updated),
            (OwnedChange::Insert(vec![3; 32]), Changed::Exists),
            (OwnedChange::Upsert(vec![4; 32]), Changed::Updated),
            (OwnedChange::Remove, Changed::Removed),
            (OwnedChange::Remove, Changed::Absent),
        ] {
            for (key, shipped) in [(far, 1), (own, 0)] {
                let before = cluster.on_all(counted);
                let outcome = blocking::change(caller, 0, table, key, change.clone());
                assert_eq!(outcome.unwrap(), did);
                let after = cluster.on_all(counted);
                let (asking, owning) = (before[0].messages, before[1].messages);
                let expected = [
                    MessageCounters {
                        calls: asking.calls + shipped,
                        received: asking.received + shipped,
                        ..asking
                    },
                    MessageCounters {
                        replies: owning.replies + shipped,
                        received: owning.received + shipped,
                        ..owning
                    },
                ];
                assert_eq!(
                    [after[0].messages, after[1].messages],
                    expected,
                    "{change:?}"
                );
                for (before, after) in before.iter().zip(&after) {
                    assert_eq!(before.fabric.reads, after.fabric.reads, "{change:?}");
                    assert_eq!(before.reads, after.reads, "{change:?}");
                }
            }
        }
    }
    cluster.stop();
}

/// A lookup of a key in its home bucket or the next one costs one one-sided read and no message. On the machine of the
/// shard it costs no one-sided read.
#[test]
fn a_lookup_costs_one_one_sided_read() {
    let cluster = cluster("count-reads", 2, 1, spec(6, 2, 256));
    let (table, caller) = (cluster.table, &cluster.machines[0]);
    let far: Vec<Key> = (0..50).map(|n| key_of(&cluster, 1, n * 100)).collect();
    let own: Vec<Key> = (0..50).map(|n| key_of(&cluster, 0, n * 100)).collect();
    for key in far.iter().chain(&own) {
        let insert = OwnedChange::Upsert(vec![7; 32]);
        blocking::change(caller, 0, table, *key, insert).unwrap();
    }
    assert_eq!(cluster.check().chained, 0, "some pairs are in chains");
    // The first read of another machine's memory requests its capability.
    blocking::get(caller, 0, table, far[0]).unwrap();
    for (keys, one_sided) in [(&far, 1), (&own, 0)] {
        for key in keys {
            let before = cluster.on_all(counted);
            assert_eq!(
                blocking::get(caller, 0, table, *key).unwrap(),
                Some(vec![7; 32])
            );
            let after = cluster.on_all(counted);
            // A worker that lost its core in the middle of a read repeats the read.
            let tries = 1 + after[0].reads.restarts - before[0].reads.restarts;
            let (far, own) = (one_sided * tries, (1 - one_sided) * tries);
            assert_eq!(after[0].fabric.reads, before[0].fabric.reads + far);
            assert_eq!(after[0].reads.remote, before[0].reads.remote + far);
            assert_eq!(after[0].reads.local, before[0].reads.local + own);
            assert_eq!(after[0].lookups.hits, before[0].lookups.hits + 1);
            assert_eq!(
                after[0].lookups.reads_of_hits,
                before[0].lookups.reads_of_hits + 1
            );
            assert_eq!(after[0].messages, before[0].messages);
            assert_eq!(after[1], before[1], "the lookup used the owner's worker");
        }
        // Of many at once, each costs the same.
        let before = cluster.on_all(counted);
        let mut tries = 1;
        let at_once =
            |keys: Vec<Key>| cluster.on(0, 0, move |worker| all_at_once(worker, table, &keys));
        while !at_once(keys.clone()) {
            // The worker lost its core in the middle of a read.
            tries += 1;
        }
        let after = cluster.on_all(counted);
        let reads = tries * keys.len() as u64;
        assert_eq!(
            after[0].fabric.reads,
            before[0].fabric.reads + one_sided * reads
        );
        assert_eq!(
            after[0].reads.remote,
            before[0].reads.remote + one_sided * reads
        );
        assert_eq!(
            after[0].reads.local,
            before[0].reads.local + (1 - one_sided) * reads
        );
        assert_eq!(after[0].lookups.hits, before[0].lookups.hits + reads);
        assert_eq!(after[0].messages, before[0].messages);
        assert_eq!(after[1], before[1], "the lookups used the owner's worker");
    }
    cluster.stop();
}

/// Looks up keys at once. Returns whether that was possible for all of them.
fn all_at_once(worker: &mut Worker, table: farm_kv::TableId, keys: &[Key]) -> bool {
    let mut left = Vec::new();
    let found = |_: usize, value: Option<&[u8]>| assert_eq!(value, Some(&[7; 32][..]));
    let key = |index: usize| keys[index];
    farm_kv::get_many(worker, table, keys.len(), key, found, &mut left).unwrap();
    left.is_empty()
}

struct Gets {
    left: u64,
    under_way: u64,
    done: mpsc::Sender<()>,
}

/// Looks up many keys with several concurrent lookups; some of the keys exist.
fn many_gets(cluster: &Cluster, machine: usize, worker: usize, keys: u64) {
    fn next(worker: &mut Worker, table: u64, (): ()) {
        let gets = worker.layer::<Gets>().unwrap();
        if gets.left == 0 {
            gets.under_way -= 1;
            if gets.under_way == 0 {
                gets.done.send(()).unwrap();
            }
            return;
        }
        gets.left -= 1;
        let number = key(gets.left);
        let table = table_of(worker, table);
        farm_kv::get(worker, table, &number, GetCont::new(got, 0)).unwrap();
    }
    fn got(worker: &mut Worker, context: u64, value: Result<Option<&[u8]>, &KvError>) {
        value.unwrap();
        next(worker, context, ());
    }
    fn table_of(worker: &mut Worker, _: u64) -> farm_kv::TableId {
        *worker.layer::<farm_kv::TableId>().unwrap()
    }
    let (done, ended) = mpsc::channel();
    let table = cluster.table;
    cluster.on(machine, worker, move |worker| {
        let under_way = 16;
        worker.put_layer(Box::new(table));
        worker.put_layer(Box::new(Gets {
            left: keys,
            under_way,
            done,
        }));
        (0..under_way).for_each(|_| next(worker, 0, ()));
    });
    receive(&ended);
}

/// The table's count of reads, for hits and misses in buckets and in chains, equals the reads that the endpoint posted
/// plus the local reads.
#[test]
fn the_table_and_the_endpoint_count_the_same_reads() {
    let cluster = cluster("count-alike", 2, 2, spec(4, 4, 20));
    let (table, keys) = (cluster.table, 250);
    for number in 0..keys {
        let insert = OwnedChange::Insert(vec![number as u8; 32]);
        let machine = &cluster.machines[number as usize % 2];
        blocking::change(machine, 0, table, key(number), insert).unwrap();
    }
    let facts = cluster.check();
    assert!(facts.chained > 20, "{facts:?}");
    let begun = cluster.on_all(counted);
    for (machine, worker) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        many_gets(&cluster, machine, worker, 2 * keys);
    }
    let mut reads = 0;
    for (before, after) in begun.iter().zip(cluster.on_all(counted)) {
        let lookups = after.lookups;
        assert_eq!((lookups.hits, lookups.misses), (keys, keys));
        assert_eq!(lookups.local + lookups.remote, 2 * keys);
        assert_eq!(
            lookups.restarts, 0,
            "lookups restarted although no worker writes"
        );
        let one_sided = after.fabric.reads - before.fabric.reads;
        let local = after.reads.local - before.reads.local;
        // Repeated reads, because the worker lost its core in the middle of a read.
        let again = after.reads.restarts - before.reads.restarts;
        assert_eq!(
            lookups.reads_of_hits + lookups.reads_of_misses + again,
            one_sided + local
        );
        assert_eq!(one_sided, after.reads.remote - before.reads.remote);
        assert!(lookups.reads_of_hits > keys, "no lookup read a chain");
        reads += one_sided + local;
    }
    assert!(reads > 8 * keys);
    cluster.stop();
}

/// Starts changes of one key in one turn of the worker `caller`, and returns their outcomes in order.
fn changes_at_once(
    cluster: &Cluster,
    caller: usize,
    key: Key,
    changes: Vec<OwnedChange>,
) -> Vec<Changed> {
    struct Pending {
        outcomes: Vec<Option<Result<Changed, KvError>>>,
        done: mpsc::Sender<Vec<Changed>>,
    }
    fn change_done(worker: &mut Worker, number: u64, outcome: Result<Changed, KvError>) {
        let pending = worker.layer::<Pending>().unwrap();
        pending.outcomes[number as usize] = Some(outcome);
        if pending.outcomes.iter().all(Option::is_some) {
            let outcomes = pending.outcomes.drain(..);
            let outcomes = outcomes.map(|outcome| outcome.unwrap().unwrap());
            pending.done.send(outcomes.collect()).unwrap();
        }
    }
    let (done, outcomes) = mpsc::channel();
    let table = cluster.table;
    cluster.machines[caller]
        .submit(0, move |worker| {
            worker.put_layer(Box::new(Pending {
                outcomes: vec![None; changes.len()],
                done,
            }));
            for (number, change) in changes.iter().enumerate() {
                let cont = Cont::new(change_done, number as u64);
                farm_kv::change(worker, table, &key, change.as_change(), cont).unwrap();
            }
        })
        .unwrap();
    receive(&outcomes)
}

/// Inserts and updates of one key that arrive in the same turn are combined into one transaction. Each of them receives
/// the outcome that it would have if they were made one after the other. A remove among them is a transaction of its
/// own.
#[test]
fn puts_of_one_key_are_combined() {
    let cluster = cluster("count-combined", 2, 1, spec(6, 2, 64));
    let key = key_of(&cluster, 0, 0);
    let value = |byte: u8| vec![byte; 32];
    let transactions = |_: ()| {
        let counters = cluster.on(0, 0, farm_kv::change_counters);
        (counters.changes, counters.transactions)
    };
    let mut changes = vec![
        OwnedChange::Update(value(1)),
        OwnedChange::Insert(value(2)),
        OwnedChange::Insert(value(3)),
    ];
    changes.extend((0..61).map(|byte| OwnedChange::Upsert(value(byte))));
    let outcomes = changes_at_once(&cluster, 0, key, changes.clone());
    assert_eq!(
        outcomes[..3],
        [Changed::Absent, Changed::Inserted, Changed::Exists]
    );
    assert!(outcomes[3..].iter().all(|did| *did == Changed::Updated));
    assert_eq!(transactions(()), (64, 1));
    let get = || blocking::get(&cluster.machines[1], 0, cluster.table, key).unwrap();
    assert_eq!(get(), Some(value(60)));

    let around = vec![
        OwnedChange::Update(value(7)),
        OwnedChange::Remove,
        OwnedChange::Update(value(8)),
        OwnedChange::Insert(value(9)),
    ];
    let outcomes = changes_at_once(&cluster, 0, key, around);
    let expected = [
        Changed::Updated,
        Changed::Removed,
        Changed::Absent,
        Changed::Inserted,
    ];
    assert_eq!(outcomes, expected);
    assert_eq!(transactions(()), (68, 4));
    assert_eq!(get(), Some(value(9)));

    // The same with shipped changes; the owner may receive any number of them in one turn.
    let outcomes = changes_at_once(&cluster, 1, key, changes);
    assert_eq!(outcomes[1], Changed::Exists);
    let (made, in_transactions) = transactions(());
    assert_eq!(made, 132);
    assert!((5..=68).contains(&in_transactions), "{in_transactions}");
    assert_eq!(get(), Some(value(60)));
    assert_eq!(cluster.check().pairs, 1);
    cluster.stop();
}
