//! Operations on one node and its associations: their encoding, their effect, and their results.
//!
//! An operation is encoded, so that it can be sent to the machine of its node. Its result is encoded, too. Numbers are
//! little-endian.

use farm_core::object::FatPointer;

use crate::assoc::Assoc;
use crate::error::GraphError;
use crate::list::{List, Put, TimeBounds};
use crate::node::{Header, NodeData};
use crate::page::{HEADER_BYTES, Page};

/// An operation on a node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Op<'a> {
    /// Returns the node.
    GetNode,
    /// Adds a node with room for `lists` lists. It does not exist yet if it has no properties. Returns its pointer.
    AddNode {
        id: u64,
        lists: u8,
        new: Option<NodeData<'a>>,
    },
    /// Sets the properties of a node that exists. Returns whether it does.
    SetNode(NodeData<'a>),
    /// Sets the properties of a node that does not exist, so that it exists. Returns whether it did not.
    RestoreNode(NodeData<'a>),
    /// Deletes the node. Returns whether it existed.
    DeleteNode,
    /// Adds or replaces an association.
    Put(PutOp<'a>),
    /// Hides an association, or removes it. Returns whether it was visible, or existed.
    Delete {
        assoc_type: u32,
        id2: u64,
        now: u64,
        removes: bool,
    },
    /// Moves a visible association to the list of another type. Returns whether there was one.
    ChangeType(ChangeOp),
    /// Returns the associations with these ids within the bounds, including hidden ones. The ids have 8 bytes each.
    Get {
        assoc_type: u32,
        bounds: TimeBounds,
        ids: &'a [u8],
    },
    /// Returns the number of visible associations.
    Count { assoc_type: u32 },
    /// Returns visible associations within the bounds, the newest first.
    Range(RangeOp),
}

impl Op<'_> {
    /// Returns whether the operation changes nothing.
    pub(crate) fn only_reads(&self) -> bool {
        matches!(
            self,
            Op::GetNode | Op::Get { .. } | Op::Count { .. } | Op::Range(_)
        )
    }
}

/// See [`Op::Put`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PutOp<'a> {
    pub(crate) assoc_type: u32,
    pub(crate) assoc: Assoc<'a>,
    pub(crate) now: u64,
    /// Whether the list may contain at most one visible association.
    pub(crate) unique: bool,
    /// Whether the node need not exist.
    pub(crate) dangling: bool,
}

/// See [`Op::ChangeType`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ChangeOp {
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) id2: u64,
    pub(crate) now: u64,
    /// Whether the list of the new type may contain at most one visible association.
    pub(crate) unique: bool,
}

/// See [`Op::Range`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RangeOp {
    pub(crate) assoc_type: u32,
    pub(crate) bounds: TimeBounds,
    /// Number of associations to skip.
    pub(crate) offset: u64,
    /// Maximum number of associations.
    pub(crate) limit: u64,
}

impl RangeOp {
    pub(crate) fn new(assoc_type: u32, range: Range) -> Self {
        Self {
            assoc_type,
            bounds: range.bounds.possible(),
            offset: range.offset,
            limit: range.limit,
        }
    }
}

/// The result of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outcome<'a> {
    Node(Option<Node<'a>>),
    Added(NewNode),
    Put(Put),
    Changed(bool),
    Count(Count),
    Assocs(Assocs<'a>),
}

/// A node, as [`crate::tx::obj_get`] returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node<'a> {
    /// Id of the node.
    pub id: u64,
    /// The properties.
    pub data: NodeData<'a>,
}

/// A new node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewNode {
    /// Id of the node.
    pub id: u64,
    /// Name of the node, once the transaction has committed.
    pub node: FatPointer,
}

/// What happens to an association that is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// The association is hidden: lists and counts do not contain it any more, [`crate::tx::assoc_get`] still returns it.
    Hide,
    /// The association is removed.
    Remove,
}

/// Which associations [`crate::tx::assoc_range`] returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The times.
    pub bounds: TimeBounds,
    /// Number of associations to skip, from the newest one.
    pub offset: u64,
    /// Maximum number of associations.
    pub limit: u64,
}

impl Range {
    /// Returns the range of the newest associations.
    pub fn newest(limit: u64) -> Self {
        Self {
            bounds: TimeBounds::default(),
            offset: 0,
            limit,
        }
    }
}

/// The number of visible associations of a type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Number of visible associations.
    pub count: u32,
    /// Time of the last change of the number, 0 if it never changed.
    pub time: u64,
    /// Number of changes of the number.
    pub version: u64,
}

/// A list of associations.
#[derive(Clone, Copy)]
pub struct Assocs<'a> {
    page: Page<'a>,
    /// Offset of the first one in the page.
    at: usize,
    count: usize,
}

impl std::fmt::Debug for Assocs<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<'a> Assocs<'a> {
    /// Returns the number of associations.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the associations, the newest first.
    #[inline]
    pub fn iter(self) -> impl Iterator<Item = Assoc<'a>> {
        let (page, mut at) = (self.page, self.at);
        // The list was checked when it was decoded.
        (0..self.count).map_while(move |_| {
            let record = page.record(at).ok()?;
            at = record.end();
            Assoc::decode(&record).ok()
        })
    }

    /// A list without associations.
    pub(crate) const EMPTY: Assocs<'static> = Assocs {
        page: Page::EMPTY,
        at: HEADER_BYTES,
        count: 0,
    };

    /// Checks a list that consists of all records of a page.
    pub(crate) fn of_page(page: Page<'a>) -> Result<Self, GraphError> {
        for record in page.records() {
            Assoc::decode(&record?)?;
        }
        Ok(Self {
            page,
            at: HEADER_BYTES,
            count: page.count(),
        })
    }

    /// Returns the range of a list whose first page this is, or `None` if the range may continue on another page.
    pub(crate) fn of_first_page(
        page: Page<'a>,
        range: &RangeOp,
    ) -> Result<Option<Self>, GraphError> {
        let (mut at, mut count, mut skipped) = (HEADER_BYTES, 0, 0);
        let found = |at, count| Ok(Some(Self { page, at, count }));
        for record in page.records() {
            if count as u64 == range.limit {
                return found(at, count);
            }
            let record = record?;
            let assoc = Assoc::decode(&record)?;
            if !assoc.visible || assoc.time < range.bounds.min {
                return found(at, count);
            }
            if assoc.time > range.bounds.max || skipped < range.offset {
                skipped += u64::from(assoc.time <= range.bounds.max);
                at = record.end();
                continue;
            }
            count += 1;
        }
        match count as u64 == range.limit || !page.has_more() {
            true => found(at, count),
            false => Ok(None),
        }
    }
}

impl Count {
    pub(crate) fn of(list: &List) -> Self {
        Self {
            count: list.count,
            time: list.time,
            version: list.version,
        }
    }
}

impl<'a> Node<'a> {
    /// Returns the node with this header and data.
    pub(crate) fn of(header: &Header, data: &'a [u8]) -> Self {
        Self {
            id: header.id,
            data: NodeData {
                node_type: header.node_type,
                version: header.version,
                time: header.time,
                data,
            },
        }
    }
}
