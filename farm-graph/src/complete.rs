//! Makes edits on objects of this machine.

use farm_core::ids::Address;
use farm_core::worker::{AddressError, Worker};
use farm_txn::{Abort, Tx, TxError};

use crate::GraphError;
use crate::edit::{Edit, EditError, Missing, Work};

/// Why an edit could not be made at once.
#[derive(Debug)]
pub(crate) struct Incomplete {
    pub(crate) error: GraphError,
    /// The objects without which the edit cannot be made: one is, or must be, on another machine, or is locked.
    pub(crate) missing: Option<Missing>,
}

/// Makes an edit, adds the objects of this machine that it lacks to the transaction, and writes the changes to the
/// transaction. New objects are created near `near`.
pub(crate) fn complete<T>(
    worker: &mut Worker,
    tx: &mut Tx,
    work: &mut Work,
    near: Address,
    mut make: impl FnMut(&mut Edit<'_>) -> Result<T, EditError>,
) -> Result<T, Incomplete> {
    loop {
        let missing = match make(&mut work.begin(tx, near)) {
            Ok(made) => {
                work.apply(tx);
                return Ok(made);
            }
            Err(EditError::Missing(missing)) => missing,
            Err(EditError::Failed(error)) => {
                return Err(Incomplete {
                    error,
                    missing: None,
                });
            }
        };
        if let Err(error) = add(worker, tx, work, &missing) {
            let obtainable = matches!(
                error,
                TxError::Address(AddressError::Elsewhere { .. }) | TxError::Abort(Abort::Locked(_))
            );
            return Err(Incomplete {
                error: error.into(),
                missing: obtainable.then_some(missing),
            });
        }
    }
}

/// Adds objects of this machine to the transaction.
fn add(
    worker: &mut Worker,
    tx: &mut Tx,
    work: &mut Work,
    missing: &Missing,
) -> Result<(), TxError> {
    match missing {
        Missing::Objects(pointers) => {
            for pointer in pointers {
                tx.read_pointer(worker, *pointer)?;
            }
        }
        Missing::New(bytes, near) => {
            let near = Some(*near).filter(|near| !near.is_null());
            let elsewhere = match near {
                Some(near) => worker.local_memory(near).err(),
                None => worker.elsewhere_for_new_object().map(|machine| {
                    let address = Address::NULL;
                    AddressError::Elsewhere { address, machine }
                }),
            };
            if let Some(error @ AddressError::Elsewhere { .. }) = elsewhere {
                return Err(error.into());
            }
            work.add_spare(tx.alloc(worker, *bytes, near)?);
        }
    }
    Ok(())
}
