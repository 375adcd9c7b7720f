//! Runs of all kinds of requests, and checks of the graph afterwards.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::Sender;

use farm_bench::closed_loop::{Extent, part_of};
use farm_bench::graph::names;
use farm_bench::recorder::Outcome;
use farm_bench::taobench::audit::{self, Audit, AuditResult};
use farm_bench::taobench::driver::{self, Performed, Run};
use farm_bench::taobench::load::{self, Load};
use farm_bench::taobench::loaded::Loaded;
use farm_bench::taobench::store;
use farm_bench::taobench::stream::{Book, Known, Pick, Stream, Write};
use farm_bench::taobench::workload::{Kind, Published, Workload};
use farm_core::worker::Worker;
use farm_testing::TestCluster;
use farm_txn::{Handle, Transaction, block_on};

use crate::cluster::cluster;

const EDGES: u64 = 300;
const MACHINES: u64 = 2;
const SEED: u64 = 9;

struct Graph {
    cluster: TestCluster,
    workload: Arc<Workload>,
    loaded: Arc<Loaded>,
    book: Arc<Book>,
}

/// Waits until a function on each worker has sent its result. Returns the results in the order of the workers.
fn on_all<T: Send + 'static>(
    cluster: &TestCluster,
    start: impl Fn(u64) -> Box<dyn FnOnce(&mut Worker, Sender<T>) + Send>,
) -> Vec<T> {
    let machines = cluster.machines.iter().enumerate();
    let waiting: Vec<_> = machines
        .map(|(number, machine)| {
            let (answer, answers) = std::sync::mpsc::channel();
            let start = start(number as u64);
            let submitted = machine.submit(0, move |worker| start(worker, answer));
            submitted.unwrap();
            answers
        })
        .collect();
    waiting
        .iter()
        .map(|answers| answers.recv().unwrap())
        .collect()
}

/// Loads a graph on two machines.
fn load(name: &str, workload: Workload) -> Graph {
    let cluster = cluster(name, MACHINES as u16);
    let workload = Arc::new(workload);
    let loaded = Arc::new(Loaded::new(Arc::clone(&workload), SEED, EDGES));
    let ran = on_all(&cluster, |worker| {
        let load = Load {
            loaded: Arc::clone(&loaded),
            numbers: part_of(EDGES, worker, MACHINES),
            in_flight: 8,
            progress: Arc::new(AtomicU64::new(0)),
        };
        Box::new(move |worker, answer| {
            load::run(worker, load, Box::new(move |ran| drop(answer.send(ran))));
        })
    });
    let sum: u64 = ran
        .into_iter()
        .map(|ran| ran.unwrap().recorder.executed())
        .sum();
    assert_eq!(sum, EDGES);
    let found = on_all(&cluster, |_| {
        let loaded = Arc::clone(&loaded);
        let id = Box::new(move |at| loaded.get(at as u64).id1);
        Box::new(move |worker, answer| {
            let done = Box::new(move |found| drop(answer.send(found)));
            names::find(worker, (EDGES as usize, id), 8, done);
        })
    });
    let mut book = Book::default();
    for (number, node) in found
        .into_iter()
        .next()
        .unwrap()
        .unwrap()
        .into_iter()
        .enumerate()
    {
        let edge = loaded.get(number as u64);
        book.push(Known { edge, node });
    }
    Graph {
        cluster,
        workload,
        loaded,
        book: Arc::new(book),
    }
}

impl Graph {
    fn run(&self, compat: bool, operations: u64) -> Vec<Performed> {
        on_all(&self.cluster, |number| {
            let (workload, book) = (Arc::clone(&self.workload), Arc::clone(&self.book));
            let run = Run {
                stream: Stream::new(workload, book, SEED, number, compat),
                loaded: EDGES as usize,
                worker: number,
                seed: SEED,
                extent: Extent {
                    in_flight: 12,
                    operations: Some(operations),
                    ..Extent::default()
                },
                sampled_1_in: 1,
            };
            Box::new(move |worker, answer| {
                let done = Box::new(move |performed| drop(answer.send(performed)));
                driver::run(worker, run, done);
            })
        })
    }

    fn audit(&self, dir: &Path, performed: Vec<Performed>) -> AuditResult {
        for (worker, performed) in performed.iter().enumerate() {
            performed.written.save(dir, worker as u64).unwrap();
        }
        let performed = std::sync::Mutex::new(performed.into_iter());
        let results = on_all(&self.cluster, |number| {
            let Performed { written, own, .. } = performed.lock().unwrap().next().unwrap();
            let audit = Audit {
                loaded: Arc::clone(&self.loaded),
                book: Arc::clone(&self.book),
                numbers: part_of(EDGES, number, MACHINES),
                own,
                written,
                dir: dir.to_owned(),
                workers: MACHINES,
                in_flight: 8,
            };
            Box::new(move |worker, answer| {
                audit::run(
                    worker,
                    audit,
                    Box::new(move |result| drop(answer.send(result))),
                );
            })
        });
        let mut all = AuditResult::default();
        for result in results {
            all += result;
        }
        all
    }
}

/// Returns the workload of applications with all kinds of requests, also those that the published files do not have.
fn all_kinds() -> Workload {
    let text = Published::Applications.text();
    let more = [
        ("[475, 68, 376, 39, 0]", "[475, 68, 376, 39, 50]"),
        ("[111, 214, 0, 10, 380, 0]", "[111, 214, 10, 100, 380, 10]"),
        ("[171,57,15,1]", "[171,57,5,10]"),
    ];
    let text = more.iter().fold(text.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replace(from, to)
    });
    Workload::parse("all", text.as_bytes()).unwrap()
}

#[test]
fn the_graph_is_as_the_committed_writes_have_left_it() {
    let graph = load("tao-run", all_kinds());
    let dir = tempfile::tempdir().unwrap();
    let performed = graph.run(false, 4000);
    for performed in &performed {
        let (ran, kinds) = (&performed.ran, Kind::ALL.into_iter());
        assert_eq!((&ran.failure, ran.recorder.counters.errors), (&None, 0));
        let missing: Vec<_> = kinds
            .filter(|kind| ran.recorder.executed_of(kind.index()) == 0)
            .collect();
        assert!(missing.is_empty(), "{missing:?}");
        assert!(ran.recorder.total(Outcome::Committed) > 2000);
    }
    let added: u64 = performed.iter().map(|it| it.own.edges().len() as u64).sum();
    let audit = graph.audit(dir.path(), performed);
    assert_eq!(audit.wrong, None);
    assert!(audit.deleted > 0 && audit.inverses > 0, "{audit:?}");
    assert!(
        audit.edges > EDGES / 2 && audit.edges <= EDGES + added,
        "{audit:?}"
    );
    let left = graph.cluster.on_all(farm_graph::left_over);
    assert!(left.iter().all(Option::is_none), "{left:?}");
    graph.cluster.stop();
}

/// A write that the workers do not know makes the graph wrong: of an edge, of its inverse, or of an object.
#[test]
fn the_check_finds_writes_that_did_not_commit() {
    for kind in [
        Kind::EdgeUpdate,
        Kind::EdgeDelete,
        Kind::ObjUpdate,
        Kind::ObjDelete,
    ] {
        let workload = Workload::parse("o", Published::Overall.text().as_bytes()).unwrap();
        let graph = load("tao-wrong", workload);
        let dir = tempfile::tempdir().unwrap();
        let performed = graph.run(true, 200);
        let Known { edge, node } = graph.book.edges()[17];
        let write = Write {
            kind,
            edge,
            of: Some((Pick::Loaded(17), node)),
            time: 1 << 60,
        };
        let made = block_on(&graph.cluster.machines[1], 0, async move |farm: Handle| {
            let make = async |tx: Transaction<'_>| store::write(tx, &write).await;
            farm.transact(make).await
        });
        made.unwrap().unwrap();
        let audit = graph.audit(dir.path(), performed);
        let wrong = audit.wrong.expect("the check finds the write");
        assert!(wrong.contains(&edge.id1.to_string()), "{wrong}");
        graph.cluster.stop();
    }
}
