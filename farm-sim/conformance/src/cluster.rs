//! What a backend gives the suite to work with: clusters of three machines, one in our hands.

use std::time::Duration;

use farm_core::fabric::Wake;
use farm_core::ids::MachineId;

use super::roles::Actor;
use super::{Deadline, Node, Property, Role, Step};

/// The machine that a property holds.
pub const OURS: MachineId = machine(1);
/// Another machine of the cluster.
pub const PEER: MachineId = machine(2);
/// The third machine.
pub const THIRD: MachineId = machine(3);
/// All of them.
pub const THREE: [MachineId; 3] = [OURS, PEER, THIRD];

const fn machine(number: u16) -> MachineId {
    match MachineId::new(number) {
        Some(id) => id,
        None => unreachable!(),
    }
}

/// Which of a machine's two exported memories.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Location {
    /// The one that peers may write.
    Open,
    /// The one that they may only read.
    Closed,
}

/// The processor of a machine, at its own memory.
pub trait Owner {
    /// Loads words.
    fn load(&mut self, location: Location, offset: usize, words: usize) -> Vec<u64>;
    /// Stores words, in increasing order.
    fn store(&mut self, location: Location, offset: usize, words: &[u64]);
}

/// Runs properties, each on a fresh cluster of a backend, or on several.
pub trait Harness: Sync {
    /// Runs one property.
    fn run(&self, property: Property);
}

/// Three connected machines of one backend.
pub trait Cluster {
    /// The machine in the property's hands.
    fn node(&mut self) -> &mut Node;

    /// The processor of one of the others, which runs no role.
    fn owner(&mut self, machine: MachineId) -> &mut dyn Owner;

    /// Sets one of the others to work.
    fn start(&mut self, machine: MachineId, role: Role);

    /// What the work came to, once it is done.
    ///
    /// # Panics
    /// If it failed, or the machine died.
    fn outcome(&mut self, machine: MachineId) -> Option<Vec<u64>>;

    /// Lets the others and the fabric go on for a moment.
    fn advance(&mut self);

    /// Our worker sleeps, after [`arm`](farm_core::fabric::Endpoint::arm) and a look around.
    fn sleep(&mut self, most: Duration) -> Wake;

    /// Kills a machine without warning. False where the backend cannot: its machines share a
    /// process.
    fn kill(&mut self, machine: MachineId) -> bool;

    /// A machine says goodbye and is gone.
    fn leave(&mut self, machine: MachineId);

    /// How often to do what should be done `most` times: fewer where a step costs more.
    fn rounds(&self, most: u64) -> u64;

    /// How long to wait before something counts as lost.
    fn patience(&self) -> Duration;
}

impl dyn Cluster + '_ {
    /// A deadline of the cluster's patience.
    pub fn deadline(&self) -> Deadline {
        Deadline::after(self.patience())
    }

    /// Waits for the outcome of a machine's role.
    ///
    /// # Panics
    /// If it does not come in time.
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

    /// Runs a role on our own machine to its end.
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
            deadline.check("the end of our own role");
        }
    }

    /// Polls until every operation of ours has completed and every slot is back, and checks that
    /// nothing else is.
    pub fn settle(&mut self) {
        let deadline = self.deadline();
        while !self.node().is_at_rest() {
            self.node().poll();
            self.advance();
            deadline.check("rest: everything completed, every slot given back");
        }
    }
}
