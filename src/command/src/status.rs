//! `farm status`: what the machines of a running cluster report.

mod configuration;

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use farm::status::{
    CATALOG_TABLE, ClassStatus, Counts, MachineStatus, NameStatus, TableStatus, machine_status,
};
use farm_bench::text;
use farm_core::config::{Config, rounded_size};
use farm_core::ids::MachineId;
use serde::Serialize;

use crate::cli::StatusArgs;
use crate::cluster::interrupts;
use configuration::ConfigurationStatus;

/// Time between two looks at an interrupt.
const LOOK: Duration = Duration::from_millis(20);
/// Clears a terminal.
const CLEAR: &str = "\x1b[2J\x1b[H";

/// A machine of the cluster at one moment.
#[derive(Debug, Serialize)]
struct Seen {
    /// Number of a machine without a status, which would contain it.
    #[serde(rename = "machine", skip_serializing_if = "Option::is_none")]
    unknown: Option<u16>,
    /// Whether the machine runs.
    runs: bool,
    /// Why its status is not known, although a process answers for it.
    error: Option<String>,
    #[serde(flatten)]
    status: Option<MachineStatus>,
    /// Counts of the last interval, per second.
    per_second: Option<BTreeMap<String, f64>>,
}

/// The whole cluster.
#[derive(Debug, Serialize)]
struct Report<'a> {
    schema_version: u32,
    cluster: &'a str,
    /// The configuration of a cluster with copies.
    #[serde(skip_serializing_if = "Option::is_none")]
    configuration: Option<ConfigurationStatus>,
    machines: Vec<Seen>,
}

/// Runs `farm status`. The status is 1 if a machine of the configuration does not run.
pub(crate) fn run(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    let config = args.config.resolve()?;
    let interrupted = interrupts()?;
    let interval = Duration::from_secs_f64(args.interval);
    let mut before = look(&config);
    loop {
        let began = Instant::now();
        while began.elapsed() < interval && (args.watch || any_runs(&before)) {
            if interrupted.load(Ordering::Relaxed) {
                return Ok(ExitCode::SUCCESS);
            }
            std::thread::sleep(LOOK.min(interval));
        }
        let mut now = look(&config);
        add_rates(&before, &mut now);
        before = print(args, &config, now)?;
        if !args.watch {
            let all = before.iter().all(|seen| seen.status.is_some());
            return Ok(ExitCode::from(u8::from(!all)));
        }
    }
}

fn any_runs(seen: &[Seen]) -> bool {
    seen.iter().any(|seen| seen.status.is_some())
}

/// Asks all machines, at the same time: one that is stopped answers nothing for long.
fn look(config: &Config) -> Vec<Seen> {
    std::thread::scope(|scope| {
        let machines = config.machines.iter();
        let asked: Vec<_> = machines
            .map(|machine| scope.spawn(|| look_at(config, machine.id)))
            .collect();
        let answers = asked.into_iter().map(|one| one.join());
        answers
            .map(|seen| seen.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

fn look_at(config: &Config, machine: MachineId) -> Seen {
    let (status, error) = match machine_status(config, machine) {
        Ok(status) => (status, None),
        Err(error) => (None, Some(error.to_string())),
    };
    Seen {
        unknown: status.is_none().then(|| machine.get()),
        runs: status.is_some() || error.is_some(),
        error,
        status,
        per_second: None,
    }
}

/// Adds the counts since `before`, per second.
fn add_rates(before: &[Seen], now: &mut [Seen]) {
    for (before, now) in before.iter().zip(now) {
        let (Some(before), Some(status)) = (&before.status, &now.status) else {
            continue;
        };
        let seconds = status.uptime_s - before.uptime_s;
        // A machine that started again meanwhile has a lower time.
        if seconds > 0.0 && before.pid == status.pid {
            now.per_second = Some(rates(&status.counts.since(&before.counts), seconds));
        }
    }
}

fn rates(counts: &Counts, seconds: f64) -> BTreeMap<String, f64> {
    let fields = serde_json::to_value(counts).ok();
    let fields = fields.as_ref().and_then(serde_json::Value::as_object);
    let fields = fields.into_iter().flatten();
    let rate = |value: &serde_json::Value| value.as_f64().map(|count| count / seconds);
    fields
        .filter_map(|(name, value)| Some((name.clone(), rate(value)?)))
        .collect()
}

/// Prints a report, and returns what it was made of.
fn print(args: &StatusArgs, config: &Config, machines: Vec<Seen>) -> anyhow::Result<Vec<Seen>> {
    let mut out = crate::Output;
    let report = Report {
        schema_version: 1,
        cluster: &config.cluster.name,
        configuration: ConfigurationStatus::read(config),
        machines,
    };
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&report)?)?;
    } else {
        if args.watch && std::io::stdout().is_terminal() {
            write!(out, "{CLEAR}")?;
        }
        writeln!(out, "{}", in_words(&report))?;
    }
    out.flush()?;
    Ok(report.machines)
}

fn in_words(report: &Report<'_>) -> String {
    let (machines, all) = (&report.machines, report.machines.len());
    let running = machines.iter().filter(|seen| seen.status.is_some()).count();
    let mut parts = vec![
        format!(
            "cluster {:?}: {running} of {all} machine(s) run",
            report.cluster
        ),
        text::table(&machine_lines(machines), [0; 2]),
    ];
    for seen in machines {
        match (&seen.status, &seen.error) {
            (Some(status), _) => parts.push(place(status)),
            (None, Some(error)) => parts.push(format!("  {error}")),
            (None, None) => {
                let machine = seen.unknown;
                let machine = machine.expect("a machine without a status has its number");
                parts.push(format!("  machine m{machine} does not run"));
            }
        }
    }
    parts.extend(
        report
            .configuration
            .as_ref()
            .map(ConfigurationStatus::in_words),
    );
    let running: Vec<_> = machines
        .iter()
        .filter_map(|seen| seen.status.as_ref())
        .collect();
    parts.extend(running.iter().map(|status| configuration::findings(status)));
    if !running.is_empty() {
        parts.push(since_start(&running));
        parts.push(text::table(&table_lines(&running), [0; 2]));
        parts.push(text::table(&class_lines(&running), [0; 2]));
    }
    let parts = parts.iter().map(|part| part.trim_end());
    let parts: Vec<_> = parts.filter(|part| !part.is_empty()).collect();
    parts.join("\n")
}

/// Returns the lines of the table of machines, with the rates of the last interval.
fn machine_lines(machines: &[Seen]) -> Vec<Vec<String>> {
    let heading = [
        "machine",
        "up",
        "objects' memory",
        "of",
        "lookups/s",
        "changes/s",
        "commits/s",
        "aborts/s",
        "reads/s",
        "messages/s",
        "log bytes/s",
    ];
    let mut lines = vec![heading.map(str::to_owned).to_vec()];
    for seen in machines {
        let Some(status) = &seen.status else { continue };
        let rate = |name: &str| {
            let rates = seen.per_second.as_ref()?;
            Some(rates.get(name).copied().unwrap_or_default())
        };
        let shown =
            |rate: Option<f64>| rate.map_or_else(|| "-".to_owned(), |it| format!("{it:.0}"));
        let aborts: Option<f64> = ["locked", "changed", "timed_out", "lost", "other"]
            .iter()
            .map(|why| rate(&format!("aborts_{why}")))
            .sum();
        let used = status.memory.regions - status.memory.free.min(status.memory.regions);
        lines.push(vec![
            format!("m{}", status.machine),
            format!("{:.0} s", status.uptime_s),
            rounded_size(used),
            rounded_size(status.memory.limit),
            shown(rate("lookups")),
            shown(rate("changes")),
            shown(rate("committed")),
            shown(aborts),
            shown(rate("reads")),
            shown(rate("messages")),
            shown(rate("log_bytes")),
        ]);
    }
    if lines.len() == 1 { Vec::new() } else { lines }
}

/// Returns what a machine uses.
fn place(status: &MachineStatus) -> String {
    let MachineStatus {
        machine,
        pid,
        workers,
        fabric,
        memory,
        ..
    } = status;
    let address = status.address.as_ref();
    let address = address.map_or_else(String::new, |address| format!(" at {address}"));
    format!(
        "  m{machine}: process {pid}, {workers} worker(s), fabric {fabric}{address}, {} of regions in {}",
        rounded_size(memory.regions),
        memory.dir
    )
}

/// Returns the counts of all machines since their start.
fn since_start(machines: &[&MachineStatus]) -> String {
    let counts = machines.iter().map(|status| status.counts);
    let all = counts.fold(Counts::default(), |sum, counts| sum.plus(&counts));
    format!(
        "  since the start: {} commits, {} aborts ({} locked, {} changed, {} timed out, {} lost, {} other), {} in doubt;\n  \
         {} messages ({} waited for a ring), {} log records ({}, {} waited for a log), {} one-sided reads ({}), {} writes ({})",
        all.committed,
        all.aborts(),
        all.aborts_locked,
        all.aborts_changed,
        all.aborts_timed_out,
        all.aborts_lost,
        all.aborts_other,
        all.in_doubt,
        all.messages,
        all.rings_full,
        all.log_records,
        rounded_size(all.log_bytes),
        all.logs_full,
        all.reads,
        rounded_size(all.read_bytes),
        all.writes,
        rounded_size(all.write_bytes),
    )
}

/// Returns the lines of the tables, summed over the machines.
fn table_lines(machines: &[&MachineStatus]) -> Vec<Vec<String>> {
    let mut tables: BTreeMap<u16, TableStatus> = BTreeMap::new();
    for table in machines.iter().flat_map(|status| &status.tables) {
        tables.entry(table.number).or_default().add(table);
    }
    let names = machines.iter().flat_map(|status| &status.names);
    let named = names.filter_map(|name| Some((name.table?, name)));
    let named: BTreeMap<u16, &NameStatus> = named.collect();
    let label = |number: &u16| match named.get(number) {
        Some(name) if name.what == "table" => format!("{:?}", name.name),
        Some(name) => format!("ids of the {} {:?}", name.what, name.name),
        None if *number == CATALOG_TABLE => "the catalog".to_owned(),
        None => number.to_string(),
    };
    let heading = ["table", "key", "value", "pairs", "occupancy", "memory"];
    let heading = (!tables.is_empty()).then(|| heading.map(str::to_owned).to_vec());
    let lines = tables.iter().map(|(number, table)| {
        vec![
            label(number),
            format!("{} B", table.key_bytes),
            format!("{} B", table.value_bytes),
            table.pairs.to_string(),
            format!(
                "{:.1} %",
                table.pairs as f64 / table.slots.max(1) as f64 * 100.0
            ),
            rounded_size(table.bytes),
        ]
    });
    heading.into_iter().chain(lines).collect()
}

/// Returns the lines of the size classes, summed over the machines.
fn class_lines(machines: &[&MachineStatus]) -> Vec<Vec<String>> {
    let mut classes: BTreeMap<u64, ClassStatus> = BTreeMap::new();
    for class in machines.iter().flat_map(|status| &status.classes) {
        classes.entry(class.object_bytes).or_default().add(class);
    }
    let heading = ["objects of", "number", "slots", "memory"];
    let heading = (!classes.is_empty()).then(|| heading.map(str::to_owned).to_vec());
    let lines = classes.iter().map(|(bytes, class)| {
        vec![
            format!("{bytes} B"),
            class.objects.to_string(),
            class.slots.to_string(),
            rounded_size(class.bytes),
        ]
    });
    heading.into_iter().chain(lines).collect()
}
