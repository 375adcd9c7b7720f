//! The graph that is loaded: nodes and links as functions of their ids.

use std::ops::Range;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use farm_graph::{Assoc, AssocType, NodeData, NodeType, Schema};
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::LinkSpec;
use super::degree::Links;
use super::payload::Motif;
use super::spec::{MAX_LINK_BYTES, MAX_NODE_BYTES, Payload};

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

/// Returns the milliseconds since 1970.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

/// The graph that is loaded.
#[derive(Clone)]
pub struct Loaded {
    /// Its properties.
    pub spec: Arc<LinkSpec>,
    /// Seed of all data.
    pub seed: u64,
    /// The current time, in milliseconds since 1970.
    pub now_ms: u64,
}

impl Loaded {
    /// Returns the generator of the data of one node, or of its links. It depends on the id alone, so that the graph is
    /// the same for any number of workers.
    fn rng(&self, id: u64, purpose: u64) -> Xoshiro256PlusPlus {
        let mixed = (self.seed ^ id << 2 ^ purpose).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Xoshiro256PlusPlus::seed_from_u64(mixed)
    }

    /// Returns the generator of payloads of all workers.
    fn motif(&self, payload: Payload, longest: usize) -> Motif {
        Motif::new(payload, longest, &mut self.rng(0, 2))
    }
}

/// The nodes.
pub struct Nodes {
    loaded: Loaded,
    motif: Motif,
    data: Vec<u8>,
}

impl Nodes {
    /// Returns the nodes of a graph.
    pub fn new(loaded: Loaded) -> Self {
        Self {
            motif: loaded.motif(loaded.spec.new_node, MAX_NODE_BYTES),
            loaded,
            data: Vec::new(),
        }
    }

    /// Returns the properties of a node.
    pub fn get(&mut self, id: u64) -> NodeData<'_> {
        let mut rng = self.loaded.rng(id, 0);
        self.motif.fill(&mut rng, &mut self.data);
        NodeData {
            node_type: NODE_TYPE,
            version: 1,
            time: self.loaded.now_ms / 1000,
            data: &self.data,
        }
    }
}

/// A link that is loaded.
#[derive(Clone, Copy, Debug)]
pub struct NextLink {
    /// Id of the node.
    pub id1: u64,
    /// Number of the type.
    pub link_type: u8,
    /// Number of links of this node and type before this one.
    number: u64,
    /// Number of links of this node and type.
    all: u64,
}

/// The links of some nodes, in the order of the nodes.
pub struct LinksOf {
    loaded: Loaded,
    links: Arc<Links>,
    end: u64,
    next: NextLink,
    rng: Xoshiro256PlusPlus,
    motif: Motif,
    data: Vec<u8>,
    lists: u64,
}

impl LinksOf {
    /// Returns the links of nodes.
    pub fn new(loaded: Loaded, links: Arc<Links>, ids: Range<u64>) -> Self {
        let mut own = Self {
            end: ids.end,
            next: NextLink {
                id1: ids.start,
                link_type: 0,
                number: 0,
                all: 0,
            },
            rng: loaded.rng(ids.start, 1),
            motif: loaded.motif(loaded.spec.new_link, MAX_LINK_BYTES),
            links,
            loaded,
            data: Vec::new(),
            lists: 0,
        };
        own.next.all = own.count();
        own
    }

    /// Returns the number of links of the next node and type.
    fn count(&mut self) -> u64 {
        let NextLink { id1, link_type, .. } = self.next;
        if id1 >= self.end {
            return 0;
        }
        let all = self.links.of(id1, u64::from(link_type));
        self.lists += u64::from(all > 0);
        all
    }

    /// Returns the number of pairs of a node and a type that had links so far.
    pub fn lists(&self) -> u64 {
        self.lists
    }

    /// Returns the next link. Call [`LinksOf::get`] with it before the next call.
    pub fn next_link(&mut self) -> Option<NextLink> {
        while self.next.number == self.next.all {
            if self.next.id1 >= self.end {
                return None;
            }
            self.next.link_type += 1;
            if u64::from(self.next.link_type) == self.loaded.spec.link_types {
                self.next.link_type = 0;
                self.next.id1 += 1;
                self.rng = self.loaded.rng(self.next.id1, 1);
            }
            self.next.number = 0;
            self.next.all = self.count();
        }
        let link = self.next;
        self.next.number += 1;
        Some(link)
    }

    /// Returns the properties of a link.
    pub fn get(&mut self, link: &NextLink) -> Assoc<'_> {
        self.motif.fill(&mut self.rng, &mut self.data);
        let id2 = match self.loaded.spec.random_id2 {
            0 => link.id1 + link.number,
            bound => self.rng.random_range(0..bound),
        };
        let age = self.rng.random_range(1..=AGE_MS);
        Assoc {
            id2,
            time: self.loaded.now_ms.saturating_sub(age),
            version: 0,
            visible: true,
            target: None,
            data: &self.data,
        }
    }
}
