//! The clients of TAOBench on one worker, which perform its requests.

use farm_core::worker::{Cont, Worker};
use farm_graph::tx::Range;
use farm_graph::{Assocs, AssocsCont, Count, GraphError, Node, NodeCont, TimeBounds, ops};
use farm_txn::{Handle, Transaction, TxError};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::audit::Written;
use super::store::{self, Effect, RANGE_LIMIT};
use super::stream::{Book, Read, Request, Stream, Write};
use super::workload::Kind;
use crate::closed_loop::{self, Clients, ClosedLoop, Extent, Ran};
use crate::counters::{Costs, counters};
use crate::graph::GraphCosts;
use crate::recorder::{Outcome, Recorder};
use crate::ycsb::stream::worker_rng;

counters! {
    /// Costs of the requests.
    pub struct TaoCosts {
        /// Costs of the operations on the graph outside of transactions.
        pub graph: GraphCosts,
        /// Reads and writes in transactions.
        pub in_transactions: u64,
        /// Requests that failed.
        pub errors: u64,
    }
}

impl Costs for TaoCosts {
    fn of(worker: &mut Worker) -> Self {
        Self {
            graph: GraphCosts::of(worker),
            ..Self::default()
        }
    }
}

/// A run of requests.
pub struct Run {
    /// The requests.
    pub stream: Stream,
    /// Number of edges that were loaded.
    pub loaded: usize,
    /// Number of the worker in the whole cluster.
    pub worker: u64,
    /// Seed of all random choices.
    pub seed: u64,
    /// How long, how much and how fast.
    pub extent: Extent,
    /// One request in this many is timed.
    pub sampled_1_in: u32,
}

/// What a worker has done: the result of the run, what it has written, and the edges that it has added.
pub struct Performed {
    /// The result.
    pub ran: Ran<TaoCosts>,
    /// What was written.
    pub written: Written,
    /// The edges that were added.
    pub own: Book,
}

/// The function that receives the result, on the worker's thread.
pub type Done = Box<dyn FnOnce(Performed) + Send>;

struct TaoClients {
    stream: Stream,
    written: Written,
    rng: Xoshiro256PlusPlus,
    done: Done,
}

type Driver = ClosedLoop<TaoClients>;

/// Runs requests. Calls `done` when the run has ended and no request is in flight any more.
pub fn run(worker: &mut Worker, run: Run, done: Done) {
    let clients = TaoClients {
        stream: run.stream,
        written: Written::new(run.loaded),
        rng: worker_rng(run.seed, run.worker),
        done,
    };
    let recorder = Recorder::new(Kind::ALL.len(), run.sampled_1_in);
    closed_loop::start(worker, clients, recorder, run.extent);
}

impl Clients for TaoClients {
    type Operation = Request;
    type Costs = TaoCosts;

    fn draw(&mut self, _: &mut Worker) -> Option<Request> {
        Some(self.stream.next(&mut self.rng))
    }

    fn begin(own: &mut Driver, worker: &mut Worker, seat: usize) {
        // The request is needed only here, and its kind at the end.
        match own.operation(seat) {
            Request::Read(read) => perform_read(worker, seat, *read),
            Request::Write(write) => {
                let writes = vec![*write];
                perform_writes(worker, seat, writes);
            }
            Request::WriteTxn(writes) => {
                let writes = std::mem::take(writes);
                perform_writes(worker, seat, writes);
            }
            Request::ReadTxn(reads) => {
                let reads = std::mem::take(reads);
                perform_reads(worker, seat, reads);
            }
        }
    }

    fn end(self, _: &mut Worker, ran: Ran<TaoCosts>) {
        (self.done)(Performed {
            ran,
            written: self.written,
            own: self.stream.own,
        });
    }
}

fn perform_read(worker: &mut Worker, seat: usize, read: Read) {
    let (node, edge) = (read.known.node, read.known.edge);
    let edge_type = edge.edge_type.number();
    match read.kind {
        Kind::ObjRead => ops::obj_get(worker, node, NodeCont::new(object_read, seat)),
        Kind::EdgePoint => {
            let (ids, all) = (&[edge.id2], TimeBounds::default());
            let cont = AssocsCont::new(edges_read, seat);
            ops::assoc_get(worker, node, edge_type, ids, all, cont);
        }
        Kind::EdgeCount => ops::assoc_count(worker, node, edge_type, Cont::new(counted, seat)),
        _ => {
            let range = Range::newest(RANGE_LIMIT);
            let cont = AssocsCont::new(edges_read, seat);
            ops::assoc_range(worker, node, edge_type, range, cont);
        }
    }
}

/// Makes writes in one transaction: all or none.
fn perform_writes(worker: &mut Worker, seat: usize, writes: Vec<Write>) {
    let task = async move |farm: Handle| {
        let alone = writes.len() == 1;
        let all = async |tx: Transaction<'_>| {
            let mut effects = Vec::with_capacity(writes.len());
            if !alone {
                store::prepare(tx, &writes).await?;
            }
            for write in &writes {
                let effect = store::write(tx, write).await?;
                // A rule that refuses an edge refuses the whole transaction.
                if effect == Effect::Declined && write.of.is_none() && !alone {
                    return Err(TxError::GivenUp);
                }
                effects.push(effect);
            }
            Ok(effects)
        };
        let made = farm.transact(all).await;
        (writes, made)
    };
    closed_loop::spawn(
        worker,
        task,
        move |own: &mut Driver, worker, (writes, made)| own.written(worker, seat, &writes, made),
    );
}

/// Makes reads in one transaction, so that they are of one moment.
fn perform_reads(worker: &mut Worker, seat: usize, reads: Vec<Read>) {
    let count = reads.len() as u64;
    let task = async move |farm: Handle| {
        let all = async |tx: Transaction<'_>| store::read_all(tx, &reads).await;
        farm.transact(all).await.map_err(GraphError::from)
    };
    closed_loop::spawn(worker, task, move |own: &mut Driver, worker, found| {
        own.recorder.counters.in_transactions += count;
        own.end_with(worker, seat, found);
    });
}

impl Driver {
    fn written(
        &mut self,
        worker: &mut Worker,
        seat: usize,
        writes: &[Write],
        made: Result<Vec<Effect>, TxError>,
    ) {
        let kind = self.operation(seat).kind();
        let effects = match made {
            Ok(effects) => effects,
            Err(TxError::GivenUp) => {
                return self.finish(worker, seat, kind.index(), Outcome::Declined);
            }
            Err(error) => return self.fail(worker, seat, &GraphError::from(error)),
        };
        let clients = &mut self.clients;
        for (write, effect) in writes.iter().zip(&effects) {
            clients.written.add(write, *effect, &mut clients.stream.own);
        }
        let outcome = match effects[..] {
            [Effect::NotFound] => Outcome::NotFound,
            [Effect::Declined] => Outcome::Declined,
            _ => Outcome::Committed,
        };
        if kind == Kind::WriteTxn {
            self.recorder.counters.in_transactions += writes.len() as u64;
        }
        self.finish(worker, seat, kind.index(), outcome);
    }

    /// Ends the request of a seat: whether it has found something, or why it failed.
    fn end_with<E: std::borrow::Borrow<GraphError>>(
        &mut self,
        worker: &mut Worker,
        seat: usize,
        found: Result<bool, E>,
    ) {
        let kind = self.operation(seat).kind().index();
        match found {
            Ok(true) => self.finish(worker, seat, kind, Outcome::Committed),
            Ok(false) => self.finish(worker, seat, kind, Outcome::NotFound),
            Err(error) => self.fail(worker, seat, error.borrow()),
        }
    }

    #[cold]
    fn fail(&mut self, worker: &mut Worker, seat: usize, error: &GraphError) {
        self.recorder.counters.errors += 1;
        let kind = self.operation(seat).kind();
        self.rest(worker, seat, format!("{} failed: {error}", kind.name()));
    }
}

fn object_read(worker: &mut Worker, seat: usize, node: Result<Option<Node<'_>>, &GraphError>) {
    closed_loop::resume(worker, |own: &mut Driver, worker| {
        own.end_with(worker, seat, node.map(|node| node.is_some()));
    });
}

fn edges_read(worker: &mut Worker, seat: usize, edges: Result<Assocs<'_>, &GraphError>) {
    closed_loop::resume(worker, |own: &mut Driver, worker| {
        own.end_with(worker, seat, edges.map(|edges| !edges.is_empty()));
    });
}

fn counted(worker: &mut Worker, seat: usize, count: Result<Count, GraphError>) {
    closed_loop::resume(worker, |own: &mut Driver, worker| {
        own.end_with(worker, seat, count.map(|count| count.count > 0));
    });
}
