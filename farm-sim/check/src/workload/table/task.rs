//! An operation on the hashtable as a task.

use farm_core::worker::Worker;
use farm_kv::tasks::{self, ChangeKind};
use farm_kv::{KvError, TableId};
use farm_txn::{Abort, Handle, TxError};

use super::{end, end_in_tx, key, new_value, read_as, result_of, step};
use crate::history::{KeyRequest, KeyResult};
use crate::workload::doing::TableOperation;
use crate::workload::state::work;

/// Begins the operation of a client.
pub(super) fn begin(worker: &mut Worker, client: usize, pending: TableOperation, table: TableId) {
    let bytes = work(worker).spec.value_bytes;
    farm_txn::spawn(worker, async move |farm: Handle| {
        let task = Task {
            farm: &farm,
            table,
            pending,
            bytes,
        };
        if pending.in_tx {
            let result = task.in_transaction().await;
            farm.at_once(|worker| end_in_tx(worker, client, result));
        } else {
            let result = task.alone().await.map_err(of_table);
            farm.at_once(|worker| end(worker, client, result));
        }
    });
}

/// Returns the error of a table that a task has got.
fn of_table(error: TxError) -> KvError {
    match &error {
        TxError::Busy => KvError::Busy,
        TxError::Abort(Abort::Lost(machine)) => KvError::PeerLost(*machine),
        TxError::InDoubt(machine) => KvError::InDoubt(*machine),
        TxError::Layer(inner) => match inner.downcast_ref::<KvError>() {
            Some(error) => error.clone(),
            None => KvError::Damaged(error.to_string()),
        },
        _ => KvError::Damaged(error.to_string()),
    }
}

struct Task<'a> {
    farm: &'a Handle,
    table: TableId,
    pending: TableOperation,
    bytes: usize,
}

impl Task<'_> {
    async fn alone(&self) -> Result<KeyResult, TxError> {
        let (key, request) = (key(self.pending.key), self.pending.request);
        if request == KeyRequest::Get {
            let value = tasks::look_up(self.farm, self.table, key, owned).await?;
            return Ok(self.read(value));
        }
        let new = new_value(request, self.bytes);
        let kind = ChangeKind::from(step(&self.pending, &new));
        let changed = tasks::change_alone(self.farm, self.table, key, kind, new).await?;
        Ok(changed.into())
    }

    async fn in_transaction(&self) -> Result<KeyResult, TxError> {
        let (key, mut pending) = (key(self.pending.key), self.pending);
        let tx = self.farm.begin().await?;
        let result = if pending.request == KeyRequest::Get {
            let value = tasks::read(*tx, self.table, key, owned).await?;
            self.read(value)
        } else {
            let new = new_value(pending.request, self.bytes);
            let mut last = tasks::change(*tx, self.table, &key, step(&pending, &new)).await?;
            if pending.in_two {
                pending.first = Some(last);
                last = tasks::change(*tx, self.table, &key, step(&pending, &new)).await?;
            }
            result_of(pending.first, last)
        };
        tx.commit().await?;
        Ok(result)
    }

    fn read(&self, value: Option<Vec<u8>>) -> KeyResult {
        let result = self
            .farm
            .at_once(|worker| read_as(worker, value.as_deref()));
        result.expect("the operation is a task of its worker")
    }
}

fn owned(found: Result<Option<&[u8]>, TxError>) -> Result<Option<Vec<u8>>, TxError> {
    found.map(|value| value.map(<[u8]>::to_vec))
}
