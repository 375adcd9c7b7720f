//! A B+ tree of records, for the associations of one type of a node.
//!
//! A page is one object ([`crate::page`]). The leaves contain the records; a record of an inner page contains the fat
//! pointer of a child, and a key that is not greater than the keys in the child, except in the first record, which
//! covers all smaller keys, too. All pages are on the machine of the node.
//!
//! A page that is full is replaced by a larger object, up to [`Limits::page_bytes`], and is then split. The left half
//! of a split keeps the object. So the first leaf, which clients cache, remains the first leaf until it is freed, and
//! its incarnation shows that. Pages that become empty are freed, and small ones are merged with a neighbour.

#[cfg(feature = "mutants")]
mod faults;
mod scan;

pub(crate) use scan::Wanted;

use farm_core::marks::mark;
use farm_core::mutants;
use farm_core::object::FatPointer;
use smallvec::SmallVec;

use crate::GraphError;
use crate::bytes::{POINTER_BYTES, pointer, pointer_bytes};
use crate::edit::{Edit, EditError};
use crate::page::{self, HEADER_BYTES, Key, Page, RECORD_BYTES, Record};

/// Bytes of a record of an inner page.
const CHILD_BYTES: usize = RECORD_BYTES + POINTER_BYTES;
/// Maximum number of levels above the leaves. Page sizes that a program uses need three for 10^9 records; more means
/// that memory is damaged.
const MAX_HEIGHT: u8 = 16;

/// The least size of a page, which has room for several records of an inner page.
const LEAST_PAGE_BYTES: usize = 256;

/// Sizes of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Size from which a page is split and no longer replaced by a larger one.
    pub(crate) page_bytes: usize,
}

impl Limits {
    /// Returns the maximum length of a body. At least three records fit into a page, so that both halves of a page
    /// have room for another record.
    pub(crate) fn max_body(&self) -> usize {
        (self.page_bytes - HEADER_BYTES) / 4 - RECORD_BYTES
    }

    /// Returns the sizes of pages of an index. They are smaller, because each write changes one of them anywhere in the
    /// index, and a commit writes whole pages; nothing reads them in order.
    pub(crate) fn of_index(self) -> Self {
        Self {
            page_bytes: (self.page_bytes / 4).max(LEAST_PAGE_BYTES),
        }
    }

    /// Returns the size of an object for a page with `used` bytes of records.
    fn object_bytes(&self, used: usize) -> usize {
        let needed = HEADER_BYTES + used;
        needed.max((needed + needed / 4).min(self.page_bytes))
    }
}

/// A tree, which always has at least one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tree {
    pub(crate) root: FatPointer,
    /// The first leaf; `None` if accesses to it are not more frequent than to other leaves.
    pub(crate) first: Option<FatPointer>,
    /// Number of levels above the leaves.
    pub(crate) height: u8,
}

/// An inner page on the path to a leaf, and the index of the record of the child that the path follows.
#[derive(Clone, Copy)]
struct Step {
    page: FatPointer,
    index: usize,
}

/// The path from the root to a leaf.
struct Path {
    inner: SmallVec<[Step; 4]>,
    leaf: FatPointer,
}

impl Path {
    /// Returns the page on a level; level 0 is the root.
    fn page(&self, level: usize) -> FatPointer {
        self.inner.get(level).map_or(self.leaf, |step| step.page)
    }
}

/// How a record was inserted into a page.
enum Inserted {
    InPlace,
    /// The page was replaced by a larger one.
    Moved(FatPointer),
    /// The page was split: the first key of the right half, and its page.
    Split(Key, FatPointer),
}

impl Tree {
    /// Creates a tree with one record, whose first leaf is known.
    pub(crate) fn create(
        edit: &mut Edit<'_>,
        limits: Limits,
        key: Key,
        body: &[u8],
    ) -> Result<Self, EditError> {
        let root = edit.create(limits.object_bytes(RECORD_BYTES + body.len()))?;
        insert_checked(edit.write(root)?, key, body)?;
        Ok(Self {
            root,
            first: Some(root),
            height: 0,
        })
    }

    /// Returns the record of a key.
    pub(crate) fn find<'e>(
        &self,
        edit: &'e Edit<'_>,
        key: Key,
    ) -> Result<Option<Record<'e>>, EditError> {
        let leaf = self.leaf_of(edit, key)?;
        Ok(Page::new(edit.read(leaf)?)?.find(key)?.ok())
    }

    /// Returns the leaf that contains a key, if any does.
    fn leaf_of(&self, edit: &Edit<'_>, key: Key) -> Result<FatPointer, EditError> {
        match self.near(edit, key)? {
            Some(leaf) => Ok(leaf),
            None => Ok(self.path(edit, key)?.leaf),
        }
    }

    /// Returns the leaf of a key if no inner page is needed to find it: it is the only leaf, or the first one and has a
    /// record at or after the key.
    fn near(&self, edit: &Edit<'_>, key: Key) -> Result<Option<FatPointer>, EditError> {
        if self.height == 0 {
            return Ok(Some(self.root));
        }
        let Some(first) = self.first else {
            return Ok(None);
        };
        let covers = Page::new(edit.read(first)?)?.at_or_after(key)?.is_ok();
        Ok(covers.then_some(first))
    }

    fn path(&self, edit: &Edit<'_>, key: Key) -> Result<Path, EditError> {
        if self.height > MAX_HEIGHT {
            return Err(damaged().into());
        }
        let mut path = Path {
            inner: SmallVec::new(),
            leaf: self.root,
        };
        for _ in 0..self.height {
            let page = path.leaf;
            let (index, record) = Page::new(edit.read(page)?)?.covering(key, POINTER_BYTES)?;
            path.leaf = pointer(record.body)?;
            path.inner.push(Step { page, index });
        }
        Ok(path)
    }

    /// Inserts a record, or replaces the body of the record with this key.
    pub(crate) fn put(
        &mut self,
        edit: &mut Edit<'_>,
        limits: Limits,
        key: Key,
        body: &[u8],
    ) -> Result<(), EditError> {
        let leaf = self.leaf_of(edit, key)?;
        let payload = edit.write(leaf)?;
        let at = match Page::new(payload)?.find(key)? {
            Ok(old) => {
                let (at, end) = (old.at, old.end());
                page::remove(payload, at, end);
                at
            }
            Err(at) => at,
        };
        if page::insert(payload, at, key, body) {
            return Ok(());
        }
        #[cfg_attr(not(feature = "mutants"), expect(unused_mut))]
        let mut path = self.path(edit, key)?;
        let mut level = path.inner.len();
        let mut inserted = insert_into(edit, limits, path.page(level), key, body)?;
        #[cfg(feature = "mutants")]
        faults::swap_halves(self, edit, &mut path, &mut inserted)?;
        loop {
            let page = path.page(level);
            match inserted {
                Inserted::InPlace => return Ok(()),
                Inserted::Moved(new) => return self.replace(edit, &path, level, new),
                Inserted::Split(key, right) if level == 0 => {
                    return self.add_root(edit, limits, page, (key, right));
                }
                Inserted::Split(key, right) => {
                    level -= 1;
                    let Step {
                        page: parent,
                        index,
                    } = path.inner[level];
                    if index == 0 && !mutants::is_on("first record of an inner page keeps its key")
                    {
                        // The left half may have keys smaller than that of its record, and so may the right half. The
                        // least key keeps the records in order.
                        page::set_key(edit.write(parent)?, HEADER_BYTES, (0, 0));
                    }
                    inserted = insert_into(edit, limits, parent, key, &pointer_bytes(right))?;
                }
            }
        }
    }

    /// Replaces the page of a path's level by a larger copy.
    fn replace(
        &mut self,
        edit: &mut Edit<'_>,
        path: &Path,
        level: usize,
        new: FatPointer,
    ) -> Result<(), EditError> {
        if Some(path.page(level)) == self.first {
            self.first = Some(new);
        }
        match level.checked_sub(1) {
            None => self.root = new,
            Some(parent) => {
                let Step { page, index } = path.inner[parent];
                let at = HEADER_BYTES + index * CHILD_BYTES + RECORD_BYTES;
                edit.write(page)?[at..at + POINTER_BYTES].copy_from_slice(&pointer_bytes(new));
            }
        }
        Ok(())
    }

    /// Adds a root above the halves of the old one.
    fn add_root(
        &mut self,
        edit: &mut Edit<'_>,
        limits: Limits,
        left: FatPointer,
        right: (Key, FatPointer),
    ) -> Result<(), EditError> {
        mark("graph: tree got a level");
        let root = edit.create(limits.object_bytes(2 * CHILD_BYTES))?;
        let payload = edit.write(root)?;
        insert_checked(payload, (0, 0), &pointer_bytes(left))?;
        insert_checked(payload, right.0, &pointer_bytes(right.1))?;
        self.root = root;
        self.height += 1;
        Ok(())
    }

    /// Removes a record. Returns whether there was one. The tree may be empty afterwards; it still has a page.
    pub(crate) fn remove(
        &mut self,
        edit: &mut Edit<'_>,
        limits: Limits,
        key: Key,
    ) -> Result<bool, EditError> {
        let leaf = self.leaf_of(edit, key)?;
        let page = Page::new(edit.read(leaf)?)?;
        let Ok(record) = page.find(key)? else {
            return Ok(false);
        };
        let (at, end) = (record.at, record.end());
        let left = page.used() - (end - at);
        page::remove(edit.write(leaf)?, at, end);
        if self.height > 0 && left < limits.page_bytes / 4 {
            let path = self.path(edit, key)?;
            self.shrink(edit, limits, &path)?;
        }
        Ok(true)
    }

    /// Frees the page at the end of a path if it is empty, and merges it with a neighbour if both are small; then its
    /// parents likewise.
    fn shrink(
        &mut self,
        edit: &mut Edit<'_>,
        limits: Limits,
        path: &Path,
    ) -> Result<(), EditError> {
        let mut level = path.inner.len();
        let mut lost_first = false;
        while level > 0 {
            let (page, parent) = (path.page(level), path.inner[level - 1]);
            let read = Page::new(edit.read(page)?)?;
            let gone = match read.count() {
                0 => {
                    mark("graph: empty page freed");
                    lost_first |= Some(page) == self.first;
                    Some((parent.index, page))
                }
                _ if read.used() < limits.page_bytes / 4 => {
                    let is_leaf = level == path.inner.len();
                    merge(edit, limits, (page, is_leaf), parent)?
                }
                _ => None,
            };
            let Some((index, gone)) = gone else { break };
            edit.free(gone)?;
            let at = HEADER_BYTES + index * CHILD_BYTES;
            page::remove(edit.write(parent.page)?, at, at + CHILD_BYTES);
            level -= 1;
        }
        while self.height > 0 && Page::new(edit.read(self.root)?)?.count() == 1 {
            mark("graph: tree lost a level");
            let only = child(edit, self.root, 0)?;
            edit.free(self.root)?;
            self.root = only;
            self.height -= 1;
        }
        if self.height == 0 {
            page::set_more(edit.write(self.root)?, false);
        }
        if lost_first {
            mark("graph: first leaf freed");
            self.first = Some(self.path(edit, (0, 0))?.leaf);
        }
        Ok(())
    }

    /// Frees all pages.
    pub(crate) fn free(self, edit: &mut Edit<'_>) -> Result<(), EditError> {
        let mut level = vec![self.root];
        for height in (0..=self.height).rev() {
            let mut below = Vec::new();
            for page in level {
                if height > 0 {
                    for record in Page::new(edit.read(page)?)?.records() {
                        below.push(pointer(record?.body)?);
                    }
                }
                edit.free(page)?;
            }
            level = below;
        }
        Ok(())
    }
}

/// Merges a small page, which may be a leaf, with its right neighbour, or with its left one if it is the last child of its
/// parent. Returns the index and the page of the right one of the two, which is no longer needed.
fn merge(
    edit: &mut Edit<'_>,
    limits: Limits,
    (page, is_leaf): (FatPointer, bool),
    parent: Step,
) -> Result<Option<(usize, FatPointer)>, EditError> {
    let children = Page::new(edit.read(parent.page)?)?.count();
    let (left, right, gone) = match parent.index + 1 < children {
        true => {
            let next = parent.index + 1;
            (page, child(edit, parent.page, next)?, next)
        }
        false if parent.index > 0 => {
            let previous = child(edit, parent.page, parent.index - 1)?;
            (previous, page, parent.index)
        }
        false => return Ok(None),
    };
    let from = Page::new(edit.read(right)?)?;
    let to = edit.read(left)?;
    let both = Page::new(to)?.used() + from.used();
    if HEADER_BYTES + both > to.len() || both > limits.page_bytes * 3 / 4 {
        return Ok(None);
    }
    mark("graph: pages merged");
    let records = from.count();
    let (more, from) = (from.has_more(), edit.read(right)?.to_vec());
    let parent = Page::new(edit.read(parent.page)?)?;
    let least = parent.record(HEADER_BYTES + gone * CHILD_BYTES)?.key;
    let payload = edit.write(left)?;
    let joint = HEADER_BYTES + Page::new(payload)?.used();
    page::append(payload, &from, HEADER_BYTES, records);
    if !is_leaf {
        mark("graph: inner pages merged");
        // The first record of the right page covered all keys from that of the page's own record on, whatever its key.
        page::set_key(payload, joint, least);
    }
    page::set_more(payload, more);
    Ok(Some((gone, right)))
}

/// Inserts a record into a page, which is replaced or split if it has no room.
fn insert_into(
    edit: &mut Edit<'_>,
    limits: Limits,
    old: FatPointer,
    key: Key,
    body: &[u8],
) -> Result<Inserted, EditError> {
    let payload = edit.write(old)?;
    let Err(at) = Page::new(payload)?.find(key)? else {
        return Err(damaged().into());
    };
    if page::insert(payload, at, key, body) {
        return Ok(Inserted::InPlace);
    }
    let used = Page::new(payload)?.used();
    let more = RECORD_BYTES + body.len();
    if HEADER_BYTES + used + more > limits.page_bytes {
        return split(edit, limits, old, key, body);
    }
    let new = edit.create(limits.object_bytes(used + more))?;
    let from = edit.read(old)?.to_vec();
    let payload = edit.write(new)?;
    payload[..from.len()].copy_from_slice(&from);
    insert_checked(payload, key, body)?;
    edit.free(old)?;
    Ok(Inserted::Moved(new))
}

/// Moves the right half of a page to a new one, and inserts a record into one of the halves.
fn split(
    edit: &mut Edit<'_>,
    limits: Limits,
    left: FatPointer,
    key: Key,
    body: &[u8],
) -> Result<Inserted, EditError> {
    mark("graph: page split");
    let read = Page::new(edit.read(left)?)?;
    let half = HEADER_BYTES + read.used() / 2;
    let (mut moved, mut from) = (0, None);
    for record in read.records() {
        let record = record?;
        if record.at > HEADER_BYTES && record.end() > half {
            from.get_or_insert((record.at, record.key));
            moved += 1;
        }
    }
    let (at, middle) = from.ok_or_else(damaged)?;
    let (used, more) = (HEADER_BYTES + read.used() - at, read.has_more());
    let right = edit.create(limits.object_bytes(used + RECORD_BYTES + body.len()))?;
    let from = edit.read(left)?.to_vec();
    let payload = edit.write(right)?;
    page::append(payload, &from, at, moved);
    page::set_more(payload, more);
    let payload = edit.write(left)?;
    page::truncate(payload, at, moved);
    page::set_more(
        payload,
        !mutants::is_on("a split page does not show that others follow"),
    );
    let half = if key < middle { left } else { right };
    insert_checked(edit.write(half)?, key, body)?;
    Ok(Inserted::Split(middle, right))
}

/// Inserts a record of a new key into a page that has room for it.
fn insert_checked(payload: &mut [u8], key: Key, body: &[u8]) -> Result<(), EditError> {
    let free = Page::new(payload)?.find(key)?.err();
    match free {
        Some(at) if page::insert(payload, at, key, body) => Ok(()),
        _ => Err(damaged().into()),
    }
}

/// Returns the child of an inner page with this index.
fn child(edit: &Edit<'_>, page: FatPointer, index: usize) -> Result<FatPointer, EditError> {
    let page = Page::new(edit.read(page)?)?;
    let record = page.record(HEADER_BYTES + index * CHILD_BYTES)?;
    Ok(pointer(record.body)?)
}

#[cold]
fn damaged() -> GraphError {
    GraphError::Damaged("a tree of associations has an invalid page or pointer".to_owned())
}

#[cfg(test)]
mod tests;
