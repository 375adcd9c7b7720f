//! A configuration on the workers of a machine: it is applied, then it is in effect.

use std::sync::Arc;

use super::super::{Cont, Worker};
use super::{APPLIED, APPLY, COMMIT};
use crate::ids::{MachineId, WorkerId, WorkerRef};
use crate::marks;
use crate::membership::configuration::{Configuration, Process};
use crate::membership::manager::Manager;

impl Worker {
    /// Begins to apply a configuration on all workers of this machine.
    pub(super) fn begin_to_apply(&mut self, configuration: Arc<Configuration>) {
        let id = configuration.version.id;
        tracing::info!(configuration = %configuration.version, "applying another configuration");
        if let Some(driver) = &mut self.members.driver {
            // The end of these is awaited, also of one to which this machine was never connected.
            let left = configuration.expiring.iter();
            let awaited = left.filter(|one| !driver.value.is_evicted(**one));
            driver.may_live.extend(awaited);
        }
        self.store.apply(configuration);
        if let Some(manager) = &mut self.recorder.manager {
            manager.fall_behind();
        }
        self.extending.give_up();
        let others = self.other_own_workers();
        if let Some(driver) = &mut self.members.driver {
            driver.applying = Some((id, others.len() + 1));
            driver.awaits_leases = None;
        }
        for worker in others {
            self.send_long(worker, APPLY, id.to_le_bytes().into());
        }
        self.apply_soon(id);
    }

    /// Applies a configuration on this worker, from the event loop: rings that are being polled must not go away meanwhile, and the
    /// value must not be asked while it gives actions.
    pub(super) fn apply_soon(&mut self, id: u64) {
        let apply = |worker: &mut Worker, id: u64, ()| worker.apply_here(id);
        self.defer(Cont::new(apply, id));
    }

    /// Begins with the configuration that the store has applied, whose machines go on with what their earlier processes have kept. To be
    /// called on each worker, before its first turn.
    ///
    /// # Panics
    /// If the store has applied none.
    pub fn resume(&mut self) {
        let configuration = self.store.applied();
        let configuration = configuration.expect("the store has applied the configuration");
        for hook in 0..self.members.hooks.len() {
            (self.members.hooks[hook].apply)(self, &configuration);
        }
        self.freeze_logs();
        self.pause_filling();
        marks::mark("membership: a worker goes on after all machines had ended");
        self.commit_soon(configuration.version.id);
    }

    /// Applies a configuration on this worker, unless a later one follows.
    fn apply_here(&mut self, id: u64) {
        let Some(configuration) = self.store.applied_as(id) else {
            return;
        };
        let is_member = |machine: MachineId| configuration.member(machine).is_some();
        // A process that is no member, and was none, joins.
        let has_left = |one: &Process| configuration.expiring.contains(one);
        let machines = self.machines().iter().map(|machine| machine.0);
        let linked = machines.filter(|machine| self.is_linked_to(*machine));
        let linked = linked.map(|machine| self.connected_process(machine));
        for left in linked.filter(has_left).collect::<Vec<_>>() {
            self.endpoint.close_start(left.machine, left.boot);
            self.unlink(left.machine);
        }
        self.regions.forget(is_member);
        self.membership.apply(&configuration);
        self.reconsider_regions(&configuration);
        for hook in 0..self.members.hooks.len() {
            (self.members.hooks[hook].apply)(self, &configuration);
        }
        self.freeze_logs();
        self.pause_filling();
        self.link_unlinked();
        marks::mark("membership: a worker has applied a configuration");
        match self.me.worker == WorkerId::FIRST {
            true => self.on_applied_by_one(id),
            false => self.send_long(
                WorkerRef::first_of(self.me.machine),
                APPLIED,
                id.to_le_bytes().into(),
            ),
        }
    }

    pub(super) fn on_applied_by_one(&mut self, id: u64) {
        let Some(driver) = &mut self.members.driver else {
            return;
        };
        let Some((_, left)) = driver.applying.as_mut().filter(|one| one.0 == id) else {
            return;
        };
        *left -= 1;
        if *left == 0 {
            driver.applying = None;
            driver.awaits_leases = Some(id);
            self.answer_if_leases_have_ended();
            self.look_soon();
        }
    }

    /// Answers that this machine has applied a configuration, if leases by time that it has granted to machines that have left have ended.
    pub(super) fn answer_if_leases_have_ended(&mut self) {
        let have_ended = self.have_leases_ended();
        let driver = self.members.driver.as_mut().filter(|_| have_ended);
        let Some(id) = driver.and_then(|driver| driver.awaits_leases.take()) else {
            return;
        };
        self.drive(|value, out| value.on_applied(id, out));
    }

    /// Begins to serve a configuration that is in effect.
    pub(super) fn begin_to_serve(&mut self, configuration: &Arc<Configuration>) {
        let id = configuration.version.id;
        tracing::warn!(
            configuration = %configuration.version,
            "the cluster goes on with {} of {} machines",
            configuration.running().count(),
            self.machines().len()
        );
        self.manage_next(configuration);
        let is_new = self.store.is_used() && !self.store.map().is_complete();
        if is_new && configuration.stores(self.me.machine) {
            self.complete_join();
        }
        for worker in self.other_own_workers() {
            self.send_long(worker, COMMIT, id.to_le_bytes().into());
        }
        self.commit_soon(id);
    }

    /// After [`Worker::apply_soon`] of the same configuration.
    pub(super) fn commit_soon(&mut self, id: u64) {
        let commit = |worker: &mut Worker, id: u64, ()| worker.commit_here(id);
        self.defer(Cont::new(commit, id));
    }

    fn commit_here(&mut self, id: u64) {
        let Some(configuration) = self.store.applied_as(id) else {
            return;
        };
        self.end_epochs_without_lost(&configuration);
        for hook in 0..self.members.hooks.len() {
            (self.members.hooks[hook].commit)(self, &configuration);
        }
    }

    /// Begins, continues or ends to run the manager, as a configuration says.
    fn manage_next(&mut self, configuration: &Configuration) {
        if configuration.manager != self.me.machine {
            self.recorder.manager = None;
            return;
        }
        if self.recorder.manager.is_some() {
            return self.recorder.rebase(configuration.clone());
        }
        let Some(driver) = &self.members.driver else {
            return;
        };
        match driver.store.writer() {
            Ok(writer) => {
                let manager = Manager::new(configuration.clone(), writer).among_others();
                self.recorder
                    .set_manager(Box::new(manager), self.messaging.max_body());
            }
            Err(why) => self.control.fail(format!(
                "this machine cannot manage the configuration: {why}"
            )),
        }
    }
}
