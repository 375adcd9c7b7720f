//! The choice of operations at random.

use farm_core::worker::Worker;
use farm_graph::MAX_TIME;
use rand::Rng;
use rand_xoshiro::Xoshiro256PlusPlus;

use super::state::{Via, graph_work};
use super::values::{NODE_TYPES, SPILLED};
use crate::history::graph::{GraphRequest, NewAssoc, Times, assoc_kind};
use crate::workload::spec::{GraphShape, Spec};
use crate::workload::state::work;

/// Times of associations are below this number, so that several associations have the same time.
const TIMES: u64 = 16;
/// Maximum number of operations of a transaction.
const MOST_STEPS: usize = 5;
/// Maximum number of reads that a transaction makes at the same time.
const MOST_AT_ONCE: usize = 4;
/// Number of operations of a client after which lists begin to grow or to shrink.
const PHASE: u64 = 10;
/// Low bits of a value, which number the operations of one client.
const STEP_BITS: u32 = 8;

/// What the choice depends on.
struct Draw<'a> {
    rng: &'a mut Xoshiro256PlusPlus,
    spec: &'a Spec,
    /// Ids of the nodes that this worker knows.
    nodes: Vec<u64>,
    /// Value of the next operation.
    value: u64,
    /// Whether most changes add associations.
    grows: bool,
    /// Whether all changes remove associations.
    removes: bool,
}

/// Returns the next operations of a client. A machine without memory adds no nodes, because the final state of each node is
/// checked on the machine of the worker that added it.
pub(super) fn draw(worker: &mut Worker, client: usize) -> (Via, Vec<GraphRequest>) {
    let (via, mut steps) = drawn(worker, client);
    if !worker.store().is_used() {
        for step in &mut steps {
            if let GraphRequest::AddNode(id, _) | GraphRequest::ReserveNode(id, _) = *step {
                *step = GraphRequest::Find(id.max(1));
            }
        }
    }
    (via, steps)
}

fn drawn(worker: &mut Worker, client: usize) -> (Via, Vec<GraphRequest>) {
    let nodes = graph_work(worker).nodes.keys().copied().collect();
    let work = work(worker);
    let state = &mut work.clients[client];
    let removes_after = work.spec.graph.removes_after;
    let mut draw = Draw {
        value: u64::from(state.number + 1) << 32 | state.sequence << STEP_BITS,
        grows: state.sequence / PHASE % 3 != 2,
        removes: removes_after > 0 && state.sequence >= removes_after,
        rng: &mut state.rng,
        spec: &work.spec,
        nodes,
    };
    if !draw.percent(draw.spec.in_transactions) {
        return (Via::Alone, vec![draw.request()]);
    }
    let steps = draw.rng.random_range(1..=MOST_STEPS);
    let mut steps: Vec<_> = (0..steps).map(|_| draw.step()).collect();
    if draw.rng.random_ratio(1, 8) {
        steps.extend(draw.new_neighbour());
    }
    let via = match draw.percent(draw.spec.tasks) {
        true => Via::Task,
        false => Via::Tx,
    };
    (via, steps)
}

impl Draw<'_> {
    fn percent(&mut self, share: u32) -> bool {
        self.rng.random_range(0..100) < share
    }

    fn shape(&self) -> &GraphShape {
        &self.spec.graph
    }

    /// Returns a node, mostly the first one.
    fn node(&mut self) -> u64 {
        match self.rng.random_ratio(1, 2) {
            true => self.nodes[0],
            false => self.nodes[self.rng.random_range(0..self.nodes.len())],
        }
    }

    /// Returns a type, mostly the first one of the run.
    fn assoc_type(&mut self) -> u32 {
        let types = self.shape().assoc_types;
        let first = (self.spec.seed % u64::from(types)) as u32;
        match self.rng.random_ratio(1, 3) {
            true => first + 1,
            false => self.rng.random_range(1..=types),
        }
    }

    /// Returns the id of the other node of an association of a type.
    fn other(&mut self, assoc_type: u32) -> u64 {
        match assoc_kind(assoc_type).inverse {
            Some(_) => self.nodes[self.rng.random_range(0..self.nodes.len())],
            None => self.entity(),
        }
    }

    /// Returns the id of an entity, half of the time from a quarter of all ids. In this quarter, neighbouring pages of the
    /// index become empty and are filled again.
    fn entity(&mut self) -> u64 {
        let ids = self.shape().ids;
        match self.rng.random_bool(0.5) {
            true => self.rng.random_range(ids / 2..=ids / 2 + ids / 4),
            false => self.rng.random_range(1..=ids),
        }
    }

    fn value(&mut self) -> u64 {
        self.value += 1;
        self.value
    }

    /// Returns the id of a node that may not exist yet.
    fn spare(&mut self) -> u64 {
        let shape = self.shape();
        let most = shape.nodes + shape.spare_nodes;
        self.rng.random_range(1..=most)
    }

    /// Returns the value of a node.
    fn node_value(&mut self) -> u64 {
        let spilled = self.percent(self.shape().node_data);
        self.value() | if spilled { SPILLED } else { 0 }
    }

    /// Returns a step of a transaction.
    fn step(&mut self) -> GraphRequest {
        if !self.rng.random_ratio(1, 6) {
            return self.request();
        }
        let reads = self.rng.random_range(1..=MOST_AT_ONCE);
        GraphRequest::All((0..reads).map(|_| self.read_node()).collect())
    }

    fn request(&mut self) -> GraphRequest {
        if self.percent(self.spec.lock_free) {
            return match self.rng.random_ratio(1, 10) {
                true => GraphRequest::Find(self.spare()),
                false => self.read_node(),
            };
        }
        let node = self.node();
        if self.percent(self.shape().node_data) {
            return GraphRequest::SetNode(node, self.value() | SPILLED);
        }
        if self.removes {
            let assoc_type = self.assoc_type();
            return GraphRequest::Remove(node, assoc_type, self.other(assoc_type));
        }
        let restores = self.shape().restores > 0;
        if self.percent(self.shape().restores) {
            return match self.rng.random_bool(0.4) {
                true => GraphRequest::DeleteNode(node),
                false => GraphRequest::RestoreNode(node, self.node_value()),
            };
        }
        match self.rng.random_range(0..100) {
            0..3 => GraphRequest::AddNode(self.spare(), self.node_value()),
            3 => GraphRequest::AddNode(0, self.node_value()),
            4 if restores => GraphRequest::DeleteNode(node),
            5..8 if restores => GraphRequest::ReserveNode(self.spare(), self.node_type()),
            8 if restores => GraphRequest::ReserveNode(0, self.node_type()),
            4..15 => GraphRequest::SetNode(node, self.node_value()),
            drawn => self.change(node, drawn - 15),
        }
    }

    fn node_type(&mut self) -> u32 {
        self.rng.random_range(1..=NODE_TYPES) as u32
    }

    /// Returns a read of a node or of its associations.
    fn read_node(&mut self) -> GraphRequest {
        let (node, assoc_type) = (self.node(), self.assoc_type());
        if self.percent(self.shape().node_data) {
            return GraphRequest::GetNode(node);
        }
        match self.rng.random_range(0..16) {
            0 => GraphRequest::GetNode(node),
            1..4 => GraphRequest::Count(node, assoc_type),
            4..10 => {
                let ids = self.rng.random_range(1..=6);
                let ids = (0..ids).map(|_| self.other(assoc_type)).collect();
                GraphRequest::Get(node, assoc_type, ids, self.times())
            }
            _ => {
                let limit = match self.rng.random_ratio(1, 3) {
                    true => 1000,
                    false => self.rng.random_range(0..6),
                };
                let offset = self.rng.random_range(0..8u64).saturating_sub(5);
                GraphRequest::Range(node, assoc_type, self.times(), offset, limit)
            }
        }
    }

    fn times(&mut self) -> Times {
        let min = self.rng.random_range(0..TIMES);
        match self.rng.random_ratio(1, 2) {
            true => (0, MAX_TIME),
            false => (min, min + self.rng.random_range(0..TIMES)),
        }
    }

    /// Returns a change of an association. `drawn` is below 85.
    fn change(&mut self, node: u64, drawn: u32) -> GraphRequest {
        let assoc_type = self.assoc_type();
        let other = self.other(assoc_type);
        let puts = if self.grows { 60 } else { 15 };
        match drawn {
            drawn if drawn < puts => self.put(node, assoc_type, other),
            _ if self.rng.random_ratio(1, 8) => {
                let to = self.rng.random_range(1..=self.shape().assoc_types);
                let [old, new] = [assoc_type, to].map(|it| assoc_kind(it).inverse.is_some());
                // A type with an inverse cannot be changed to one without.
                let to = if old == new { to } else { assoc_type };
                GraphRequest::ChangeType(node, assoc_type, to, other)
            }
            drawn if drawn % 3 == 0 => GraphRequest::Hide(node, assoc_type, other),
            _ => GraphRequest::Remove(node, assoc_type, other),
        }
    }

    fn put(&mut self, node: u64, assoc_type: u32, other: u64) -> GraphRequest {
        let needed = assoc_kind(assoc_type).inverse.is_some();
        let new = NewAssoc {
            time: self.rng.random_range(0..TIMES),
            value: self.value(),
            target: needed || self.nodes.contains(&other) && self.rng.random_bool(0.5),
        };
        GraphRequest::Put(node, assoc_type, other, new)
    }

    /// Returns operations that add or reserve a node, and add an association to it.
    fn new_neighbour(&mut self) -> [GraphRequest; 2] {
        let (node, assoc_type, id) = (self.node(), self.assoc_type(), self.spare());
        let add = match self.rng.random_bool(0.5) {
            true => GraphRequest::AddNode(id, self.node_value()),
            false => GraphRequest::ReserveNode(id, self.node_type()),
        };
        let new = NewAssoc {
            time: self.rng.random_range(0..TIMES),
            value: self.value(),
            target: true,
        };
        [add, GraphRequest::Put(node, assoc_type, id, new)]
    }
}
