//! Fat pointers in `async` functions.

use farm_txn::TxError;

use crate::cluster::cluster;
use crate::tasks::{task, wait_for_rest};

#[test]
fn a_pointer_refers_to_its_own_object_and_not_to_later_ones() {
    let cluster = cluster("pointer", 2, 1);
    for machine in [0, 1] {
        let at = cluster.create(machine, 0, b"first");
        task(&cluster, 0, move |farm| async move {
            let tx = farm.begin().await.unwrap();
            let object = tx.read(at, 5).await.unwrap();
            let before = tx.pointer(object).await.unwrap();
            let count = tx.incarnation(object).await.unwrap().count();
            assert_eq!(tx.read_pointer(before).await.unwrap(), object);
            assert_eq!(
                &farm.read_pointer_lock_free(before).await.unwrap()[..5],
                b"first"
            );
            tx.increment_incarnation(object).await.unwrap();
            assert_eq!(tx.incarnation(object).await.unwrap().count(), count + 1);
            let after = tx.pointer(object).await.unwrap();
            tx.commit().await.unwrap();

            let gone = |error: TxError| {
                assert!(
                    matches!(error, TxError::NotAllocated(address) if address == at),
                    "{error}"
                );
            };
            let tx = farm.begin().await.unwrap();
            gone(tx.read_pointer(before).await.unwrap_err());
            gone(farm.read_pointer_lock_free(before).await.unwrap_err());
            let object = tx.read_pointer(after).await.unwrap();
            assert_eq!(&tx.payload(object).await.unwrap()[..5], b"first");
            tx.free_array(&[object]).await.unwrap();
            tx.commit().await.unwrap();
            gone(farm.read_pointer_lock_free(after).await.unwrap_err());
        });
    }
    wait_for_rest(&cluster);
    cluster.stop();
}
