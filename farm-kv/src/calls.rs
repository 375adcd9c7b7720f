//! Calls to other workers by tasks.

use farm_core::ids::WorkerRef;
use farm_core::messaging::{CallError, MessageId, ReplyCont};
use farm_core::worker::{Cont, Worker};
use farm_txn::tasks::{Answer, Slot, answer};
use farm_txn::{Abort, Handle, TxError};

use crate::KvError;

/// Runs `work` with the worker of the calling task.
pub(crate) fn at_once<R>(farm: &Handle, work: impl FnOnce(&mut Worker) -> R) -> R {
    farm.at_once(work)
        .expect("tables are created and opened by tasks of the worker")
}

/// Sends a request, and returns the reply. If the rings are full, waits for room first.
///
/// # Errors
/// [`KvError::PeerLost`]; [`KvError::Catalog`] if this machine stops, or the request is impossible.
pub(crate) async fn call(
    farm: &Handle,
    to: WorkerRef,
    id: MessageId,
    body: &[u8],
    most_reply: usize,
) -> Result<Vec<u8>, KvError> {
    loop {
        let body = body.to_vec();
        let start = move |worker: &mut Worker, slot: Slot| {
            let cont = ReplyCont::new(came, slot);
            if let Err(error) = worker.call(to, id, &[&body], most_reply, cont) {
                answer(worker, slot, |answer| answer.fail(failed(error)));
            }
        };
        let take = |answer: &mut Answer| Ok(std::mem::take(&mut answer.ok()?.bytes));
        match farm.call(start, take).await {
            Err(TxError::Busy) => room(farm).await,
            reply => return reply.map_err(KvError::of_catalog),
        }
    }
}

fn came(worker: &mut Worker, slot: Slot, reply: Result<&[u8], CallError>) {
    answer(worker, slot, |answer| match reply {
        Ok(bytes) => answer.bytes.extend_from_slice(bytes),
        Err(error) => answer.fail(failed(error)),
    });
}

fn failed(error: CallError) -> TxError {
    match error {
        CallError::Busy => TxError::Busy,
        CallError::PeerLost(machine) => Abort::Lost(machine).into(),
        error => TxError::Refused(error.to_string()),
    }
}

/// Waits until there may be room for a request.
async fn room(farm: &Handle) {
    let start = |worker: &mut Worker, slot: Slot| {
        let room = |worker: &mut Worker, slot, ()| answer(worker, slot, |_| ());
        worker.when_room(Cont::new(room, slot));
    };
    farm.call(start, |_| ()).await;
}
