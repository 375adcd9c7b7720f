//! The connections of a worker to the workers of other machines, which begin and end while it runs.
//!
//! A connection is one to a start of a machine's process. When it ends, all that this worker has of it goes: the rings, the logs
//! at that machine, and the calls without a reply. Of the logs of that machine here, the records stay that are still needed.
//! [`Membership`](crate::membership::Membership) decides what the end means for the cluster. A machine that is started again gets new
//! rings and logs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Worker;
use crate::fabric::Departure;
use crate::ids::{MachineId, WorkerId};
use crate::marks;
use crate::membership::Stop;
use crate::messaging::{CallError, LinkError, LinkPeer};

/// Connects all workers of this machine to a machine that has connected to it. Each worker does so by a work item of its own, at a
/// time of its own.
pub struct Linking {
    peer: LinkPeer,
    /// Number of workers that are not connected yet.
    unlinked: AtomicUsize,
}

impl Linking {
    /// Prepares to connect the workers of a machine that has this number of them.
    pub fn new(peer: LinkPeer, workers: usize) -> Self {
        let unlinked = AtomicUsize::new(workers);
        Self { peer, unlinked }
    }

    /// Connects a worker. The worker that is connected last [announces](Worker::announce_linked) it to the machine. Logs a warning if the
    /// machine has ended again.
    ///
    /// If the configuration that the worker has applied has an earlier process of the machine, which stores memory, the worker is connected
    /// when it has applied the next one: until then it may have reserved room in the logs of that process.
    pub fn link(self: &Arc<Self>, worker: &mut Worker) {
        let machine = self.peer.machine;
        if worker.survives() && worker.membership.stores(machine) {
            marks::mark("worker: waits with a connection for the next configuration");
            worker.unlinked.push(Arc::clone(self));
            return;
        }
        match worker.link(&self.peer) {
            Ok(()) if self.unlinked.fetch_sub(1, Ordering::AcqRel) == 1 => {
                worker.announce_linked(machine);
            }
            Ok(()) => marks::mark("worker: linked before another worker"),
            Err(error) => {
                tracing::warn!(%machine, worker = %worker.me(), %error, "cannot connect to a machine; it may have ended again");
            }
        }
    }
}

impl Worker {
    /// Connects this worker to the machines that are no members of the configuration that it has applied.
    pub(super) fn link_unlinked(&mut self) {
        for linking in std::mem::take(&mut self.unlinked) {
            linking.link(self);
        }
    }

    /// Connects this worker to the workers of a machine that has connected to this machine. If this worker has not noticed yet
    /// that an earlier connection to the machine has ended, it notices it first.
    ///
    /// # Errors
    /// [`LinkError`], for example if the machine has departed again.
    ///
    /// # Panics
    /// If the configuration does not list the machine with this number of workers.
    pub fn link(&mut self, peer: &LinkPeer) -> Result<(), LinkError> {
        let place = self
            .machine_place(peer.machine)
            .expect("only machines that the configuration lists connect");
        assert_eq!(
            self.machines()[place].1,
            peer.workers,
            "machine {} has another number of workers than the configuration lists",
            peer.machine
        );
        self.endpoint.poll(0, &mut self.completions);
        self.notice_departures();
        if self.messaging.is_linked(place) {
            self.unlink(peer.machine);
        }
        let made = self.messaging.wire(&mut self.endpoint, (place, peer))?;
        self.messaging.link(
            (place, peer.theirs.boot),
            made.out,
            made.credits,
            made.incoming,
        );
        self.logs.link(place, made.log_out, made.logs_in);
        self.epochs.on_joined(peer.machine, peer.workers);
        self.complete_if_joined();
        marks::mark("worker: machine linked");
        Ok(())
    }

    /// Returns whether this worker has rings to a machine of the cluster.
    pub(super) fn is_linked_to(&self, machine: MachineId) -> bool {
        let place = self.machine_place(machine);
        place.is_ok_and(|place| self.messaging.is_linked(place))
    }

    /// Handles the ends of connections that the fabric reports.
    pub(super) fn notice_departures(&mut self) {
        while let Some((machine, how)) = self.endpoint.take_broken() {
            marks::mark("worker: departure noticed");
            self.depart(machine, how);
            self.unlink_after(machine, how);
            self.on_departed(machine, how);
            self.complete_if_joined();
        }
    }

    /// Handles what the end of a connection means for the cluster.
    fn depart(&mut self, machine: MachineId, how: Departure) {
        match self.membership.departed(machine, how) {
            None => {
                // Each worker notices it; one of them reports it.
                if self.me.worker == WorkerId::FIRST && how == Departure::Left {
                    tracing::info!(%machine, "a machine without memory has left; the cluster continues");
                }
                let boot = self.messaging.boot_of(machine);
                match how == Departure::Left || self.endpoint.has_died(machine, boot) {
                    true => self.end_epochs_without(machine),
                    // It may run, and read what others have not closed to it: nothing is freed before the next configuration is in
                    // effect.
                    false => self.abandon_epoch_change(),
                }
            }
            Some(stop) => {
                match stop {
                    Stop::Left(_) => self.control.end(stop.to_string()),
                    _ => self.control.fail(stop.to_string()),
                }
                self.abandon_epoch_change();
            }
        }
    }

    /// Drops what this worker has of a connection to a machine that may be lost, and ends its calls.
    pub(super) fn unlink(&mut self, machine: MachineId) {
        self.unlink_after(machine, Departure::Lost);
    }

    /// As [`Worker::unlink`], after the connection has ended in this way.
    fn unlink_after(&mut self, machine: MachineId, how: Departure) {
        // A process with memory that was no member has written no record.
        let joins = self.store.placement().contains(machine) && !self.membership.stores(machine);
        let drains = how == Departure::Lost && self.membership.survives() && !joins;
        if let Ok(place) = self.machine_place(machine) {
            self.logs.unlink(place, machine, drains);
        }
        self.long.unlink(machine);
        self.newcomers.forget(machine);
        self.connectivity.forget(machine);
        let mut lost = Vec::new();
        self.messaging.unlink(machine, &mut lost);
        for cont in lost {
            marks::mark("message: call lost with its machine");
            cont.resume(self, Err(CallError::PeerLost(machine)));
        }
    }
}
