//! How the transactions of a machine end when it leaves the cluster: see [`farm_core::worker::LeaveHook`].
//!
//! From the beginning, no commit begins, and no room is reserved on other machines: these end with
//! [`TxError::Stopped`](crate::TxError::Stopped). Commits that have begun end. Transactions that stay open are aborted, so that
//! the room that they reserved is released.

use farm_core::worker::{LeaveHook, Worker};

use crate::api;
use crate::calls::ArrayCont;
use crate::handle::TxHandle;
use crate::layer::{Transactions, transactions};

pub(crate) fn attach(worker: &mut Worker) {
    worker.on_leave(LeaveHook {
        begin: |worker| transactions(worker).leaving = true,
        give_up: abort_all,
        unfinished: |worker| first_held(&changes_under_way(transactions(worker))),
    });
}

/// Aborts all transactions that are open by handles.
fn abort_all(worker: &mut Worker) {
    let open = transactions(worker).open.iter();
    let open: Vec<TxHandle> = open
        .map(|(key, open)| TxHandle {
            key: key as u32,
            generation: open.generation,
        })
        .collect();
    for tx in open {
        api::abort(worker, tx);
    }
}

/// Returns the numbers of what is under way and other machines depend on, with their names: changes of their memory, and recovery,
/// which they would have to begin again.
pub(crate) fn changes_under_way(state: &Transactions) -> [(&'static str, usize); 9] {
    let calls = state.calls.iter().filter(|(_, call)| call.allocates);
    let arrays = state.arrays.iter();
    let arrays = arrays.filter(|(_, array)| matches!(array.cont, ArrayCont::Allocated(_)));
    [
        ("commits", state.commits.len()),
        // Also transactions that were reported: a lost machine may not have acknowledged their ends.
        (
            "transactions that are not finished",
            state.truncations.unfinished(),
        ),
        (
            "commits that wait for regions",
            state.waiting_for_regions.len(),
        ),
        ("commits that wait for room in logs", state.queues.waiting()),
        ("allocations on other machines", calls.count()),
        ("allocations of arrays", arrays.count()),
        ("slots to release", state.releases.len()),
        ("truncations to send", state.truncations.waiting()),
        (
            "recoveries that have not ended",
            usize::from(state.recovering.is_under_way()),
        ),
    ]
}

/// Describes the first number that is not zero.
pub(crate) fn first_held(held: &[(&str, usize)]) -> Option<String> {
    let (what, count) = held.iter().find(|(_, count)| *count > 0)?;
    Some(format!("{count} {what}"))
}
