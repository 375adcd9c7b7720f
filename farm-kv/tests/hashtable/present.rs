//! Every lookup finds a key that is always in the table, regardless of changes of its neighbours: a displaced pair is
//! always in one of its buckets, and a change of a chain hides no key.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use farm_core::worker::{Cont, Worker};
use farm_kv::blocking::{self, OwnedChange};
use farm_kv::shard::Changed;
use farm_kv::{Change, GetCont, KvError, TableId, TableSpec};
use farm_testing::receive;
use rand::Rng;

use crate::cluster::{Cluster, cluster, key};

const VALUE_BYTES: usize = 32;
/// Keys from this number on are inserted and removed.
const CHURN: u64 = 1000;
/// Bounds of the duration of a run.
const LEAST: Duration = Duration::from_millis(500);
const MOST: Duration = Duration::from_secs(12);

/// Returns a value that contains its key, the number of its write, and a checksum of both.
fn value(key: u64, write: u64) -> [u8; VALUE_BYTES] {
    let mut value = [0; VALUE_BYTES];
    let mixed = (key ^ write.rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    for (part, word) in value.chunks_exact_mut(8).zip([key, write, mixed, !mixed]) {
        part.copy_from_slice(&word.to_le_bytes());
    }
    value
}

fn is_of(bytes: &[u8], key: u64) -> bool {
    let word = |at: usize| u64::from_le_bytes(bytes[at * 8..][..8].try_into().unwrap());
    word(0) == key && bytes == value(key, word(1))
}

/// Inserts and removes the changing keys, and sometimes updates one of the stable keys.
struct Churner {
    table: TableId,
    stable: u64,
    churning: u64,
    writes: u64,
    stop: Arc<AtomicBool>,
    under_way: usize,
    done: mpsc::Sender<u64>,
}

fn churn(worker: &mut Worker, _: u64, (): ()) {
    let (choice, number): (u32, u64) = (worker.rng().random_range(0..10), worker.rng().random());
    let churner = worker.layer::<Churner>().unwrap();
    if churner.stop.load(Ordering::Relaxed) {
        churner.under_way -= 1;
        if churner.under_way == 0 {
            churner.done.send(churner.writes).unwrap();
        }
        return;
    }
    churner.writes += 1;
    let (table, write) = (churner.table, churner.writes);
    let number = match choice {
        0 => number % churner.stable,
        _ => CHURN + number % churner.churning,
    };
    let value = value(number, write);
    let change = match choice {
        0 => Change::Update(&value),
        1..=4 => Change::Remove,
        _ => Change::Insert(&value),
    };
    let cont = Cont::new(churned, u64::from(choice == 0));
    farm_kv::change(worker, table, &key(number), change, cont).unwrap();
}

fn churned(worker: &mut Worker, stable: u64, changed: Result<Changed, KvError>) {
    let changed = changed.unwrap();
    assert_eq!(changed == Changed::Updated, stable == 1, "{changed:?}");
    churn(worker, 0, ());
}

/// Looks up the stable keys, one at a time and many.
struct Reader {
    table: TableId,
    stable: u64,
    stop: Arc<AtomicBool>,
    lookups: u64,
    /// Number of keys that were looked up many at a time, and of those that were left to single lookups.
    of_many: [u64; 2],
    under_way: usize,
    /// Number of lookups that did not find their key, with the first such key; and the first wrong value, with its key.
    missed: Option<(u64, u64)>,
    wrong: Option<(u64, Vec<u8>)>,
    done: mpsc::Sender<(u64, [u64; 2], Misses)>,
}

type Misses = (Option<(u64, u64)>, Option<(u64, Vec<u8>)>);

fn read(worker: &mut Worker, _: u64, (): ()) {
    let number: u64 = worker.rng().random();
    let reader = worker.layer::<Reader>().unwrap();
    if reader.stop.load(Ordering::Relaxed) {
        reader.under_way -= 1;
        if reader.under_way == 0 {
            let misses = (reader.missed.take(), reader.wrong.take());
            reader
                .done
                .send((reader.lookups, reader.of_many, misses))
                .unwrap();
        }
        return;
    }
    reader.lookups += 1;
    let (table, stable, number) = (reader.table, reader.stable, number % reader.stable);
    if number % 4 == 0 {
        read_many(worker, table, stable, number);
    }
    farm_kv::get(
        worker,
        table,
        &key(number),
        GetCont::new(lookup_done, number),
    )
    .unwrap();
}

/// Looks up several stable keys at once.
fn read_many(worker: &mut Worker, table: TableId, stable: u64, first: u64) {
    const KEYS: usize = 20;
    let of = |index: usize| (first + index as u64) % stable;
    let (mut found, mut left) = ([None; KEYS], Vec::new());
    let store = |index: usize, value: Option<&[u8]>| {
        found[index] = Some(value.map(|value| is_of(value, of(index))));
    };
    farm_kv::get_many(
        worker,
        table,
        KEYS,
        |index| key(of(index)),
        store,
        &mut left,
    )
    .unwrap();
    let reader = worker.layer::<Reader>().unwrap();
    reader.of_many[0] += KEYS as u64;
    reader.of_many[1] += left.len() as u64;
    for (index, found) in found.into_iter().enumerate() {
        match found {
            _ if left.contains(&index) => {}
            Some(Some(true)) => {}
            Some(None) => reader.missed.get_or_insert((0, of(index))).0 += 1,
            _ => _ = reader.wrong.get_or_insert((of(index), vec![])),
        }
    }
}

fn lookup_done(worker: &mut Worker, number: u64, value: Result<Option<&[u8]>, &KvError>) {
    let value = value.unwrap();
    let reader = worker.layer::<Reader>().unwrap();
    match value {
        None => reader.missed.get_or_insert((0, number)).0 += 1,
        Some(bytes) if !is_of(bytes, number) => {
            reader.wrong.get_or_insert((number, bytes.to_vec()));
        }
        Some(_) => {}
    }
    read(worker, 0, ());
}

/// Counts so far.
#[derive(Debug, Default)]
struct Seen {
    lookups: u64,
    /// Restarts of lookups: joint versions or incarnations did not match.
    restarts: u64,
    /// Retries of single reads: an object was locked, or changed during the copy.
    retries: u64,
    /// Changes that were shipped to another worker.
    shipped: u64,
}

fn seen(cluster: &Cluster) -> Seen {
    let mut seen = Seen::default();
    let counted = cluster.on_all(|worker| {
        let (reads, fabric) = (worker.read_counters(), worker.fabric_counters());
        (
            farm_kv::counters(worker),
            reads.restarts + fabric.read_retries + fabric.reads_torn,
            worker.message_counters().calls,
        )
    });
    for (lookups, retries, calls) in counted {
        seen.lookups += lookups.hits + lookups.misses;
        seen.restarts += lookups.restarts;
        seen.retries += retries;
        seen.shipped += calls;
    }
    seen
}

/// One worker of each of the two machines changes keys; the other two look up the stable keys, in shards of both
/// machines. The run continues until `enough` is reached, and then for the same time again, within bounds.
fn stays_present(
    name: &str,
    spec: TableSpec,
    (stable, churning): (u64, u64),
    enough: fn(&Seen) -> bool,
) {
    const READS: usize = 8;
    const CHANGES: usize = 6;
    let cluster = cluster(name, 2, 2, spec);
    let table = cluster.table;
    for number in 0..stable {
        let insert = OwnedChange::Insert(value(number, 0).to_vec());
        let inserted = blocking::change(&cluster.machines[0], 0, table, key(number), insert);
        assert_eq!(inserted.unwrap(), Changed::Inserted);
    }
    let stop = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let ((ended, churners), (told, readers)) = (mpsc::channel(), mpsc::channel());
    for machine in 0..2 {
        let churner = Churner {
            table,
            stable,
            churning,
            writes: 0,
            stop: Arc::clone(&stop[0]),
            under_way: CHANGES,
            done: ended.clone(),
        };
        cluster.on(machine, 0, move |worker| {
            worker.put_layer(Box::new(churner));
            (0..CHANGES).for_each(|_| churn(worker, 0, ()));
        });
        let reader = Reader {
            table,
            stable,
            stop: Arc::clone(&stop[1]),
            lookups: 0,
            of_many: [0; 2],
            under_way: READS,
            missed: None,
            wrong: None,
            done: told.clone(),
        };
        cluster.on(machine, 1, move |worker| {
            worker.put_layer(Box::new(reader));
            (0..READS).for_each(|_| read(worker, 0, ()));
        });
    }
    let begun = Instant::now();
    while !enough(&seen(&cluster)) && begun.elapsed() < MOST {
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(begun.elapsed().clamp(LEAST, LEAST * 2));
    stop[1].store(true, Ordering::Relaxed);
    let misses = [receive(&readers), receive(&readers)];
    stop[0].store(true, Ordering::Relaxed);
    let changes = receive(&churners) + receive(&churners);
    for (lookups, [many, left], (missed, wrong)) in misses {
        println!("{name}: {many} keys looked up many at a time, {left} of them left");
        assert!(left < many, "no key was found: the test proves nothing");
        assert_eq!(
            (missed, wrong),
            (None, None),
            "of {lookups} lookups some (number, first key) missed a present key, or returned \
             the value of another key"
        );
    }
    let seen = seen(&cluster);
    println!("{name}: {changes} changes, {seen:?}");
    assert!(enough(&seen), "{seen:?}: the test proves nothing");
    let facts = cluster.check();
    assert!(facts.pairs >= stable, "{facts:?}");
    cluster.stop();
}

fn spec(neighbourhood: u32, shards: u32, buckets: u32) -> TableSpec {
    TableSpec {
        id: 7,
        neighbourhood,
        key_bytes: farm_kv::KEY_BYTES,
        value_bytes: VALUE_BYTES,
        shards,
        buckets,
    }
}

/// Stable keys fill half of the slots, and changing keys exist for three quarters: displacements.
#[test]
fn displacements_hide_no_key() {
    let enough = |seen: &Seen| seen.retries > 0 && seen.lookups > 50_000 && seen.shipped > 2000;
    stays_present("present-h6", spec(6, 2, 8), (24, 36), enough);
    let enough = |seen: &Seen| seen.lookups > 50_000 && seen.shipped > 2000;
    stays_present("present-h4", spec(4, 2, 12), (24, 36), enough);
}

/// Far more keys than slots: chains grow, shrink and are freed.
#[test]
fn chains_hide_no_key() {
    let enough = |seen: &Seen| seen.restarts > 0 && seen.lookups > 50_000 && seen.shipped > 2000;
    stays_present("present-h2", spec(2, 2, 3), (12, 24), enough);
}
