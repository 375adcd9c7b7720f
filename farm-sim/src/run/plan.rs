//! The plan of a run: all choices that a seed makes before the run begins.

use std::fmt;

use farm_check::workload::{Kind, Spec};
use farm_core::ring::RecordIntegrity;
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::absences::{Absences, Return};
use super::scenario::{Scenario, Trouble};
use crate::cluster::{Cluster, ClusterLimits, Pace};
use crate::fabric::{Odds, SimConfig};

/// XORed into the seed, so that the random numbers of the plan differ from those of the fabric.
const PLAN: u64 = 0x706C_616E;

/// The most looks at the progress of clients before a loss while the workload is set up.
const SET_UP_LOOKS: u64 = 150;

/// One in this many seeds has a fabric whose writes land in any order.
const UNORDERED_EVERY: u64 = 9;

/// One in this many seeds has a machine without memory of its own, and one in as many of those has two.
const WITHOUT_MEMORY_EVERY: u64 = 5;

/// One in this many seeds has workers that let few transactions begin after one that takes long.
const FEW_AHEAD_EVERY: u64 = 8;

/// One in this many seeds has logged commits, with one to three copies of regions.
const LOGGED_EVERY: u64 = 4;

/// One in this many of the seeds in which the others survive a loss has a machine that is only stopped.
const STALLED_EVERY: u64 = 3;

/// Number of losses that only seeds with logged commits have, which draw one of them or one of the others.
const LOSSES_OF_LOGGED: u64 = 4;

/// One in this many of the seeds in which pairs are moved has stores that become visible late.
const SLOW_STORES_EVERY: u64 = 4;

/// A loss during a run.
#[derive(Clone, Copy, Debug)]
pub enum Loss {
    /// A machine leaves without notice, with its memory: it loses power.
    Machine(usize),
    /// Two machines lose power at the same time.
    Machines(usize, usize),
    /// The process of a machine is killed in the middle of a turn. Its memory survives.
    Process(usize),
    /// The processors of a machine stop in the middle of a turn, until the others have gone on without it. Then they go on.
    Stalled(usize),
    /// As [`Loss::Process`], and then another one after this number of looks at the run.
    Processes(usize, usize, u64),
    /// The processes of all machines are killed, each after a number of looks at the run, several times. One machine may be
    /// [stalled](Loss::Stalled) before the first time.
    AllProcesses(Option<usize>),
    /// The network between some machines, the bits of the first number, and all others is cut for some nanoseconds.
    Parted(u32, u64),
    /// For some nanoseconds no lease reaches a machine.
    Deaf(usize, u64),
    /// The connection between two machines breaks.
    Connection(usize, usize),
    /// The processors of a machine stop for good, between two turns. Its memory still serves remote operations.
    Processors(usize),
    /// As [`Loss::Processors`], in the middle of a turn: locks that the turn holds stay locked.
    ProcessorsInTurn(usize),
    /// The processors of all machines stop for good, in the middle of turns, as if all processes were killed.
    AllProcessors,
}

/// All choices that a seed makes.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// The workload and its faults.
    pub scenario: Scenario,
    /// Sizes of the cluster.
    pub limits: ClusterLimits,
    /// How the scheduler distributes time.
    pub pace: Pace,
    /// The odds of the fabric.
    pub odds: Odds,
    /// The workload.
    pub spec: Spec,
    /// Increment of versions. It has an effect only if the program was built with the feature `mutants`.
    pub version_step: u64,
    /// Number of ended operations after which all free memory is taken, so that later block allocations fail; `None`
    /// for never.
    pub full_after: Option<u64>,
    /// When machines without memory leave and come back.
    pub absences: Vec<Absences>,
    /// How machines with memory come back that are lost.
    pub returns: Vec<Return>,
    /// What is lost, and the number of ended operations after which it is lost.
    pub loss: Option<(u64, Loss)>,
    /// If all processes are killed: the numbers of looks after which each is, as often as they are. From the second time on the looks
    /// count from the moment at which all have started again.
    pub kills: Vec<Vec<u64>>,
    /// Number of looks at the progress of clients after which it is lost instead, before the workload is set up.
    pub in_set_up: Option<u64>,
}

impl Plan {
    /// Draws the plan of a seed.
    pub fn new(seed: u64, scenario: Scenario) -> Self {
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed ^ PLAN);
        let mut limits = ClusterLimits::drawn(rng);
        if scenario.kind.has_rows() {
            limits.make_room_for_tables();
        }
        if scenario.kind == Kind::Graph {
            limits.make_room_for_a_graph();
        }
        let crowded = scenario.kind == Kind::Append && rng.random_bool(0.125);
        if crowded {
            limits.crowd_logs();
        }
        if (seed / 8) % WITHOUT_MEMORY_EVERY == 2 {
            // Not drawn from `rng`, so that the choices of the other seeds do not depend on it.
            let two = (seed / 8 / WITHOUT_MEMORY_EVERY).is_multiple_of(WITHOUT_MEMORY_EVERY);
            limits.leave_without_memory(1 + usize::from(two));
        }
        let mut pace = Pace::drawn(rng);
        let mut odds = Odds::drawn(rng);
        let mut spec = super::spec::drawn(rng, scenario.kind, &limits);
        if crowded {
            super::spec::crowd_logs(&mut spec, &limits);
            // A worker that is skipped more often would delay too many transactions.
            pace.slow = pace.slow.min(511);
        }
        if scenario.kind == Kind::Graph {
            super::spec::make_graph(&mut spec, rng);
        }
        if super::spec::moves_pairs(&spec) {
            // Makes reads slow and turns frequent, so that other workers move the pairs that a lookup reads.
            (odds.words_per_step, odds.one_pass) = (1, true);
            pace.turns = pace.turns.max(768);
            if seed % SLOW_STORES_EVERY == 1 {
                // Others read while a change that has ended is still buffered.
                odds.retire = 1 << (4 - seed / SLOW_STORES_EVERY % 4);
            }
        }
        let version_step = match rng.random_range(0..4u32) {
            // If only the versions of lines show a change, their 16 bits must not wrap around during a read.
            0 if !odds.one_pass => 1 << rng.random_range(13..=15u32),
            _ => 1,
        };
        if seed % UNORDERED_EVERY == 1 {
            // Not drawn from `rng`, either.
            odds.places_in_order = false;
            limits.integrity = RecordIntegrity::Checksum;
        }
        if seed % FEW_AHEAD_EVERY == 5 {
            // Not drawn from `rng`, either.
            limits.most_ahead = Some(1 + seed / FEW_AHEAD_EVERY % 4);
        }
        if seed % LOGGED_EVERY == 2 {
            // Not drawn from `rng`, either.
            let most = (limits.machines - limits.without_memory) as u64;
            limits.replicas = 1 + (seed / LOGGED_EVERY % most) as usize;
        }
        if scenario.trouble.is_survived() {
            match scenario.trouble {
                Trouble::Parted => limits.survive_by_leases(seed),
                Trouble::Restarted => limits.survive_the_end_of_all(seed),
                _ => limits.survive(seed),
            }
            if matches!(scenario.kind, Kind::Table | Kind::Graph) {
                // All buckets that a change moves pairs between, or all pages of a list, are in one record.
                limits.log_bytes *= 4;
            }
            let has_many = scenario.kind == Kind::Table && limits.machines > 4;
            if scenario.kind == Kind::Graph || has_many {
                // Operations whose outcome stays unknown are concurrent with all later ones, and a checker tries all orders.
                spec.clients = 1;
            }
            if scenario.kind == Kind::Graph && scenario.trouble != Trouble::Survived {
                limits.workers = 1;
            }
        }
        let operations = super::spec::operations(&spec, &limits);
        let absences = match scenario.trouble {
            Trouble::None | Trouble::Survived | Trouble::Parted | Trouble::Restarted => {
                Absences::drawn(seed, &limits, operations)
            }
            Trouble::Loss => Vec::new(),
        };
        let full_after = rng
            .random_bool(0.25)
            .then(|| rng.random_range(0..operations / 2));
        let loss = (scenario.trouble == Trouble::Loss).then(|| {
            let one = rng.random_range(0..limits.machines);
            let other = (one + rng.random_range(1..limits.machines)) % limits.machines;
            let loss = match rng.random_range(0..4u32) {
                0 => Loss::Machine(one),
                1 => Loss::Connection(one, other),
                2 => Loss::ProcessorsInTurn(one),
                _ => Loss::Processors(one),
            };
            // Not drawn from `rng`, either.
            let loss = match seed / LOGGED_EVERY % LOSSES_OF_LOGGED {
                _ if limits.replicas == 0 => loss,
                0 => Loss::AllProcessors,
                1 => Loss::Process(one),
                2 => Loss::Machines(one, other),
                _ => loss,
            };
            (rng.random_range(0..operations), loss)
        });
        let loss = match scenario.trouble {
            Trouble::Survived => {
                let (after, loss) = survived(rng, &limits, operations);
                // Not drawn from `rng`, either.
                let loss = match loss {
                    Loss::Process(one) | Loss::Processes(one, ..)
                        if seed / STALLED_EVERY % STALLED_EVERY == 1 =>
                    {
                        Loss::Stalled(one)
                    }
                    loss => loss,
                };
                Some((after, loss))
            }
            Trouble::Parted => Some(parted(rng, &limits, operations)),
            Trouble::Restarted => {
                // Not drawn from `rng`, either.
                let stalls = limits.replicas > 1 && seed / STALLED_EVERY % STALLED_EVERY == 1;
                let stalled = stalls.then_some(seed as usize / 16 % limits.machines);
                Some((
                    rng.random_range(0..operations / 2),
                    Loss::AllProcesses(stalled),
                ))
            }
            _ => loss,
        };
        let returns = match loss {
            Some((_, Loss::Process(one) | Loss::Stalled(one))) if limits.survives => vec![one],
            Some((_, Loss::Processes(one, other, _))) if limits.survives => vec![one, other],
            Some((_, Loss::Parted(some, _))) => machines_of(some).collect(),
            Some((_, Loss::AllProcesses(_))) => (0..limits.machines).collect(),
            _ => Vec::new(),
        };
        let storing = limits.machines - limits.without_memory;
        let returns: Vec<usize> = returns.into_iter().filter(|one| *one < storing).collect();
        let returns = match scenario.trouble {
            Trouble::Restarted => returns.into_iter().map(Return::soon).collect(),
            _ => Return::drawn(seed, &returns, operations),
        };
        let kills = match scenario.trouble {
            // Operations whose outcome stays unknown are concurrent with all later ones.
            Trouble::Restarted if scenario.kind == Kind::Graph => {
                drawn_kills(rng, limits.machines, 1)
            }
            Trouble::Restarted => drawn_kills(rng, limits.machines, 4),
            _ => Vec::new(),
        };
        // The objects of a machine that comes back are those of another one.
        spec.spread |= !returns.is_empty();
        // Not drawn from `rng`, either.
        let in_set_up = (scenario.trouble == Trouble::Survived && scenario.kind == Kind::Table)
            .then(|| 1 + seed / 2 % SET_UP_LOOKS)
            .filter(|_| seed % 2 == 1);
        if let Some((_, Loss::ProcessorsInTurn(_))) = loss {
            // Reads of objects that stay locked are repeated until they run out of tries. Thousands of tries would find
            // no more bugs.
            limits.read_tries = 64 << rng.random_range(0..5u32);
            limits.transactions.patience_ms = rng.random_range(0..=2);
        }
        Self {
            seed,
            scenario,
            limits,
            pace,
            odds,
            spec,
            version_step,
            full_after,
            absences,
            returns,
            loss,
            kills,
            in_set_up,
        }
    }

    /// Returns the configuration of the run's fabric.
    pub(super) fn fabric(&self, keep_events: bool) -> SimConfig {
        SimConfig {
            odds: Some(self.odds.clone()),
            keep_events,
            ..self.limits.fabric(self.seed)
        }
    }
}

/// Draws which processes are killed, of a cluster that goes on without them, and when.
fn survived(rng: &mut impl Rng, limits: &ClusterLimits, operations: u64) -> (u64, Loss) {
    let one = rng.random_range(0..limits.machines);
    let other = (one + rng.random_range(1..limits.machines)) % limits.machines;
    let loss = match limits.replicas > 2 {
        true => Loss::Processes(one, other, 1 << rng.random_range(0..8u32)),
        false => Loss::Process(one),
    };
    (rng.random_range(0..operations * 3 / 4), loss)
}

/// Draws what happens to a cluster in which leases end by time, and when.
fn parted(rng: &mut impl Rng, limits: &ClusterLimits, operations: u64) -> (u64, Loss) {
    let storing = limits.machines - limits.without_memory;
    let one = rng.random_range(0..limits.machines);
    let lease = limits.lease_nanos.unwrap_or_default();
    let nanos = (lease / 4) << rng.random_range(0..7u32);
    let nanos = rng.random_range(nanos..=2 * nanos);
    let loss = match rng.random_range(0..8u32) {
        0 => Loss::Process(one),
        1 => Loss::Stalled(one),
        2 => Loss::Deaf(one, nanos),
        _ => {
            // The others are a majority, and have a copy of each region.
            let most = ((storing - 1) / 2).min(limits.replicas - 1);
            let mut some = 0u32;
            for _ in 0..rng.random_range(1..=most) {
                some |= 1 << rng.random_range(0..storing);
            }
            for program in storing..limits.machines {
                some |= u32::from(rng.random_bool(0.5)) << program;
            }
            Loss::Parted(some, nanos)
        }
    };
    (rng.random_range(0..operations * 3 / 4), loss)
}

/// Returns the machines of the bits of a number.
fn machines_of(bits: u32) -> impl Iterator<Item = usize> {
    (0..u32::BITS as usize).filter(move |machine| bits >> machine & 1 == 1)
}

/// Draws when all processes are killed: at about the same time, or apart.
fn drawn_kills(rng: &mut impl Rng, machines: usize, most: usize) -> Vec<Vec<u64>> {
    let times = rng.random_range(1..=most);
    let kills = (0..times).map(|_| {
        let begin = 1 << rng.random_range(0..8u32);
        let apart = 1 << rng.random_range(0..7u32);
        let one = (0..machines).map(|_| begin + rng.random_range(0..apart));
        one.collect()
    });
    kills.collect()
}

impl Loss {
    /// Causes the loss.
    pub(super) fn strike(self, cluster: &Cluster) {
        match self {
            Loss::Machine(machine) => cluster.kill(machine),
            Loss::Machines(one, other) => {
                [one, other].into_iter().for_each(|one| cluster.kill(one))
            }
            // A machine without memory may be away.
            Loss::Process(machine) | Loss::Processes(machine, ..) => cluster.kill_process(machine),
            Loss::Stalled(machine) | Loss::AllProcesses(Some(machine)) => cluster.stall(machine),
            Loss::Parted(some, nanos) => cluster.part(machines_of(some), nanos),
            Loss::Deaf(machine, nanos) => cluster.make_deaf(machine, nanos),
            // One after the other.
            Loss::AllProcesses(None) => {}
            Loss::Connection(one, other) => cluster.break_connection(one, other),
            Loss::ProcessorsInTurn(machine) => cluster.stop_processors(machine),
            Loss::Processors(machine) => cluster.pause(machine, u64::MAX),
            Loss::AllProcessors => {
                (0..cluster.machines().count())
                    .for_each(|machine| cluster.stop_processors(machine));
            }
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}, scenario {}", self.seed, self.scenario)?;
        writeln!(f, "  {:?}", self.limits)?;
        writeln!(f, "  {:?}", self.pace)?;
        writeln!(f, "  {:?}", self.odds)?;
        writeln!(f, "  {:?}", self.spec)?;
        write!(f, "  versions are incremented by {}", self.version_step)?;
        if let Some(after) = self.full_after {
            write!(f, "; after {after} operations all free memory is taken")?;
        }
        for Absences { machine, moments } in &self.absences {
            if !moments.is_empty() {
                write!(
                    f,
                    "; machine {machine} leaves and comes back after {moments:?} operations"
                )?;
            }
        }
        for Return {
            machine,
            after,
            again,
        } in &self.returns
        {
            write!(
                f,
                "; machine {machine} comes back after {after} more operations"
            )?;
            if let Some(looks) = again {
                write!(f, ", and is killed again after {looks} looks")?;
            }
        }
        if !self.kills.is_empty() {
            write!(f, "; all are killed after {:?} looks", self.kills)?;
        }
        match self.loss {
            None => write!(f, "; nothing is lost"),
            Some((after, loss)) => match self.in_set_up {
                None => write!(f, "; after {after} operations lost: {loss:?}"),
                Some(looks) => write!(f, "; lost in the set-up, after {looks} looks: {loss:?}"),
            },
        }
    }
}
