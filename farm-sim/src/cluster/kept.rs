//! What the processes of simulated machines keep ([`farm_core::kept`]): it outlives the heap of the process.

use std::collections::BTreeMap;
use std::sync::Mutex;

use farm_core::fabric::Capability;
use farm_core::ids::{MachineId, RegionId};
use farm_core::kept::{Kept, KeptError, Segments};
use farm_core::mem::Memory;
use farm_core::membership::configuration::{Configuration, Process};
use farm_core::ring::KeptLog;

use super::{ClusterLimits, lock};
use crate::fabric::SimFabric;

/// What one process of a machine keeps.
pub(super) struct SimKept {
    fabric: SimFabric,
    limits: ClusterLimits,
    me: Process,
    state: Mutex<State>,
}

#[derive(Clone, Default)]
struct State {
    regions: BTreeMap<RegionId, Memory>,
    /// Memory with logs: the start that exported it, its key and the peer.
    logs: BTreeMap<(u64, u64), (MachineId, Memory)>,
    segments: Segments,
    journal: Vec<(u64, Vec<u8>)>,
}

impl SimKept {
    /// Returns what a new process keeps: nothing.
    pub(super) fn new(fabric: &SimFabric, limits: &ClusterLimits, me: Process) -> Self {
        Self {
            fabric: fabric.clone(),
            limits: *limits,
            me,
            state: Mutex::default(),
        }
    }

    /// Returns what a new process keeps that takes over what an earlier one has kept, as far as a configuration names it.
    pub(super) fn take_over(&self, me: Process, newest: &Configuration) -> Self {
        let mut state = lock(&self.state).clone();
        state.segments = Segments::default();
        let own: Vec<RegionId> = newest.full_on(me.machine).collect();
        state.regions.retain(|region, _| own.contains(region));
        assert_eq!(state.regions.len(), own.len(), "a region was not kept");
        Self {
            fabric: self.fabric.clone(),
            limits: self.limits,
            me,
            state: Mutex::new(state),
        }
    }

    /// Exports the memory of regions that was taken over.
    pub(super) fn export_regions(&self) -> Vec<(RegionId, (Memory, Capability))> {
        let regions = lock(&self.state).regions.clone();
        let export = |memory| self.fabric.export_again(self.me.machine, memory);
        let regions = regions.into_iter();
        regions
            .map(|(region, memory)| (region, export(memory)))
            .collect()
    }
}

impl Kept for SimKept {
    fn keep_region(&self, region: RegionId, memory: &Capability) -> Result<(), KeptError> {
        let memory = self.fabric.local_view(memory);
        lock(&self.state).regions.insert(region, memory);
        Ok(())
    }

    fn keep_logs(&self, peer: MachineId, memory: &Capability) -> Result<(), KeptError> {
        let kept = (peer, self.fabric.local_view(memory));
        let mut state = lock(&self.state);
        state.logs.insert((self.me.boot, memory.key), kept);
        if let Some((_, key)) = state.segments.add(peer, memory.key) {
            state.logs.remove(&(self.me.boot, key));
        }
        Ok(())
    }

    fn connected(&self, process: Process, memory: &Capability) {
        lock(&self.state).segments.connected(process, memory.key);
    }

    fn left(&self, process: Process) {
        let mut state = lock(&self.state);
        for key in state.segments.left(process) {
            state.logs.remove(&(self.me.boot, key));
        }
    }

    fn earlier_logs(&self) -> Result<Vec<KeptLog>, KeptError> {
        let state = lock(&self.state);
        let logs = state.logs.iter().filter(|(of, _)| of.0 != self.me.boot);
        let logs = logs.flat_map(|((boot, _), (peer, memory))| {
            let layout = self.limits.layout(self.me.machine, *peer);
            layout.kept_logs(memory, *peer, *boot)
        });
        Ok(logs.collect())
    }

    fn forget_earlier_logs(&self) {
        let own = self.me.boot;
        lock(&self.state).logs.retain(|of, _| of.0 == own);
    }

    fn append(&self, configuration: u64, entry: &[u8]) -> Result<(), KeptError> {
        let entry = (configuration, entry.to_vec());
        lock(&self.state).journal.push(entry);
        Ok(())
    }

    fn entries(&self) -> Result<Vec<Vec<u8>>, KeptError> {
        let entries = lock(&self.state).journal.clone();
        Ok(entries.into_iter().map(|entry| entry.1).collect())
    }

    fn clear_before(&self, configuration: &Configuration) -> Result<(), KeptError> {
        let mut state = lock(&self.state);
        for (_, key) in state.segments.take_drained(configuration) {
            state.logs.remove(&(self.me.boot, key));
        }
        let latest = state.journal.iter().map(|entry| entry.0).max();
        if latest.is_none_or(|latest| latest < configuration.version.id) {
            state.journal.clear();
        }
        Ok(())
    }
}
