//! Reading an array as a whole equals reading its objects one by one. Arrays are created and freed as objects are.

use std::future::Future;
use std::task::{Context, Waker};
use std::time::Instant;

use farm_core::alloc::{SizeClass, class_for_payload};
use farm_core::ids::Address;
use farm_core::worker::{AddressError, Worker};
use farm_txn::{Abort, Handle, ObjectId, Transaction, TxError, TxLimits};
use proptest::prelude::*;

use crate::cluster::{Cluster, cluster, put_in_array};
use crate::tasks::{PATIENCE, task, wait_for_rest};

const COUNT: u32 = 12;

/// Creates an array on this machine, with an object at each index whose bit in `there` is set.
fn make(worker: &mut Worker, class: SizeClass, there: u16) -> Address {
    let array = worker.reserve_array(class, COUNT, None).unwrap();
    for index in (0..COUNT).filter(|index| there & 1 << index != 0) {
        put_in_array(worker, &array, index, &[index as u8; 8]);
    }
    array.first()
}

fn at(first: Address, class: SizeClass, index: u32) -> Address {
    first
        .checked_add(index * class.object_bytes() as u32)
        .unwrap()
}

/// The input of one test run.
#[derive(Clone, Debug)]
struct Case {
    payload: usize,
    there: u16,
    /// Indexes that the transaction writes before it reads the array, and indexes that it frees.
    written: u16,
    freed: u16,
    from: u32,
    count: u32,
}

fn cases() -> impl Strategy<Value = Case> {
    let sizes = prop_oneof![Just(8usize), Just(100), Just(200)];
    (
        sizes,
        any::<u16>(),
        any::<u16>(),
        any::<u16>(),
        0..COUNT,
        1..=COUNT,
    )
        .prop_map(|(payload, there, written, freed, from, count)| Case {
            payload,
            there,
            written,
            freed: freed & !written,
            from,
            count: count.min(COUNT - from),
        })
}

/// Reads the array as a whole and object by object, in transactions that made the same changes before.
async fn both_ways(
    farm: Handle,
    first: Address,
    case: Case,
) -> Result<[Vec<Option<Vec<u8>>>; 2], TxError> {
    let class = class_for_payload(case.payload)?;
    let mut both = [vec![], vec![]];
    for (way, seen) in both.iter_mut().enumerate() {
        let tx = farm.begin().await.unwrap();
        for index in (0..COUNT).filter(|index| (case.written | case.freed) & 1 << index != 0) {
            match tx.read(at(first, class, index), case.payload).await {
                Ok(object) if case.freed & 1 << index != 0 => tx.free(object).await?,
                Ok(object) => tx.change(object, |payload| payload[..8].fill(99)).await?,
                Err(TxError::NotAllocated(_)) => {}
                Err(error) => return Err(error),
            }
        }
        let mut objects = vec![];
        if way == 0 {
            let start = at(first, class, case.from);
            objects = tx.read_array(start, case.payload, case.count).await?;
        } else {
            for index in case.from..case.from + case.count {
                objects.push(match tx.read(at(first, class, index), case.payload).await {
                    Ok(object) => Some(object),
                    Err(TxError::NotAllocated(_)) => None,
                    Err(error) => return Err(error),
                });
            }
        }
        for object in objects {
            seen.push(match object {
                Some(object) => Some(tx.payload(object).await?.to_vec()),
                None => None,
            });
        }
        // Only the last transaction commits its changes, so that both start from the same state.
        if way == 1 {
            tx.commit().await?;
        }
    }
    Ok(both)
}

fn compare(cluster: &Cluster, case: &Case) {
    for reader in [0, 1] {
        let class = class_for_payload(case.payload).unwrap();
        let there = case.there;
        let first = cluster.on(0, 0, move |w| make(w, class, there));
        let of_task = case.clone();
        let [whole, single] =
            task(cluster, reader, move |farm| both_ways(farm, first, of_task)).unwrap();
        assert_eq!(whole, single);
        for (index, seen) in (case.from..).zip(&whole) {
            let bit = 1 << index;
            let expected = match (case.there & !case.freed & bit != 0, case.written & bit != 0) {
                (false, _) => None,
                (true, true) => Some(99),
                (true, false) => Some(index as u8),
            };
            assert_eq!(seen.as_ref().map(|payload| payload[0]), expected);
        }
    }
}

#[test]
fn reading_an_array_equals_reading_its_objects() {
    let cluster = cluster("arrays", 2, 1);
    let config = ProptestConfig {
        cases: 48,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    proptest!(config, |(case in cases())| compare(&cluster, &case));
    wait_for_rest(&cluster);
    cluster.stop();
}

#[test]
fn an_array_of_another_machine_costs_one_read() {
    let cluster = cluster("array-read", 2, 1);
    let class = class_for_payload(8).unwrap();
    let first = cluster.on(0, 0, move |w| make(w, class, !0));
    for (reader, reads) in [(0, 0), (1, 1)] {
        let counters = |cluster: &Cluster| {
            let of = |w: &mut Worker| (farm_txn::counters(w), w.fabric_counters().reads);
            cluster.on(reader, 0, of)
        };
        // The first access to a region asks for its location; that is not counted.
        let read = move |farm: Handle| async move {
            let tx = farm.begin().await.unwrap();
            tx.read_array(first, 8, COUNT).await.unwrap();
        };
        task(&cluster, reader, read);
        let before = counters(&cluster);
        task(&cluster, reader, read);
        let after = counters(&cluster);
        assert_eq!(after.0.since(&before.0).object_reads, reads);
        assert_eq!(after.1 - before.1, reads);
    }
    cluster.stop();
}

#[test]
fn objects_and_holes_of_an_array_are_validated() {
    let cluster = cluster("array-valid", 2, 1);
    let class = class_for_payload(8).unwrap();
    for reader in [0, 1] {
        for index in [0, 5, COUNT - 1] {
            for hole in [false, true] {
                let there = if hole { !(1 << index) } else { !0 };
                let first = cluster.on(0, 0, move |w| make(w, class, there));
                let aim = at(first, class, index);
                task(&cluster, reader, move |farm| async move {
                    let tx = farm.begin().await.unwrap();
                    let all = tx.read_array(first, 8, COUNT).await.unwrap();
                    assert_eq!(all[index as usize].is_none(), hole);
                    change(&farm, aim, hole).await;
                    let outcome = tx.commit().await;
                    assert!(
                        matches!(outcome, Err(TxError::Abort(Abort::Changed(at) | Abort::Locked(at))) if at == aim)
                            || hole && outcome.is_ok(),
                        "{outcome:?}"
                    );
                });
            }
        }
    }
    cluster.stop();
}

/// Changes an object by another transaction; no-op for a hole.
async fn change(farm: &Handle, address: Address, hole: bool) {
    if !hole {
        let other = farm.begin().await.unwrap();
        let object = other.read(address, 8).await.unwrap();
        other
            .change(object, move |payload| payload.fill(1))
            .await
            .unwrap();
        other.commit().await.unwrap();
    }
}

#[test]
fn reads_of_invalid_arrays_are_typed_errors() {
    let cluster = cluster("no-array", 2, 1);
    let class = class_for_payload(8).unwrap();
    let first = cluster.on(0, 0, move |w| make(w, class, !0));
    for reader in [0, 1] {
        task(&cluster, reader, move |farm| async move {
            let tx = farm.begin().await.unwrap();
            let none = tx.read_array(first, 8, 0).await.unwrap_err();
            assert!(matches!(none, TxError::EmptyArray));
            let long = tx.read_array(first, 8, 1 << 20).await.unwrap_err();
            assert!(matches!(long, TxError::ArrayTooLong { .. }), "{long}");
            let limit = tx.read_array(Address::NULL, 8, 2).await.unwrap_err();
            assert!(matches!(limit, TxError::Address(AddressError::Nowhere(_))));
            let size = tx.read_array(first, 100, 2).await.unwrap_err();
            assert!(matches!(size, TxError::WrongSize { .. }), "{size}");
            let size = farm.read_array_lock_free(first, 100, 2).await.unwrap_err();
            assert!(matches!(size, TxError::WrongSize { .. }), "{size}");
            // Dropping an open transaction leaves nothing behind.
            drop(tx);
        });
    }
    wait_for_rest(&cluster);
    cluster.stop();
}

/// Returns the bytes of arrays on a machine.
fn array_bytes(cluster: &Cluster, machine: usize) -> u64 {
    cluster.on(machine, 0, |w| w.store().usage().unwrap().array_bytes)
}

/// Waits until a machine has `bytes` bytes of arrays: released slots may still be in flight.
fn wait_for_array_bytes(cluster: &Cluster, machine: usize, bytes: u64) {
    wait_for_rest(cluster);
    let late = Instant::now() + PATIENCE;
    while array_bytes(cluster, machine) != bytes {
        let now = array_bytes(cluster, machine);
        assert!(Instant::now() < late, "{now} bytes of arrays, not {bytes}");
        std::thread::yield_now();
    }
}

/// Allocates an array whose objects contain their index.
async fn allocate_array(
    tx: Transaction<'_>,
    payload: usize,
    count: u32,
    hint: Address,
) -> Result<Vec<ObjectId>, TxError> {
    let objects = tx.alloc_array(payload, count, Some(hint)).await?;
    for (index, object) in objects.iter().enumerate() {
        tx.change(*object, move |payload| payload.fill(index as u8))
            .await?;
    }
    Ok(objects)
}

#[test]
fn transactions_create_and_free_arrays_on_any_machine() {
    let cluster = cluster("array-alloc", 2, 1);
    for holder in [0, 1] {
        let hint = cluster.create(holder, 0, b"near");
        for payload in [8, 200] {
            let size = class_for_payload(payload).unwrap();
            let first = task(&cluster, 0, move |farm| async move {
                farm.transact(async |tx| {
                    let objects = allocate_array(tx, payload, COUNT, hint).await?;
                    assert_eq!(objects.len(), COUNT as usize);
                    tx.address(objects[0]).await
                })
                .await
            })
            .unwrap();
            let same = cluster.on(0, 0, move |w| {
                w.machine_of(first.region()) == w.machine_of(hint.region())
            });
            assert!(same, "the array is not on the machine of its hint");
            let all = move |farm: Handle| async move {
                farm.read_array_lock_free(first, payload, COUNT).await
            };
            for reader in [0, 1] {
                let seen = task(&cluster, reader, all).unwrap();
                for (index, seen) in seen.into_iter().enumerate() {
                    assert_eq!(seen, Some(vec![index as u8; payload]));
                }
            }
            let before = array_bytes(&cluster, holder);
            assert!(before >= u64::from(COUNT) * size.object_bytes() as u64);
            // Free the objects one by one, from the last; the memory is released with the last remaining one.
            task(&cluster, 1, move |farm| async move {
                for index in (1..COUNT).rev() {
                    let tx = farm.begin().await.unwrap();
                    let object = tx.read(at(first, size, index), payload).await?;
                    tx.free(object).await?;
                    tx.commit().await?;
                }
                Ok::<_, TxError>(())
            })
            .unwrap();
            wait_for_array_bytes(&cluster, holder, before);
            let left = task(&cluster, 0, all).unwrap();
            assert_eq!(left.iter().flatten().count(), 1);
            task(&cluster, 0, move |farm| async move {
                farm.transact(async |tx| {
                    let objects = tx.read_array(first, payload, COUNT).await?;
                    tx.free(objects[0].expect("the first object exists")).await
                })
                .await
            })
            .unwrap();
            wait_for_array_bytes(&cluster, holder, 0);
        }
    }
    cluster.stop();
}

/// The memory of a freed array is reused for the next one, and keeps its versions.
#[test]
fn arrays_of_aborted_transactions_are_released_and_reused() {
    let cluster = cluster("array-abort", 2, 1);
    for holder in [0, 1] {
        let hint = cluster.create(holder, 0, b"near");
        let mut firsts = vec![];
        for round in 0..6 {
            let first = task(&cluster, 0, move |farm| async move {
                let tx = farm.begin().await.unwrap();
                let objects = allocate_array(*tx, 100, COUNT, hint).await?;
                let first = tx.address(objects[0]).await?;
                match round % 3 {
                    0 => tx.abort(),
                    1 => {
                        // The commit fails with a conflict: the object that it read was changed.
                        let near = tx.read(hint, 4).await?;
                        tx.change(near, move |payload| payload.fill(round)).await?;
                        change(&farm, hint, false).await;
                        let outcome = tx.commit().await;
                        assert!(matches!(outcome, Err(TxError::Abort(_))), "{outcome:?}");
                    }
                    _ => {
                        tx.commit().await?;
                        let tx = farm.begin().await.unwrap();
                        let objects = tx.read_array(first, 100, COUNT).await?;
                        let all: Vec<_> = objects.into_iter().flatten().collect();
                        assert_eq!(all.len(), COUNT as usize);
                        for object in all {
                            tx.free(object).await?;
                        }
                        tx.commit().await?;
                    }
                }
                Ok::<_, TxError>(first)
            })
            .unwrap();
            firsts.push(first);
            wait_for_array_bytes(&cluster, holder, 0);
        }
        firsts.dedup();
        assert_eq!(firsts.len(), 1, "not the same memory: {firsts:?}");
    }
    cluster.stop();
}

#[test]
fn rejected_array_allocations_reserve_nothing() {
    let cluster = cluster("array-not", 2, 1);
    for holder in [0, 1] {
        let hint = cluster.create(holder, 0, b"near");
        task(&cluster, 0, move |farm| async move {
            let tx = farm.begin().await.unwrap();
            let none = tx.alloc_array(8, 0, Some(hint)).await.unwrap_err();
            assert!(matches!(none, TxError::EmptyArray), "{none}");
            let long = tx.alloc_array(8, 1 << 20, Some(hint)).await.unwrap_err();
            assert!(matches!(long, TxError::ArrayTooLong { .. }), "{long}");
            let large = tx.alloc_array(2 << 20, 1, Some(hint)).await.unwrap_err();
            assert!(matches!(large, TxError::TooLarge(_)), "{large}");
            // Reach the limit of a transaction, and then exceed it.
            let most = TxLimits::default().objects as u32;
            for count in [most / 2, most / 2] {
                tx.alloc_array(8, count, Some(hint)).await.unwrap();
            }
            let limit = tx.alloc_array(8, 1, Some(hint)).await.unwrap_err();
            assert!(matches!(limit, TxError::Limit { .. }), "{limit}");
            drop(tx);
            // If a call is dropped while it is in flight, its array is released when the reply arrives.
            let tx = farm.begin().await.unwrap();
            let mut dropped = Box::pin(tx.alloc_array(8, 3, Some(hint)));
            let mut context = Context::from_waker(Waker::noop());
            assert!(dropped.as_mut().poll(&mut context).is_pending());
            drop(dropped);
            let ended = tx.alloc_array(8, 3, Some(hint)).await.unwrap_err();
            assert!(matches!(ended, TxError::Ended), "{ended}");
        });
        wait_for_array_bytes(&cluster, holder, 0);
    }
    cluster.stop();
}
