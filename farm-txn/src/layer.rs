//! What the transaction layer keeps with each worker: a pool of contexts, and the transactions that
//! are open through handles.

use farm_core::ids::{Address, WorkerId, WorkerRef};
use farm_core::messaging::{CallError, MessageId};
use farm_core::worker::{Cont, Worker};

use crate::api::{Open, Step};
use crate::tx::Tx;

/// A freed slot on its way to the worker that owns its block.
const RELEASE: MessageId = MessageId(MessageId::TXN);

/// State of the layer on one worker.
#[derive(Default)]
pub(crate) struct Transactions {
    pool: Vec<Tx>,
    pub(crate) open: slab::Slab<Open>,
    /// Results on their way to continuations.
    pub(crate) steps: slab::Slab<Step>,
    pub(crate) generation: u32,
    releases: Vec<(WorkerId, Address)>,
}

/// Attaches the transaction layer to a worker.
pub fn attach(worker: &mut Worker) {
    worker.put_layer(Box::<Transactions>::default());
    worker.register(RELEASE, crate::commit::released);
}

/// A context from the worker's pool. [`give`] it back when the transaction has ended.
///
/// # Panics
/// If the layer is not attached.
pub fn take(worker: &mut Worker) -> Tx {
    transactions(worker).pool.pop().unwrap_or_else(Tx::new)
}

/// Gives a context back; whatever it still holds is aborted.
pub fn give(worker: &mut Worker, mut tx: Tx) {
    if !tx.is_empty() {
        tx.abort(worker);
    }
    transactions(worker).pool.push(tx);
}

pub(crate) fn transactions(worker: &mut Worker) -> &mut Transactions {
    worker
        .layer()
        .expect("farm_txn::attach was called for this worker")
}

pub(crate) fn send_release(worker: &mut Worker, owner: WorkerId, address: Address) {
    let releases = &mut transactions(worker).releases;
    releases.push((owner, address));
    // More than one, and they wait for room already.
    if releases.len() == 1 {
        flush_releases(worker, 0, ());
    }
}

fn flush_releases(worker: &mut Worker, _: u64, (): ()) {
    let machine = worker.me().machine;
    while let Some(&(owner, address)) = transactions(worker).releases.last() {
        let to = WorkerRef::new(machine, owner);
        match worker.send(to, RELEASE, &[&address.to_bits().to_le_bytes()]) {
            Err(CallError::Busy) => return worker.when_room(Cont::new(flush_releases, 0)),
            _ => transactions(worker).releases.pop(),
        };
    }
}
