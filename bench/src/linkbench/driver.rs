//! The clients of LinkBench on one worker, which perform its requests.

use farm_core::object::FatPointer;
use farm_core::time::Nanos;
use farm_core::worker::{Cont, Worker};
use farm_graph::ids::{self, Place};
use farm_graph::tx::Deletion;
use farm_graph::{
    Assocs, AssocsCont, Count, GraphError, NewNode, Node, NodeCont, NodeData, Put, TimeBounds, ops,
};
use farm_kv::KvError;
use farm_txn::{Handle, Transaction, TxError};

use super::client::{Client, Drawn};
use super::loaded::link_type;
use super::requests::{Kind, Request};
use super::store;
use crate::closed_loop::{self, Clients, ClosedLoop, Done, Extent, Ran};
use crate::counters::{Costs, counters};
use crate::graph::GraphCosts;
use crate::graph::names::Names;
use crate::recorder::{Outcome, Recorder};

counters! {
    /// Costs of the requests, and the lengths of the lists that they returned.
    pub struct LinkCosts {
        /// Costs of the operations on the graph.
        pub graph: GraphCosts,
        /// Links that requests for lists have returned.
        pub listed: u64,
        /// Requests that failed.
        pub errors: u64,
        /// Requests that were repeated, because a machine was lost and it was unknown whether they had taken effect.
        pub repeated: u64,
    }
}

impl Costs for LinkCosts {
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
    pub client: Client,
    /// The names of all nodes; `None`: each request looks up the name by the id.
    pub names: Option<Names>,
    /// The name of the node that counts the ids of new nodes without gaps; `None` for ids of ranges of each worker.
    pub sequence: Option<FatPointer>,
    /// The current time, in milliseconds since 1970.
    pub now_ms: u64,
    /// How long, how much and how fast.
    pub extent: Extent,
    /// One request in this many is timed.
    pub sampled_1_in: u32,
}

/// A request in flight.
struct Pending {
    drawn: Drawn,
    /// The node, once it is known.
    node: Option<FatPointer>,
    /// When the choice of the ids began, if it counts as in the reference.
    began: Option<Nanos>,
}

struct LinkClients {
    client: Client,
    names: Option<Names>,
    sequence: Option<FatPointer>,
    /// The time at the start of the run, in milliseconds since 1970.
    start_ms: u64,
    /// The worker's time at the start of the run.
    began: Nanos,
    done: Done<LinkCosts>,
}

type Driver = ClosedLoop<LinkClients>;

/// Runs requests. Calls `done` on the worker's thread when the run has ended and no request is in flight any more.
pub fn run(worker: &mut Worker, run: Run, done: Done<LinkCosts>) {
    let recorder = Recorder::new(Kind::ALL.len(), run.sampled_1_in);
    let clients = LinkClients {
        client: run.client,
        names: run.names,
        sequence: run.sequence,
        start_ms: run.now_ms,
        began: worker.clock().now(),
        done,
    };
    closed_loop::start(worker, clients, recorder, run.extent);
}

impl Clients for LinkClients {
    type Operation = Pending;
    type Costs = LinkCosts;

    #[inline]
    fn draw(&mut self, worker: &mut Worker) -> Option<Pending> {
        let began = self.client.compat().then(|| worker.clock().now());
        let drawn = self.client.draw();
        let Request { kind, id1, .. } = drawn.request;
        let names = self.names.as_ref().filter(|_| kind != Kind::AddNode);
        Some(Pending {
            drawn,
            node: names.map(|names| names.get(id1)),
            began: began.filter(|_| kind == Kind::GetNode),
        })
    }

    #[inline]
    fn begin(own: &mut Driver, worker: &mut Worker, seat: usize) {
        let Pending { drawn, node, .. } = own.operation(seat);
        let request = drawn.request;
        match (*node, request.kind) {
            (_, Kind::AddNode) => own.add_node(worker, seat),
            (Some(node), _) => own.perform(worker, seat, node),
            (None, _) => ids::find(worker, request.id1, Cont::new(found, seat)),
        }
    }

    fn end(self, _: &mut Worker, ran: Ran<LinkCosts>) {
        (self.done)(ran);
    }
}

impl LinkClients {
    /// Returns the current time in milliseconds since 1970.
    fn now_ms(&self, worker: &Worker) -> u64 {
        self.start_ms + (worker.now() - self.began) / 1_000_000
    }
}

impl Driver {
    /// Performs the request of a seat on its node.
    #[inline]
    fn perform(&mut self, worker: &mut Worker, seat: usize, node: FatPointer) {
        let drawn = self.operation(seat).drawn;
        let link_type = link_type(drawn.request.link_type);
        match drawn.request.kind {
            Kind::GetNode => ops::obj_get(worker, node, NodeCont::new(node_read, seat)),
            Kind::CountLinks => {
                ops::assoc_count(worker, node, link_type, Cont::new(counted, seat));
            }
            Kind::GetList | Kind::GetTimeRange => {
                let now = self.clients.now_ms(worker);
                let range = self.clients.client.range(&drawn, now);
                let cont = AssocsCont::new(listed, seat);
                ops::assoc_range(worker, node, link_type, range, cont);
            }
            Kind::Multiget => {
                let ids = self.clients.client.ids(&drawn.request);
                let cont = AssocsCont::new(got_links, seat);
                ops::assoc_get(worker, node, link_type, ids, TimeBounds::default(), cont);
            }
            _ => self.write(worker, seat, node),
        }
    }

    fn write(&mut self, worker: &mut Worker, seat: usize, node: FatPointer) {
        let request = self.operation(seat).drawn.request;
        let (link_type, id2) = (link_type(request.link_type), request.id2);
        let now = self.clients.now_ms(worker);
        let client = &mut self.clients.client;
        match request.kind {
            Kind::AddLink | Kind::UpdateLink => {
                let link = client.link(&request, now);
                ops::assoc_add(worker, node, link_type, link, now, Cont::new(put, seat));
            }
            Kind::DeleteLink => {
                let cont = Cont::new(changed, seat);
                ops::assoc_delete(worker, node, (link_type, id2), Deletion::Hide, now, cont);
            }
            Kind::ChangeType => {
                let types = (link_type, client.other_type(&request));
                let cont = Cont::new(changed, seat);
                ops::assoc_change_type(worker, node, types, id2, now, cont);
            }
            Kind::UpdateNode => {
                let data = client.node(&request, now);
                ops::obj_update(worker, node, data, Cont::new(changed, seat));
            }
            Kind::DeleteNode => ops::obj_delete(worker, node, Cont::new(changed, seat)),
            _ => unreachable!("`perform` handles the kinds that read, and `begin` new nodes"),
        }
    }

    fn add_node(&mut self, worker: &mut Worker, seat: usize) {
        let request = self.operation(seat).drawn.request;
        let now = self.clients.now_ms(worker);
        let data = self.clients.client.node(&request, now);
        match self.clients.sequence {
            Some(sequence) => add_next(worker, sequence, data, seat),
            None => ops::obj_add(worker, Place::default(), data, Cont::new(added, seat)),
        }
    }

    /// Ends the request of a seat.
    #[inline]
    fn done(&mut self, worker: &mut Worker, seat: usize, has_effect: bool) {
        let Pending { drawn, began, .. } = *self.operation(seat);
        let outcome = match has_effect {
            true => Outcome::Committed,
            false => Outcome::NotFound,
        };
        let kind = drawn.request.kind.index();
        match (drawn.until, began) {
            // As in the reference, requests for older links take no time, and the choice of a node counts.
            (Some(_), _) if self.clients.client.compat() => {
                self.finish_after(worker, seat, kind, outcome, Some(0));
            }
            (_, Some(began)) if self.is_timed(seat) => {
                let latency = worker.clock().now() - began;
                self.finish_after(worker, seat, kind, outcome, Some(latency));
            }
            _ => self.finish(worker, seat, kind, outcome),
        }
    }

    #[cold]
    fn fail(&mut self, worker: &mut Worker, seat: usize, error: &GraphError) {
        self.recorder.counters.errors += 1;
        let request = self.operation(seat).drawn.request;
        let is_list = matches!(request.kind, Kind::GetList | Kind::GetTimeRange);
        let advice = match error {
            GraphError::Tx(TxError::Limit { .. }) if is_list => "; or lower --range-limit",
            _ => "",
        };
        let why = format!(
            "{} of node {} failed: {error}{advice}",
            request.kind.name(),
            request.id1
        );
        self.rest(worker, seat, why);
    }

    /// Ends the request of a seat with a result, whose effect `has_effect` returns.
    #[inline]
    fn end_with<T, E: std::borrow::Borrow<GraphError>>(
        &mut self,
        worker: &mut Worker,
        seat: usize,
        result: Result<T, E>,
        has_effect: impl FnOnce(T) -> bool,
    ) {
        match result {
            Ok(result) => self.done(worker, seat, has_effect(result)),
            Err(error) => match error.borrow() {
                // To make a request twice does no harm: at most one node more is added.
                GraphError::Tx(TxError::InDoubt(_)) | GraphError::Table(KvError::InDoubt(_)) => {
                    self.recorder.counters.repeated += 1;
                    self.repeat(worker, seat);
                }
                error => self.fail(worker, seat, error),
            },
        }
    }
}

/// Adds a node with the next id of the sequence.
fn add_next(worker: &mut Worker, sequence: FatPointer, data: NodeData<'_>, seat: usize) {
    let node = store::Node {
        node_type: data.node_type,
        version: data.version,
        time: data.time,
        data: data.data.to_vec(),
    };
    let task = async move |farm: Handle| {
        let add = async |tx: Transaction<'_>| store::add_node_to(tx, sequence, &node).await;
        farm.transact(add).await.map_err(GraphError::from)
    };
    closed_loop::spawn(worker, task, move |own: &mut Driver, worker, added| {
        own.end_with(worker, seat, added, |_| true);
    });
}

fn found(worker: &mut Worker, seat: usize, found: Result<Option<FatPointer>, GraphError>) {
    closed_loop::resume(worker, |own: &mut Driver, worker| match found {
        Ok(Some(node)) => {
            own.operation(seat).node = Some(node);
            own.perform(worker, seat, node);
        }
        Ok(None) => own.done(worker, seat, false),
        Err(error) => own.fail(worker, seat, &error),
    });
}

#[inline]
fn node_read(worker: &mut Worker, seat: usize, node: Result<Option<Node<'_>>, &GraphError>) {
    closed_loop::resume(worker, |own: &mut Driver, worker| {
        own.end_with(worker, seat, node, |node| node.is_some());
    });
}

#[inline]
fn counted(worker: &mut Worker, seat: usize, count: Result<Count, GraphError>) {
    closed_loop::resume(worker, |own: &mut Driver, worker| {
        own.end_with(worker, seat, count, |count| count.count > 0);
    });
}

#[inline]
fn listed(worker: &mut Worker, seat: usize, links: Result<Assocs<'_>, &GraphError>) {
    closed_loop::resume(worker, |own: &mut Driver, worker| {
        if let Ok(links) = links {
            own.recorder.counters.listed += links.len() as u64;
            let drawn = own.operation(seat).drawn;
            let last = || links.iter().last().map(|last| last.time);
            own.clients.client.remember(&drawn, links.len(), last);
        }
        own.end_with(worker, seat, links, |links| !links.is_empty());
    });
}

fn got_links(worker: &mut Worker, seat: usize, links: Result<Assocs<'_>, &GraphError>) {
    closed_loop::resume(worker, |own: &mut Driver, worker| {
        own.end_with(worker, seat, links, |links| !links.is_empty());
    });
}

fn put(worker: &mut Worker, seat: usize, put: Result<Put, GraphError>) {
    closed_loop::resume(worker, |own: &mut Driver, worker| {
        own.end_with(worker, seat, put, |_| true);
    });
}

fn changed(worker: &mut Worker, seat: usize, changed: Result<bool, GraphError>) {
    closed_loop::resume(worker, |own: &mut Driver, worker| {
        own.end_with(worker, seat, changed, |changed| changed);
    });
}

fn added(worker: &mut Worker, seat: usize, added: Result<NewNode, GraphError>) {
    closed_loop::resume(worker, |own: &mut Driver, worker| {
        own.end_with(worker, seat, added, |_| true);
    });
}
