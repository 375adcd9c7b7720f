//! `farm verify`: compares all replicas of a running cluster.
//!
//! Each machine computes digests of the blocks that it stores. This command reads them, and asks for the objects of blocks that
//! differ. The comparison counts only if no log record was written meanwhile, and none was left to be applied: `idle`.

mod compare;
pub(crate) mod configuration;
mod filling;
mod idle;
mod report;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::bail;
use farm::status::machine_status;
use farm::status::replicas::{ReplicaState, replica_state};
use farm_core::config::Config;
use farm_core::ids::MachineId;
use farm_core::machine::newest_configuration;

use crate::cli::VerifyArgs;
use compare::Comparison;

/// Time between two looks at the logs of a cluster that is not idle.
const LOOK: Duration = Duration::from_millis(50);

const NO_REGIONS: &str = "there is nothing to compare: it has no regions, because no program has created a table or an object yet";

/// Why the replicas could not be compared.
#[derive(Debug, thiserror::Error)]
#[error("cannot compare the replicas of cluster {cluster:?}: {why}")]
pub(crate) struct NotCompared {
    cluster: String,
    why: String,
}

/// Runs `farm verify`. The status is 1 if replicas differ.
pub(crate) fn run(args: &VerifyArgs) -> anyhow::Result<ExitCode> {
    let config = args.config.resolve()?;
    let compared = compare(&config, args.wait)?;
    report::print(&config.cluster.name, &compared, args.json)?;
    Ok(ExitCode::from(u8::from(!compared.is_equal())))
}

/// Checks that all replicas of a cluster are equal, when it is idle.
///
/// # Errors
/// The first difference, or why they could not be compared.
pub(crate) fn check_equal(config: &Config, wait: Duration) -> anyhow::Result<()> {
    let compared = compare(config, wait)?;
    match compared.differences.first() {
        None => Ok(()),
        Some(first) => bail!(
            "WRONG, {} block(s) or replicas differ from their primaries, first: {}",
            compared.different,
            report::line_of(first).trim()
        ),
    }
}

fn compare(config: &Config, wait: Duration) -> Result<Comparison, NotCompared> {
    compare_when_idle(config, wait).map_err(|why| NotCompared {
        cluster: config.cluster.name.clone(),
        why,
    })
}

/// Compares the replicas, when nothing has changed for a moment. Repeats that if something changes meanwhile, for this time.
///
/// # Errors
/// Why they could not be compared.
fn compare_when_idle(config: &Config, wait: Duration) -> Result<Comparison, String> {
    let began = Instant::now();
    let mut before = states(config)?;
    idle::check_replicated(&before)?;
    configuration::check_running(config, &before)?;
    loop {
        std::thread::sleep(LOOK);
        let now = states(config)?;
        let moving = match idle::moving(&before, &now).or_else(|| filling::text(config)) {
            Some(moving) => moving,
            None => {
                let compared = Comparison::of(config, &now)?;
                match idle::moving(&now, &states(config)?) {
                    None if compared.regions == 0 => return Err(NO_REGIONS.to_owned()),
                    None => return Ok(compared),
                    Some(moving) => moving,
                }
            }
        };
        if began.elapsed() >= wait {
            return Err(format!(
                "it is not idle after {} s: {moving}; stop the programs that write, or wait longer with --wait SECONDS",
                wait.as_secs_f64()
            ));
        }
        before = now;
    }
}

/// Returns what each machine knows of the replicas.
///
/// # Errors
/// If a machine that stores regions does not run or does not answer, and the others have not gone on without it.
fn states(config: &Config) -> Result<Vec<ReplicaState>, String> {
    let (mut states, mut missing) = (Vec::new(), Vec::new());
    let newest = newest_configuration(config).ok().flatten();
    let is_lost = |machine| {
        newest
            .as_ref()
            .is_some_and(|newest| !newest.stores(machine))
    };
    for machine in config.machines.iter().map(|machine| machine.id) {
        // It may run, and stand still.
        if config.memory_of(machine) > 0 && is_lost(machine) {
            continue;
        }
        match replica_state(config, machine).map_err(|error| error.to_string())? {
            Some(state) => states.push(state),
            None => check_old(config, machine)?,
        }
        let answered = states.last().is_some_and(|state| state.machine == machine);
        // A machine that stores nothing may have left.
        if !answered && config.memory_of(machine) > 0 {
            missing.push(machine);
        }
    }
    if states.is_empty() {
        return Err(
            "none of its machines runs on this host as a process of this user; start them, for example with `farm node`, and \
             use their configuration (--config, --set)"
                .to_owned(),
        );
    }
    if missing.is_empty() {
        return Ok(states);
    }
    match configuration::check_running(config, &states) {
        Err(differs) => Err(differs),
        Ok(()) => Err(format!(
            "machine(s) {} of the configuration do not run on this host; this command must run on the host of all machines",
            list(missing)
        )),
    }
}

/// Checks that a machine that does not answer about its replicas does not run at all.
fn check_old(config: &Config, machine: MachineId) -> Result<(), String> {
    match machine_status(config, machine) {
        Ok(Some(status)) => Err(format!(
            "machine {machine} (process {}, farm {}) answers `farm status`, but does not know `farm verify`; restart the cluster with \
             this version of its program",
            status.pid, status.farm
        )),
        Ok(None) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

/// Joins the names of machines.
fn list(machines: impl IntoIterator<Item = MachineId>) -> String {
    let names = machines.into_iter().map(|machine| machine.to_string());
    names.collect::<Vec<_>>().join(", ")
}
