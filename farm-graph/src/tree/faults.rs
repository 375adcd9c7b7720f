//! A deliberate bug, which tests must find: the first leaf gets a new object when it is split.

use farm_core::mutants::is_on;

use super::{CHILD_BYTES, Inserted, Path, Step, Tree};
use crate::bytes::{POINTER_BYTES, pointer_bytes};
use crate::edit::{Edit, EditError};
use crate::page::{HEADER_BYTES, Page, RECORD_BYTES};

/// After a split of the first leaf, lets the left half have the new object, and the right half the old one, which clients
/// may have cached as the first leaf.
pub(super) fn swap_halves(
    tree: &mut Tree,
    edit: &mut Edit<'_>,
    path: &mut Path,
    inserted: &mut Inserted,
) -> Result<(), EditError> {
    let Inserted::Split(_, right) = inserted else {
        return Ok(());
    };
    let (old, new) = (path.leaf, *right);
    let [of_old, of_new] = [edit.read(old)?.to_vec(), edit.read(new)?.to_vec()];
    let fits = HEADER_BYTES + Page::new(&of_old)?.used() <= of_new.len();
    if tree.first != Some(old) || !fits || !is_on("first leaf gets a new object on a split") {
        return Ok(());
    }
    for (object, payload) in [(old, of_new), (new, of_old)] {
        let to = edit.write(object)?;
        let bytes = to.len().min(payload.len());
        to[..bytes].copy_from_slice(&payload[..bytes]);
    }
    if let Some(Step { page, index }) = path.inner.last().copied() {
        let at = HEADER_BYTES + index * CHILD_BYTES + RECORD_BYTES;
        edit.write(page)?[at..at + POINTER_BYTES].copy_from_slice(&pointer_bytes(new));
    }
    (tree.first, path.leaf, *right) = (Some(new), new, old);
    Ok(())
}
