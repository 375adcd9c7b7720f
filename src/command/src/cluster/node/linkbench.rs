//! Orders of LinkBench, executed by a driven node.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::Sender;
use std::time::Duration;

use anyhow::Context;
use farm_bench::closed_loop::{Bounds, Ran, part_of};
use farm_bench::graph::names::Names;
use farm_bench::linkbench::audit::{self, Audit};
use farm_bench::linkbench::client::Client;
use farm_bench::linkbench::degree::{Degrees, Links};
use farm_bench::linkbench::driver::{self, LinkCosts, Run};
use farm_bench::linkbench::load::{self, Load, LoadedLinks};
use farm_bench::linkbench::loaded::{Loaded, NODE_TYPE, now_ms};
use farm_bench::linkbench::report::MachineReport;
use farm_bench::linkbench::requests::{Requests, linkbench_mix, tao_mix};
use farm_bench::linkbench::{LinkSpec, store};
use farm_bench::properties::Properties;
use farm_bench::ycsb::stream::worker_rng;
use farm_core::object::FatPointer;
use farm_txn::{Handle, block_on};

use super::{Driven, loading, send_news};
use crate::cluster::protocol::{LinkOrder, LinkRun, LinkWorkload, News};

/// A graph of LinkBench that is open.
pub(super) struct Graph {
    spec: Arc<LinkSpec>,
    links: Arc<Links>,
    load_seed: u64,
    /// Names of the nodes that each worker of this machine has written.
    written: Vec<Vec<FatPointer>>,
    /// Number of pairs of a node and a type that have links on this machine.
    counts: u64,
    /// Name of the node that counts ids without gaps.
    sequence: Option<FatPointer>,
    /// Names of the nodes of all machines.
    names: Option<Names>,
}

impl Driven<'_> {
    /// Executes a step of LinkBench.
    pub(super) fn execute_link(&mut self, order: LinkOrder) -> anyhow::Result<()> {
        match order {
            LinkOrder::Open { graph, workload } => {
                self.open_graph(&graph.into())?;
                self.link = Some(Graph::new(&workload)?);
                send_news(&News::Opened);
                Ok(())
            }
            LinkOrder::LoadNodes => self.load_nodes(),
            LinkOrder::LoadLinks => self.load_links(),
            LinkOrder::Facts => {
                let counts = self.graph()?.counts;
                let object_bytes = self.object_bytes()?;
                send_news(&News::LinkFacts {
                    counts,
                    object_bytes,
                });
                Ok(())
            }
            LinkOrder::FindNames { all } => self.find_link_names(all),
            LinkOrder::Run(run) => self.run_link(&run),
            LinkOrder::Audit => self.audit_links(),
        }
    }

    fn graph(&self) -> anyhow::Result<&Graph> {
        let graph = self.link.as_ref();
        graph.context(
            "cannot run LinkBench: the launcher must first order this node to open the graph",
        )
    }

    /// Returns what a worker of this machine loads.
    fn load_of(&self, worker: usize, progress: &Arc<AtomicU64>) -> anyhow::Result<Load> {
        let graph = self.graph()?;
        Ok(Load {
            loaded: Loaded {
                spec: Arc::clone(&graph.spec),
                seed: graph.load_seed,
                now_ms: now_ms(),
            },
            ids: self.ids(
                &graph.spec,
                worker as u64,
                (self.span.first, self.span.total),
            ),
            in_flight: self.in_flight(),
            progress: Arc::clone(progress),
        })
    }

    /// Returns the ids of a worker, of `total` workers of which this machine's first has the number `first`.
    fn ids(&self, spec: &LinkSpec, worker: u64, (first, total): (u64, u64)) -> Range<u64> {
        let part = part_of(spec.nodes(), first + worker, total);
        spec.first_id + part.start..spec.first_id + part.end
    }

    fn load_nodes(&mut self) -> anyhow::Result<()> {
        type Written = (usize, anyhow::Result<(Ran, Vec<FatPointer>)>);
        let progress = Arc::new(AtomicU64::new(0));
        let loads = (0..self.machine.workers())
            .map(|worker| self.load_of(worker, &progress))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let mut loads: Vec<Option<Load>> = loads.into_iter().map(Some).collect();
        let mut written: Vec<Written> = self.on_all(
            |worker, machine, answer: Sender<Written>| {
                let load = loads[worker].take();
                let load = load.expect("each worker loads its part once");
                let done = Box::new(move |written| drop(answer.send((worker, written))));
                machine.submit(worker, move |worker| load::nodes(worker, load, done))
            },
            || loading(&progress),
        )?;
        written.sort_by_key(|(worker, _)| *worker);
        let (mut names, mut seconds) = (Vec::new(), 0.0_f64);
        for (_, result) in written {
            let (ran, own) = result.context("cannot load the nodes")?;
            seconds = seconds.max(ran.duration_s);
            names.push(own);
        }
        let records = names.iter().map(|own| own.len() as u64).sum();
        let is_first = self.span.first == 0;
        let graph = self.link.as_mut().context("the graph is not open")?;
        graph.written = names;
        let next = graph.spec.end_id;
        if graph.spec.compat && is_first {
            self.create_sequence(next)?;
        }
        send_news(&News::Loaded { records, seconds });
        Ok(())
    }

    /// Adds the node that counts ids without gaps.
    fn create_sequence(&self, next: u64) -> anyhow::Result<()> {
        let create = async move |farm: Handle| {
            farm.transact(async |tx| store::start_ids(tx, NODE_TYPE, next).await)
                .await
        };
        block_on(self.machine, 0, create)??;
        Ok(())
    }

    fn load_links(&mut self) -> anyhow::Result<()> {
        let progress = Arc::new(AtomicU64::new(0));
        let loads = (0..self.machine.workers())
            .map(|worker| self.load_of(worker, &progress))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let mut loads: Vec<Option<Load>> = loads.into_iter().map(Some).collect();
        let graph = self.link.as_mut().context("the graph is not open")?;
        let (links, mut written) = (Arc::clone(&graph.links), std::mem::take(&mut graph.written));
        written.resize(loads.len(), Vec::new());
        let loaded: Vec<anyhow::Result<LoadedLinks>> = self.on_all(
            |worker, machine, answer: Sender<_>| {
                let load = loads[worker].take();
                let load = load.expect("each worker loads its part once");
                let (links, names) = (Arc::clone(&links), std::mem::take(&mut written[worker]));
                let done = Box::new(move |loaded| drop(answer.send(loaded)));
                machine.submit(worker, move |worker| {
                    load::links(worker, load, links, names, done)
                })
            },
            || loading(&progress),
        )?;
        let (mut records, mut counts, mut seconds) = (0, 0, 0.0_f64);
        for loaded in loaded {
            let loaded = loaded.context("cannot load the links")?;
            records += loaded.links;
            counts += loaded.counts;
            seconds = seconds.max(loaded.seconds);
        }
        let graph = self.link.as_mut().context("the graph is not open")?;
        graph.counts = counts;
        send_news(&News::Loaded { records, seconds });
        Ok(())
    }

    /// Looks up the name of the node that counts, and the names of all nodes if `all`.
    fn find_link_names(&mut self, all: bool) -> anyhow::Result<()> {
        let (spec, workers) = (Arc::clone(&self.graph()?.spec), self.span.local);
        if spec.compat {
            let range = store::SEQUENCE_ID..store::SEQUENCE_ID + 1;
            let found = self.find(|worker| if worker == 0 { range.clone() } else { 0..0 })?;
            let graph = self.link.as_mut().context("the graph is not open")?;
            graph.sequence = found.first().copied();
        }
        if all {
            let found = self.find(|worker| self.ids(&spec, worker as u64, (0, workers)))?;
            let graph = self.link.as_mut().context("the graph is not open")?;
            graph.names = Some(Names::new(spec.first_id, found));
        }
        send_news(&News::Opened);
        Ok(())
    }

    /// Looks up the names of the ids that `ids` returns for each worker.
    fn find(&self, ids: impl Fn(usize) -> Range<u64>) -> anyhow::Result<Vec<FatPointer>> {
        self.find_names(|worker| {
            let ids = ids(worker);
            let count = (ids.end - ids.start) as usize;
            (count, Box::new(move |at| ids.start + at as u64))
        })
    }

    /// Checks the lists of this machine's part of the nodes.
    fn audit_links(&self) -> anyhow::Result<()> {
        let graph = self.graph()?;
        let span = (self.span.first, self.span.total);
        let share = |worker| Audit {
            ids: self.ids(&graph.spec, worker as u64, span),
            link_types: graph.spec.link_types,
            in_flight: self.in_flight(),
        };
        let all = self.check(share, audit::run)?;
        send_news(&News::LinkAudit(all));
        Ok(())
    }

    fn run_link(&self, order: &LinkRun) -> anyhow::Result<()> {
        let graph = self.graph()?;
        let bounds = Bounds {
            warmup: Duration::from_secs_f64(order.warmup_s),
            duration: order.duration_s.map(Duration::from_secs_f64),
            operations: order.operations,
            target_per_s: order.target_per_s,
            threads: order.threads,
        };
        let mut ran: Vec<(usize, Ran<LinkCosts>)> = self.on_all(
            |worker, machine, answer: Sender<(usize, Ran<LinkCosts>)>| {
                let number = self.span.first + worker as u64;
                let mix = match order.tao {
                    true => tao_mix(),
                    false => linkbench_mix(&graph.spec),
                };
                let client = (number, self.span.total);
                let links = Arc::clone(&graph.links);
                let requests = Requests::new(&graph.spec, links, mix, client);
                let run = Run {
                    client: Client::new(
                        Arc::clone(&graph.spec),
                        requests,
                        order.range_limit,
                        worker_rng(order.seed, number),
                    ),
                    names: graph.names.clone(),
                    sequence: graph.sequence,
                    now_ms: now_ms(),
                    extent: self.extent(&bounds, worker),
                    sampled_1_in: order.sampled_1_in,
                };
                let done = Box::new(move |ran| drop(answer.send((worker, ran))));
                machine.submit(worker, move |worker| driver::run(worker, run, done))
            },
            || {},
        )?;
        ran.sort_by_key(|(worker, _)| *worker);
        let report = MachineReport {
            machine: self.id.to_string(),
            load_s: 0.0,
            loaded: 0,
            tables: (),
            workers: ran.into_iter().map(|(_, ran)| ran).collect(),
        };
        send_news(&News::RanLink(Box::new(report)));
        Ok(())
    }
}

impl Graph {
    fn new(workload: &LinkWorkload) -> anyhow::Result<Self> {
        let mut properties = Properties::new("-D");
        for (key, value) in &workload.properties {
            properties.set_override(&format!("{key}={value}"))?;
        }
        let parsed = LinkSpec::from_properties(&properties, workload.compat)?;
        let degrees = match &parsed.bounds.data_file {
            Some(file) => Degrees::load(file)?,
            None => Degrees::default(),
        };
        Ok(Self {
            links: Arc::new(Links::new(&parsed.spec, degrees)),
            spec: Arc::new(parsed.spec),
            load_seed: workload.load_seed,
            written: Vec::new(),
            counts: 0,
            sequence: None,
            names: None,
        })
    }
}
