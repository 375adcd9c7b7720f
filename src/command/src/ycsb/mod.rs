//! `farm ycsb` and `farm demo`: start a cluster, load it, measure workloads, and stop it.

mod plan;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use farm_bench::report::Started;
use farm_bench::ycsb::audit::AuditResult;
use farm_bench::ycsb::report::{RunResult, Setup};
use farm_core::config::host::{check_memory, probe};
use farm_kv::TableSpec;

use crate::cli::{DemoArgs, YcsbArgs};
use crate::cluster::Cluster;
use crate::cluster::protocol::{News, Order, WorkloadOrder};
use crate::losing::{self, Losing};
use crate::measure::{self, Length, bar, on_cluster, repeat, report, write};
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
    crate::write_stderr(format_args!(
        "The results as JSON are in {}.",
        args.json.display()
    ));
    Ok(code)
}

fn execute(plan: &Plan, json: Option<&Path>, log: Option<&str>) -> anyhow::Result<ExitCode> {
    let started = Started::now();
    let facts = probe(&plan.config.memory.dir);
    check_memory(&plan.config, &facts)?;
    let table = plan.table()?;
    let runs = repeat(plan.repeat, || {
        on_cluster(&plan.config, json, log, |cluster| {
            if plan.exclusive_locks {
                cluster.order(&Order::LockExclusively)?;
            }
            measure(cluster, plan, table)
        })
    })?;
    let runs = runs.into_iter().flatten().collect();
    let report = report(&started, &plan.config, &facts, runs)?;
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
    measure::execute(cluster, &Order::Open(table))?;
    load(cluster, plan)?;
    let set_up = vec![Order::Open(table)];
    let mut losing = Losing::begin(cluster, plan.loses, plan.seed, set_up)?;
    let workloads = plan.workloads.iter();
    let runs: anyhow::Result<Vec<RunResult>> = workloads
        .map(|planned| run_one(cluster, plan, planned, losing.as_mut()))
        .collect();
    let runs = runs?;
    if let (Some(loaded), true) = (plan.workloads.first(), plan.loses) {
        check_records(cluster, loaded)?;
    }
    Ok(runs)
}

/// Checks that all records are there, those that were inserted, too. `loaded` is the workload whose records were loaded.
fn check_records(cluster: &mut Cluster, loaded: &Planned) -> anyhow::Result<()> {
    crate::write_stderr(format_args!("checking all records"));
    let order = Order::CheckRecords(order_of(loaded));
    let all: AuditResult = measure::check(cluster, &order, |news| match news {
        News::RecordAudit(found) => Some(found),
        _ => None,
    })?;
    match all.wrong {
        Some(why) => bail!("WRONG, {why}"),
        None => crate::write_stderr(format_args!("checked {} records", all.records)),
    }
    Ok(())
}

fn load(cluster: &mut Cluster, plan: &Plan) -> anyhow::Result<()> {
    let records = plan.records();
    let first = plan
        .workloads
        .first()
        .context("cannot load records: no workload is selected")?;
    let bar = bar(
        records,
        "loading",
        "{msg} {wide_bar} {human_pos} of {human_len} records, {per_sec}, {eta} left",
    );
    let (total, seconds) = measure::load(cluster, &Order::Load(order_of(first)), &bar)?;
    crate::write_stderr(format_args!(
        "loaded {total} records into {} machine(s) in {seconds:.1} s",
        cluster.len()
    ));
    if total != records {
        bail!("cannot run the workloads: only {total} of {records} records were loaded");
    }
    Ok(())
}

fn run_one(
    cluster: &mut Cluster,
    plan: &Plan,
    planned: &Planned,
    losing: Option<&mut Losing>,
) -> anyhow::Result<RunResult> {
    let spec = &planned.spec;
    let name = format!("workload {}, {}", spec.name, spec.distribution);
    let order = Order::Run {
        workload: order_of(planned),
        warmup_s: plan.warmup.as_secs_f64(),
        duration_s: planned.duration.map(|it| it.as_secs_f64()),
        operations: planned.operations,
        target_per_s: spec.hints.target_ops_per_s,
        threads: spec.hints.threads,
        seed: plan.seed,
        verify: plan.verify || spec.data_integrity,
        sampled_1_in: plan.sampled_1_in,
    };
    let length = Length {
        warmup: plan.warmup,
        duration: planned.duration,
        operations: planned.operations,
    };
    let reports = losing::run(
        cluster,
        (&name, length),
        &order,
        losing,
        |news| match news {
            News::Ran(report) => Some(*report),
            _ => None,
        },
    )?;
    let setup = Setup {
        record_count: plan.records(),
        warmup_s: plan.warmup.as_secs_f64(),
        verify: plan.verify || spec.data_integrity,
        operation_count: planned.operations,
        target_ops_per_s: spec.hints.target_ops_per_s,
        in_flight: spec.hints.threads.unwrap_or_else(|| plan.most_in_flight()),
        ..Setup::new(spec, plan.seed)
    };
    Ok(RunResult::new(&setup, &reports)?)
}

fn order_of(planned: &Planned) -> WorkloadOrder {
    WorkloadOrder {
        name: planned.spec.name.clone(),
        properties: planned.settings(),
        value_bytes: planned.spec.value_bytes,
    }
}
