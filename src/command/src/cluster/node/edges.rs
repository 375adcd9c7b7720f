//! Orders of `farm edges`, executed by a driven node.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use anyhow::Context;
use farm_bench::closed_loop::{Bounds, part_of};
use farm_bench::edges::import::{self, Batch, Imported, Importer};
use farm_bench::edges::report::{MachineReport, SearchResult};
use farm_bench::edges::sample::Sample;
use farm_bench::edges::search::{self, Searched};
use farm_bench::edges::two_hop::{self, Queried, Run, Starts};
use farm_core::object::FatPointer;

use super::{Driven, send_news};
use crate::cluster::protocol::{EdgesOrder, News, TwoHopRun};

/// A graph of an edge list that is open.
pub(super) struct Graph {
    /// The state of each worker of this machine between batches.
    importers: Vec<Option<Importer>>,
    /// Maximum size of the sample of nodes.
    sampled: usize,
    /// The nodes from which queries begin.
    starts: Arc<[FatPointer]>,
}

impl Driven<'_> {
    /// Executes a step of `farm edges`.
    pub(super) fn execute_edges(&mut self, order: EdgesOrder) -> anyhow::Result<()> {
        match order {
            EdgesOrder::Open {
                graph,
                undirected,
                sampled,
            } => {
                self.open_graph(&graph.into())?;
                let importer = || Some(Importer::new(undirected, sampled));
                self.edges = Some(Graph {
                    importers: (0..self.machine.workers()).map(|_| importer()).collect(),
                    sampled,
                    starts: Arc::default(),
                });
                send_news(&News::Opened);
                Ok(())
            }
            EdgesOrder::Import(batch) => self.import_edges(&batch),
            EdgesOrder::ObjectBytes => self.send_object_bytes(),
            EdgesOrder::Search { start } => self.search_edges(start),
            EdgesOrder::SendSample => self.send_sample(),
            EdgesOrder::FindStarts { ids } => self.find_starts(ids),
            EdgesOrder::TwoHop(run) => self.run_two_hop(&run),
        }
    }

    fn edges(&mut self) -> anyhow::Result<&mut Graph> {
        let graph = self.edges.as_mut();
        graph.context(
            "cannot import or query edges: the launcher must first order this node to open the graph",
        )
    }

    /// Writes the edges of a batch, each worker a part.
    fn import_edges(&mut self, batch: &Batch) -> anyhow::Result<()> {
        type Ended = (usize, anyhow::Result<Imported>, Importer);
        let mut importers = std::mem::take(&mut self.edges()?.importers);
        let ended: Vec<Ended> = self.on_all(
            |worker, machine, answer: Sender<Ended>| {
                let lines = batch.edges.len() as u64;
                let part = part_of(lines, worker as u64, machine.workers() as u64);
                let own = Batch {
                    first: batch.first + part.start,
                    edges: batch.edges[part.start as usize..part.end as usize].to_vec(),
                };
                let importer = importers[worker].take();
                let importer = importer.expect("each worker imports one part at a time");
                let in_flight = self.in_flight();
                let done = move |imported, importer| {
                    drop(answer.send((worker, imported, importer)));
                };
                machine.submit(worker, move |worker| {
                    import::run(worker, own, importer, in_flight, Box::new(done));
                })
            },
            || {},
        )?;
        let mut all = Imported::default();
        for (worker, imported, importer) in ended {
            importers[worker] = Some(importer);
            all += imported.context("cannot import the edges")?;
        }
        self.edges()?.importers = importers;
        send_news(&News::Imported(all));
        Ok(())
    }

    /// Searches on the first worker of the first machine.
    fn search_edges(&self, start: u64) -> anyhow::Result<()> {
        if self.span.first > 0 {
            send_news(&News::Searched { found: None });
            return Ok(());
        }
        let in_flight = self.in_flight();
        let searched = self.on_all(
            |worker, machine, answer: Sender<anyhow::Result<Option<Searched>>>| {
                let done = Box::new(move |searched| drop(answer.send(searched)));
                machine.submit(worker, move |own| match worker {
                    0 => search::run(own, start, in_flight, done),
                    _ => done(Ok(None)),
                })
            },
            || {},
        )?;
        let searched: anyhow::Result<Vec<_>> = searched.into_iter().collect();
        let searched = searched.context("cannot search the graph")?;
        let found = searched.into_iter().flatten().next();
        let found = found.map(|found| SearchResult::new(start, &found));
        send_news(&News::Searched { found });
        Ok(())
    }

    /// Sends a sample of the nodes that this machine has added.
    fn send_sample(&mut self) -> anyhow::Result<()> {
        let graph = self.edges()?;
        let mut all = Sample::new(graph.sampled);
        for importer in graph.importers.drain(..).flatten() {
            all.merge(importer.sample.ids());
        }
        send_news(&News::Sample { ids: all.ids() });
        Ok(())
    }

    /// Looks up the names of the nodes from which queries begin.
    fn find_starts(&mut self, ids: Vec<u64>) -> anyhow::Result<()> {
        let ids: Arc<[u64]> = ids.into();
        let found = self.find_names(|worker| {
            let part = part_of(ids.len() as u64, worker as u64, self.span.local);
            let (ids, first) = (Arc::clone(&ids), part.start as usize);
            let id = Box::new(move |at| ids[first + at]);
            ((part.end - part.start) as usize, id)
        })?;
        self.edges()?.starts = found.into();
        send_news(&News::Opened);
        Ok(())
    }

    fn run_two_hop(&mut self, order: &TwoHopRun) -> anyhow::Result<()> {
        let starts = Arc::clone(&self.edges()?.starts);
        let bounds = Bounds {
            warmup: Duration::from_secs_f64(order.warmup_s),
            duration: Some(Duration::from_secs_f64(order.duration_s)),
            ..Bounds::default()
        };
        let mut queried: Vec<(usize, Queried)> = self.on_all(
            |worker, machine, answer: Sender<(usize, Queried)>| {
                let number = self.span.first + worker as u64;
                let run = Run {
                    starts: Starts::Random {
                        nodes: Arc::clone(&starts),
                        seed: order.seed,
                        worker: number,
                    },
                    extent: bounds.share(number, self.span.total, self.in_flight()),
                    sampled_1_in: order.sampled_1_in,
                };
                let done = Box::new(move |queried| drop(answer.send((worker, queried))));
                machine.submit(worker, move |worker| two_hop::run(worker, run, done))
            },
            || {},
        )?;
        queried.sort_by_key(|(worker, _)| *worker);
        let report = MachineReport {
            machine: self.id.to_string(),
            load_s: 0.0,
            loaded: 0,
            tables: (),
            workers: queried.into_iter().map(|(_, it)| it.ran).collect(),
        };
        send_news(&News::RanTwoHop(Box::new(report)));
        Ok(())
    }
}
