//! Makes changes of a shard on objects of this machine.

use farm_core::worker::{AddressError, Worker};
use farm_txn::{Abort, TxError};

use super::{EditError, Editor, Missing};

/// Why a change could not be made at once.
#[derive(Debug)]
pub(crate) struct Incomplete {
    pub(crate) error: TxError,
    /// The object without which the change cannot be made: it resides on another machine, or is locked.
    pub(crate) missing: Option<Missing>,
}

impl Incomplete {
    /// Returns whether an object resides on another machine.
    pub(crate) fn is_elsewhere(&self) -> bool {
        matches!(self.error, TxError::Address(AddressError::Elsewhere { .. }))
    }
}

/// Makes a change, and adds the objects of this machine that it needs to the transaction.
pub(crate) fn complete<T>(
    worker: &mut Worker,
    editor: &mut Editor<'_>,
    mut change: impl FnMut(&mut Editor<'_>) -> Result<T, EditError>,
) -> Result<T, Incomplete> {
    loop {
        let missing = match change(editor) {
            Ok(done) => return Ok(done),
            Err(EditError::Missing(missing)) => missing,
            Err(EditError::Failed(error)) => {
                return Err(Incomplete {
                    error,
                    missing: None,
                });
            }
        };
        if let Err(error) = add(worker, editor, missing) {
            let obtainable = matches!(
                error,
                TxError::Address(AddressError::Elsewhere { .. }) | TxError::Abort(Abort::Locked(_))
            );
            return Err(Incomplete {
                error,
                missing: obtainable.then_some(missing),
            });
        }
    }
}

/// Adds an object of this machine to the transaction.
pub(super) fn add(
    worker: &mut Worker,
    editor: &mut Editor<'_>,
    missing: Missing,
) -> Result<(), TxError> {
    match missing {
        Missing::Object(address, class) => match editor.tx.read_class(worker, address, class) {
            // The change detects that there is no object.
            Err(TxError::NotAllocated(_)) => Ok(()),
            read => read.map(|_| ()),
        },
        Missing::Block(near) => {
            worker.local_memory(near)?;
            let bytes = editor.shard.layout.block_payload_bytes();
            let block = editor.tx.alloc(worker, bytes, Some(near))?;
            editor.set_spare(Some(block));
            Ok(())
        }
    }
}
