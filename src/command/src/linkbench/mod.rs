//! `farm linkbench`: start a cluster, load the graph, measure requests, and stop it.

mod plan;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use farm_bench::engines::Extent;
use farm_bench::engines::link::{self, Job};
use farm_bench::linkbench::audit::AuditResult;
use farm_bench::linkbench::loaded::{Loaded, now_ms};
use farm_bench::linkbench::report::{LoadResult, RunResult, Setup};
use farm_bench::report::{Compared, Started};
use farm_core::config::host::{check_memory, probe};
use farm_graph::config::GraphConfig;

use crate::Usage;
use crate::beside;
use crate::cli::{LinkMix, LinkbenchArgs};
use crate::cluster::Cluster;
use crate::cluster::protocol::{LinkOrder, LinkRun, LinkWorkload, News, Order};
use crate::losing::{self, Losing};
use crate::measure::{self, Length, bar, on_cluster, report, try_writing};
use plan::Plan;

/// Runs `farm linkbench`.
pub(crate) fn run(args: &LinkbenchArgs, log: Option<&str>) -> anyhow::Result<ExitCode> {
    beside::check(&args.beside)?;
    if args.csv.is_some() && args.csv == args.json {
        return Err(Usage::error("--json and --csv name the same file"));
    }
    let plan = Plan::of(args)?;
    let started = Started::now();
    let facts = probe(&plan.config.memory.dir);
    check_memory(&plan.config, &facts)?;
    if let Some(path) = &args.csv {
        try_writing(path, "--csv")?;
    }
    let json = args.json.as_deref();
    let run = on_cluster(&plan.config, json, log, |cluster| measure(cluster, &plan))?;
    let run = compare(args, &plan, run);
    let report = report(&started, &plan.config, &facts, vec![run])?;
    measure::write_single(&report, json)?;
    let Compared {
        run,
        beside_failures,
        ..
    } = measure::only_run(&report)?;
    if let Some(path) = &args.csv {
        write_csv(path, run)?;
    }
    let failures = run.failures.iter().chain(beside_failures);
    Ok(measure::end(run.errors, failures))
}

/// Runs the requests on other engines.
fn compare(args: &LinkbenchArgs, plan: &Plan, run: RunResult) -> Compared<RunResult> {
    beside::compare(
        &args.beside,
        &plan.config,
        run,
        |run, engine, dir, threads| {
            let other = Job {
                loaded: Loaded {
                    spec: Arc::clone(&plan.spec),
                    seed: plan.load_seed,
                    now_ms: now_ms(),
                },
                links: Arc::clone(&plan.links_of),
                mix: plan.requests(),
                setup: &run.setup,
                extent: Extent {
                    threads,
                    warmup: plan.warmup,
                    duration: plan.duration,
                    operations: plan.operations,
                    sampled_1_in: plan.sampled_1_in,
                },
            };
            link::run(engine, dir, &other)
        },
    )
}

fn write_csv(path: &Path, run: &RunResult) -> anyhow::Result<()> {
    std::fs::write(path, run.to_csv())
        .with_context(|| format!("cannot write the latencies to {} (--csv)", path.display()))
}

fn measure(cluster: &mut Cluster, plan: &Plan) -> anyhow::Result<RunResult> {
    let open = Order::Link(LinkOrder::Open {
        graph: plan.graph.clone().into(),
        workload: LinkWorkload {
            properties: plan.settings(),
            compat: plan.spec.compat,
            load_seed: plan.load_seed,
        },
    });
    measure::execute(cluster, &open)?;
    let load = load(cluster, plan)?;
    let setup = Setup {
        mix: plan.mix.name().to_owned(),
        compat: plan.spec.compat,
        by_id: plan.by_id,
        nodes: plan.spec.nodes(),
        degrees: plan.degrees.clone(),
        range_limit: plan.range_limit,
        cached_heads: GraphConfig::of(&plan.config).cached_heads,
        in_flight: plan.in_flight(),
        load_seed: plan.load_seed,
        seed: plan.seed,
        warmup_s: plan.warmup.as_secs_f64(),
    };
    if plan.load_only {
        return Ok(RunResult::of_load(&setup, load));
    }
    let all = !plan.by_id;
    let find_names = Order::Link(LinkOrder::FindNames { all });
    measure::execute(cluster, &find_names)?;
    // Checks look up the names of nodes themselves.
    let mut losing = Losing::begin(cluster, plan.loses, plan.seed, vec![open])?;
    let mut run = run_requests(cluster, plan, &setup, load, losing.as_mut())?;
    if plan.loses {
        run.failures.extend(audit(cluster)?);
    }
    Ok(run)
}

/// Checks the graph. Returns what is wrong.
fn audit(cluster: &mut Cluster) -> anyhow::Result<Option<String>> {
    crate::write_stderr(format_args!("checking the lists of all nodes"));
    let order = Order::Link(LinkOrder::Audit);
    let found = measure::check(cluster, &order, |news| match news {
        News::LinkAudit(found) => Some(found),
        _ => None,
    })?;
    let AuditResult {
        nodes,
        lists,
        links,
        long,
        wrong,
    } = found;
    crate::write_stderr(format_args!(
        "checked {lists} lists of {nodes} nodes with {links} links; {long} longer lists were not read"
    ));
    Ok(wrong)
}

/// Loads the nodes, then the links.
fn load(cluster: &mut Cluster, plan: &Plan) -> anyhow::Result<LoadResult> {
    const TEMPLATE: &str = "{msg} {wide_bar} {human_pos} of {human_len}, {per_sec}, {eta} left";
    let before = facts(cluster)?;
    let bar_of_nodes = bar(plan.spec.nodes(), "loading nodes", TEMPLATE);
    let order = Order::Link(LinkOrder::LoadNodes);
    let (nodes, node_seconds) = measure::load(cluster, &order, &bar_of_nodes)?;
    let with_nodes = facts(cluster)?;
    let bar_of_links = bar(plan.links, "loading links", TEMPLATE);
    let order = Order::Link(LinkOrder::LoadLinks);
    let (links, link_seconds) = measure::load(cluster, &order, &bar_of_links)?;
    let with_links = facts(cluster)?;
    let seconds = node_seconds + link_seconds;
    crate::write_stderr(format_args!(
        "loaded {nodes} nodes and {links} links into {} machine(s) in {seconds:.1} s",
        cluster.len()
    ));
    if (nodes, links) != (plan.spec.nodes(), plan.links) {
        bail!(
            "cannot run the requests: only {nodes} of {} nodes and {links} of {} links were loaded",
            plan.spec.nodes(),
            plan.links
        );
    }
    let per = |bytes: u64, count: u64| (count > 0).then(|| bytes as f64 / count as f64);
    Ok(LoadResult {
        nodes,
        links,
        counts: with_links.0,
        seconds,
        node_seconds,
        links_per_s: (link_seconds > 0.0).then(|| links as f64 / link_seconds),
        bytes_per_node: per(with_nodes.1 - before.1, nodes),
        bytes_per_edge: per(with_links.1 - with_nodes.1, links),
    })
}

/// Returns the number of pairs of a node and a type that have links, and the bytes of all objects.
fn facts(cluster: &mut Cluster) -> anyhow::Result<(u64, u64)> {
    cluster.order(&Order::Link(LinkOrder::Facts))?;
    let facts = cluster.gather(|_, news| match news {
        News::LinkFacts {
            counts,
            object_bytes,
        } => Some((counts, object_bytes)),
        _ => None,
    })?;
    let add = |sum: (u64, u64), one: (u64, u64)| (sum.0 + one.0, sum.1 + one.1);
    Ok(facts.into_iter().fold((0, 0), add))
}

fn run_requests(
    cluster: &mut Cluster,
    plan: &Plan,
    setup: &Setup,
    load: LoadResult,
    losing: Option<&mut Losing>,
) -> anyhow::Result<RunResult> {
    let order = Order::Link(LinkOrder::Run(LinkRun {
        tao: plan.mix == LinkMix::Tao,
        range_limit: plan.range_limit,
        warmup_s: plan.warmup.as_secs_f64(),
        duration_s: plan.duration.map(|it| it.as_secs_f64()),
        operations: plan.operations,
        target_per_s: plan.target_per_s,
        threads: plan.requesters,
        seed: plan.seed,
        sampled_1_in: plan.sampled_1_in,
    }));
    let length = Length {
        warmup: plan.warmup,
        duration: plan.duration,
        operations: plan.operations,
    };
    let name = format!("mix {}", plan.mix.name());
    let reports = losing::run(
        cluster,
        (&name, length),
        &order,
        losing,
        |news| match news {
            News::RanLink(report) => Some(*report),
            _ => None,
        },
    )?;
    Ok(RunResult::new(setup, load, &reports)?)
}
