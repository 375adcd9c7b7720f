//! Imports of edge lists, and queries over them, compared with petgraph.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, Sender, channel};

use farm_bench::closed_loop::Extent;
use farm_bench::edges::import::{self, Batch, Imported, Importer};
use farm_bench::edges::search::{self, Searched};
use farm_bench::edges::two_hop::{self, Queried, Run, Starts};
use farm_bench::edges::vertex;
use farm_bench::graph::names;
use farm_core::config::Config;
use farm_core::object::FatPointer;
use farm_graph::{GraphSpec, open_all};
use farm_kv::TableSpec;
use farm_testing::TestCluster;
use petgraph::EdgeType;
use petgraph::graphmap::GraphMap;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

/// Number of machines, of one worker each.
const MACHINES: u16 = 2;
/// Entries of the cache of first pages: more than the nodes of any test.
const CACHED_HEADS: usize = 1 << 14;
/// Maximum number of reads or edges in flight.
const IN_FLIGHT: usize = 32;

fn cluster(name: &str) -> TestCluster {
    let mut config = Config::tiny_for(MACHINES, 1);
    config.memory.per_machine_bytes = 64 << 20;
    config.rings.log_bytes = 1 << 20;
    config.rings.ring_bytes = 64 << 10;
    config.rings.max_message_bytes = 4096;
    let cluster = TestCluster::start(name, config, |worker| {
        farm_txn::attach(worker);
        farm_kv::attach(worker);
        farm_graph::attach(worker);
    });
    let spec = GraphSpec {
        schema: vertex::schema(),
        ids: TableSpec {
            id: 9,
            neighbourhood: 4,
            key_bytes: farm_kv::KEY_BYTES,
            value_bytes: farm_graph::ID_VALUE_BYTES,
            shards: 4,
            buckets: 1024,
        },
        page_bytes: 4096,
        cached_heads: CACHED_HEADS,
    };
    open_all(&cluster.machines, &spec).unwrap();
    cluster
}

/// Checks that no operation is left on any worker.
fn check_ended(cluster: &TestCluster) {
    for machine in 0..cluster.machines.len() {
        let left = cluster.on(machine, 0, farm_graph::left_over);
        assert_eq!(left, None);
    }
}

type Ended = (anyhow::Result<Imported>, Importer);

/// Begins an import on a machine.
fn begin_import(
    cluster: &TestCluster,
    machine: usize,
    batch: Batch,
    undirected: bool,
) -> Receiver<Ended> {
    let (answer, ended) = channel();
    let work = move |worker: &mut _| {
        let importer = Importer::new(undirected, 1 << 20);
        let done = move |imported, importer| drop(answer.send((imported, importer)));
        import::run(worker, batch, importer, IN_FLIGHT, Box::new(done));
    };
    cluster.machines[machine].submit(0, work).unwrap();
    ended
}

/// Imports a list on all machines at the same time, each a part of the lines. Returns the numbers, and the ids of the nodes.
fn import(
    cluster: &TestCluster,
    lines: &[(u64, u64)],
    undirected: bool,
) -> (Imported, BTreeSet<u64>) {
    let machines = cluster.machines.len();
    let parts = lines.chunks(lines.len().div_ceil(machines).max(1));
    let mut first = 1;
    let begun: Vec<Receiver<Ended>> = parts
        .enumerate()
        .map(|(machine, part)| {
            let batch = Batch {
                first,
                edges: part.to_vec(),
            };
            first += part.len() as u64;
            begin_import(cluster, machine, batch, undirected)
        })
        .collect();
    let (mut all, mut ids) = (Imported::default(), BTreeSet::new());
    for ended in begun {
        let (imported, importer) = farm_testing::receive(&ended);
        all += imported.unwrap();
        for id in importer.sample.ids() {
            assert!(ids.insert(id), "the node {id} was added twice");
        }
    }
    (all, ids)
}

fn bfs(cluster: &TestCluster, machine: usize, start: u64) -> Option<Searched> {
    let searched = cluster.machines[machine].ask(0, move |worker, answer: Sender<_>| {
        let done = Box::new(move |searched| drop(answer.send(searched)));
        search::run(worker, start, IN_FLIGHT, done);
    });
    searched.unwrap().unwrap()
}

fn names_of(cluster: &TestCluster, ids: Vec<u64>) -> Vec<FatPointer> {
    let found = cluster.machines[0].ask(0, move |worker, answer: Sender<_>| {
        let done = Box::new(move |found| drop(answer.send(found)));
        let count = ids.len();
        let id = Box::new(move |at: usize| ids[at]);
        names::find(worker, (count, id), IN_FLIGHT, done);
    });
    found.unwrap().unwrap()
}

fn query(cluster: &TestCluster, machine: usize, starts: Starts, extent: Extent) -> Queried {
    let queried = cluster.machines[machine].ask(0, move |worker, answer: Sender<_>| {
        let run = Run {
            starts,
            extent,
            sampled_1_in: 1,
        };
        let done = Box::new(move |queried| drop(answer.send(queried)));
        two_hop::run(worker, run, done);
    });
    queried.unwrap()
}

/// Queries from each of these nodes once.
fn query_each(cluster: &TestCluster, machine: usize, ids: &[u64]) -> Queried {
    let starts = Starts::Each(names_of(cluster, ids.to_vec()));
    let extent = Extent {
        in_flight: IN_FLIGHT,
        ..Extent::default()
    };
    query(cluster, machine, starts, extent)
}

/// Checks an import, and queries from all nodes, against petgraph.
fn compare<D: EdgeType>(cluster: &TestCluster, lines: &[(u64, u64)]) {
    let model: GraphMap<u64, (), D> = lines.iter().map(|(from, to)| (*from, *to, ())).collect();
    let (imported, ids) = import(cluster, lines, !D::is_directed());
    let expected = Imported {
        nodes: model.node_count() as u64,
        edges: model.edge_count() as u64,
        duplicates: (lines.len() - model.edge_count()) as u64,
        self_loops: model
            .nodes()
            .filter(|id| model.contains_edge(*id, *id))
            .count() as u64,
    };
    assert_eq!(imported, expected, "{lines:?}");
    assert_eq!(ids, model.nodes().collect::<BTreeSet<u64>>());
    let ids: Vec<u64> = ids.into_iter().collect();
    for (at, id) in ids.iter().enumerate() {
        let searched = bfs(cluster, at % MACHINES as usize, *id).unwrap();
        let levels: BTreeMap<u64, u32> =
            searched.level_of.iter().map(|it| (*it.0, *it.1)).collect();
        let distances = petgraph::algo::dijkstra(&model, *id, None, |_| 1);
        let distances: BTreeMap<u64, u32> = distances.into_iter().collect();
        assert_eq!(levels, distances, "from {id}: {lines:?}");
        let sum: u64 = searched.levels().iter().sum();
        assert_eq!((sum, searched.levels()[0]), (levels.len() as u64, 1));
        let followed = levels.keys().map(|id| model.neighbors(*id).count() as u64);
        assert_eq!(searched.edges, followed.sum::<u64>());
    }
    let queried = query_each(cluster, 1, &ids);
    assert_eq!(queried.ran.failure, None);
    for (id, found) in ids.iter().zip(queried.found) {
        let hops = model.neighbors(*id).flat_map(|near| model.neighbors(near));
        let expected: BTreeSet<u64> = hops.collect();
        assert!(
            expected.iter().eq(&found),
            "from {id}: {found:?}, expected {expected:?}: {lines:?}"
        );
    }
}

/// Lists with few nodes, so that they have duplicates in both directions, self loops, and parts without a connection.
fn any_list() -> impl Strategy<Value = Vec<(u64, u64)>> {
    (1..40u64, 0..90usize)
        .prop_flat_map(|(nodes, lines)| proptest::collection::vec((0..nodes, 0..nodes), lines))
}

#[test]
fn levels_and_two_hop_sets_are_those_of_petgraph() {
    let cluster = cluster("edges-petgraph");
    let mut runner = TestRunner::new(ProptestConfig::with_cases(40));
    // Each graph has ids of its own, including the greatest one, so that all are in one cluster.
    let next = Cell::new((1u64 << 63) - 1);
    runner
        .run(&(any_list(), any::<bool>()), |(list, undirected)| {
            let last = next.get();
            next.set(last - 64);
            let list: Vec<(u64, u64)> = list.iter().map(|it| (last - it.0, last - it.1)).collect();
            match undirected {
                true => compare::<petgraph::Undirected>(&cluster, &list),
                false => compare::<petgraph::Directed>(&cluster, &list),
            }
            Ok(())
        })
        .unwrap();
    check_ended(&cluster);
}

#[test]
fn small_graphs_of_every_kind() {
    let cluster = cluster("edges-kinds");
    // A self loop; a line twice; a line in both directions; two parts; a path.
    compare::<petgraph::Directed>(&cluster, &[(1, 1)]);
    compare::<petgraph::Undirected>(&cluster, &[(11, 11), (11, 11)]);
    compare::<petgraph::Directed>(&cluster, &[(21, 22), (21, 22), (22, 21)]);
    compare::<petgraph::Undirected>(&cluster, &[(31, 32), (31, 32), (32, 31)]);
    compare::<petgraph::Undirected>(&cluster, &[(41, 42), (43, 44)]);
    let path: Vec<(u64, u64)> = (50..90).map(|id| (id, id + 1)).collect();
    compare::<petgraph::Directed>(&cluster, &path);
    assert_eq!(bfs(&cluster, 0, 50).unwrap().levels(), vec![1; 41]);
    assert!(bfs(&cluster, 0, 100).is_none());
    check_ended(&cluster);
}

/// Both machines add the same edges at the same time, in different directions: each is counted once.
#[test]
fn edges_that_two_machines_add_at_the_same_time_are_counted_once() {
    let cluster = cluster("edges-twice");
    for round in 0..10 {
        let pairs: Vec<(u64, u64)> = (0..200)
            .map(|pair| (round * 1000 + pair % 7, round * 1000 + 100 + pair))
            .collect();
        let back = pairs.iter().map(|(from, to)| (*to, *from));
        let lines: Vec<(u64, u64)> = pairs.iter().copied().chain(back).collect();
        let (imported, ids) = import(&cluster, &lines, true);
        let expected = Imported {
            nodes: 207,
            edges: 200,
            duplicates: 200,
            self_loops: 0,
        };
        assert_eq!((imported, ids.len()), (expected, 207));
    }
    check_ended(&cluster);
}

/// A list that several reads return, on several pages.
#[test]
fn a_node_with_thousands_of_edges_is_read_in_parts() {
    let cluster = cluster("edges-hub");
    let leaves = 2 * vertex::LIST_PART as u64 + 500;
    let star: Vec<(u64, u64)> = (1..=leaves).map(|leaf| (0, leaf)).collect();
    let (imported, ids) = import(&cluster, &star, true);
    assert_eq!((imported.nodes, imported.edges), (leaves + 1, leaves));
    assert_eq!(ids.len() as u64, leaves + 1);
    let searched = bfs(&cluster, 1, 9).unwrap();
    assert_eq!(searched.levels(), [1, 1, leaves - 1]);
    assert_eq!(searched.edges, 2 * leaves);
    let queried = query_each(&cluster, 0, &[7, 0]);
    assert!(queried.found[0].iter().copied().eq(1..=leaves));
    assert_eq!(queried.found[1], [0]);
    let costs = queried.ran.recorder.counters;
    // The leaf and the hub; the hub and all leaves.
    assert_eq!(costs.vertices, 2 + 1 + leaves);
    assert_eq!(costs.edges, 1 + leaves + leaves + leaves);
    check_ended(&cluster);
}

/// An adjacency list is read by one one-sided read if its first page is known, otherwise by two.
#[test]
fn reads_per_vertex() {
    let cluster = cluster("edges-reads");
    let nodes = 500u64;
    let lines: Vec<(u64, u64)> = (0..nodes)
        .flat_map(|id| (1..=4).map(move |step| (id, (id * 7 + step * step) % nodes)))
        .collect();
    import(&cluster, &lines, false);
    let mut misses = Vec::new();
    for _ in 0..2 {
        let costs = bfs(&cluster, 0, 0).unwrap().costs;
        assert_eq!((costs.ranges, costs.transactions), (nodes, 0));
        assert_eq!(costs.range_reads, nodes + costs.head_misses);
        assert_eq!(costs.head_hits + costs.head_misses, nodes);
        misses.push(costs.head_misses);
    }
    assert_eq!(misses[0], nodes);
    assert!(misses[1] * 10 < nodes, "{misses:?}");
    let ids: Vec<u64> = (0..nodes).collect();
    let costs = query_each(&cluster, 0, &ids).ran.recorder.counters;
    assert_eq!((costs.vertices, costs.graph.ranges), (5 * nodes, 5 * nodes));
    assert_eq!(
        costs.graph.range_reads,
        costs.vertices + costs.graph.head_misses
    );
    assert!(costs.graph.head_misses * 10 < costs.vertices, "{costs:?}");
    check_ended(&cluster);
}

#[test]
fn random_queries_count_what_they_read() {
    let cluster = cluster("edges-random");
    let ring: Vec<(u64, u64)> = (0..100).map(|id| (id, (id + 1) % 100)).collect();
    import(&cluster, &ring, true);
    let starts = Starts::Random {
        nodes: names_of(&cluster, (0..100).collect()).into(),
        seed: 5,
        worker: 1,
    };
    let extent = Extent {
        in_flight: 8,
        operations: Some(1000),
        ..Extent::default()
    };
    let ran = query(&cluster, 1, starts, extent).ran;
    let costs = ran.recorder.counters;
    // A node, its two neighbours, and their two neighbours each: the start and two others.
    assert_eq!(ran.recorder.executed(), 1000);
    assert_eq!(
        (costs.vertices, costs.edges, costs.found),
        (3000, 6000, 3000)
    );
    assert_eq!((costs.errors, ran.failure), (0, None));
    assert_eq!(ran.recorder.latency_ns(0).len(), 1000);
    let none = Starts::Random {
        nodes: Vec::new().into(),
        seed: 5,
        worker: 1,
    };
    assert_eq!(query(&cluster, 0, none, extent).ran.recorder.executed(), 0);
    check_ended(&cluster);
}

#[test]
fn an_import_that_fails_names_the_edge_and_ends() {
    let cluster = cluster("edges-fails");
    let mut edges: Vec<(u64, u64)> = (0..200).map(|id| (id, id + 1)).collect();
    edges[100] = (5, 1 << 63);
    edges[101] = (1 << 63, 1 << 63);
    let batch = Batch { first: 1, edges };
    let (imported, _) = farm_testing::receive(&begin_import(&cluster, 0, batch, true));
    let why = imported.unwrap_err().to_string();
    assert!(why.contains("cannot add the edge from "), "{why}");
    assert!(
        why.contains("9223372036854775808 is not below 2^63"),
        "{why}"
    );
    check_ended(&cluster);
}
