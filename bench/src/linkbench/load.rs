//! Writes the graph of LinkBench. Each worker writes a part of the ids, on its machine: first the nodes, then their links.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use farm_core::object::FatPointer;
use farm_core::worker::{Cont, Worker};
use farm_graph::ids::Place;
use farm_graph::{Assoc, AssocType, GraphError, NewNode, NodeData, NodeType, Put, Schema, ops};
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::LinkSpec;
use super::degree::Links;
use super::payload::{MAX_LINK_BYTES, MAX_NODE_BYTES, Motif};
use crate::closed_loop::{self, Clients, ClosedLoop, Ran};
use crate::recorder::Outcome;

/// The type of all nodes.
pub const NODE_TYPE: u32 = 2048;
/// The first type of links; the others follow.
pub const FIRST_LINK_TYPE: u32 = 123_456_789;

/// Milliseconds before now in which the loaded links were written: about 50 days.
const AGE_MS: u64 = 1 << 32;

/// Returns the types of the graph: one type of nodes, and types of links that need no node at either end.
pub fn schema(link_types: u64) -> Schema {
    let node = NodeType {
        id: NODE_TYPE,
        name: "node".to_owned(),
        lists: link_types as u8,
    };
    let link = |number| AssocType {
        id: link_type(number as u8),
        name: format!("link {number}"),
        dangling: true,
        ..AssocType::default()
    };
    let links = (0..link_types).map(link).collect();
    Schema::new(vec![node], links).expect("the types have different numbers and no inverses")
}

/// Returns the type with this number, from 0 on.
pub fn link_type(number: u8) -> u32 {
    FIRST_LINK_TYPE + u32::from(number)
}

/// What a worker loads.
pub struct Load {
    /// The graph.
    pub spec: Arc<LinkSpec>,
    /// The ids of the worker's part.
    pub ids: Range<u64>,
    /// Seed of all data.
    pub seed: u64,
    /// The current time, in milliseconds since 1970.
    pub now_ms: u64,
    /// Number of operations in flight.
    pub in_flight: usize,
    /// Counts the nodes or links that were written.
    pub progress: Arc<AtomicU64>,
}

impl Load {
    /// Returns the generator of the data of one node, or of its links. It depends on the id alone, so that the graph is
    /// the same for any number of workers.
    fn rng(&self, id: u64, purpose: u64) -> Xoshiro256PlusPlus {
        let mixed = (self.seed ^ id << 2 ^ purpose).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Xoshiro256PlusPlus::seed_from_u64(mixed)
    }

    /// Returns the generator of payloads of all workers.
    fn motif(&self, payload: super::spec::Payload, longest: usize) -> Motif {
        Motif::new(payload, longest, &mut self.rng(0, 2))
    }
}

/// The function that receives the names of the nodes that a worker has written, in the order of the ids.
pub type NodesDone = Box<dyn FnOnce(anyhow::Result<(Ran, Vec<FatPointer>)>) + Send>;

struct NodeLoader {
    load: Load,
    next: u64,
    names: Vec<Option<FatPointer>>,
    motif: Motif,
    data: Vec<u8>,
    done: NodesDone,
}

/// Writes the nodes. Calls `done` on the worker's thread at the end.
pub fn nodes(worker: &mut Worker, load: Load, done: NodesDone) {
    let in_flight = load.in_flight;
    let loader = NodeLoader {
        next: load.ids.start,
        names: vec![None; (load.ids.end - load.ids.start) as usize],
        motif: load.motif(load.spec.new_node, MAX_NODE_BYTES),
        load,
        data: Vec::new(),
        done,
    };
    closed_loop::start_untimed(worker, loader, in_flight, None);
}

impl Clients for NodeLoader {
    type Operation = u64;
    type Costs = ();

    fn draw(&mut self, _: &mut Worker) -> Option<u64> {
        let id = Some(self.next).filter(|id| *id < self.load.ids.end)?;
        self.next += 1;
        Some(id)
    }

    fn begin(own: &mut ClosedLoop<Self>, worker: &mut Worker, seat: usize) {
        let id = *own.operation(seat);
        let clients = &mut own.clients;
        let mut rng = clients.load.rng(id, 0);
        clients.motif.fill(&mut rng, &mut clients.data);
        let place = Place {
            id: Some(id),
            near: None,
        };
        let new = NodeData {
            node_type: NODE_TYPE,
            version: 1,
            time: clients.load.now_ms / 1000,
            data: &clients.data,
        };
        ops::obj_add(worker, place, new, Cont::new(node_added, seat));
    }

    fn end(self, _: &mut Worker, ran: Ran) {
        let result = ran.unless_failed().and_then(|ran| {
            let names: Option<Vec<FatPointer>> = self.names.iter().copied().collect();
            let names = names.ok_or_else(|| anyhow::anyhow!("the worker stopped before the end"));
            Ok((ran, names?))
        });
        (self.done)(result);
    }
}

fn node_added(worker: &mut Worker, seat: usize, added: Result<NewNode, GraphError>) {
    closed_loop::resume(worker, |own: &mut ClosedLoop<NodeLoader>, worker| {
        let id = *own.operation(seat);
        match added {
            Ok(new) => {
                let at = (id - own.clients.load.ids.start) as usize;
                own.clients.names[at] = Some(new.node);
                own.clients.load.progress.fetch_add(1, Ordering::Relaxed);
                own.finish(worker, seat, 0, Outcome::Committed);
            }
            Err(error) => own.stop(seat, format!("cannot add the node {id}: {error}")),
        }
    });
}

/// What a worker has loaded.
#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct LoadedLinks {
    /// Number of links.
    pub links: u64,
    /// Number of pairs of a node and a type that have links.
    pub counts: u64,
    /// Seconds of the load.
    pub seconds: f64,
}

/// The function that receives what a worker has loaded.
pub type LinksDone = Box<dyn FnOnce(anyhow::Result<LoadedLinks>) + Send>;

/// A link to be written.
#[derive(Clone, Copy)]
struct NextLink {
    id1: u64,
    link_type: u8,
    /// Number of links of this node and type that were drawn.
    drawn: u64,
    /// Number of links of this node and type.
    all: u64,
}

struct LinkLoader {
    load: Load,
    links: Arc<Links>,
    names: Vec<FatPointer>,
    next: NextLink,
    rng: Xoshiro256PlusPlus,
    motif: Motif,
    data: Vec<u8>,
    counts: u64,
    done: LinksDone,
}

/// Writes the links of the nodes that this worker has written, whose names are `names`. Calls `done` at the end.
pub fn links(
    worker: &mut Worker,
    load: Load,
    links: Arc<Links>,
    names: Vec<FatPointer>,
    done: LinksDone,
) {
    let in_flight = load.in_flight;
    let mut loader = LinkLoader {
        next: NextLink {
            id1: load.ids.start,
            link_type: 0,
            drawn: 0,
            all: 0,
        },
        rng: load.rng(load.ids.start, 1),
        motif: load.motif(load.spec.new_link, MAX_LINK_BYTES),
        links,
        names,
        load,
        data: Vec::new(),
        counts: 0,
        done,
    };
    loader.next.all = loader.number_of_links();
    closed_loop::start_untimed(worker, loader, in_flight, None);
}

impl LinkLoader {
    /// Returns the number of links of the next node and type.
    fn number_of_links(&mut self) -> u64 {
        let NextLink { id1, link_type, .. } = self.next;
        if id1 >= self.load.ids.end {
            return 0;
        }
        let all = self.links.of(id1, u64::from(link_type));
        self.counts += u64::from(all > 0);
        all
    }
}

impl Clients for LinkLoader {
    type Operation = NextLink;
    type Costs = ();

    fn draw(&mut self, _: &mut Worker) -> Option<NextLink> {
        while self.next.drawn == self.next.all {
            if self.next.id1 >= self.load.ids.end {
                return None;
            }
            self.next.link_type += 1;
            if u64::from(self.next.link_type) == self.load.spec.link_types {
                self.next.link_type = 0;
                self.next.id1 += 1;
                self.rng = self.load.rng(self.next.id1, 1);
            }
            self.next.drawn = 0;
            self.next.all = self.number_of_links();
        }
        let link = self.next;
        self.next.drawn += 1;
        Some(link)
    }

    fn begin(own: &mut ClosedLoop<Self>, worker: &mut Worker, seat: usize) {
        let NextLink {
            id1,
            link_type: number,
            drawn,
            ..
        } = *own.operation(seat);
        let clients = &mut own.clients;
        clients.motif.fill(&mut clients.rng, &mut clients.data);
        let id2 = match clients.load.spec.random_id2 {
            0 => id1 + drawn,
            bound => clients.rng.random_range(0..bound),
        };
        let now = clients.load.now_ms;
        let age = clients.rng.random_range(1..=AGE_MS);
        let link = Assoc {
            id2,
            time: now.saturating_sub(age),
            version: 0,
            visible: true,
            target: None,
            data: &clients.data,
        };
        let node = clients.names[(id1 - clients.load.ids.start) as usize];
        let cont = Cont::new(link_added, seat);
        ops::assoc_add(worker, node, link_type(number), link, now, cont);
    }

    fn end(self, _: &mut Worker, ran: Ran) {
        let loaded = ran.unless_failed().map(|ran| LoadedLinks {
            links: ran.recorder.executed(),
            counts: self.counts,
            seconds: ran.duration_s,
        });
        (self.done)(loaded);
    }
}

fn link_added(worker: &mut Worker, seat: usize, put: Result<Put, GraphError>) {
    closed_loop::resume(
        worker,
        |own: &mut ClosedLoop<LinkLoader>, worker| match put {
            Ok(_) => {
                own.clients.load.progress.fetch_add(1, Ordering::Relaxed);
                own.finish(worker, seat, 0, Outcome::Committed);
            }
            Err(error) => {
                let id1 = own.operation(seat).id1;
                own.stop(seat, format!("cannot add a link of node {id1}: {error}"));
            }
        },
    );
}
