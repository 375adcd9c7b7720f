//! New objects in regions that are not yet in the region map of every machine: see
//! [`Worker::region_state`]. A commit with such an object waits, and no other machine gets an address in such a region.

use std::time::Duration;

use farm_core::alloc::AllocError;
use farm_core::ids::RegionId;
use farm_core::region::map::Unrecorded;
use farm_core::time::Nanos;
use farm_core::worker::{Cont, Worker};
use farm_core::{marks, mutants};

use crate::calls::WaitingCommit;
use crate::error::TxError;
use crate::layer::transactions;
use crate::tx::Tx;

/// The reply to a request for room on this machine that must be repeated.
pub(crate) const ASK_AGAIN: &[u8] = &[1];
/// Nanoseconds for which a failure is reported to requests of other machines.
const REPEATED_FOR: u64 = 10_000_000;
/// Interval between tries.
pub(crate) const AGAIN_AFTER: Duration = Duration::from_micros(100);

/// Returns the transaction if its commit may begin. Otherwise `again` is called later with the key of the [`WaitingCommit`], or
/// the error says why the commit never begins.
pub(crate) fn before_commit(
    worker: &mut Worker,
    commit: WaitingCommit,
    again: impl Fn(u64) -> Cont<()>,
) -> Result<Box<Tx>, Option<(Box<Tx>, TxError)>> {
    let wait = |worker: &mut Worker, commit| {
        let key = transactions(worker).waiting_for_regions.insert(commit);
        worker.set_timer(AGAIN_AFTER, again(key as u64));
        Err(None)
    };
    if transactions(worker).recovers && !mutants::is_on("commits begin before the locks") {
        marks::mark("commit: waits until objects of lost machines are locked");
        return wait(worker, commit);
    }
    let configuration = transactions(worker).configuration;
    if worker.store().is_past(configuration) {
        marks::mark("commit: waits until its worker has applied a configuration");
        return wait(worker, commit);
    }
    if !worker.store().map().has_unrecorded() {
        return Ok(commit.tx);
    }
    let (tx, since) = (&commit.tx, commit.since);
    let new = |entry: &&crate::tx::Entry| entry.machine.is_none() && entry.is_reserved();
    let regions = tx.entries.iter().filter(new);
    let state = regions
        .map(|entry| entry.address.region())
        .find_map(|region| worker.region_state(region, since));
    match state {
        None => Ok(commit.tx),
        Some(Unrecorded::Failed(why, _)) => {
            let error = TxError::Alloc(AllocError::NoRegion(why));
            Err(Some((commit.tx, error)))
        }
        Some(Unrecorded::UnderWay) => {
            marks::mark("commit: waits for a region");
            wait(worker, commit)
        }
    }
}

/// Returns the reply to a request for room, if no address in the region may be given to another machine.
pub(crate) fn refusal(worker: &mut Worker, region: RegionId) -> Option<&'static [u8]> {
    // The request may be repeated, so that failures of the last moments are its own.
    let since = Nanos(worker.now().0.saturating_sub(REPEATED_FOR));
    match worker.region_state(region, since)? {
        Unrecorded::UnderWay => {
            marks::mark("alloc: another machine asks again");
            Some(ASK_AGAIN)
        }
        Unrecorded::Failed(why, _) => {
            tracing::error!(%region, why, "a region of this machine cannot be used");
            Some(&[])
        }
    }
}
