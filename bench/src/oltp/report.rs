//! Results of a run of transactions: a table for people and JSON for programs, in the form of [`crate::report`]. The
//! test `the_json_fields_are_pinned` pins the names of the JSON fields.
//!
//! A transaction counts as *executed* with any outcome, and each of them is a commit of the platform: that a row is
//! absent, or that an account has insufficient funds, is valid only because the commit validated it. Transactions that
//! had their intended effect are *committed*. Numbers "per commit" are per commit of the platform.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::audit::Audited;
use super::recorder::{Aborts, Costs, Recorder, RecorderError};
use super::{Benchmark, Outcome};
use crate::report::{
    Latency, dash, grouped, percent, ratio, ratio_of_counts, whole, write_latencies,
};
use crate::slices::{SliceRates, Slices};
use crate::smallbank::Ledger;

/// The part of one worker in a run. It is serializable for the exchange between processes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkerReport {
    /// Duration of the measured part, in seconds.
    pub duration_s: f64,
    /// Records of the worker.
    pub recorder: Recorder,
    /// Executed transactions by time slice.
    pub slices: Slices,
    /// Effect of its transactions on the money.
    pub ledger: Ledger,
    /// Why it ended early, if it did.
    pub failure: Option<String>,
}

/// The part of one machine in a run. It is serializable for the exchange between processes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MachineReport {
    /// Name of the machine.
    pub machine: String,
    /// Duration of its part of the load, in seconds.
    pub load_s: f64,
    /// Number of rows that it loaded.
    pub load_rows: u64,
    /// Its workers, in their order.
    pub workers: Vec<WorkerReport>,
}

/// The setup of a run.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The benchmark.
    pub benchmark: Benchmark,
    /// Seed of the population and of all random choices.
    pub seed: u64,
    /// Most transactions in flight on each worker.
    pub concurrency: usize,
    /// Parts of the conflict avoidance that were switched off.
    pub without: Vec<String>,
    /// Duration of the warm-up, in seconds.
    pub warmup_s: f64,
}

/// The result of one benchmark on one cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// Name of the benchmark.
    pub benchmark: String,
    /// Options of the benchmark.
    pub options: serde_json::Value,
    /// Seed of the population and of all random choices.
    pub seed: u64,
    /// Most transactions in flight on each worker.
    pub concurrency: u64,
    /// Parts of the conflict avoidance that were switched off.
    pub without: Vec<String>,
    /// Duration of the warm-up, in seconds.
    pub warmup_s: f64,
    /// Duration of the measured part of the slowest worker, in seconds.
    pub duration_s: f64,
    /// Transactions executed, with any outcome.
    pub executed: u64,
    /// Executed transactions per second.
    pub executed_per_s: Option<f64>,
    /// Executed transactions by time slice, if the run was long enough.
    pub slices: Option<SliceRates>,
    /// Transactions that had their intended effect.
    pub committed: u64,
    /// Committed transactions per second.
    pub committed_per_s: Option<f64>,
    /// Committed transactions per second and worker, on average.
    pub committed_per_s_per_worker: Option<f64>,
    /// Attempts that met a conflict and were retried, by reason.
    pub aborts: Aborts,
    /// Share of all attempts that met a conflict.
    pub abort_share: Option<f64>,
    /// One-sided reads of other machines' memory per commit.
    pub reads_per_commit: Option<f64>,
    /// One-sided writes of records into other machines' logs per commit.
    pub writes_per_commit: Option<f64>,
    /// Messages per commit: requests, one-way messages and replies.
    pub messages_per_commit: Option<f64>,
    /// The counters of these costs.
    pub costs: Costs,
    /// Each kind of transaction, in the benchmark's order.
    pub kinds: Vec<KindResult>,
    /// The part of each machine.
    pub machines: Vec<MachineResult>,
    /// Duration of the load on the slowest machine, in seconds.
    pub load_s: f64,
    /// Number of rows loaded.
    pub load_rows: u64,
    /// Rows loaded per second by all machines together.
    pub load_rows_per_s: Option<f64>,
    /// Result of the check at the end.
    pub check: CheckResult,
    /// Reasons for which workers ended early.
    pub failures: Vec<String>,
}

/// The result of one kind of transaction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KindResult {
    /// Name of the kind.
    pub kind: String,
    /// Number of executed transactions.
    pub executed: u64,
    /// Part of `executed`: had their intended effect.
    pub committed: u64,
    /// Part of `executed`: a required row was absent.
    pub not_found: u64,
    /// Part of `executed`: the intended effect was not allowed.
    pub declined: u64,
    /// Latency from the start of the first attempt to the end of the last, in microseconds.
    pub latency_us: Option<Latency>,
}

/// The part of one machine in a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MachineResult {
    /// Name of the machine.
    pub machine: String,
    /// Its workers, in their order.
    pub workers: Vec<WorkerResult>,
}

/// The part of one worker in a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerResult {
    /// Transactions executed.
    pub executed: u64,
    /// Executed transactions per second of the worker's own run.
    pub executed_per_s: Option<f64>,
    /// Transactions that had their intended effect.
    pub committed: u64,
    /// Committed transactions per second of the worker's own run.
    pub committed_per_s: Option<f64>,
}

/// The result of the check after all transactions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckResult {
    /// Subscribers or accounts whose rows are right.
    pub items: u64,
    /// Number of their rows that were looked up.
    pub rows: u64,
    /// Number of pairs in the tables, counted by a walk.
    pub pairs: u64,
    /// The sum of all money; `None` for a benchmark without money.
    pub money: Option<Money>,
    /// Errors; empty unless the platform has a defect.
    pub wrong: Vec<String>,
}

/// The sum of all money, in cents, as text: programs that read JSON round numbers of this size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Money {
    /// Sum of the balances of all accounts.
    pub found_cents: String,
    /// The loaded sum, plus the changes by committed transactions. If the outcome of some transactions is unknown, this
    /// is the lower bound.
    pub least_cents: String,
    /// The upper bound.
    pub most_cents: String,
}

impl RunResult {
    /// Merges the reports of the machines of a run, and judges the result of the check.
    ///
    /// # Errors
    /// If the machines' recorders cannot be merged.
    pub fn new(
        setup: &Setup,
        machines: &[MachineReport],
        audited: &Audited,
    ) -> Result<Self, RecorderError> {
        let benchmark = &setup.benchmark;
        let workers = || machines.iter().flat_map(|machine| &machine.workers);
        let sampled_1_in = workers().next().map_or(1, |it| it.recorder.sampled_1_in());
        let mut recorder = Recorder::new(benchmark.kinds().len(), sampled_1_in);
        let mut ledger = Ledger::default();
        let mut slices = Slices::default();
        for worker in workers() {
            recorder.merge(&worker.recorder)?;
            slices.merge(&worker.slices);
            ledger.merge(&worker.ledger);
        }
        let duration_s = workers().map(|it| it.duration_s).fold(0.0, f64::max);
        let load_s = machines.iter().map(|it| it.load_s).fold(0.0, f64::max);
        let load_rows = machines.iter().map(|it| it.load_rows).sum();
        let (executed, committed) = (recorder.executed(), recorder.total(Outcome::Committed));
        let committed_per_s = ratio(committed as f64, duration_s);
        let (aborts, costs) = (recorder.aborts, recorder.costs);
        Ok(Self {
            benchmark: benchmark.name().to_owned(),
            options: benchmark.options(),
            seed: setup.seed,
            concurrency: setup.concurrency as u64,
            without: setup.without.clone(),
            warmup_s: setup.warmup_s,
            duration_s,
            executed,
            executed_per_s: ratio(executed as f64, duration_s),
            slices: slices.rates(),
            committed,
            committed_per_s,
            committed_per_s_per_worker: committed_per_s
                .and_then(|rate| ratio(rate, workers().count() as f64)),
            aborts,
            abort_share: ratio_of_counts(aborts.total(), executed + aborts.total()),
            reads_per_commit: ratio_of_counts(costs.reads, executed),
            writes_per_commit: ratio_of_counts(costs.writes, executed),
            messages_per_commit: ratio_of_counts(costs.messages, executed),
            costs,
            kinds: KindResult::all(benchmark, &recorder),
            machines: machines.iter().map(MachineResult::of).collect(),
            load_s,
            load_rows,
            load_rows_per_s: ratio(load_rows as f64, load_s),
            check: CheckResult::judge(benchmark, &ledger, audited),
            failures: failures(machines),
        })
    }

    /// Returns whether there were no failures and the check found no errors.
    pub fn is_right(&self) -> bool {
        self.failures.is_empty() && self.check.wrong.is_empty()
    }
}

fn failures(machines: &[MachineReport]) -> Vec<String> {
    let mut failures = Vec::new();
    for machine in machines {
        for (at, worker) in machine.workers.iter().enumerate() {
            if let Some(why) = &worker.failure {
                failures.push(format!("machine {}, worker {at}: {why}", machine.machine));
            }
        }
    }
    failures
}

impl KindResult {
    fn all(benchmark: &Benchmark, recorder: &Recorder) -> Vec<Self> {
        let kinds = benchmark.kinds().into_iter().enumerate();
        kinds
            .map(|(at, kind)| Self {
                kind: kind.to_owned(),
                executed: recorder.executed_of(at),
                committed: recorder.of(at, Outcome::Committed),
                not_found: recorder.of(at, Outcome::NotFound),
                declined: recorder.of(at, Outcome::Declined),
                latency_us: Latency::of_histogram(recorder.latency_ns(at), recorder.sampled_1_in()),
            })
            .collect()
    }
}

impl MachineResult {
    fn of(report: &MachineReport) -> Self {
        let worker = |report: &WorkerReport| {
            let executed = report.recorder.executed();
            let committed = report.recorder.total(Outcome::Committed);
            WorkerResult {
                executed,
                executed_per_s: ratio(executed as f64, report.duration_s),
                committed,
                committed_per_s: ratio(committed as f64, report.duration_s),
            }
        };
        Self {
            machine: report.machine.clone(),
            workers: report.workers.iter().map(worker).collect(),
        }
    }
}

impl CheckResult {
    /// Compares the result of the check with the effect of the transactions.
    pub fn judge(benchmark: &Benchmark, ledger: &Ledger, audited: &Audited) -> Self {
        let mut wrong: Vec<String> = audited.wrong.iter().cloned().collect();
        let money = benchmark.initial_cents().map(|initial| {
            let totals = ledger.totals(initial);
            // If accounts could not be read, there is no sum.
            if wrong.is_empty() && !totals.contains(&audited.cents) {
                wrong.push(format!(
                    "all balances together are {} cents, and committed transactions leave {} to {}",
                    audited.cents,
                    totals.start(),
                    totals.end()
                ));
            }
            Money {
                found_cents: audited.cents.to_string(),
                least_cents: totals.start().to_string(),
                most_cents: totals.end().to_string(),
            }
        });
        if wrong.is_empty() && audited.items != benchmark.items() {
            let (all, of) = (benchmark.items(), benchmark.item_name());
            wrong.push(format!("only {} of {all} {of} were checked", audited.items));
        }
        Self {
            items: audited.items,
            rows: audited.rows,
            pairs: audited.pairs,
            money,
            wrong,
        }
    }
}

impl fmt::Display for RunResult {
    /// Formats the table of a run.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            out,
            "{}, up to {} transactions in flight on a worker, {:.1} s measured",
            self.benchmark, self.concurrency, self.duration_s
        )?;
        writeln!(
            out,
            "seed {}; warm-up {:.1} s; options {}",
            self.seed, self.warmup_s, self.options
        )?;
        self.write_machines(out)?;
        self.write_kinds(out)?;
        let timed = self.kinds.iter();
        let timed = timed.filter_map(|kind| Some((&*kind.kind, kind.latency_us?)));
        write_latencies(out, 24, timed)?;
        self.write_facts(out)
    }
}

impl RunResult {
    fn write_machines(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            out,
            "\n  {:<16} {:>16} {:>16} {:>16}",
            "worker", "executed/s", "committed/s", "committed"
        )?;
        let mut line = |name: &str, rates: [Option<f64>; 2], count: u64| {
            let [executed, committed] = rates.map(|rate| rate.map_or_else(dash, whole));
            let count = grouped(count);
            writeln!(
                out,
                "  {name:<16} {executed:>16} {committed:>16} {count:>16}"
            )
        };
        for machine in &self.machines {
            for (at, worker) in machine.workers.iter().enumerate() {
                let name = format!("{}.{at}", machine.machine);
                let rates = [worker.executed_per_s, worker.committed_per_s];
                line(&name, rates, worker.committed)?;
            }
        }
        let rates = [self.executed_per_s, self.committed_per_s];
        line("total", rates, self.committed)
    }

    fn write_kinds(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            out,
            "\n  {:<24} {:>12} {:>12} {:>12} {:>12}",
            "transaction", "executed", "committed", "not found", "declined"
        )?;
        for kind in &self.kinds {
            let counts = [kind.executed, kind.committed, kind.not_found, kind.declined];
            let [executed, committed, not_found, declined] = counts.map(grouped);
            writeln!(
                out,
                "  {:<24} {executed:>12} {committed:>12} {not_found:>12} {declined:>12}",
                kind.kind
            )?;
        }
        Ok(())
    }

    fn write_facts(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |of: Option<f64>| of.map_or_else(dash, |number| format!("{number:.3}"));
        writeln!(out)?;
        let mut line = |name: &str, text: String| writeln!(out, "  {name:<18} {text}");
        let aborts = &self.aborts;
        let text = format!(
            "{} locked, {} changed, {} timed out, {} busy: {} of all attempts",
            grouped(aborts.locked),
            grouped(aborts.changed),
            grouped(aborts.timed_out),
            grouped(aborts.busy),
            self.abort_share.map_or_else(dash, percent)
        );
        line("tried again", text)?;
        let text = format!(
            "{} one-sided reads, {} log records, {} messages",
            number(self.reads_per_commit),
            number(self.writes_per_commit),
            number(self.messages_per_commit)
        );
        line("per commit", text)?;
        if let Some(slices) = &self.slices {
            line("slices, executed", slices.to_string())?;
        }
        let rate = self.load_rows_per_s.map_or_else(dash, whole);
        line("load", format!("{:.1} s, {rate} rows/s", self.load_s))?;
        let check = &self.check;
        let text = format!(
            "{} items, {} rows, {} pairs walked",
            grouped(check.items),
            grouped(check.rows),
            grouped(check.pairs)
        );
        line("checked at the end", text)?;
        if let Some(money) = &check.money {
            let (found, least) = (&money.found_cents, &money.least_cents);
            line("money", format!("{found} cents, {least} expected"))?;
        }
        for why in &self.failures {
            line("FAILED", why.clone())?;
        }
        for why in &check.wrong {
            line("WRONG", why.clone())?;
        }
        Ok(())
    }
}
