//! Once warm, gets and updates allocate nothing on the threads of workers: not where they begin, not
//! where they are served.

#![allow(unsafe_code)] // The counting allocator below; nothing else.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use farm_core::config::Config;
use farm_core::machine::{Attach, start_all};
use farm_core::worker::{Cont, Worker};
use farm_kv::blocking;
use farm_kv::shard::Changed;
use farm_kv::{Change, GetCont, Key, KvError, TableId, TableSpec};
use rand::Rng;

/// The system's allocator, which counts what threads that asked for it allocate.
struct Counting;

thread_local! {
    static COUNTS: Cell<bool> = const { Cell::new(false) };
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Built with `SHOW_ALLOCATIONS` set, the test prints where each allocation comes from.
const SHOW: bool = option_env!("SHOW_ALLOCATIONS").is_some();

fn count() {
    // A thread that ends may allocate when its locals are gone.
    let counts = COUNTS.try_with(Cell::get).unwrap_or(false);
    if counts {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        if SHOW {
            COUNTS.set(false);
            eprintln!("{}", std::backtrace::Backtrace::force_capture());
            COUNTS.set(true);
        }
    }
}

// SAFETY: every call is the system allocator's own, with the arguments that came; counting touches
// nothing but two thread-locals without destructors, which allocate nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.realloc(old, layout, bytes) }
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(old, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const KEYS: u64 = 2000;
const VALUE_BYTES: usize = 32;
/// Operations of each worker that are under way at one time.
const DEPTH: usize = 64;
const WARM: u64 = 50_000;
const COUNTED: u64 = 20_000;

fn key(number: u64) -> Key {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&number.to_le_bytes());
    key
}

/// What a worker does until it has done so many.
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
            // Whoever waits is another thread; telling it is no part of an operation.
            let counts = COUNTS.replace(false);
            client.done.send(()).unwrap();
            COUNTS.set(counts);
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

fn got(worker: &mut Worker, number: u64, value: Result<Option<&[u8]>, KvError>) {
    assert_eq!(value.unwrap(), Some(&[number as u8; VALUE_BYTES][..]));
    begin(worker);
}

fn changed(worker: &mut Worker, _: u64, changed: Result<Changed, KvError>) {
    assert_eq!(changed.unwrap(), Changed::Updated);
    begin(worker);
}

#[test]
fn a_warm_table_allocates_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config::tiny_for(2, 2);
    config.cluster.name = "allocations".into();
    config.cluster.run_dir = dir.path().to_path_buf().into();
    config.rings.ring_bytes = 64 << 10;
    config.worker.operations_in_flight = 256;
    let attach: Attach = Arc::new(|worker: &mut Worker| {
        farm_txn::attach(worker);
        farm_kv::attach(worker);
    });
    let machines = start_all(&config, &attach).unwrap();
    // Four shards, one of each worker: own ones, those of the machine's other worker, and remote
    // ones. At 90 % occupancy some pairs are in chains.
    let spec = TableSpec::sized(1, 6, VALUE_BYTES, 4, KEYS, 0.9).unwrap();
    let table = blocking::open(&machines, spec).unwrap();
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
                        COUNTS.set(counts);
                        (0..DEPTH).for_each(|_| begin(worker));
                    })
                    .is_ok()
            );
        }
        for _ in &workers {
            all_done
                .recv_timeout(Duration::from_secs(60))
                .expect("a worker failed");
        }
        let counted = workers.iter().map(|(machine, worker)| {
            machine
                .ask(*worker, |_, answer| {
                    COUNTS.set(false);
                    answer.send(ALLOCATIONS.replace(0)).unwrap();
                })
                .unwrap()
        });
        counted.collect::<Vec<u64>>()
    };
    let warm = work(Mix::Both, WARM, true);
    println!("while it got warm: {warm:?}");
    for mix in [Mix::Gets, Mix::Updates, Mix::Both] {
        assert_eq!(work(mix, COUNTED, true), [0; 4], "{mix:?}");
    }
    for machine in machines {
        machine.stop().unwrap();
    }
}
