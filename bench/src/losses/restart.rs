//! All processes of a cluster are killed under load, and the time is measured until the next ones go on.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use farm_core::config::Config;
use serde::Serialize;

use super::machines::Machines;
use super::{BEFORE, LossOptions, Times};
use crate::micro::Progress;
use crate::report::{Figure, Measured};

/// Time from the start of the processes, of the machine that was the last one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Restart {
    /// Milliseconds until an object was read.
    pub read_ms: f64,
    /// Milliseconds until a transaction was committed.
    pub committed_ms: f64,
}

/// The result of restarts of one configuration.
#[derive(Clone, Debug, Serialize)]
pub struct RestartReport {
    /// Number of machines.
    pub machines: usize,
    /// Number of copies of each region.
    pub copies: usize,
    /// Bytes of the further objects of all machines, without copies.
    pub bytes: u64,
    /// All restarts, in their order.
    pub restarts: Vec<Restart>,
}

/// Kills all processes of clusters of a configuration, and starts them again.
///
/// # Errors
/// If the configuration does not keep memory, a machine fails, or money is missing.
pub fn run(
    config: &Config,
    options: &LossOptions,
    dir: &Path,
    progress: Progress<'_>,
) -> Result<RestartReport> {
    ensure!(
        config.keeps_memory(),
        "the memory of this configuration ends with its processes: that needs durability.mode = \"memory\" on shared memory"
    );
    let mut restarts = Vec::new();
    for number in 0..options.kills {
        progress(&format!("restart {} of {}", number + 1, options.kills));
        let dir = dir.join(number.to_string());
        let restart = restart(config, options, &dir);
        restarts.push(restart.with_context(|| format!("restart {}", number + 1))?);
    }
    Ok(RestartReport {
        machines: config.machines.len(),
        copies: config.replicas(),
        bytes: options.ballast * config.storing_machines().count() as u64,
        restarts,
    })
}

fn restart(config: &Config, options: &LossOptions, dir: &Path) -> Result<Restart> {
    let mut machines = Machines::start(config, dir, options)?;
    let started = machines.begin(2 * BEFORE)?;
    std::thread::sleep(BEFORE.saturating_sub(started.elapsed()));
    machines.kill_all()?;
    let [read, committed] = machines.resume()?;
    machines.check_sum()?;
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    Ok(Restart {
        read_ms: ms(read),
        committed_ms: ms(committed),
    })
}

impl RestartReport {
    fn times(&self) -> Vec<(&'static str, Times)> {
        let of =
            |name, of: fn(&Restart) -> f64| Some((name, Times::of(self.restarts.iter().map(of))?));
        let both = [
            of("first read", |one| one.read_ms),
            of("first commit", |one| one.committed_ms),
        ];
        both.into_iter().flatten().collect()
    }
}

impl Measured for RestartReport {
    fn what(&self) -> String {
        "restarts".to_owned()
    }

    fn figures(&self) -> Vec<Figure> {
        let times = self.times().into_iter();
        times
            .map(|(name, times)| Figure::new(format!("{name}, p50 ms"), times.p50))
            .collect()
    }
}

impl fmt::Display for RestartReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "  {} machines, {} copies, {:.3} GB of objects; all processes killed under load and started again, {} times",
            self.machines,
            self.copies,
            self.bytes as f64 / 1e9,
            self.restarts.len()
        )?;
        writeln!(
            f,
            "  ms from the start, of the last machine   median     90 %     most"
        )?;
        for (name, Times { p50, p90, most, .. }) in self.times() {
            writeln!(f, "    {name:<36} {p50:>8.1} {p90:>8.1} {most:>8.1}")?;
        }
        write!(f, "  no money is missing")
    }
}
