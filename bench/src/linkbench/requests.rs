//! The requests of a client.

use std::sync::Arc;

use rand::{Rng, RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::degree::Links;
use super::shuffle::Shuffler;
use super::spec::{Access, LinkAccess, LinkSpec, Multiget};
use super::zipf::Zipf;
use crate::recorder::kinds;

/// Seeds of the permutations that map ranks to ids: of accesses to links that are not correlated with the out-degrees,
/// and of accesses to nodes.
const UNCORRELATED_SEED: i64 = 53_238_253_823_453;
const NODES_SEED: i64 = 4_766_565_305_853_767_165;

kinds! {
    /// The kinds of requests, with their names in the reports of the reference. The last two are of Tao alone.
    pub enum Kind {
        /// Adds a link, or replaces it.
        AddLink = "ADD_LINK",
        /// Hides a link.
        DeleteLink = "DELETE_LINK",
        /// Replaces a link, or adds it.
        UpdateLink = "UPDATE_LINK",
        /// Reads the number of links.
        CountLinks = "COUNT_LINK",
        /// Reads some links by their ids.
        Multiget = "MULTIGET_LINK",
        /// Reads the newest links.
        GetList = "GET_LINKS_LIST",
        /// Adds a node.
        AddNode = "ADD_NODE",
        /// Replaces the data of a node.
        UpdateNode = "UPDATE_NODE",
        /// Deletes a node.
        DeleteNode = "DELETE_NODE",
        /// Reads a node.
        GetNode = "GET_NODE",
        /// Reads the links of a range of times.
        GetTimeRange = "GET_LINKS_TIME_RANGE",
        /// Moves a link to another type.
        ChangeType = "CHANGE_LINK_TYPE",
    }
}

/// Shares of the kinds, in percent.
pub type Mix = Vec<(Kind, f64)>;

/// The mix of Tao (Bronson et al., ATC 2013): 99.8 percent of the requests read. The published shares of the writes add
/// up to 100.9 percent, and are scaled to 100.
pub fn tao_mix() -> Mix {
    let reads = [
        (Kind::GetList, 40.9),
        (Kind::GetNode, 28.9),
        (Kind::Multiget, 15.7),
        (Kind::CountLinks, 11.7),
        (Kind::GetTimeRange, 2.8),
    ];
    let writes = [
        (Kind::AddLink, 52.5),
        (Kind::UpdateNode, 20.7),
        (Kind::AddNode, 16.5),
        (Kind::DeleteLink, 8.3),
        (Kind::DeleteNode, 2.0),
        (Kind::ChangeType, 0.9),
    ];
    let written: f64 = writes.iter().map(|(_, share)| share).sum();
    let reads = reads.into_iter().map(|(kind, share)| (kind, share * 0.998));
    let writes = writes
        .into_iter()
        .map(move |(kind, share)| (kind, share / written * 0.2));
    reads.chain(writes).collect()
}

/// Returns the mix of the properties.
pub fn linkbench_mix(spec: &LinkSpec) -> Mix {
    // The order is that of `spec.mix`.
    Kind::ALL.into_iter().zip(spec.mix).collect()
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The kind.
    pub kind: Kind,
    /// Number of the link's type, from 0 on.
    pub link_type: u8,
    /// Whether a request for a list asks for older links, if the client knows a long list.
    pub older: bool,
    /// Id of the node.
    pub id1: u64,
    /// Id of the other node; for [`Kind::Multiget`], a seed from which [`Requests::ids`] draws the ids.
    pub id2: u64,
}

/// A distribution of ranks, and the permutation of the ranks.
#[derive(Clone, Debug)]
struct Chooser {
    n: u64,
    zipf: Option<Zipf>,
    shuffler: Arc<Shuffler>,
}

impl Chooser {
    fn new(n: u64, access: Access, shuffler: &Arc<Shuffler>) -> Self {
        let zipf = match access {
            Access::Zipf(shape) => Some(Zipf::new(n, shape)),
            Access::Uniform => None,
        };
        let shuffler = Arc::clone(shuffler);
        Self { n, zipf, shuffler }
    }

    #[inline]
    fn draw(&self, rng: &mut impl RngCore) -> u64 {
        let rank = match &self.zipf {
            Some(zipf) => zipf.rank(rng.random()),
            None => rng.random_range(0..self.n),
        };
        self.shuffler.permute(rank)
    }
}

#[derive(Clone, Debug)]
struct LinkChooser {
    correlated: Chooser,
    uncorrelated: Chooser,
    /// Share of the accesses that are not correlated.
    blend: f64,
}

impl LinkChooser {
    #[inline]
    fn draw(&self, rng: &mut impl RngCore) -> u64 {
        match rng.random::<f64>() < self.blend {
            true => self.uncorrelated.draw(rng),
            false => self.correlated.draw(rng),
        }
    }
}

/// The requests of one client.
#[derive(Clone, Debug)]
pub struct Requests {
    spec: LinkSpec,
    links: Arc<Links>,
    /// Kinds with the sums of the shares up to theirs.
    mix: Mix,
    link_reads: LinkChooser,
    link_writes: LinkChooser,
    node_reads: Chooser,
    node_updates: Chooser,
    node_deletes: Chooser,
    /// Number of this client, and number of all clients.
    client: (u64, u64),
}

impl Requests {
    /// Creates the requests of a client: its number, and the number of all clients.
    pub fn new(spec: &LinkSpec, links: Arc<Links>, mix: Mix, client: (u64, u64)) -> Self {
        let n = spec.nodes();
        let correlated = Arc::new(links.shuffler().clone());
        let [uncorrelated, nodes] =
            [UNCORRELATED_SEED, NODES_SEED].map(|seed| Arc::new(Shuffler::new(seed, n)));
        let of_links = |access: LinkAccess| LinkChooser {
            correlated: Chooser::new(n, access.correlated, &correlated),
            uncorrelated: Chooser::new(n, access.uncorrelated, &uncorrelated),
            blend: access.blend / 100.0,
        };
        let mut sum = 0.0;
        let mix = mix.into_iter().map(|(kind, share)| {
            sum += share;
            (kind, sum)
        });
        Self {
            links,
            mix: mix.collect(),
            link_reads: of_links(spec.link_reads),
            link_writes: of_links(spec.link_writes),
            node_reads: Chooser::new(n, spec.node_reads, &nodes),
            node_updates: Chooser::new(n, spec.node_updates, &nodes),
            node_deletes: Chooser::new(n, spec.node_deletes, &nodes),
            client,
            spec: spec.clone(),
        }
    }

    /// Returns the next request.
    #[inline]
    pub fn next(&self, rng: &mut impl RngCore) -> Request {
        let drawn = 100.0 * rng.random::<f64>();
        let found = self.mix.iter().find(|(_, sum)| drawn <= *sum);
        // The sum of all shares may be a bit less than 100.
        let last = self.mix.last().map_or(Kind::GetNode, |last| last.0);
        let kind = found.map_or(last, |found| found.0);
        let place = match kind {
            Kind::AddLink | Kind::UpdateLink | Kind::DeleteLink | Kind::ChangeType => {
                self.link_writes.draw(rng)
            }
            Kind::CountLinks | Kind::Multiget | Kind::GetList | Kind::GetTimeRange => {
                self.link_reads.draw(rng)
            }
            Kind::GetNode => self.node_reads.draw(rng),
            Kind::UpdateNode => self.node_updates.draw(rng),
            Kind::DeleteNode => self.node_deletes.draw(rng),
            Kind::AddNode => 0,
        };
        let mut request = Request {
            kind,
            link_type: 0,
            older: false,
            id1: self.spec.first_id + place,
            id2: 0,
        };
        if !matches!(
            kind,
            Kind::AddNode | Kind::UpdateNode | Kind::DeleteNode | Kind::GetNode
        ) {
            self.choose_link(rng, &mut request);
        }
        request
    }

    /// Chooses the type of a link and the other node.
    fn choose_link(&self, rng: &mut impl RngCore, request: &mut Request) {
        request.link_type = rng.random_range(0..self.spec.link_types) as u8;
        match request.kind {
            Kind::GetList => {
                request.older = rng.random::<f64>() * 100.0 < self.spec.history;
            }
            Kind::Multiget => request.id2 = rng.next_u64(),
            Kind::AddLink => request.id2 = self.id2(rng, request, 0.05),
            Kind::UpdateLink | Kind::DeleteLink | Kind::ChangeType => {
                request.id2 = self.id2(rng, request, 0.9);
            }
            _ => {}
        }
    }

    /// Returns the number of ids from which one is drawn, so that a loaded link has it with probability `share`.
    fn range(&self, request: &Request, share: f64) -> u64 {
        let loaded = self.links.of(request.id1, u64::from(request.link_type));
        ((loaded as f64 / share).ceil() as u64).max(1)
    }

    fn id2(&self, rng: &mut impl RngCore, request: &Request, share: f64) -> u64 {
        if self.spec.random_id2 > 0 {
            return self.own(rng.random_range(0..self.spec.random_id2));
        }
        let range = self.range(request, share);
        self.own(request.id1 + rng.random_range(0..range))
    }

    /// Returns the next id that this client may change, if clients change different links.
    fn own(&self, id2: u64) -> u64 {
        let (client, clients) = self.client;
        match self.spec.disjoint {
            true => id2 - id2 % clients + client,
            false => id2,
        }
    }

    /// Draws the different ids of a multiget.
    pub fn ids(&self, request: &Request, ids: &mut Vec<u64>) {
        ids.clear();
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(request.id2);
        let size = multiget_size(&self.spec.multiget, self.spec.compat, &mut rng);
        let range = self.range(request, 0.5);
        if self.spec.random_id2 == 0 && range <= size {
            ids.extend(request.id1..request.id1 + size);
            return;
        }
        for _ in 0..size {
            for _ in 0..100 {
                let id2 = match self.spec.random_id2 {
                    0 => request.id1 + rng.random_range(0..range),
                    bound => rng.random_range(0..bound),
                };
                if !ids.contains(&id2) {
                    ids.push(id2);
                    break;
                }
            }
        }
    }
}

/// Draws the number of ids of a multiget. The reference rounds up, so that it draws one more than the distribution.
fn multiget_size(multiget: &Multiget, compat: bool, rng: &mut impl RngCore) -> u64 {
    let failures = (1.0 - rng.random::<f64>()).ln() / (1.0 - multiget.probability).ln();
    let failures = if compat {
        failures.ceil()
    } else {
        failures.floor()
    };
    (multiget.min + failures as u64).min(multiget.end - 1)
}

/// The list requests of a client that ask for older links need lists that did not fit into one answer. The client
/// remembers the last ones.
#[derive(Clone, Debug, Default)]
pub struct LongLists {
    all: Vec<LongList>,
    next: usize,
}

/// A list of which only the newest links were read.
#[derive(Clone, Copy, Debug)]
pub struct LongList {
    /// Id of the node.
    pub id1: u64,
    /// Number of the type.
    pub link_type: u8,
    /// Time of the oldest link that was read.
    pub last: u64,
}

impl LongLists {
    /// Number of lists that a client remembers.
    const MOST: usize = 2048;

    /// Remembers a list.
    pub fn put(&mut self, list: LongList) {
        let same = |it: &LongList| it.id1 == list.id1 && it.link_type == list.link_type;
        match self.all.iter().position(same) {
            Some(at) => self.all[at] = list,
            None if self.all.len() < Self::MOST => self.all.push(list),
            None => {
                self.all[self.next] = list;
                self.next = (self.next + 1) % Self::MOST;
            }
        }
    }

    /// Returns one of the lists.
    pub fn draw(&self, rng: &mut impl RngCore) -> Option<LongList> {
        let at = (!self.all.is_empty()).then(|| rng.random_range(0..self.all.len()));
        at.map(|at| self.all[at])
    }
}

#[cfg(test)]
mod tests;
