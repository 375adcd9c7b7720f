//! One client of LinkBench: the requests that it makes, and the data that they write. It does not depend on the store
//! that performs them.

use std::sync::Arc;

use farm_graph::tx::Range;
use farm_graph::{Assoc, MAX_TIME, NodeData, TimeBounds};
use rand::RngCore;
use rand_xoshiro::Xoshiro256PlusPlus;

use super::LinkSpec;
use super::loaded::{NODE_TYPE, link_type};
use super::payload::Motif;
use super::requests::{Kind, LongList, LongLists, Request, Requests};
use super::spec::{MAX_LINK_BYTES, MAX_NODE_BYTES};

/// A request, with the latest time of the links that a request for older links asks for.
#[derive(Clone, Copy, Debug)]
pub struct Drawn {
    /// The request.
    pub request: Request,
    /// The time.
    pub until: Option<u64>,
}

/// A client.
pub struct Client {
    spec: Arc<LinkSpec>,
    requests: Requests,
    range_limit: u64,
    rng: Xoshiro256PlusPlus,
    new_link: Motif,
    updated_link: Motif,
    new_node: Motif,
    updated_node: Motif,
    long_lists: LongLists,
    data: Vec<u8>,
    ids: Vec<u64>,
}

impl Client {
    /// Creates a client. A request for a list returns at most `range_limit` links.
    pub fn new(
        spec: Arc<LinkSpec>,
        requests: Requests,
        range_limit: u64,
        mut rng: Xoshiro256PlusPlus,
    ) -> Self {
        Self {
            new_link: Motif::new(spec.new_link, MAX_LINK_BYTES, &mut rng),
            updated_link: Motif::new(spec.updated_link, MAX_LINK_BYTES, &mut rng),
            new_node: Motif::new(spec.new_node, MAX_NODE_BYTES, &mut rng),
            updated_node: Motif::new(spec.updated_node, MAX_NODE_BYTES, &mut rng),
            spec,
            requests,
            range_limit,
            rng,
            long_lists: LongLists::default(),
            data: Vec::new(),
            ids: Vec::new(),
        }
    }

    /// Returns whether the oddities of the reference are reproduced.
    #[inline]
    pub fn compat(&self) -> bool {
        self.spec.compat
    }

    /// Draws the next request.
    #[inline]
    pub fn draw(&mut self) -> Drawn {
        let mut request = self.requests.next(&mut self.rng);
        let mut until = None;
        if request.older
            && let Some(list) = self.long_lists.draw(&mut self.rng)
        {
            (request.id1, request.link_type) = (list.id1, list.link_type);
            until = Some(list.last);
        }
        Drawn { request, until }
    }

    /// Returns which links a request for a list asks for.
    #[inline]
    pub fn range(&mut self, drawn: &Drawn, now_ms: u64) -> Range {
        let bounds = match (drawn.request.kind, drawn.until) {
            (Kind::GetTimeRange, _) => {
                let older = self.rng.next_u64() >> 33;
                TimeBounds {
                    min: now_ms.saturating_sub(2 * older),
                    max: now_ms.saturating_sub(older),
                }
            }
            (_, until) => TimeBounds {
                min: 0,
                max: until.unwrap_or(MAX_TIME),
            },
        };
        Range {
            bounds,
            // The oldest link of the part that was read before is in this part, too.
            offset: u64::from(drawn.until.is_some()),
            limit: self.range_limit,
        }
    }

    /// Remembers a list of which only a part was read: one that has returned as many links as it may.
    #[inline]
    pub fn remember(&mut self, drawn: &Drawn, links: usize, last: impl FnOnce() -> Option<u64>) {
        let request = &drawn.request;
        if links as u64 == self.range_limit
            && request.kind == Kind::GetList
            && let Some(last) = last()
        {
            self.long_lists.put(LongList {
                id1: request.id1,
                link_type: request.link_type,
                last,
            });
        }
    }

    /// Draws the ids of the other nodes of a [`Kind::Multiget`].
    pub fn ids(&mut self, request: &Request) -> &[u64] {
        self.requests.ids(request, &mut self.ids);
        &self.ids
    }

    /// Returns the type to which a [`Kind::ChangeType`] moves a link.
    pub fn other_type(&self, request: &Request) -> u32 {
        let next = (u64::from(request.link_type) + 1) % self.spec.link_types;
        link_type(next as u8)
    }

    /// Returns the link that a request writes, with new data.
    pub fn link(&mut self, request: &Request, now_ms: u64) -> Assoc<'_> {
        let motif = match request.kind {
            Kind::AddLink => &self.new_link,
            _ => &self.updated_link,
        };
        motif.fill(&mut self.rng, &mut self.data);
        Assoc {
            id2: request.id2,
            time: now_ms,
            version: 0,
            visible: true,
            target: None,
            data: &self.data,
        }
    }

    /// Returns the properties that a request gives to a node, with new data.
    pub fn node(&mut self, request: &Request, now_ms: u64) -> NodeData<'_> {
        let (motif, version) = match request.kind {
            Kind::AddNode => (&self.new_node, 1),
            _ => (&self.updated_node, 2),
        };
        motif.fill(&mut self.rng, &mut self.data);
        NodeData {
            node_type: NODE_TYPE,
            version,
            time: now_ms / 1000,
            data: &self.data,
        }
    }
}
