//! `farm edges`: start a cluster, import an edge list, search and query the graph, and stop the cluster.

mod import;
mod plan;

use std::process::ExitCode;

use farm_bench::edges::report::{ImportResult, RunResult, SearchResult, Setup, TwoHopResult};
use farm_bench::edges::sample::Sample;
use farm_bench::report::Started;
use farm_core::config::host::{check_memory, probe};

use crate::cli::EdgesArgs;
use crate::cluster::Cluster;
use crate::cluster::protocol::{EdgesOrder, News, Order, TwoHopRun};
use crate::measure::{self, Length, on_cluster, report};
use plan::Plan;

/// The latency of one in this many queries is measured.
const SAMPLED_1_IN: u32 = 16;

/// Maximum number of nodes from which two-hop queries begin. They are a random sample of all nodes.
const MAX_STARTS: usize = 1 << 20;

/// Runs `farm edges`.
pub(crate) fn run(args: &EdgesArgs, log: Option<&str>) -> anyhow::Result<ExitCode> {
    let plan = Plan::of(args)?;
    let started = Started::now();
    let facts = probe(&plan.config.memory.dir);
    check_memory(&plan.config, &facts)?;
    let json = args.json.as_deref();
    let runs = measure::repeat(args.repeat.repeat, || {
        on_cluster(&plan.config, json, log, |cluster| {
            measure(cluster, &plan, args)
        })
    })?;
    let report = report(&started, &plan.config, &facts, runs)?;
    measure::write(&report, json, "")?;
    for why in report.runs.iter().flat_map(|run| &run.failures) {
        crate::write_stderr(format_args!("farm: error: {why}"));
    }
    Ok(match report.runs.iter().all(RunResult::succeeded) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

fn measure(cluster: &mut Cluster, plan: &Plan, args: &EdgesArgs) -> anyhow::Result<RunResult> {
    let open = Order::Edges(EdgesOrder::Open {
        graph: plan.graph.clone().into(),
        undirected: args.undirected,
        sampled: if args.two_hop { MAX_STARTS } else { 0 },
    });
    measure::execute(cluster, &open)?;
    let import = import(cluster, plan, args.strict)?;
    let mut failures = Vec::new();
    let bfs = match args.bfs {
        Some(start) => {
            let found = search(cluster, start)?;
            if found.is_none() {
                failures.push(format!(
                    "cannot search from {start} (--bfs): no node of {} has this id",
                    plan.name
                ));
            }
            found
        }
        None => None,
    };
    let two_hop = match args.two_hop {
        true => Some(query(cluster, args)?),
        false => None,
    };
    let setup = Setup {
        list: plan.name.clone(),
        undirected: args.undirected,
        cached_heads: plan.graph.cached_heads as u64,
        in_flight: plan.in_flight(),
        seed: args.seed,
        warmup_s: args.warmup.as_secs_f64(),
    };
    Ok(RunResult::new(setup, import, bfs, two_hop, failures))
}

fn import(cluster: &mut Cluster, plan: &Plan, strict: bool) -> anyhow::Result<ImportResult> {
    let object_bytes = Order::Edges(EdgesOrder::ObjectBytes);
    let before = measure::object_bytes(cluster, &object_bytes)?;
    let import = import::import(cluster, plan, strict)?;
    let bytes = measure::object_bytes(cluster, &object_bytes)? - before;
    let result = ImportResult::new(import.imported, import.bad_lines, import.seconds, bytes);
    crate::write_stderr(format_args!(
        "imported {} nodes and {} edges into {} machine(s) in {:.1} s",
        result.imported.nodes,
        result.imported.edges,
        cluster.len(),
        result.seconds
    ));
    Ok(result)
}

/// Searches breadth-first from a node. Returns `None` if there is no such node.
fn search(cluster: &mut Cluster, start: u64) -> anyhow::Result<Option<SearchResult>> {
    crate::write_stderr(format_args!("searching breadth-first from {start}"));
    cluster.order(&Order::Edges(EdgesOrder::Search { start }))?;
    let searched = cluster.gather(|_, news| match news {
        News::Searched { found } => Some(found),
        _ => None,
    })?;
    Ok(searched.into_iter().flatten().next())
}

/// Measures two-hop queries.
fn query(cluster: &mut Cluster, args: &EdgesArgs) -> anyhow::Result<TwoHopResult> {
    cluster.order(&Order::Edges(EdgesOrder::SendSample))?;
    let samples = cluster.gather(|_, news| match news {
        News::Sample { ids } => Some(ids),
        _ => None,
    })?;
    let mut sample = Sample::new(MAX_STARTS);
    samples.into_iter().for_each(|ids| sample.merge(ids));
    let find = Order::Edges(EdgesOrder::FindStarts { ids: sample.ids() });
    measure::execute(cluster, &find)?;
    let order = Order::Edges(EdgesOrder::TwoHop(TwoHopRun {
        warmup_s: args.warmup.as_secs_f64(),
        duration_s: args.duration.as_secs_f64(),
        seed: args.seed,
        sampled_1_in: SAMPLED_1_IN,
    }));
    let length = Length {
        warmup: args.warmup,
        duration: Some(args.duration),
        operations: None,
    };
    let name = "two-hop queries";
    let reports = measure::run(cluster, name, length, &order, |news| match news {
        News::RanTwoHop(report) => Some(*report),
        _ => None,
    })?;
    Ok(TwoHopResult::new(&reports)?)
}
