//! All machines in the test's process. Each machine that runs a role has its own thread.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{Fabric, PlaceDirs, Site, join};
use crate::{Cluster, Hammered, Harness, Node, OURS, Owner, Property, Role, THREE, run_to_end};
use farm_core::fabric::{FabricMachine, Wake};
use farm_core::ids::MachineId;

/// Clusters of three machines in one process.
pub struct Threads(pub Fabric);

impl Harness for Threads {
    fn run(&self, property: Property) {
        property(&mut ThreadCluster::start(self.0));
    }
}

enum Member {
    Idle(Node),
    Working(JoinHandle<(Node, Option<Vec<u64>>)>),
    Gone,
}

struct ThreadCluster {
    ours: Node,
    others: BTreeMap<MachineId, Member>,
    machines: BTreeMap<MachineId, FabricMachine>,
    stop: Arc<AtomicBool>,
    site: Site,
    _dirs: Option<PlaceDirs>,
}

impl ThreadCluster {
    fn start(fabric: Fabric) -> Self {
        let (site, dirs) = Site::fresh(fabric);
        let mut machines = BTreeMap::new();
        let mut nodes: Vec<Node> = std::thread::scope(|scope| {
            let starting = THREE.map(|machine| {
                let site = &site;
                scope.spawn(move || join(site, machine))
            });
            let started = starting
                .into_iter()
                .map(|thread| thread.join().expect("machines start"));
            started
                .map(|(machine, node)| {
                    machines.insert(node.machine, machine);
                    node
                })
                .collect()
        });
        let ours = nodes.remove(0);
        let others = nodes
            .into_iter()
            .map(|node| (node.machine, Member::Idle(node)))
            .collect();
        Self {
            ours,
            others,
            machines,
            stop: Arc::default(),
            site,
            _dirs: dirs,
        }
    }

    fn member(&mut self, machine: MachineId) -> &mut Member {
        self.others
            .get_mut(&machine)
            .expect("the machine belongs to the cluster")
    }
}

impl Cluster for ThreadCluster {
    fn node(&mut self) -> &mut Node {
        &mut self.ours
    }

    fn owner(&mut self, machine: MachineId) -> &mut dyn Owner {
        match self.member(machine) {
            Member::Idle(node) => node,
            _ => panic!("machine {machine} is running a role or has left"),
        }
    }

    fn start(&mut self, machine: MachineId, role: Role) {
        let stop = Arc::clone(&self.stop);
        let member = self.member(machine);
        let Member::Idle(mut node) = std::mem::replace(member, Member::Gone) else {
            panic!("machine {machine} is running a role or has left");
        };
        *member = Member::Working(std::thread::spawn(move || {
            let outcome = run_to_end(role, &mut node, &|| stop.load(Ordering::Relaxed));
            (node, outcome)
        }));
    }

    fn outcome(&mut self, machine: MachineId) -> Option<Vec<u64>> {
        let member = self.member(machine);
        if !matches!(member, Member::Working(thread) if thread.is_finished()) {
            return None;
        }
        let Member::Working(thread) = std::mem::replace(member, Member::Gone) else {
            return None;
        };
        let (node, outcome) = thread.join().expect("the role does not fail");
        *member = Member::Idle(node);
        outcome
    }

    fn advance(&mut self) {}

    fn sleep(&mut self, most: Duration) -> Wake {
        self.ours.endpoint.wait(most)
    }

    fn kill(&mut self, _: MachineId) -> bool {
        false
    }

    fn leave(&mut self, machine: MachineId) {
        assert_ne!(machine, OURS);
        *self.member(machine) = Member::Gone;
        drop(self.machines.remove(&machine));
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

impl Drop for ThreadCluster {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for member in std::mem::take(&mut self.others).into_values() {
            if let Member::Working(thread) = member {
                // If the thread panicked, it has already printed its message. The test has ended.
                let _ = thread.join();
            }
        }
    }
}
