//! Arrays read as a whole are what single reads of their objects are.

use farm_core::alloc::{SizeClass, class_for_payload};
use farm_core::ids::Address;
use farm_core::object::{Incarnation, Version, write};
use farm_core::worker::{AddressError, Worker};
use farm_txn::{Abort, Handle, TxError};
use proptest::prelude::*;

use crate::cluster::{Cluster, cluster};
use crate::tasks::{comes_to_rest, task};

const COUNT: u32 = 12;

/// Makes an array on this machine, with an object at each index whose bit is set.
fn make(worker: &mut Worker, class: SizeClass, there: u16) -> Address {
    let first = worker.allocate_array(class, COUNT).unwrap().first();
    let bytes = class.object_bytes();
    for index in (0..COUNT).filter(|index| there & 1 << index != 0) {
        let (memory, at) = worker.local_memory(first).unwrap();
        let born = Incarnation::default().allocated();
        let at = at + index as usize * bytes;
        write::install_new(memory, at, bytes, Version::new(1), born, &[index as u8; 8]);
    }
    first
}

fn at(first: Address, class: SizeClass, index: u32) -> Address {
    first
        .checked_add(index * class.object_bytes() as u32)
        .unwrap()
}

/// What a test does with an array.
#[derive(Clone, Debug)]
struct Case {
    payload: usize,
    there: u16,
    /// Written by the transaction before it reads the array, and freed by it.
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

/// Reads the array both ways, in transactions that have done the same before.
async fn both_ways(
    farm: Handle,
    first: Address,
    case: Case,
) -> Result<[Vec<Option<Vec<u8>>>; 2], TxError> {
    let class = class_for_payload(case.payload)?;
    let mut both = [vec![], vec![]];
    for (way, seen) in both.iter_mut().enumerate() {
        let mut tx = farm.begin();
        for index in (0..COUNT).filter(|index| (case.written | case.freed) & 1 << index != 0) {
            match tx.read(at(first, class, index), case.payload).await {
                Ok(object) if case.freed & 1 << index != 0 => tx.free(object)?,
                Ok(object) => tx.payload_mut(object)?[..8].fill(99),
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
                Some(object) => Some(tx.payload(object)?.to_vec()),
                None => None,
            });
        }
        // The last leaves its changes, so that both begin from the same.
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
fn an_array_is_read_as_its_objects_are() {
    let cluster = cluster("arrays", 2, 1);
    let config = ProptestConfig {
        cases: 48,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    proptest!(config, |(case in cases())| compare(&cluster, &case));
    comes_to_rest(&cluster);
    cluster.stop();
}

#[test]
fn every_object_of_an_array_and_every_hole_is_validated() {
    let cluster = cluster("array-valid", 2, 1);
    let class = class_for_payload(8).unwrap();
    for reader in [0, 1] {
        for index in [0, 5, COUNT - 1] {
            for hole in [false, true] {
                let there = if hole { !(1 << index) } else { !0 };
                let first = cluster.on(0, 0, move |w| make(w, class, there));
                let aim = at(first, class, index);
                task(&cluster, reader, move |farm| async move {
                    let mut tx = farm.begin();
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

/// Another transaction changes an object; where there is none, nothing.
async fn change(farm: &Handle, address: Address, hole: bool) {
    if !hole {
        let mut other = farm.begin();
        let object = other.read(address, 8).await.unwrap();
        other.payload_mut(object).unwrap().fill(1);
        other.commit().await.unwrap();
    }
}

#[test]
fn arrays_that_are_none_are_typed_errors() {
    let cluster = cluster("no-array", 2, 1);
    let class = class_for_payload(8).unwrap();
    let first = cluster.on(0, 0, move |w| make(w, class, !0));
    for reader in [0, 1] {
        task(&cluster, reader, move |farm| async move {
            let mut tx = farm.begin();
            let none = tx.read_array(first, 8, 0).await.unwrap_err();
            assert!(matches!(none, TxError::Address(AddressError::Nowhere(_))));
            let long = tx.read_array(first, 8, 1 << 20).await.unwrap_err();
            assert!(matches!(long, TxError::ArrayTooLong { .. }), "{long}");
            let limit = tx.read_array(Address::NULL, 8, 2).await.unwrap_err();
            assert!(matches!(limit, TxError::Address(AddressError::Nowhere(_))));
            if reader == 0 {
                let size = tx.read_array(first, 100, 2).await.unwrap_err();
                assert!(matches!(size, TxError::WrongSize { .. }), "{size}");
            }
            // The same call dropped half-way leaves nothing.
            drop(tx);
        });
    }
    comes_to_rest(&cluster);
    cluster.stop();
}
