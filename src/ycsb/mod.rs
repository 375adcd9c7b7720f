//! `farm ycsb` and `farm demo`: a cluster is started, loaded, measured and stopped.

mod plan;

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use farm_bench::report::{MachineReport, Report, RunResult};
use farm_core::config::host::{HostFacts, check_memory, probe};
use farm_kv::TableSpec;

use crate::cli::{DemoArgs, YcsbArgs};
use crate::cluster::Cluster;
use crate::cluster::protocol::{News, Order, WorkloadOrder};
use crate::measure::{COMMIT, bar, try_writing};
use plan::{Plan, Planned};

/// Runs `farm ycsb`.
pub(crate) fn run(args: &YcsbArgs, log: Option<&str>) -> anyhow::Result<ExitCode> {
    let plan = Plan::of_ycsb(args)?;
    execute(&plan, args.json.as_deref(), log)
}

/// Runs `farm demo`.
pub(crate) fn demo(args: &DemoArgs, log: Option<&str>) -> anyhow::Result<ExitCode> {
    let plan = Plan::of_demo(args)?;
    let code = execute(&plan, Some(&args.json), log)?;
    crate::say(format_args!(
        "The same as JSON is in {}.",
        args.json.display()
    ));
    Ok(code)
}

fn execute(plan: &Plan, json: Option<&Path>, log: Option<&str>) -> anyhow::Result<ExitCode> {
    let facts = probe(&plan.config.memory.dir);
    check_memory(&plan.config, &facts)?;
    let table = plan.table()?;
    if let Some(path) = json {
        try_writing(path)?;
    }
    let mut cluster = Cluster::start(&plan.config, log)?;
    if plan.exclusive_locks {
        cluster.order(&Order::LockExclusively)?;
    }
    let measured = measure(&mut cluster, plan, table, &facts);
    let report = match measured {
        Ok(report) => {
            cluster.stop()?;
            report
        }
        Err(error) => {
            // The first error is the one that matters.
            drop(cluster);
            return Err(error);
        }
    };
    let written = json.map_or(Ok(()), |path| {
        std::fs::write(path, report.to_json() + "\n")
            .with_context(|| format!("cannot write {}", path.display()))
    });
    io::stdout().write_all(report.to_string().as_bytes())?;
    io::stdout().write_all(b"\n")?;
    written?;
    let bad: u64 = report
        .runs
        .iter()
        .map(|run| run.errors + run.verify_failures)
        .sum();
    Ok(if bad == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn measure(
    cluster: &mut Cluster,
    plan: &Plan,
    table: TableSpec,
    facts: &HostFacts,
) -> anyhow::Result<Report> {
    cluster.order(&Order::Open(table.into()))?;
    cluster.gather(|_, news| matches!(news, News::Opened).then_some(()))?;
    load(cluster, plan)?;
    let mut runs = Vec::with_capacity(plan.workloads.len());
    for planned in &plan.workloads {
        runs.push(run_one(cluster, plan, planned)?);
    }
    let host = serde_json::to_value(facts)?;
    let config = serde_json::to_value(&plan.config)?;
    Ok(Report {
        host,
        config,
        commit: COMMIT.map(str::to_owned),
        runs,
    })
}

fn load(cluster: &mut Cluster, plan: &Plan) -> anyhow::Result<()> {
    let records = plan.records();
    let first = plan
        .workloads
        .first()
        .context("there is no workload to run")?;
    let bar = bar(
        records,
        "loading",
        "{msg} {wide_bar} {human_pos} of {human_len} records, {per_sec}, {eta} left",
    );
    cluster.order(&Order::Load(order_of(first)))?;
    let mut progress = vec![0; cluster.len()];
    let loaded = cluster.gather(|machine, news| match news {
        News::Loading { records } => {
            progress[machine] = records;
            bar.set_position(progress.iter().sum());
            None
        }
        News::Loaded { records, seconds } => {
            progress[machine] = records;
            bar.set_position(progress.iter().sum());
            Some((records, seconds))
        }
        _ => None,
    })?;
    bar.finish_and_clear();
    let total: u64 = loaded.iter().map(|part| part.0).sum();
    let seconds = loaded.iter().map(|part| part.1).fold(0.0, f64::max);
    crate::say(format_args!(
        "loaded {total} records into {} machines in {seconds:.1} s",
        cluster.len()
    ));
    if total != records {
        bail!("{total} of {records} records were loaded");
    }
    Ok(())
}

fn run_one(cluster: &mut Cluster, plan: &Plan, planned: &Planned) -> anyhow::Result<RunResult> {
    let spec = &planned.spec;
    let whole = plan.warmup + plan.duration;
    let name = format!("workload {}, {}", spec.name, spec.distribution);
    let bar = bar(
        whole.as_millis() as u64,
        &name,
        "{msg} {wide_bar} {elapsed}",
    );
    crate::say(format_args!(
        "running {name} for {:.1} s",
        plan.duration.as_secs_f64()
    ));
    cluster.order(&Order::Run {
        workload: order_of(planned),
        warmup_s: plan.warmup.as_secs_f64(),
        duration_s: plan.duration.as_secs_f64(),
        seed: plan.seed,
        verify: plan.verify || spec.data_integrity,
        sampled_1_in: plan.sampled_1_in,
    })?;
    bar.enable_steady_tick(Duration::from_millis(100));
    let ticking = bar.clone();
    let started = std::time::Instant::now();
    let reports: Vec<MachineReport> = cluster.gather_with(
        |_, news| match news {
            News::Ran(report) => Some(*report),
            _ => None,
        },
        || ticking.set_position(started.elapsed().as_millis() as u64),
    )?;
    bar.finish_and_clear();
    Ok(RunResult::from_machines(
        &spec.name,
        &spec.distribution.to_string(),
        &reports,
    )?)
}

fn order_of(planned: &Planned) -> WorkloadOrder {
    WorkloadOrder {
        name: planned.spec.name.clone(),
        properties: planned.properties.clone(),
        value_bytes: planned.spec.value_bytes,
    }
}
