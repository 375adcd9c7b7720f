//! `farm taobench`: start a cluster, load the graph, measure requests, check the graph, and stop the cluster.

mod plan;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use farm_bench::engines::Extent;
use farm_bench::engines::tao::{self, Job};
use farm_bench::report::{Compared, Started};
use farm_bench::taobench::audit::AuditResult;
use farm_bench::taobench::loaded::Loaded;
use farm_bench::taobench::report::{LoadResult, RunResult, Setup};
use farm_bench::taobench::workload::Workload;
use farm_core::config::host::{check_memory, probe};

use crate::beside;
use crate::cli::TaobenchArgs;
use crate::cluster::Cluster;
use crate::cluster::protocol::{News, Order, TaoOrder, TaoRun, TaoWorkload};
use crate::losing::{self, Losing};
use crate::measure::{self, Length, bar, on_cluster, report};
use crate::scratch::Scratch;
use plan::Plan;

/// The latency of one in this many requests is measured.
const SAMPLED_1_IN: u32 = 16;

/// Runs `farm taobench`.
pub(crate) fn run(args: &TaobenchArgs, log: Option<&str>) -> anyhow::Result<ExitCode> {
    beside::check(&args.beside)?;
    let plan = Plan::of(args)?;
    let started = Started::now();
    let facts = probe(&plan.config.memory.dir);
    check_memory(&plan.config, &facts)?;
    let json = args.json.as_deref();
    let run = on_cluster(&plan.config, json, log, |cluster| {
        measure(cluster, &plan, args)
    })?;
    let run = compare(args, &plan, run)?;
    let report = report(&started, &plan.config, &facts, vec![run])?;
    measure::write(&report, json, "")?;
    let Compared {
        run,
        beside_failures,
        ..
    } = measure::only_run(&report)?;
    let failures = run.failures.iter().chain(&run.audit.wrong);
    Ok(measure::end(run.errors, failures.chain(beside_failures)))
}

/// Runs the requests on other engines.
fn compare(
    args: &TaobenchArgs,
    plan: &Plan,
    run: RunResult,
) -> anyhow::Result<Compared<RunResult>> {
    let TaoWorkload {
        name,
        text,
        edges,
        seed,
        ..
    } = &plan.workload;
    let workload = Arc::new(Workload::parse(name, text.as_bytes())?);
    Ok(beside::compare(
        &args.beside,
        &plan.config,
        run,
        |run, engine, dir, threads| {
            let other = Job {
                loaded: Loaded::new(Arc::clone(&workload), *seed, *edges),
                workload: Arc::clone(&workload),
                setup: &run.setup,
                extent: Extent {
                    threads,
                    warmup: args.warmup,
                    duration: Some(args.duration),
                    operations: None,
                    sampled_1_in: SAMPLED_1_IN,
                },
            };
            tao::run(engine, dir, &other)
        },
    ))
}

fn measure(cluster: &mut Cluster, plan: &Plan, args: &TaobenchArgs) -> anyhow::Result<RunResult> {
    let open = Order::Tao(TaoOrder::Open {
        graph: plan.graph.clone().into(),
        workload: plan.workload.clone(),
    });
    measure::execute(cluster, &open)?;
    let load = load(cluster, plan.workload.edges)?;
    let find_names = Order::Tao(TaoOrder::FindNames);
    measure::execute(cluster, &find_names)?;
    let set_up = vec![open, find_names];
    let mut losing = Losing::begin(cluster, plan.loses, plan.workload.seed, set_up)?;
    let order = Order::Tao(TaoOrder::Run(TaoRun {
        warmup_s: args.warmup.as_secs_f64(),
        duration_s: args.duration.as_secs_f64(),
        sampled_1_in: SAMPLED_1_IN,
    }));
    let length = Length {
        warmup: args.warmup,
        duration: Some(args.duration),
        operations: None,
    };
    let name = format!("mix {}", plan.mix);
    let reports = losing::run(
        cluster,
        (&name, length),
        &order,
        losing.as_mut(),
        |news| match news {
            News::RanTao(report) => Some(*report),
            _ => None,
        },
    )?;
    let setup = Setup {
        mix: plan.mix.clone(),
        compat: plan.workload.compat,
        in_flight: plan.in_flight(),
        seed: plan.workload.seed,
        warmup_s: args.warmup.as_secs_f64(),
    };
    let audit = audit(cluster)?;
    Ok(RunResult::new(setup, load, &reports, audit)?)
}

fn load(cluster: &mut Cluster, edges: u64) -> anyhow::Result<LoadResult> {
    const TEMPLATE: &str = "{msg} {wide_bar} {human_pos} of {human_len}, {per_sec}, {eta} left";
    let object_bytes = Order::Tao(TaoOrder::ObjectBytes);
    let before = measure::object_bytes(cluster, &object_bytes)?;
    let bar = bar(edges, "loading edges", TEMPLATE);
    let (loaded, seconds) = measure::load(cluster, &Order::Tao(TaoOrder::Load), &bar)?;
    let bytes = measure::object_bytes(cluster, &object_bytes)? - before;
    crate::write_stderr(format_args!(
        "loaded {loaded} edges and their objects into {} machine(s) in {seconds:.1} s",
        cluster.len()
    ));
    if loaded != edges {
        bail!("cannot run the requests: only {loaded} of {edges} edges were loaded");
    }
    Ok(LoadResult {
        edges,
        seconds,
        edges_per_s: (seconds > 0.0).then(|| edges as f64 / seconds),
        bytes_per_edge: Some(bytes as f64 / edges as f64),
    })
}

/// Checks the graph against what the workers have written.
fn audit(cluster: &mut Cluster) -> anyhow::Result<AuditResult> {
    let dir = Scratch::new(&std::env::temp_dir()).context("the check of the graph needs files")?;
    let path = dir.path().to_owned();
    crate::write_stderr(format_args!("checking the graph"));
    let save = Order::Tao(TaoOrder::SaveWritten { dir: path.clone() });
    measure::execute(cluster, &save)?;
    let order = Order::Tao(TaoOrder::Audit { dir: path });
    measure::check(cluster, &order, |news| match news {
        News::TaoAudit(found) => Some(found),
        _ => None,
    })
}
