//! Every machine in a process of its own: ours is the test's, the others are children.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Child, ChildTask, Command, Ground, PATIENCE, Place, Reply, join};
use crate::conformance::{Cluster, Harness, Node, OURS, Owner, PEER, Property, Role, THIRD};
use farm_core::fabric::Wake;
use farm_core::fabric::shm::ShmMachine;
use farm_core::ids::MachineId;

/// Clusters of three machines in three processes.
pub struct Processes;

impl Harness for Processes {
    fn run(&self, property: Property) {
        property(&mut ProcessCluster::start());
    }
}

struct ProcessCluster {
    ours: Node,
    children: BTreeMap<MachineId, Child>,
    _machine: ShmMachine,
    _ground: Ground,
}

impl ProcessCluster {
    fn start() -> Self {
        let (place, ground) = Place::fresh();
        let child = |machine| {
            (
                machine,
                Child::start(&ChildTask::Member(place.clone(), machine)),
            )
        };
        let mut children = BTreeMap::from([PEER, THIRD].map(child));
        let (machine, ours) = join(&place, OURS);
        for child in children.values_mut() {
            assert_eq!(child.reply(), Reply::Ready);
        }
        Self {
            ours,
            children,
            _machine: machine,
            _ground: ground,
        }
    }

    fn child(&mut self, machine: MachineId) -> &mut Child {
        self.children
            .get_mut(&machine)
            .unwrap_or_else(|| panic!("{machine} is gone"))
    }
}

impl Cluster for ProcessCluster {
    fn node(&mut self) -> &mut Node {
        &mut self.ours
    }

    fn owner(&mut self, machine: MachineId) -> &mut dyn Owner {
        self.child(machine)
    }

    fn start(&mut self, machine: MachineId, role: Role) {
        self.child(machine).tell(&Command::Run(role));
    }

    fn outcome(&mut self, machine: MachineId) -> Option<Vec<u64>> {
        match self.child(machine).try_reply()? {
            Reply::Outcome(outcome) => Some(outcome),
            other => panic!("{other:?} instead of an outcome"),
        }
    }

    fn advance(&mut self) {}

    fn sleep(&mut self, most: Duration) -> Wake {
        self.ours.endpoint.wait(most)
    }

    fn kill(&mut self, machine: MachineId) -> bool {
        self.child(machine).kill();
        self.children.remove(&machine);
        true
    }

    fn leave(&mut self, machine: MachineId) {
        let child = self.child(machine);
        child.tell(&Command::Leave);
        assert_eq!(child.reply(), Reply::Done);
        self.children.remove(&machine);
    }

    fn rounds(&self, most: u64) -> u64 {
        most
    }

    fn patience(&self) -> Duration {
        PATIENCE
    }
}
