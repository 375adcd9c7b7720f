//! Reads, writes, allocations and frees within one transaction, and their effects after it.

use farm_core::alloc::{SizeClass, class_for_payload};
use farm_core::ids::{Address, RegionId};
use farm_core::object::Incarnation;
use farm_core::worker::{AddressError, Worker};
use farm_txn::{Abort, Tx, TxError, TxLimits};

use crate::cluster::{Cluster, cluster, overwrite, put_in_array, usage};

/// Returns the number of live objects of the smallest class, according to the worker's allocator.
fn live(worker: &mut Worker) -> u64 {
    worker.slab_usage(SizeClass::SMALLEST).live
}

/// Returns the incarnation of an object of the smallest class, read by worker 0 of machine 0.
fn incarnation(cluster: &Cluster, address: Address) -> Incarnation {
    let read = cluster.transact(0, 0, move |tx, w| {
        tx.read(w, address, 1).map(|object| tx.incarnation(object))
    });
    read.unwrap()
}

#[test]
fn uncommitted_writes_are_visible_only_to_their_transaction() {
    let cluster = cluster("own-writes", 1, 1);
    let old = cluster.create(0, 0, b"old");
    let (tx, child) = cluster.open(0, 0, move |tx, w| {
        let object = overwrite(tx, w, old, b"new").unwrap();
        assert_eq!(
            tx.read(w, old, 3).unwrap(),
            object,
            "reading again returned another object"
        );
        assert_eq!(&tx.payload(object)[..3], b"new");
        let born = tx.alloc(w, 3, Some(old)).unwrap();
        tx.payload_mut(born)[..3].copy_from_slice(b"kid");
        let child = tx.address(born);
        assert_eq!(tx.find(child), Some(born));
        assert_eq!(tx.read(w, child, 3).unwrap(), born);
        assert_eq!(
            child.region(),
            old.region(),
            "the new object is not in the region of its hint"
        );
        child
    });
    assert_eq!(cluster.contents(0, 0, old, 3).unwrap(), b"old");
    let unborn = cluster.contents(0, 0, child, 3);
    assert!(matches!(unborn, Err(TxError::NotAllocated(at)) if at == child));
    cluster.commit(0, 0, tx).unwrap();
    assert_eq!(cluster.contents(0, 0, old, 3).unwrap(), b"new");
    assert_eq!(cluster.contents(0, 0, child, 3).unwrap(), b"kid");
    cluster.on(0, 0, |w| w.check_slab()).unwrap();
    cluster.stop();
}

#[test]
fn worker_at_returns_a_worker_of_the_objects_machine() {
    let cluster = cluster("worker-at", 2, 2);
    for (machine, worker) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let address = cluster.create(machine, worker, b"here");
        let me = cluster.on(machine, worker, |w| w.me());
        for other in [0, 1] {
            let to = cluster.on(other, 1, move |w| w.worker_at(address)).unwrap();
            assert_eq!(to.machine, me.machine);
            let index = usize::from(to.worker.get());
            assert!(
                machine != other || index == 1,
                "a worker that has the memory must return itself"
            );
            let seen = cluster.contents(machine, index, address, 4);
            assert_eq!(seen.unwrap(), b"here");
        }
    }
    cluster.stop();
}

#[test]
fn a_free_is_visible_to_its_transaction_at_once_and_to_others_after_the_commit() {
    let cluster = cluster("freed", 2, 1);
    let address = cluster.create(0, 0, b"here");
    let (mut tx, pointer) = cluster.open(0, 0, move |tx, w| {
        let object = tx.read(w, address, 4).unwrap();
        let pointer = tx.pointer(object);
        tx.free(object);
        assert!(matches!(
            tx.read(w, address, 4),
            Err(TxError::NotAllocated(_))
        ));
        pointer
    });
    assert_eq!(
        cluster.contents(0, 0, address, 4).unwrap(),
        b"here",
        "the free took effect before the commit"
    );
    cluster.on(0, 0, move |w| {
        let before = usage(w);
        tx.abort(w);
        assert_eq!(usage(w), before);
        farm_txn::checkin(w, tx);
    });
    assert_eq!(
        cluster.contents(0, 0, address, 4).unwrap(),
        b"here",
        "the free took effect after an abort"
    );
    assert!(pointer.names(cluster.look(1, address, 64).unwrap().incarnation));

    let before = cluster.on(0, 0, live);
    cluster.free(0, 0, address, 4).unwrap();
    assert_eq!(cluster.on(0, 0, live), before - 1);
    let gone = cluster.contents(0, 0, address, 4);
    assert!(matches!(gone, Err(TxError::NotAllocated(_))));
    cluster.on(0, 0, |w| w.check_slab()).unwrap();
    let seen = cluster.look(1, address, 64).unwrap();
    assert!(!seen.incarnation.is_allocated() && !pointer.names(seen.incarnation));

    // The slot is reused. The old pointer does not refer to the new object, whose payload is zeroed.
    let again = cluster.create(0, 0, &[]);
    assert_eq!(again, address, "the lowest free slot was not reused");
    let seen = cluster.look(1, address, 64).unwrap();
    assert!(seen.incarnation.is_allocated() && !pointer.names(seen.incarnation));
    assert_eq!(
        seen.payload,
        vec![0; 48],
        "the payload contains bytes of the earlier object"
    );
    cluster.stop();
}

#[test]
fn an_abort_releases_reserved_slots() {
    let cluster = cluster("abort", 1, 1);
    let old = cluster.create(0, 0, b"old");
    let warm = |commit: bool| {
        let (mut tx, ()) = cluster.open(0, 0, move |tx, w| {
            for bytes in [1, 100, 100, 1000, 10_000] {
                let object = tx.alloc(w, bytes, Some(old)).unwrap();
                tx.payload_mut(object).fill(7);
            }
            overwrite(tx, w, old, b"new").unwrap();
        });
        if commit {
            cluster.commit(0, 0, tx).unwrap();
        } else {
            cluster.on(0, 0, move |w| {
                tx.abort(w);
                assert!(tx.is_empty());
                farm_txn::checkin(w, tx);
            });
        }
        let after = cluster.on(0, 0, usage);
        cluster.on(0, 0, |w| w.check_slab()).unwrap();
        let live = after.iter().map(|(_, usage)| usage.live).sum::<u64>();
        (after, live)
    };
    let (before, live) = warm(false);
    assert_eq!(
        live, 1,
        "more objects than the old one are live: {before:?}"
    );
    assert_eq!(warm(false), (before, live));
    assert_eq!(cluster.contents(0, 0, old, 3).unwrap(), b"old");
    assert_eq!(warm(true).1, 6);
    cluster.stop();
}

#[test]
fn a_failed_commit_releases_reserved_slots() {
    let cluster = cluster("failed-commit", 1, 1);
    let old = cluster.create(0, 0, b"old");
    let (tx, ()) = cluster.open(0, 0, move |tx, w| {
        overwrite(tx, w, old, b"one").unwrap();
        tx.alloc(w, 48, None).unwrap();
        let freed = tx.alloc(w, 48, None).unwrap();
        tx.free(freed);
    });
    let other = cluster.transact(0, 0, move |tx, w| overwrite(tx, w, old, b"two"));
    other.unwrap();
    let outcome = cluster.commit(0, 0, tx);
    assert!(matches!(outcome, Err(TxError::Abort(Abort::Changed(at))) if at == old));
    assert_eq!(cluster.on(0, 0, live), 1);
    cluster.on(0, 0, |w| w.check_slab()).unwrap();
    assert_eq!(cluster.contents(0, 0, old, 3).unwrap(), b"two");
    cluster.stop();
}

/// An object that is allocated and freed in one transaction leaves a reusable slot. Its incarnation then does not match
/// any pointer that was taken in between.
#[test]
fn an_object_may_be_allocated_and_freed_in_one_transaction() {
    let cluster = cluster("still-born", 1, 1);
    let made = cluster.transact(0, 0, |tx, w| {
        let object = tx.alloc(w, 10, None)?;
        let pointer = tx.pointer(object);
        tx.free(object);
        Ok((tx.address(object), pointer))
    });
    let (address, pointer) = made.unwrap();
    assert_eq!(cluster.on(0, 0, live), 0);
    cluster.on(0, 0, |w| w.check_slab()).unwrap();
    assert_eq!(cluster.create(0, 0, b"next"), address);
    assert!(!pointer.names(incarnation(&cluster, address)));
    cluster.stop();
}

#[test]
fn an_incremented_incarnation_invalidates_earlier_pointers() {
    let cluster = cluster("increment", 2, 1);
    let address = cluster.create(0, 0, b"here");
    let before = cluster.look(1, address, 64).unwrap();
    let incremented = cluster.transact(0, 0, move |tx, w| {
        let object = tx.read(w, address, 4)?;
        let old = tx.pointer(object);
        tx.increment_incarnation(object);
        Ok((old, tx.pointer(object)))
    });
    let (old, new) = incremented.unwrap();
    let after = cluster.look(1, address, 64).unwrap();
    assert_eq!(after.incarnation, before.incarnation.incremented());
    assert_eq!(after.version, before.version.next());
    assert_eq!(after.payload, before.payload);
    assert!(!old.names(after.incarnation) && new.names(after.incarnation));

    // The same for an object that the transaction allocates itself.
    let made = cluster.transact(0, 0, |tx, w| {
        let object = tx.alloc(w, 4, None)?;
        let old = tx.pointer(object);
        tx.increment_incarnation(object);
        Ok((old, tx.pointer(object)))
    });
    let (old, new) = made.unwrap();
    let now = incarnation(&cluster, old.address);
    assert!(!old.names(now) && new.names(now), "{old:?} {new:?} {now:?}");
    cluster.stop();
}

/// Each committed write, allocation or free is one version, and the being-written mark is skipped. Incarnations are
/// incremented by frees only.
#[test]
fn versions_and_incarnations_count_commits() {
    let cluster = cluster("versions", 1, 1);
    let address = cluster.create(0, 0, b"0");
    let version = move |w: &mut Worker| {
        let (memory, at) = w.local_memory(address).unwrap();
        farm_core::object::write::load_version(memory, at).version()
    };
    let born = incarnation(&cluster, address);
    let first = cluster.on(0, 0, version);
    assert!(born.is_allocated());
    assert_eq!(born.class(), SizeClass::SMALLEST);
    for _ in 0..3 {
        let written = cluster.transact(0, 0, move |tx, w| overwrite(tx, w, address, b"1"));
        written.unwrap();
    }
    assert_eq!(incarnation(&cluster, address), born);
    cluster.free(0, 0, address, 1).unwrap();
    assert_eq!(cluster.create(0, 0, b"2"), address);
    assert_eq!(incarnation(&cluster, address), born.freed().allocated());
    let more = cluster.on(0, 0, version).get() - first.get();
    assert_eq!(
        more, 5,
        "expected three writes, one free and one allocation"
    );
    cluster.stop();
}

#[test]
fn objects_freed_by_another_worker_return_to_their_blocks() {
    let cluster = cluster("home", 1, 3);
    // More objects than fit into the worker's rings at once.
    const OBJECTS: usize = 700;
    let mut addresses = cluster.create_all(0, 0, &[b"away"; OBJECTS]);
    assert_eq!(cluster.on(0, 0, live), OBJECTS as u64);
    let (first, second) = addresses.split_at(OBJECTS / 2);
    for (worker, part) in [(1, first.to_vec()), (2, second.to_vec())] {
        let freed = cluster.transact(0, worker, move |tx, w| {
            for at in part {
                let object = tx.read(w, at, 4)?;
                tx.free(object);
            }
            Ok(())
        });
        freed.unwrap();
        assert!(
            cluster.on(0, worker, usage).is_empty(),
            "the objects are in a block of this worker"
        );
    }
    cluster.settle(0, 0);
    assert_eq!(cluster.on(0, 0, live), 0);
    let mut again = cluster.create_all(0, 0, &[b"back"; OBJECTS]);
    again.sort_unstable();
    addresses.sort_unstable();
    assert_eq!(again, addresses, "not every slot was reused exactly once");
    cluster.on(0, 0, |w| w.check_slab()).unwrap();
    cluster.stop();
}

/// An object of an array has no slot in a slab block, regardless of the worker that reserved the array.
#[test]
fn an_object_of_an_array_can_be_freed() {
    let cluster = cluster("array", 1, 2);
    let class = class_for_payload(100).unwrap();
    let addresses = cluster.on(0, 0, move |w| {
        let array = w.reserve_array(class, 2, None).unwrap();
        [0, 1].map(|index| {
            put_in_array(w, &array, index, b"array");
            array.address(index).unwrap()
        })
    });
    for (worker, address) in addresses.into_iter().enumerate() {
        cluster.free(0, worker, address, 100).unwrap();
        let gone = cluster.contents(0, worker, address, 100);
        assert!(matches!(gone, Err(TxError::NotAllocated(_))));
    }
    cluster.on(0, 0, |w| w.check_slab()).unwrap();
    cluster.stop();
}

#[test]
fn a_transaction_beyond_its_limits_is_a_typed_error_and_can_still_end() {
    let cluster = cluster("limits", 1, 1);
    let TxLimits { objects, bytes } = TxLimits::default();
    let (tx, ()) = cluster.open(0, 0, move |tx, w| {
        for _ in 0..objects {
            tx.alloc(w, 1, None).unwrap();
        }
        let more = tx.alloc(w, 1, None);
        assert!(
            matches!(&more, Err(TxError::Limit { objects: n, .. }) if *n == objects + 1),
            "{more:?}"
        );
        let before = w.slab_usage(SizeClass::SMALLEST).live;
        assert_eq!(
            before, objects as u64,
            "the rejected allocation reserved a slot"
        );
    });
    cluster.commit(0, 0, tx).unwrap();
    cluster.on(0, 0, move |w| {
        w.check_slab().unwrap();
        let large = class_for_payload(100_000).unwrap();
        let mut tx = Tx::new();
        let refused = (0..=bytes / 100_000).find_map(|_| tx.alloc(w, 100_000, None).err());
        assert!(
            matches!(&refused, Some(TxError::Limit { bytes: n, .. }) if *n > bytes),
            "{refused:?}"
        );
        tx.abort(w);
        assert_eq!(w.slab_usage(large).live, 0);
        let refused = tx.alloc(w, 1 << 20, None);
        assert!(matches!(refused, Err(TxError::TooLarge(_))), "{refused:?}");
        w.check_slab().unwrap();
    });
    cluster.stop();
}

#[test]
fn an_allocation_without_memory_is_a_typed_error_and_reserves_nothing() {
    let cluster = cluster("no-memory", 1, 1);
    let mut kept = vec![];
    let refused = loop {
        let made = cluster.transact(0, 0, |tx, w| {
            tx.alloc(w, 200_000, None).map(|object| tx.address(object))
        });
        match made {
            Ok(address) => kept.push(address),
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, TxError::Alloc(_)), "{refused}");
    assert!(kept.len() > 5);
    cluster.on(0, 0, |w| w.check_slab()).unwrap();
    cluster.free(0, 0, kept[0], 200_000).unwrap();
    let made = cluster.transact(0, 0, |tx, w| tx.alloc(w, 200_000, None));
    made.unwrap();
    cluster.on(0, 0, |w| w.check_slab()).unwrap();
    cluster.stop();
}

#[test]
fn unusable_addresses_are_typed_errors() {
    let cluster = cluster("addresses", 2, 1);
    let here = cluster.create(0, 0, b"here");
    let there = cluster.create(1, 0, b"there");
    // Before this worker has accessed the region, and after.
    for _ in 0..2 {
        let (error, machine) = cluster.on(0, 0, move |w| {
            (Tx::new().read(w, there, 5).unwrap_err(), w.me().machine)
        });
        assert!(
            matches!(error, TxError::Address(AddressError::Elsewhere { address, machine: m }) if address == there && m != machine),
            "{error}"
        );
        assert_eq!(&cluster.look(0, there, 64).unwrap().payload[..5], b"there");
    }
    cluster.on(0, 0, move |w| {
        let nowhere =
            RegionId::new(here.region().ring(), here.region().successor().position()).unwrap();
        let offsets =
            [8, 1, 1 << 20, u32::MAX - 63].map(|offset| Address::new(here.region(), offset));
        let last = Address::new(here.region(), (1 << 20) - 64);
        for address in offsets
            .into_iter()
            .chain([Address::NULL, Address::new(nowhere, 0), last])
        {
            let mut tx = Tx::new();
            let error = tx.read(w, address, 100).unwrap_err();
            assert!(matches!(error, TxError::Address(_)), "{address}: {error}");
            assert!(tx.is_empty());
        }
        let unborn = here.checked_add(64).unwrap();
        assert!(
            matches!(Tx::new().read(w, unborn, 4), Err(TxError::NotAllocated(at)) if at == unborn)
        );
    });
    cluster.stop();
}
