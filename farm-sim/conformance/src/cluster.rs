//! The interface between the suite and a backend: a cluster of three machines, one of them run by the property.

use std::time::Duration;

use farm_core::fabric::Wake;
use farm_core::ids::MachineId;

use super::roles::Actor;
use super::{Deadline, Hammered, Node, Property, Role, Step};

/// The machine that the property runs itself.
pub const OURS: MachineId = machine(1);
/// Another machine of the cluster.
pub const PEER: MachineId = machine(2);
/// The third machine.
pub const THIRD: MachineId = machine(3);
/// All machines of the cluster.
pub const THREE: [MachineId; 3] = [OURS, PEER, THIRD];

const fn machine(number: u16) -> MachineId {
    match MachineId::new(number) {
        Some(id) => id,
        None => unreachable!(),
    }
}

/// One of the two memories that each machine exports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Location {
    /// The memory that peers may read and write.
    Open,
    /// The memory that peers may only read.
    Closed,
}

/// Accesses by a machine's processor to the memory that the machine exports.
pub trait Owner {
    /// Loads `words` words from byte `offset` on.
    fn load(&mut self, location: Location, offset: usize, words: usize) -> Vec<u64>;
    /// Stores words from byte `offset` on, in increasing address order.
    fn store(&mut self, location: Location, offset: usize, words: &[u64]);
}

/// Runs properties on new clusters of one backend.
pub trait Harness: Sync {
    /// Runs a property, on one new cluster or on several.
    fn run(&self, property: Property);
}

/// Three connected machines of one backend.
pub trait Cluster {
    /// Returns the machine [`OURS`].
    fn node(&mut self) -> &mut Node;

    /// Returns the processor of another machine, which must not be running a role.
    fn owner(&mut self, machine: MachineId) -> &mut dyn Owner;

    /// Starts a role on another machine.
    fn start(&mut self, machine: MachineId, role: Role);

    /// Returns the outcome of a machine's role, if the role has ended.
    ///
    /// # Panics
    /// If the role failed, or the machine died.
    fn outcome(&mut self, machine: MachineId) -> Option<Vec<u64>>;

    /// Advances the other machines and the fabric by a few steps, if they do not run by themselves.
    fn advance(&mut self);

    /// Sleeps on our machine for at most `most`. The caller has called
    /// [`arm`](farm_core::fabric::Endpoint::arm) and then polled once more.
    fn sleep(&mut self, most: Duration) -> Wake;

    /// Kills a machine without an announcement to its peers. Returns false if the backend cannot,
    /// because its machines share a process.
    fn kill(&mut self, machine: MachineId) -> bool;

    /// Ends a machine in order: it announces its leaving to its peers.
    fn leave(&mut self, machine: MachineId);

    /// Scales a number of repetitions down for a backend whose steps are slow. Returns at most `most`.
    fn rounds(&self, most: u64) -> u64;

    /// Returns the objects to update continuously, such that reads overlap with updates, and others succeed.
    fn hammered(&self) -> Hammered {
        Hammered::USUAL
    }

    /// Returns the time limit of every wait.
    fn patience(&self) -> Duration;
}

impl dyn Cluster + '_ {
    /// Returns a deadline that is [`Cluster::patience`] from now.
    pub fn deadline(&self) -> Deadline {
        Deadline::after(self.patience())
    }

    /// Waits until a machine's role ends, and returns its outcome.
    ///
    /// # Panics
    /// If the role does not end in time.
    pub fn join(&mut self, machine: MachineId) -> Vec<u64> {
        let deadline = self.deadline();
        loop {
            if let Some(outcome) = self.outcome(machine) {
                return outcome;
            }
            self.advance();
            deadline.check("the outcome of a role");
        }
    }

    /// Runs a role on our machine until it ends, and returns its outcome.
    pub fn drive(&mut self, role: Role) -> Vec<u64> {
        let deadline = self.deadline();
        let mut actor: Box<dyn Actor> = role.actor();
        loop {
            match actor.step(self.node()) {
                Step::More => {}
                Step::Idle => self.advance(),
                Step::Sleep(most) => {
                    let wake = self.sleep(most);
                    actor.woken(wake);
                }
                Step::Done(outcome) => return outcome,
            }
            deadline.check("the end of the role on our machine");
        }
    }

    /// Polls until every operation of our machine has completed and every slot is back in the arena.
    ///
    /// # Panics
    /// If there is a completion that the property has not taken.
    pub fn settle(&mut self) {
        let deadline = self.deadline();
        while !self.node().is_at_rest() {
            self.node().poll();
            self.advance();
            deadline.check("the completion of every operation and the return of every slot");
        }
    }
}
