//! The two lock modes, as lock-free reads and reads of transactions see them (`FaRM'14 §3.4`).

use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use farm_core::object::LockMode;
use farm_testing::receive;
use farm_txn::{Abort, TxError};

use crate::cluster::{cluster, lock, overwrite};

#[test]
fn reads_pass_a_readable_lock_and_wait_for_an_exclusive_one() {
    let cluster = cluster("modes", 2, 1);
    // Objects of one line and of three lines, read from their own machine and from another one.
    for bytes in [64, 192] {
        let address = cluster.create(0, 0, &vec![1; bytes - 30]);
        for machine in [0, 1] {
            let restarts = |cluster: &crate::cluster::Cluster| {
                cluster.on(machine, 0, |w| w.read_counters().restarts)
            };
            cluster.on(0, 0, move |w| lock(w, address, LockMode::Readable));
            let seen = cluster.look(machine, address, bytes).unwrap();
            assert_eq!((seen.mode, seen.version.line()), (LockMode::Readable, 1));
            assert_eq!(seen.payload[..bytes - 30], vec![1; bytes - 30]);
            assert_eq!(
                cluster.contents(0, 0, address, bytes - 30).unwrap(),
                vec![1; bytes - 30]
            );
            cluster.on(0, 0, move |w| lock(w, address, LockMode::Unlocked));

            cluster.on(0, 0, move |w| lock(w, address, LockMode::Exclusive));
            let before = restarts(&cluster);
            let looks = cluster.start_look(machine, address, bytes);
            while restarts(&cluster) < before + 20 {
                let looked = looks.recv_timeout(Duration::from_micros(100));
                assert_eq!(looked, Err(RecvTimeoutError::Timeout));
            }
            let refused = cluster.contents(0, 0, address, bytes - 30);
            assert!(matches!(refused, Err(TxError::Abort(Abort::Locked(at))) if at == address));
            cluster.on(0, 0, move |w| lock(w, address, LockMode::Unlocked));
            let seen = receive(&looks).unwrap();
            assert_eq!((seen.mode, seen.version.line()), (LockMode::Unlocked, 1));
        }
    }
    for machine in [0, 1] {
        cluster.on(machine, 0, |w| {
            assert_eq!(w.arena().taken(), 0, "slots of reads were not returned")
        });
    }
    cluster.stop();
}

/// A read whose object stays locked forever ends with an error instead of endless retries, and returns its slot.
#[test]
fn a_read_of_an_object_that_stays_locked_ends() {
    let cluster = cluster("stays-locked", 2, 1);
    let address = cluster.create(0, 0, b"locked");
    cluster.on(0, 0, move |w| lock(w, address, LockMode::Exclusive));
    let error = cluster.look(1, address, 64).unwrap_err();
    assert_eq!(error, farm_core::worker::ReadError::StaysLocked(address));
    cluster.on(1, 0, |w| assert_eq!(w.arena().taken(), 0));
    cluster.on(0, 0, move |w| lock(w, address, LockMode::Unlocked));
    let opened = cluster.transact(0, 0, move |tx, w| overwrite(tx, w, address, b"opened"));
    opened.unwrap();
    assert_eq!(
        &cluster.look(1, address, 64).unwrap().payload[..6],
        b"opened"
    );
    cluster.stop();
}
