//! Operations without a transaction.

use std::collections::BTreeMap;

use farm_core::object::FatPointer;
use farm_graph::ids::{self, Place};
use farm_graph::tasks::{OwnedAssoc, OwnedNode};
use farm_graph::tx::{Deletion, Range};
use farm_graph::{
    Assoc, Count, GraphError, MAX_NODE_BYTES, NewNode, Put, TimeBounds, head_counters, ops,
    owner_counters,
};
use farm_testing::TestCluster;
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::common::{
    FRIEND, LINK, PERSON, PLAIN, SPOUSE, ask, assocs_cont, cluster, cluster_with_defaults,
    node_cont, person, start,
};

fn add(cluster: &TestCluster, machine: usize, id: Option<u64>) -> Result<NewNode, GraphError> {
    let place = Place { id, near: None };
    ask(cluster, (machine, 0), move |worker, cont| {
        ops::obj_add(worker, place, person(b"data"), cont);
    })
}

fn get(cluster: &TestCluster, from: usize, node: FatPointer) -> Option<OwnedNode> {
    let got = ask(cluster, (from, 0), move |worker, cont| {
        let cont = node_cont(worker, cont);
        ops::obj_get(worker, node, cont);
    });
    got.unwrap()
}

fn put(
    cluster: &TestCluster,
    from: usize,
    node: FatPointer,
    assoc_type: u32,
    (id2, time, target): (u64, u64, Option<FatPointer>),
    data: Vec<u8>,
) -> Result<Put, GraphError> {
    ask(cluster, (from, 0), move |worker, cont| {
        let assoc = Assoc {
            id2,
            time,
            version: 3,
            visible: true,
            target,
            data: &data,
        };
        ops::assoc_add(worker, node, assoc_type, assoc, time, cont);
    })
}

fn delete(
    cluster: &TestCluster,
    from: usize,
    node: FatPointer,
    assoc: (u32, u64),
    deletion: Deletion,
) -> bool {
    let deleted = ask(cluster, (from, 0), move |worker, cont| {
        ops::assoc_delete(worker, node, assoc, deletion, 9, cont);
    });
    deleted.unwrap()
}

fn count(cluster: &TestCluster, from: usize, node: FatPointer, assoc_type: u32) -> Count {
    let count = ask(cluster, (from, 0), move |worker, cont| {
        ops::assoc_count(worker, node, assoc_type, cont);
    });
    count.unwrap()
}

fn range(
    cluster: &TestCluster,
    from: usize,
    node: FatPointer,
    assoc_type: u32,
    range: Range,
) -> Vec<OwnedAssoc> {
    let found = ask(cluster, (from, 0), move |worker, cont| {
        let cont = assocs_cont(worker, cont);
        ops::assoc_range(worker, node, assoc_type, range, cont);
    });
    found.unwrap()
}

fn by_id(
    cluster: &TestCluster,
    from: usize,
    node: FatPointer,
    assoc_type: u32,
    ids: Vec<u64>,
) -> Vec<OwnedAssoc> {
    let found = ask(cluster, (from, 0), move |worker, cont| {
        let cont = assocs_cont(worker, cont);
        ops::assoc_get(worker, node, assoc_type, &ids, TimeBounds::default(), cont);
    });
    found.unwrap()
}

fn reads(cluster: &TestCluster, machine: usize) -> u64 {
    cluster.on(machine, 0, |worker| worker.fabric_counters().reads)
}

#[test]
fn nodes_and_associations_are_written_and_read_from_every_machine() {
    let cluster = cluster("graph-alone", 3, 1024);
    let ann = add(&cluster, 0, None).unwrap();
    let bob = add(&cluster, 1, Some(8)).unwrap();
    let taken = add(&cluster, 2, Some(8)).unwrap_err();
    assert!(matches!(taken, GraphError::IdTaken(8)), "{taken}");
    for from in 0..3 {
        let found = get(&cluster, from, ann.node).unwrap();
        assert_eq!((found.id, &found.data[..]), (ann.id, &b"data"[..]));
        let time = from as u64;
        let friend = (8, time, Some(bob.node));
        let put = put(&cluster, from, ann.node, FRIEND, friend, vec![1]).unwrap();
        assert_eq!(put, if from == 0 { Put::Added } else { Put::Updated });
        assert_eq!(count(&cluster, from, bob.node, FRIEND).count, 1);
        let found = range(&cluster, from, bob.node, FRIEND, Range::newest(5));
        assert_eq!(
            found.iter().map(|it| (it.id2, it.time)).collect::<Vec<_>>(),
            [(ann.id, time)]
        );
        assert_eq!(by_id(&cluster, from, ann.node, FRIEND, vec![8, 9]).len(), 1);
    }
    let refused = put(&cluster, 0, bob.node, SPOUSE, (1, 1, None), vec![]);
    assert_eq!(refused.unwrap(), Put::Added);
    let refused = put(&cluster, 0, bob.node, SPOUSE, (2, 1, None), vec![]).unwrap_err();
    assert!(
        matches!(refused, GraphError::NotUnique(SPOUSE)),
        "{refused}"
    );
    assert!(delete(&cluster, 2, ann.node, (FRIEND, 8), Deletion::Remove));
    assert_eq!(count(&cluster, 0, bob.node, FRIEND).count, 0);
    // Data that does not fit into the node, and is larger than a page.
    let long = vec![7; 30_000];
    let update = ask(&cluster, (0, 0), {
        let long = long.clone();
        move |worker, cont| ops::obj_update(worker, bob.node, person(&long), cont)
    });
    assert!(update.unwrap());
    assert_eq!(get(&cluster, 2, bob.node).unwrap().data, long);
    let deleted = ask(&cluster, (0, 0), move |worker, cont| {
        ops::obj_delete(worker, bob.node, cont);
    });
    assert!(deleted.unwrap());
    assert_eq!(get(&cluster, 2, bob.node), None);
    let gone = put(&cluster, 2, bob.node, PLAIN, (1, 1, None), vec![]).unwrap_err();
    assert!(matches!(gone, GraphError::NoNode), "{gone}");
    assert_eq!(count(&cluster, 0, bob.node, SPOUSE).count, 1);
    let left = cluster.on_all(farm_graph::left_over);
    assert!(left.iter().all(Option::is_none), "{left:?}");
    cluster.stop();
}

#[test]
fn nodes_that_do_not_exist_have_links_and_are_restored() {
    let cluster = cluster("graph-dangling", 2, 1024);
    let place = Place {
        id: Some(77),
        near: None,
    };
    let reserved = ask(&cluster, (0, 0), move |worker, cont| {
        ops::obj_reserve(worker, place, PERSON, cont);
    });
    let node = reserved.unwrap().node;
    let restore = |from, data: &'static [u8]| {
        let restored = ask(&cluster, (from, 0), move |worker, cont| {
            ops::obj_restore(worker, node, person(data), cont);
        });
        restored.unwrap()
    };
    let taken = add(&cluster, 1, Some(77)).unwrap_err();
    assert!(matches!(taken, GraphError::IdTaken(77)), "{taken}");
    for (from, data) in [(0, &b"first"[..]), (1, b"second")] {
        assert_eq!(get(&cluster, from, node), None);
        let update = ask(&cluster, (from, 0), move |worker, cont| {
            ops::obj_update(worker, node, person(b"no"), cont);
        });
        assert!(!update.unwrap());
        let gone = put(&cluster, from, node, PLAIN, (1, 1, None), vec![]).unwrap_err();
        assert!(matches!(gone, GraphError::NoNode), "{gone}");
        put(&cluster, from, node, LINK, (from as u64, 1, None), vec![]).unwrap();
        assert!(restore(from, data));
        assert!(!restore(from, b"not again"));
        assert_eq!(get(&cluster, 1 - from, node).unwrap().data, data);
        let links = count(&cluster, 1 - from, node, LINK).count;
        assert_eq!(links as usize, from + 1);
        let deleted = ask(&cluster, (from, 0), move |worker, cont| {
            ops::obj_delete(worker, node, cont);
        });
        assert!(deleted.unwrap());
    }
    let found = ask(&cluster, (1, 0), |worker, cont| ids::find(worker, 77, cont));
    assert_eq!(found.unwrap(), Some(node));
    let found = ask(&cluster, (1, 0), |worker, cont| ids::find(worker, 78, cont));
    assert_eq!(found.unwrap(), None);
    let given = add(&cluster, 1, Some(1 << 63)).unwrap_err();
    assert!(matches!(given, GraphError::Id(_)), "{given}");
    let unknown = ask(&cluster, (0, 0), |worker, cont| {
        ops::obj_reserve(worker, Place::default(), 1, cont);
    });
    assert!(matches!(unknown.unwrap_err(), GraphError::NodeType(1)));
    cluster.stop();
}

#[test]
fn long_data_is_written_and_read_from_every_machine() {
    let cluster = cluster_with_defaults("graph-long", 2);
    let node = add(&cluster, 0, None).unwrap().node;
    for bytes in [2000, 40_000, MAX_NODE_BYTES, 10] {
        for from in [0, 1] {
            let long = vec![from as u8; bytes];
            let update = ask(&cluster, (from, 0), {
                let long = long.clone();
                move |worker, cont| ops::obj_update(worker, node, person(&long), cont)
            });
            assert!(update.unwrap());
            for reader in [0, 1] {
                assert!(get(&cluster, reader, node).unwrap().data == long);
            }
        }
    }
    let longer = ask(&cluster, (1, 0), move |worker, cont| {
        let data = vec![0; MAX_NODE_BYTES + 1];
        ops::obj_update(worker, node, person(&data), cont);
    });
    let error = longer.unwrap_err();
    assert!(matches!(error, GraphError::TooLong { .. }), "{error}");
    assert_eq!(get(&cluster, 0, node).unwrap().data.len(), 10);
    cluster.stop();
}

/// The room for replies is shared by the workers of both machines. With several workers the longest reply is shorter than
/// the longest message, and a request for many associations failed because no room for its reply could be reserved.
#[test]
fn many_associations_are_read_by_id_with_small_rings_and_several_workers() {
    let config = farm_core::config::Config::tiny_for(2, 2);
    let cluster = start("graph-small-rings", config, 1024);
    let node = add(&cluster, 1, None).unwrap().node;
    put(&cluster, 1, node, PLAIN, (7, 1, None), vec![1; 8]).unwrap();
    for count in [1, 2, 8, 20, 40] {
        let found = by_id(&cluster, 0, node, PLAIN, (1..=count).collect());
        assert_eq!(found.len(), usize::from(count >= 7), "{count} ids");
    }
    cluster.stop();
}

#[test]
fn reads_by_pointer_cost_one_one_sided_read_each() {
    let cluster = cluster("graph-reads", 2, 8192);
    let node = add(&cluster, 1, Some(5)).unwrap().node;
    for id2 in 0..300 {
        put(&cluster, 1, node, PLAIN, (id2, id2, None), vec![1; 13]).unwrap();
    }
    // The first page is read by way of the node once.
    range(&cluster, 0, node, PLAIN, Range::newest(50));
    let before = reads(&cluster, 0);
    for number in 1..=20 {
        assert_eq!(range(&cluster, 0, node, PLAIN, Range::newest(50)).len(), 50);
        assert!(get(&cluster, 0, node).is_some());
        assert_eq!(count(&cluster, 0, node, PLAIN).count, 300);
        assert_eq!(reads(&cluster, 0) - before, 3 * number);
    }
    let heads = cluster.on(0, 0, head_counters);
    assert_eq!((heads.hits, heads.misses, heads.stale), (20, 1, 0));
    // More than the first page.
    assert_eq!(
        range(&cluster, 0, node, PLAIN, Range::newest(1 << 32)).len(),
        300
    );
    cluster.stop();
}

#[test]
fn lists_read_without_transactions_are_as_in_the_model() {
    let cluster = cluster("graph-alone-model", 2, 1024);
    let nodes = [0, 1].map(|machine| add(&cluster, machine, None).unwrap().node);
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(21);
    let mut model = [(); 2].map(|()| BTreeMap::<u64, (u64, bool)>::new());
    for round in 0..1500 {
        let (at, from, id2) = (
            rng.random_range(0..2),
            rng.random_range(0..2),
            rng.random_range(0..150),
        );
        let (node, list) = (nodes[at], &mut model[at]);
        let grows = round / 250 % 2 == 0;
        match rng.random_range(0..10) {
            drawn if (drawn < 7) == grows => {
                let time = rng.random_range(0..100);
                put(&cluster, from, node, PLAIN, (id2, time, None), vec![2; 11]).unwrap();
                list.insert(id2, (time, true));
            }
            drawn if drawn % 2 == 0 => {
                let hidden = delete(&cluster, from, node, (PLAIN, id2), Deletion::Hide);
                assert_eq!(hidden, list.get(&id2).is_some_and(|it| it.1));
                list.entry(id2).and_modify(|it| it.1 = false);
            }
            _ => {
                let removed = delete(&cluster, from, node, (PLAIN, id2), Deletion::Remove);
                assert_eq!(removed, list.remove(&id2).is_some());
            }
        }
        let mut visible: Vec<_> = list
            .iter()
            .filter(|it| it.1.1)
            .map(|it| (it.1.0, *it.0))
            .collect();
        visible.sort_by_key(|it| (std::cmp::Reverse(it.0), it.1));
        assert_eq!(
            count(&cluster, from, node, PLAIN).count as usize,
            visible.len()
        );
        let min = rng.random_range(0..100);
        let wanted = Range {
            bounds: TimeBounds {
                min,
                max: min + rng.random_range(0..100),
            },
            offset: rng.random_range(0..3),
            limit: rng.random_range(0..20),
        };
        let found = range(&cluster, from, node, PLAIN, wanted);
        let within = visible
            .into_iter()
            .filter(|it| wanted.bounds.contains(it.0));
        let page = within
            .skip(wanted.offset as usize)
            .take(wanted.limit as usize);
        assert!(
            found.iter().map(|it| (it.time, it.id2)).eq(page),
            "round {round}"
        );
    }
    let heads = cluster.on_all(head_counters);
    assert!(
        heads.iter().all(|it| it.hits > 100 && it.stale > 0),
        "{heads:?}"
    );
    cluster.stop();
}

/// Adds `count` associations of one node from every worker, with `in_flight` in flight. Returns the transactions and
/// the operations of the owner.
#[test]
fn writers_of_one_node_share_transactions() {
    const EACH: u64 = 400;
    let cluster = cluster("graph-writers", 2, 8192);
    let node = add(&cluster, 0, None).unwrap().node;
    let before = cluster.on_all(owner_counters);
    let done: Vec<_> = (0..2)
        .map(|machine| {
            let (send, done) = std::sync::mpsc::channel();
            cluster.machines[machine]
                .submit(0, move |worker| {
                    worker.put_layer(Box::new(Writer {
                        node,
                        next: machine as u64,
                        left: EACH,
                        done: send,
                    }));
                    (0..32).for_each(|_| write(worker));
                })
                .unwrap();
            done
        })
        .collect();
    for done in done {
        farm_testing::receive(&done);
    }
    assert_eq!(count(&cluster, 1, node, PLAIN).count as u64, 2 * EACH);
    let after = cluster.on_all(owner_counters);
    let sum = |all: &[farm_graph::OwnerCounters]| {
        let operations: u64 = all.iter().map(|it| it.operations).sum();
        (
            operations,
            all.iter().map(|it| it.transactions).sum::<u64>(),
        )
    };
    let ((before, _), (after, transactions)) = (sum(&before), sum(&after));
    assert_eq!(after - before, 2 * EACH);
    assert!(
        transactions < EACH,
        "{transactions} transactions of {} operations",
        2 * EACH
    );
    cluster.stop();
}

struct Writer {
    node: FatPointer,
    next: u64,
    left: u64,
    done: std::sync::mpsc::Sender<()>,
}

fn write(worker: &mut farm_core::worker::Worker) {
    let writer = worker.layer::<Writer>().unwrap();
    let (node, id2) = (writer.node, writer.next);
    writer.next += 2;
    let assoc = Assoc {
        id2,
        time: id2,
        version: 1,
        visible: true,
        target: None,
        data: &[3; 13],
    };
    let cont = farm_core::worker::Cont::new(written, ());
    ops::assoc_add(worker, node, PLAIN, assoc, 1, cont);
}

fn written(worker: &mut farm_core::worker::Worker, (): (), put: Result<Put, GraphError>) {
    assert_eq!(put.unwrap(), Put::Added);
    let writer = worker.layer::<Writer>().unwrap();
    writer.left -= 1;
    match writer.left {
        0 => writer.done.send(()).unwrap(),
        32.. => write(worker),
        _ => {}
    }
}

/// Data that its node does not contain is read through the cache by one one-sided read. An update makes the cached object
/// stale, also one that returns the data to the node.
#[test]
fn data_outside_of_its_node_costs_one_read_when_it_is_cached() {
    let cluster = cluster("graph-spill", 2, 8192);
    let node = add(&cluster, 1, Some(5)).unwrap().node;
    let update = |data: Vec<u8>| {
        let changed = ask(&cluster, (1, 0), move |worker, cont| {
            ops::obj_update(worker, node, person(&data), cont);
        });
        assert!(changed.unwrap());
    };
    let cost = |data: &[u8]| {
        let before = reads(&cluster, 0);
        let found = get(&cluster, 0, node).unwrap();
        assert_eq!((found.id, &found.data[..]), (5, data));
        reads(&cluster, 0) - before
    };
    for letter in [b'a', b'b'] {
        let long = vec![letter; 3000];
        update(long.clone());
        // The second time also the freed object, which the cache named.
        assert_eq!(cost(&long), if letter == b'a' { 2 } else { 3 });
        assert_eq!([cost(&long), cost(&long)], [1, 1]);
    }
    update(b"short".to_vec());
    assert_eq!([cost(b"short"), cost(b"short")], [2, 1]);
    update(vec![b'c'; 3000]);
    assert_eq!(cost(&[b'c'; 3000]), 2);
    let deleted = ask(&cluster, (1, 0), move |worker, cont| {
        ops::obj_delete(worker, node, cont);
    });
    assert!(deleted.unwrap());
    assert_eq!(get(&cluster, 0, node), None);
    cluster.stop();
}
