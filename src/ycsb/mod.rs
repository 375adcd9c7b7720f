//! `farm ycsb` and `farm demo`: a cluster is started, loaded, measured and stopped.

mod plan;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use farm_bench::report::RunResult;
use farm_core::config::host::{check_memory, probe};
use farm_kv::TableSpec;

use crate::cli::{DemoArgs, YcsbArgs};
use crate::cluster::Cluster;
use crate::cluster::protocol::{News, Order, WorkloadOrder};
use crate::measure::{self, bar, on_cluster, report, write};
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
    let runs = on_cluster(&plan.config, json, log, |cluster| {
        if plan.exclusive_locks {
            cluster.order(&Order::LockExclusively)?;
        }
        measure(cluster, plan, table)
    })?;
    let report = report(&plan.config, &facts, runs)?;
    write(&report, json, "\n")?;
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

fn measure(cluster: &mut Cluster, plan: &Plan, table: TableSpec) -> anyhow::Result<Vec<RunResult>> {
    cluster.order(&Order::Open(table.into()))?;
    cluster.gather(|_, news| matches!(news, News::Opened).then_some(()))?;
    load(cluster, plan)?;
    let workloads = plan.workloads.iter();
    workloads
        .map(|planned| run_one(cluster, plan, planned))
        .collect()
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
    let (total, seconds) = measure::load(cluster, &Order::Load(order_of(first)), &bar)?;
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
    let name = format!("workload {}, {}", spec.name, spec.distribution);
    let order = Order::Run {
        workload: order_of(planned),
        warmup_s: plan.warmup.as_secs_f64(),
        duration_s: plan.duration.as_secs_f64(),
        seed: plan.seed,
        verify: plan.verify || spec.data_integrity,
        sampled_1_in: plan.sampled_1_in,
    };
    let length = (plan.warmup, plan.duration);
    let reports = measure::run(cluster, &name, length, &order, |news| match news {
        News::Ran(report) => Some(*report),
        _ => None,
    })?;
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
