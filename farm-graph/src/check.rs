//! Checks of a graph at rest, for tests: the structure of nodes and lists.

use std::collections::BTreeMap;

use farm_core::object::FatPointer;
use farm_core::worker::Worker;

use crate::bytes::pointer;
use crate::complete::complete;
use crate::edit::{Edit, EditError, Work};
use crate::list::List;
use crate::node;
use crate::page::{Key, Page};
use crate::state::graph;
use crate::tasks::OwnedAssoc;
use crate::tree::Tree;
use crate::{Assoc, GraphError};

/// The contents of a node, as [`check_node`] returns them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFacts {
    /// Id of the node.
    pub id: u64,
    /// Whether the node was not deleted.
    pub exists: bool,
    /// Number of objects of the node, of its data and of its lists.
    pub objects: u64,
    /// All associations by type, including hidden ones, in the order of the lists.
    pub lists: BTreeMap<u32, Vec<OwnedAssoc>>,
}

/// Checks the structure of a node of this machine and of its lists, when no operation on it is in flight: the order of
/// records, the keys of inner pages, the first page of each list and the bits that show that other leaves follow, the
/// counts, and that each index contains exactly the associations of its list.
///
/// # Errors
/// A description of the first violation.
pub fn check_node(worker: &mut Worker, node: FatPointer) -> Result<NodeFacts, String> {
    let mut tx = farm_txn::checkout(worker);
    let mut work = Work::default();
    let checked = complete(worker, &mut tx, &mut work, node.address, |edit| {
        facts(edit, node)
    });
    let locked = tx.locked_now(worker);
    farm_txn::checkin(worker, tx);
    if let Some(at) = locked {
        return Err(format!("node {node:?}: the object at {at} is still locked"));
    }
    checked.map_err(|incomplete| format!("node {node:?}: {}", incomplete.error))
}

/// Checks the table of ids. Returns the number of its blocks on this worker.
///
/// # Errors
/// A description of the first violation.
pub fn check_ids(worker: &mut Worker) -> Result<u64, String> {
    let ids = graph(worker).ids;
    let shards = farm_kv::ops::check(worker, ids)?;
    Ok(shards.iter().map(|shard| shard.blocks).sum())
}

fn facts(edit: &mut Edit<'_>, node: FatPointer) -> Result<NodeFacts, EditError> {
    let header = node::header(edit, node)?;
    let data = node::data(edit, node)?;
    if !header.exists() && (header.is_spilled() || !data.is_empty()) {
        return wrong("a deleted node has data".to_owned());
    }
    if let Some(spilled) = node::spill(edit.read(node)?, &header)?
        && !header.is_bare()
    {
        let (id, of_data) = node::spilled_node(edit.read(spilled)?)?;
        let found = (id, of_data.node_type, of_data.version, of_data.time);
        if found != (header.id, header.node_type, header.version, header.time)
            || of_data.data.len() != header.bytes()
        {
            return wrong(
                "a node and the object with its data have different properties".to_owned(),
            );
        }
    }
    let mut facts = NodeFacts {
        id: header.id,
        exists: header.exists(),
        objects: 1 + u64::from(header.is_spilled()),
        lists: BTreeMap::new(),
    };
    let (table, lists) = node::lists(edit, node)?;
    if let Some(table) = table {
        facts.objects += tree(edit, &table)?.pages;
    }
    for (assoc_type, list) in lists {
        let (objects, found) = check_list(edit, assoc_type, &list)?;
        facts.objects += objects;
        facts.lists.insert(assoc_type, found);
    }
    Ok(facts)
}

fn wrong<T>(why: String) -> Result<T, EditError> {
    Err(EditError::Failed(GraphError::Damaged(why)))
}

/// Checks a list. Returns the number of its pages, and its associations.
fn check_list(
    edit: &Edit<'_>,
    assoc_type: u32,
    list: &List,
) -> Result<(u64, Vec<OwnedAssoc>), EditError> {
    let Some(of_list) = list.tree else {
        return match (list.count, list.total, list.index()) {
            (0, 0, None) => Ok((0, Vec::new())),
            _ => wrong(format!("list {assoc_type} has no page, but {list:?}")),
        };
    };
    let shape = tree(edit, &of_list)?;
    let mut found = Vec::new();
    for (key, body) in &shape.records {
        let record = crate::page::Record {
            at: 0,
            key: *key,
            body,
        };
        found.push(OwnedAssoc::from(Assoc::decode(&record)?));
    }
    let visible = found.iter().filter(|assoc| assoc.visible).count();
    if (list.count as usize, list.total as usize) != (visible, found.len()) {
        return wrong(format!(
            "list {assoc_type} counts {} visible associations of {}, but contains {visible} of {}",
            list.count,
            list.total,
            found.len()
        ));
    }
    if of_list.first != Some(shape.first) {
        return wrong(format!(
            "list {assoc_type} has the first page {:?}, but the node has the pointer {:?}",
            shape.first, of_list.first
        ));
    }
    let pages = shape.pages + check_index(edit, assoc_type, list, &shape)?;
    Ok((pages, found))
}

/// Checks that a list has an index exactly if it has several pages, and that the index contains all associations. Returns
/// the number of pages of the index.
fn check_index(
    edit: &Edit<'_>,
    assoc_type: u32,
    list: &List,
    shape: &Shape,
) -> Result<u64, EditError> {
    let height = list.tree.map_or(0, |tree| tree.height);
    let index = list.index();
    if index.is_some() != (height > 0) {
        return wrong(format!(
            "list {assoc_type} has the height {height}, but its index is {index:?}"
        ));
    }
    let Some(index) = index else {
        return Ok(0);
    };
    let index = tree(edit, &index)?;
    let records = shape.records.iter();
    let mut expected: Vec<(Key, Vec<u8>)> = records
        .map(|((high, id2), _)| ((*id2, 0), high.to_le_bytes().to_vec()))
        .collect();
    expected.sort();
    match index.records == expected {
        true => Ok(index.pages),
        false => wrong(format!(
            "the index of list {assoc_type} contains {:?}, but the list has {expected:?}",
            index.records
        )),
    }
}

/// The contents of a tree.
struct Shape {
    pages: u64,
    /// The first leaf.
    first: FatPointer,
    /// The records of all leaves.
    records: Vec<(Key, Vec<u8>)>,
}

/// Checks the pages of a tree.
fn tree(edit: &Edit<'_>, tree: &Tree) -> Result<Shape, EditError> {
    // Pages of a level, with the least key and the first key after those that each may contain.
    let mut level = vec![(tree.root, (0, 0), None)];
    let mut pages = 0;
    for _ in 0..tree.height {
        let mut below = Vec::new();
        for (page, least, end) in level {
            pages += 1;
            let children = records(edit, page)?;
            check_keys(&children[1.min(children.len())..], least, end, page)?;
            if children.is_empty() {
                return wrong(format!("inner page {page:?} has no record"));
            }
            for (at, (key, body)) in children.iter().enumerate() {
                let least = if at == 0 { least } else { *key };
                let end = children.get(at + 1).map(|next| next.0).or(end);
                below.push((pointer(body)?, least, end));
            }
        }
        level = below;
    }
    let first = level[0].0;
    let last = level.len() - 1;
    let mut all = Vec::new();
    for (at, (leaf, least, end)) in level.into_iter().enumerate() {
        pages += 1;
        let found = records(edit, leaf)?;
        check_keys(&found, least, end, leaf)?;
        // Clients that read the first leaf must know that another one follows. The bit may be set although none does.
        if at < last && !Page::new(edit.read(leaf)?)?.has_more() {
            return wrong(format!(
                "leaf {leaf:?} does not show that other leaves follow"
            ));
        }
        if tree.height > 0 && found.is_empty() {
            return wrong(format!("leaf {leaf:?} of several is empty"));
        }
        all.extend(found);
    }
    Ok(Shape {
        pages,
        first,
        records: all,
    })
}

/// Checks that keys are in order and within bounds.
fn check_keys(
    records: &[(Key, Vec<u8>)],
    least: Key,
    end: Option<Key>,
    page: FatPointer,
) -> Result<(), EditError> {
    let ordered = records.windows(2).all(|two| two[0].0 < two[1].0);
    let starts = records.first().is_none_or(|first| first.0 >= least);
    let ends = records
        .last()
        .zip(end)
        .is_none_or(|(last, end)| last.0 < end);
    if ordered && starts && ends {
        return Ok(());
    }
    let keys: Vec<Key> = records.iter().map(|record| record.0).collect();
    wrong(format!(
        "page {page:?} has the keys {keys:?}, but must have ascending ones from {least:?} to {end:?}"
    ))
}

fn records(edit: &Edit<'_>, page: FatPointer) -> Result<Vec<(Key, Vec<u8>)>, EditError> {
    let records = Page::new(edit.read(page)?)?.records();
    let copied = records.map(|record| record.map(|record| (record.key, record.body.to_vec())));
    Ok(copied.collect::<Result<_, GraphError>>()?)
}
