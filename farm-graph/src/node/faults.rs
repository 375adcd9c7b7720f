//! Deliberate bugs of restored nodes, which tests must find.

use farm_core::mutants::is_on;
use farm_core::object::FatPointer;

use super::{ENTRY_BYTES, HEADER_BYTES, Header};
use crate::edit::{Edit, EditError};
use crate::list::{LIST_BYTES, List};

/// Before a node is restored, sets the numbers of the associations of its lists to 0, or forgets its lists.
pub(super) fn before_restore(edit: &mut Edit<'_>, node: FatPointer) -> Result<(), EditError> {
    let mut header = Header::decode(edit.read(node)?)?;
    if header.is_in_tree() || header.lists == 0 {
        return Ok(());
    }
    if is_on("restored node loses its lists") {
        header.lists = 0;
        header.encode(edit.write(node)?);
    }
    if is_on("restored node counts from 0") {
        let tables = edit.write(node)?[HEADER_BYTES..].chunks_exact_mut(ENTRY_BYTES);
        for entry in tables.take(header.lists.into()) {
            let bytes: &mut [u8; LIST_BYTES] = (&mut entry[4..])
                .try_into()
                .expect("an entry is a type and a list");
            let mut list = List::decode(bytes)?;
            list.count = 0;
            *bytes = list.encode();
        }
    }
    Ok(())
}
