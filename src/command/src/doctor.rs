//! `farm doctor`: checks a configuration against this host, and prints what to change.
//!
//! [`probe_with_devices`] collects facts about the host. [`judge()`] compares these facts with a configuration and
//! returns findings. It depends only on its arguments, so the tests call it with the facts of invented hosts.

mod judge;
mod leases;
mod rdma;
mod sizing;
mod stale_files;
mod store;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use farm_core::config::Config;
use farm_core::config::host::{HostFacts, probe_with_devices, run_dir};
use farm_core::fabric::shm::measure_lateness;
use serde::Serialize;

use crate::clean;
use crate::cli::DoctorArgs;
use crate::destroy::idle_kept_bytes;
use judge::judge;

/// Runs `farm doctor`. The exit status is 1 if the configuration cannot run on this host.
pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let config = args.config.resolve()?;
    let mut facts = probe_with_devices(&config.memory.dir);
    facts.take_over(idle_kept_bytes(&config, None));
    let mut findings = judge(&facts, &config);
    if config.survives_losses() {
        let lateness = measure_lateness(leases::MEASURED, facts.usable_cores());
        findings.push(leases::finding(&config, lateness));
    }
    findings.extend(store::findings(&config, &args.config.options()));
    findings.push(stale_files::finding(
        &clean::find(&config),
        &clean::find_directories(&config),
        &config,
    ));
    let text = if args.json {
        let report = Report {
            host: &facts,
            config: &config,
            findings: &findings,
        };
        serde_json::to_string_pretty(&report)? + "\n"
    } else {
        describe(&findings, &facts, &config, &args.config.name())
    };
    crate::Output.write_all(text.as_bytes())?;
    let problem = findings
        .iter()
        .any(|finding| finding.level == Level::Problem);
    Ok(if problem {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// The output of `--json`.
#[derive(Serialize)]
struct Report<'a> {
    host: &'a HostFacts,
    config: &'a Config,
    findings: &'a [Finding],
}

/// Returns the shell command with `sudo` in front, unless this user is root.
fn as_root(facts: &HostFacts, command: &str) -> String {
    if facts.user_id == 0 {
        command.to_owned()
    } else {
        format!("sudo {command}")
    }
}

/// The level of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    /// Nothing to change.
    Ok,
    /// A fact to know.
    Note,
    /// Something to improve.
    Advice,
    /// The configuration cannot run on this host.
    Problem,
}

impl Level {
    fn word(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Note => "note",
            Level::Advice => "advice",
            Level::Problem => "problem",
        }
    }
}

/// One result of the check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) level: Level,
    /// The topic, in one or two words.
    pub(crate) about: &'static str,
    /// The fact about the host or the configuration.
    pub(crate) fact: String,
    /// The recommended change.
    pub(crate) advice: Option<String>,
    /// The shell commands that make the change.
    pub(crate) commands: Vec<String>,
}

impl Finding {
    fn new(level: Level, about: &'static str, fact: impl Into<String>) -> Finding {
        Finding {
            level,
            about,
            fact: fact.into(),
            advice: None,
            commands: Vec::new(),
        }
    }

    fn advice(mut self, advice: impl Into<String>) -> Finding {
        self.advice = Some(advice.into());
        self
    }

    fn command(mut self, command: impl Into<String>) -> Finding {
        self.commands.push(command.into());
        self
    }
}

/// Formats the findings as a table.
fn describe(findings: &[Finding], facts: &HostFacts, config: &Config, name: &str) -> String {
    let mut text = format!("This host ({}), checked against {name}:\n\n", facts.kernel);
    for finding in findings {
        text.push_str(&format!(
            "{:<8} {:<11} {}\n",
            finding.level.word(),
            finding.about,
            finding.fact
        ));
        if let Some(advice) = &finding.advice {
            text.push_str(&format!("{:20} -> {advice}\n", ""));
        }
        for command in &finding.commands {
            text.push_str(&format!("{:20}    {command}\n", ""));
        }
    }
    text.push_str(&format!(
        "\nDirectory of sockets and locks: {}\n",
        socket_dir(&run_dir(config), config)
    ));
    let count = |level| {
        findings
            .iter()
            .filter(|finding| finding.level == level)
            .count()
    };
    let (problems, advice) = (count(Level::Problem), count(Level::Advice));
    text.push_str(&format!(
        "{problems} problem(s), {advice} possible improvement(s).\n"
    ));
    text
}

fn socket_dir(dir: &Path, config: &Config) -> String {
    format!("{} (cluster {:?})", dir.display(), config.cluster.name)
}

#[cfg(test)]
mod tests;
