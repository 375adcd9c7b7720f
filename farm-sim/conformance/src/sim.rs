//! The suite on the simulated fabric. The order of the steps of actors and fabric is drawn from the seed, and
//! no call blocks.

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

/// Time limit of every wait, in real time.
const PATIENCE: Duration = Duration::from_secs(10);
/// Divisor of the number of rounds: a simulated step costs about 40 times as much as a real one.
const FEWER_ROUNDS: u64 = 40;
/// Lower limit of the number of rounds.
const FEWEST_ROUNDS: u64 = 25;
/// Limit of the fabric's steps, and of an actor's steps, in one turn of the simulation.
const STEPS_PER_TURN: u32 = 4;

/// Runs a property on simulated clusters, one per seed.
pub struct Sim {
    /// The seeds.
    pub seeds: Range<u64>,
    /// Deliberate bug of the fabric, if any.
    pub defect: Option<Defect>,
    /// Time limit of every wait, in real time. `None`: 10 seconds.
    pub patience: Option<Duration>,
}

impl Sim {
    /// The fabric without a bug.
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
            let _seed = PrintSeedOnPanic(seed);
            let patience = self.patience.unwrap_or(PATIENCE);
            property(&mut SimCluster::new(seed, self.defect, patience));
        }
    }
}

/// Prints the seed when dropped during a panic, so that a failed property can be repeated.
struct PrintSeedOnPanic(u64);

impl Drop for PrintSeedOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "the property failed with the simulated fabric of seed {}",
                self.0
            );
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
    /// Creates the cluster of a seed.
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

    /// Returns the fabric of the cluster.
    pub fn fabric(&self) -> &SimFabric {
        &self.fabric
    }

    fn member(&mut self, machine: MachineId) -> &mut Member {
        self.others
            .get_mut(&machine)
            .unwrap_or_else(|| panic!("machine {machine} was killed or has left"))
    }

    /// Runs some steps of the fabric, then some steps of one actor. Returns false if nothing can run until
    /// virtual time advances.
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
            let (_, member) = picked.expect("`pick` is less than the number of busy members");
            for _ in 0..self.rng.random_range(1..=STEPS_PER_TURN) {
                moved |= step_member(&self.fabric, member);
            }
        }
        moved || self.fabric.step() || self.any_actor_awake()
    }

    fn any_actor_awake(&self) -> bool {
        self.others
            .values()
            .any(|member| member.actor.is_some() && !member.asleep)
    }

    /// Returns how the sleep of a worker ended, if it has ended.
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
                let next = self
                    .fabric
                    .next_wake()
                    .expect("our machine's sleep has an end");
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
