//! Results of a run of transactions: a table for people and JSON for programs, in the form of [`crate::report`]. The
//! test `the_json_fields_are_pinned` pins the names of the JSON fields.
//!
//! A transaction counts as *executed* with any outcome, and each of them is a commit of the platform: that a row is
//! absent, or that an account has insufficient funds, is valid only because the commit validated it. Transactions that
//! had their intended effect are *committed*. Numbers "per commit" are per commit of the platform.

use std::fmt;

use serde::Serialize;

use super::Benchmark;
use super::audit::AuditResult;
use super::costs::{Aborts, Costs, Counters};
use super::driver::Ran;
use crate::recorder::{LatencyUs, Outcome, Recorder, RecorderError};
use crate::report::{self, Figure, Measured, Merged, ratio, ratio_of_counts, write_latencies};
use crate::slices::SliceRates;
use crate::smallbank::Ledger;
use crate::text::{cells, dash, decimal, grouped, headings, percent, table, whole};

/// The part of one machine in a run.
pub type MachineReport = report::MachineReport<Ran>;

/// The setup of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Setup {
    /// The benchmark and its options.
    #[serde(flatten)]
    pub benchmark: Benchmark,
    /// Seed of the population and of all random choices.
    pub seed: u64,
    /// Maximum number of transactions in flight on each worker.
    pub concurrency: usize,
    /// Parts of the conflict avoidance that were switched off.
    pub without: Vec<String>,
    /// Duration of the warm-up, in seconds.
    pub warmup_s: f64,
}

/// The result of one benchmark on one cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunResult {
    /// The setup.
    #[serde(flatten)]
    pub setup: Setup,
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
    /// The same transactions as tasks, if they were run.
    pub by_tasks: Option<TasksResult>,
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

/// The result of the transactions as tasks, after those by continuations.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TasksResult {
    /// Transactions executed, with any outcome.
    pub executed: u64,
    /// Executed transactions per second.
    pub executed_per_s: Option<f64>,
    /// Committed transactions per second.
    pub committed_per_s: Option<f64>,
    /// Share of all attempts that met a conflict.
    pub abort_share: Option<f64>,
    /// Executed transactions per second, divided by those by continuations.
    pub of_continuations: Option<f64>,
}

impl TasksResult {
    fn new(
        kinds: usize,
        machines: &[MachineReport],
        by_continuations: Option<f64>,
    ) -> Result<Self, RecorderError> {
        let merged = Merged::of(kinds, machines)?;
        let recorder = &merged.recorder;
        let (executed, aborts) = (recorder.executed(), recorder.counters.aborts.total());
        let executed_per_s = merged.per_s(executed);
        Ok(Self {
            executed,
            executed_per_s,
            committed_per_s: merged.per_s(recorder.total(Outcome::Committed)),
            abort_share: ratio_of_counts(aborts, executed + aborts),
            of_continuations: executed_per_s
                .zip(by_continuations)
                .and_then(|(tasks, continuations)| ratio(tasks, continuations)),
        })
    }
}

/// The result of one kind of transaction.
#[derive(Clone, Debug, PartialEq, Serialize)]
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
    pub latency_us: Option<LatencyUs>,
}

/// The part of one machine in a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MachineResult {
    /// Name of the machine.
    pub machine: String,
    /// Its workers, in their order.
    pub workers: Vec<WorkerResult>,
}

/// The part of one worker in a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
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

/// The sum of all money, in cents, as text: many programs that read JSON would round numbers of this size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Money {
    /// Sum of the balances of all accounts.
    pub found_cents: String,
    /// Lower bound of the expected sum: the loaded sum, plus the changes by committed transactions. The bounds differ
    /// only if the outcome of some transactions is unknown.
    pub least_cents: String,
    /// Upper bound of the expected sum.
    pub most_cents: String,
}

impl RunResult {
    /// Merges the reports of the machines of a run, and of a run as tasks after it, and judges the result of the check.
    ///
    /// # Errors
    /// If the machines' recorders cannot be merged.
    pub fn new(
        setup: &Setup,
        machines: &[MachineReport],
        by_tasks: Option<&[MachineReport]>,
        audited: &AuditResult,
    ) -> Result<Self, RecorderError> {
        let benchmark = &setup.benchmark;
        let merged = Merged::of(benchmark.kinds().len(), machines)?;
        let (recorder, Counters { aborts, costs }) = (&merged.recorder, merged.recorder.counters);
        let (mut ledger, mut workers) = (Ledger::default(), 0u32);
        for worker in machines.iter().flat_map(|machine| &machine.workers) {
            ledger.merge(&worker.ledger);
            workers += 1;
        }
        let later = by_tasks.unwrap_or_default();
        for worker in later.iter().flat_map(|machine| &machine.workers) {
            ledger.merge(&worker.ledger);
        }
        let (executed, committed) = (recorder.executed(), recorder.total(Outcome::Committed));
        let committed_per_s = merged.per_s(committed);
        let per_commit = |count: u64| ratio_of_counts(count, executed);
        let executed_per_s = merged.per_s(executed);
        let by_tasks =
            by_tasks.map(|all| TasksResult::new(benchmark.kinds().len(), all, executed_per_s));
        Ok(Self {
            setup: setup.clone(),
            duration_s: merged.duration_s,
            executed,
            executed_per_s,
            slices: merged.slices.rates(),
            committed,
            committed_per_s,
            committed_per_s_per_worker: committed_per_s
                .and_then(|rate| ratio(rate, f64::from(workers))),
            aborts,
            abort_share: ratio_of_counts(aborts.total(), executed + aborts.total()),
            reads_per_commit: per_commit(costs.reads),
            writes_per_commit: per_commit(costs.writes),
            messages_per_commit: per_commit(costs.messages),
            costs,
            by_tasks: by_tasks.transpose()?,
            kinds: KindResult::all(benchmark, recorder),
            machines: machines.iter().map(MachineResult::of).collect(),
            load_s: merged.load_s,
            load_rows: merged.loaded,
            load_rows_per_s: merged.loaded_per_s(),
            check: CheckResult::judge(benchmark, &ledger, audited),
            failures: [failures(machines), failures(later)].concat(),
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
            if let Some(why) = &worker.transactions.failure {
                failures.push(format!("machine {}, worker {at}: {why}", machine.machine));
            }
        }
    }
    failures
}

impl KindResult {
    fn all(benchmark: &Benchmark, recorder: &Recorder<Counters>) -> Vec<Self> {
        let kinds = benchmark.kinds().iter().enumerate();
        kinds
            .map(|(at, kind)| Self {
                kind: (*kind).to_owned(),
                executed: recorder.executed_of(at),
                committed: recorder.of(at, Outcome::Committed),
                not_found: recorder.of(at, Outcome::NotFound),
                declined: recorder.of(at, Outcome::Declined),
                latency_us: recorder.latency_us(at),
            })
            .collect()
    }
}

impl MachineResult {
    fn of(report: &MachineReport) -> Self {
        let worker = |ran: &Ran| {
            let ran = &ran.transactions;
            let executed = ran.recorder.executed();
            let committed = ran.recorder.total(Outcome::Committed);
            WorkerResult {
                executed,
                executed_per_s: ratio(executed as f64, ran.duration_s),
                committed,
                committed_per_s: ratio(committed as f64, ran.duration_s),
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
    pub fn judge(benchmark: &Benchmark, ledger: &Ledger, audited: &AuditResult) -> Self {
        let mut wrong: Vec<String> = audited.wrong.iter().cloned().collect();
        let money = benchmark.initial_cents().map(|initial| {
            let totals = ledger.totals(initial);
            // If accounts could not be read, there is no sum.
            if wrong.is_empty() && !totals.contains(&audited.cents) {
                wrong.push(format!(
                    "all balances together are {} cents, but the committed transactions imply {} to {} cents",
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

impl Measured for RunResult {
    fn what(&self) -> String {
        self.setup.benchmark.name().to_owned()
    }

    fn figures(&self) -> Vec<Figure> {
        let slices = self.slices.as_ref().map(SliceRates::range);
        let mut figures = vec![
            Figure::new("committed/s", self.committed_per_s),
            Figure::rate("executed/s", self.executed_per_s, slices),
            Figure::new("share of attempts made again", self.abort_share),
        ];
        if let Some(tasks) = &self.by_tasks {
            figures.push(Figure::new("as tasks, executed/s", tasks.executed_per_s));
        }
        let kinds = self.kinds.iter();
        figures.extend(kinds.flat_map(|it| Figure::latencies(&it.kind, it.latency_us)));
        figures.push(Figure::new("load, rows/s", self.load_rows_per_s));
        figures
    }
}

impl fmt::Display for RunResult {
    /// Formats the table of a run.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let setup = &self.setup;
        writeln!(
            out,
            "{}, up to {} transactions in flight on a worker, {:.1} s measured",
            self.what(),
            setup.concurrency,
            self.duration_s
        )?;
        writeln!(
            out,
            "seed {}; warm-up {:.1} s; options {}",
            setup.seed,
            setup.warmup_s,
            setup.benchmark.options()
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
        let line = |name: String, rates: [Option<f64>; 2], count: u64| {
            let [executed, committed] = rates.map(|rate| rate.map_or_else(dash, whole));
            vec![name, executed, committed, grouped(count)]
        };
        let mut lines = vec![headings("worker|executed/s|committed/s|committed")];
        for machine in &self.machines {
            for (at, worker) in machine.workers.iter().enumerate() {
                let name = format!("{}.{at}", machine.machine);
                let rates = [worker.executed_per_s, worker.committed_per_s];
                lines.push(line(name, rates, worker.committed));
            }
        }
        let rates = [self.executed_per_s, self.committed_per_s];
        lines.push(line("total".to_owned(), rates, self.committed));
        write!(out, "\n{}", table(&lines, [16, 15]))
    }

    fn write_kinds(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = vec![headings(
            "transaction|executed|committed|not found|declined",
        )];
        for kind in &self.kinds {
            let counts = [kind.executed, kind.committed, kind.not_found, kind.declined];
            let [executed, committed, not_found, declined] = counts.map(grouped);
            lines.push(cells![kind.kind, executed, committed, not_found, declined]);
        }
        write!(out, "\n{}", table(&lines, [24, 11]))
    }

    fn write_facts(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out)?;
        let mut line = |name: &str, text: String| writeln!(out, "  {name:<18} {text}");
        let aborts = &self.aborts;
        let counts = [aborts.locked, aborts.changed, aborts.timed_out, aborts.busy];
        let [locked, changed, timed_out, busy] = counts.map(grouped);
        let share = self.abort_share.map_or_else(dash, percent);
        let text = format!(
            "{locked} locked, {changed} changed, {timed_out} timed out, {busy} for lack of room; in total {share} of all attempts"
        );
        line("tried again", text)?;
        let text = format!(
            "{} one-sided reads, {} log records, {} messages",
            decimal(self.reads_per_commit, 3),
            decimal(self.writes_per_commit, 3),
            decimal(self.messages_per_commit, 3)
        );
        line("per commit", text)?;
        if let Some(tasks) = &self.by_tasks {
            let rates = [tasks.executed_per_s, tasks.committed_per_s];
            let [executed, committed] = rates.map(|rate| rate.map_or_else(dash, whole));
            let share = tasks.of_continuations.map_or_else(dash, percent);
            let aborts = tasks.abort_share.map_or_else(dash, percent);
            let text = format!(
                "{executed} executed/s, {committed} committed/s: {share} of the rate by continuations; {aborts} of \
                 attempts tried again"
            );
            line("as tasks", text)?;
        }
        if let Some(slices) = &self.slices {
            line("slices, executed", slices.to_string())?;
        }
        let rate = self.load_rows_per_s.map_or_else(dash, whole);
        line("load", format!("{:.1} s, {rate} rows/s", self.load_s))?;
        let check = &self.check;
        let [items, rows, pairs] = [check.items, check.rows, check.pairs].map(grouped);
        let text = format!("{items} items, {rows} rows, {pairs} pairs walked");
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
