//! The plan of `farm edges`: configuration, graph and list.

use std::path::{Path, PathBuf};

use farm_bench::edges::generate::Generated;
use farm_bench::edges::vertex;
use farm_bench::graph::edge_list::{EdgeFile, Sizes};
use farm_core::config::{Config, Durability};
use farm_graph::GraphSpec;
use farm_graph::config::GraphConfig;

use crate::Usage;
use crate::cli::EdgesArgs;
use crate::measure::{make_room, table_spec};

/// Id of the table of ids.
const IDS_TABLE: u16 = 1;

/// Memory that a node takes, with its id.
const NODE_BYTES: u64 = 320;
/// Memory that an edge takes at one end.
const EDGE_BYTES: u64 = 190;

/// Entries of the cache of first pages for each node. With fewer entries more lists share an entry.
const HEADS_PER_NODE: u64 = 4;
/// The least and the greatest number of entries.
const HEADS: [u64; 2] = [1 << 18, 1 << 24];

const DEFAULT_NODES: u64 = 100_000;
const DEFAULT_DEGREE: u32 = 10;

/// An edge list.
pub(super) enum List {
    /// A file.
    File(PathBuf),
    /// A list that is generated.
    Generated(Generated),
}

/// The plan of a command.
pub(super) struct Plan {
    pub(super) config: Config,
    pub(super) graph: GraphSpec,
    pub(super) list: List,
    /// The name of the list in results.
    pub(super) name: String,
    /// Expected sizes of the list.
    pub(super) sizes: Sizes,
}

impl Plan {
    pub(super) fn of(args: &EdgesArgs) -> anyhow::Result<Self> {
        let (list, name, sizes) = match &args.file {
            Some(file) => (
                List::File(file.clone()),
                file.display().to_string(),
                sizes_of(file)?,
            ),
            None => generated(args),
        };
        let mut config = args.cluster.config.load()?;
        if args.cluster.config.config.is_none() {
            let ends = 1 + u64::from(args.undirected);
            let edges = sizes.edges.saturating_mul(EDGE_BYTES * ends);
            let bytes = sizes.nodes.saturating_mul(NODE_BYTES).saturating_add(edges);
            make_room(&mut config, args.cluster.machines, bytes)?;
            let heads = sizes.nodes.saturating_mul(HEADS_PER_NODE);
            let heads = heads.clamp(HEADS[0], HEADS[1]).to_string();
            config.set_by("the size of the graph", "graph.cached_heads", &heads)?;
        }
        args.cluster.configure(&mut config, &[], Durability::None)?;
        let settings = GraphConfig::of(&config);
        let graph = GraphSpec {
            schema: vertex::schema(),
            ids: table_spec(
                &config,
                IDS_TABLE,
                farm_graph::ID_VALUE_BYTES,
                sizes.nodes.max(1),
            )?,
            page_bytes: settings.page_bytes as usize,
            cached_heads: settings.cached_heads as usize,
        };
        Ok(Self {
            config,
            graph,
            list,
            name,
            sizes,
        })
    }

    /// Returns the number of reads in flight, of all workers together.
    pub(super) fn in_flight(&self) -> u64 {
        self.config.total_workers() as u64 * u64::from(self.config.worker.operations_in_flight)
    }
}

/// Estimates the sizes of a file. Refuses a file without edges.
fn sizes_of(file: &Path) -> anyhow::Result<Sizes> {
    if file.exists() && !file.is_file() {
        let why = format!(
            "cannot import {}: it is not a regular file, whose beginning is read to estimate its sizes",
            file.display()
        );
        return Err(Usage::error(why));
    }
    let sizes = EdgeFile::sizes(file)?;
    if sizes.edges > 0 {
        return Ok(sizes);
    }
    let first = EdgeFile::open(file)?.find_map(Result::err);
    Err(match first {
        Some(wrong) => anyhow::Error::new(wrong)
            .context(format!("{}: the file is not an edge list", file.display())),
        None => Usage::error(format!("{}: the file has no edges", file.display())),
    })
}

fn generated(args: &EdgesArgs) -> (List, String, Sizes) {
    let nodes = args.nodes.unwrap_or(DEFAULT_NODES);
    let degree = args.degree.unwrap_or(DEFAULT_DEGREE);
    let list = Generated::new(nodes, u64::from(degree), args.seed);
    let sizes = list.sizes();
    let name = format!("generated graph of {nodes} nodes, mean degree {degree}");
    (List::Generated(list), name, sizes)
}
