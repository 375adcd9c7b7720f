//! `farm tatp` and `farm smallbank`: start a cluster, load it, measure transactions, check the tables, and stop it.

mod plan;
mod settings;

use std::path::Path;
use std::process::ExitCode;

use anyhow::bail;
use farm_bench::oltp::report::{MachineReport, RunResult, Setup};
use farm_bench::report::Started;
use farm_core::config::host::{check_memory, probe};

use crate::cli::{SmallbankArgs, TatpArgs};
use crate::cluster::Cluster;
use crate::cluster::protocol::{News, OltpOrder, Order};
use crate::losing::{self, Losing};
use crate::measure::{self, Length, bar, on_cluster, repeat, report, write};
use plan::Plan;
pub(crate) use settings::SettingsError;

/// Runs `farm tatp`.
pub(crate) fn tatp(args: &TatpArgs, log: Option<&str>) -> anyhow::Result<ExitCode> {
    execute(&Plan::of_tatp(args)?, args.common.json.as_deref(), log)
}

/// Runs `farm smallbank`.
pub(crate) fn smallbank(args: &SmallbankArgs, log: Option<&str>) -> anyhow::Result<ExitCode> {
    execute(&Plan::of_smallbank(args)?, args.common.json.as_deref(), log)
}

fn execute(plan: &Plan, json: Option<&Path>, log: Option<&str>) -> anyhow::Result<ExitCode> {
    let started = Started::now();
    let facts = probe(&plan.config.memory.dir);
    check_memory(&plan.config, &facts)?;
    let runs = repeat(plan.repeat, || {
        on_cluster(&plan.config, json, log, |cluster| measure(cluster, plan))
    })?;
    let code = if runs.iter().all(RunResult::is_right) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    };
    let report = report(&started, &plan.config, &facts, runs)?;
    write(&report, json, "")?;
    for run in &report.runs {
        for why in &run.check.wrong {
            crate::write_stderr(format_args!("farm: WRONG, {why}"));
        }
        for why in &run.failures {
            crate::write_stderr(format_args!("farm: error: {why}"));
        }
    }
    Ok(code)
}

fn measure(cluster: &mut Cluster, plan: &Plan) -> anyhow::Result<RunResult> {
    let open = Order::Oltp(OltpOrder::Open {
        benchmark: plan.benchmark.clone(),
        seed: plan.seed,
        tables: plan.tables.clone(),
    });
    measure::execute(cluster, &open)?;
    load(cluster, plan)?;
    let mut losing = Losing::begin(cluster, plan.loses, plan.seed, vec![open])?;
    let machines = run(cluster, plan, losing.as_mut(), false)?;
    let by_tasks = match plan.tasks {
        true => Some(run(cluster, plan, losing.as_mut(), true)?),
        false => None,
    };
    crate::write_stderr(format_args!("checking the tables after the run"));
    let order = Order::Oltp(OltpOrder::Audit);
    let all = measure::check(cluster, &order, |news| match news {
        News::AuditResult(found) => Some(found),
        _ => None,
    })?;
    let setup = Setup {
        benchmark: plan.benchmark.clone(),
        seed: plan.seed,
        concurrency: plan.concurrency,
        without: plan.without.clone(),
        warmup_s: plan.warmup.as_secs_f64(),
    };
    Ok(RunResult::new(
        &setup,
        &machines,
        by_tasks.as_deref(),
        &all,
    )?)
}

fn load(cluster: &mut Cluster, plan: &Plan) -> anyhow::Result<()> {
    let benchmark = &plan.benchmark;
    let tables = benchmark.tables().iter();
    // An expectation: the number of rows of a random population varies.
    let expected: u64 = tables.map(|table| benchmark.expected_rows(table)).sum();
    let bar = bar(
        expected,
        "loading",
        "{msg} {wide_bar} {human_pos} of about {human_len} rows, {per_sec}, {eta} left",
    );
    let (rows, seconds) = measure::load(cluster, &Order::Oltp(OltpOrder::Load), &bar)?;
    let (items, of) = (benchmark.items(), benchmark.item_name());
    crate::write_stderr(format_args!(
        "loaded {rows} rows for {items} {of} into {} machine(s) in {seconds:.1} s",
        cluster.len()
    ));
    if rows == 0 {
        bail!("cannot run the benchmark: no machine loaded a row");
    }
    Ok(())
}

fn run(
    cluster: &mut Cluster,
    plan: &Plan,
    losing: Option<&mut Losing>,
    tasks: bool,
) -> anyhow::Result<Vec<MachineReport>> {
    let order = Order::Oltp(OltpOrder::Run {
        avoidance: plan.avoidance(),
        warmup_s: plan.warmup.as_secs_f64(),
        duration_s: plan.duration.as_secs_f64(),
        sampled_1_in: plan.sampled_1_in,
        tasks,
    });
    let length = Length {
        warmup: plan.warmup,
        duration: Some(plan.duration),
        operations: None,
    };
    let name = match tasks {
        true => format!("{} as tasks", plan.benchmark.name()),
        false => plan.benchmark.name().to_owned(),
    };
    losing::run(
        cluster,
        (&name, length),
        &order,
        losing,
        |news| match news {
            News::RanOltp(report) => Some(*report),
            _ => None,
        },
    )
}
