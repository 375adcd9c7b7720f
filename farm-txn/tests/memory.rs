//! The memory that a transaction over 100,000 objects uses on its worker: 64 bytes per object, which
//! `config/local.toml` states as the limit, and the payloads that it holds.

#![allow(clippy::disallowed_methods)] // Tests may wait.

mod counting;

use std::sync::mpsc;

use farm_core::config::Config;
use farm_core::ids::Address;
use farm_core::worker::{Cont, Worker};
use farm_testing::TestCluster;
use farm_txn::{Handle, ObjectId, TxError, TxHandle, api, block_on};

const OBJECTS: usize = 100_000;
/// Payload capacity of an object, in bytes; all of it is held.
const PAYLOAD: usize = 48;
/// Concurrent reads.
const AT_ONCE: usize = 16;

/// A transaction that reads all objects, with several concurrent reads, and commits.
struct Audit {
    all: Vec<Address>,
    next: usize,
    left: usize,
    forgets: bool,
    sum: u64,
    done: mpsc::Sender<(u64, Result<(), TxError>)>,
}

fn audit(worker: &mut Worker) -> &mut Audit {
    worker.layer().expect("the audit is stored as a layer")
}

fn read(worker: &mut Worker, tx: TxHandle) {
    let this = audit(worker);
    let Some(address) = this.all.get(this.next).copied() else {
        return;
    };
    this.next += 1;
    let read_done = Cont::new(read_done, tx.to_context());
    api::read(worker, tx, address, PAYLOAD, read_done);
}

fn read_done(worker: &mut Worker, tx: u64, object: Result<ObjectId, TxError>) {
    let (tx, object) = (TxHandle::from_context(tx), object.unwrap());
    let value = u64::from(api::payload(worker, tx, object).unwrap()[0]);
    let this = audit(worker);
    this.sum += value;
    this.left -= 1;
    let (left, forgets) = (this.left, this.forgets);
    if forgets {
        api::forget_payload(worker, tx, object).unwrap();
    }
    match left {
        0 => api::commit(worker, tx, Cont::new(committed, 0)),
        _ => read(worker, tx),
    }
}

fn committed(worker: &mut Worker, _: u64, outcome: Result<(), TxError>) {
    let this = worker.take_layer::<Audit>();
    this.done.send((this.sum, outcome)).unwrap();
}

/// Creates all objects, by several transactions.
async fn create(farm: Handle) -> Result<Vec<Address>, TxError> {
    let mut all = Vec::with_capacity(OBJECTS);
    while all.len() < OBJECTS {
        let tx = farm.begin().await.unwrap();
        for _ in 0..500 {
            let object = tx.alloc(PAYLOAD, None).await?;
            tx.change(object, move |payload| payload[0] = 1).await?;
            all.push(tx.address(object).await?);
        }
        tx.commit().await?;
    }
    Ok(all)
}

#[test]
fn a_transaction_over_100_000_objects_uses_64_bytes_per_object() {
    let mut config = Config::tiny_for(2, 1);
    config.memory.per_machine_bytes = 16 << 20;
    config.transactions.objects = OBJECTS as u32;
    config.transactions.bytes = 16 << 20;
    let cluster = TestCluster::start("txn-memory", config, farm_txn::attach);
    let machines = &cluster.machines;
    for holder in [1, 0] {
        let all = block_on(&machines[holder], 0, create).unwrap().unwrap();
        for forgets in [true, false] {
            let all = all.clone();
            let (done, ended) = mpsc::channel();
            cluster.on(0, 0, move |worker| {
                worker.put_layer(Box::new(Audit {
                    all,
                    next: 0,
                    left: OBJECTS,
                    forgets,
                    sum: 0,
                    done,
                }));
                counting::take();
                counting::count(true);
                let tx = api::begin(worker);
                (0..AT_ONCE).for_each(|_| read(worker, tx));
            });
            let (sum, outcome) = machines[0].wait_for(&ended).unwrap();
            outcome.unwrap();
            assert_eq!(sum, OBJECTS as u64);
            let (most, left) = cluster.on(0, 0, |_| {
                counting::count(false);
                let allocated = counting::take();
                (allocated.most_bytes, allocated.bytes)
            });
            let each = most as f64 / OBJECTS as f64;
            println!(
                "holder {holder}, forgets {forgets}: {each:.1} bytes per object, {left} bytes left"
            );
            let payload = if forgets { 0 } else { PAYLOAD as i64 };
            assert!(
                most <= (64 + payload) * OBJECTS as i64,
                "{each:.1} bytes per object, {payload} of them payload"
            );
            // The capacity that the context keeps for the next transaction, and that of queues that grew.
            assert!(left < 1 << 20, "{left} bytes are left");
        }
    }
    cluster.stop();
}
