//! Mistakes of applications are typed errors: objects of other transactions, wrong sizes, freed and
//! wild addresses, transactions that grow too large.

use std::sync::mpsc;
use std::time::Duration;

use farm_core::alloc::class_for_payload;
use farm_core::ids::Address;
use farm_core::worker::{AddressError, Cont, Worker};
use farm_txn::{Abort, ObjectId, Tx, TxError, TxHandle, TxLimits, api};

use crate::cluster::{Cluster, cluster, commit, contents, create, overwrite, transact};

type Answer = mpsc::Sender<Result<(TxHandle, ObjectId), TxError>>;

fn came(worker: &mut Worker, tx: u64, object: Result<ObjectId, TxError>) {
    let answer = worker.take_layer::<Answer>();
    let tx = TxHandle::from_context(tx);
    answer.send(object.map(|object| (tx, object))).unwrap();
}

/// Reads an object in a new transaction of worker 0 of machine 0, which stays open if that succeeds.
fn read(
    cluster: &Cluster,
    address: Address,
    bytes: usize,
) -> Result<(TxHandle, ObjectId), TxError> {
    let (answer, heard): (Answer, _) = mpsc::channel();
    cluster.on(0, 0, move |worker| {
        worker.put_layer(Box::new(answer));
        let tx = api::begin(worker);
        api::read(worker, tx, address, bytes, Cont::new(came, tx.to_context()));
    });
    heard.recv_timeout(Duration::from_secs(60)).unwrap()
}

#[test]
fn an_object_of_another_transaction_is_a_typed_error() {
    let cluster = cluster("other-tx", 2, 1);
    let (x, y) = cluster.on(0, 0, |w| (create(w, b"x"), create(w, b"y")));
    let remote = cluster.on(1, 0, |w| create(w, b"r"));
    let (first, of_first) = read(&cluster, x, 1).unwrap();
    let (second, of_second) = read(&cluster, y, 1).unwrap();
    let (third, of_third) = read(&cluster, remote, 1).unwrap();
    cluster.on(0, 0, move |w| {
        let own = [(first, of_first), (second, of_second), (third, of_third)];
        for (tx, _) in own {
            for (owner, object) in own {
                let mine = owner == tx;
                let other = |error: Option<TxError>| match error {
                    None => mine,
                    Some(error) => !mine && matches!(error, TxError::OtherTransaction),
                };
                assert!(other(api::payload(w, tx, object).err()));
                assert!(other(api::address(w, tx, object).err()));
                assert!(other(
                    api::with(w, tx, |tx, _| tx.check(object)).unwrap().err()
                ));
                if !mine {
                    assert!(other(api::payload_mut(w, tx, object).err()));
                    assert!(other(api::free(w, tx, object).err()));
                }
            }
        }
        for (tx, _) in own {
            api::abort(w, tx);
        }
        // Contexts are used again; what they had before is not theirs any more.
        for _ in own {
            let again = api::begin(w);
            api::with(w, again, |tx, w| tx.read(w, x, 1).unwrap()).unwrap();
            for (_, object) in own {
                let read = api::payload(w, again, object);
                assert!(matches!(read, Err(TxError::OtherTransaction)));
            }
            api::abort(w, again);
        }
        assert_eq!(contents(w, x, 1).unwrap(), b"x");
        assert_eq!(contents(w, y, 1).unwrap(), b"y");
    });
    cluster.stop();
}

/// An id of the context itself ends with its transaction: by commit, by abort.
#[test]
fn a_context_that_is_used_again_knows_its_own_objects() {
    let cluster = cluster("again", 1, 1);
    cluster.on(0, 0, |w| {
        let x = create(w, b"x");
        let mut tx = Tx::new();
        for commit in [true, false, true] {
            let object = tx.read(w, x, 1).unwrap();
            tx.check(object).unwrap();
            if commit {
                tx.commit(w).unwrap();
            } else {
                tx.abort(w);
            }
            assert!(matches!(tx.check(object), Err(TxError::OtherTransaction)));
            tx.read(w, x, 1).unwrap();
            let used = std::panic::catch_unwind(|| tx.payload(object).len());
            assert!(used.is_err(), "it panics, and gives no bytes of another");
            tx.abort(w);
        }
    });
    cluster.stop();
}

#[test]
fn a_wrong_size_is_a_typed_error() {
    let cluster = cluster("size", 2, 2);
    let bytes = |payload| class_for_payload(payload).unwrap().payload_capacity();
    let objects: Vec<_> = [1usize, 100, 700, 3000]
        .map(|size| (size, cluster.on(0, 0, move |w| create(w, &vec![7; size]))))
        .to_vec();
    // Any worker of the machine knows.
    for worker in [0, 1] {
        let objects = objects.clone();
        cluster.on(0, worker, move |w| {
            for (size, address) in &objects {
                for asked in [1, 100, 700, 3000, 20_000] {
                    let read = contents(w, *address, asked);
                    if asked == *size {
                        assert_eq!(read.unwrap(), vec![7; *size]);
                        continue;
                    }
                    let error = read.unwrap_err();
                    assert!(
                        matches!(error, TxError::WrongSize { address: at, asked: a, is }
                            if at == *address && a == bytes(asked) && is == bytes(*size)),
                        "{error}"
                    );
                }
            }
        });
    }
    // By handles too; and what a transaction has met it knows, wherever it is.
    let (size, address) = objects[1];
    let error = read(&cluster, address, 700).unwrap_err();
    assert!(matches!(error, TxError::WrongSize { .. }), "{error}");
    let remote = cluster.on(1, 0, |w| create(w, &[5; 100]));
    let (tx, _) = read(&cluster, remote, size).unwrap();
    let (answer, heard): (Answer, _) = mpsc::channel();
    cluster.on(0, 0, move |w| {
        w.put_layer(Box::new(answer));
        api::read(w, tx, remote, 700, Cont::new(came, tx.to_context()));
    });
    let error = heard.recv().unwrap().unwrap_err();
    assert!(matches!(error, TxError::WrongSize { .. }), "{error}");
    cluster.stop();
}

/// What cannot be told of another machine's object when it is read: a larger class ends as a lock that is
/// never given up, a smaller one gives the first bytes. See `api::read_class`. Its primary can tell when it
/// is to be written: such a commit once left half an object, which nobody could read any more.
#[test]
fn a_wrong_size_of_a_remote_object_is_found_out_if_it_is_too_large() {
    let cluster = cluster("remote-size", 2, 1);
    let all = [(); 8].map(|()| cluster.on(1, 0, |w| create(w, &[5; 100])));
    let error = read(&cluster, all[0], 700).unwrap_err();
    assert!(
        matches!(error, TxError::Abort(Abort::TimedOut(at)) if at == all[0]),
        "{error}"
    );
    let (tx, object) = read(&cluster, all[0], 10).unwrap();
    cluster.on(0, 0, move |w| {
        assert_eq!(api::payload(w, tx, object).unwrap()[..10], [5; 10]);
        api::payload_mut(w, tx, object).unwrap().fill(6);
    });
    let error = commit(&cluster, tx).unwrap_err();
    let bytes = |payload| class_for_payload(payload).unwrap().payload_capacity();
    assert!(
        matches!(error, TxError::WrongSize { address, asked, is }
            if address == all[0] && asked == bytes(10) && is == bytes(100)),
        "{error}"
    );
    // It is as it was, and nobody has it locked.
    cluster.on(1, 0, move |w| {
        assert_eq!(contents(w, all[0], 100).unwrap(), [5; 100]);
        transact(w, |tx, w| overwrite(tx, w, all[0], &[7; 100]).map(drop)).unwrap();
    });
    assert_eq!(
        cluster.look(0, all[0], 128).unwrap().payload[..100],
        [7; 100]
    );
    cluster.stop();
}

/// What a transaction freed is none of its objects: a write of it was once lost without a word.
#[test]
fn an_object_that_the_transaction_has_freed_is_a_typed_error() {
    let cluster = cluster("freed-own", 2, 1);
    for machine in [0, 1] {
        let at = cluster.on(machine, 0, |w| create(w, b"x"));
        let (tx, object) = read(&cluster, at, 1).unwrap();
        cluster.on(0, 0, move |w| {
            api::free(w, tx, object).unwrap();
            let gone = |result: Result<(), TxError>| {
                let error = result.unwrap_err();
                assert!(
                    matches!(error, TxError::NotAllocated(address) if address == at),
                    "{error}"
                );
            };
            gone(api::payload(w, tx, object).map(drop));
            gone(api::payload_mut(w, tx, object).map(drop));
            gone(api::free(w, tx, object));
            gone(api::free_array(w, tx, &[object]));
            gone(api::with(w, tx, |tx, _| tx.check(object)).unwrap());
            api::abort(w, tx);
        });
        let (tx, object) = read(&cluster, at, 1).unwrap();
        cluster.on(0, 0, move |w| {
            api::free_array(w, tx, &[object, object]).unwrap();
            api::abort(w, tx);
        });
    }
    cluster.on(0, 0, |w| {
        let mut tx = Tx::new();
        let object = tx.alloc(w, 1, None).unwrap();
        tx.free(object);
        let touch: [fn(&mut Tx, ObjectId); 4] = [
            |tx, object| assert!(!tx.payload(object).is_empty()),
            |tx, object| tx.payload_mut(object).fill(1),
            |tx, object| tx.increment_incarnation(object),
            |tx, object| assert!(!tx.pointer(object).address.is_null()),
        ];
        for touch in touch {
            let touched = std::panic::AssertUnwindSafe(|| touch(&mut tx, object));
            assert!(std::panic::catch_unwind(touched).is_err());
        }
        tx.abort(w);
    });
    cluster.stop();
}

#[test]
fn addresses_of_no_object_are_typed_errors() {
    let cluster = cluster("nowhere", 2, 1);
    let x = cluster.on(0, 0, |w| create(w, &[1; 100]));
    for machine in [0, 1] {
        // It was there, and is freed.
        let gone = cluster.on(machine, 0, |w| {
            let (gone, _beside) = (create(w, &[1; 100]), create(w, &[1; 100]));
            transact(w, |tx, w| {
                tx.read(w, gone, 100).map(|object| tx.free(object))
            })
            .unwrap();
            gone
        });
        let error = read(&cluster, gone, 100).unwrap_err();
        assert!(
            matches!(error, TxError::NotAllocated(at) if at == gone),
            "{error}"
        );
        // Behind the end of the region.
        let beyond = Address::new(gone.region(), !63);
        let error = read(&cluster, beyond, 100).unwrap_err();
        assert!(
            matches!(error, TxError::Address(AddressError::Nowhere(at)) if at == beyond),
            "{error}"
        );
    }
    // In the middle of an object.
    let inside = x.checked_add(64).unwrap();
    for address in [inside, Address::NULL] {
        let error = read(&cluster, address, 100).unwrap_err();
        assert!(
            matches!(error, TxError::Address(AddressError::Nowhere(_))),
            "{error}"
        );
    }
    cluster.stop();
}

#[test]
fn a_transaction_beyond_its_limits_is_a_typed_error_and_can_still_commit() {
    let cluster = cluster("limits", 1, 1);
    cluster.on(0, 0, |w| {
        let most = TxLimits::default();
        let mut tx = Tx::new();
        let mut all = vec![];
        let error = loop {
            match tx.alloc(w, 1, None) {
                Ok(object) => all.push(tx.address(object)),
                Err(error) => break error,
            }
        };
        assert_eq!(all.len(), most.objects);
        assert!(
            matches!(error, TxError::Limit { objects, limits, .. }
                if objects == most.objects + 1 && limits == most),
            "{error}"
        );
        tx.commit(w).unwrap();
        for address in all {
            contents(w, address, 1).unwrap();
        }
        w.check_slab().unwrap();
    });
    cluster.stop();
}
