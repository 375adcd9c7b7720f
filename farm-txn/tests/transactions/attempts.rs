//! Steps that a transaction tries and takes back, and the continuations of a commit.

use std::sync::atomic::{AtomicU64, Ordering};

use farm_core::alloc::class_for_payload;
use farm_core::worker::{Cont, Worker};
use farm_txn::{Abort, Tx, TxError};

use crate::cluster::cluster;

const BYTES: usize = 40;

/// Returns the number of live objects according to the worker's allocator.
fn live(worker: &mut Worker) -> u64 {
    let class = class_for_payload(BYTES).unwrap();
    worker.slab_usage(class).live as u64
}

#[test]
fn a_failed_step_is_taken_back_and_earlier_changes_remain() {
    let cluster = cluster("attempts", 1, 1);
    let [one, two] = [1, 2].map(|mark| cluster.create(0, 0, &[mark; BYTES]));
    let before = cluster.on(0, 0, live);
    let (tx, born) = cluster.open(0, 0, move |tx, w| {
        let first = tx.read(w, one, BYTES).unwrap();
        tx.payload_mut(first).fill(11);
        let born = tx.alloc(w, BYTES, None).unwrap();
        tx.payload_mut(born).fill(33);
        let failed: Result<(), TxError> = tx.all_or_nothing(w, |tx, w| {
            tx.payload_mut(first).fill(12);
            tx.free(born);
            let second = tx.read(w, two, BYTES)?;
            tx.payload_mut(second).fill(22);
            tx.alloc(w, BYTES, None)?;
            assert_eq!(live(w), before + 2);
            Err(Abort::Locked(two).into())
        });
        assert!(matches!(failed, Err(TxError::Abort(Abort::Locked(_)))));
        assert_eq!((live(w), tx.len(), tx.find(two)), (before + 1, 2, None));
        assert_eq!(&tx.payload(first)[..BYTES], [11; BYTES]);
        let kept: Result<_, TxError> = tx.all_or_nothing(w, |tx, w| {
            let second = tx.read(w, two, BYTES)?;
            tx.payload_mut(second).fill(23);
            Ok(second)
        });
        assert_eq!(&tx.payload(kept.unwrap())[..BYTES], [23; BYTES]);
        tx.address(born)
    });
    cluster.commit(0, 0, tx).unwrap();
    let seen = [one, two, born].map(|at| cluster.contents(0, 0, at, BYTES).unwrap()[0]);
    assert_eq!((seen, cluster.on(0, 0, live)), ([11, 23, 33], before + 1));
    cluster.on(0, 0, |w| w.check_slab()).unwrap();
    cluster.stop();
}

/// A large transaction finds its objects by a hash table, which must follow when entries are taken back.
#[test]
fn a_large_transaction_finds_its_objects_after_steps_were_taken_back() {
    const OBJECTS: usize = 100;
    let cluster = cluster("large", 1, 1);
    let marks: Vec<_> = (0..OBJECTS).map(|mark| [mark as u8]).collect();
    let all = cluster.create_all(0, 0, &marks);
    for (kept, tried) in [(10, 15), (20, 60), (32, 1), (33, 40), (60, 40)] {
        let all = all.clone();
        let (tx, ()) = cluster.open(0, 0, move |tx, w| {
            // An earlier commit leaves its context empty.
            assert_eq!((tx.len(), tx.find(all[0])), (0, None));
            let read = |tx: &mut Tx, w: &mut Worker, at: usize| {
                let object = tx.read(w, all[at], 1)?;
                assert_eq!(tx.payload(object)[0], at as u8);
                assert_eq!(
                    (tx.read(w, all[at], 1)?, tx.find(all[at])),
                    (object, Some(object))
                );
                Ok::<_, TxError>(object)
            };
            let ids: Vec<_> = (0..kept).map(|at| read(tx, w, at).unwrap()).collect();
            let failed: Result<(), TxError> = tx.all_or_nothing(w, |tx, w| {
                for at in (kept..kept + tried).rev() {
                    read(tx, w, at)?;
                }
                Err(TxError::GivenUp)
            });
            assert!(matches!(failed, Err(TxError::GivenUp)));
            assert_eq!(tx.len(), kept);
            for (at, address) in all.iter().enumerate() {
                assert_eq!(tx.find(*address), ids.get(at).copied(), "{at} of {kept}");
            }
            for at in 0..OBJECTS {
                let object = read(tx, w, at).unwrap();
                assert!(ids.get(at).is_none_or(|before| *before == object));
            }
            assert_eq!(tx.len(), OBJECTS);
        });
        cluster.commit(0, 0, tx).unwrap();
    }
    cluster.stop();
}

/// Regression: the `ObjectId` of an object that was taken back referred to the object that was read next.
#[test]
fn the_id_of_an_object_that_was_taken_back_is_never_valid_again() {
    let cluster = cluster("taken-back", 1, 1);
    let [one, two] = [1, 2].map(|mark| cluster.create(0, 0, &[mark; BYTES]));
    cluster.on(0, 0, move |w| {
        let mut tx = farm_txn::checkout(w);
        let mut taken_back = None;
        let failed: Result<(), TxError> = tx.all_or_nothing(w, |tx, w| {
            taken_back = Some(tx.read(w, one, BYTES)?);
            Err(TxError::GivenUp)
        });
        assert!(matches!(failed, Err(TxError::GivenUp)));
        let taken_back = taken_back.unwrap();
        let other = |tx: &Tx| matches!(tx.check(taken_back), Err(TxError::OtherTransaction));
        assert!(other(&tx));
        let read = tx.read(w, two, BYTES).unwrap();
        assert!(other(&tx) && read != taken_back);
        let again = tx.read(w, one, BYTES).unwrap();
        assert!(other(&tx) && again != taken_back);
        tx.check(read).unwrap();
        tx.check(again).unwrap();
        tx.abort(w);
        farm_txn::checkin(w, tx);
    });
    cluster.stop();
}

#[test]
fn when_committed_is_called_after_a_commit_and_not_after_an_abort() {
    static CALLED: AtomicU64 = AtomicU64::new(0);
    fn called(_: &mut Worker, context: u64, (): ()) {
        CALLED.fetch_add(context, Ordering::Relaxed);
    }
    let cluster = cluster("called", 1, 1);
    let at = cluster.create(0, 0, &[1; BYTES]);
    for (commits, context) in [(false, 100), (true, 1), (false, 100), (true, 10)] {
        let (mut tx, ()) = cluster.open(0, 0, move |tx, w| {
            let object = tx.read(w, at, BYTES).unwrap();
            tx.payload_mut(object)[0] += 1;
            tx.when_committed(Cont::new(called, context));
        });
        match commits {
            true => cluster.commit(0, 0, tx).unwrap(),
            false => cluster.on(0, 0, move |w| {
                tx.abort(w);
                farm_txn::checkin(w, tx);
            }),
        }
    }
    assert_eq!(CALLED.load(Ordering::Relaxed), 11);
    cluster.stop();
}
