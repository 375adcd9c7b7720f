//! Orders of TAOBench, executed by a driven node.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::Sender;
use std::time::Duration;

use anyhow::Context;
use farm_bench::closed_loop::{Bounds, Ran, part_of};
use farm_bench::taobench::audit::{self, Audit, Written};
use farm_bench::taobench::driver::{self, Performed, Run};
use farm_bench::taobench::load::{self, Load};
use farm_bench::taobench::loaded::Loaded;
use farm_bench::taobench::report::MachineReport;
use farm_bench::taobench::stream::{Book, Known, Stream};
use farm_bench::taobench::workload::Workload;

use super::{Driven, loading, send_news};
use crate::cluster::protocol::{News, TaoOrder, TaoRun, TaoWorkload};

/// A graph of TAOBench that is open.
pub(super) struct Graph {
    workload: Arc<Workload>,
    loaded: Arc<Loaded>,
    seed: u64,
    compat: bool,
    /// The loaded edges, with names.
    book: Arc<Book>,
    /// What each worker of this machine has done.
    performed: Vec<Performed>,
}

impl Graph {
    fn new(order: &TaoWorkload) -> anyhow::Result<Self> {
        let workload = Arc::new(Workload::parse(&order.name, order.text.as_bytes())?);
        let loaded = Loaded::new(Arc::clone(&workload), order.seed, order.edges);
        Ok(Self {
            workload,
            loaded: Arc::new(loaded),
            seed: order.seed,
            compat: order.compat,
            book: Arc::default(),
            performed: Vec::new(),
        })
    }
}

impl Driven<'_> {
    /// Executes a step of TAOBench.
    pub(super) fn execute_tao(&mut self, order: TaoOrder) -> anyhow::Result<()> {
        match order {
            TaoOrder::Open { graph, workload } => {
                self.open_graph(&graph.into())?;
                self.tao = Some(Graph::new(&workload)?);
                send_news(&News::Opened);
                Ok(())
            }
            TaoOrder::Load => self.load_edges(),
            TaoOrder::ObjectBytes => self.send_object_bytes(),
            TaoOrder::FindNames => self.find_edges(),
            TaoOrder::Run(run) => self.run_tao(&run),
            TaoOrder::SaveWritten { dir } => self.save_written(&dir),
            TaoOrder::Audit { dir } => self.audit_tao(&dir),
        }
    }

    fn tao(&self) -> anyhow::Result<&Graph> {
        let graph = self.tao.as_ref();
        graph.context(
            "cannot run TAOBench: the launcher must first order this node to open the graph",
        )
    }

    fn load_edges(&self) -> anyhow::Result<()> {
        let loaded = &self.tao()?.loaded;
        let progress = Arc::new(AtomicU64::new(0));
        let ran: Vec<anyhow::Result<Ran>> = self.on_all(
            |worker, machine, answer: Sender<_>| {
                let number = self.span.first + worker as u64;
                let load = Load {
                    loaded: Arc::clone(loaded),
                    numbers: part_of(loaded.len(), number, self.span.total),
                    in_flight: self.in_flight(),
                    progress: Arc::clone(&progress),
                };
                let done = Box::new(move |ran| drop(answer.send(ran)));
                machine.submit(worker, move |worker| load::run(worker, load, done))
            },
            || loading(&progress),
        )?;
        let (mut records, mut seconds) = (0, 0.0_f64);
        for ran in ran {
            let ran = ran.context("cannot load the edges")?;
            records += ran.recorder.executed();
            seconds = seconds.max(ran.duration_s);
        }
        send_news(&News::Loaded { records, seconds });
        Ok(())
    }

    /// Looks up the names of the first objects of all edges.
    fn find_edges(&mut self) -> anyhow::Result<()> {
        let loaded = Arc::clone(&self.tao()?.loaded);
        let names = self.find_names(|worker| {
            let numbers = part_of(loaded.len(), worker as u64, self.span.local);
            let (count, loaded) = ((numbers.end - numbers.start) as usize, Arc::clone(&loaded));
            let id = Box::new(move |at| loaded.get(numbers.start + at as u64).id1);
            (count, id)
        })?;
        let mut book = Book::default();
        for (number, node) in (0..).zip(names) {
            let edge = loaded.get(number);
            book.push(Known { edge, node });
        }
        let graph = self.tao.as_mut().context("the graph is not open")?;
        graph.book = Arc::new(book);
        send_news(&News::Opened);
        Ok(())
    }

    fn run_tao(&mut self, order: &TaoRun) -> anyhow::Result<()> {
        let graph = self.tao()?;
        let bounds = Bounds {
            warmup: Duration::from_secs_f64(order.warmup_s),
            duration: Some(Duration::from_secs_f64(order.duration_s)),
            ..Bounds::default()
        };
        let mut performed: Vec<(usize, Performed)> = self.on_all(
            |worker, machine, answer: Sender<(usize, Performed)>| {
                let number = self.span.first + worker as u64;
                let (workload, book) = (Arc::clone(&graph.workload), Arc::clone(&graph.book));
                let run = Run {
                    stream: Stream::new(workload, book, graph.seed, number, graph.compat),
                    loaded: graph.book.edges().len(),
                    worker: number,
                    seed: graph.seed,
                    extent: self.extent(&bounds, worker),
                    sampled_1_in: order.sampled_1_in,
                };
                let done = Box::new(move |performed| drop(answer.send((worker, performed))));
                machine.submit(worker, move |worker| driver::run(worker, run, done))
            },
            || {},
        )?;
        performed.sort_by_key(|(worker, _)| *worker);
        let performed: Vec<Performed> = performed.into_iter().map(|(_, it)| it).collect();
        let report = MachineReport {
            machine: self.id.to_string(),
            load_s: 0.0,
            loaded: 0,
            tables: (),
            workers: performed.iter().map(|it| it.ran.clone()).collect(),
        };
        let graph = self.tao.as_mut().context("the graph is not open")?;
        graph.performed = performed;
        send_news(&News::RanTao(Box::new(report)));
        Ok(())
    }

    /// Writes what the workers have written to files, for the check by the workers of all machines.
    fn save_written(&self, dir: &Path) -> anyhow::Result<()> {
        let graph = self.tao()?;
        // A machine that was started again gave no load.
        let nothing = Written::new(graph.loaded.len() as usize);
        for worker in 0..self.span.local {
            let performed = graph.performed.get(worker as usize);
            let written = performed.map_or(&nothing, |performed| &performed.written);
            let saved = written.save(dir, self.span.first + worker);
            saved.with_context(|| {
                format!(
                    "cannot write to {}, for the check of the graph",
                    dir.display()
                )
            })?;
        }
        send_news(&News::Opened);
        Ok(())
    }

    /// Checks this machine's share of the graph.
    fn audit_tao(&mut self, dir: &Path) -> anyhow::Result<()> {
        let graph = self.tao.as_mut().context("the graph is not open")?;
        let mut performed: Vec<Option<Performed>> = graph.performed.drain(..).map(Some).collect();
        let graph = self.tao()?;
        let share = |worker: usize| {
            let number = self.span.first + worker as u64;
            let performed = performed.get_mut(worker).and_then(Option::take);
            let (own, written) = performed.map(|it| (it.own, it.written)).unwrap_or_default();
            Audit {
                loaded: Arc::clone(&graph.loaded),
                book: Arc::clone(&graph.book),
                numbers: part_of(graph.loaded.len(), number, self.span.total),
                own,
                written,
                dir: PathBuf::from(dir),
                workers: self.span.total,
                in_flight: self.in_flight(),
            }
        };
        let all = self.check(share, audit::run)?;
        send_news(&News::TaoAudit(all));
        Ok(())
    }
}
