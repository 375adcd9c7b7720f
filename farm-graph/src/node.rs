//! Nodes: the object that a node's fat pointer names.
//!
//! ```text
//!  0       4       5       6       8         16      24     32           36  40
//!  ┌───────┬───────┬───────┬───────┬─────────┬───────┬──────┬────────────┬───┬────────┬────────┬──────── ─
//!  │ type  │ flags │ room  │ lists │ version │ time  │ id   │ data bytes │ 0 │ list 0 │ list 1 │ data
//!  └───────┴───────┴───────┴───────┴─────────┴───────┴──────┴────────────┴───┴────────┴────────┴──────── ─
//! ```
//!
//! - The table of lists has room for a fixed number of lists, of 80 bytes each: the type (4) and [`List`]. If a node
//!   has more types of associations, all its lists are in a tree by type ([`crate::tree`]), and the table contains the
//!   tree's root (16 bytes) and height (1).
//! - Data that has no room in the node is in an object of its own, and the node contains the pointer to it. So the node
//!   keeps its name when its data grows.
//! - A deleted node keeps its object while it has lists: associations outlive their nodes, as in Tao and LinkBench.

#[cfg(feature = "mutants")]
mod faults;

use std::ops::ControlFlow;

use farm_core::marks::mark;
use farm_core::mutants;
use farm_core::object::FatPointer;

use crate::bytes::number;
use crate::bytes::{POINTER_BYTES, pointer, pointer_bytes};
use crate::edit::{Edit, EditError};
use crate::list::{LIST_BYTES, List};
use crate::tree::{Limits, Tree, Wanted};
use crate::{GraphError, MAX_NODE_BYTES};

/// Bytes before the table of lists.
const HEADER_BYTES: usize = 40;
/// Bytes of a list in the table.
const ENTRY_BYTES: usize = 4 + LIST_BYTES;
/// Longer data is not stored in the node, because each write of an association writes the node, too.
const MAX_INLINE_BYTES: usize = 1024;
/// Bytes before the data in an object of its own: type, length, version, time and id of the node.
const SPILL_HEADER_BYTES: usize = 32;

/// The flag of a node that was not deleted.
const EXISTS: u8 = 1;
/// The flag of a node whose data is in an object of its own.
const SPILLED: u8 = 2;
/// The flag of a node whose lists are in a tree.
const IN_TREE: u8 = 4;
/// The flag of a node for whose properties the object with the data has no room: the data has the greatest length.
const BARE: u8 = 8;

/// The properties of a node that an update sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeData<'a> {
    /// Type of the node.
    pub node_type: u32,
    /// Version, which the application chooses.
    pub version: u64,
    /// Time, whose unit the application chooses.
    pub time: u64,
    /// Data of the application.
    pub data: &'a [u8],
}

/// The header of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) node_type: u32,
    flags: u8,
    /// Number of lists for which the table has room.
    room: u8,
    /// Number of lists in the table.
    lists: u16,
    pub(crate) version: u64,
    pub(crate) time: u64,
    pub(crate) id: u64,
    data_bytes: u32,
}

impl Header {
    pub(crate) fn decode(payload: &[u8]) -> Result<Self, GraphError> {
        let header = Self {
            node_type: number(payload.get(..HEADER_BYTES).ok_or_else(damaged)?, 0, 4) as u32,
            flags: payload[4],
            room: payload[5],
            lists: number(payload, 6, 2) as u16,
            version: number(payload, 8, 8),
            time: number(payload, 16, 8),
            id: number(payload, 24, 8),
            data_bytes: number(payload, 32, 4) as u32,
        };
        let fits = header.data_at() + POINTER_BYTES <= payload.len()
            && header.lists <= header.room.into()
            && header.room > 0
            && (header.is_spilled() || header.data_at() + header.bytes() <= payload.len());
        fits.then_some(header).ok_or_else(damaged)
    }

    fn encode(&self, payload: &mut [u8]) {
        payload[..4].copy_from_slice(&self.node_type.to_le_bytes());
        (payload[4], payload[5]) = (self.flags, self.room);
        payload[6..8].copy_from_slice(&self.lists.to_le_bytes());
        payload[8..16].copy_from_slice(&self.version.to_le_bytes());
        payload[16..24].copy_from_slice(&self.time.to_le_bytes());
        payload[24..32].copy_from_slice(&self.id.to_le_bytes());
        payload[32..36].copy_from_slice(&self.data_bytes.to_le_bytes());
    }

    /// Returns whether the node was not deleted.
    pub(crate) fn exists(&self) -> bool {
        self.flags & EXISTS != 0
    }

    /// Returns whether the data is in an object of its own.
    pub(crate) fn is_spilled(&self) -> bool {
        self.flags & SPILLED != 0
    }

    /// Returns whether the object with the data has no room for the properties.
    pub(crate) fn is_bare(&self) -> bool {
        self.flags & BARE != 0
    }

    /// Returns the data of a node that contains it.
    pub(crate) fn inline<'a>(&self, payload: &'a [u8]) -> Result<&'a [u8], GraphError> {
        let data = payload.get(self.data_at()..self.data_at() + self.bytes());
        data.ok_or_else(damaged)
    }

    /// Returns whether the lists are in a tree.
    pub(crate) fn is_in_tree(&self) -> bool {
        self.flags & IN_TREE != 0
    }

    /// Returns the length of the data.
    pub(crate) fn bytes(&self) -> usize {
        self.data_bytes as usize
    }

    /// Returns the offset of the data, or of the pointer to it.
    fn data_at(&self) -> usize {
        HEADER_BYTES + usize::from(self.room) * ENTRY_BYTES
    }
}

/// Creates a node with room for `room` lists in its table.
pub(crate) fn create(
    edit: &mut Edit<'_>,
    id: u64,
    room: u8,
    new: Option<&NodeData<'_>>,
) -> Result<FatPointer, EditError> {
    let inline = new.map_or(0, |new| new.data.len());
    let inline = if inline > MAX_INLINE_BYTES { 0 } else { inline };
    let exists = new.is_none() && mutants::is_on("reserved node exists");
    let header = Header {
        node_type: 0,
        flags: if exists { EXISTS } else { 0 },
        room: room.max(1),
        lists: 0,
        version: 0,
        time: 0,
        id,
        data_bytes: 0,
    };
    let node = edit.create(header.data_at() + inline.max(POINTER_BYTES))?;
    header.encode(edit.write(node)?);
    if let Some(new) = new {
        set(edit, node, new)?;
    }
    Ok(node)
}

/// Returns the header of a node.
pub(crate) fn header(edit: &Edit<'_>, node: FatPointer) -> Result<Header, EditError> {
    Ok(Header::decode(edit.read(node)?)?)
}

/// Returns the data of a node.
pub(crate) fn data<'e>(edit: &'e Edit<'_>, node: FatPointer) -> Result<&'e [u8], EditError> {
    let payload = edit.read(node)?;
    let header = Header::decode(payload)?;
    Ok(match spill(payload, &header)? {
        Some(spilled) if header.is_bare() => edit
            .read(spilled)?
            .get(..header.bytes())
            .ok_or_else(damaged)?,
        Some(spilled) => spilled_node(edit.read(spilled)?)?.1.data,
        None => header.inline(payload)?,
    })
}

/// Returns the id and the properties of a node from the object with its data.
pub(crate) fn spilled_node(payload: &[u8]) -> Result<(u64, NodeData<'_>), GraphError> {
    let (header, data) = payload
        .split_at_checked(SPILL_HEADER_BYTES)
        .ok_or_else(damaged)?;
    let bytes = number(header, 4, 4) as usize;
    let properties = NodeData {
        node_type: number(header, 0, 4) as u32,
        version: number(header, 8, 8),
        time: number(header, 16, 8),
        data: data.get(..bytes).ok_or_else(damaged)?,
    };
    Ok((number(header, 24, 8), properties))
}

/// Stores the properties of a node in the object of its data.
fn encode_spilled(payload: &mut [u8], id: u64, new: &NodeData<'_>) {
    payload[..4].copy_from_slice(&new.node_type.to_le_bytes());
    payload[4..8].copy_from_slice(&(new.data.len() as u32).to_le_bytes());
    payload[8..16].copy_from_slice(&new.version.to_le_bytes());
    payload[16..24].copy_from_slice(&new.time.to_le_bytes());
    payload[24..32].copy_from_slice(&id.to_le_bytes());
    payload[SPILL_HEADER_BYTES..][..new.data.len()].copy_from_slice(new.data);
}

/// Returns the pointer to the data of a node, if the data is in an object of its own.
pub(crate) fn spill(payload: &[u8], header: &Header) -> Result<Option<FatPointer>, GraphError> {
    let at = header.data_at();
    let spilled = header.is_spilled();
    spilled
        .then(|| pointer(&payload[at..at + POINTER_BYTES]))
        .transpose()
}

/// Sets type, version, time and data of a node, which exists afterwards.
pub(crate) fn set(
    edit: &mut Edit<'_>,
    node: FatPointer,
    new: &NodeData<'_>,
) -> Result<(), EditError> {
    let payload = edit.read(node)?;
    let mut header = Header::decode(payload)?;
    let old = spill(payload, &header)?;
    let (at, end) = (header.data_at(), payload.len());
    let bare = SPILL_HEADER_BYTES + new.data.len() > MAX_NODE_BYTES;
    let spilled = match at + new.data.len() <= end {
        true => None,
        // An object of its own for each version of the data: a reader that has its pointer reads that version, with all
        // properties of the node, or detects that it was freed.
        false => Some(edit.create(if bare { 0 } else { SPILL_HEADER_BYTES } + new.data.len())?),
    };
    if let Some(old) = old
        && !mutants::is_on("old data of a node not freed")
    {
        edit.free(old)?;
    }
    header.node_type = new.node_type;
    header.version = new.version;
    header.time = new.time;
    header.data_bytes = new.data.len() as u32;
    header.flags = header.flags & !(SPILLED | BARE) | EXISTS;
    if let Some(spilled) = spilled {
        mark("graph: data outside of its node");
        header.flags |= SPILLED;
        if bare {
            header.flags |= BARE;
            edit.write(spilled)?[..new.data.len()].copy_from_slice(new.data);
        } else {
            encode_spilled(edit.write(spilled)?, header.id, new);
        }
        edit.write(node)?[at..at + POINTER_BYTES].copy_from_slice(&pointer_bytes(spilled));
    } else {
        edit.write(node)?[at..at + new.data.len()].copy_from_slice(new.data);
    }
    header.encode(edit.write(node)?);
    Ok(())
}

/// Sets the properties of a node that was reserved or deleted. Its lists remain.
pub(crate) fn restore(
    edit: &mut Edit<'_>,
    node: FatPointer,
    new: &NodeData<'_>,
) -> Result<(), EditError> {
    #[cfg(feature = "mutants")]
    faults::before_restore(edit, node)?;
    set(edit, node, new)
}

/// Deletes a node. Its lists remain. Returns whether it existed.
pub(crate) fn delete(edit: &mut Edit<'_>, node: FatPointer) -> Result<bool, EditError> {
    let payload = edit.read(node)?;
    let mut header = Header::decode(payload)?;
    if !header.exists() {
        return Ok(false);
    }
    if let Some(old) = spill(payload, &header)? {
        edit.free(old)?;
    }
    header.flags &= !(EXISTS | SPILLED | BARE);
    header.data_bytes = 0;
    header.encode(edit.write(node)?);
    Ok(true)
}

/// Returns the list of a type, which is empty if the node has no such list.
pub(crate) fn list(edit: &Edit<'_>, node: FatPointer, assoc_type: u32) -> Result<List, EditError> {
    let payload = edit.read(node)?;
    let header = Header::decode(payload)?;
    if header.is_in_tree() {
        let found = table(payload)?.find(edit, (assoc_type.into(), 0))?;
        let body = found.map(|found| found.body.try_into().map_err(|_| damaged()));
        return Ok(body
            .transpose()?
            .map_or(Ok(List::default()), List::decode)?);
    }
    Ok(list_in(payload, &header, assoc_type)?.unwrap_or_default())
}

/// Returns the list of a type from the table of a node, if the table has it. The lists must not be in a tree.
pub(crate) fn list_in(
    payload: &[u8],
    header: &Header,
    assoc_type: u32,
) -> Result<Option<List>, GraphError> {
    let Some(entry) = entry(payload, header, assoc_type) else {
        return Ok(None);
    };
    let bytes = payload[entry + 4..][..LIST_BYTES].try_into();
    List::decode(bytes.map_err(|_| damaged())?).map(Some)
}

/// The tree of a node's lists, if they are in a tree, and all lists with their types.
pub(crate) type Lists = (Option<Tree>, Vec<(u32, List)>);

/// Returns all lists of a node.
pub(crate) fn lists(edit: &Edit<'_>, node: FatPointer) -> Result<Lists, EditError> {
    let payload = edit.read(node)?;
    let header = Header::decode(payload)?;
    let mut all = Vec::new();
    if !header.is_in_tree() {
        for entry in entries(payload, header.lists) {
            let list = entry[4..].try_into().map_err(|_| damaged())?;
            all.push((number(entry, 0, 4) as u32, List::decode(list)?));
        }
        return Ok((None, all));
    }
    let table = table(payload)?;
    table.scan(edit, (0, 0), Wanted::Exactly(u64::MAX), |record| {
        let list = record.body.try_into().map_err(|_| damaged())?;
        all.push((record.key.0 as u32, List::decode(list)?));
        Ok(ControlFlow::Continue(()))
    })?;
    Ok((Some(table), all))
}

/// Stores the list of a type.
pub(crate) fn set_list(
    edit: &mut Edit<'_>,
    limits: Limits,
    node: FatPointer,
    assoc_type: u32,
    list: &List,
) -> Result<(), EditError> {
    let payload = edit.read(node)?;
    let mut header = Header::decode(payload)?;
    if header.is_in_tree() {
        let mut table = table(payload)?;
        table.put(edit, limits, (assoc_type.into(), 0), &list.encode())?;
        if table.height > 0 {
            mark("graph: lists in a tree of several pages");
        }
        set_table(edit.write(node)?, &table);
        return Ok(());
    }
    if let Some(entry) = entry(payload, &header, assoc_type) {
        edit.write(node)?[entry + 4..][..LIST_BYTES].copy_from_slice(&list.encode());
        return Ok(());
    }
    if header.lists < header.room.into() {
        let entry = HEADER_BYTES + usize::from(header.lists) * ENTRY_BYTES;
        header.lists += 1;
        let payload = edit.write(node)?;
        payload[entry..entry + 4].copy_from_slice(&assoc_type.to_le_bytes());
        payload[entry + 4..][..LIST_BYTES].copy_from_slice(&list.encode());
        header.encode(payload);
        return Ok(());
    }
    move_to_tree(edit, limits, node, assoc_type, list)
}

/// Moves the lists of a full table to a tree, and adds another list.
fn move_to_tree(
    edit: &mut Edit<'_>,
    limits: Limits,
    node: FatPointer,
    assoc_type: u32,
    list: &List,
) -> Result<(), EditError> {
    mark("graph: lists moved to a tree");
    let entries = entries(edit.read(node)?, header(edit, node)?.lists);
    let entries: Vec<_> = entries
        .map(|entry| (number(entry, 0, 4), entry[4..].to_vec()))
        .collect();
    let mut table = Tree::create(edit, limits, (assoc_type.into(), 0), &list.encode())?;
    for (assoc_type, list) in entries {
        table.put(edit, limits, (assoc_type, 0), &list)?;
    }
    let payload = edit.write(node)?;
    let mut header = Header::decode(payload)?;
    (header.flags, header.lists) = (header.flags | IN_TREE, 0);
    header.encode(payload);
    set_table(payload, &table);
    Ok(())
}

fn entries(payload: &[u8], lists: u16) -> impl Iterator<Item = &[u8]> {
    let all = payload[HEADER_BYTES..].chunks_exact(ENTRY_BYTES);
    all.take(lists.into())
}

/// Returns the offset of the entry of a list in the table.
fn entry(payload: &[u8], header: &Header, assoc_type: u32) -> Option<usize> {
    let index = entries(payload, header.lists)
        .position(|entry| number(entry, 0, 4) == u64::from(assoc_type))?;
    Some(HEADER_BYTES + index * ENTRY_BYTES)
}

/// Returns the tree of a node's lists.
fn table(payload: &[u8]) -> Result<Tree, GraphError> {
    let bytes = &payload[HEADER_BYTES..][..ENTRY_BYTES];
    Ok(Tree {
        root: pointer(&bytes[..POINTER_BYTES])?,
        first: None,
        height: bytes[POINTER_BYTES],
    })
}

fn set_table(payload: &mut [u8], table: &Tree) {
    let bytes = &mut payload[HEADER_BYTES..][..ENTRY_BYTES];
    bytes[..POINTER_BYTES].copy_from_slice(&pointer_bytes(table.root));
    bytes[POINTER_BYTES] = table.height;
}

#[cold]
fn damaged() -> GraphError {
    GraphError::Damaged("a node has an invalid header or table of lists".to_owned())
}

#[cfg(test)]
mod tests;
