//! Machines without memory that leave in order while the others run, or are killed, and come back, several times; and machines with
//! memory that are killed, and come back.

use std::collections::VecDeque;

use farm_check::workload::{self, Log, Spec};
use farm_core::ids::Address;
use farm_core::marks;
use farm_core::worker::Worker;
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::cluster::{Cluster, ClusterLimits};

/// XORed into the seed, so that the random numbers differ from those of the plan and of the fabric.
const ABSENCES: u64 = 0x6177_6179;

/// As [`ABSENCES`].
const RETURNS: u64 = 0x7265_7475;

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

/// The return of a machine with memory that was killed.
#[derive(Clone, Copy, Debug)]
pub struct Return {
    /// Index of the machine.
    pub machine: usize,
    /// Number of further ended operations after which it comes back. If all clients have ended before, it does so then.
    pub after: u64,
    /// Number of looks at the run until it is killed once more.
    pub again: Option<u64>,
}

impl Return {
    /// Returns the return of a machine that comes back at once.
    pub(super) fn soon(machine: usize) -> Self {
        Self {
            machine,
            after: 0,
            again: None,
        }
    }

    /// Draws the returns of machines in a run of about this number of operations.
    pub(super) fn drawn(seed: u64, machines: &[usize], operations: u64) -> Vec<Self> {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed ^ RETURNS);
        let machines = machines.iter().filter_map(|machine| {
            let one = Self {
                machine: *machine,
                after: rng.random_range(0..operations / 2),
                again: rng.random_bool(0.5).then(|| 1 << rng.random_range(0..9u32)),
            };
            rng.random_bool(0.7).then_some(one)
        });
        machines.collect()
    }
}

/// What a machine that may be away does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Runs,
    Leaves,
    IsAway,
}

/// A machine that may be away.
struct Guest {
    machine: usize,
    /// How it comes back if it is killed, if it has memory.
    returns: Option<Return>,
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
            returns: None,
            moments: absences.moments.iter().copied().collect(),
            phase: Phase::Runs,
            starts: 0,
            is_back: true,
            operations: vec![spec.operations * spec.clients as u64; limits.workers],
        }
    }

    /// Returns whether the machine is to be killed once more, now that this is asked.
    fn is_killed_again(&mut self, runs: bool) -> bool {
        let looks = self.returns.as_mut().filter(|_| runs && self.starts > 0);
        let again = looks.map(|returns| &mut returns.again);
        again.is_some_and(|again| {
            *again = again.map(|looks| looks - 1);
            again.take_if(|looks| *looks == 0).is_some()
        })
    }

    /// Has the workers of the machine, which was started again, continue the workload when they have joined the others. `known` are the
    /// addresses of its objects, if no other worker knows them.
    fn come_back(&mut self, cluster: &Cluster, spec: &Spec, known: &[Address]) {
        if self.phase != Phase::IsAway {
            return;
        }
        self.moments.pop_front();
        self.starts += 1;
        (self.phase, self.is_back) = (Phase::Runs, false);
        let workers = self.operations.len();
        for (index, operations) in self.operations.iter().enumerate() {
            let spec = Spec {
                operations: operations.div_ceil(spec.clients as u64),
                ..spec.clone()
            };
            let (starts, known) = (self.starts, known.to_vec());
            cluster.submit(self.machine * workers + index, move |worker| {
                workload::start_again(worker, spec, (starts, &known), Box::new(|_| {}));
            });
        }
    }
}

/// The machines of a run that may be away, and what they left behind.
pub(super) struct Guests<'p> {
    spec: &'p Spec,
    workers: usize,
    /// Whether machines that were lost do not count.
    survives: bool,
    guests: Vec<Guest>,
    /// Whether the workload was set up on all workers.
    is_set_up: bool,
    /// The addresses of its objects, if it has some.
    known: Vec<Address>,
    /// Whether machines start again after all had ended.
    resumes: bool,
    seed: u64,
    /// Number of times that they did.
    resumed: usize,
    /// Number of operations that ended on machines that left.
    ended: u64,
    logs: Vec<Log>,
}

impl<'p> Guests<'p> {
    pub(super) fn new(
        (absences, returns): (&[Absences], &[Return]),
        spec: &'p Spec,
        limits: &ClusterLimits,
    ) -> Self {
        let guests = absences.iter().map(|one| Guest::new(one, spec, limits));
        let returning = returns.iter().map(|one| {
            let machine = one.machine;
            let absences = Absences {
                machine,
                moments: Vec::new(),
            };
            Guest {
                returns: Some(*one),
                ..Guest::new(&absences, spec, limits)
            }
        });
        let guests = guests.chain(returning);
        Self {
            spec,
            workers: limits.workers,
            survives: limits.survives,
            guests: guests.collect(),
            is_set_up: false,
            known: Vec::new(),
            resumes: false,
            seed: 0,
            resumed: 0,
            ended: 0,
            logs: Vec::new(),
        }
    }

    /// Machines start again after all had ended. The seed decides which of them has lost its memory.
    pub(super) fn that_resume(mut self, resumes: bool, seed: u64) -> Self {
        (self.resumes, self.seed) = (resumes, seed);
        self
    }

    /// Returns the number of times that machines started again after all had ended.
    pub(super) fn resumed(&self) -> usize {
        self.resumed
    }

    /// Returns whether the run is not over, although no machine runs.
    pub(super) fn will_resume(&self) -> bool {
        self.resumes && self.is_set_up
    }

    /// Returns the workers of machines that are not away.
    pub(super) fn present(&self, cluster: &Cluster) -> impl Iterator<Item = usize> + use<'p> {
        let away = self.guests.iter().filter(|one| one.phase == Phase::IsAway);
        let away: Vec<usize> = away.map(|guest| guest.machine).collect();
        let workers = self.workers;
        (0..cluster.workers()).filter(move |worker| !away.contains(&(worker / workers)))
    }

    /// Describes the machines that may be away.
    pub(super) fn text(&self) -> String {
        let one = |guest: &Guest| {
            let Guest {
                machine,
                phase,
                is_back,
                starts,
                moments,
                ..
            } = guest;
            format!(
                "\n  machine {machine}: {phase:?}, back: {is_back}, starts: {starts}, then {moments:?}"
            )
        };
        self.guests.iter().map(one).collect()
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

    /// Notices whether the workload was set up on all workers, and returns it. From then on its objects are known.
    pub(super) fn notice_set_up(&mut self, cluster: &Cluster) -> bool {
        let has_begun = |worker| cluster.inspect(worker, workload::has_begun);
        let counts = |worker: &usize| !self.survives || cluster.is_running(*worker);
        let mut workers = (0..cluster.workers()).filter(counts);
        if !self.is_set_up && workers.all(has_begun) {
            self.is_set_up = true;
            let mut running = cluster.running();
            let known = running
                .next()
                .map(|one| cluster.inspect(one, workload::addresses));
            self.known = known.unwrap_or_default();
        }
        self.is_set_up
    }

    /// Returns true if no machine leaves any more, or comes back.
    pub(super) fn have_ended(&self, cluster: &Cluster) -> bool {
        let is_over = |guest: &Guest| {
            let comes = self.resumes && guest.returns.is_some();
            let runs = cluster.is_running(guest.machine * self.workers);
            let is_away = comes && !(runs && guest.phase == Phase::Runs && guest.is_back);
            guest.moments.is_empty() && guest.phase != Phase::Leaves && !is_away
        };
        self.guests.iter().all(is_over)
    }

    /// Has machines leave and come back for which it is time. Returns true if a machine did, or has begun to work again.
    pub(super) fn advance(&mut self, cluster: &Cluster, attach: &dyn Fn(&mut Worker)) -> bool {
        if self.guests.is_empty() {
            return false;
        }
        let idle = self.is_idle(cluster);
        let ended = self.ended(cluster);
        self.notice_set_up(cluster);
        let mut changed = false;
        for place in 0..self.guests.len() {
            let guest = &mut self.guests[place];
            let first = guest.machine * self.workers;
            let due = guest.moments.front();
            let is_due = self.is_set_up && due.is_some_and(|moment| idle || ended >= *moment);
            let is_killed_again = guest.is_killed_again(cluster.is_running(first));
            match guest.phase {
                Phase::Runs if is_killed_again => {
                    marks::mark("absence: killed after it came back");
                    cluster.kill_process(guest.machine);
                    changed = true;
                }
                Phase::Runs if !guest.is_back && cluster.inspect(first, workload::has_begun) => {
                    guest.is_back = true;
                    changed = true;
                    mark_return(guest, idle);
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
                    match guest.returns {
                        // It comes back later, and at once if it could not join.
                        Some(returns) if guest.is_back => {
                            guest.moments.push_back(ended + returns.after)
                        }
                        Some(_) => guest.moments.push_back(ended),
                        // A moment at which it leaves.
                        None => _ = guest.moments.pop_front(),
                    }
                    changed = true;
                    self.collect(cluster, place);
                }
                _ => {}
            }
        }
        let is_due = |guest: &Guest| {
            let due = guest.moments.front();
            guest.phase == Phase::IsAway && due.is_some_and(|moment| idle || ended >= *moment)
        };
        let is_program = |guest: &Guest| guest.returns.is_none();
        let come = self.guests.iter().any(|one| is_program(one) && is_due(one));
        if come && cluster.restart(attach) {
            changed = true;
            for guest in self.guests.iter_mut().filter(|one| is_program(one)) {
                guest.come_back(cluster, self.spec, &[]);
            }
        }
        for guest in self
            .guests
            .iter_mut()
            .filter(|one| !is_program(one) && is_due(one))
        {
            if cluster.rejoin(guest.machine, attach) {
                changed = true;
                // All others that know them may be killed next.
                let known = if self.resumes { &self.known[..] } else { &[] };
                guest.come_back(cluster, self.spec, known);
            }
        }
        changed | self.resume(cluster, attach)
    }

    /// Starts machines again after all had ended. Returns whether they did.
    fn resume(&mut self, cluster: &Cluster, attach: &dyn Fn(&mut Worker)) -> bool {
        let mut guests = self.guests.iter();
        let all_are_away = guests.all(|guest| guest.phase == Phase::IsAway);
        if !(self.will_resume() && all_are_away) {
            return false;
        }
        let machines = cluster.workers() / self.workers;
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(self.seed ^ (self.resumed as u64 + 1));
        let gone = rng.random_range(0..machines);
        let gone = rng.random_bool(0.25).then_some(gone);
        let places = cluster.resume(gone, attach);
        marks::mark("absence: all processes had ended");
        for guest in &mut self.guests {
            if places.contains(&guest.machine) {
                guest.come_back(cluster, self.spec, &self.known);
            } else {
                marks::mark("absence: a machine joins after all had ended");
            }
        }
        self.resumed += 1;
        true
    }

    /// Takes what counts of a machine that has left or was killed. From now on it is away.
    fn collect(&mut self, cluster: &Cluster, place: usize) {
        let guest = &mut self.guests[place];
        guest.phase = Phase::IsAway;
        for (index, operations) in guest.operations.iter_mut().enumerate() {
            let worker = guest.machine * self.workers + index;
            let log = cluster.inspect(worker, workload::take_log);
            let ended = cluster.inspect(worker, |worker| workload::progress(worker).ended);
            *operations = operations.saturating_sub(ended);
            self.ended += ended;
            self.logs.push(log);
        }
    }

    /// Returns the logs of machines that have left.
    pub(super) fn into_logs(self) -> Vec<Log> {
        self.logs
    }
}

fn mark_return(guest: &Guest, idle: bool) {
    if !idle {
        marks::mark(match guest.returns {
            Some(_) => "absence: a machine with memory is back under load",
            None => "absence: back under load",
        });
    }
    if guest.starts > 1 {
        marks::mark("absence: back for the second time");
    }
}
