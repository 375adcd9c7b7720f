//! The graph that is loaded, and the requests of a run on two machines.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use farm_bench::closed_loop::{Extent, Ran};
use farm_bench::graph::names::{self, Names};
use farm_bench::linkbench::client::Client;
use farm_bench::linkbench::degree::{Degrees, Links, SECTIONS};
use farm_bench::linkbench::driver::{self, LinkCosts, Run};
use farm_bench::linkbench::load::{self, Load, LoadedLinks};
use farm_bench::linkbench::loaded::{Loaded, NODE_TYPE, link_type};
use farm_bench::linkbench::report::{LoadResult, MachineReport, RunResult, Setup};
use farm_bench::linkbench::requests::{Kind, Mix, Requests, linkbench_mix, tao_mix};
use farm_bench::linkbench::{LinkSpec, store};
use farm_bench::recorder::Outcome;
use farm_bench::ycsb::stream::worker_rng;
use farm_core::object::FatPointer;
use farm_core::worker::Worker;
use farm_graph::tx::Range;
use farm_testing::TestCluster;
use farm_txn::Transaction;

use crate::cluster::{CACHED_HEADS, cluster, transact};

type Tx<'f> = Transaction<'f>;

const NODES: u64 = 200;
const NOW_MS: u64 = 1 << 42;
const MACHINES: u64 = 2;

/// A loaded graph.
struct Graph {
    cluster: TestCluster,
    spec: Arc<LinkSpec>,
    links: Arc<Links>,
    names: Names,
    sequence: FatPointer,
}

/// Waits for the result that a function sends from a worker of a machine.
fn on<T: Send + 'static>(
    cluster: &TestCluster,
    machine: usize,
    start: impl FnOnce(&mut Worker, Sender<T>) + Send + 'static,
) -> T {
    cluster.machines[machine].ask(0, start).unwrap()
}

/// Loads a small graph whose first node has 40 links. Each machine writes a half.
fn load(name: &str, spec: LinkSpec) -> Graph {
    let cluster = cluster(name, MACHINES as u16);
    let sections = SECTIONS.map(|section| format!("{section}\n0 30.0\n1 60.0\n5 99.0\n40 100.0\n"));
    let degrees = Degrees::parse("x", sections.concat().as_bytes()).unwrap();
    let spec = Arc::new(LinkSpec {
        first_id: 1,
        end_id: 1 + NODES,
        ..spec
    });
    let links = Arc::new(Links::new(&spec, degrees));
    let progress = Arc::new(AtomicU64::new(0));
    let mut all = LoadedLinks::default();
    for machine in 0..MACHINES {
        let part = move |spec: &Arc<LinkSpec>, progress: &Arc<AtomicU64>| Load {
            loaded: Loaded {
                spec: Arc::clone(spec),
                seed: 3,
                now_ms: NOW_MS,
            },
            ids: 1 + machine * NODES / MACHINES..1 + (machine + 1) * NODES / MACHINES,
            in_flight: 8,
            progress: Arc::clone(progress),
        };
        let of_nodes = part(&spec, &progress);
        let (_, names) = on(&cluster, machine as usize, |worker, answer| {
            let done = Box::new(move |written| answer.send(written).unwrap());
            load::nodes(worker, of_nodes, done);
        })
        .unwrap();
        let (of_links, links) = (part(&spec, &progress), Arc::clone(&links));
        let loaded = on(&cluster, machine as usize, |worker, answer| {
            let done = Box::new(move |loaded| answer.send(loaded).unwrap());
            load::links(worker, of_links, links, names, done);
        })
        .unwrap();
        all.links += loaded.links;
        all.counts += loaded.counts;
    }
    let total: u64 = (1..=NODES).map(|id1| links.total(id1)).sum();
    assert_eq!(all.links, total);
    assert_eq!(progress.load(Ordering::Relaxed), NODES + total);
    let of_types = (1..=NODES).flat_map(|id1| [(id1, 0), (id1, 1)]);
    let counts = of_types.filter(|(id1, number)| links.of(*id1, *number) > 0);
    assert_eq!(all.counts, counts.count() as u64);
    transact!(cluster, 0, async |tx: Tx<'_>| {
        store::start_ids(tx, NODE_TYPE, 1 + NODES).await
    });
    let find = |ids: std::ops::Range<u64>| {
        let found = on(&cluster, 1, move |worker, answer| {
            let count = (ids.end - ids.start) as usize;
            names::find(
                worker,
                (count, Box::new(move |at| ids.start + at as u64)),
                8,
                Box::new(move |found| answer.send(found).unwrap()),
            );
        });
        found.unwrap()
    };
    Graph {
        names: Names::new(1, find(1..1 + NODES)),
        sequence: find(store::SEQUENCE_ID..store::SEQUENCE_ID + 1)[0],
        cluster,
        spec,
        links,
    }
}

impl Graph {
    /// Runs requests on both machines at the same time, and returns the merged result.
    fn run(
        &self,
        mix: fn(&LinkSpec) -> Mix,
        by_id: bool,
        operations: u64,
        limit: u64,
    ) -> RunResult {
        let (answer, answers) = std::sync::mpsc::channel::<Ran<LinkCosts>>();
        for worker in 0..MACHINES {
            let client = (worker, MACHINES);
            let links = Arc::clone(&self.links);
            let requests = Requests::new(&self.spec, links, mix(&self.spec), client);
            let rng = worker_rng(11, worker);
            let run = Run {
                client: Client::new(Arc::clone(&self.spec), requests, limit, rng),
                names: (!by_id).then(|| self.names.clone()),
                sequence: self.spec.compat.then_some(self.sequence),
                now_ms: NOW_MS,
                extent: Extent {
                    in_flight: 8,
                    operations: Some(operations / MACHINES),
                    ..Extent::default()
                },
                sampled_1_in: 1,
            };
            let answer = answer.clone();
            let start = move |worker: &mut Worker| {
                driver::run(worker, run, Box::new(move |ran| answer.send(ran).unwrap()));
            };
            self.cluster.machines[worker as usize]
                .submit(0, start)
                .unwrap();
        }
        let wait = Duration::from_secs(60);
        let workers = (0..MACHINES).map(|_| answers.recv_timeout(wait).unwrap());
        let report = MachineReport {
            machine: "all".to_owned(),
            load_s: 0.0,
            loaded: 0,
            tables: (),
            workers: workers.collect(),
        };
        for ran in &report.workers {
            assert_eq!(ran.failure, None);
        }
        let setup = Setup {
            mix: "test".to_owned(),
            compat: self.spec.compat,
            by_id,
            nodes: NODES,
            degrees: "test".to_owned(),
            range_limit: limit,
            cached_heads: CACHED_HEADS as u64,
            in_flight: 16,
            load_seed: 3,
            seed: 11,
            warmup_s: 0.0,
        };
        let deleted = |ran: &Ran<LinkCosts>| ran.recorder.total(Outcome::Committed);
        assert!(report.workers.iter().map(deleted).sum::<u64>() > 0);
        RunResult::new(&setup, LoadResult::default(), &[report]).unwrap()
    }

    /// Checks that every count is the number of links in the list, in order. Returns the numbers of nodes and links.
    fn check(&self) -> (u64, u64) {
        let (mut nodes, mut links) = (0, 0);
        for id in 1..=NODES {
            let (node, of_types) = transact!(self.cluster, 0, async |tx: Tx<'_>| {
                let mut of_types = Vec::new();
                for number in 0..2 {
                    let list = (id, link_type(number));
                    let links = store::get_link_list(tx, list, Range::newest(10_000)).await?;
                    of_types.push((links, store::count_links(tx, id, list.1).await?));
                }
                Ok((store::get_node(tx, NODE_TYPE, id).await?, of_types))
            });
            nodes += u64::from(node.is_some());
            for (list, count) in of_types {
                assert_eq!(list.len() as u64, count);
                let key = |link: &store::Link| (std::cmp::Reverse(link.time), link.id2);
                assert!(list.is_sorted_by_key(key));
                links += count;
            }
        }
        let left = self.cluster.on_all(farm_graph::left_over);
        assert!(left.iter().all(Option::is_none), "{left:?}");
        (nodes, links)
    }
}

fn count(result: &RunResult, kind: Kind) -> u64 {
    result.ops.get(kind.name()).map_or(0, |op| op.count)
}

#[test]
fn the_mix_of_linkbench_leaves_lists_and_counts_in_agreement() {
    for (name, compat, by_id) in [("lb-run", false, false), ("lb-compat", true, true)] {
        let properties = farm_bench::linkbench::spec::defaults();
        let spec = LinkSpec::from_properties(&properties, compat).unwrap().spec;
        let graph = load(name, spec);
        let (nodes, links) = graph.check();
        assert_eq!(nodes, NODES);
        let loaded: u64 = (1..=NODES).map(|id1| graph.links.total(id1)).sum();
        assert_eq!(links, loaded);
        let result = graph.run(linkbench_mix, by_id, 6000, 10_000);
        assert_eq!((result.errors, count(&result, Kind::GetTimeRange)), (0, 0));
        let requests: u64 = result.ops.values().map(|op| op.count).sum();
        assert!((6000..6100).contains(&requests), "{requests}");
        let (nodes, _) = graph.check();
        let deletes = &result.ops[Kind::DeleteNode.name()];
        assert_eq!(nodes, NODES - (deletes.count - deletes.not_found));
        assert_eq!(result.reads_per_find.is_some(), by_id);
        // New nodes have ids of ranges of the workers, or the next ids without gaps.
        let added = count(&result, Kind::AddNode);
        let next = transact!(graph.cluster, 1, async |tx: Tx<'_>| {
            let sequence = store::get_node(tx, NODE_TYPE, store::SEQUENCE_ID).await?;
            let last = store::get_node(tx, NODE_TYPE, NODES + added).await?;
            Ok((sequence.map(|it| it.version), last.is_some()))
        });
        let gapless = if compat { added } else { 0 };
        assert_eq!(next, (Some(1 + NODES + gapless), compat));
        graph.cluster.stop();
    }
}

#[test]
fn reads_of_the_mix_of_tao_cost_about_one_read_each() {
    let graph = load("lb-tao", LinkSpec::default());
    graph.run(|_| tao_mix(), false, 4000, 50);
    let result = graph.run(|_| tao_mix(), false, 4000, 50);
    assert_eq!(result.errors, 0);
    let reads = result.reads_per_read.unwrap();
    assert!(reads <= 1.02, "{reads}: the cache has room for all lists");
    assert!(count(&result, Kind::GetTimeRange) > 0);
    let text = result.to_string();
    for words in [
        "REQUEST PHASE COMPLETED. ",
        "GET_NODE count = ",
        "p25 = [0,",
    ] {
        assert!(text.contains(words), "{text}");
    }
    let csv = result.to_csv();
    let lines: Vec<&str> = csv.lines().collect();
    assert!(lines[0].starts_with("op,count,p25_low,p25_high,p50_low"));
    assert_eq!(lines.len(), 1 + result.ops.len());
    graph.check();
    graph.cluster.stop();
}

#[test]
fn requests_for_older_links_continue_long_lists() {
    let spec = LinkSpec {
        history: 100.0,
        mix: [0.0, 0.0, 0.0, 0.0, 0.0, 100.0, 0.0, 0.0, 0.0, 0.0],
        ..LinkSpec::default()
    };
    let graph = load("lb-older", spec);
    let result = graph.run(linkbench_mix, false, 3000, 3);
    assert_eq!(result.errors, 0);
    assert!(result.links_per_list.unwrap() > 0.5, "{result}");
    // No part of a list has more links than the limit.
    assert!(result.links_per_list.unwrap() <= 3.0);
    graph.cluster.stop();
}
