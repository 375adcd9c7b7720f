//! Each machine in its own process. The test's process is [`OURS`]; the other machines are child processes.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Child, ChildTask, Command, Fabric, PlaceDirs, Reply, Site, join};
use crate::{Cluster, Hammered, Harness, Node, OURS, Owner, PEER, Property, Role, THIRD};
use farm_core::fabric::{FabricMachine, Wake};
use farm_core::ids::MachineId;

/// Clusters of three machines in three processes.
pub struct Processes(pub Fabric);

impl Harness for Processes {
    fn run(&self, property: Property) {
        property(&mut ProcessCluster::start(self.0));
    }
}

struct ProcessCluster {
    ours: Node,
    children: BTreeMap<MachineId, Child>,
    _machine: FabricMachine,
    site: Site,
    _dirs: Option<PlaceDirs>,
}

impl ProcessCluster {
    fn start(fabric: Fabric) -> Self {
        let (site, dirs) = Site::fresh(fabric);
        let child = |machine| {
            (
                machine,
                Child::start(&ChildTask::Member(site.clone(), machine)),
            )
        };
        let mut children = BTreeMap::from([PEER, THIRD].map(child));
        let (machine, ours) = join(&site, OURS);
        for child in children.values_mut() {
            assert_eq!(child.reply(), Reply::Ready);
        }
        Self {
            ours,
            children,
            _machine: machine,
            site,
            _dirs: dirs,
        }
    }

    fn child(&mut self, machine: MachineId) -> &mut Child {
        self.children
            .get_mut(&machine)
            .unwrap_or_else(|| panic!("machine {machine} was killed or has left"))
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
        self.child(machine).send(&Command::Run(role));
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
        child.send(&Command::Leave);
        assert_eq!(child.reply(), Reply::Done);
        self.children.remove(&machine);
    }

    fn rounds(&self, most: u64) -> u64 {
        self.site.rounds(most)
    }

    fn hammered(&self) -> Hammered {
        self.site.hammered()
    }

    fn patience(&self) -> Duration {
        self.site.patience()
    }
}
