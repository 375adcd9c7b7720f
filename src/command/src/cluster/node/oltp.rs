//! Orders of benchmarks of transactions, executed by a driven node.

use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use anyhow::Context;
use farm_bench::closed_loop::Extent;
use farm_bench::oltp::audit::{self, Audit};
use farm_bench::oltp::driver::{self, Ran, Run};
use farm_bench::oltp::report::MachineReport;
use farm_bench::oltp::{Benchmark, attempt};
use farm_kv::{TableId, TableSpec};
use farm_txn::BackoffConfig;

use super::{Driven, LOOK, SETTLE, send_news};
use crate::cluster::protocol::{News, OltpOrder};

/// A benchmark whose tables are open.
pub(super) struct Oltp {
    benchmark: Benchmark,
    seed: u64,
    tables: Vec<TableId>,
    /// Number of rows that this machine loaded, and the seconds of its slowest worker.
    loaded: (u64, f64),
}

impl Driven<'_> {
    fn oltp(&self) -> anyhow::Result<&Oltp> {
        let opened = self.oltp.as_ref();
        opened.context(
            "cannot run a benchmark: the launcher must first order this node to open the tables",
        )
    }

    /// Executes a step of a benchmark.
    pub(super) fn execute_oltp(&mut self, order: OltpOrder) -> anyhow::Result<()> {
        match order {
            OltpOrder::Open {
                benchmark,
                seed,
                tables,
            } => self.open_oltp(benchmark, seed, tables),
            OltpOrder::Load => self.load_oltp(),
            OltpOrder::Run {
                avoidance,
                warmup_s,
                duration_s,
                sampled_1_in,
                tasks,
            } => {
                let extent = Extent {
                    warmup: Duration::from_secs_f64(warmup_s),
                    duration: Some(Duration::from_secs_f64(duration_s)),
                    operations: (!self.gives_load).then_some(0),
                    ..Extent::default()
                };
                self.run_oltp(extent, avoidance, sampled_1_in, tasks)
            }
            OltpOrder::Audit => self.audit_oltp(),
        }
    }

    /// Opens the tables of a benchmark on every worker.
    fn open_oltp(
        &mut self,
        benchmark: Benchmark,
        seed: u64,
        specs: impl IntoIterator<Item = TableSpec>,
    ) -> anyhow::Result<()> {
        let mut tables = Vec::new();
        for spec in specs {
            tables.push(self.open_table(spec)?);
        }
        let named: Vec<_> = benchmark
            .tables()
            .iter()
            .copied()
            .zip(tables.clone())
            .collect();
        self.on_all(
            |worker, machine, answer: Sender<()>| {
                let named = named.clone();
                machine.submit(worker, move |worker| {
                    attempt::attach(worker, named, false, None);
                    // Fails if the node no longer waits, because the machine is stopping.
                    _ = answer.send(());
                })
            },
            || {},
        )?;
        self.oltp = Some(Oltp {
            benchmark,
            seed,
            tables,
            loaded: (0, 0.0),
        });
        send_news(&News::Opened);
        Ok(())
    }

    /// Inserts this machine's part of the rows.
    fn load_oltp(&mut self) -> anyhow::Result<()> {
        let oltp = self.oltp()?;
        let loaded = self.load_pairs(|worker| {
            let items = self.items(&oltp.benchmark, worker);
            oltp.benchmark.pairs(oltp.seed, items)
        })?;
        if let Some(oltp) = &mut self.oltp {
            oltp.loaded = loaded;
        }
        Ok(())
    }

    /// Returns the items that a worker of this machine loads, and checks at the end.
    fn items(&self, benchmark: &Benchmark, worker: usize) -> std::ops::Range<u64> {
        benchmark.share(self.span.first + worker as u64, self.span.total)
    }

    /// Runs the transactions, and sends the report.
    fn run_oltp(
        &self,
        extent: Extent,
        avoidance: BackoffConfig,
        sampled_1_in: u32,
        tasks: bool,
    ) -> anyhow::Result<()> {
        let oltp = self.oltp()?;
        let stream = oltp.benchmark.stream()?;
        // The answers are in the order in which the workers end.
        let mut ran: Vec<(usize, Ran)> = self.on_all(
            |worker, machine, answer: Sender<(usize, Ran)>| {
                let run = Run {
                    stream: stream.clone(),
                    seed: oltp.seed,
                    worker: self.span.first + worker as u64,
                    avoidance,
                    extent,
                    sampled_1_in,
                    tasks,
                };
                let done = Box::new(move |ran| drop(answer.send((worker, ran))));
                machine.submit(worker, move |worker| driver::run(worker, run, done))
            },
            || {},
        )?;
        ran.sort_by_key(|(worker, _)| *worker);
        send_news(&News::RanOltp(Box::new(MachineReport {
            machine: self.id.to_string(),
            load_s: oltp.loaded.1,
            loaded: oltp.loaded.0,
            tables: (),
            workers: ran.into_iter().map(|(_, ran)| ran).collect(),
        })));
        Ok(())
    }

    /// Checks this machine's part of the rows, and walks its shards. No transactions run at this time.
    fn audit_oltp(&self) -> anyhow::Result<()> {
        let oltp = self.oltp()?;
        let share = |worker| Audit {
            items: self.items(&oltp.benchmark, worker),
            benchmark: oltp.benchmark.clone(),
            seed: oltp.seed,
            in_flight: self.in_flight(),
        };
        let mut all = self.check(share, audit::audit)?;
        match self.walk(&oltp.tables)? {
            Ok(pairs) => all.pairs = pairs,
            Err(why) => _ = all.wrong.get_or_insert(why),
        }
        send_news(&News::AuditResult(all));
        Ok(())
    }

    /// Returns the number of pairs in this machine's shards, or the first error in one. Retries after an error until
    /// [`SETTLE`] has passed, because the last transactions may still hold locks.
    fn walk(&self, tables: &[TableId]) -> anyhow::Result<Result<u64, String>> {
        let until = Instant::now() + SETTLE;
        loop {
            let walked = self.on_all(
                |worker, machine, answer: Sender<Result<u64, String>>| {
                    let tables = tables.to_vec();
                    machine.submit(worker, move |worker| {
                        // Fails if the node no longer waits, because the machine is stopping.
                        _ = answer.send(audit::walk(worker, &tables));
                    })
                },
                || {},
            )?;
            let walked: Result<u64, String> = walked.into_iter().sum();
            if walked.is_ok() || Instant::now() > until {
                return Ok(walked);
            }
            self.check_wanted()?;
            std::thread::sleep(LOOK);
        }
    }
}
