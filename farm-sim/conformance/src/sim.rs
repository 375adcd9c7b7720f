//! The suite on the simulated fabric: actors and the fabric are stepped in an order drawn from the
//! seed, and nobody ever blocks.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use farm_core::fabric::Wake;
use farm_core::ids::{MachineId, WorkerId};
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::node::{CLOSED_BYTES, OPEN_BYTES};
use super::{Actor, Cluster, Harness, Node, OURS, Offer, Owner, Property, Role, Step, THREE};
use farm_sim::fabric::{Defect, SimConfig, SimFabric};

/// Real time that a simulated property may take: it never waits for anything real.
const PATIENCE: Duration = Duration::from_secs(10);
/// A simulated step costs about this many times a real one.
const FEWER_ROUNDS: u64 = 40;
const FEWEST_ROUNDS: u64 = 25;
/// Most steps of fabric and actors each in one turn of the simulation.
const STEPS_PER_TURN: u32 = 4;

/// Simulated clusters of three machines, one per seed.
pub struct Sim {
    /// The seeds.
    pub seeds: Range<u64>,
    /// A bug that the fabric has.
    pub defect: Option<Defect>,
    /// Real time before something counts as lost; `None`: plenty.
    pub patience: Option<Duration>,
}

impl Sim {
    /// The fabric as it should be.
    pub const fn seeds(seeds: Range<u64>) -> Self {
        Self {
            seeds,
            defect: None,
            patience: None,
        }
    }
}

impl Harness for Sim {
    fn run(&self, property: Property) {
        for seed in self.seeds.clone() {
            let _told = TellSeed(seed);
            let patience = self.patience.unwrap_or(PATIENCE);
            property(&mut SimCluster::new(seed, self.defect, patience));
        }
    }
}

/// Names the seed when a property fails.
struct TellSeed(u64);

impl Drop for TellSeed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the simulated fabric's seed was {}", self.0);
        }
    }
}

struct Member {
    node: Node,
    actor: Option<Box<dyn Actor>>,
    asleep: bool,
    outcome: Option<Vec<u64>>,
}

/// One simulated cluster.
pub struct SimCluster {
    fabric: SimFabric,
    rng: Xoshiro256PlusPlus,
    ours: Node,
    others: BTreeMap<MachineId, Member>,
    patience: Duration,
}

impl SimCluster {
    /// The cluster of a seed.
    pub fn new(seed: u64, defect: Option<Defect>, patience: Duration) -> Self {
        let config = SimConfig {
            defect,
            ..SimConfig::seeded(seed)
        };
        let fabric = SimFabric::new(config, &THREE);
        let memories = THREE.map(|machine| {
            let open = fabric.export(machine, OPEN_BYTES, true);
            (open, fabric.export(machine, CLOSED_BYTES, false))
        });
        let offers: Vec<Offer> = memories
            .iter()
            .map(|(open, closed)| Offer {
                open: open.1,
                closed: closed.1,
            })
            .collect();
        let mut nodes: Vec<Node> = THREE
            .into_iter()
            .zip(memories)
            .map(|(machine, (open, closed))| {
                let endpoint = fabric.endpoint(machine, WorkerId::FIRST, &Node::arena());
                Node::new(
                    machine,
                    endpoint,
                    (open.0, closed.0),
                    &offers,
                    patience,
                    || (),
                )
            })
            .collect();
        let ours = nodes.remove(0);
        let member = |node: Node| {
            (
                node.machine,
                Member {
                    node,
                    actor: None,
                    asleep: false,
                    outcome: None,
                },
            )
        };
        let others = nodes.into_iter().map(member).collect();
        Self {
            fabric,
            rng: Xoshiro256PlusPlus::seed_from_u64(seed ^ 0x5eed),
            ours,
            others,
            patience,
        }
    }

    /// The fabric it runs on.
    pub fn fabric(&self) -> &SimFabric {
        &self.fabric
    }

    fn member(&mut self, machine: MachineId) -> &mut Member {
        self.others
            .get_mut(&machine)
            .unwrap_or_else(|| panic!("{machine} is gone"))
    }

    /// Some steps of the fabric, then some of one actor. False if nobody had anything to do.
    fn turn(&mut self) -> bool {
        let mut moved = false;
        for _ in 0..self.rng.random_range(0..=STEPS_PER_TURN) {
            moved |= self.fabric.step();
        }
        let busy = |(_, member): &(&MachineId, &mut Member)| member.actor.is_some();
        let busy_members = self
            .others
            .values()
            .filter(|member| member.actor.is_some())
            .count();
        if busy_members > 0 {
            let pick = self.rng.random_range(0..busy_members);
            let picked = self.others.iter_mut().filter(busy).nth(pick);
            let (_, member) = picked.expect("fewer than are busy");
            for _ in 0..self.rng.random_range(1..=STEPS_PER_TURN) {
                moved |= step_member(&self.fabric, member);
            }
        }
        moved || self.fabric.step() || self.anybody_awake()
    }

    fn anybody_awake(&self) -> bool {
        self.others
            .values()
            .any(|member| member.actor.is_some() && !member.asleep)
    }

    /// How the sleep of a parked worker ended, if it has.
    fn end_of_sleep(fabric: &SimFabric, machine: MachineId) -> Option<Wake> {
        match fabric.parked(machine, WorkerId::FIRST) {
            None => Some(Wake::Notified),
            Some(until) if until <= fabric.now() => {
                fabric.unpark(machine, WorkerId::FIRST);
                Some(Wake::TimedOut)
            }
            Some(_) => None,
        }
    }
}

fn step_member(fabric: &SimFabric, member: &mut Member) -> bool {
    let Some(actor) = &mut member.actor else {
        return false;
    };
    if member.asleep {
        let Some(wake) = SimCluster::end_of_sleep(fabric, member.node.machine) else {
            return false;
        };
        member.asleep = false;
        actor.woken(wake);
    }
    match actor.step(&mut member.node) {
        Step::More | Step::Idle => {}
        Step::Sleep(most) => match member.node.endpoint.wait(most) {
            Wake::Notified => actor.woken(Wake::Notified),
            Wake::TimedOut => member.asleep = true,
        },
        Step::Done(outcome) => {
            member.outcome = Some(outcome);
            member.actor = None;
        }
    }
    true
}

impl Cluster for SimCluster {
    fn node(&mut self) -> &mut Node {
        &mut self.ours
    }

    fn owner(&mut self, machine: MachineId) -> &mut dyn Owner {
        &mut self.member(machine).node
    }

    fn start(&mut self, machine: MachineId, role: Role) {
        let member = self.member(machine);
        member.actor = Some(role.actor());
        member.outcome = None;
    }

    fn outcome(&mut self, machine: MachineId) -> Option<Vec<u64>> {
        self.member(machine).outcome.take()
    }

    fn advance(&mut self) {
        self.turn();
    }

    fn sleep(&mut self, most: Duration) -> Wake {
        if self.ours.endpoint.wait(most) == Wake::Notified {
            return Wake::Notified;
        }
        loop {
            if let Some(wake) = Self::end_of_sleep(&self.fabric, OURS) {
                return wake;
            }
            if !self.turn() {
                let next = self.fabric.next_wake().expect("we sleep ourselves");
                self.fabric.advance_to(next);
            }
        }
    }

    fn kill(&mut self, machine: MachineId) -> bool {
        self.others.remove(&machine);
        self.fabric.kill(machine);
        true
    }

    fn leave(&mut self, machine: MachineId) {
        self.others.remove(&machine);
        self.fabric.leave(machine);
    }

    fn rounds(&self, most: u64) -> u64 {
        (most / FEWER_ROUNDS).max(FEWEST_ROUNDS)
    }

    fn patience(&self) -> Duration {
        self.patience
    }
}
