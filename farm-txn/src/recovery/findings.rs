//! What the records of logs say about transactions.

use std::collections::{BTreeMap, BTreeSet};

use farm_core::ids::{MachineId, RegionId};
use farm_core::region::map::Replicas;

use super::{Coordinator, Decision, Evidence, LowBounds, Vote};
use crate::record::{Record, RecordError, TxId};

/// A transaction of which a record was found.
#[derive(Clone, Debug, Default)]
pub struct Found {
    regions: BTreeSet<RegionId>,
    /// The kinds of records found on each machine.
    on: BTreeMap<MachineId, Evidence>,
}

impl Found {
    /// Returns the regions that the transaction wrote; none if no record with values was found.
    pub fn regions(&self) -> impl Iterator<Item = RegionId> + '_ {
        self.regions.iter().copied()
    }

    /// Returns what is known of the transaction on any machine.
    pub fn anywhere(&self) -> Evidence {
        self.on
            .values()
            .fold(Evidence::NONE, |all, on| all.and(*on))
    }
}

/// What the logs of machines say about the transactions of coordinators that have ended.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    found: BTreeMap<TxId, Found>,
    /// The low bounds that each machine knows.
    low: BTreeMap<MachineId, LowBounds>,
}

impl Findings {
    /// Adds a record of transaction `id` in a log on `machine`.
    ///
    /// # Errors
    /// [`RecordError`] if the record names regions that cannot exist.
    pub fn add(
        &mut self,
        machine: MachineId,
        id: TxId,
        record: &Record<'_>,
    ) -> Result<(), RecordError> {
        self.add_low(machine, (id.configuration, id.coordinator), record.low);
        let evidence = Evidence::of(record.kind);
        if evidence == Evidence::NONE {
            return Ok(());
        }
        let found = self.found.entry(id).or_default();
        let on = found.on.entry(machine).or_default();
        *on = on.and(evidence);
        if evidence.has_body() {
            for region in record.lock()?.regions() {
                found.regions.insert(region?);
            }
        }
        Ok(())
    }

    /// Adds a low bound that a machine knows: all transactions of the coordinator in the configuration below it have ended.
    pub fn add_low(&mut self, machine: MachineId, coordinator: Coordinator, low: u64) {
        let known = self.low.entry(machine).or_default();
        known.raise(coordinator, low);
    }

    /// Returns all transactions of which a record was found.
    pub fn all(&self) -> impl Iterator<Item = (TxId, &Found)> {
        self.found.iter().map(|(id, found)| (*id, found))
    }

    /// Returns what was found of a transaction.
    pub fn found(&self, id: TxId) -> Option<&Found> {
        self.found.get(&id)
    }

    /// Returns what is known of a transaction in a region with these replicas, on those that are not `lost`.
    pub fn evidence(&self, id: TxId, replicas: &Replicas, lost: &[MachineId]) -> Evidence {
        let found = self.found.get(&id);
        let on = |machine: MachineId| {
            let kinds = match machine == replicas.primary() {
                true => Evidence::AT_PRIMARY,
                false => Evidence::AT_BACKUP,
            };
            let on = found.and_then(|found| found.on.get(&machine));
            on.map_or(Evidence::NONE, |on| on.only(kinds))
        };
        left(replicas, lost)
            .map(on)
            .fold(Evidence::NONE, Evidence::and)
    }

    /// Returns whether one of the replicas that are not `lost` knows that the transaction has ended.
    pub fn is_truncated(&self, id: TxId, replicas: &Replicas, lost: &[MachineId]) -> bool {
        left(replicas, lost)
            .filter_map(|machine| self.low.get(&machine))
            .any(|low| low.have_passed(id))
    }

    /// Returns the vote on a transaction of a region with these replicas, by what is known on those that are not `lost`.
    pub fn vote(&self, id: TxId, replicas: &Replicas, lost: &[MachineId]) -> Vote {
        let truncated = self.is_truncated(id, replicas, lost);
        Vote::of(self.evidence(id, replicas, lost), truncated)
    }

    /// Decides a transaction by the votes of all regions that it wrote, by what is known on machines that are not `lost`. `replicas`
    /// returns the replicas of a region.
    pub fn decide(
        &self,
        id: TxId,
        replicas: impl Fn(RegionId) -> Replicas,
        lost: &[MachineId],
    ) -> Decision {
        let found = self.found.get(&id);
        let regions = found.into_iter().flat_map(Found::regions);
        Decision::of(regions.map(|region| self.vote(id, &replicas(region), lost)))
    }
}

/// Returns the replicas that are not lost.
fn left(replicas: &Replicas, lost: &[MachineId]) -> impl Iterator<Item = MachineId> {
    let all = replicas.all().iter().copied();
    all.filter(|machine| !lost.contains(machine))
}
