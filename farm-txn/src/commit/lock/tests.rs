//! Tests of LOCK records that no correct coordinator writes.

use farm_core::config::Config;
use farm_core::object::{Incarnation, Version};
use farm_testing::TestCluster;

use super::*;
use crate::record::{self, Kind, Record};

/// Errors of the third object of a LOCK record.
#[derive(Clone, Copy, Debug)]
enum Wrong {
    /// Its region belongs to no machine.
    Region,
    /// Its address is not aligned to a line.
    Address,
    /// It is missing, although the record counts it.
    Missing,
}

/// Returns a LOCK of three objects, the last of which is wrong; the others have the version and incarnation of the
/// first.
fn body(
    objects: &[Address; 2],
    (version, incarnation): (Version, Incarnation),
    wrong: Wrong,
) -> Vec<u8> {
    let mut body = vec![0; record::FIXED_BYTES];
    record::encode_lock(&mut body, 1, &[], 3);
    let third = match wrong {
        Wrong::Region => Some(Address::from_bits(5 << 32 | 64).unwrap()),
        Wrong::Address => Some(Address::from_bits(objects[0].to_bits() | 8).unwrap()),
        Wrong::Missing => None,
    };
    for address in objects.iter().copied().chain(third) {
        let object = Object {
            address,
            class: class_for_payload(8).unwrap(),
            version,
            incarnation,
            effect: Effect::Write,
            count: 1,
            block: 0,
            payload: &[7; 8],
        };
        record::encode_object(&mut body, &object);
    }
    body
}

/// Regression: a record that turned out to be wrong in the middle left the objects before the error locked forever.
#[test]
fn a_lock_record_with_an_error_in_the_middle_leaves_nothing_locked() {
    let cluster = TestCluster::start("txn-primary", Config::tiny_for(1, 1), crate::attach);
    let objects = crate::block_on(&cluster.machines[0], 0, async |farm| {
        let tx = farm.begin().await.unwrap();
        let [one, two] = [tx.alloc(8, None).await?, tx.alloc(8, None).await?];
        let objects = [tx.address(one).await?, tx.address(two).await?];
        tx.commit().await.map(|()| objects)
    });
    let objects = objects.unwrap().unwrap();
    let locked = cluster.on(0, 0, move |worker| {
        let mut found = Vec::new();
        for wrong in [Wrong::Region, Wrong::Address, Wrong::Missing] {
            let header = objects.map(|address| {
                let (memory, at) = worker.local_memory(address).unwrap();
                let version = write::load_version(memory, at).version();
                (version, write::load_incarnation(memory, at))
            });
            assert_eq!(header[0], header[1], "both objects are new, in one block");
            let body = body(&objects, header[0], wrong);
            let record = Record::decode_unchecked(Kind::Lock, &body).unwrap();
            let refused = lock_record(worker, &record.lock().unwrap());
            assert!(refused.is_err(), "{wrong:?}");
            for address in objects {
                let (memory, at) = worker.local_memory(address).unwrap();
                let now = write::load_version(memory, at);
                if now.mode() != LockMode::Unlocked {
                    found.push(format!("{wrong:?}: {address} is {:?}", now.mode()));
                    write::unlock(memory, at, now.version());
                }
            }
        }
        found
    });
    cluster.stop();
    assert_eq!(locked, Vec::<String>::new());
}
