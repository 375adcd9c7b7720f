//! The plan of `farm linkbench`: configuration, graph, properties and bounds.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use farm_bench::linkbench::degree::{Degrees, Links};
use farm_bench::linkbench::loaded;
use farm_bench::linkbench::requests::{Mix, linkbench_mix, tao_mix};
use farm_bench::linkbench::spec::{LinkBounds, LinkSpec, defaults};
use farm_bench::properties::Properties;
use farm_core::config::host::{check_memory, probe};
use farm_core::config::{Config, rounded_size};
use farm_graph::GraphSpec;
use farm_graph::config::GraphConfig;

use crate::Usage;
use crate::cli::{LinkMix, LinkbenchArgs};
use crate::losing::{self, check_bounds, loading_workers};
use crate::measure::make_room;

const DEFAULT_DURATION: Duration = Duration::from_secs(10);
const DEFAULT_WARMUP: Duration = Duration::from_secs(1);
/// The latency of one in this many requests is measured.
const SAMPLED_1_IN: u32 = 16;
/// Id of the table of ids.
const IDS_TABLE: u16 = 1;

/// The least memory that a node takes, with its id.
const LEAST_NODE_BYTES: u64 = 64;
/// Memory that a node takes without links, with its id: enough for the nodes of the default properties.
const NODE_BYTES: u64 = 640;
/// Memory that a link takes, in lists that mostly have few links.
const LINK_BYTES: u64 = 190;

/// The plan of a command.
pub(super) struct Plan {
    pub(super) config: Config,
    pub(super) spec: Arc<LinkSpec>,
    properties: Properties,
    pub(super) graph: GraphSpec,
    /// Where the distribution of the out-degrees is from.
    pub(super) degrees: String,
    /// The links that are loaded.
    pub(super) links_of: Arc<Links>,
    /// Their number.
    pub(super) links: u64,
    pub(super) mix: LinkMix,
    pub(super) by_id: bool,
    pub(super) load_only: bool,
    pub(super) range_limit: u64,
    pub(super) warmup: Duration,
    pub(super) duration: Option<Duration>,
    pub(super) operations: Option<u64>,
    pub(super) target_per_s: Option<u64>,
    pub(super) requesters: Option<u64>,
    pub(super) load_seed: u64,
    pub(super) seed: u64,
    pub(super) sampled_1_in: u32,
    /// Whether machines are lost while the requests run.
    pub(super) loses: bool,
}

impl Plan {
    pub(super) fn of(args: &LinkbenchArgs) -> anyhow::Result<Self> {
        let properties = read_properties(args)?;
        let parsed = LinkSpec::from_properties(&properties, args.compat)?;
        for remark in &parsed.remarks {
            let level = if remark.is_warning { "warning" } else { "note" };
            crate::write_stderr(format_args!("farm: {level}: {}", remark.text));
        }
        let (spec, bounds) = (parsed.spec, parsed.bounds);
        let (degrees, source) = match &bounds.data_file {
            Some(file) => (Degrees::load(file)?, file.display().to_string()),
            None => (Degrees::default(), "built-in table".to_owned()),
        };
        let links_of = Arc::new(Links::new(&spec, degrees));
        let mut config = args.cluster.config.load()?;
        check_nodes(args, &config, spec.nodes())?;
        let ids = spec.first_id..spec.end_id;
        let links: u64 = ids.map(|id1| links_of.total(id1)).sum();
        if args.cluster.config.config.is_none() {
            let bytes = spec.nodes() * NODE_BYTES + links * LINK_BYTES;
            make_room(&mut config, args.cluster.machines, bytes)?;
        }
        args.cluster
            .configure(&mut config, &[], args.losing.mode())?;
        losing::prepare(&mut config, &args.losing)?;
        if args.losing.lose_machines {
            check_bounds(&[
                ("requesters", bounds.requesters.is_some()),
                ("requests", bounds.requests.is_some()),
                ("requestrate", bounds.request_rate.is_some()),
                ("--load-only", args.load_only),
            ])?;
        }
        check_beside(args, &spec, &bounds)?;
        check_requesters(&config, &properties, bounds.requesters)?;
        let settings = GraphConfig::of(&config);
        // Run-phase inserts need room, too.
        let nodes = spec.nodes() + spec.nodes() / 4;
        let graph = GraphSpec {
            schema: loaded::schema(spec.link_types),
            ids: crate::measure::table_spec(&config, IDS_TABLE, farm_graph::ID_VALUE_BYTES, nodes)?,
            page_bytes: settings.page_bytes as usize,
            cached_heads: settings.cached_heads as usize,
        };
        let usual_limit = match args.mix {
            LinkMix::Linkbench => 10_000,
            LinkMix::Tao => 50,
        };
        let loses = args.losing.lose_machines;
        let requesters = bounds
            .requesters
            .unwrap_or_else(|| most_in_flight(&config, loses));
        let (duration, operations) = run_bounds(args, &bounds, requesters);
        Ok(Self {
            graph,
            links_of,
            links,
            degrees: source,
            mix: args.mix,
            by_id: args.by_id,
            load_only: args.load_only,
            range_limit: args.range_limit.map_or(usual_limit, u64::from),
            warmup: args
                .warmup
                .or(bounds.warmup.map(Duration::from_secs))
                .unwrap_or(DEFAULT_WARMUP),
            duration,
            operations,
            target_per_s: bounds
                .request_rate
                .map(|rate| (rate * requesters as f64).ceil() as u64),
            requesters: bounds.requesters,
            load_seed: args.seed.or(bounds.load_seed).unwrap_or(1),
            seed: args.seed.or(bounds.request_seed).unwrap_or(1),
            sampled_1_in: SAMPLED_1_IN,
            loses,
            config,
            spec: Arc::new(spec),
            properties,
        })
    }

    /// Returns the keys and values of the properties.
    pub(super) fn settings(&self) -> Vec<(String, String)> {
        let settings = self.properties.iter();
        settings
            .map(|(key, setting)| (key.to_owned(), setting.value.clone()))
            .collect()
    }

    /// Returns the mix of the requests.
    pub(super) fn requests(&self) -> Mix {
        match self.mix {
            LinkMix::Linkbench => linkbench_mix(&self.spec),
            LinkMix::Tao => tao_mix(),
        }
    }

    /// Returns the number of requests in flight, of all workers together.
    pub(super) fn in_flight(&self) -> u64 {
        self.requesters
            .unwrap_or_else(|| most_in_flight(&self.config, self.loses))
    }
}

fn most_in_flight(config: &Config, loses: bool) -> u64 {
    loading_workers(config, loses) * u64::from(config.worker.operations_in_flight)
}

/// Returns the properties: the built-in ones, those of the file and of the file that it names, and those of the command
/// line.
fn read_properties(args: &LinkbenchArgs) -> anyhow::Result<Properties> {
    let mut properties = defaults();
    if let Some(file) = &args.property_file {
        let mut own = Properties::new("-D");
        own.load_file(file)?;
        check_file(file, &own)?;
        if let Some(workload) = own.get("workload_file") {
            let beside = file.parent().unwrap_or(Path::new("."));
            properties.load_file(&beside.join(&workload.value))?;
        }
        properties.load_file(file)?;
    }
    for (key, value) in &args.properties {
        properties.set_override(&format!("{key}={value}"))?;
    }
    // The nodes of the cluster may run in another directory.
    if let Some(data) = properties.get("data_file") {
        let path = std::path::absolute(&data.value).map_err(|error| {
            let (value, origin) = (&data.value, &data.origin);
            Usage::error(format!(
                "data_file = {value:?} ({origin}) is not a file: {error}"
            ))
        })?;
        properties.set_override(&format!("data_file={}", path.display()))?;
    }
    Ok(properties)
}

/// Refuses a file without a property of LinkBench, such as one of another benchmark.
fn check_file(file: &Path, properties: &Properties) -> anyhow::Result<()> {
    let known = defaults();
    let others = [
        "workload_file",
        "data_file",
        "requesters",
        "requests",
        "maxtime",
    ];
    let is_known = |key: &str| known.get(key).is_some() || others.contains(&key);
    if properties.iter().any(|(key, _)| is_known(key)) {
        return Ok(());
    }
    let first = properties.iter().next();
    let found = first.map_or_else(String::new, |(key, setting)| {
        format!("; the first one found is {key:?} ({})", setting.origin)
    });
    Err(Usage::error(format!(
        "{}: no line of the file is a property of LinkBench, as in maxid1 = 1000001{found}",
        file.display()
    )))
}

/// Returns an error if the nodes alone do not fit, before the links of all nodes are counted.
fn check_nodes(args: &LinkbenchArgs, config: &Config, nodes: u64) -> anyhow::Result<()> {
    let mut config = config.clone();
    let is_sized = args.cluster.config.config.is_none();
    if is_sized {
        let bytes = nodes.saturating_mul(NODE_BYTES);
        make_room(&mut config, args.cluster.machines, bytes)?;
    }
    args.cluster
        .configure(&mut config, &[], args.losing.mode())?;
    check_memory(&config, &probe(&config.memory.dir))?;
    let needed = nodes.saturating_mul(LEAST_NODE_BYTES);
    let machines = config.storing_machines().count();
    let memory = config.total_memory();
    if needed <= memory {
        return Ok(());
    }
    Err(Usage::error(format!(
        "{nodes} nodes (startid1, maxid1) need more than {} of memory, and the {machines} machine(s) have {}; lower \
         maxid1, or raise memory.per_machine_bytes",
        rounded_size(needed),
        rounded_size(memory)
    )))
}

/// Returns an error if other engines cannot perform the same requests.
fn check_beside(args: &LinkbenchArgs, spec: &LinkSpec, bounds: &LinkBounds) -> anyhow::Result<()> {
    let refused = match (spec.random_id2 > 0, bounds.request_rate) {
        _ if args.beside.beside.is_empty() => return Ok(()),
        (true, _) => "randomid2max: engines load each link once, and random links repeat",
        (_, Some(_)) => "requestrate: engines perform requests as fast as they can",
        _ => return Ok(()),
    };
    Err(Usage::error(format!(
        "--beside cannot be used together with the property {refused}"
    )))
}

/// Returns an error if `requesters` exceeds the requests that all workers can keep in flight.
fn check_requesters(
    config: &Config,
    properties: &Properties,
    requesters: Option<u64>,
) -> anyhow::Result<()> {
    let most = most_in_flight(config, false);
    match (requesters, properties.get("requesters")) {
        (Some(requesters), Some(setting)) if requesters > most => Err(Usage::error(format!(
            "requesters = {requesters} ({}) is more than {most}: {} worker(s) keep at most {} requests in flight each; \
             lower requesters, or raise worker.operations_in_flight by --set",
            setting.origin,
            config.total_workers(),
            config.worker.operations_in_flight
        ))),
        _ => Ok(()),
    }
}

/// Returns the longest time and the number of requests that bound the run.
fn run_bounds(
    args: &LinkbenchArgs,
    bounds: &LinkBounds,
    requesters: u64,
) -> (Option<Duration>, Option<u64>) {
    let operations = bounds.requests.map(|each| each.saturating_mul(requesters));
    let usual = operations.is_none().then_some(DEFAULT_DURATION);
    let duration = args.duration.or(bounds.max_time.map(Duration::from_secs));
    (duration.or(usual), operations)
}
