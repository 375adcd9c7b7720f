//! Conflicts that make a commit fail, and that a failed commit has no effect.

use farm_core::ids::Address;
use farm_core::object::LockMode;
use farm_core::worker::Worker;
use farm_txn::{Abort, ObjectId, Tx, TxError};

use crate::cluster::{cluster, lock, mode, overwrite};

type Body = fn(&mut Tx, &mut Worker, Address, Address) -> Result<ObjectId, TxError>;

fn abort_of(outcome: Result<(), TxError>) -> Option<Abort> {
    match outcome {
        Err(TxError::Abort(abort)) => Some(abort),
        Ok(()) => None,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn an_object_that_changed_since_the_read_is_a_conflict() {
    let cluster = cluster("changed", 1, 1);
    let [x, y] = [b"x0", b"y0"].map(|payload| cluster.create(0, 0, payload));
    let touch = || {
        let touched = cluster.transact(0, 0, move |tx, w| overwrite(tx, w, x, b"x1"));
        touched.unwrap();
    };

    // Each body reads `x`: and writes it, writes another object, reads another object, frees `x`, or allocates an
    // object.
    let bodies: [Body; 5] = [
        |tx, w, x, _| overwrite(tx, w, x, b"x2"),
        |tx, w, x, y| tx.read(w, x, 2).and_then(|_| overwrite(tx, w, y, b"y2")),
        |tx, w, x, y| tx.read(w, x, 2).and_then(|_| tx.read(w, y, 2)),
        |tx, w, x, _| tx.read(w, x, 2).inspect(|object| tx.free(*object)),
        |tx, w, x, _| tx.read(w, x, 2).and_then(|_| tx.alloc(w, 2, None)),
    ];
    for body in bodies {
        let (tx, _) = cluster.open(0, 0, move |tx, w| body(tx, w, x, y).unwrap());
        touch();
        assert_eq!(abort_of(cluster.commit(0, 0, tx)), Some(Abort::Changed(x)));
        assert_eq!(cluster.contents(0, 0, x, 2).unwrap(), b"x1");
        assert_eq!(cluster.contents(0, 0, y, 2).unwrap(), b"y0");
        cluster.on(0, 0, |w| w.check_slab()).unwrap();
    }

    // A write of the same bytes is a change, too.
    let (tx, _) = cluster.open(0, 0, move |tx, w| {
        [x, y].map(|at| tx.read(w, at, 2).unwrap())
    });
    touch();
    assert_eq!(abort_of(cluster.commit(0, 0, tx)), Some(Abort::Changed(x)));

    // A freed object counts as changed, even if a new object is in its place.
    let (tx, _) = cluster.open(0, 0, move |tx, w| {
        tx.read(w, x, 2).unwrap();
        overwrite(tx, w, y, b"y2").unwrap();
    });
    cluster.free(0, 0, x, 2).unwrap();
    assert_eq!(cluster.create(0, 0, b"x1"), x);
    assert_eq!(abort_of(cluster.commit(0, 0, tx)), Some(Abort::Changed(x)));

    // A single read is serialized at the moment of the read.
    let (tx, _) = cluster.open(0, 0, move |tx, w| tx.read(w, x, 2).unwrap());
    touch();
    assert_eq!(abort_of(cluster.commit(0, 0, tx)), None);
    cluster.stop();
}

/// A commit fails if another transaction has locked, in either mode, an object that it reads or writes. It releases the
/// locks that it took before, and leaves the locks of others.
#[test]
fn a_locked_object_is_a_conflict_and_own_locks_are_released() {
    let cluster = cluster("locked", 1, 1);
    let all = [b"a", b"b", b"c"].map(|payload| cluster.create(0, 0, payload));
    for held in [LockMode::Readable, LockMode::Exclusive] {
        for locked in all {
            for writes in 0..8u32 {
                let (tx, ()) = cluster.open(0, 0, move |tx, w| {
                    for (index, at) in all.into_iter().enumerate() {
                        let object = tx.read(w, at, 1).unwrap();
                        if writes & 1 << index != 0 {
                            tx.payload_mut(object)[0] = b'!';
                        }
                    }
                    lock(w, locked, held);
                });
                assert_eq!(
                    abort_of(cluster.commit(0, 0, tx)),
                    Some(Abort::Locked(locked)),
                    "{held:?} {writes:#b}"
                );
                cluster.on(0, 0, move |w| {
                    assert_eq!(
                        mode(w, locked),
                        held,
                        "the lock of another transaction is gone"
                    );
                    lock(w, locked, LockMode::Unlocked);
                    for at in all {
                        assert_eq!(
                            mode(w, at),
                            LockMode::Unlocked,
                            "{at}: {held:?} {writes:#b}"
                        );
                    }
                });
            }
        }
    }
    let now: Vec<_> = all
        .map(|at| cluster.contents(0, 0, at, 1).unwrap())
        .concat();
    assert_eq!(now, b"abc");
    cluster.stop();
}

#[test]
fn a_commit_unlocks_its_objects_and_is_visible_as_a_whole() {
    let cluster = cluster("whole", 2, 1);
    let all = [(); 20].map(|()| cluster.create(0, 0, &[0; 200]));
    let written = cluster.transact(0, 0, move |tx, w| {
        for at in all {
            overwrite(tx, w, at, &[1; 200])?;
        }
        Ok(())
    });
    written.unwrap();
    cluster.on(0, 0, move |w| {
        assert!(all.iter().all(|at| mode(w, *at) == LockMode::Unlocked));
    });
    for at in all {
        let seen = cluster.look(1, at, 256).unwrap();
        // Its first version is the one after the base of the block, and it was written once.
        assert_eq!(seen.version.line(), 2);
        assert_eq!(seen.payload[..200], [1; 200]);
    }
    cluster.stop();
}

/// Found by the simulator: a transaction read a pointer and then found no object at its target. It committed although
/// both had changed in between.
#[test]
fn absent_objects_are_validated() {
    let cluster = cluster("absent", 1, 1);
    let [x, y] = [b"x0", b"y0"].map(|payload| cluster.create(0, 0, payload));
    cluster.free(0, 0, x, 2).unwrap();
    let absent = move |tx: &mut Tx, w: &mut Worker| {
        assert!(matches!(tx.read(w, x, 2), Err(TxError::NotAllocated(at)) if at == x));
    };

    // The object was allocated again before the commit.
    let (tx, ()) = cluster.open(0, 0, move |tx, w| {
        tx.read(w, y, 2).unwrap();
        absent(tx, w);
    });
    assert_eq!(cluster.create(0, 0, b"x1"), x);
    assert_eq!(abort_of(cluster.commit(0, 0, tx)), Some(Abort::Changed(x)));
    cluster.free(0, 0, x, 2).unwrap();

    // It stayed absent, and a second read returns the same error.
    let (tx, ()) = cluster.open(0, 0, move |tx, w| {
        overwrite(tx, w, y, b"y1").unwrap();
        absent(tx, w);
        absent(tx, w);
    });
    assert_eq!(abort_of(cluster.commit(0, 0, tx)), None);

    // The transaction allocates an object in the slot that it read as absent.
    let (tx, ()) = cluster.open(0, 0, move |tx, w| {
        absent(tx, w);
        let object = tx.alloc(w, 2, None).unwrap();
        assert_eq!(tx.address(object), x);
        tx.payload_mut(object)[..2].copy_from_slice(b"x2");
    });
    assert_eq!(abort_of(cluster.commit(0, 0, tx)), None);
    assert_eq!(cluster.contents(0, 0, x, 2).unwrap(), b"x2");
    cluster.on(0, 0, |w| w.check_slab()).unwrap();
    cluster.stop();
}
