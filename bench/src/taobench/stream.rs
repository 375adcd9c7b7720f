//! The requests of one client, and the edges that it knows.

use std::sync::Arc;

use farm_core::object::FatPointer;
use rand::{Rng, RngCore};

use super::edges::{Edge, EdgeType, Keys, shard_of};
use super::workload::{Choice, Kind, Operation, Workload};

/// The least time of a request. Loaded objects and edges have smaller ones.
pub const FIRST_TIME: u64 = 1 << 44;

/// Bits of a time that contain the number of the worker.
const WORKER_BITS: u32 = 16;

/// An edge, and the name of its first object.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// The edge.
    pub edge: Edge,
    /// The name.
    pub node: FatPointer,
}

/// Edges in the order in which they were added, and by the shard of the first object.
#[derive(Clone, Debug, Default)]
pub struct Book {
    edges: Vec<Known>,
    /// The edges of each shard, with their numbers. They are copies, because most picks are in few shards, whose edges
    /// then stay in the processor's cache.
    shards: Vec<Vec<(u32, Known)>>,
}

impl Book {
    /// Adds an edge.
    pub fn push(&mut self, known: Known) {
        let shard = shard_of(known.edge.id1) as usize;
        if self.shards.len() <= shard {
            self.shards.resize(shard + 1, Vec::new());
        }
        self.shards[shard].push((self.edges.len() as u32, known));
        self.edges.push(known);
    }

    /// Returns all edges, in the order in which they were added.
    pub fn edges(&self) -> &[Known] {
        &self.edges
    }

    fn of_shard(&self, shard: u64) -> &[(u32, Known)] {
        self.shards.get(shard as usize).map_or(&[], Vec::as_slice)
    }
}

/// A known edge: one that was loaded, or one that this client has added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pick {
    /// Its number among the loaded edges.
    Loaded(u32),
    /// Its number among those of this client.
    Own(u32),
}

/// A read.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    /// What is read of the edge, or of its first object.
    pub kind: Kind,
    /// The edge.
    pub known: Known,
}

/// A write.
#[derive(Clone, Copy, Debug)]
pub struct Write {
    /// What is written.
    pub kind: Kind,
    /// The edge; or a new one, whose first object is the one that [`Kind::ObjAdd`] adds.
    pub edge: Edge,
    /// The known edge, and the name of its first object; `None` for a new edge or object.
    pub of: Option<(Pick, FatPointer)>,
    /// The time, different from those of all other writes.
    pub time: u64,
}

/// A request.
#[derive(Clone, Debug)]
pub enum Request {
    /// A read.
    Read(Read),
    /// A write.
    Write(Write),
    /// Reads at one moment.
    ReadTxn(Vec<Read>),
    /// Writes, all or none.
    WriteTxn(Vec<Write>),
}

impl Request {
    /// Returns the kind.
    pub fn kind(&self) -> Kind {
        match self {
            Request::Read(read) => read.kind,
            Request::Write(write) => write.kind,
            Request::ReadTxn(_) => Kind::ReadTxn,
            Request::WriteTxn(_) => Kind::WriteTxn,
        }
    }
}

/// The requests of one client.
#[derive(Debug)]
pub struct Stream {
    workload: Arc<Workload>,
    loaded: Arc<Book>,
    /// Edges that this client has added.
    pub own: Book,
    keys: Keys,
    keys_given: u64,
    worker: u64,
    times_given: u64,
    compat: bool,
}

impl Stream {
    /// Creates the requests of a worker, whose number is below 2^16 - 1. With `compat`, reads of ranges, counts and times
    /// read single edges, as in the reference.
    pub fn new(
        workload: Arc<Workload>,
        loaded: Arc<Book>,
        seed: u64,
        worker: u64,
        compat: bool,
    ) -> Self {
        Self {
            workload,
            loaded,
            own: Book::default(),
            keys: Keys::new(seed, worker + 1),
            keys_given: 0,
            worker,
            times_given: 0,
            compat,
        }
    }

    /// Returns the number of the worker that has given a time; `None` for the time of a loaded object or edge.
    pub fn worker_of(time: u64) -> Option<u64> {
        let given = time.checked_sub(FIRST_TIME)?;
        Some(given & ((1 << WORKER_BITS) - 1))
    }

    /// Draws a request.
    pub fn next(&mut self, rng: &mut impl RngCore) -> Request {
        let workload = Arc::clone(&self.workload);
        match workload.operations.draw(rng) {
            Operation::Read => Request::Read(self.read(&workload.reads, rng)),
            Operation::Write => Request::Write(self.write(&workload.writes, rng)),
            Operation::ReadTxn => {
                let size = workload.read_txn_sizes.draw(rng);
                let reads = (0..size).map(|_| self.read(&workload.reads_of_txns, rng));
                Request::ReadTxn(reads.collect())
            }
            Operation::WriteTxn => {
                let size = workload.write_txn_sizes.draw(rng);
                let writes = (0..size).map(|_| self.write(&workload.writes_of_txns, rng));
                Request::WriteTxn(writes.collect())
            }
        }
    }

    fn read(&mut self, kinds: &Choice<Kind>, rng: &mut impl RngCore) -> Read {
        let kind = match kinds.draw(rng) {
            Kind::EdgeRange | Kind::EdgeCount | Kind::EdgeTime if self.compat => Kind::EdgePoint,
            kind => kind,
        };
        Read {
            kind,
            known: self.pick(rng).1,
        }
    }

    fn write(&mut self, kinds: &Choice<Kind>, rng: &mut impl RngCore) -> Write {
        let kind = kinds.draw(rng);
        let (edge, of) = match kind {
            Kind::ObjAdd | Kind::EdgeAdd => (self.new_edge(rng), None),
            _ => {
                let (pick, known) = self.pick(rng);
                (known.edge, Some((pick, known.node)))
            }
        };
        let time = FIRST_TIME + (self.times_given << WORKER_BITS | self.worker);
        self.times_given += 1;
        Write {
            kind,
            edge,
            of,
            time,
        }
    }

    fn new_edge(&mut self, rng: &mut impl RngCore) -> Edge {
        let edge_type: EdgeType = self.workload.edge_types.draw(rng);
        let shards = [&self.workload.primary_shards, &self.workload.remote_shards];
        let [id1, id2] = shards.map(|shards| {
            let number = self.keys_given;
            self.keys_given += 1;
            self.keys.get(shards.draw(rng), number)
        });
        Edge {
            id1,
            id2,
            edge_type,
        }
    }

    /// Draws a known edge: a shard, and one of its edges.
    fn pick(&self, rng: &mut impl RngCore) -> (Pick, Known) {
        // Only a graph with few edges has shards without one.
        for _ in 0..100 {
            let shard = self.workload.primary_shards.draw(rng);
            let (loaded, own) = (self.loaded.of_shard(shard), self.own.of_shard(shard));
            if loaded.is_empty() && own.is_empty() {
                continue;
            }
            let at = rng.random_range(0..loaded.len() + own.len());
            return match loaded.get(at) {
                Some((number, known)) => (Pick::Loaded(*number), *known),
                None => {
                    let (number, known) = own[at - loaded.len()];
                    (Pick::Own(number), known)
                }
            };
        }
        let number = rng.random_range(0..self.loaded.edges.len());
        (Pick::Loaded(number as u32), self.loaded.edges[number])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashSet};

    use farm_core::ids::Address;
    use farm_core::object::Incarnation;

    use super::super::loaded::Loaded;
    use super::super::workload::Published;
    use super::*;
    use crate::ycsb::stream::worker_rng;

    const EDGES: u64 = 2000;

    fn stream(published: Published, compat: bool) -> Stream {
        let workload = Workload::parse("x.json", published.text().as_bytes()).unwrap();
        let workload = Arc::new(workload);
        let loaded = Loaded::new(Arc::clone(&workload), 4, EDGES);
        let mut book = Book::default();
        for number in 0..EDGES {
            book.push(Known {
                edge: loaded.get(number),
                node: FatPointer::new(Address::NULL, Incarnation(0)),
            });
        }
        Stream::new(workload, Arc::new(book), 4, 3, compat)
    }

    /// Compares counts with shares: no count differs from what is expected by five standard deviations.
    fn check<T: Copy + Ord + std::fmt::Debug>(counts: &BTreeMap<T, u64>, choice: &Choice<T>) {
        let all: u64 = counts.values().sum();
        for (value, share) in choice.shares() {
            let count = counts.get(&value).copied().unwrap_or(0) as f64;
            let expected = all as f64 * share;
            let deviation = (expected * (1.0 - share)).sqrt();
            assert!(
                (count - expected).abs() <= 5.0 * deviation,
                "{value:?}: {count} of {all}, expected {expected}"
            );
        }
    }

    #[test]
    fn requests_have_the_shares_of_the_files() {
        for published in [Published::Applications, Published::Overall] {
            let mut stream = stream(published, false);
            let mut rng = worker_rng(1, 0);
            let mut kinds: [BTreeMap<Kind, u64>; 4] = Default::default();
            let (mut sizes, mut times) = ([BTreeMap::new(), BTreeMap::new()], HashSet::new());
            let mut shards = BTreeMap::new();
            let mut keys = HashSet::new();
            let mut operations = [0_u64; 4];
            for _ in 0..150_000 {
                let request = stream.next(&mut rng);
                let (at, reads, writes) = match request {
                    Request::Read(read) => (0, vec![read], vec![]),
                    Request::Write(write) => (1, vec![], vec![write]),
                    Request::ReadTxn(reads) => (2, reads, vec![]),
                    Request::WriteTxn(writes) => (3, vec![], writes),
                };
                operations[at] += 1;
                let all = reads.iter().map(|read| read.kind);
                for kind in all.chain(writes.iter().map(|write| write.kind)) {
                    *kinds[at].entry(kind).or_default() += 1;
                }
                if at >= 2 {
                    *sizes[at - 2]
                        .entry((reads.len() + writes.len()) as u64)
                        .or_default() += 1;
                }
                for read in reads {
                    *shards.entry(shard_of(read.known.edge.id1)).or_default() += 1;
                }
                for write in writes {
                    assert!(times.insert(write.time) && Stream::worker_of(write.time) == Some(3));
                    if write.of.is_none() {
                        assert!(keys.insert(write.edge.id1) && keys.insert(write.edge.id2));
                    }
                }
            }
            let workload = Arc::clone(&stream.workload);
            for (at, (_, share)) in workload.operations.shares().enumerate() {
                let expected = 150_000.0 * share;
                let off = (operations[at] as f64 - expected).abs();
                assert!(off <= 5.0 * expected.sqrt(), "{operations:?}, {at}");
            }
            check(&kinds[0], &workload.reads);
            check(&kinds[1], &workload.writes);
            check(&kinds[2], &workload.reads_of_txns);
            check(&kinds[3], &workload.writes_of_txns);
            check(&sizes[0], &workload.read_txn_sizes);
            check(&sizes[1], &workload.write_txn_sizes);
            check(&shards, &workload.primary_shards);
        }
    }

    #[test]
    fn the_reference_reads_only_objects_and_single_edges() {
        let mut stream = stream(Published::Applications, true);
        let mut rng = worker_rng(1, 0);
        for _ in 0..5000 {
            if let Request::Read(read) = stream.next(&mut rng) {
                assert!(matches!(read.kind, Kind::ObjRead | Kind::EdgePoint));
            }
        }
    }

    #[test]
    fn own_edges_are_drawn_with_the_loaded_ones() {
        let mut stream = stream(Published::Applications, false);
        let mut rng = worker_rng(1, 0);
        let known = stream.loaded.edges[0];
        let edge = Edge {
            id1: stream.keys.get(0, 1 << 20),
            ..known.edge
        };
        for _ in 0..EDGES {
            stream.own.push(Known { edge, ..known });
        }
        let own = (0..1000).filter(|_| matches!(stream.pick(&mut rng).0, Pick::Own(_)));
        // 57.8 % of the picks are in shard 0, where nearly all edges are own ones.
        let own = own.count();
        assert!((500..620).contains(&own), "{own}");
    }
}
