//! What recovery decides, from the logs of all machines or of those that are left when some are lost.
//!
//! - A transaction of which any machine has a COMMIT-PRIMARY record may have been reported as committed: recovery commits it.
//! - One of which any machine has an ABORT record may have been reported as aborted: recovery aborts it.
//! - What is committed can be installed in all regions: each has a replica with a record that has the values, or that knows that the
//!   transaction has ended.
//! - No two transactions that are committed give an object the same version.

use std::collections::{BTreeMap, BTreeSet};

use farm_core::ids::{MachineId, RegionId};
use farm_core::marks;
use farm_core::region::map::Replicas;
use farm_txn::record::{Kind, TxId};
use farm_txn::recovery::{Decision, Vote};

use super::{Kept, Loss, recovers};
use crate::cluster::Copies;

/// Checks the decisions about all transactions, with any machines lost without which each region has a replica. Returns the
/// transactions that are committed if none is lost.
///
/// # Errors
/// The first violation.
pub(super) fn check(kept: &Kept, all: &[Copies]) -> Result<BTreeSet<TxId>, String> {
    let regions: BTreeMap<RegionId, Replicas> = all
        .iter()
        .filter_map(|copies| {
            let machines = copies.copies.iter().map(|copy| copy.0);
            let others = machines.filter(|machine| *machine != copies.primary);
            let replicas = Replicas::new([copies.primary].into_iter().chain(others));
            Some((copies.region, replicas?))
        })
        .collect();
    if all.iter().any(|copies| copies.copies.is_empty()) {
        // The cluster halts. What was committed is what any record says.
        return Ok(kept.objects.keys().copied().collect());
    }
    let has_memory = all.iter().flat_map(|copies| &copies.copies);
    let machines: BTreeSet<MachineId> = has_memory.map(|copy| copy.0).collect();
    let primaries = all.iter().map(|copies| copies.primary);
    let without_memory = primaries.filter(|primary| !machines.contains(primary));
    let without_memory: Vec<MachineId> = without_memory.collect();
    let machines: Vec<MachineId> = machines.into_iter().collect();
    let mut committed = BTreeSet::new();
    for chosen in 0..1u32 << machines.len() {
        let chosen = (0..machines.len()).filter(|place| chosen >> place & 1 == 1);
        let loss = Loss {
            regions: &regions,
            lost: chosen
                .map(|place| machines[place])
                .chain(without_memory.iter().copied())
                .collect(),
        };
        if !loss.leaves_all() {
            continue;
        }
        let decided = check_loss(kept, &loss)?;
        check_recovery(kept, all, &loss, &decided)?;
        if loss.lost.len() == without_memory.len() {
            committed = decided;
        } else if decided != committed {
            marks::mark("kept: a loss changes a decision");
        }
    }
    check_versions(kept, &committed)?;
    Ok(committed)
}

/// Returns the transactions that are committed.
fn check_loss(kept: &Kept, loss: &Loss<'_>) -> Result<BTreeSet<TxId>, String> {
    let mut committed = BTreeSet::new();
    for (id, found) in kept.findings.all() {
        let evidence = |region| {
            kept.findings
                .evidence(id, &loss.replicas(region), &loss.lost)
        };
        // A transaction without values on any machine is not recovered: they are lost, or were freed after it had ended.
        if !found.regions().any(|region| evidence(region).has_body()) {
            continue;
        }
        let decision = kept
            .findings
            .decide(id, |region| loss.replicas(region), &loss.lost);
        let anywhere = found.anywhere();
        let reported = match () {
            () if anywhere.has(Kind::CommitPrimary) => Some(Decision::Commit),
            () if anywhere.has(Kind::Abort) => Some(Decision::Abort),
            () => None,
        };
        let votes = || {
            let vote = |region| kept.findings.vote(id, &loss.replicas(region), &loss.lost);
            let votes: Vec<(RegionId, Vote)> =
                found.regions().map(|one| (one, vote(one))).collect();
            format!(
                "transaction {} of {}, without {:?}: {votes:?}",
                id.sequence, id.coordinator, loss.lost
            )
        };
        if reported.is_some_and(|reported| reported != decision) {
            return Err(format!(
                "recovery decides {decision:?}, and the records of all machines are {anywhere:?}: {}",
                votes()
            ));
        }
        if reported.is_none() {
            marks::mark(match decision {
                Decision::Commit => "kept: recovery commits a transaction in doubt",
                Decision::Abort => "kept: recovery aborts a transaction in doubt",
            });
        }
        if decision == Decision::Commit {
            let lacks = |region: &RegionId| {
                let ended = kept
                    .findings
                    .is_truncated(id, &loss.replicas(*region), &loss.lost);
                !ended && !evidence(*region).has_body()
            };
            if let Some(region) = found.regions().find(lacks) {
                return Err(format!(
                    "no replica of {region} has the values of {}",
                    votes()
                ));
            }
            committed.insert(id);
        }
    }
    Ok(committed)
}

/// Checks that the code of production recovers all replicas, and decides as these rules say.
fn check_recovery(
    kept: &Kept,
    all: &[Copies],
    loss: &Loss<'_>,
    committed: &BTreeSet<TxId>,
) -> Result<(), String> {
    let without = || format!("without {:?}: ", loss.lost);
    let decisions = recovers::check(kept, all, loss, committed).map_err(|why| without() + &why)?;
    for (id, decision) in decisions {
        let by_rules = match committed.contains(&id) {
            true => Decision::Commit,
            false => Decision::Abort,
        };
        if decision != by_rules {
            let (sequence, coordinator) = (id.sequence, id.coordinator);
            return Err(format!(
                "{}transaction {sequence} of {coordinator}: the code of recovery decides {decision:?}, its rules {by_rules:?}",
                without()
            ));
        }
    }
    Ok(())
}

fn check_versions(kept: &Kept, committed: &BTreeSet<TxId>) -> Result<(), String> {
    let mut writers = BTreeMap::new();
    for id in committed {
        for place in kept.objects.get(id).into_iter().flatten() {
            if let Some(other) = writers.insert(*place, id) {
                let (address, version) = place;
                return Err(format!(
                    "recovery commits two transactions with version {version} of {address}: {other:?} and {id:?}"
                ));
            }
        }
    }
    Ok(())
}
