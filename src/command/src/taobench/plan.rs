//! The plan of `farm taobench`: configuration, graph and workload.

use anyhow::Context;
use farm_bench::taobench::edges;
use farm_bench::taobench::workload::{Published, Workload};
use farm_core::config::Config;
use farm_graph::GraphSpec;
use farm_graph::config::GraphConfig;

use crate::Usage;
use crate::cli::{TaoMix, TaobenchArgs};
use crate::cluster::protocol::TaoWorkload;
use crate::losing::{self, loading_workers};
use crate::measure::{make_room, table_spec};

/// Id of the table of ids.
const IDS_TABLE: u16 = 1;

/// Memory that an edge takes with its two objects and their ids, and a part of an inverse edge.
const EDGE_BYTES: u64 = 1400;

/// Transactions in flight on a worker. With 64 of them the mix of applications reached 15 % fewer requests per second.
const CONCURRENCY: &str = "16";

/// The greatest number of the workers of a cluster: the times of writes contain the number of the worker.
const MAX_WORKERS: usize = 1 << 15;

/// The plan of a command.
pub(super) struct Plan {
    pub(super) config: Config,
    pub(super) graph: GraphSpec,
    pub(super) workload: TaoWorkload,
    /// The name of the mix in results.
    pub(super) mix: String,
    /// Whether machines are lost while the requests run.
    pub(super) loses: bool,
}

impl Plan {
    pub(super) fn of(args: &TaobenchArgs) -> anyhow::Result<Self> {
        let (name, text, mix) = match (&args.file, args.mix) {
            (Some(file), _) => {
                let name = file.display().to_string();
                let text = std::fs::read(file).with_context(|| format!("cannot read {name} (-c)"));
                let text = text.map_err(|error| Usage::error(format!("{error:#}")))?;
                (name.clone(), text, name)
            }
            (None, TaoMix::A) => built_in("a", Published::Applications),
            (None, TaoMix::O) => built_in("o", Published::Overall),
        };
        // The nodes parse the same text.
        Workload::parse(&name, &text)?;
        let text = String::from_utf8(text).context("the text of the workload was parsed")?;
        let mut config = args.cluster.config.load()?;
        if args.cluster.config.config.is_none() {
            let bytes = args.edges.saturating_mul(EDGE_BYTES);
            make_room(&mut config, args.cluster.machines, bytes)?;
            // Large read transactions conflict with the writes that run at the same time.
            let key = "transactions.concurrency";
            config.set_by("the mix", key, CONCURRENCY)?;
        }
        args.cluster
            .configure(&mut config, &[], args.losing.mode())?;
        losing::prepare(&mut config, &args.losing)?;
        if config.total_workers() > MAX_WORKERS {
            return Err(Usage::error(format!(
                "TAOBench runs on at most {MAX_WORKERS} workers, and the configuration has {}",
                config.total_workers()
            )));
        }
        let settings = GraphConfig::of(&config);
        // Two objects of each edge, and the objects that requests add.
        let objects = args.edges.saturating_mul(2) + args.edges / 2 + 1000;
        let graph = GraphSpec {
            schema: edges::schema(),
            ids: table_spec(&config, IDS_TABLE, farm_graph::ID_VALUE_BYTES, objects)?,
            page_bytes: settings.page_bytes as usize,
            cached_heads: settings.cached_heads as usize,
        };
        Ok(Self {
            config,
            graph,
            workload: TaoWorkload {
                name,
                text,
                edges: args.edges,
                seed: args.seed,
                compat: args.compat,
            },
            mix,
            loses: args.losing.lose_machines,
        })
    }

    /// Returns the number of requests in flight, of all workers together.
    pub(super) fn in_flight(&self) -> u64 {
        loading_workers(&self.config, self.loses)
            * u64::from(self.config.worker.operations_in_flight)
    }
}

/// Returns name and text of a built-in workload, and the name of the mix.
fn built_in(mix: &str, published: Published) -> (String, Vec<u8>, String) {
    let name = format!("config/taobench/{mix}.json (built in)");
    (name, published.text().into(), mix.to_owned())
}
