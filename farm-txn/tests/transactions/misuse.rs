//! Mistakes of applications are typed errors: objects of other transactions, wrong sizes, freed objects, invalid
//! addresses, and transactions that grow too large.

use std::sync::mpsc;

use farm_core::alloc::class_for_payload;
use farm_core::ids::Address;
use farm_core::object::{FIRST_LINE_PAYLOAD, Incarnation, LockMode, object_bytes_for, write};
use farm_core::worker::{AddressError, Cont, ReadError, Worker};
use farm_testing::receive;
use farm_txn::{Abort, ObjectId, Tx, TxError, TxHandle, TxLimits, api};

use crate::cluster::{Cluster, cluster, commit, lock, overwrite};

type Answer = mpsc::Sender<Result<(TxHandle, ObjectId), TxError>>;

fn read_done(worker: &mut Worker, tx: u64, object: Result<ObjectId, TxError>) {
    let answer = worker.take_layer::<Answer>();
    let tx = TxHandle::from_context(tx);
    answer.send(object.map(|object| (tx, object))).unwrap();
}

/// Reads an object in a new transaction of worker 0 of machine 0. The transaction stays open if the read succeeds.
fn read(
    cluster: &Cluster,
    address: Address,
    bytes: usize,
) -> Result<(TxHandle, ObjectId), TxError> {
    let (answer, answered): (Answer, _) = mpsc::channel();
    cluster.on(0, 0, move |worker| {
        worker.put_layer(Box::new(answer));
        let tx = api::begin(worker);
        api::read(
            worker,
            tx,
            address,
            bytes,
            Cont::new(read_done, tx.to_context()),
        );
    });
    receive(&answered)
}

#[test]
fn an_object_of_another_transaction_is_a_typed_error() {
    let cluster = cluster("other-tx", 2, 1);
    let [x, y] = [b"x", b"y"].map(|payload| cluster.create(0, 0, payload));
    let remote = cluster.create(1, 0, b"r");
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
        // Contexts are reused; the objects of their earlier transactions are not valid any more.
        for _ in own {
            let again = api::begin(w);
            api::with(w, again, |tx, w| tx.read(w, x, 1).unwrap()).unwrap();
            for (_, object) in own {
                let read = api::payload(w, again, object);
                assert!(matches!(read, Err(TxError::OtherTransaction)));
            }
            api::abort(w, again);
        }
    });
    assert_eq!(cluster.contents(0, 0, x, 1).unwrap(), b"x");
    assert_eq!(cluster.contents(0, 0, y, 1).unwrap(), b"y");
    cluster.stop();
}

/// An `ObjectId` ends with its transaction, by commit or by abort, also if the context is reused.
#[test]
fn a_reused_context_rejects_objects_of_its_earlier_transactions() {
    let cluster = cluster("again", 1, 1);
    let x = cluster.create(0, 0, b"x");
    // The addresses of contexts, with the objects of their transactions.
    let mut earlier: Vec<(usize, ObjectId)> = vec![];
    let mut reused = [0; 2];
    for commit in [true, false].repeat(6) {
        let known = earlier.clone();
        let (mut tx, object) = cluster.open(0, 0, move |tx, w| {
            let object = tx.read(w, x, 1).unwrap();
            tx.check(object).unwrap();
            for (_, object) in known {
                assert!(matches!(tx.check(object), Err(TxError::OtherTransaction)));
                let used = std::panic::catch_unwind(|| tx.payload(object).len());
                assert!(
                    used.is_err(),
                    "the access returned bytes of another object instead of a panic"
                );
            }
            object
        });
        let context = &raw const *tx as usize;
        reused[usize::from(commit)] += usize::from(earlier.iter().any(|one| one.0 == context));
        earlier.push((context, object));
        if commit {
            cluster.commit(0, 0, tx).unwrap();
        } else {
            cluster.on(0, 0, move |w| {
                tx.abort(w);
                assert!(matches!(tx.check(object), Err(TxError::OtherTransaction)));
                farm_txn::checkin(w, tx);
            });
        }
    }
    assert!(reused.iter().all(|times| *times > 0), "{reused:?}");
    cluster.stop();
}

#[test]
fn a_wrong_size_is_a_typed_error() {
    let cluster = cluster("size", 2, 2);
    let bytes = |payload| class_for_payload(payload).unwrap().payload_capacity();
    let objects: Vec<_> = [1usize, 100, 700, 3000]
        .map(|size| (size, cluster.create(0, 0, &vec![7; size])))
        .to_vec();
    // Any worker of the machine reports the wrong size.
    for worker in [0, 1] {
        for (size, address) in &objects {
            for asked in [1, 100, 700, 3000, 20_000] {
                let read = cluster.contents(0, worker, *address, asked);
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
    }
    // The same with handles. For objects that the transaction has already, on any machine, the size is checked without
    // a read.
    let (size, address) = objects[1];
    let error = read(&cluster, address, 700).unwrap_err();
    assert!(matches!(error, TxError::WrongSize { .. }), "{error}");
    let remote = cluster.create(1, 0, &[5; 100]);
    let (tx, _) = read(&cluster, remote, size).unwrap();
    let (answer, answered): (Answer, _) = mpsc::channel();
    cluster.on(0, 0, move |w| {
        w.put_layer(Box::new(answer));
        api::read(w, tx, remote, 700, Cont::new(read_done, tx.to_context()));
    });
    let error = answered.recv().unwrap().unwrap_err();
    assert!(matches!(error, TxError::WrongSize { .. }), "{error}");
    cluster.stop();
}

/// The size of another machine's object is checked by its header, also while a transaction holds its lock. Regression:
/// a read of a larger class ended as if the object stayed locked, and a read of a smaller class returned the first
/// bytes.
#[test]
fn a_wrong_size_of_a_remote_object_is_a_typed_error_in_every_lock_mode() {
    let cluster = cluster("remote-size", 2, 1);
    let at = cluster.create(1, 0, &[5; 100]);
    let bytes = |payload| class_for_payload(payload).unwrap().payload_capacity();
    for mode in [LockMode::Unlocked, LockMode::Exclusive] {
        if mode == LockMode::Exclusive {
            cluster.on(1, 0, move |w| lock(w, at, mode));
        }
        for asked in [10, 170, 700, 3000] {
            let error = read(&cluster, at, asked).unwrap_err();
            assert!(
                matches!(error, TxError::WrongSize { address, asked: a, is }
                    if address == at && a == bytes(asked) && is == bytes(100)),
                "{error}"
            );
            let error = cluster.look(0, at, object_bytes_for(asked)).unwrap_err();
            assert!(
                matches!(error, ReadError::WrongSize { address, is, .. }
                    if address == at && is == class_for_payload(100).unwrap()),
                "{error}"
            );
        }
    }
    assert_eq!(cluster.on(0, 0, |w| w.read_counters().restarts), 0);
    cluster.on(1, 0, move |w| lock(w, at, LockMode::Unlocked));
    assert_eq!(cluster.contents(1, 0, at, 100).unwrap(), [5; 100]);
    let written = cluster.transact(1, 0, move |tx, w| overwrite(tx, w, at, &[7; 100]));
    written.unwrap();
    assert_eq!(cluster.look(0, at, 128).unwrap().payload[..100], [7; 100]);
    cluster.stop();
}

/// A remote read at an address where no object starts finds payload of zeroes or small numbers behind a line version,
/// whose low bits look like each lock mode in turn. The read ends at once and returns no object.
#[test]
fn a_read_of_bytes_without_a_header_returns_no_object() {
    let cluster = cluster("no-header", 2, 1);
    let of_words = |word: u64| word.to_le_bytes().repeat(100);
    for small in [5, 0] {
        let at = cluster.create(1, 0, &of_words(small));
        for _ in 0..4 {
            for line in 1..8 {
                let inside = at.checked_add(line * 64).unwrap();
                for bytes in [8, 100] {
                    match read(&cluster, inside, bytes).map(drop) {
                        Err(TxError::Address(AddressError::Nowhere(address))) => {
                            assert_eq!(address, inside);
                        }
                        // The bytes look like an object of the smallest class that is not allocated.
                        Err(TxError::NotAllocated(_)) if bytes == 8 => {}
                        // The version of the line makes zeros look like an object that recovery has locked before it is written.
                        Err(TxError::Abort(Abort::TimedOut(_))) if small == 0 => {}
                        other => panic!("line {line}, {bytes} bytes: {other:?}"),
                    }
                }
            }
            let payload = of_words(small);
            let written = cluster.transact(1, 0, move |tx, w| overwrite(tx, w, at, &payload));
            written.unwrap();
        }
        let restarts = cluster.on(0, 0, |w| w.read_counters().restarts);
        assert_eq!(restarts > 0, small == 0);
    }
    cluster.stop();
}

/// Bytes that look like the header of a locked object of the requested class, which is never unlocked, cannot be
/// distinguished from such an object. The read ends with an error instead of returning an object.
#[test]
fn a_read_of_bytes_that_look_like_a_locked_object_times_out() {
    let cluster = cluster("like-locked", 2, 1);
    let class = class_for_payload(100).unwrap();
    let like = Incarnation::new(class, 1 << 53).allocated();
    let mut payload = vec![0; 200];
    payload[FIRST_LINE_PAYLOAD + 6..][..8].copy_from_slice(&like.0.to_le_bytes());
    let at = cluster.create(1, 0, &payload);
    // After the second write, the line version is 2.
    let written = cluster.transact(1, 0, move |tx, w| overwrite(tx, w, at, &payload));
    written.unwrap();
    let inside = at.checked_add(64).unwrap();
    let header = cluster.on(1, 0, move |w| {
        let (memory, at) = w.local_memory(inside).unwrap();
        (
            write::load_version(memory, at).mode(),
            write::load_incarnation(memory, at),
        )
    });
    assert_eq!(header, (LockMode::Exclusive, like));
    let error = read(&cluster, inside, 100).map(drop).unwrap_err();
    assert!(
        matches!(error, TxError::Abort(Abort::TimedOut(address)) if address == inside),
        "{error}"
    );
    cluster.stop();
}

/// A remote read of the wrong size ends at once, and never with the bytes of two objects. Regression: a read of 100
/// bytes (two lines) passed as consistent if the first line was an object at version 4 and the second line began with
/// the header of an object at version 1, whose first 16 bits are 1 << 2. It returned the neighbour's bytes, and the
/// transaction committed.
#[test]
fn a_remote_read_of_another_size_is_refused_at_once() {
    let cluster = cluster("other-size", 2, 1);
    // `create` writes the first version; then one object of each two neighbours is written three more times.
    let all = [(); 8].map(|()| cluster.create(1, 0, &[5; 8]));
    for address in all.into_iter().step_by(2) {
        for _ in 0..3 {
            let written = cluster.transact(1, 0, move |tx, w| overwrite(tx, w, address, &[6; 8]));
            written.unwrap();
        }
    }
    let is = class_for_payload(8).unwrap().payload_capacity();
    for bytes in [100, 170, 700] {
        let restarts = |w: &mut Worker| w.read_counters().restarts;
        let before = cluster.on(0, 0, restarts);
        let asked = class_for_payload(bytes).unwrap().payload_capacity();
        for address in all {
            match read(&cluster, address, bytes) {
                Err(TxError::WrongSize {
                    address: at,
                    asked: a,
                    is: i,
                }) => {
                    assert_eq!((at, a, i), (address, asked, is));
                }
                Err(other) => panic!("{bytes} bytes at {address}: {other}"),
                Ok((tx, object)) => {
                    let seen =
                        cluster.on(0, 0, move |w| api::payload(w, tx, object).unwrap().to_vec());
                    let outcome = commit(&cluster, tx);
                    panic!("{bytes} bytes at {address}: {outcome:?} with {seen:?}");
                }
            }
        }
        assert_eq!(cluster.on(0, 0, restarts), before, "a read was retried");
    }
    cluster.stop();
}

/// After a transaction frees an object, the object is not valid in it any more. Regression: a write to such an object
/// was lost silently.
#[test]
fn an_object_that_the_transaction_has_freed_is_a_typed_error() {
    let cluster = cluster("freed-own", 2, 1);
    for machine in [0, 1] {
        let at = cluster.create(machine, 0, b"x");
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
fn addresses_without_an_object_are_typed_errors() {
    let cluster = cluster("nowhere", 2, 1);
    let x = cluster.create(0, 0, &[1; 100]);
    for machine in [0, 1] {
        // An object that was allocated and then freed.
        let [gone, _beside] = [(); 2].map(|()| cluster.create(machine, 0, &[1; 100]));
        cluster.free(machine, 0, gone, 100).unwrap();
        let error = read(&cluster, gone, 100).unwrap_err();
        assert!(
            matches!(error, TxError::NotAllocated(at) if at == gone),
            "{error}"
        );
        // An address behind the end of the region.
        let beyond = Address::new(gone.region(), !63);
        let error = read(&cluster, beyond, 100).unwrap_err();
        assert!(
            matches!(error, TxError::Address(AddressError::Nowhere(at)) if at == beyond),
            "{error}"
        );
    }
    // An address in the middle of an object.
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
    let (tx, all) = cluster.open(0, 0, |tx, w| {
        let most = TxLimits::default();
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
        all
    });
    cluster.commit(0, 0, tx).unwrap();
    cluster.on(0, 0, move |w| {
        let mut tx = Tx::new();
        for address in all {
            tx.read(w, address, 1).unwrap();
        }
        w.check_slab().unwrap();
    });
    cluster.stop();
}
