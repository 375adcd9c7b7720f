//! `farm tatp` and `farm smallbank`: a cluster is started, loaded, measured, looked at and stopped.

mod plan;
mod settings;

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use farm_bench::oltp::audit::Audited;
use farm_bench::oltp::report::{MachineReport, RunResult, Setup};
use farm_bench::report::Report;
use farm_core::config::host::{HostFacts, check_memory, probe};

use crate::cli::{SmallbankArgs, TatpArgs};
use crate::cluster::Cluster;
use crate::cluster::protocol::{News, OltpOrder, Order};
use crate::measure::{COMMIT, bar, try_writing};
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
    let facts = probe(&plan.config.memory.dir);
    check_memory(&plan.config, &facts)?;
    if let Some(path) = json {
        try_writing(path)?;
    }
    let mut cluster = Cluster::start(&plan.config, log)?;
    let result = match measure(&mut cluster, plan) {
        Ok(result) => {
            cluster.stop()?;
            result
        }
        Err(error) => {
            // The first error is the one that matters.
            drop(cluster);
            return Err(error);
        }
    };
    let code = if result.is_right() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    };
    let report = report(plan, &facts, result)?;
    let written = json.map_or(Ok(()), |path| {
        std::fs::write(path, report.to_json() + "\n")
            .with_context(|| format!("cannot write {}", path.display()))
    });
    io::stdout().write_all(report.to_string().as_bytes())?;
    written?;
    for run in &report.runs {
        for why in &run.check.wrong {
            crate::say(format_args!("farm: WRONG, {why}"));
        }
        for why in &run.failures {
            crate::say(format_args!("farm: error: {why}"));
        }
    }
    Ok(code)
}

fn report(plan: &Plan, facts: &HostFacts, result: RunResult) -> anyhow::Result<Report<RunResult>> {
    Ok(Report {
        host: serde_json::to_value(facts)?,
        config: serde_json::to_value(&plan.config)?,
        commit: COMMIT.map(str::to_owned),
        runs: vec![result],
    })
}

fn measure(cluster: &mut Cluster, plan: &Plan) -> anyhow::Result<RunResult> {
    cluster.order(&Order::Oltp(OltpOrder::Open {
        benchmark: plan.benchmark.clone(),
        seed: plan.seed,
        tables: plan.tables.iter().copied().map(Into::into).collect(),
    }))?;
    cluster.gather(|_, news| matches!(news, News::Opened).then_some(()))?;
    load(cluster, plan)?;
    let machines = run(cluster, plan)?;
    crate::say(format_args!("looking at what the transactions left"));
    cluster.order(&Order::Oltp(OltpOrder::Audit))?;
    let audited = cluster.gather(|_, news| match news {
        News::Audited(audited) => Some(audited),
        _ => None,
    })?;
    let mut all = Audited::default();
    audited.into_iter().for_each(|one| all += one);
    let setup = Setup {
        benchmark: plan.benchmark.clone(),
        seed: plan.seed,
        concurrency: plan.concurrency,
        warmup_s: plan.warmup.as_secs_f64(),
    };
    Ok(RunResult::new(&setup, &machines, &all)?)
}

fn load(cluster: &mut Cluster, plan: &Plan) -> anyhow::Result<()> {
    let benchmark = &plan.benchmark;
    let tables = benchmark.tables().iter();
    // A population that is drawn has a few more or less.
    let expected: u64 = tables.map(|table| benchmark.expected_rows(table)).sum();
    let bar = bar(
        expected,
        "loading",
        "{msg} {wide_bar} {human_pos} of about {human_len} rows, {per_sec}, {eta} left",
    );
    cluster.order(&Order::Oltp(OltpOrder::Load))?;
    let mut progress = vec![0; cluster.len()];
    let loaded = cluster.gather(|machine, news| match news {
        News::Loading { records } => {
            progress[machine] = records;
            bar.set_position(progress.iter().sum());
            None
        }
        News::Loaded { records, seconds } => Some((records, seconds)),
        _ => None,
    })?;
    bar.finish_and_clear();
    let rows: u64 = loaded.iter().map(|part| part.0).sum();
    let seconds = loaded.iter().map(|part| part.1).fold(0.0, f64::max);
    let (items, of) = (benchmark.items(), benchmark.item_name());
    crate::say(format_args!(
        "loaded {rows} rows of {items} {of} into {} machines in {seconds:.1} s",
        cluster.len()
    ));
    if rows == 0 {
        bail!("nothing was loaded");
    }
    Ok(())
}

fn run(cluster: &mut Cluster, plan: &Plan) -> anyhow::Result<Vec<MachineReport>> {
    let name = plan.benchmark.name();
    let whole = plan.warmup + plan.duration;
    let bar = bar(whole.as_millis() as u64, name, "{msg} {wide_bar} {elapsed}");
    crate::say(format_args!(
        "running {name} for {:.1} s",
        plan.duration.as_secs_f64()
    ));
    cluster.order(&Order::Oltp(OltpOrder::Run {
        concurrency: plan.concurrency,
        warmup_s: plan.warmup.as_secs_f64(),
        duration_s: plan.duration.as_secs_f64(),
        sampled_1_in: plan.sampled_1_in,
    }))?;
    bar.enable_steady_tick(Duration::from_millis(100));
    let ticking = bar.clone();
    let started = Instant::now();
    let reports = cluster.gather_with(
        |_, news| match news {
            News::RanOltp(report) => Some(*report),
            _ => None,
        },
        || ticking.set_position(started.elapsed().as_millis() as u64),
    )?;
    bar.finish_and_clear();
    Ok(reports)
}
