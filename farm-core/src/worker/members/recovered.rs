//! Each machine reports that it has recovered; when all have, the manager records it, and tells them.

use std::collections::BTreeSet;

use super::super::Worker;
use super::{ALL_RECOVERED, RECOVERED};
use crate::ids::WorkerRef;

impl Worker {
    /// Reports that this machine has recovered in the configuration with this number. To be called on the first worker.
    pub fn report_recovered(&mut self, id: u64) {
        let manager = self.membership.manager();
        self.send_long(
            WorkerRef::first_of(manager),
            RECOVERED,
            id.to_le_bytes().into(),
        );
    }

    pub(super) fn handle_recovered(&mut self, from: WorkerRef, body: &[u8]) {
        let Some(id) = self.number(from, body) else {
            return;
        };
        let Some(driver) = &mut self.members.driver else {
            return;
        };
        let configuration = driver.value.current().clone();
        if configuration.version.id != id || configuration.manager != self.me.machine {
            return;
        }
        if driver.recovered.0 != id {
            driver.recovered = (id, BTreeSet::new());
        }
        driver.recovered.1.insert(from.machine);
        let mut members = configuration.running();
        if !members.all(|member| driver.recovered.1.contains(&member.machine)) {
            return;
        }
        tracing::info!(configuration = %configuration.version, "all machines have recovered");
        if let Some(manager) = &mut self.recorder.manager {
            manager.record_recovered(id);
        }
        self.manage_soon();
        for member in configuration.running() {
            self.send_long(
                WorkerRef::first_of(member.machine),
                ALL_RECOVERED,
                body.into(),
            );
        }
    }

    pub(super) fn handle_all_recovered(&mut self, from: WorkerRef, body: &[u8]) {
        let Some(id) = self.number(from, body) else {
            return;
        };
        if let Some(driver) = &mut self.members.driver {
            driver.all_recovered = driver.all_recovered.max(id);
        }
        for hook in 0..self.members.hooks.len() {
            (self.members.hooks[hook].forget)(self, id);
        }
        if let Some(configuration) = self.store.applied_as(id) {
            self.fill_replicas(&configuration);
            self.adopt_regions();
        }
    }
}
