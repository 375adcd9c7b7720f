//! Orders of YCSB, executed by a driven node.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use anyhow::{Context, bail};
use farm_bench::closed_loop::{Bounds, Ran, part_of};
use farm_bench::properties::Properties;
use farm_bench::ycsb::audit::{self, Audit};
use farm_bench::ycsb::driver::{self, Common, Run};
use farm_bench::ycsb::inserts::{InsertTracker, WorkerSpan};
use farm_bench::ycsb::report::{Counters, MachineReport, TableFacts};
use farm_bench::ycsb::spec::WorkloadSpec;
use farm_kv::KvError;
use farm_kv::ops::OwnShards;

use super::{Driven, send_news};
use crate::cluster::protocol::{News, Order, WorkloadOrder};

impl Driven<'_> {
    /// Returns for each worker the table, and the number that identifies the worker as the writer of values.
    pub(super) fn commons(&self) -> anyhow::Result<Vec<Common>> {
        let table = self.table;
        let (table, spec) = table.context(
            "cannot run a workload: the launcher must first order this node to open a table",
        )?;
        let common = |worker| Common {
            table,
            value_bytes: spec.value_bytes,
            writer: (self.span.first + worker) as u16,
        };
        Ok((0..self.span.local).map(common).collect())
    }

    pub(super) fn load(&mut self, order: &WorkloadOrder) -> anyhow::Result<()> {
        let workload = ycsb_workload(order)?;
        let WorkerSpan { first, total, .. } = self.span;
        let commons = self.commons()?;
        self.loaded = self.load_pairs(|worker| {
            let numbers = workload.load_range(first + worker as u64, total);
            driver::records(commons[worker].clone(), numbers)
        })?;
        Ok(())
    }

    /// Returns the tracker of the inserts of this process. The records were loaded, by it or by an earlier process.
    fn tracker(&mut self, workload: &WorkloadSpec) -> Arc<InsertTracker> {
        let new = || Arc::new(InsertTracker::new(workload.record_count, self.span));
        Arc::clone(self.tracker.get_or_insert_with(new))
    }

    /// Checks that this machine's part of the records is there, and those that its workers have inserted.
    pub(super) fn check_records(&mut self, order: &WorkloadOrder) -> anyhow::Result<()> {
        let workload = ycsb_workload(order)?;
        let tracker = self.tracker(&workload);
        let commons = self.commons()?;
        let WorkerSpan {
            first,
            local,
            total,
        } = self.span;
        // The loaded records are shared by all workers, and those of this process by its own.
        let (base, end) = (workload.record_count, tracker.last() + 1);
        let share = |worker: usize| {
            let loaded = part_of(base, first + worker as u64, total);
            let inserted = part_of(end - base, worker as u64, local);
            Audit {
                common: commons[worker].clone(),
                tracker: Arc::clone(&tracker),
                places: vec![loaded, base + inserted.start..base + inserted.end],
                in_flight: self.in_flight(),
            }
        };
        let all = self.check(share, audit::run)?;
        send_news(&News::RecordAudit(all));
        Ok(())
    }

    pub(super) fn run(&mut self, order: Order) -> anyhow::Result<()> {
        let Order::Run {
            workload: order,
            warmup_s,
            duration_s,
            operations,
            target_per_s,
            threads,
            seed,
            verify,
            sampled_1_in,
        } = order
        else {
            bail!("internal error: `Driven::run` was called with another order than `Order::Run`");
        };
        let spec = ycsb_workload(&order)?;
        let tracker = self.tracker(&spec);
        let bounds = Bounds {
            warmup: Duration::from_secs_f64(warmup_s),
            duration: duration_s.map(Duration::from_secs_f64),
            operations,
            target_per_s,
            threads,
        };
        let commons = self.commons()?;
        let workers = self.on_all(
            |worker, machine, answer: Sender<Ran<Counters>>| {
                let run = Run {
                    spec: spec.clone(),
                    tracker: Arc::clone(&tracker),
                    local_worker: worker as u64,
                    seed,
                    extent: self.extent(&bounds, worker),
                    verify,
                    sampled_1_in,
                };
                let common = commons[worker].clone();
                let done = Box::new(move |ran| drop(answer.send(ran)));
                machine.submit(worker, move |worker| {
                    driver::run(worker, common, run, done);
                })
            },
            || {},
        )?;
        for why in workers.iter().filter_map(|ran| ran.failure.as_ref()) {
            tracing::error!("machine {}: {why}", self.id);
        }
        let report = MachineReport {
            machine: self.id.to_string(),
            load_s: self.loaded.1,
            loaded: self.loaded.0,
            tables: self.facts()?,
            workers,
        };
        send_news(&News::Ran(Box::new(report)));
        Ok(())
    }

    pub(super) fn facts(&self) -> anyhow::Result<TableFacts> {
        let table = self.table;
        let (table, spec) = table.context(
            "cannot describe the table: the launcher must first order this node to open a table",
        )?;
        let all = self.on_all(
            |worker, machine, answer: Sender<Result<OwnShards, KvError>>| {
                machine.submit(worker, move |worker| {
                    farm_txn::spawn(worker, move |farm| async move {
                        let own = farm_kv::ops::own_shards(&farm, table, u32::MAX).await;
                        // Fails if the node no longer waits, because the machine is stopping.
                        _ = answer.send(own);
                    });
                })
            },
            || {},
        )?;
        let pair_bytes = (farm_kv::KEY_BYTES + spec.value_bytes) as u64;
        let mut facts = TableFacts::default();
        for own in all {
            let own = own?;
            facts.pairs += own.pairs;
            facts.slots += own.slots;
            facts.pair_bytes += own.pairs * pair_bytes;
            facts.table_bytes += own.bytes;
        }
        Ok(facts)
    }
}

/// Parses the workload of an order.
fn ycsb_workload(order: &WorkloadOrder) -> anyhow::Result<WorkloadSpec> {
    let mut properties = Properties::new("-p");
    for (key, value) in &order.properties {
        properties.set_override(&format!("{key}={value}"))?;
    }
    let mut spec = WorkloadSpec::from_properties(&order.name, &properties)?.spec;
    spec.value_bytes = order.value_bytes;
    Ok(spec)
}
