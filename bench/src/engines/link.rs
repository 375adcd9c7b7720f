//! The requests of LinkBench on another engine.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::Context;

use super::threads::{self, Extent};
use super::{LinkOps, List};
use crate::closed_loop::Ran;
use crate::linkbench::client::{Client, Drawn};
use crate::linkbench::degree::Links;
use crate::linkbench::driver::LinkCosts;
use crate::linkbench::loaded::{LinksOf, Loaded, Nodes, link_type, now_ms};
use crate::linkbench::report::{LoadResult, RunResult, Setup};
use crate::linkbench::requests::{Kind, Mix, Requests};
use crate::recorder::Outcome;
use crate::report::{Beside, Engine};
use crate::ycsb::stream::worker_rng;

/// A run of LinkBench on another engine.
pub struct Job<'a> {
    /// The graph.
    pub loaded: Loaded,
    /// Its links.
    pub links: Arc<Links>,
    /// The mix of the requests.
    pub mix: Mix,
    /// The settings, as in the report of the platform.
    pub setup: &'a Setup,
    /// Number of threads, and how long they run.
    pub extent: Extent,
}

/// Loads the graph into an engine, whose files are in `dir`, and runs requests.
///
/// # Errors
/// If the engine cannot be started, or refuses an operation.
pub fn run(engine: Engine, dir: &Path, run: &Job<'_>) -> anyhow::Result<Beside<RunResult>> {
    let store = super::link_store(engine, dir)?;
    let spec = &run.loaded.spec;
    let ids = spec.first_id..spec.end_id;
    let mut links = LinksOf::new(run.loaded.clone(), Arc::clone(&run.links), ids.clone());
    let began = Instant::now();
    let mut nodes = Nodes::new(run.loaded.clone());
    store
        .load(&mut nodes, &mut links, ids)
        .context("cannot load the graph")?;
    let seconds = began.elapsed().as_secs_f64();
    let total: u64 = (spec.first_id..spec.end_id)
        .map(|id1| run.links.total(id1))
        .sum();
    let load = LoadResult {
        nodes: spec.nodes(),
        links: total,
        counts: links.lists(),
        seconds,
        links_per_s: Some(total as f64 / seconds),
        ..LoadResult::default()
    };
    let next_id = Arc::new(AtomicU64::new(spec.end_id));
    let threads = run.extent.threads as u64;
    let clients = (0..threads).map(|number| {
        let links = Arc::clone(&run.links);
        let requests = Requests::new(spec, links, run.mix.clone(), (number, threads));
        let rng = worker_rng(run.setup.seed, number);
        anyhow::Ok(LinkClient {
            client: Client::new(Arc::clone(spec), requests, run.setup.range_limit, rng),
            ops: store.client()?,
            next_id: Arc::clone(&next_id),
            start_ms: now_ms(),
            began: Instant::now(),
            costs: LinkCosts::default(),
        })
    });
    let clients = clients.collect::<anyhow::Result<Vec<_>>>()?;
    let ran = threads::run(clients, Kind::ALL.len(), &run.extent)?;
    let workers: Vec<Ran<LinkCosts>> = ran.into_iter().map(|(ran, _)| ran).collect();
    let report = threads::report(workers);
    let setup = Setup {
        by_id: true,
        cached_heads: 0,
        in_flight: threads,
        ..run.setup.clone()
    };
    let run = RunResult::new(&setup, load, &[report])?;
    Ok(store.facts()?.beside(engine, threads, run))
}

struct LinkClient {
    client: Client,
    ops: Box<dyn LinkOps>,
    /// The id of the next new node, of all clients.
    next_id: Arc<AtomicU64>,
    start_ms: u64,
    began: Instant,
    costs: LinkCosts,
}

impl threads::Client for LinkClient {
    type Operation = Drawn;
    type Counters = LinkCosts;

    fn counters(&mut self) -> &mut LinkCosts {
        &mut self.costs
    }

    fn draw(&mut self) -> Drawn {
        self.client.draw()
    }

    fn perform(&mut self, drawn: Drawn) -> anyhow::Result<(usize, Outcome)> {
        let kind = drawn.request.kind;
        let has_effect = self
            .effect(&drawn)
            .with_context(|| format!("{} of node {} failed", kind.name(), drawn.request.id1))?;
        let outcome = match has_effect {
            true => Outcome::Committed,
            false => Outcome::NotFound,
        };
        Ok((kind.index(), outcome))
    }
}

impl LinkClient {
    /// Performs a request. Returns whether it found or changed something.
    fn effect(&mut self, drawn: &Drawn) -> anyhow::Result<bool> {
        let now = self.start_ms + self.began.elapsed().as_millis() as u64;
        let Self { client, ops, .. } = self;
        let request = &drawn.request;
        let (id1, list) = (request.id1, (request.id1, link_type(request.link_type)));
        match request.kind {
            Kind::GetNode => ops.get_node(id1, &mut |node| {
                std::hint::black_box(node.data.to_vec());
            }),
            Kind::CountLinks => Ok(ops.count_links(list)? > 0),
            Kind::GetList | Kind::GetTimeRange => self.read_list(drawn, list, now),
            Kind::Multiget => {
                let mut found = 0;
                ops.multiget(list, client.ids(request), &mut |link| {
                    std::hint::black_box(link.data.to_vec());
                    found += 1;
                })?;
                Ok(found > 0)
            }
            Kind::AddLink | Kind::UpdateLink => {
                ops.add_link(list, &client.link(request, now), now)?;
                Ok(true)
            }
            Kind::DeleteLink => ops.delete_link(list, request.id2, now),
            Kind::ChangeType => ops.change_type(list, client.other_type(request), request.id2, now),
            Kind::AddNode => {
                let id = self.next_id.fetch_add(1, Ordering::Relaxed);
                ops.add_node(id, &client.node(request, now))?;
                Ok(true)
            }
            Kind::UpdateNode => ops.update_node(id1, &client.node(request, now)),
            Kind::DeleteNode => ops.delete_node(id1),
        }
    }

    fn read_list(&mut self, drawn: &Drawn, list: List, now: u64) -> anyhow::Result<bool> {
        let range = self.client.range(drawn, now);
        let (mut bytes, mut links, mut last) = (Vec::new(), 0, None);
        self.ops.list(list, &range, &mut |link| {
            bytes.extend_from_slice(link.data);
            links += 1;
            last = Some(link.time);
        })?;
        std::hint::black_box(bytes);
        self.costs.listed += links as u64;
        self.client.remember(drawn, links, || last);
        Ok(links > 0)
    }
}
