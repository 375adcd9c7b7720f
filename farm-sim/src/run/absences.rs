//! Machines without memory that leave in order while the others run, or are killed, and come back, several times.

use std::collections::VecDeque;

use farm_check::workload::{self, FinalState, Log, Spec};
use farm_core::marks;
use farm_core::worker::Worker;
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::cluster::{Cluster, ClusterLimits};

/// XORed into the seed, so that the random numbers differ from those of the plan and of the fabric.
const ABSENCES: u64 = 0x6177_6179;

/// Maximum number of times that a machine leaves or comes back.
const MOST_MOMENTS: usize = 6;

/// The absences of a machine without memory.
#[derive(Clone, Debug)]
pub struct Absences {
    /// Index of the machine.
    pub machine: usize,
    /// Numbers of ended operations of the cluster after which the machine leaves and comes back, alternately. If all clients have
    /// ended before, it does so then.
    pub moments: Vec<u64>,
}

impl Absences {
    /// Draws the absences of all machines without memory, in a run of about this number of operations.
    pub(super) fn drawn(seed: u64, limits: &ClusterLimits, operations: u64) -> Vec<Self> {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed ^ ABSENCES);
        let machines = limits.machines - limits.without_memory..limits.machines;
        machines
            .map(|machine| {
                let count = rng.random_range(0..=MOST_MOMENTS);
                let moments = (0..count).map(|_| rng.random_range(0..operations));
                let mut moments: Vec<u64> = moments.collect();
                moments.sort_unstable();
                Self { machine, moments }
            })
            .collect()
    }
}

/// What a machine without memory does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Runs,
    Leaves,
    IsAway,
}

/// A machine without memory.
struct Guest {
    machine: usize,
    moments: VecDeque<u64>,
    phase: Phase,
    /// Number of times that it was started again.
    starts: u32,
    /// Whether its clients have begun since it was started again.
    is_back: bool,
    /// Number of operations that each of its workers has left.
    operations: Vec<u64>,
}

impl Guest {
    fn new(absences: &Absences, spec: &Spec, limits: &ClusterLimits) -> Self {
        Self {
            machine: absences.machine,
            moments: absences.moments.iter().copied().collect(),
            phase: Phase::Runs,
            starts: 0,
            is_back: true,
            operations: vec![spec.operations * spec.clients as u64; limits.workers],
        }
    }
}

/// The machines without memory of a run, and what they left behind.
pub(super) struct Guests<'p> {
    spec: &'p Spec,
    workers: usize,
    /// Whether machines that were lost do not count.
    survives: bool,
    guests: Vec<Guest>,
    /// Whether the workload was set up on all workers.
    is_set_up: bool,
    /// Number of operations that ended on machines that left.
    ended: u64,
    logs: Vec<Log>,
    states: Vec<FinalState>,
}

impl<'p> Guests<'p> {
    pub(super) fn new(absences: &[Absences], spec: &'p Spec, limits: &ClusterLimits) -> Self {
        let guests = absences.iter().map(|one| Guest::new(one, spec, limits));
        Self {
            spec,
            workers: limits.workers,
            survives: limits.survives,
            guests: guests.collect(),
            is_set_up: false,
            ended: 0,
            logs: Vec::new(),
            states: Vec::new(),
        }
    }

    /// Returns the workers of machines that are not away.
    pub(super) fn present(&self, cluster: &Cluster) -> impl Iterator<Item = usize> + use<'p> {
        let away = self.guests.iter().filter(|one| one.phase == Phase::IsAway);
        let away: Vec<usize> = away.map(|guest| guest.machine).collect();
        let workers = self.workers;
        (0..cluster.workers()).filter(move |worker| !away.contains(&(worker / workers)))
    }

    /// Returns the number of ended operations.
    pub(super) fn ended(&self, cluster: &Cluster) -> u64 {
        let ended = |worker| cluster.inspect(worker, |worker| workload::progress(worker).ended);
        self.ended + self.present(cluster).map(ended).sum::<u64>()
    }

    /// Returns true if all clients of machines that are not away have ended.
    pub(super) fn is_idle(&self, cluster: &Cluster) -> bool {
        let is_done =
            |worker: &mut Worker| workload::is_started(worker) && workload::is_done(worker);
        let counts = |worker: &usize| !self.survives || cluster.is_running(*worker);
        let mut present = self.present(cluster).filter(counts);
        present.all(|worker| cluster.inspect(worker, is_done))
    }

    /// Returns true if the workload was set up on all workers.
    pub(super) fn are_set_up(&self, cluster: &Cluster) -> bool {
        let has_begun = |worker| cluster.inspect(worker, workload::has_begun);
        let counts = |worker: &usize| !self.survives || cluster.is_running(*worker);
        let mut workers = (0..cluster.workers()).filter(counts);
        self.is_set_up || workers.all(has_begun)
    }

    /// Returns true if no machine leaves any more, or comes back.
    pub(super) fn have_ended(&self) -> bool {
        let mut guests = self.guests.iter();
        guests.all(|guest| guest.moments.is_empty() && guest.phase != Phase::Leaves)
    }

    /// Has machines leave and come back for which it is time. Returns true if a machine did, or has begun to work again.
    pub(super) fn advance(&mut self, cluster: &Cluster, attach: &dyn Fn(&mut Worker)) -> bool {
        if self.guests.is_empty() {
            return false;
        }
        let idle = self.is_idle(cluster);
        let ended = self.ended(cluster);
        self.is_set_up |= self.are_set_up(cluster);
        let mut changed = false;
        for place in 0..self.guests.len() {
            let guest = &mut self.guests[place];
            let first = guest.machine * self.workers;
            let due = guest.moments.front();
            let is_due = self.is_set_up && due.is_some_and(|moment| idle || ended >= *moment);
            match guest.phase {
                Phase::Runs if !guest.is_back && cluster.inspect(first, workload::has_begun) => {
                    guest.is_back = true;
                    changed = true;
                    mark_return(guest.starts, idle);
                }
                Phase::Runs if is_due => {
                    guest.moments.pop_front();
                    guest.phase = Phase::Leaves;
                    changed = true;
                    cluster.leave(guest.machine);
                    marks::mark(match (idle, guest.is_back) {
                        (_, false) => "absence: left before it was back",
                        (true, _) => "absence: left without load",
                        (false, _) => "absence: left under load",
                    });
                }
                Phase::Leaves if !cluster.is_running(first) => {
                    changed = true;
                    self.collect(cluster, place);
                }
                // It was killed, or the configuration has changed while it joined. In both cases another process may come.
                Phase::Runs if self.survives && !cluster.is_running(first) => {
                    marks::mark(match guest.is_back {
                        true => "absence: killed",
                        false => "absence: ended before it was back",
                    });
                    // A moment at which it leaves.
                    guest.moments.pop_front();
                    changed = true;
                    self.collect(cluster, place);
                }
                _ => {}
            }
        }
        let come = self.guests.iter().any(|guest| {
            let due = guest.moments.front();
            guest.phase == Phase::IsAway && due.is_some_and(|moment| idle || ended >= *moment)
        });
        let come = come && self.come_back(cluster, attach);
        changed || come
    }

    /// Takes what counts of a machine that has left or was killed. From now on it is away.
    fn collect(&mut self, cluster: &Cluster, place: usize) {
        let guest = &mut self.guests[place];
        guest.phase = Phase::IsAway;
        for (index, operations) in guest.operations.iter_mut().enumerate() {
            let worker = guest.machine * self.workers + index;
            let (log, state) = cluster.inspect(worker, workload::take_left);
            let ended = cluster.inspect(worker, |worker| workload::progress(worker).ended);
            *operations = operations.saturating_sub(ended);
            self.ended += ended;
            self.logs.push(log);
            self.states.push(state);
        }
    }

    /// Starts all machines again that are away. Their workers continue the workload when they have joined the others. Returns false if
    /// they cannot start now.
    fn come_back(&mut self, cluster: &Cluster, attach: &dyn Fn(&mut Worker)) -> bool {
        if !cluster.restart(attach) {
            return false;
        }
        for guest in self.guests.iter_mut() {
            if guest.phase != Phase::IsAway {
                continue;
            }
            guest.moments.pop_front();
            guest.starts += 1;
            (guest.phase, guest.is_back) = (Phase::Runs, false);
            for (index, operations) in guest.operations.iter().enumerate() {
                let spec = Spec {
                    operations: operations.div_ceil(self.spec.clients as u64),
                    ..self.spec.clone()
                };
                let starts = guest.starts;
                cluster.submit(guest.machine * self.workers + index, move |worker| {
                    workload::start_again(worker, spec, starts, Box::new(|_| {}));
                });
            }
        }
        true
    }

    /// Returns the logs and the parts of the final state of machines that have left.
    pub(super) fn into_left(self) -> (Vec<Log>, Vec<FinalState>) {
        (self.logs, self.states)
    }
}

fn mark_return(starts: u32, idle: bool) {
    if !idle {
        marks::mark("absence: back under load");
    }
    if starts > 1 {
        marks::mark("absence: back for the second time");
    }
}
