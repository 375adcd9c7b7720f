//! Several reads at the same time: what is read, and the results.

use farm_core::object::FatPointer;
use farm_core::worker::{BorrowCont, Borrowed};
use farm_txn::TxHandle;

use crate::GraphError;
use crate::edit::Work;
use crate::list::TimeBounds;
use crate::op::{Assocs, Count, Node, Op, Outcome, Range, RangeOp};
use crate::wire::Reply;

/// What is read of a node.
#[derive(Clone, Copy, Debug)]
pub enum Read<'a> {
    /// The node: see [`crate::tx::obj_get`].
    Node,
    /// The number of associations of a type: see [`crate::tx::assoc_count`].
    Count(u32),
    /// The associations of a type to some nodes, in some range of times: see [`crate::tx::assoc_get`].
    Assocs(u32, &'a [u64], TimeBounds),
    /// The newest associations of a type: see [`crate::tx::assoc_range`].
    Range(u32, Range),
}

/// What was read of a node.
#[derive(Clone, Copy, Debug)]
pub enum Found<'a> {
    /// The result of [`Read::Node`]: `None` if the node does not exist.
    Node(Option<Node<'a>>),
    /// The result of [`Read::Count`].
    Count(Count),
    /// The result of [`Read::Assocs`] and [`Read::Range`].
    Assocs(Assocs<'a>),
}

/// The results of several reads.
#[derive(Clone, Copy)]
pub struct Results<'a>(&'a [Item]);

impl std::fmt::Debug for Results<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<'a> Results<'a> {
    /// Returns the number of reads.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether nothing was read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the results, in the order of the reads.
    pub fn iter(self) -> impl Iterator<Item = Found<'a>> {
        self.0
            .iter()
            .map(|item| match Outcome::decode(item.reply.bytes()) {
                Ok(Outcome::Node(node)) => Found::Node(node),
                Ok(Outcome::Count(count)) => Found::Count(count),
                Ok(Outcome::Assocs(assocs)) => Found::Assocs(assocs),
                other => unreachable!("a read of this worker had the result {other:?}"),
            })
    }
}

/// The result of several reads.
#[derive(Debug)]
pub enum FoundAll {}

impl Borrowed for FoundAll {
    type Of<'a> = Result<Results<'a>, &'a GraphError>;
}

/// The continuation that receives the results of several reads, which are valid only during the call.
pub type ResultsCont = BorrowCont<FoundAll>;

/// A read.
pub(crate) struct Item {
    pub(crate) node: FatPointer,
    /// The place of the encoded operation.
    pub(crate) body: std::ops::Range<usize>,
    /// The type of the associations.
    pub(crate) assoc_type: Option<u32>,
    /// The same, if the list is read.
    pub(crate) list: Option<u32>,
    /// The first page of the list, if it is in the cache.
    pub(crate) head: Option<FatPointer>,
    pub(crate) done: bool,
    pub(crate) reply: Reply,
}

/// Bytes of most encoded reads.
const OP_BYTES: usize = 32;

/// Several reads in flight.
pub(crate) struct Many {
    pub(crate) tx: TxHandle,
    pub(crate) reads: Encoded,
    pub(crate) work: Work,
    /// Number of objects that are being read.
    pub(crate) fetching: usize,
    pub(crate) failed: Option<GraphError>,
    pub(crate) cont: ResultsCont,
}

/// Several reads.
pub(crate) struct Encoded {
    pub(crate) items: Vec<Item>,
    /// The encoded operations.
    pub(crate) bodies: Vec<u8>,
}

impl Encoded {
    /// Encodes the reads.
    pub(crate) fn new(reads: &[(FatPointer, Read<'_>)]) -> Self {
        let mut bodies = Vec::with_capacity(reads.len() * OP_BYTES);
        let mut ids = Vec::new();
        let items = reads.iter().map(|(node, read)| {
            let from = bodies.len();
            let (assoc_type, op) = match *read {
                Read::Node => (None, Op::GetNode),
                Read::Count(assoc_type) => (Some(assoc_type), Op::Count { assoc_type }),
                Read::Assocs(assoc_type, wanted, bounds) => {
                    ids.clear();
                    ids.extend(wanted.iter().flat_map(|id| id.to_le_bytes()));
                    let op = Op::Get {
                        assoc_type,
                        bounds: bounds.possible(),
                        ids: &ids,
                    };
                    (Some(assoc_type), op)
                }
                Read::Range(assoc_type, range) => {
                    (Some(assoc_type), Op::Range(RangeOp::new(assoc_type, range)))
                }
            };
            op.encode(&mut bodies);
            Item {
                node: *node,
                body: from..bodies.len(),
                assoc_type,
                list: assoc_type.filter(|_| !matches!(op, Op::Count { .. })),
                head: None,
                done: false,
                reply: Reply::default(),
            }
        });
        Self {
            items: items.collect(),
            bodies,
        }
    }
}

impl<'a> Results<'a> {
    pub(crate) fn of(items: &'a [Item]) -> Self {
        Self(items)
    }
}
