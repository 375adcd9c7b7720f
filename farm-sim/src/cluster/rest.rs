//! Checks of a cluster at rest: everything that operations took has been returned. Machines that have left hold nothing.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use farm_core::alloc::{BlockTable, Difference, compare_replicas};
use farm_core::ids::{MachineId, RegionId};
use farm_core::marks;
use farm_core::membership::configuration::RegionReplicas;
use farm_core::region::map::Replicas;
use farm_core::worker::Worker;

use super::{Cluster, Copies, Machine, Stepped};

/// Maximum number of steps until the cluster is at rest.
const MOST_STEPS: u64 = 2_000_000;
/// Number of consecutive steps for which the cluster must appear at rest before the final check.
const QUIET_STEPS: u32 = 200;

impl Cluster {
    /// Steps the cluster until no operation is under way, and checks that everything has been returned.
    ///
    /// # Errors
    /// If the cluster does not come to rest, if all machines stop, or if something was not returned.
    pub fn come_to_rest(&self) -> Result<(), String> {
        self.come_to_rest_with(&|_| None)
    }

    /// As [`Cluster::come_to_rest`]. In addition, `left_over` returns a description of the resources of operations that
    /// the layers above still hold on a worker; `None` if they hold none.
    ///
    /// # Errors
    /// As [`Cluster::come_to_rest`], and if a layer above still holds a resource of an operation.
    pub fn come_to_rest_with(
        &self,
        left_over: &dyn Fn(&mut Worker) -> Option<String>,
    ) -> Result<(), String> {
        let left = |worker| self.inspect(worker, left_over);
        let is_left = || self.running().find_map(left);
        let mut quiet = 0;
        for _ in 0..MOST_STEPS {
            let stepped = self.step();
            if stepped == Stepped::Stopped {
                return Err(format!(
                    "the cluster stopped before it was at rest: {:?}",
                    self.failures()
                ));
            }
            let at_rest = self
                .running()
                .all(|worker| self.inspect(worker, |worker| worker.check_at_rest().is_ok()));
            let (sent, received) = self.carried();
            let is_linked = self.parts.links.borrow().is_empty();
            let at_rest = at_rest && is_linked && sent == received && is_left().is_none();
            let at_rest = at_rest && !self.changes_configuration();
            quiet = if at_rest { quiet + 1 } else { 0 };
            let quiet_for_long = quiet > QUIET_STEPS || quiet > 0 && stepped == Stepped::Waited;
            if quiet_for_long && !self.fabric().step() {
                self.fabric().drain();
                return self.check_at_rest();
            }
        }
        self.check_at_rest()?;
        is_left().map_or(Ok(()), Err)?;
        Err("the cluster is not at rest after the maximum number of steps, although no worker holds a resource".into())
    }

    /// Returns the workers of machines that run.
    pub fn running(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.workers()).filter(|worker| self.is_running(*worker))
    }

    /// Returns the machines that do not run.
    fn gone(&self) -> impl Iterator<Item = MachineId> + '_ {
        let machines = self.parts.machines.iter();
        let gone = machines.filter(|machine| !machine.is_running());
        gone.map(|machine| machine.id)
    }

    /// Returns whether a machine that was lost is still a member of the configuration, which will change, a region has too few full
    /// replicas, or a worker does not know the newest configuration.
    pub fn changes_configuration(&self) -> bool {
        if !self.parts.limits.survives {
            return false;
        }
        let newest = self.parts.changes.newest();
        let is_member = |machine: &Machine| {
            // Others may have left in order.
            let is_lost =
                machine.killed.load(Ordering::Relaxed) || machine.control().failure().is_some();
            is_lost && newest.has(self.parts.process_of(machine))
        };
        let storing = newest.members.iter().filter(|member| member.stores);
        let most = self.parts.limits.replicas.min(storing.count());
        let lacks = |region: &RegionReplicas| {
            let full = region.replicas.iter().filter(|one| one.is_full());
            full.count() < most
        };
        let id = newest.version.id;
        let is_behind = |worker: &mut Worker| worker.membership().configuration() != id;
        let joins =
            |machine: &Machine| machine.is_running() && !machine.store().map().is_complete();
        self.parts.machines.iter().any(is_member)
            || self.parts.machines.iter().any(joins)
            || newest.regions.iter().any(lacks)
            || self.running().any(|worker| self.inspect(worker, is_behind))
    }

    /// Returns the bytes that all workers sent through rings and logs, and the bytes that they received and freed.
    fn carried(&self) -> (u64, u64) {
        let all = self
            .running()
            .map(|worker| self.inspect(worker, |worker| worker.ring_bytes_carried()));
        all.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    /// Compares all replicas of all regions with their primaries. Returns the number of objects that were compared.
    ///
    /// # Errors
    /// The first difference.
    pub fn check_replicas(&self) -> Result<u64, String> {
        self.check_maps()?;
        let mut compared = 0;
        for Copies {
            region,
            primary,
            copies,
        } in self.copies()
        {
            let (mut of_primary, backups): (Vec<_>, Vec<_>) = copies
                .into_iter()
                .partition(|(machine, _)| *machine == primary);
            let Some((_, primary_memory)) = of_primary.pop() else {
                continue;
            };
            let open = |memory| BlockTable::open(memory, region).map_err(Difference::from);
            for (backup, copy) in backups {
                let tables = open(primary_memory.clone()).and_then(|one| Ok((one, open(copy)?)));
                let same = tables.and_then(|(one, other)| compare_replicas(&one, &other));
                compared += same
                    .map_err(|why| format!("the copies on {primary} and {backup} differ: {why}"))?;
            }
        }
        Ok(compared)
    }

    /// Checks that all machines that run know the regions of the newest configuration, with their replicas. Only machines of a cluster that
    /// survives losses have one.
    fn check_maps(&self) -> Result<(), String> {
        if !self.parts.limits.survives {
            return Ok(());
        }
        let newest = self.parts.changes.newest();
        let expected = newest.regions.iter().filter_map(Replicas::recorded);
        let expected: BTreeMap<RegionId, Replicas> = expected.collect();
        for machine in self.present().filter(|machine| machine.is_running()) {
            let store = machine.store();
            let known: BTreeMap<RegionId, Replicas> = store.map().all().into_iter().collect();
            if known != expected && store.map().is_complete() {
                return Err(format!(
                    "{} knows other replicas than {}: {known:?} instead of {expected:?}",
                    machine.id, newest.version
                ));
            }
        }
        Ok(())
    }

    /// Checks that everything was returned, that all sent bytes were received, and that all rings and logs are empty
    /// and zero.
    ///
    /// # Errors
    /// The first violation.
    pub fn check_at_rest(&self) -> Result<(), String> {
        for worker in self.running() {
            self.inspect(worker, |worker| worker.check_at_rest())
                .map_err(|leftover| leftover.to_string())?;
        }
        let (sent, received) = self.carried();
        if sent != received {
            return Err(format!(
                "{sent} bytes were sent through rings and logs, but {received} bytes were received and freed"
            ));
        }
        let gone: Vec<MachineId> = self.gone().collect();
        let running = self.parts.machines.iter();
        for machine in running.filter(|machine| machine.is_running()) {
            let process = machine.process.borrow();
            let segments = process.segments.iter();
            for segment in segments.filter(|segment| !gone.contains(&segment.peer)) {
                let rings = segment.memory.window(0, segment.layout.head(0));
                let word = |at: &usize| rings.load(*at, Ordering::Relaxed) != 0;
                if let Some(at) = (0..rings.len()).step_by(8).find(word) {
                    let id = machine.id;
                    return Err(format!(
                        "machine {id} has a ring or log that is not empty: the word at byte {at:#x} is not zero"
                    ));
                }
            }
        }
        let compared = self.check_replicas()?;
        if compared > 0 {
            marks::mark("replicas: compared");
        }
        Ok(())
    }
}
