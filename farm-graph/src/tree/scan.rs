//! Scans of trees.

use std::ops::ControlFlow;

use super::{Path, Step, Tree, child};
use crate::edit::{Edit, EditError, Missing};
use crate::page::{Key, Page, Record};

/// Maximum number of leaves that are requested together, after the first one.
const MAX_READ_AHEAD: u64 = 63;

/// Number of records that a scan visits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wanted {
    /// This many, if the tree has them.
    Exactly(u64),
    /// At most this many.
    AtMost(u64),
}

impl Tree {
    /// Calls `each` with the records from a key on, in order, until it breaks. If a leaf is missing, the next leaves are
    /// requested with it: as many as are needed for `wanted` records; but if it is not certain that they are wanted, at
    /// most as many as were scanned. So a long scan begins again only a few times.
    pub(crate) fn scan(
        &self,
        edit: &Edit<'_>,
        from: Key,
        wanted: Wanted,
        mut each: impl FnMut(Record<'_>) -> Result<ControlFlow<()>, EditError>,
    ) -> Result<(), EditError> {
        // The path is determined only when the first leaf does not suffice.
        let (mut path, mut leaf) = match self.near(edit, from)? {
            Some(leaf) => (None, leaf),
            None => {
                let path = self.path(edit, from)?;
                let leaf = path.leaf;
                (Some(path), leaf)
            }
        };
        let (mut leaves, mut seen) = (0, 0);
        loop {
            let mut last = from;
            let payload = match (edit.read(leaf), &path) {
                (Err(missing), Some(path)) => {
                    let (records, most) = match wanted {
                        Wanted::Exactly(records) if leaves > 0 => (records, u64::MAX),
                        Wanted::Exactly(records) | Wanted::AtMost(records) => (records, leaves),
                    };
                    let needed = records.saturating_sub(seen).saturating_mul(leaves) / seen.max(1);
                    return Err(read_ahead(edit, path, missing, needed.min(most))?);
                }
                (payload, _) => payload?,
            };
            leaves += 1;
            for record in Page::new(payload)?.records() {
                let record = record?;
                last = record.key;
                seen += 1;
                if record.key >= from && each(record)?.is_break() {
                    return Ok(());
                }
            }
            if self.height == 0 {
                return Ok(());
            }
            let mut known = match path.take() {
                Some(path) => path,
                None => self.path(edit, last)?,
            };
            if !self.advance(edit, &mut known)? {
                return Ok(());
            }
            leaf = known.leaf;
            path = Some(known);
        }
    }

    /// Moves a path to the next leaf. Returns whether there is one.
    pub(super) fn advance(&self, edit: &Edit<'_>, path: &mut Path) -> Result<bool, EditError> {
        while let Some(step) = path.inner.pop() {
            let next = step.index + 1;
            if next >= Page::new(edit.read(step.page)?)?.count() {
                continue;
            }
            path.leaf = child(edit, step.page, next)?;
            path.inner.push(Step {
                page: step.page,
                index: next,
            });
            while path.inner.len() < self.height.into() {
                let page = path.leaf;
                path.leaf = child(edit, page, 0)?;
                path.inner.push(Step { page, index: 0 });
            }
            return Ok(true);
        }
        Ok(false)
    }
}

/// Adds the leaves after that of a path to the missing objects.
#[cold]
fn read_ahead(
    edit: &Edit<'_>,
    path: &Path,
    mut missing: EditError,
    leaves: u64,
) -> Result<EditError, EditError> {
    if let (EditError::Missing(Missing::Objects(pointers)), Some(step)) =
        (&mut missing, path.inner.last())
    {
        let next = step.index + 1;
        let end = next + leaves.min(MAX_READ_AHEAD) as usize;
        for index in next..end.min(Page::new(edit.read(step.page)?)?.count()) {
            pointers.push(child(edit, step.page, index)?);
        }
    }
    Ok(missing)
}
