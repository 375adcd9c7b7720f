//! How long a simulated cluster gives no service when a machine is killed.
//!
//! The machines run the code of production, and their leases end by time, as on RDMA devices. What takes time is what the protocol waits
//! for: ends of leases, operations of the fabric, and replies. Processors are slow only in so far as a turn takes a nanosecond and each
//! step of the fabric up to 100; so the times are not those of hardware. They show what short leases would give.

use std::time::Duration;

use farm_check::checkers;
use farm_check::workload::{self, Kind, Log, Spec};
use farm_core::time::Nanos;
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::drive;
use crate::cluster::{Cluster, ClusterLimits, Pace, Stepped};
use crate::fabric::{Odds, SimConfig};

/// XORed into the seed, so that the random numbers differ from those of other uses of it.
const PAUSES: u64 = 0x7061_7573;
/// Steps between two looks at the number of ended transactions.
const STEPS_PER_LOOK: usize = 16;
/// Looks until all accounts must be there, and until all clients must have ended.
const MOST_LOOKS: usize = 1 << 20;
/// A cluster runs for this many leases, and for up to one more, before a machine is killed.
const LEASES_BEFORE: u32 = 2;
/// A cluster is observed for this many leases after that. The rate in the second half is the one that must come back.
const LEASES_AFTER: u32 = 12;
/// Service is back at the first time of a lease whose rate is at least this share of the later rate.
const IS_BACK: f64 = 0.8;
/// Clients of each worker.
const CLIENTS: usize = 8;
/// Accounts on each machine.
const ACCOUNTS: usize = 64;

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub struct PauseSpec {
    /// Number of machines, all with memory: at least three.
    pub machines: usize,
    /// Time of a lease.
    pub lease: Duration,
    /// Whether the manager is killed, and not another machine.
    pub of_manager: bool,
}

/// What one kill showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// Time from the kill until, after the longest time in which no transaction ended, the transactions of the others in the time of a lease
    /// reach 80 % of the rate of the seventh to twelfth lease after the kill.
    pub without_service: Duration,
    /// Longest time in which no transaction ended.
    pub without_end: Duration,
    /// Number of transactions that were judged.
    pub transactions: usize,
}

/// Kills a machine of a simulated cluster under load: three copies of all regions, one worker on each machine, transactions over the
/// accounts of all machines. The history of all transactions is checked.
///
/// # Errors
/// What was wrong: service did not come back, a machine stopped, or the history is not serializable.
///
/// # Panics
/// If there are fewer than three machines.
pub fn measure(seed: u64, spec: &PauseSpec) -> Result<Pause, String> {
    assert!(
        spec.machines >= 3,
        "two machines do not go on when the lease of one has ended"
    );
    let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed ^ PAUSES);
    let limits = limits(rng, spec);
    let fabric = SimConfig {
        odds: Some(calm_odds()),
        ..limits.fabric(seed)
    };
    let attach = |worker: &mut farm_core::worker::Worker| drive::attach(worker, &limits);
    let cluster = Cluster::new(fabric, &limits, calm_pace(), attach);
    let bank = bank(rng);
    for worker in 0..cluster.workers() {
        cluster.on(worker, |worker| {
            workload::start(worker, bank.clone(), Box::new(|_| {}));
        });
    }
    let has_begun = |cluster: &Cluster| {
        let mut workers = 0..cluster.workers();
        workers.all(|one| cluster.inspect(one, workload::has_begun))
    };
    until(&cluster, "the accounts are created", has_begun)?;
    let lease = spec.lease.as_nanos() as u64;
    let before = u64::from(LEASES_BEFORE) * lease + rng.random_range(0..lease);
    let victim = match spec.of_manager {
        true => 0,
        false => rng.random_range(1..spec.machines),
    };
    observe(&cluster, before)?;
    // It ends in the middle of a turn.
    cluster.kill_process(victim);
    until(&cluster, "the process ends", |cluster| {
        !cluster.is_running(victim)
    })?;
    let killed = cluster.now();
    let counts = observe(&cluster, u64::from(LEASES_AFTER) * lease)?;
    if !cluster.failures().is_empty() {
        return Err(format!(
            "machines that were not killed stopped: {:?}",
            cluster.failures()
        ));
    }
    let transactions = check(&cluster)?;
    let (without_service, without_end) = evaluate(&counts, killed, lease)?;
    Ok(Pause {
        without_service,
        without_end,
        transactions,
    })
}

/// Numbers of ended transactions of the machines that run, with the times at which they were read.
type Counts = Vec<(Nanos, u64)>;

/// Runs the cluster for some nanoseconds.
fn observe(cluster: &Cluster, nanos: u64) -> Result<Counts, String> {
    let until = cluster.now() + nanos;
    let mut counts = Vec::new();
    while cluster.now() < until {
        steps(cluster)?;
        let ended = |worker| cluster.inspect(worker, |worker| workload::progress(worker).ended);
        let ended = (0..cluster.workers()).map(ended).sum();
        counts.push((cluster.now(), ended));
    }
    Ok(counts)
}

fn steps(cluster: &Cluster) -> Result<(), String> {
    for _ in 0..STEPS_PER_LOOK {
        if cluster.step() == Stepped::Stopped {
            return Err(format!("all machines stopped: {:?}", cluster.failures()));
        }
    }
    Ok(())
}

/// Runs the cluster until a condition holds.
fn until(cluster: &Cluster, what: &str, holds: impl Fn(&Cluster) -> bool) -> Result<(), String> {
    for _ in 0..MOST_LOOKS {
        if holds(cluster) {
            return Ok(());
        }
        steps(cluster)?;
    }
    Err(format!(
        "the cluster makes no progress until {what}{}",
        cluster.membership()
    ))
}

/// Returns the time without service and the longest time without an ended transaction.
fn evaluate(counts: &Counts, killed: Nanos, lease: u64) -> Result<(Duration, Duration), String> {
    let at = |time: Nanos| {
        let before = counts.partition_point(|one| one.0 <= time);
        counts[before.saturating_sub(1)].1
    };
    let half = killed + u64::from(LEASES_AFTER) / 2 * lease;
    let end = killed + u64::from(LEASES_AFTER) * lease;
    let later = (at(end) - at(half)) as f64 / (end - half) as f64;
    let enough = (later * lease as f64 * IS_BACK).max(1.0);
    let mut last = (killed, counts[0].1);
    let (mut longest, mut goes_on) = (0, killed);
    for (time, ended) in counts {
        if *ended > last.1 {
            if *time - last.0 > longest {
                (longest, goes_on) = (*time - last.0, *time);
            }
            last = (*time, *ended);
        }
    }
    // For some time after the kill the others go on with what they have begun. The first time that counts begins with the
    // first transaction that ended later, and each other one a hundredth of a lease after the one before.
    let step = lease / 100;
    let back = (goes_on.0..half.0)
        .step_by(step as usize)
        .find(|from| (at(Nanos(from + lease)) - at(Nanos(*from))) as f64 >= enough);
    let back = back.ok_or("service did not come back within six leases")?;
    Ok((
        Duration::from_nanos(back - killed.0),
        Duration::from_nanos(longest),
    ))
}

/// Ends the load, and checks all transactions. Returns their number.
fn check(cluster: &Cluster) -> Result<usize, String> {
    let running: Vec<usize> = cluster.running().collect();
    for worker in &running {
        cluster.inspect(*worker, workload::enough);
    }
    let is_done = |cluster: &Cluster| {
        let mut running = running.iter();
        running.all(|one| cluster.inspect(*one, workload::is_done))
    };
    until(cluster, "all clients have ended", is_done)?;
    let logs = (0..cluster.workers()).map(|one| cluster.inspect(one, workload::take_log));
    let history = Log::merge(logs.collect());
    if let Some(violation) = history.violations.first() {
        return Err(violation.clone());
    }
    let facts = checkers::check(&history).map_err(|finding| finding.to_string())?;
    Ok(facts.transactions)
}

fn limits(rng: &mut impl Rng, spec: &PauseSpec) -> ClusterLimits {
    let mut limits = ClusterLimits::drawn(rng);
    limits.workers = 1;
    limits.operations = 2 * CLIENTS;
    limits.log_bytes = 64 << 10;
    limits.make_room_for_tables();
    limits.survive_with_leases(spec.machines, spec.lease);
    limits
}

fn bank(rng: &mut impl Rng) -> Spec {
    Spec {
        kind: Kind::Bank,
        objects_per_machine: ACCOUNTS,
        spread: true,
        payload_bytes: 40,
        clients: CLIENTS,
        // More than end.
        operations: 1 << 40,
        read_only: 20,
        lock_free: 20,
        tasks: 0,
        seed: rng.random(),
        ..Spec::default()
    }
}

/// Returns odds of a fabric on which nothing rare happens.
fn calm_odds() -> Odds {
    Odds {
        full: 0,
        stall: 0,
        late_completion: 0,
        spurious_wake: 0,
        steps_per_poll: 1,
        words_per_step: 64,
        places_in_order: true,
        one_pass: true,
        most_retries: 1,
        late_arrival: 0,
        accesses_between_others: 1 << 5,
        nested_turn: Odds::WHOLE / 16,
        retire: Odds::WHOLE / 4,
    }
}

/// Returns a pace without pauses.
fn calm_pace() -> Pace {
    Pace {
        turns: 512,
        sleeps: 1024,
        pauses: 0,
        pause_nanos: 1,
        slow: 0,
        slow_worker: 0,
        nested_steps: 1,
    }
}
