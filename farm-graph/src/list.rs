//! The associations of one type of a node: a tree in the order of lists, and their number.
//!
//! While the tree is a single page, an association is found by its `id2` by examining all records of the page. A larger
//! tree has an index: a second tree by `id2`, whose records contain the high half of the first tree's key.

use std::ops::ControlFlow;

use farm_core::marks::mark;
use farm_core::mutants;
use farm_core::object::FatPointer;

use crate::GraphError;
use crate::assoc::{Assoc, is_visible, key};
use crate::bytes::number;
use crate::bytes::{POINTER_BYTES, pointer, pointer_bytes};
use crate::edit::{Edit, EditError};
use crate::page::{Key, Page};
use crate::tree::{Limits, Tree, Wanted};

/// Bytes of an encoded list.
pub(crate) const LIST_BYTES: usize = 76;

/// The associations of one type.
///
/// Encoded: number of visible associations (4 bytes), number of all (4), height of the tree (1) and of the index (1), 0
/// (2), time (8), version (8), root and first leaf of the tree (32), root of the index (16).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct List {
    /// Number of visible associations.
    pub(crate) count: u32,
    /// Number of associations, including hidden ones.
    pub(crate) total: u32,
    /// Time of the last change of the count.
    pub(crate) time: u64,
    /// Number of changes of the count.
    pub(crate) version: u64,
    /// `None` if there is no association.
    pub(crate) tree: Option<Tree>,
    index: Option<Tree>,
}

/// What a write of an association changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// The association is new.
    Added,
    /// The association existed and was hidden.
    Shown,
    /// The association existed and was visible.
    Updated,
}

/// Times of associations, both inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeBounds {
    /// The earliest time.
    pub min: u64,
    /// The latest time.
    pub max: u64,
}

impl Default for TimeBounds {
    fn default() -> Self {
        Self {
            min: 0,
            max: crate::MAX_TIME,
        }
    }
}

impl TimeBounds {
    /// Returns bounds that contain the same times of associations. No association is later than [`crate::MAX_TIME`].
    pub(crate) fn possible(self) -> Self {
        Self {
            max: self.max.min(crate::MAX_TIME),
            ..self
        }
    }

    /// Returns whether a time is within the bounds.
    pub fn contains(&self, time: u64) -> bool {
        (self.min..=self.max).contains(&time)
    }
}

impl List {
    pub(crate) fn encode(&self) -> [u8; LIST_BYTES] {
        let mut bytes = [0; LIST_BYTES];
        bytes[..4].copy_from_slice(&self.count.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.total.to_le_bytes());
        bytes[12..20].copy_from_slice(&self.time.to_le_bytes());
        bytes[20..28].copy_from_slice(&self.version.to_le_bytes());
        if let Some(tree) = self.tree {
            bytes[8] = tree.height;
            bytes[28..44].copy_from_slice(&pointer_bytes(tree.root));
            let first = tree.first.unwrap_or(tree.root);
            bytes[44..60].copy_from_slice(&pointer_bytes(first));
        }
        if let Some(index) = self.index {
            bytes[9] = index.height;
            bytes[60..76].copy_from_slice(&pointer_bytes(index.root));
        }
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; LIST_BYTES]) -> Result<Self, GraphError> {
        let [count, total] = [0, 4].map(|at| number(bytes, at, 4) as u32);
        let some = |at: usize| match bytes[at..at + POINTER_BYTES].iter().any(|byte| *byte != 0) {
            true => pointer(&bytes[at..at + POINTER_BYTES]).map(Some),
            false => Ok(None),
        };
        let (root, first, index) = (some(28)?, some(44)?, some(60)?);
        Ok(Self {
            count,
            total,
            time: number(bytes, 12, 8),
            version: number(bytes, 20, 8),
            tree: root.map(|root| Tree {
                root,
                first,
                height: bytes[8],
            }),
            index: index.map(|root| Tree {
                root,
                first: None,
                height: bytes[9],
            }),
        })
    }

    /// Returns the index.
    pub(crate) fn index(&self) -> Option<Tree> {
        self.index
    }

    /// Returns the first page, which contains the newest visible associations, if there are any.
    pub(crate) fn head(&self) -> Option<FatPointer> {
        let tree = self.tree.filter(|_| self.count > 0);
        tree.and_then(|tree| tree.first)
    }

    /// Returns the key of an association.
    fn find(&self, edit: &Edit<'_>, id2: u64) -> Result<Option<Key>, EditError> {
        let Some(tree) = self.tree else {
            return Ok(None);
        };
        if let Some(index) = self.index {
            let found = index.find(edit, (id2, 0))?;
            let high = found.map(|found| found.body.try_into().map_err(|_| damaged()));
            return Ok(high
                .transpose()?
                .map(|high| (u64::from_le_bytes(high), id2)));
        }
        for record in Page::new(edit.read(tree.root)?)?.records() {
            let key = record?.key;
            if key.1 == id2 {
                return Ok(Some(key));
            }
        }
        Ok(None)
    }

    /// Returns an association, also if it is hidden.
    pub(crate) fn get<'e>(
        &self,
        edit: &'e Edit<'_>,
        id2: u64,
    ) -> Result<Option<Assoc<'e>>, EditError> {
        let (Some(tree), Some(key)) = (self.tree, self.find(edit, id2)?) else {
            return Ok(None);
        };
        let record = tree.find(edit, key)?.ok_or_else(damaged)?;
        Ok(Some(Assoc::decode(&record)?))
    }

    /// Calls `each` with the visible associations within the bounds, the newest first, until it breaks.
    pub(crate) fn scan(
        &self,
        edit: &Edit<'_>,
        bounds: TimeBounds,
        wanted: Wanted,
        mut each: impl FnMut(Assoc<'_>) -> ControlFlow<()>,
    ) -> Result<(), EditError> {
        let Some(tree) = self.tree.filter(|_| self.count > 0) else {
            return Ok(());
        };
        tree.scan(edit, key(bounds.max, true, 0), wanted, |record| {
            if !is_visible(record.key) {
                return Ok(ControlFlow::Break(()));
            }
            let assoc = Assoc::decode(&record)?;
            Ok(match assoc.time >= bounds.min {
                true => each(assoc),
                false => ControlFlow::Break(()),
            })
        })
    }

    /// Writes an association: adds it, or replaces the one with its `id2`.
    pub(crate) fn put(
        &mut self,
        edit: &mut Edit<'_>,
        limits: Limits,
        assoc: &Assoc<'_>,
        now: u64,
    ) -> Result<Put, EditError> {
        let old = self.find(edit, assoc.id2)?;
        let mut body = Vec::with_capacity(64);
        assoc.encode(&mut body);
        self.place(edit, limits, old, assoc.key(), &body)?;
        let was_visible = old.is_some_and(is_visible);
        self.count_change(was_visible, assoc.visible, now)?;
        Ok(match old {
            None => Put::Added,
            Some(_) if was_visible => Put::Updated,
            Some(_) => Put::Shown,
        })
    }

    /// Hides an association. Returns whether it was visible.
    pub(crate) fn hide(
        &mut self,
        edit: &mut Edit<'_>,
        limits: Limits,
        id2: u64,
        now: u64,
    ) -> Result<bool, EditError> {
        let (Some(tree), Some(old)) = (self.tree, self.find(edit, id2)?) else {
            return Ok(false);
        };
        if !is_visible(old) {
            return Ok(false);
        }
        let record = tree.find(edit, old)?.ok_or_else(damaged)?;
        let hidden = Assoc {
            visible: false,
            ..Assoc::decode(&record)?
        };
        let (new, body) = (hidden.key(), record.body.to_vec());
        self.place(edit, limits, Some(old), new, &body)?;
        if !mutants::is_on("count not changed by hiding") {
            self.count_change(true, false, now)?;
        }
        Ok(true)
    }

    /// Removes an association. Returns whether it existed.
    pub(crate) fn remove(
        &mut self,
        edit: &mut Edit<'_>,
        limits: Limits,
        id2: u64,
        now: u64,
    ) -> Result<bool, EditError> {
        let (Some(mut tree), Some(old)) = (self.tree, self.find(edit, id2)?) else {
            return Ok(false);
        };
        tree.remove(edit, limits, old)?;
        if let Some(index) = &mut self.index {
            index.remove(edit, limits.of_index(), (id2, 0))?;
        }
        self.tree = Some(tree);
        self.total -= 1;
        if self.total == 0 {
            tree.free(edit)?;
            self.tree = None;
        }
        self.drop_index(edit)?;
        self.count_change(is_visible(old), false, now)?;
        Ok(true)
    }

    /// Stores a record under a new key, in place of that of the old key.
    fn place(
        &mut self,
        edit: &mut Edit<'_>,
        limits: Limits,
        old: Option<Key>,
        new: Key,
        body: &[u8],
    ) -> Result<(), EditError> {
        let Some(mut tree) = self.tree else {
            self.tree = Some(Tree::create(edit, limits, new, body)?);
            self.total = 1;
            return Ok(());
        };
        if let Some(old) = old.filter(|old| *old != new) {
            tree.remove(edit, limits, old)?;
        }
        tree.put(edit, limits, new, body)?;
        self.tree = Some(tree);
        self.total += u32::from(old.is_none());
        match &mut self.index {
            Some(_) if old == Some(new) => {}
            Some(_) if mutants::is_on("index of a list not updated") => {}
            Some(index) => index.put(edit, limits.of_index(), (new.1, 0), &new.0.to_le_bytes())?,
            None if tree.height > 0 => self.index = Some(build_index(edit, limits, &tree)?),
            None => {}
        }
        self.drop_index(edit)
    }

    /// Frees the index if the tree is a single page.
    fn drop_index(&mut self, edit: &mut Edit<'_>) -> Result<(), EditError> {
        if self.tree.is_none_or(|tree| tree.height == 0)
            && let Some(index) = self.index.take()
        {
            mark("graph: index freed");
            index.free(edit)?;
        }
        Ok(())
    }

    fn count_change(
        &mut self,
        was_visible: bool,
        is_visible: bool,
        now: u64,
    ) -> Result<(), GraphError> {
        if was_visible == is_visible {
            return Ok(());
        }
        // A transaction that will be retried because of a conflict can have a node and a page of different moments.
        let count = match is_visible {
            true => self.count.checked_add(1),
            false => self.count.checked_sub(1),
        };
        self.count = count.ok_or_else(damaged)?;
        self.time = now;
        self.version += 1;
        Ok(())
    }
}

/// Creates the index of a tree that was split for the first time.
fn build_index(edit: &mut Edit<'_>, limits: Limits, tree: &Tree) -> Result<Tree, EditError> {
    mark("graph: index made");
    let mut keys = Vec::new();
    tree.scan(edit, (0, 0), Wanted::Exactly(u64::MAX), |record| {
        keys.push(record.key);
        Ok(ControlFlow::Continue(()))
    })?;
    let limits = limits.of_index();
    let mut index: Option<Tree> = None;
    for (high, id2) in keys {
        let (key, body) = ((id2, 0), high.to_le_bytes());
        match &mut index {
            Some(index) => index.put(edit, limits, key, &body)?,
            None => index = Some(Tree::create(edit, limits, key, &body)?),
        }
    }
    let index = index.ok_or_else(damaged)?;
    Ok(Tree {
        first: None,
        ..index
    })
}

#[cold]
fn damaged() -> GraphError {
    GraphError::Damaged("an association list differs from its index or its count".to_owned())
}
