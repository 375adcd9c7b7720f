//! Transactions over many objects that hold few payloads.

use std::sync::mpsc;

use farm_core::config::Config;
use farm_core::ids::Address;
use farm_core::worker::{Cont, Worker};
use farm_txn::{Abort, Handle, Transaction, TxError, TxHandle, TxLimits, api};

use crate::cluster::{Cluster, cluster, cluster_of, commit};
use crate::tasks::{add_one, task, wait_for_rest};

const BYTES: usize = 8;

/// Starts machines with room for many objects, and with limits for transactions over many objects.
fn large(name: &str, operations: u32) -> Cluster {
    let mut config = Config::tiny_for(2, 1);
    config.memory.per_machine_bytes = 16 << 20;
    config.worker.operations_in_flight = operations;
    config.transactions.objects = 100_000;
    cluster_of(name, config)
}

/// Creates many objects on a machine, each with the value 1.
fn many(cluster: &Cluster, machine: usize, count: usize) -> Vec<Address> {
    let payloads = vec![1u64.to_le_bytes(); count];
    let made = payloads
        .chunks(500)
        .map(|some| cluster.create_all(machine, 0, some));
    made.flatten().collect()
}

/// Returns the sum of all objects. After the reads, another transaction changes the object `changed`, if any.
async fn audit(farm: &Handle, all: &[Address], changed: Option<Address>) -> Result<u64, TxError> {
    let tx = farm.begin().await.unwrap();
    let mut sum = 0;
    for address in all {
        let object = tx.read(*address, BYTES).await?;
        sum += u64::from(tx.payload(object).await?[0]);
        tx.forget_payload(object).await?;
    }
    if let Some(changed) = changed {
        farm.transact(async |tx| add_one(tx, changed).await).await?;
    }
    tx.commit().await?;
    Ok(sum)
}

/// Regression: a commit stored the number of an object in 16 bits.
#[test]
fn a_transaction_over_70_000_objects_is_validated() {
    const OBJECTS: usize = 70_000;
    let cluster = large("seventy-thousand", 16);
    for machine in [1, 0] {
        let all = many(&cluster, machine, OBJECTS);
        task(&cluster, 0, move |farm| async move {
            assert_eq!(audit(&farm, &all, None).await.unwrap(), OBJECTS as u64);
            for at in [0, 65_535, 65_536, OBJECTS - 1] {
                let changed = all[at];
                let conflict = audit(&farm, &all, Some(changed)).await.unwrap_err();
                let (Abort::Changed(found) | Abort::Locked(found)) = (match conflict {
                    TxError::Abort(abort) => abort,
                    error => panic!("{error}"),
                }) else {
                    panic!("{conflict}");
                };
                assert_eq!(found, changed, "object {at}");
            }
        });
        wait_for_rest(&cluster);
    }
    cluster.stop();
}

/// The most arena slots in use at one time, sampled in every turn until a commit has ended.
struct Slots {
    most: usize,
    ended: mpsc::Sender<(usize, Result<(), TxError>)>,
}

fn look(worker: &mut Worker, _: u64, (): ()) {
    let taken = worker.arena().taken();
    if let Some(slots) = worker.layer::<Slots>() {
        slots.most = slots.most.max(taken);
        worker.defer(Cont::new(look, 0));
    }
}

fn has_ended(worker: &mut Worker, _: u64, result: Result<(), TxError>) {
    let slots = worker.take_layer::<Slots>();
    slots.ended.send((slots.most, result)).unwrap();
}

/// Regression: the validation of a large transaction took all slots, so that other reads had none.
#[test]
fn a_validation_leaves_slots_for_other_reads() {
    const OBJECTS: usize = 5_000;
    let cluster = large("slots", 1024);
    let all = many(&cluster, 1, OBJECTS);
    let (tx, read) = mpsc::channel();
    cluster.on(0, 0, move |w| {
        farm_txn::spawn(w, |farm| async move {
            let farm: &'static Handle = Box::leak(Box::new(farm));
            let transaction = farm.begin().await.unwrap();
            for address in &all {
                let object = transaction.read(*address, BYTES).await.unwrap();
                transaction.forget_payload(object).await.unwrap();
            }
            let opened = transaction
                .operation(|w, tx, cont: Cont<Result<TxHandle, TxError>>| cont.resume(w, Ok(tx)));
            let handle = opened.await.unwrap();
            tx.send((handle, transaction)).unwrap();
        });
    });
    let (_, transaction) = cluster.machines[0].wait_for(&read).unwrap();
    let (most, outcome) = cluster.machines[0]
        .ask(0, move |w, ended| {
            w.put_layer(Box::new(Slots { most: 0, ended }));
            look(w, 0, ());
            farm_txn::spawn(w, |farm| async move {
                let outcome = transaction.commit().await;
                let has_ended = |w: &mut Worker| has_ended(w, 0, outcome);
                farm.with_worker(has_ended).await.unwrap();
            });
        })
        .unwrap();
    outcome.unwrap();
    assert!((32..=80).contains(&most), "{most} slots were in use");
    wait_for_rest(&cluster);
    cluster.stop();
}

#[test]
fn a_forgotten_payload_is_validated_and_can_be_read_again() {
    let cluster = cluster("forgotten", 2, 1);
    let x = cluster.create(0, 0, b"x");
    let y = cluster.create(1, 0, b"y");
    task(&cluster, 0, move |farm| async move {
        // An object that is read again is unchanged. An access to a forgotten payload is a typed error.
        let tx = farm.begin().await.unwrap();
        let (a, b) = (tx.read(x, 1).await.unwrap(), tx.read(y, 1).await.unwrap());
        for object in [a, b, a] {
            tx.forget_payload(object).await.unwrap();
        }
        for (object, address) in [(a, x), (b, y)] {
            let forgotten = |error| matches!(error, TxError::Forgotten(at) if at == address);
            assert!(forgotten(tx.payload(object).await.unwrap_err()));
            assert!(forgotten(tx.change(object, |_| ()).await.unwrap_err()));
            assert!(forgotten(
                tx.increment_incarnation(object).await.unwrap_err()
            ));
            assert_eq!(tx.address(object).await.unwrap(), address);
        }
        assert_eq!(
            tx.read(x, 1).await.unwrap(),
            a,
            "reading again returned another object"
        );
        assert_eq!(
            tx.read(y, 1).await.unwrap(),
            b,
            "reading again returned another object"
        );
        assert_eq!(
            (
                tx.payload(a).await.unwrap()[0],
                tx.payload(b).await.unwrap()[0]
            ),
            (b'x', b'y')
        );
        tx.change(b, move |payload| payload[0] = b'Y')
            .await
            .unwrap();
        tx.forget_payload(b).await.unwrap();
        assert_eq!(
            tx.payload(b).await.unwrap()[0],
            b'Y',
            "the payload of a written object was forgotten"
        );
        tx.commit().await.unwrap();

        for forgotten in [x, y] {
            // The object changed after it was forgotten: either the commit or another read reports that.
            for reads_again in [false, true] {
                let tx = farm.begin().await.unwrap();
                for address in [x, y] {
                    let object = tx.read(address, 1).await.unwrap();
                    tx.forget_payload(object).await.unwrap();
                }
                let other = async |other: Transaction<'_>| {
                    let object = other.read(forgotten, 1).await?;
                    other.change(object, |payload| payload[0] += 1).await
                };
                farm.transact(other).await.unwrap();
                let found = match reads_again {
                    true => tx.read(forgotten, 1).await.map(|_| ()).unwrap_err(),
                    false => tx.commit().await.unwrap_err(),
                };
                assert!(
                    matches!(found, TxError::Abort(Abort::Changed(at) | Abort::Locked(at)) if at == forgotten),
                    "{found}"
                );
            }
        }
    });
    wait_for_rest(&cluster);
    cluster.stop();
}

/// The limits count payloads that are held, and each object once.
#[test]
fn limits_count_held_payloads() {
    const LIMITS: TxLimits = TxLimits {
        objects: 100,
        bytes: 1000,
    };
    let cluster = cluster("held", 2, 1);
    let all = many(&cluster, 1, 101);
    let [over, again] = [all.clone(), all];
    let read = |forgets: bool| {
        let all = if forgets { over.clone() } else { again.clone() };
        task(&cluster, 0, move |farm| async move {
            farm.with_worker(|w| farm_txn::set_limits(w, LIMITS))
                .await
                .unwrap();
            let tx = farm.begin().await.unwrap();
            for (at, address) in all.iter().enumerate() {
                let object = match tx.read(*address, BYTES).await {
                    Ok(object) => object,
                    Err(error) => return (at, error),
                };
                if forgets {
                    tx.forget_payload(object).await.unwrap();
                    // Read it once more: it is not counted as another object.
                    tx.read(*address, BYTES).await.unwrap();
                    tx.forget_payload(object).await.unwrap();
                }
            }
            unreachable!("the transaction exceeds its limits")
        })
    };
    let (at, error) = read(true);
    assert!(
        matches!(
            error,
            TxError::Limit {
                objects: 101,
                bytes: 48,
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(at, 100);
    let (at, error) = read(false);
    assert!(
        matches!(
            error,
            TxError::Limit {
                objects: 21,
                bytes: 1008,
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(at, 20);
    let text = error.to_string();
    assert!(
        text.contains("transactions.objects") && text.contains("limits are 100"),
        "{text}"
    );
    wait_for_rest(&cluster);
    cluster.stop();
}

/// The same with handles and continuations.
#[test]
fn a_handle_forgets_payloads() {
    let cluster = cluster("handle-forgets", 1, 1);
    let x = cluster.create(0, 0, b"x");
    let tx = cluster.on(0, 0, move |w| {
        let tx = api::begin(w);
        let object = api::with(w, tx, |tx, w| tx.read(w, x, 1)).unwrap().unwrap();
        api::forget_payload(w, tx, object).unwrap();
        let gone = api::payload(w, tx, object).unwrap_err();
        assert!(matches!(gone, TxError::Forgotten(at) if at == x), "{gone}");
        let gone = api::payload_mut(w, tx, object).unwrap_err();
        assert!(matches!(gone, TxError::Forgotten(_)), "{gone}");
        assert_eq!(api::address(w, tx, object).unwrap(), x);
        tx
    });
    commit(&cluster, tx).unwrap();
    let ended = cluster.on(0, 0, move |w| {
        let object = api::with(w, tx, |tx, w| tx.read(w, x, 1)).map(|_| ());
        object.unwrap_err()
    });
    assert!(matches!(ended, TxError::Ended));
    cluster.stop();
}
