//! Both benchmarks on three machines of this process: every transaction is executed, and afterwards the tables
//! contain the result of the committed transactions.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use farm_bench::closed_loop::Extent;
use farm_bench::load;
use farm_bench::oltp::attempt::{self, Stop, Trail};
use farm_bench::oltp::audit::{self, Audit, AuditResult};
use farm_bench::oltp::driver::{self, Ran, Run};
use farm_bench::oltp::report::{CheckResult, MachineReport, RunResult, Setup};
use farm_bench::oltp::{Benchmark, Drawn, Outcome, Table};
use farm_bench::tatp::Transaction;
use farm_bench::{smallbank, tatp};
use farm_core::config::Config;
use farm_core::machine::Machine;
use farm_core::worker::{Cont, Worker};
use farm_kv::config::TableConfig;
use farm_kv::{TableId, TableSpec, blocking};
use farm_testing::TestCluster;
use farm_txn::BackoffConfig;

const MACHINES: u16 = 3;
const SEED: u64 = 11;
/// Time limit of a wait.
const PATIENCE: Duration = Duration::from_secs(60);

/// A cluster with the tables of a benchmark.
struct Cluster {
    cluster: TestCluster,
    workers: u64,
    benchmark: Benchmark,
    tables: Vec<(Table, TableId)>,
}

impl Cluster {
    fn start(name: &str, workers: u16, benchmark: Benchmark) -> Self {
        let mut config = Config::default_for(MACHINES, workers);
        config.memory.region_bytes = 8 << 20;
        config.memory.per_machine_bytes = 32 << 20;
        config.rings.log_bytes = 1 << 20;
        config.worker.pin = false;
        let table = TableConfig {
            value_bytes: 40,
            ..TableConfig::default()
        };
        let config = config.with_section(table);
        let cluster = TestCluster::start(name, config, |worker| {
            farm_txn::attach(worker);
            farm_kv::attach(worker);
        });
        let workers = u64::from(MACHINES * workers);
        let open = |table: &Table| {
            let rows = benchmark.expected_rows(table);
            let id = u16::from(table.id);
            let spec = TableSpec::sized(id, 6, table.row_bytes, workers as u32, rows, 0.9);
            (
                *table,
                blocking::open(&cluster.machines, spec.unwrap()).unwrap(),
            )
        };
        let tables: Vec<_> = benchmark.tables().iter().map(open).collect();
        let attached = tables.clone();
        cluster.on_all(move |worker| {
            attempt::attach(worker, attached.iter().copied(), false, None);
        });
        Self {
            cluster,
            workers,
            benchmark,
            tables,
        }
    }

    /// Starts work on every worker at the same time, and returns their results. The second argument is the worker's
    /// number.
    fn start_on_all<T: Send + 'static>(
        &self,
        start: impl Fn(&mut Worker, u64, Sender<T>) + Send + Sync + 'static,
    ) -> Vec<T> {
        let start = Arc::new(start);
        let mut waiting: Vec<(&Machine, Receiver<T>)> = Vec::new();
        for machine in &self.cluster.machines {
            for index in 0..machine.workers() {
                let (answer, answered) = channel();
                let (start, number) = (Arc::clone(&start), waiting.len() as u64);
                machine
                    .submit(index, move |worker| start(worker, number, answer))
                    .unwrap();
                waiting.push((machine, answered));
            }
        }
        let answers = waiting.into_iter();
        answers
            .map(|(machine, answered)| machine.wait_for(&answered).unwrap())
            .collect()
    }

    fn load(&self) {
        let (benchmark, workers) = (self.benchmark.clone(), self.workers);
        let progress = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&progress);
        let loaded = self.start_on_all(move |worker, number, answer| {
            let rows = benchmark.pairs(SEED, benchmark.share(number, workers));
            let done = Box::new(move |loaded| answer.send(loaded).unwrap());
            load::load(worker, rows, 16, Arc::clone(&counted), done);
        });
        let mut rows = 0;
        for loaded in loaded {
            assert_eq!(loaded.failure, None);
            rows += loaded.recorder.executed();
        }
        let all =
            (0..self.benchmark.items()).map(|item| self.benchmark.rows(SEED, item).len() as u64);
        assert_eq!((rows, progress.load(Ordering::Relaxed)), (all.sum(), rows));
    }

    fn run(&self, extent: Extent, concurrency: usize, tasks: bool) -> Vec<Ran> {
        let stream = self.benchmark.stream().unwrap();
        self.start_on_all(move |worker, number, answer| {
            let run = Run {
                stream: stream.clone(),
                seed: SEED,
                worker: number,
                avoidance: BackoffConfig {
                    concurrency,
                    ..BackoffConfig::default()
                },
                extent,
                sampled_1_in: 1,
                tasks,
            };
            driver::run(worker, run, Box::new(move |ran| answer.send(ran).unwrap()));
        })
    }

    fn audit(&self) -> AuditResult {
        let (benchmark, workers) = (self.benchmark.clone(), self.workers);
        let all = self.start_on_all(move |worker, number, answer| {
            let audit = Audit {
                items: benchmark.share(number, workers),
                benchmark: benchmark.clone(),
                seed: SEED,
                in_flight: 16,
            };
            let done = Box::new(move |found| answer.send(found).unwrap());
            audit::audit(worker, audit, done);
        });
        let mut sum = AuditResult::default();
        all.into_iter().for_each(|found| sum += found);
        sum.pairs = self.pairs();
        sum
    }

    /// Walks all tables and returns the number of pairs. Retries, because the last transactions may still hold
    /// locks.
    fn pairs(&self) -> u64 {
        let until = Instant::now() + PATIENCE;
        loop {
            let tables: Vec<TableId> = self.tables.iter().map(|(_, table)| *table).collect();
            let walked = self
                .cluster
                .on_all(move |worker| audit::walk(worker, &tables));
            match walked.into_iter().sum::<Result<u64, String>>() {
                Ok(pairs) => return pairs,
                Err(why) => assert!(Instant::now() < until, "{why}"),
            }
        }
    }

    /// Runs, and judges what it left.
    fn judged(&self, extent: Extent, concurrency: usize) -> RunResult {
        self.judged_run(extent, concurrency, false)
    }

    fn judged_run(&self, extent: Extent, concurrency: usize, tasks: bool) -> RunResult {
        let machine = MachineReport {
            machine: "all".into(),
            load_s: 0.0,
            loaded: 0,
            tables: (),
            workers: self.run(extent, concurrency, tasks),
        };
        let setup = Setup {
            benchmark: self.benchmark.clone(),
            seed: SEED,
            concurrency,
            without: vec![],
            warmup_s: 0.0,
        };
        let result = RunResult::new(&setup, &[machine], None, &self.audit()).unwrap();
        assert!(result.is_right(), "{result}");
        result
    }

    fn stop(self) {
        self.cluster.stop();
    }
}

/// So many transactions of every worker.
fn transactions(each: u64) -> Extent {
    Extent {
        operations: Some(each),
        ..Extent::default()
    }
}

/// Clusters are one at a time: each has threads enough.
static ONE: Mutex<()> = Mutex::new(());

fn tatp(subscribers: u32) -> Benchmark {
    Benchmark::Tatp(tatp::Options {
        subscribers,
        ..Default::default()
    })
}

fn smallbank(accounts: u64, hot_accounts: u64) -> Benchmark {
    Benchmark::Smallbank(smallbank::Options {
        accounts,
        hot_accounts,
        ..Default::default()
    })
}

/// Checks that the run executed exactly the transactions that the streams drew, by kind.
#[track_caller]
fn assert_drawn(cluster: &Cluster, result: &RunResult, each: u64) {
    let stream = cluster.benchmark.stream().unwrap();
    let mut drawn = vec![0; stream.kinds().len()];
    for worker in 0..cluster.workers {
        let mut rng = farm_bench::ycsb::stream::worker_rng(SEED, worker);
        for _ in 0..each {
            drawn[stream.next(&mut rng).kind()] += 1;
        }
    }
    let executed: Vec<u64> = result.kinds.iter().map(|kind| kind.executed).collect();
    assert_eq!(executed, drawn);
    assert_eq!(result.executed, each * cluster.workers);
}

/// Returns how many of the drawn transactions of a kind find their optional row among the loaded rows.
fn loaded_for(cluster: &Cluster, kind: tatp::Kind, each: u64) -> u64 {
    let stream = cluster.benchmark.stream().unwrap();
    let mut found = 0;
    for worker in 0..cluster.workers {
        let mut rng = farm_bench::ycsb::stream::worker_rng(SEED, worker);
        for _ in 0..each {
            let Drawn::Tatp(drawn) = stream.next(&mut rng) else {
                panic!("the stream drew a transaction of another benchmark");
            };
            let is_there = match drawn {
                Transaction::GetAccessData { s_id, ai_type } => {
                    tatp::rows(SEED, s_id).access_info[usize::from(ai_type) - 1].is_some()
                }
                Transaction::UpdateSubscriberData { s_id, sf_type, .. } => {
                    tatp::rows(SEED, s_id).special_facility[usize::from(sf_type) - 1].is_some()
                }
                _ => continue,
            };
            found += u64::from(is_there && drawn.kind() == kind);
        }
    }
    found
}

#[test]
fn tatp_leaves_consistent_tables_on_three_machines() {
    const EACH: u64 = 1_500;
    let _one = ONE.lock();
    let cluster = Cluster::start("oltp-tatp", 1, tatp(2_000));
    cluster.load();
    let before = cluster.audit();
    assert_eq!((before.items, before.wrong.clone()), (2_000, None));
    let result = cluster.judged(transactions(EACH), 16);
    assert_drawn(&cluster, &result, EACH);
    let kind = |of: tatp::Kind| &result.kinds[of.index()];
    // These kinds only need rows that are never removed, so they always commit.
    for of in [tatp::Kind::GetSubscriberData, tatp::Kind::UpdateLocation] {
        assert_eq!(kind(of).committed, kind(of).executed, "{of:?}");
    }
    // Access infos and special facilities are neither inserted nor removed: the loaded ones are found.
    for of in [tatp::Kind::GetAccessData, tatp::Kind::UpdateSubscriberData] {
        assert_eq!(kind(of).committed, loaded_for(&cluster, of, EACH), "{of:?}");
        let share = kind(of).committed as f64 / kind(of).executed as f64;
        assert!((share - 0.625).abs() < 0.15, "{of:?}: {share}");
        assert_eq!(kind(of).declined, 0);
    }
    // Only these two kinds insert and delete pairs.
    let inserted = kind(tatp::Kind::InsertCallForwarding).committed;
    let deleted = kind(tatp::Kind::DeleteCallForwarding).committed;
    assert!(inserted > 0 && deleted > 0);
    assert_eq!(result.check.pairs, before.pairs + inserted - deleted);
    let costs = &result.costs;
    assert!(costs.reads > 0 && costs.messages > 0, "{costs:?}");
    assert_eq!(
        costs.writes,
        costs.lock_records + costs.commit_records + costs.abort_records + costs.truncate_records
    );
    cluster.stop();
}

#[test]
fn smallbank_balances_add_up_on_three_machines() {
    const EACH: u64 = 600;
    let _one = ONE.lock();
    let cluster = Cluster::start("oltp-bank", 1, smallbank(1_000, 40));
    cluster.load();
    let result = cluster.judged(transactions(EACH), 8);
    assert_drawn(&cluster, &result, EACH);
    // No row is ever missing. Only payments may be declined.
    assert!(result.kinds.iter().all(|kind| kind.not_found == 0));
    let payments = &result.kinds[smallbank::Kind::SendPayment.index()];
    let declined: u64 = result.kinds.iter().map(|kind| kind.declined).sum();
    assert_eq!(declined, payments.declined);
    // Two tables, with one row per account each.
    assert_eq!((result.check.items, result.check.pairs), (1_000, 2_000));
    let money = result.check.money.as_ref().unwrap();
    assert_eq!(money.least_cents, money.most_cents);
    cluster.stop();
}

#[test]
fn transactions_as_tasks_have_the_same_effects() {
    const EACH: u64 = 400;
    let _one = ONE.lock();
    for (name, benchmark) in [
        ("oltp-tatp-tasks", tatp(500)),
        ("oltp-bank-tasks", smallbank(64, 4)),
    ] {
        let cluster = Cluster::start(name, 2, benchmark);
        cluster.load();
        let before = cluster.audit().pairs;
        let result = cluster.judged_run(transactions(EACH), 8, true);
        assert_drawn(&cluster, &result, EACH);
        if let Benchmark::Tatp(_) = cluster.benchmark {
            let kind = |of: tatp::Kind| result.kinds[of.index()].committed;
            let inserted = kind(tatp::Kind::InsertCallForwarding);
            let deleted = kind(tatp::Kind::DeleteCallForwarding);
            assert!(inserted > 0 && deleted > 0);
            assert_eq!(result.check.pairs, before + inserted - deleted);
        }
        cluster.stop();
    }
}

/// All workers access four hot accounts. Transactions that conflict are retried until they commit.
#[test]
fn conflicting_transactions_commit_on_machines_with_two_workers() {
    const EACH: u64 = 60;
    let _one = ONE.lock();
    let cluster = Cluster::start("oltp-hot", 2, smallbank(64, 4));
    cluster.load();
    let result = cluster.judged(transactions(EACH), 8);
    assert_drawn(&cluster, &result, EACH);
    assert!(result.aborts.total() > 0, "{result}");
    cluster.stop();
}

/// The recorder counts only transactions after the warm-up; the ledger also counts those of the warm-up.
#[test]
fn the_ledger_counts_the_warm_up_and_the_recorder_does_not() {
    let _one = ONE.lock();
    let cluster = Cluster::start("oltp-warm", 1, smallbank(100, 10));
    cluster.load();
    let all_warm = Extent {
        warmup: Duration::from_millis(200),
        duration: Some(Duration::ZERO),
        ..Extent::default()
    };
    let ran = cluster.run(all_warm, 4, false);
    let mut ledger = smallbank::Ledger::default();
    for ran in &ran {
        assert_eq!(ran.transactions.failure, None);
        ledger.merge(&ran.ledger);
        // Those that were in flight when the warm-up ended.
        assert!(ran.transactions.recorder.executed() <= 4);
    }
    let check = CheckResult::judge(&cluster.benchmark, &ledger, &cluster.audit());
    assert_eq!(check.wrong, Vec::<String>::new());
    let initial = cluster.benchmark.initial_cents().unwrap();
    assert_ne!(check.money.unwrap().found_cents, initial.to_string());
    // A run that nobody accounts for is found.
    let ran = cluster.run(transactions(100), 4, false);
    let committed = |ran: &Ran| ran.transactions.recorder.total(Outcome::Committed);
    assert!(ran.iter().all(|ran| committed(ran) > 0));
    let check = CheckResult::judge(&cluster.benchmark, &ledger, &cluster.audit());
    assert!(
        check.wrong[0].contains("all balances together"),
        "{check:?}"
    );
    cluster.stop();
}

/// Before a failure of a transaction is reported, the rows that it read are validated, because rows read at different
/// times may be inconsistent.
#[test]
fn a_failure_is_reported_once_its_rows_are_validated() {
    let _one = ONE.lock();
    let cluster = Cluster::start("oltp-failure", 1, smallbank(4, 1));
    cluster.load();
    let failed = cluster.start_on_all(|worker, number, answer: Sender<(u64, Result<(), Stop>)>| {
        if number > 0 {
            return answer.send((0, Ok(()))).unwrap();
        }
        // An account that was not loaded.
        let missing = Drawn::SmallBank(smallbank::Transaction::Balance { account: 4_000 });
        worker.put_layer(Box::new(answer));
        attempt::run(worker, missing, 1, Cont::new(has_failed, 0));
    });
    fn has_failed(worker: &mut Worker, _: u64, (_, result): (Box<Trail>, Result<(), Stop>)) {
        let validated = farm_txn::counters(worker).aborts.other;
        let answer = worker.take_layer::<Sender<(u64, Result<(), Stop>)>>();
        answer.send((validated, result)).unwrap();
    }
    let (validated, result) = &failed[0];
    assert!(matches!(result, Err(Stop::Failed(_))), "{result:?}");
    assert_eq!(
        *validated, 1,
        "the rows of the failed transaction must be validated once"
    );
    cluster.stop();
}
