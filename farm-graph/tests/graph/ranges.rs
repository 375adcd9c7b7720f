//! Reads of the lists of several nodes at the same time, without a transaction.

use std::sync::mpsc::Sender;

use farm_core::object::FatPointer;
use farm_core::worker::Worker;
use farm_graph::tx::Range;
use farm_graph::{Assoc, Assocs, AssocsCont, GraphError, MAX_READS, head_counters, ops};
use farm_testing::TestCluster;

use crate::common::{PLAIN, ask, cluster, people};

/// Number of associations of each node. The last list has several pages.
const LENGTHS: [u64; 6] = [0, 1, 3, 5, 8, 400];

/// The lists that were read, by position: the ids, or an error.
type Lists = Vec<Option<Result<Vec<u64>, String>>>;

struct Reading {
    found: Lists,
    missing: usize,
    answer: Sender<Lists>,
}

fn read(worker: &mut Worker, at: usize, list: Result<Assocs<'_>, &GraphError>) {
    let mut reading = worker.take_layer::<Reading>();
    let ids = list.map(|list| list.iter().map(|assoc| assoc.id2).collect());
    let earlier = reading.found[at].replace(ids.map_err(GraphError::to_string));
    assert_eq!(earlier, None, "the list {at} was read twice");
    reading.missing -= 1;
    match reading.missing {
        0 => reading.answer.send(reading.found).unwrap(),
        _ => worker.put_layer(reading),
    }
}

fn read_all(cluster: &TestCluster, assoc_type: u32, range: Range, nodes: &[FatPointer]) -> Lists {
    let nodes = nodes.to_vec();
    let found = cluster.machines[0].ask(0, move |worker, answer| {
        worker.put_layer(Box::new(Reading {
            found: vec![None; nodes.len()],
            missing: nodes.len(),
            answer,
        }));
        let lists = nodes.iter().enumerate();
        let lists: Vec<_> = lists
            .map(|(at, node)| (*node, AssocsCont::new(read, at)))
            .collect();
        ops::assoc_ranges(worker, assoc_type, range, &lists);
    });
    found.unwrap()
}

#[test]
fn several_lists_are_read_as_single_ones() {
    let cluster = cluster("graph-ranges", 2, 1024);
    let people = people(&cluster, LENGTHS.len() as u64);
    let nodes: Vec<FatPointer> = people.iter().map(|person| person.1).collect();
    for (node, length) in nodes.iter().copied().zip(LENGTHS) {
        for id2 in 0..length {
            let added = ask(&cluster, (0, 0), move |worker, cont| {
                let assoc = Assoc {
                    id2,
                    time: id2,
                    version: 1,
                    visible: true,
                    target: None,
                    data: b"",
                };
                ops::assoc_add(worker, node, PLAIN, assoc, id2, cont);
            });
            added.unwrap();
        }
    }
    let newest = |length: u64, limit| Some(Ok((0..length).rev().take(limit).collect()));
    for limit in [4, 1000] {
        let range = Range::newest(limit as u64);
        let expected: Lists = LENGTHS.map(|length| newest(length, limit)).into();
        // First without the first pages in the cache, then with them.
        for _ in 0..2 {
            assert_eq!(read_all(&cluster, PLAIN, range, &nodes), expected);
        }
    }
    // Long lists need transactions, of which only some run at a time, so that others find a place between them.
    let many = vec![nodes[5]; 3 * MAX_READS];
    let found = read_all(&cluster, PLAIN, Range::newest(1000), &many);
    assert!(found.iter().all(|list| *list == newest(400, 1000)));
    let at_once = cluster.on(0, 0, |worker| {
        farm_txn::retry::counters(worker).most_at_once
    });
    assert_eq!(at_once, MAX_READS);
    // A node twice; no node.
    let twice = read_all(&cluster, PLAIN, Range::newest(9), &[nodes[2], nodes[2]]);
    assert_eq!(twice, [newest(3, 9), newest(3, 9)]);
    cluster.on(0, 0, |worker| {
        ops::assoc_ranges(worker, PLAIN, Range::newest(9), &[]);
    });
    // The first pages are read by way of the nodes at first, and from the cache later.
    let heads = cluster.on(0, 0, head_counters);
    assert!(heads.misses >= 5 && heads.hits > 0, "{heads:?}");
    assert_eq!(heads.stale, 0);
    cluster.stop();
}

#[test]
fn every_continuation_receives_the_error() {
    let cluster = cluster("graph-ranges-wrong", 2, 1024);
    let nodes: Vec<FatPointer> = people(&cluster, 3).iter().map(|person| person.1).collect();
    for found in read_all(&cluster, 99, Range::newest(1), &nodes) {
        let why = found.unwrap().unwrap_err();
        assert!(
            why.contains("no type of associations has the number 99"),
            "{why}"
        );
    }
    cluster.stop();
}
