//! Losses: machines of running clusters are killed, one after another, and the time is measured for which the others give no
//! service.
//!
//! Every machine is a process (`program`) that moves money between accounts of all machines, in distributed transactions. A cluster
//! is started for each kill. The machines count commits by time, and the curves of those that are left are added (`curve`). A machine with
//! memory is started again then, and the time is measured until all copies are full. In the end the sum of all accounts is checked.
//! `restart` kills all processes instead.

mod curve;
mod machines;
mod plot;
mod program;
mod report;
mod restart;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use farm_core::config::Config;

use crate::micro::Progress;
use curve::Curve;
pub use curve::Latency;
use machines::Machines;
pub use plot::draw;
pub use program::{CHILD_VARIABLE, child_main};
pub use report::{Kill, Killed, LossReport, Returned, Times};
pub use restart::{Restart, RestartReport, run as restart_all};

/// Time from the begin of the load to the signal.
const BEFORE: Duration = Duration::from_secs(2);

/// Longest time until a machine that was started again has full copies.
const RETURN: Duration = Duration::from_secs(60);

/// What is measured.
#[derive(Clone, Debug)]
pub struct LossOptions {
    /// Number of kills. The machines of the configuration are killed in turn.
    pub kills: usize,
    /// Which of them take turns; `None`: all.
    pub only: Option<Killed>,
    /// Whether they are stopped (SIGSTOP) instead, and killed only before they are started again.
    pub stops: bool,
    /// Time that is observed after each signal. The rate in its second half is the one that must come back.
    pub after: Duration,
    /// Number of transactions in flight on each worker.
    pub in_flight: usize,
    /// Bytes of further objects that each machine creates, so that there is something to copy when it comes back.
    pub ballast: u64,
}

impl LossOptions {
    /// Returns the time of a lease in milliseconds, if machines are stopped.
    fn stopped_lease_ms(&self, config: &Config) -> Option<u32> {
        self.stops.then_some(config.durability.lease_ms)
    }
}

/// Kills machines of clusters of a configuration, whose processes find it, and their store, in the directory `dir`.
///
/// # Errors
/// If the configuration does not survive losses, a machine fails, service does not come back, or money is missing.
pub fn run(
    config: &Config,
    options: &LossOptions,
    dir: &Path,
    progress: Progress<'_>,
) -> Result<LossReport> {
    ensure!(
        config.survives_losses() && config.replicas() > 1,
        "this configuration does not survive the loss of a machine: that needs durability.mode = \"memory\", durability.replicas of 2 \
         or more"
    );
    let ballast = options.ballast * config.storing_machines().count() as u64;
    let places = 0..config.machines.len();
    let is_one = |place: &usize| {
        options
            .only
            .is_none_or(|only| only == killed(config, *place))
    };
    let victims: Vec<usize> = places.filter(is_one).collect();
    ensure!(
        !victims.is_empty(),
        "the configuration has no machine of the kind that is to be killed"
    );
    let mut kills = Vec::new();
    for number in 0..options.kills {
        let victim = victims[number % victims.len()];
        let machine = config.machines[victim].id;
        progress(&format!(
            "kill {} of {}: machine {machine}",
            number + 1,
            options.kills
        ));
        let dir = dir.join(number.to_string());
        let curve = kill_one(config, options, &dir, victim)
            .with_context(|| format!("kill {} of machine {machine}", number + 1))?;
        let pause = curve.pause(options.after).with_context(|| {
            format!(
                "service did not come back within {:?} after the signal to machine {machine}",
                options.after
            )
        })?;
        let returned = curve
            .returned
            .map(|times| Returned::new(ballast, times, curve.latency, &curve));
        kills.push(Kill::new(
            machine,
            killed(config, victim),
            (&pause, returned),
            (&curve, options.stopped_lease_ms(config)),
        ));
    }
    Ok(LossReport::new(config, options, kills))
}

/// Returns what a machine is when the cluster has started.
fn killed(config: &Config, place: usize) -> Killed {
    let machine = config.machines[place].id;
    // The first machine that stores regions is the first manager.
    let manager = config.storing_machines().map(|one| one.id).min();
    match config.memory_of(machine) {
        0 => Killed::Program,
        _ if manager == Some(machine) => Killed::Manager,
        _ => Killed::Machine,
    }
}

/// Starts a cluster, kills a machine of it, and returns the curve of the others.
fn kill_one(config: &Config, options: &LossOptions, dir: &Path, victim: usize) -> Result<Curve> {
    let mut machines = Machines::start(config, dir, options)?;
    let started = machines.begin(BEFORE + options.after + RETURN)?;
    std::thread::sleep(BEFORE.saturating_sub(started.elapsed()));
    let signal = match options.stops {
        true => started.stop(&mut machines, victim)?,
        false => started.kill(&mut machines, victim)?,
    };
    std::thread::sleep(options.after);
    machines.end_stopped()?;
    let stores = config.memory_of(config.machines[victim].id) > 0;
    let again = started.elapsed();
    let returned = stores.then(|| machines.bring_back(victim, &started));
    let returned = returned.transpose()?;
    let mut curve = machines.end()?;
    curve.signal = signal;
    curve.returned = returned.map(|[joined, full]| [again, joined, full]);
    if let Some([joined, full]) = returned {
        let parts = [[signal / 2, signal], [joined, full]];
        let [before, filling] = parts.map(|part| machines.latency(part));
        curve.latency = [before?, filling?];
    }
    machines.check_sum()?;
    Ok(curve)
}
