//! Reads, writes, allocations and frees within one transaction, and their effects after it.

use farm_core::alloc::{SizeClass, class_for_payload};
use farm_core::ids::{Address, RegionId};
use farm_core::worker::{AddressError, Worker};
use farm_txn::{Abort, Tx, TxError, TxLimits};

use crate::cluster::{cluster, contents, create, overwrite, put_in_array, transact, usage};

#[test]
fn uncommitted_writes_are_visible_only_to_their_transaction() {
    let cluster = cluster("own-writes", 1, 1);
    cluster.on(0, 0, |w| {
        let old = create(w, b"old");
        let mut tx = Tx::new();
        let object = overwrite(&mut tx, w, old, b"new").unwrap();
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

        assert_eq!(contents(w, old, 3).unwrap(), b"old");
        assert!(matches!(contents(w, child, 3), Err(TxError::NotAllocated(at)) if at == child));
        tx.commit(w).unwrap();
        assert!(tx.is_empty());
        assert_eq!(contents(w, old, 3).unwrap(), b"new");
        assert_eq!(contents(w, child, 3).unwrap(), b"kid");
        w.check_slab().unwrap();
    });
    cluster.stop();
}

#[test]
fn worker_at_returns_a_worker_of_the_objects_machine() {
    let cluster = cluster("worker-at", 2, 2);
    for (machine, worker) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let (address, me) = cluster.on(machine, worker, |w| (create(w, b"here"), w.me()));
        for other in [0, 1] {
            let to = cluster.on(other, 1, move |w| w.worker_at(address)).unwrap();
            assert_eq!(to.machine, me.machine);
            let index = usize::from(to.worker.get());
            assert!(
                machine != other || index == 1,
                "a worker that has the memory must return itself"
            );
            let seen = cluster.on(machine, index, move |w| contents(w, address, 4));
            assert_eq!(seen.unwrap(), b"here");
        }
    }
    cluster.stop();
}

#[test]
fn a_free_is_visible_to_its_transaction_at_once_and_to_others_after_the_commit() {
    let cluster = cluster("freed", 2, 1);
    let (address, pointer) = cluster.on(0, 0, |w| {
        let address = create(w, b"here");
        let pointer = transact(w, |tx, w| {
            tx.read(w, address, 4).map(|object| tx.pointer(object))
        })
        .unwrap();
        let mut tx = Tx::new();
        let object = tx.read(w, address, 4).unwrap();
        tx.free(object);
        assert!(matches!(
            tx.read(w, address, 4),
            Err(TxError::NotAllocated(_))
        ));
        assert_eq!(
            contents(w, address, 4).unwrap(),
            b"here",
            "the free took effect before the commit"
        );
        let before = usage(w);
        tx.abort(w);
        assert_eq!(usage(w), before);
        assert_eq!(
            contents(w, address, 4).unwrap(),
            b"here",
            "the free took effect after an abort"
        );
        (address, pointer)
    });
    assert!(pointer.names(cluster.look(1, address, 64).unwrap().incarnation));

    cluster.on(0, 0, move |w| {
        let live = |w: &mut Worker| w.slab_usage(SizeClass::SMALLEST).live;
        let before = live(w);
        transact(w, |tx, w| {
            tx.read(w, address, 4).map(|object| tx.free(object))
        })
        .unwrap();
        assert_eq!(live(w), before - 1);
        assert!(matches!(
            contents(w, address, 4),
            Err(TxError::NotAllocated(_))
        ));
        w.check_slab().unwrap();
    });
    let seen = cluster.look(1, address, 64).unwrap();
    assert!(!seen.incarnation.is_allocated() && !pointer.names(seen.incarnation));

    // The slot is reused. The old pointer does not refer to the new object, whose payload is zeroed.
    let again = cluster.on(0, 0, |w| create(w, &[]));
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
    cluster.on(0, 0, |w| {
        let old = create(w, b"old");
        let warm = |w: &mut _, commit: bool| {
            let mut tx = Tx::new();
            for bytes in [1, 100, 100, 1000, 10_000] {
                let object = tx.alloc(w, bytes, Some(old)).unwrap();
                tx.payload_mut(object).fill(7);
            }
            overwrite(&mut tx, w, old, b"new").unwrap();
            if commit {
                tx.commit(w).unwrap()
            } else {
                tx.abort(w)
            }
            assert!(tx.is_empty());
        };
        warm(w, false);
        let before = usage(w);
        assert!(
            before.iter().map(|(_, usage)| usage.live).sum::<u64>() == 1,
            "more objects than the old one are live: {before:?}"
        );
        warm(w, false);
        assert_eq!(usage(w), before);
        w.check_slab().unwrap();
        assert_eq!(contents(w, old, 3).unwrap(), b"old");
        warm(w, true);
        assert_eq!(usage(w).iter().map(|(_, usage)| usage.live).sum::<u64>(), 6);
        w.check_slab().unwrap();
    });
    cluster.stop();
}

#[test]
fn a_failed_commit_releases_reserved_slots() {
    let cluster = cluster("failed-commit", 1, 1);
    cluster.on(0, 0, |w| {
        let old = create(w, b"old");
        let mut tx = Tx::new();
        overwrite(&mut tx, w, old, b"one").unwrap();
        tx.alloc(w, 48, None).unwrap();
        let freed = tx.alloc(w, 48, None).unwrap();
        tx.free(freed);
        transact(w, |tx, w| overwrite(tx, w, old, b"two")).unwrap();
        assert!(matches!(tx.commit(w), Err(TxError::Abort(Abort::Changed(at))) if at == old));
        assert!(tx.is_empty());
        assert_eq!(w.slab_usage(SizeClass::SMALLEST).live, 1);
        w.check_slab().unwrap();
        assert_eq!(contents(w, old, 3).unwrap(), b"two");
    });
    cluster.stop();
}

/// An object that is allocated and freed in one transaction leaves a reusable slot. Its incarnation then does not match
/// any pointer that was taken in between.
#[test]
fn an_object_may_be_allocated_and_freed_in_one_transaction() {
    let cluster = cluster("still-born", 1, 1);
    cluster.on(0, 0, |w| {
        let (address, pointer) = transact(w, |tx, w| {
            let object = tx.alloc(w, 10, None)?;
            let pointer = tx.pointer(object);
            tx.free(object);
            Ok((tx.address(object), pointer))
        })
        .unwrap();
        assert_eq!(w.slab_usage(SizeClass::SMALLEST).live, 0);
        w.check_slab().unwrap();
        assert_eq!(create(w, b"next"), address);
        let now = transact(w, |tx, w| {
            tx.read(w, address, 4).map(|object| tx.incarnation(object))
        })
        .unwrap();
        assert!(!pointer.names(now));
    });
    cluster.stop();
}

#[test]
fn an_incremented_incarnation_invalidates_earlier_pointers() {
    let cluster = cluster("increment", 2, 1);
    let address = cluster.on(0, 0, |w| create(w, b"here"));
    let before = cluster.look(1, address, 64).unwrap();
    let (old, new) = cluster.on(0, 0, move |w| {
        transact(w, |tx, w| {
            let object = tx.read(w, address, 4)?;
            let old = tx.pointer(object);
            tx.increment_incarnation(object);
            Ok((old, tx.pointer(object)))
        })
        .unwrap()
    });
    let after = cluster.look(1, address, 64).unwrap();
    assert_eq!(after.incarnation, before.incarnation.incremented());
    assert_eq!(after.version, before.version.next());
    assert_eq!(after.payload, before.payload);
    assert!(!old.names(after.incarnation) && new.names(after.incarnation));

    // The same for an object that the transaction allocates itself.
    cluster.on(0, 0, |w| {
        let mut tx = Tx::new();
        let object = tx.alloc(w, 4, None).unwrap();
        let (address, old) = (tx.address(object), tx.pointer(object));
        tx.increment_incarnation(object);
        let new = tx.pointer(object);
        tx.commit(w).unwrap();
        let now = transact(w, |tx, w| {
            tx.read(w, address, 4).map(|object| tx.incarnation(object))
        })
        .unwrap();
        assert!(!old.names(now) && new.names(now), "{old:?} {new:?} {now:?}");
    });
    cluster.stop();
}

/// Each committed write, allocation or free is one version, and the being-written mark is skipped. Incarnations are
/// incremented by frees only.
#[test]
fn versions_and_incarnations_count_commits() {
    let cluster = cluster("versions", 1, 1);
    cluster.on(0, 0, |w| {
        let address = create(w, b"0");
        let facts = |w: &mut _| {
            transact(w, |tx, w| {
                let object = tx.read(w, address, 1)?;
                Ok(tx.incarnation(object))
            })
            .unwrap()
        };
        let version = |w: &mut Worker| {
            let (memory, at) = w.local_memory(address).unwrap();
            farm_core::object::write::load_version(memory, at).version()
        };
        let (born, first) = (facts(w), version(w));
        assert!(born.is_allocated());
        assert_eq!(born.class(), SizeClass::SMALLEST);
        for _ in 0..3 {
            transact(w, |tx, w| overwrite(tx, w, address, b"1")).unwrap();
        }
        assert_eq!(facts(w), born);
        transact(w, |tx, w| {
            tx.read(w, address, 1).map(|object| tx.free(object))
        })
        .unwrap();
        assert_eq!(create(w, b"2"), address);
        assert_eq!(facts(w), born.freed().allocated());
        let more = version(w).get() - first.get();
        assert_eq!(
            more, 5,
            "expected three writes, one free and one allocation"
        );
    });
    cluster.stop();
}

#[test]
fn objects_freed_by_another_worker_return_to_their_blocks() {
    let cluster = cluster("home", 1, 3);
    // More objects than fit into the worker's rings at once.
    const OBJECTS: usize = 700;
    let addresses = cluster.on(0, 0, |w| {
        let addresses: Vec<Address> = (0..OBJECTS).map(|_| create(w, b"away")).collect();
        assert_eq!(w.slab_usage(SizeClass::SMALLEST).live, OBJECTS as u64);
        addresses
    });
    let (first, second) = addresses.split_at(OBJECTS / 2);
    for (worker, part) in [(1, first.to_vec()), (2, second.to_vec())] {
        cluster.on(0, worker, move |w| {
            transact(w, |tx, w| {
                for at in part {
                    let object = tx.read(w, at, 4)?;
                    tx.free(object);
                }
                Ok(())
            })
            .unwrap();
            assert!(
                usage(w).is_empty(),
                "the objects are in a block of this worker"
            );
        });
    }
    cluster.settle(0, 0);
    cluster.on(0, 0, move |w| {
        assert_eq!(w.slab_usage(SizeClass::SMALLEST).live, 0);
        let again: Vec<Address> = (0..OBJECTS).map(|_| create(w, b"back")).collect();
        let (mut again, mut addresses) = (again, addresses);
        again.sort_unstable();
        addresses.sort_unstable();
        assert_eq!(again, addresses, "not every slot was reused exactly once");
        w.check_slab().unwrap();
    });
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
        cluster.on(0, worker, move |w| {
            transact(w, |tx, w| {
                tx.read(w, address, 100).map(|object| tx.free(object))
            })
            .unwrap();
            assert!(matches!(
                contents(w, address, 100),
                Err(TxError::NotAllocated(_))
            ));
        });
    }
    cluster.on(0, 0, |w| w.check_slab()).unwrap();
    cluster.stop();
}

#[test]
fn a_transaction_beyond_its_limits_is_a_typed_error_and_can_still_end() {
    let cluster = cluster("limits", 1, 1);
    cluster.on(0, 0, |w| {
        let TxLimits { objects, bytes } = TxLimits::default();
        let mut tx = Tx::new();
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
        tx.commit(w).unwrap();
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
    cluster.on(0, 0, |w| {
        let mut kept = vec![];
        let refused = loop {
            match transact(w, |tx, w| {
                tx.alloc(w, 200_000, None).map(|object| tx.address(object))
            }) {
                Ok(address) => kept.push(address),
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, TxError::Alloc(_)), "{refused}");
        assert!(kept.len() > 5);
        w.check_slab().unwrap();
        transact(w, |tx, w| {
            tx.read(w, kept[0], 200_000).map(|object| tx.free(object))
        })
        .unwrap();
        transact(w, |tx, w| tx.alloc(w, 200_000, None)).unwrap();
        w.check_slab().unwrap();
    });
    cluster.stop();
}

#[test]
fn unusable_addresses_are_typed_errors() {
    let cluster = cluster("addresses", 2, 1);
    let here = cluster.on(0, 0, |w| create(w, b"here"));
    let there = cluster.on(1, 0, |w| create(w, b"there"));
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
