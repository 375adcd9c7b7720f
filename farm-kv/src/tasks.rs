//! [`tx`](crate::tx) for tasks: operations on tables inside the transactions of `async` functions.
//!
//! ```
//! use std::sync::Arc;
//! use farm_core::config::Config;
//! use farm_core::machine::start_all;
//! use farm_core::worker::Worker;
//! use farm_kv::{Change, TableSpec, blocking, tasks};
//! use farm_txn::{TxError, block_on};
//!
//! let mut config = Config::tiny_for(2, 1);
//! config.cluster.name = "doc-kv-tasks".into();
//! let attach = Arc::new(|worker: &mut Worker| {
//!     farm_txn::attach(worker);
//!     farm_kv::attach(worker);
//! });
//! let machines = start_all(&config, &(attach as _))?;
//! let spec = TableSpec { id: 1, neighbourhood: 4, key_bytes: 16, value_bytes: 8, shards: 2, buckets: 8 };
//! let table = blocking::open(&machines, spec)?;
//!
//! // Both pairs are there, or neither is.
//! block_on(&machines[0], 0, async move |farm: farm_txn::Handle| {
//!     farm.transact(async |tx| {
//!         tasks::change(tx, table, &[1; 16], Change::Insert(&[10; 8])).await?;
//!         tasks::change(tx, table, &[2; 16], Change::Insert(&[20; 8])).await?;
//!         assert_eq!(tasks::get(tx, table, &[1; 16]).await?, Some(vec![10; 8]));
//!         Ok::<_, TxError>(())
//!     })
//!     .await
//! })??;
//! assert_eq!(blocking::get(&machines[1], 0, table, [2; 16])?, Some(vec![20; 8]));
//! for machine in machines {
//!     machine.stop()?;
//! }
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```

use farm_core::worker::{Cont, Worker};
use farm_txn::{Transaction, TxError, TxHandle};
use smallvec::SmallVec;

use crate::blocking::OwnedChange;
use crate::shard::Changed;
use crate::table::TableId;
use crate::{Change, KEY_BYTES};

/// Looks up a key: see [`crate::tx::get`].
///
/// # Errors
/// Those of [`Transaction::read`]; [`TxError::Refused`] if the table is not open on the task's worker.
pub async fn get(
    tx: &mut Transaction,
    table: TableId,
    key: &[u8],
) -> Result<Option<Vec<u8>>, TxError> {
    let key: SmallVec<[u8; KEY_BYTES]> = key.into();
    let found = tx
        .operation(move |worker, tx, cont| crate::tx::get(worker, tx, table, &key, cont))
        .await?;
    let Some((object, value)) = found.map(crate::tx::ValueRef::place) else {
        return Ok(None);
    };
    Ok(Some(tx.payload(object)?[value].to_vec()))
}

/// Changes a table when the transaction commits: see [`crate::tx::change`].
///
/// # Errors
/// Those of [`Transaction::read`] and [`Transaction::alloc`]; [`TxError::Refused`] if the value has another length than
/// the table's values, or if the table is not open on the task's worker.
pub async fn change(
    tx: &mut Transaction,
    table: TableId,
    key: &[u8],
    change: Change<'_>,
) -> Result<Changed, TxError> {
    let key: SmallVec<[u8; KEY_BYTES]> = key.into();
    let change = OwnedChange::from(change);
    let begin = move |worker: &mut Worker, tx: TxHandle, cont: Cont<_>| {
        let change = change.as_change();
        if let Err(error) = crate::tx::change(worker, tx, table, &key, change, cont) {
            cont.resume(worker, Err(TxError::Refused(error.to_string())));
        }
    };
    tx.operation(begin).await
}
