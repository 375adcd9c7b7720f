//! The requests of TAOBench on another engine.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use farm_core::ids::Address;
use farm_core::object::{FatPointer, Incarnation};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::TaoOps;
use super::threads::{self, Extent};
use crate::recorder::Outcome;
use crate::report::{Beside, Engine};
use crate::taobench::audit::{AuditResult, Written, expected};
use crate::taobench::driver::TaoCosts;
use crate::taobench::edges::{Edge, EdgeType, Owner, value};
use crate::taobench::loaded::Loaded;
use crate::taobench::report::{LoadResult, RunResult, Setup};
use crate::taobench::store::Effect;
use crate::taobench::stream::{Book, Known, Read, Request, Stream, Write};
use crate::taobench::workload::{Kind, Workload};
use crate::ycsb::stream::worker_rng;

/// In place of the name of an object: these engines find objects by their ids.
pub(super) const NO_NAME: FatPointer = FatPointer::new(Address::NULL, Incarnation(0));

/// A run of TAOBench on another engine.
pub struct Job<'a> {
    /// The workload.
    pub workload: Arc<Workload>,
    /// The graph.
    pub loaded: Loaded,
    /// The settings, as in the report of the platform.
    pub setup: &'a Setup,
    /// Number of threads, and how long they run.
    pub extent: Extent,
}

/// Loads the graph into an engine, whose files are in `dir`, runs requests, and checks the graph.
///
/// # Errors
/// If the engine cannot be started, or refuses an operation.
pub fn run(engine: Engine, dir: &Path, run: &Job<'_>) -> anyhow::Result<Beside<RunResult>> {
    let store = super::tao_store(engine, dir)?;
    let began = Instant::now();
    store.load(&run.loaded).context("cannot load the graph")?;
    let seconds = began.elapsed().as_secs_f64();
    let edges = run.loaded.len();
    let load = LoadResult {
        edges,
        seconds,
        edges_per_s: Some(edges as f64 / seconds),
        bytes_per_edge: None,
    };
    let mut book = Book::default();
    for number in 0..edges {
        book.push(Known {
            edge: run.loaded.get(number),
            node: NO_NAME,
        });
    }
    let book = Arc::new(book);
    let Setup { seed, compat, .. } = *run.setup;
    let threads = run.extent.threads as u64;
    let clients = (0..threads).map(|number| {
        let (workload, book) = (Arc::clone(&run.workload), Arc::clone(&book));
        anyhow::Ok(TaoClient {
            stream: Stream::new(workload, book, seed, number, compat),
            written: Written::new(edges as usize),
            rng: worker_rng(seed, number),
            ops: store.client()?,
            costs: TaoCosts::default(),
        })
    });
    let clients = clients.collect::<anyhow::Result<Vec<_>>>()?;
    let ran = threads::run(clients, Kind::ALL.len(), &run.extent)?;
    let (workers, clients): (Vec<_>, Vec<_>) = ran.into_iter().unzip();
    let made = clients
        .into_iter()
        .map(|client| (client.written, client.stream.own));
    let made: Vec<(Written, Book)> = made.collect();
    let audit = audit(&mut *store.client()?, &run.loaded, &made)?;
    let report = threads::report(workers);
    let setup = Setup {
        in_flight: threads,
        ..run.setup.clone()
    };
    let run = RunResult::new(setup, load, &[report], audit)?;
    Ok(store.facts()?.beside(engine, threads, run))
}

struct TaoClient {
    stream: Stream,
    written: Written,
    rng: Xoshiro256PlusPlus,
    ops: Box<dyn TaoOps>,
    costs: TaoCosts,
}

impl threads::Client for TaoClient {
    type Operation = Request;
    type Counters = TaoCosts;

    fn counters(&mut self) -> &mut TaoCosts {
        &mut self.costs
    }

    fn draw(&mut self) -> Request {
        self.stream.next(&mut self.rng)
    }

    fn perform(&mut self, request: Request) -> anyhow::Result<(usize, Outcome)> {
        let kind = request.kind();
        self.costs.in_transactions += match &request {
            Request::ReadTxn(reads) => reads.len() as u64,
            Request::WriteTxn(writes) => writes.len() as u64,
            _ => 0,
        };
        let outcome = match &request {
            Request::Read(read) => self.read(std::slice::from_ref(read)),
            Request::ReadTxn(reads) => self.read(reads),
            Request::Write(write) => self.write(std::slice::from_ref(write)),
            Request::WriteTxn(writes) => self.write(writes),
        };
        let outcome = outcome.with_context(|| format!("{} failed", kind.name()))?;
        Ok((kind.index(), outcome))
    }
}

impl TaoClient {
    fn read(&mut self, reads: &[Read]) -> anyhow::Result<Outcome> {
        let (mut bytes, mut found) = (Vec::new(), false);
        self.ops.read(reads, &mut |value| {
            bytes.extend_from_slice(value);
            found = true;
        })?;
        std::hint::black_box(bytes);
        Ok(match found {
            true => Outcome::Committed,
            false => Outcome::NotFound,
        })
    }

    fn write(&mut self, writes: &[Write]) -> anyhow::Result<Outcome> {
        let Some(effects) = self.ops.write(writes)? else {
            return Ok(Outcome::Declined);
        };
        for (write, effect) in writes.iter().zip(&effects) {
            self.written.add(write, *effect, &mut self.stream.own);
        }
        Ok(match effects[..] {
            [Effect::NotFound] => Outcome::NotFound,
            [Effect::Declined] => Outcome::Declined,
            _ => Outcome::Committed,
        })
    }
}

/// Compares all objects and edges with what the clients have written.
fn audit(
    ops: &mut dyn TaoOps,
    loaded: &Loaded,
    made: &[(Written, Book)],
) -> anyhow::Result<AuditResult> {
    let mut result = AuditResult::default();
    for (owner, time) in expected(loaded, made) {
        let wanted = time.map(|time| value(owner, time));
        let (kind, edge) = match owner {
            Owner::Object(id1) => (
                Kind::ObjRead,
                Edge {
                    id1,
                    id2: 0,
                    edge_type: EdgeType::Other,
                },
            ),
            Owner::Edge(edge) => (Kind::EdgePoint, edge),
        };
        match (owner, time) {
            (_, None) => result.deleted += 1,
            (Owner::Object(_), _) => result.objects += 1,
            (Owner::Edge(_), _) => result.edges += 1,
        }
        let mut check = |edge: Edge| -> anyhow::Result<()> {
            let known = Known {
                edge,
                node: NO_NAME,
            };
            let mut found = None;
            ops.read(&[Read { kind, known }], &mut |value| {
                found = Some(value.to_vec())
            })?;
            if found.as_deref() != wanted.as_ref().map(|wanted| &wanted[..]) {
                let wrong = format!("{owner:?} has not the value that was written at {time:?}");
                result.wrong.get_or_insert(wrong);
            }
            Ok(())
        };
        check(edge)?;
        if kind == Kind::EdgePoint && edge.edge_type.has_inverse() {
            check(edge.inverse())?;
            result.inverses += u64::from(time.is_some());
        }
    }
    Ok(result)
}
