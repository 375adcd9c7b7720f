//! Everything that a seed decides, before the run begins.

use std::fmt;

use farm_check::workload::{Kind, Spec};
use farm_core::ring::Wholeness;
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::scenario::{Scenario, Trouble};
use crate::cluster::{Cluster, ClusterLimits, Pace};
use crate::fabric::{Odds, SimConfig};

/// Kept apart from the seeds of what the plan describes.
const PLAN: u64 = 0x706C_616E;

/// Of so many seeds one has a fabric whose writes land in any order.
const UNORDERED_EVERY: u64 = 9;

/// How a machine or a connection is lost.
#[derive(Clone, Copy, Debug)]
pub enum Loss {
    /// A machine is gone, without a word.
    Machine(usize),
    /// The connection between two machines breaks.
    Connection(usize, usize),
    /// The processors of a machine stop between two turns and do not go on; its memory answers.
    Processors(usize),
    /// The same, in the middle of a turn: locks stay as they are at that moment.
    ProcessorsInTurn(usize),
}

/// Everything that a seed decides.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// What the run is of.
    pub scenario: Scenario,
    /// Sizes.
    pub limits: ClusterLimits,
    /// How time is dealt out.
    pub pace: Pace,
    /// What the fabric does.
    pub odds: Odds,
    /// The workload.
    pub spec: Spec,
    /// By how much versions grow; more than 1 where the program was built for it.
    pub version_step: u64,
    /// After so many operations nobody gets a block of memory any more.
    pub full_after: Option<u64>,
    /// What is lost, and when: after so many of the workload's operations.
    pub loss: Option<(u64, Loss)>,
}

impl Plan {
    /// The plan of a seed.
    pub fn new(seed: u64, scenario: Scenario) -> Self {
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed ^ PLAN);
        let mut limits = ClusterLimits::drawn(rng);
        if scenario.kind.has_rows() {
            limits.make_room_for_tables();
        }
        let crowded = scenario.kind == Kind::Append && rng.random_bool(0.125);
        if crowded {
            limits.crowd_logs();
        }
        let mut pace = Pace::drawn(rng);
        let mut odds = Odds::drawn(rng);
        let mut spec = super::spec::drawn(rng, scenario.kind, &limits);
        if crowded {
            super::spec::crowd_logs(&mut spec, &limits);
            // Who is passed over too often holds too many up.
            pace.slow = pace.slow.min(511);
        }
        if super::spec::moves_pairs(&spec) {
            // Reads that take long, while others move what they look for.
            (odds.words_per_step, odds.one_pass) = (1, true);
            pace.turns = pace.turns.max(768);
        }
        let version_step = match rng.random_range(0..4u32) {
            // Where lines alone tell, 16 bits must not come round while a read lasts.
            0 if !odds.one_pass => 1 << rng.random_range(13..=15u32),
            _ => 1,
        };
        if seed % UNORDERED_EVERY == 1 {
            // Not drawn: what other seeds draw does not change by it.
            odds.places_in_order = false;
            limits.wholeness = Wholeness::Checksum;
        }
        let operations = super::spec::operations(&spec, &limits);
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
            (rng.random_range(0..operations), loss)
        });
        if let Some((_, Loss::ProcessorsInTurn(_))) = loss {
            // What they leave locked is read until that is given up: thousands of tries show no more.
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
            loss,
        }
    }

    /// The fabric of the run.
    pub(super) fn fabric(&self, keep_events: bool) -> SimConfig {
        SimConfig {
            most_outstanding: self.limits.most_outstanding,
            max_inline_bytes: self.limits.max_inline_bytes,
            odds: Some(self.odds.clone()),
            keep_events,
            ..SimConfig::seeded(self.seed)
        }
    }
}

impl Loss {
    /// Brings it about.
    pub(super) fn strike(self, cluster: &Cluster) {
        match self {
            Loss::Machine(machine) => cluster.kill(machine),
            Loss::Connection(one, other) => cluster.break_connection(one, other),
            Loss::ProcessorsInTurn(machine) => cluster.stop_processors(machine),
            Loss::Processors(machine) => cluster.pause(machine, u64::MAX),
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
        write!(f, "  versions grow by {}", self.version_step)?;
        if let Some(after) = self.full_after {
            write!(f, "; after {after} operations memory is full")?;
        }
        match self.loss {
            None => write!(f, "; nothing is lost"),
            Some((after, loss)) => write!(f, "; after {after} operations: {loss:?}"),
        }
    }
}
