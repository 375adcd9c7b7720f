//! The clients of LinkBench on one worker, which perform its requests.

use std::sync::Arc;

use farm_core::object::FatPointer;
use farm_core::time::Nanos;
use farm_core::worker::{Cont, Worker};
use farm_graph::ids::{self, Place};
use farm_graph::tx::{Deletion, Range};
use farm_graph::{
    Assoc, Assocs, AssocsCont, Count, GraphError, MAX_TIME, NewNode, Node, NodeCont, NodeData, Put,
    TimeBounds, ops,
};
use farm_txn::{Handle, Transaction};
use rand::RngCore;
use rand_xoshiro::Xoshiro256PlusPlus;

use super::LinkSpec;
use super::load::{NODE_TYPE, link_type};
use super::payload::{MAX_LINK_BYTES, MAX_NODE_BYTES, Motif};
use super::requests::{Kind, LongList, LongLists, Request, Requests};
use super::store;
use crate::closed_loop::{self, Clients, ClosedLoop, Done, Extent, Ran};
use crate::counters::{Costs, counters};
use crate::graph::GraphCosts;
use crate::graph::names::Names;
use crate::recorder::{Outcome, Recorder};
use crate::ycsb::stream::worker_rng;

counters! {
    /// Costs of the requests, and the lengths of the lists that they returned.
    pub struct LinkCosts {
        /// Costs of the operations on the graph.
        pub graph: GraphCosts,
        /// Links that requests for lists have returned.
        pub listed: u64,
        /// Requests that failed.
        pub errors: u64,
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
    /// The graph.
    pub spec: Arc<LinkSpec>,
    /// The requests.
    pub requests: Requests,
    /// The names of all nodes; `None`: each request looks up the name by the id.
    pub names: Option<Names>,
    /// The name of the node that counts the ids of new nodes without gaps; `None` for ids of ranges of each worker.
    pub sequence: Option<FatPointer>,
    /// Maximum number of links that a request for a list returns.
    pub range_limit: u64,
    /// Number of the worker in the whole cluster.
    pub worker: u64,
    /// Seed of all random choices.
    pub seed: u64,
    /// The current time, in milliseconds since 1970.
    pub now_ms: u64,
    /// How long, how much and how fast.
    pub extent: Extent,
    /// One request in this many is timed.
    pub sampled_1_in: u32,
}

/// A request in flight.
struct Pending {
    request: Request,
    /// The node, once it is known, or the node of a long list.
    node: Option<FatPointer>,
    /// The latest time of the links that a request for older links asks for.
    until: Option<u64>,
    /// When the choice of the ids began, if it counts as in the reference.
    drawn: Option<Nanos>,
}

struct LinkClients {
    run: Run,
    rng: Xoshiro256PlusPlus,
    new_link: Motif,
    updated_link: Motif,
    new_node: Motif,
    updated_node: Motif,
    long_lists: LongLists,
    /// The worker's time at the start of the run.
    began: Nanos,
    data: Vec<u8>,
    ids: Vec<u64>,
    done: Done<LinkCosts>,
}

type Driver = ClosedLoop<LinkClients>;

/// Runs requests. Calls `done` on the worker's thread when the run has ended and no request is in flight any more.
pub fn run(worker: &mut Worker, run: Run, done: Done<LinkCosts>) {
    let mut rng = worker_rng(run.seed, run.worker);
    let spec = Arc::clone(&run.spec);
    let extent = run.extent;
    let recorder = Recorder::new(Kind::ALL.len(), run.sampled_1_in);
    let clients = LinkClients {
        new_link: Motif::new(spec.new_link, MAX_LINK_BYTES, &mut rng),
        updated_link: Motif::new(spec.updated_link, MAX_LINK_BYTES, &mut rng),
        new_node: Motif::new(spec.new_node, MAX_NODE_BYTES, &mut rng),
        updated_node: Motif::new(spec.updated_node, MAX_NODE_BYTES, &mut rng),
        run,
        rng,
        long_lists: LongLists::default(),
        began: worker.clock().now(),
        data: Vec::new(),
        ids: Vec::new(),
        done,
    };
    closed_loop::start(worker, clients, recorder, extent);
}

impl Clients for LinkClients {
    type Operation = Pending;
    type Costs = LinkCosts;

    #[inline]
    fn draw(&mut self, worker: &mut Worker) -> Option<Pending> {
        let drawn = self.run.spec.compat.then(|| worker.clock().now());
        let request = self.run.requests.next(&mut self.rng);
        let mut pending = Pending {
            request,
            node: None,
            until: None,
            drawn: drawn.filter(|_| request.kind == Kind::GetNode),
        };
        if request.older
            && let Some(list) = self.long_lists.draw(&mut self.rng)
        {
            pending.node = Some(list.node);
            pending.until = Some(list.last);
            pending.request.link_type = list.link_type;
        } else if request.kind != Kind::AddNode
            && let Some(names) = &self.run.names
        {
            pending.node = Some(names.get(request.id1));
        }
        Some(pending)
    }

    #[inline]
    fn begin(own: &mut Driver, worker: &mut Worker, seat: usize) {
        let Pending { request, node, .. } = own.operation(seat);
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
        self.run.now_ms + (worker.now() - self.began) / 1_000_000
    }
}

impl Driver {
    /// Performs the request of a seat on its node.
    #[inline]
    fn perform(&mut self, worker: &mut Worker, seat: usize, node: FatPointer) {
        let request = self.operation(seat).request;
        let link_type = link_type(request.link_type);
        match request.kind {
            Kind::GetNode => ops::obj_get(worker, node, NodeCont::new(node_read, seat)),
            Kind::CountLinks => {
                ops::assoc_count(worker, node, link_type, Cont::new(counted, seat));
            }
            Kind::GetList | Kind::GetTimeRange => self.get_list(worker, seat, node),
            Kind::Multiget => {
                let clients = &mut self.clients;
                clients.run.requests.ids(&request, &mut clients.ids);
                let (ids, all) = (&clients.ids, TimeBounds::default());
                let cont = AssocsCont::new(got_links, seat);
                ops::assoc_get(worker, node, link_type, ids, all, cont);
            }
            _ => self.write(worker, seat, node),
        }
    }

    /// Reads a list, or the links of a range of times.
    fn get_list(&mut self, worker: &mut Worker, seat: usize, node: FatPointer) {
        let Pending { request, until, .. } = *self.operation(seat);
        let now = self.clients.now_ms(worker);
        let limit = self.clients.run.range_limit;
        let bounds = match (request.kind, until) {
            (Kind::GetTimeRange, _) => {
                let older = self.clients.rng.next_u64() >> 33;
                TimeBounds {
                    min: now.saturating_sub(2 * older),
                    max: now.saturating_sub(older),
                }
            }
            (_, until) => TimeBounds {
                min: 0,
                max: until.unwrap_or(MAX_TIME),
            },
        };
        let range = Range {
            bounds,
            // The oldest link of the part that was read before is in this part, too.
            offset: u64::from(until.is_some()),
            limit,
        };
        let cont = AssocsCont::new(listed, seat);
        ops::assoc_range(worker, node, link_type(request.link_type), range, cont);
    }

    fn write(&mut self, worker: &mut Worker, seat: usize, node: FatPointer) {
        let Request {
            kind,
            link_type: number,
            id2,
            ..
        } = self.operation(seat).request;
        let clients = &mut self.clients;
        let next = (u64::from(number) + 1) % clients.run.spec.link_types;
        let (link_type, other) = (link_type(number), link_type(next as u8));
        let now = clients.now_ms(worker);
        match kind {
            Kind::AddLink | Kind::UpdateLink => {
                let motif = match kind {
                    Kind::AddLink => &clients.new_link,
                    _ => &clients.updated_link,
                };
                motif.fill(&mut clients.rng, &mut clients.data);
                let link = Assoc {
                    id2,
                    time: now,
                    version: 0,
                    visible: true,
                    target: None,
                    data: &clients.data,
                };
                ops::assoc_add(worker, node, link_type, link, now, Cont::new(put, seat));
            }
            Kind::DeleteLink => {
                let cont = Cont::new(changed, seat);
                ops::assoc_delete(worker, node, (link_type, id2), Deletion::Hide, now, cont);
            }
            Kind::ChangeType => {
                let cont = Cont::new(changed, seat);
                ops::assoc_change_type(worker, node, (link_type, other), id2, now, cont);
            }
            Kind::UpdateNode => {
                clients
                    .updated_node
                    .fill(&mut clients.rng, &mut clients.data);
                let data = node_data(2, now, &clients.data);
                ops::obj_update(worker, node, data, Cont::new(changed, seat));
            }
            Kind::DeleteNode => ops::obj_delete(worker, node, Cont::new(changed, seat)),
            _ => unreachable!("`perform` handles the kinds that read, and `begin` new nodes"),
        }
    }

    fn add_node(&mut self, worker: &mut Worker, seat: usize) {
        let clients = &mut self.clients;
        let now = clients.now_ms(worker);
        clients.new_node.fill(&mut clients.rng, &mut clients.data);
        let data = node_data(1, now, &clients.data);
        match clients.run.sequence {
            Some(sequence) => add_next(worker, sequence, data, seat),
            None => ops::obj_add(worker, Place::default(), data, Cont::new(added, seat)),
        }
    }

    /// Ends the request of a seat.
    #[inline]
    fn done(&mut self, worker: &mut Worker, seat: usize, has_effect: bool) {
        let Pending {
            request,
            until,
            drawn,
            ..
        } = *self.operation(seat);
        let outcome = match has_effect {
            true => Outcome::Committed,
            false => Outcome::NotFound,
        };
        let kind = request.kind.index();
        match (until, drawn) {
            // As in the reference, requests for older links take no time, and the choice of a node counts.
            (Some(_), _) if self.clients.run.spec.compat => {
                self.finish_after(worker, seat, kind, outcome, Some(0));
            }
            (_, Some(drawn)) if self.is_timed(seat) => {
                let latency = worker.clock().now() - drawn;
                self.finish_after(worker, seat, kind, outcome, Some(latency));
            }
            _ => self.finish(worker, seat, kind, outcome),
        }
    }

    #[cold]
    fn fail(&mut self, worker: &mut Worker, seat: usize, error: &GraphError) {
        self.recorder.counters.errors += 1;
        let request = self.operation(seat).request;
        let why = format!(
            "{} of node {} failed: {error}",
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
            Err(error) => self.fail(worker, seat, error.borrow()),
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
        let add = async |tx: &mut Transaction| store::add_node_to(tx, sequence, &node).await;
        farm.transact(add).await.map_err(GraphError::from)
    };
    closed_loop::spawn(worker, task, move |own: &mut Driver, worker, added| {
        own.end_with(worker, seat, added, |_| true);
    });
}

fn node_data(version: u64, now_ms: u64, data: &[u8]) -> NodeData<'_> {
    NodeData {
        node_type: NODE_TYPE,
        version,
        time: now_ms / 1000,
        data,
    }
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
            if links.len() as u64 == own.clients.run.range_limit {
                own.remember(seat, links);
            }
        }
        own.end_with(worker, seat, links, |links| !links.is_empty());
    });
}

impl Driver {
    /// Remembers a list of which only a part was read.
    #[cold]
    fn remember(&mut self, seat: usize, links: Assocs<'_>) {
        let Pending { request, node, .. } = *self.operation(seat);
        let (Some(node), Some(last)) = (node, links.iter().last()) else {
            return;
        };
        if request.kind == Kind::GetList {
            self.clients.long_lists.put(LongList {
                node,
                link_type: request.link_type,
                last: last.time,
            });
        }
    }
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
