//! `farm node`: one machine, alone or driven by a launcher.

mod oltp;

use std::io::{BufRead, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use anyhow::{Context, bail};
use farm_bench::closed_loop::{Bounds, Ran};
use farm_bench::ycsb::driver::{self, Common, Load, Run};
use farm_bench::ycsb::inserts::{InsertTracker, WorkerSpan};
use farm_bench::ycsb::properties::Properties;
use farm_bench::ycsb::report::{Counters, MachineReport, TableFacts};
use farm_bench::ycsb::spec::WorkloadSpec;
use farm_check::workload;
use farm_core::config::Config;
use farm_core::config::host::{check_machine_memory, probe};
use farm_core::fabric::{ConnectError, Departure, Patience};
use farm_core::ids::MachineId;
use farm_core::machine::{Machine, MachineError};
use farm_core::worker::{Cont, Worker};
use farm_kv::ops::OwnShards;
use farm_kv::{KvError, TableId, TableSpec};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::interrupts;
use super::protocol::{News, Order, WorkloadOrder};
use crate::Usage;
use crate::cli::NodeArgs;

/// How long a machine waits for the others.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often a node looks whether it was interrupted, or its machine has stopped.
const LOOK: Duration = Duration::from_millis(20);
/// How long freed objects may take to the worker whose block they are in.
const SETTLE: Duration = Duration::from_secs(5);
/// How often it tells how far a load is.
const PROGRESS: Duration = Duration::from_millis(100);

/// A driven node was asked to stop by SIGTERM.
#[derive(Debug, thiserror::Error)]
#[error("it was asked to stop (SIGTERM)")]
struct Terminated;

/// Why a machine stopped that was not asked to: its failure, and what its peers reported.
fn why_stopped(machine: &Machine) -> String {
    let departed = machine.departed();
    // What a peer reported says more than that it is lost.
    let peers = departed
        .iter()
        .filter(|peer| peer.how == Departure::Left || peer.why.is_some())
        .map(ToString::to_string);
    let reasons: Vec<String> = machine
        .control()
        .failure()
        .into_iter()
        .chain(peers)
        .collect();
    match reasons.is_empty() {
        true => "it was asked to stop".to_owned(),
        false => reasons.join("; "),
    }
}

/// Runs `farm node`.
pub(crate) fn run(args: &NodeArgs) -> anyhow::Result<ExitCode> {
    let config = args.config.resolve()?;
    let id = match (args.machine, config.machines.as_slice()) {
        (Some(id), _) => id,
        (None, [only]) => only.id,
        (None, machines) => {
            let ids: Vec<String> = machines
                .iter()
                .map(|machine| machine.id.get().to_string())
                .collect();
            let why = format!(
                "the configuration has {} machines; say which one to run with --machine, one of {}",
                ids.len(),
                ids.join(", ")
            );
            return Err(Usage::error(why));
        }
    };
    if config.machine(id).is_none() {
        return Err(Usage::error(MachineError::NoSuchMachine(id).to_string()));
    }
    check_machine_memory(&config, id, &probe(&config.memory.dir))?;
    if !args.driven {
        return alone(&config, id).map(|()| ExitCode::SUCCESS);
    }
    Ok(match driven(&config, id, args.judged) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Of a machine that did not start. All else was reported before the machine ended.
            if !error.is::<Reported>() {
                report_failure(&error);
            }
            ExitCode::FAILURE
        }
    })
}

/// The node failed, and the launcher knows why.
#[derive(Debug, thiserror::Error)]
#[error("reported to the launcher")]
struct Reported;

fn report_failure(error: &anyhow::Error) {
    tell(&News::Failed {
        why: crate::with_causes(error),
    });
}

/// Starts a machine; returns `None` if it was told to stop before it had met the others. Its workers get the
/// handlers of judged workloads only if `judged`.
fn start(
    config: &Config,
    id: MachineId,
    cancelled: &AtomicBool,
    judged: bool,
) -> anyhow::Result<Option<Machine>> {
    let attach = Arc::new(move |worker: &mut Worker| {
        farm_txn::attach(worker);
        farm_kv::attach(worker);
        if judged {
            workload::attach(worker);
        }
    });
    let patience = Patience {
        most: PATIENCE,
        cancelled: Some(cancelled),
    };
    match Machine::start(config, id, attach, patience) {
        Err(MachineError::Connect(ConnectError::Cancelled)) => Ok(None),
        started => Ok(Some(
            started.with_context(|| format!("machine {id} cannot start"))?,
        )),
    }
}

fn alone(config: &Config, id: MachineId) -> anyhow::Result<()> {
    let interrupted = interrupts()?;
    let name = &config.cluster.name;
    if config.machines.len() > 1 {
        let seconds = PATIENCE.as_secs();
        crate::say(format_args!(
            "machine {id} of cluster \"{name}\" waits up to {seconds} s for the others"
        ));
    }
    let Some(machine) = start(config, id, &interrupted, false)? else {
        crate::say(format_args!(
            "machine {id} stops: it was asked to while it waited for the others"
        ));
        return Ok(());
    };
    crate::say(format_args!(
        "machine {id} of cluster \"{}\" runs; stop it with Ctrl-C",
        config.cluster.name
    ));
    while !machine.control().is_stopping() {
        if interrupted.load(Ordering::Relaxed) {
            crate::say(format_args!(
                "machine {id} stops: it was asked to (SIGINT or SIGTERM)"
            ));
            return Ok(machine.stop()?);
        }
        std::thread::park_timeout(LOOK);
    }
    let why = why_stopped(&machine);
    match machine.join() {
        Ok(()) => {
            crate::say(format_args!(
                "machine {id} stops: {why}; memory is not replicated, so the cluster is started as a whole"
            ));
            Ok(())
        }
        Err(error) => Err(anyhow::Error::new(error).context(format!("machine {id} stops: {why}"))),
    }
}

/// Follows the launcher's orders until its input ends.
fn driven(config: &Config, id: MachineId, judged: bool) -> anyhow::Result<()> {
    // A terminal sends its interrupts to the launcher too, and that decides.
    let ignored = Arc::new(AtomicBool::new(false));
    let terminated = Arc::new(AtomicBool::new(false));
    for (signal, flag) in [(SIGINT, ignored), (SIGTERM, Arc::clone(&terminated))] {
        signal_hook::flag::register(signal, flag).context("cannot handle signals")?;
    }
    let (orders, abandoned) = listen();
    let Some(machine) = start(config, id, &abandoned, judged)? else {
        return Ok(());
    };
    tell(&News::Ready);
    let driven = Driven::new(config, id, &machine, judged, abandoned, terminated);
    let Err(error) = driven.follow_all(&orders) else {
        return Ok(machine.stop()?);
    };
    // The launcher learns why before the other machines do, which stop because of it.
    report_failure(&error);
    if error.is::<Terminated>() {
        machine.stop()?;
    } else {
        machine.stop_because(&crate::with_causes(&error));
    }
    bail!(Reported)
}

/// The launcher's orders, and whether they have ended: then nobody waits for what is being done.
fn listen() -> (Receiver<Order>, Arc<AtomicBool>) {
    let (send, orders) = channel();
    let abandoned = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&abandoned);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            match serde_json::from_str(&line) {
                Ok(order) => {
                    if send.send(order).is_err() {
                        break;
                    }
                }
                Err(error) => {
                    tracing::error!(%error, line, "an order that is none");
                    break;
                }
            }
        }
        ended.store(true, Ordering::Release);
    });
    (orders, abandoned)
}

fn tell(news: &News) {
    let mut line = serde_json::to_vec(news).expect("news are plain data");
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    // A launcher that is gone hears nothing; the end of the input stops this node.
    let _ = out.write_all(&line).and_then(|()| out.flush());
}

/// A machine under a launcher.
struct Driven<'a> {
    config: &'a Config,
    id: MachineId,
    machine: &'a Machine,
    /// The handlers of judged workloads are attached.
    judged: bool,
    span: WorkerSpan,
    table: Option<(TableId, TableSpec)>,
    oltp: Option<oltp::Oltp>,
    tracker: Option<Arc<InsertTracker>>,
    loaded: (u64, f64),
    /// The launcher is gone.
    abandoned: Arc<AtomicBool>,
    /// The node was asked to stop by a signal.
    terminated: Arc<AtomicBool>,
}

impl<'a> Driven<'a> {
    fn new(
        config: &'a Config,
        id: MachineId,
        machine: &'a Machine,
        judged: bool,
        abandoned: Arc<AtomicBool>,
        terminated: Arc<AtomicBool>,
    ) -> Self {
        let before = config.machines.iter().filter(|machine| machine.id < id);
        let first = before.map(|machine| u64::from(machine.workers)).sum();
        let span = WorkerSpan {
            first,
            local: machine.workers() as u64,
            total: config.total_workers() as u64,
        };
        Self {
            config,
            id,
            machine,
            judged,
            span,
            table: None,
            oltp: None,
            tracker: None,
            loaded: (0, 0.0),
            abandoned,
            terminated,
        }
    }

    /// Follows orders until there are no more, or one of them is to stop.
    fn follow_all(mut self, orders: &Receiver<Order>) -> anyhow::Result<()> {
        loop {
            match orders.recv_timeout(LOOK) {
                Ok(Order::Open(table)) => self.open(table.into())?,
                Ok(Order::Load(workload)) => self.load(&workload)?,
                Ok(order @ Order::Run { .. }) => self.run(order)?,
                Ok(Order::Mutant { name }) => self.mutant(&name)?,
                Ok(Order::LockExclusively) => self.lock_exclusively()?,
                Ok(Order::Oltp(order)) => self.follow(order)?,
                Ok(Order::Work(spec)) => self.work(&spec)?,
                Ok(Order::TellWork) => self.tell_work()?,
                Ok(Order::Stop) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
                Err(RecvTimeoutError::Timeout) => self.check_running()?,
            }
        }
    }

    /// Whether it is to go on.
    fn check_running(&self) -> anyhow::Result<()> {
        if self.terminated.load(Ordering::Relaxed) {
            bail!(Terminated);
        }
        if self.machine.control().is_stopping() {
            bail!(why_stopped(self.machine));
        }
        Ok(())
    }

    /// Does something on every worker and waits for each one's answer.
    fn on_all<T: Send + 'static>(
        &self,
        mut start: impl FnMut(usize, &Machine, Sender<T>) -> Result<(), MachineError>,
        mut meanwhile: impl FnMut(),
    ) -> anyhow::Result<Vec<T>> {
        let (answer, answers) = channel();
        for worker in 0..self.machine.workers() {
            start(worker, self.machine, answer.clone())?;
        }
        drop(answer);
        let mut all = Vec::new();
        while all.len() < self.machine.workers() {
            match answers.recv_timeout(PROGRESS) {
                Ok(answer) => all.push(answer),
                Err(_) if self.abandoned.load(Ordering::Acquire) => bail!("the launcher is gone"),
                Err(_) => {
                    self.check_running()?;
                    meanwhile();
                }
            }
        }
        Ok(all)
    }

    fn open(&mut self, spec: TableSpec) -> anyhow::Result<()> {
        self.table = Some((self.open_table(spec)?, spec));
        tell(&News::Opened);
        Ok(())
    }

    /// Opens a table on every worker.
    fn open_table(&self, spec: TableSpec) -> anyhow::Result<TableId> {
        type Opened = Result<TableId, KvError>;
        fn opened(worker: &mut Worker, _: u64, table: Opened) {
            let answer = worker.take_layer::<Sender<Opened>>();
            // The node waits, unless the machine is stopping.
            let _ = answer.send(table);
        }
        let opens = self.on_all(
            |worker, machine, answer: Sender<Opened>| {
                machine.submit(worker, move |worker| {
                    worker.put_layer(Box::new(answer));
                    farm_kv::open(worker, spec, Cont::new(opened, 0));
                })
            },
            || {},
        )?;
        let opened: Result<Vec<_>, _> = opens.into_iter().collect();
        let opened = opened?.first().copied();
        opened.context("a machine has at least one worker")
    }

    /// The table and its clients, by worker.
    fn commons(&self) -> anyhow::Result<Vec<Common>> {
        let table = self.table;
        let (table, spec) = table.context("a workload was ordered before a table")?;
        let common = |worker| Common {
            table,
            value_bytes: spec.value_bytes,
            writer: (self.span.first + worker) as u16,
        };
        Ok((0..self.span.local).map(common).collect())
    }

    fn load(&mut self, order: &WorkloadOrder) -> anyhow::Result<()> {
        let workload = ycsb_workload(order)?;
        let progress = Arc::new(AtomicU64::new(0));
        let WorkerSpan { first, total, .. } = self.span;
        let commons = self.commons()?;
        let loads = self.on_all(
            |worker, machine, answer: Sender<Ran<Counters>>| {
                let load = Load {
                    records: workload.load_range(first + worker as u64, total),
                    in_flight: self.in_flight(),
                    progress: Arc::clone(&progress),
                };
                let common = commons[worker].clone();
                let done = Box::new(move |ran| drop(answer.send(ran)));
                machine.submit(worker, move |worker| {
                    driver::load(worker, common, load, done);
                })
            },
            || tell_loading(&progress),
        )?;
        self.loaded = tell_loaded(&loads)?;
        let tracker = InsertTracker::new(workload.record_count, self.span);
        self.tracker = Some(Arc::new(tracker));
        Ok(())
    }

    fn run(&mut self, order: Order) -> anyhow::Result<()> {
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
            bail!("not a run");
        };
        let spec = ycsb_workload(&order)?;
        let tracker = self.tracker.clone();
        let tracker = tracker.context("a run was ordered before a load")?;
        let WorkerSpan { first, total, .. } = self.span;
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
                    extent: bounds.share(first + worker as u64, total, self.in_flight()),
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
        tell(&News::Ran(Box::new(report)));
        Ok(())
    }

    /// Operations that each worker keeps in flight, unless a run says otherwise.
    fn in_flight(&self) -> usize {
        self.config.worker.operations_in_flight as usize
    }

    fn lock_exclusively(&self) -> anyhow::Result<()> {
        self.on_all(
            |worker, machine, answer: Sender<()>| {
                machine.submit(worker, move |worker| {
                    farm_txn::lock_exclusively(worker, true);
                    _ = answer.send(());
                })
            },
            || {},
        )?;
        Ok(())
    }

    /// Gives every worker a deliberate bug.
    fn mutant(&self, name: &str) -> anyhow::Result<()> {
        let mutants = crate::sim::mutants_called(name)?;
        let mutant = *mutants.first().context("no deliberate bug was chosen")?;
        self.on_all(
            |worker, machine, answer: Sender<()>| {
                machine.submit(worker, move |_| {
                    mutant.switch_on();
                    _ = answer.send(());
                })
            },
            || {},
        )?;
        Ok(())
    }

    /// Refuses orders of judged workloads if their handlers are not attached.
    fn check_judged(&self) -> anyhow::Result<()> {
        match self.judged {
            true => Ok(()),
            false => bail!("a judged workload was ordered from a node started without --judged"),
        }
    }

    fn work(&self, spec: &workload::Spec) -> anyhow::Result<()> {
        self.check_judged()?;
        self.on_all(
            |worker, machine, answer: Sender<()>| {
                let spec = spec.clone();
                let done = Box::new(move |_: &mut Worker| _ = answer.send(()));
                machine.submit(worker, move |worker| workload::start(worker, spec, done))
            },
            || {},
        )?;
        tell(&News::Worked);
        Ok(())
    }

    /// What every worker recorded, and what it holds: freed objects may still be on their way home.
    fn tell_work(&self) -> anyhow::Result<()> {
        self.check_judged()?;
        type Told = (workload::Log, Result<workload::Finished, String>);
        let until = std::time::Instant::now() + SETTLE;
        let mut logs = Vec::new();
        let finished = loop {
            let told = self.on_all(
                |worker, machine, answer: Sender<Told>| {
                    machine.submit(worker, move |worker| {
                        let told = (workload::take_log(worker), workload::finish(worker));
                        // The node waits, unless the machine is stopping.
                        _ = answer.send(told);
                    })
                },
                || {},
            )?;
            let (more, finished): (Vec<_>, Vec<_>) = told.into_iter().unzip();
            logs.extend(more);
            let finished: Result<Vec<_>, String> = finished.into_iter().collect();
            match finished {
                Ok(all) if is_settled(&all) => break all,
                Ok(all) if std::time::Instant::now() > until => break all,
                Err(why) if std::time::Instant::now() > until => bail!("WRONG, {why}"),
                _ => std::thread::sleep(LOOK),
            }
        };
        tell(&News::Work {
            logs,
            finished: workload::Finished::all(finished),
        });
        Ok(())
    }

    fn facts(&self) -> anyhow::Result<TableFacts> {
        let (table, spec) = self.table.context("there is no table")?;
        let all = self.on_all(
            |worker, machine, answer: Sender<Result<OwnShards, KvError>>| {
                machine.submit(worker, move |worker| {
                    _ = answer.send(farm_kv::ops::own_shards(worker, table))
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

/// Reports how far a load is.
fn tell_loading(progress: &AtomicU64) {
    let records = progress.load(Ordering::Relaxed);
    tell(&News::Loading { records });
}

/// Reports the end of a load; returns its records, and the seconds of the slowest worker.
fn tell_loaded<C: farm_bench::counters::Counters>(loads: &[Ran<C>]) -> anyhow::Result<(u64, f64)> {
    if let Some(why) = loads.iter().find_map(|ran| ran.failure.as_ref()) {
        bail!("the load failed: {why}");
    }
    let records = loads.iter().map(|ran| ran.recorder.executed()).sum();
    let seconds = loads.iter().map(|ran| ran.duration_s).fold(0.0, f64::max);
    tell(&News::Loaded { records, seconds });
    Ok((records, seconds))
}

fn is_settled(finished: &[workload::Finished]) -> bool {
    let taken: u64 = finished.iter().map(|one| one.taken).sum();
    let live: u64 = finished.iter().map(|one| one.live).sum();
    taken == live
}

fn ycsb_workload(order: &WorkloadOrder) -> anyhow::Result<WorkloadSpec> {
    let mut properties = Properties::new();
    for (key, value) in &order.properties {
        properties.set_override(&format!("{key}={value}"))?;
    }
    let mut spec = WorkloadSpec::from_properties(&order.name, &properties)?.spec;
    spec.value_bytes = order.value_bytes;
    Ok(spec)
}
