//! `farm node`: runs one machine, alone or driven by a launcher.

mod edges;
mod graph;
mod judged;
mod linkbench;
mod oltp;
mod taobench;
mod took;
mod ycsb;

use std::io::{BufRead, Write};
use std::ops::AddAssign;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use anyhow::{Context, bail};
use farm::status::StatusServer;
use farm_bench::audit::Done;
use farm_bench::closed_loop::{Bounds, Extent, Ran};
use farm_bench::load::{self, Name, Pairs};
use farm_bench::ycsb::inserts::{InsertTracker, WorkerSpan};
use farm_check::workload;
use farm_core::config::host::{HostError, check_machine_memory, probe};
use farm_core::config::{Config, rounded_size};
use farm_core::fabric::{ConnectError, Departure, Patience};
use farm_core::ids::MachineId;
use farm_core::machine::{Machine, MachineError};
use farm_core::worker::{Cont, Worker};
use farm_kv::{KvError, TableId, TableSpec};
use farm_sim::run::mutants::Mutant;
use signal_hook::consts::{SIGINT, SIGTERM};

use super::interrupts;
use super::protocol::{News, Order};
use crate::Usage;
use crate::cli::NodeArgs;
use crate::destroy;
use crate::measure::sum;
use crate::verify;

/// Longest time that a machine waits for the other machines to connect.
const PATIENCE: Duration = Duration::from_secs(60);
/// Interval at which a node checks for signals, and whether its machine has stopped.
const LOOK: Duration = Duration::from_millis(20);
/// Longest time that a node waits until freed objects and changes of shards have reached the workers that own them.
pub(crate) const SETTLE: Duration = Duration::from_secs(5);
/// Longest time from the departure of another machine to the order to stop, if that is why it left.
const STOP_FOLLOWS: Duration = Duration::from_secs(2);
/// Interval of [`News::Loading`].
const PROGRESS: Duration = Duration::from_millis(100);

/// A driven node received SIGTERM.
#[derive(Debug, thiserror::Error)]
#[error("the node received SIGTERM, and stops")]
struct Terminated;

/// Returns why a machine stopped by itself: its failure, and the reasons that its peers reported.
fn why_stopped(machine: &Machine) -> String {
    let departed = machine.departed();
    // A lost peer without a reported reason adds nothing to the machine's own failure.
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
        true => "a stop was requested".to_owned(),
        false => reasons.join("; "),
    }
}

/// Returns what the next start of a cluster that has ended begins with.
fn data_after_stop(config: &Config) -> &'static str {
    match (config.keeps_memory(), config.is_logged()) {
        (true, _) => "they go on with the data that is in the memory of this host",
        (false, true) => {
            "their data was in the memory of processes that have ended; first remove the old configuration with `farm destroy`"
        }
        (false, false) => "their data was in the memory of processes that have ended",
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
                "the configuration has {} machines; select the one to run with --machine ID, where ID is one of {}",
                ids.len(),
                ids.join(", ")
            );
            return Err(Usage::error(why));
        }
    };
    if config.machine(id).is_none() {
        return Err(Usage::error(MachineError::NoSuchMachine(id).to_string()));
    }
    check_room(&config, id)?;
    if !args.driven {
        return run_alone(&config, id).map(|()| ExitCode::SUCCESS);
    }
    let mutant = args.mutant.as_deref().map(crate::sim::mutants_called);
    let mutant = mutant.transpose()?.and_then(|all| all.first().copied());
    Ok(match run_driven(&config, id, (args.judged, mutant)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The machine did not start. Later errors were reported before the machine ended.
            if !error.is::<Reported>() {
                report_failure(&error);
            }
            ExitCode::FAILURE
        }
    })
}

/// Checks that the host has room for a machine. One whose earlier process has kept memory needs no more at first: it goes on with that.
fn check_room(config: &Config, id: MachineId) -> Result<(), HostError> {
    if !config.is_logged() && destroy::has_kept_memory(config) {
        tracing::warn!(
            "an earlier cluster of this name has kept its data in {}, which machine {id} does not use with durability.mode = \"none\": start \
             it without that, or remove the data with `farm destroy`",
            config.memory.dir.display()
        );
    }
    let mut facts = probe(&config.memory.dir);
    let Err(without_kept) = check_machine_memory(config, id, &facts) else {
        return Ok(());
    };
    facts.take_over(destroy::idle_kept_bytes(config, Some(id)));
    let resumes = destroy::has_named_memory(config, id);
    match (check_machine_memory(config, id, &facts), without_kept) {
        (
            Err(HostError::TooMuchMemory { .. }),
            HostError::TooMuchMemory {
                needed_bytes,
                limit,
                ..
            },
        ) if resumes => {
            // Not the advice: with other sizes the kept memory cannot be used.
            tracing::warn!(
                "{limit}, and machine {id} may take {} of memory: it goes on with what its process has kept; free space before it needs more",
                rounded_size(needed_bytes)
            );
            Ok(())
        }
        (checked, _) => checked,
    }
}

/// The node failed, and has reported the reason to the launcher.
#[derive(Debug, thiserror::Error)]
#[error("the node failed, and reported the failure to the launcher")]
struct Reported;

fn report_failure(error: &anyhow::Error) {
    send_news(&News::Failed {
        why: crate::with_causes(error),
    });
}

/// Starts a machine. Returns `None` if `cancelled` is set before all machines are connected. Attaches the handlers
/// of judged workloads to the workers if `judged`, and switches on a deliberate bug.
fn start(
    config: &Config,
    id: MachineId,
    cancelled: &AtomicBool,
    (judged, mutant): (bool, Option<Mutant>),
) -> anyhow::Result<Option<Machine>> {
    let attach = Arc::new(move |worker: &mut Worker| {
        if let Some(mutant) = mutant {
            mutant.switch_on();
        }
        farm_txn::attach(worker);
        farm_kv::attach(worker);
        farm_graph::attach(worker);
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
        Err(error) => {
            let refused = matches!(error, MachineError::Connect(_));
            let differs = refused.then(|| verify::configuration::of_running(config));
            let why = match differs.flatten() {
                Some(differs) => format!(
                    "machine {id} cannot start in cluster {:?}: {differs}",
                    config.cluster.name
                ),
                None => format!("machine {id} cannot start"),
            };
            Err(anyhow::Error::new(error).context(why))
        }
        Ok(machine) => Ok(Some(machine)),
    }
}

/// Runs a machine until a signal or a failure stops it.
fn run_alone(config: &Config, id: MachineId) -> anyhow::Result<()> {
    let interrupted = interrupts()?;
    let name = &config.cluster.name;
    if config.machines.len() > 1 {
        let seconds = PATIENCE.as_secs();
        crate::write_stderr(format_args!(
            "machine {id} of cluster \"{name}\" waits up to {seconds} s for the other machines"
        ));
    }
    let Some(machine) = start(config, id, &interrupted, (false, None))? else {
        crate::write_stderr(format_args!(
            "machine {id} stops: it received SIGINT or SIGTERM while it waited for the other machines"
        ));
        return Ok(());
    };
    crate::write_stderr(format_args!("{}", took::took(config, &machine)));
    let is_interrupted = || interrupted.load(Ordering::Relaxed);
    if !machine.wait_until_joined(is_interrupted) && is_interrupted() {
        crate::write_stderr(format_args!(
            "machine {id} stops: it received SIGINT or SIGTERM while it joined the other machines"
        ));
        return Ok(machine.stop()?);
    }
    // Tools see that the machine runs as soon as a user does.
    let status = StatusServer::start_or_warn(config, &machine);
    crate::write_stderr(format_args!(
        "machine {id} of cluster \"{}\" runs; stop it with Ctrl-C",
        config.cluster.name
    ));
    while !machine.control().is_stopping() {
        if interrupted.load(Ordering::Relaxed) {
            crate::write_stderr(format_args!(
                "machine {id} stops: it received SIGINT or SIGTERM"
            ));
            drop(status);
            return Ok(machine.stop()?);
        }
        std::thread::park_timeout(LOOK);
    }
    drop(status);
    let why = why_stopped(&machine);
    match machine.join() {
        Ok(()) => {
            crate::write_stderr(format_args!(
                "machine {id} stops: {why}; start all machines of the cluster again: {}",
                data_after_stop(config)
            ));
            Ok(())
        }
        Err(error) => Err(anyhow::Error::new(error).context(format!("machine {id} stops: {why}"))),
    }
}

/// Runs a machine and executes the launcher's orders until standard input ends.
fn run_driven(
    config: &Config,
    id: MachineId,
    (judged, mutant): (bool, Option<Mutant>),
) -> anyhow::Result<()> {
    // A terminal sends SIGINT to the launcher, too. The launcher then stops the nodes.
    let ignored = Arc::new(AtomicBool::new(false));
    let terminated = Arc::new(AtomicBool::new(false));
    for (signal, flag) in [(SIGINT, ignored), (SIGTERM, Arc::clone(&terminated))] {
        signal_hook::flag::register(signal, flag)
            .context("cannot install handlers for SIGINT and SIGTERM")?;
    }
    let (orders, abandoned) = read_orders();
    let Some(machine) = start(config, id, &abandoned, (judged, mutant))? else {
        return Ok(());
    };
    let status = StatusServer::start_or_warn(config, &machine);
    send_news(&News::Ready);
    let driven = Driven::new(config, id, &machine, judged, abandoned, terminated);
    let executed = driven.execute_all(&orders);
    drop(status);
    let Err(error) = executed else {
        let others_left = others_left(&machine);
        return match machine.stop() {
            Err(_) if others_left => Ok(()),
            stopped => Ok(stopped?),
        };
    };
    // Report before the machine stops, so that the launcher receives this failure before the failures that result
    // from it on other machines.
    report_failure(&error);
    if error.is::<Terminated>() {
        machine.stop()?;
    } else {
        machine.stop_because(&crate::with_causes(&error));
    }
    bail!(Reported)
}

/// Returns whether other machines left in good order, and none was lost or failed.
fn others_left(machine: &Machine) -> bool {
    let departed = machine.departed();
    let in_order = departed
        .iter()
        .all(|peer| peer.how == Departure::Left && peer.why.is_none());
    in_order && !departed.is_empty()
}

/// A line on standard input is not an order.
#[derive(Debug, thiserror::Error)]
#[error("invalid order {line:?} on standard input: {error}; the node stops")]
struct InvalidOrder {
    line: String,
    error: serde_json::Error,
}

/// Starts a thread that reads the launcher's orders. Returns the orders, and a flag that is set after an invalid order,
/// and when standard input ends because the launcher is gone: the node then abandons its current order.
fn read_orders() -> (Receiver<Result<Order, InvalidOrder>>, Arc<AtomicBool>) {
    let (send, orders) = channel();
    let abandoned = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&abandoned);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let order = serde_json::from_str(&line).map_err(|error| InvalidOrder { line, error });
            let is_last = order.is_err();
            if send.send(order).is_err() || is_last {
                break;
            }
        }
        ended.store(true, Ordering::Release);
    });
    (orders, abandoned)
}

/// Writes news to standard output.
fn send_news(news: &News) {
    let mut line =
        serde_json::to_vec(news).expect("messages to the launcher can be serialized as JSON");
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    // Fails if the launcher is gone. Then the end of the input stops this node.
    let _ = out.write_all(&line).and_then(|()| out.flush());
}

/// Sends the number of records that this machine has loaded so far.
fn loading(progress: &AtomicU64) {
    let records = progress.load(Ordering::Relaxed);
    send_news(&News::Loading { records });
}

/// The state of a driven node.
struct Driven<'a> {
    config: &'a Config,
    id: MachineId,
    machine: &'a Machine,
    /// Whether the handlers of judged workloads are attached.
    judged: bool,
    /// Whether the machine takes part in runs.
    gives_load: bool,
    span: WorkerSpan,
    table: Option<(TableId, TableSpec)>,
    oltp: Option<oltp::Oltp>,
    link: Option<linkbench::Graph>,
    tao: Option<taobench::Graph>,
    edges: Option<edges::Graph>,
    tracker: Option<Arc<InsertTracker>>,
    /// Receives a message from each worker whose clients have ended, of a judged workload that runs.
    working: Option<Receiver<()>>,
    /// Number of records that this machine loaded, and the seconds of its slowest worker.
    loaded: (u64, f64),
    /// Set when standard input has ended or contained an invalid order.
    abandoned: Arc<AtomicBool>,
    /// Set by SIGTERM.
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
            gives_load: true,
            span,
            table: None,
            oltp: None,
            link: None,
            tao: None,
            edges: None,
            tracker: None,
            working: None,
            loaded: (0, 0.0),
            abandoned,
            terminated,
        }
    }

    /// Executes orders until [`Order::Stop`] or the end of the orders.
    fn execute_all(mut self, orders: &Receiver<Result<Order, InvalidOrder>>) -> anyhow::Result<()> {
        loop {
            let order = match orders.recv_timeout(LOOK) {
                Ok(order) => order?,
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
                Err(RecvTimeoutError::Timeout) => match self.check_running() {
                    Ok(()) => continue,
                    Err(error) if !error.is::<Terminated>() && self.follows_stop(orders) => {
                        return Ok(());
                    }
                    Err(error) => return Err(error),
                },
            };
            match order {
                Order::Open(table) => self.open(table)?,
                Order::Load(workload) => self.load(&workload)?,
                order @ Order::Run { .. } => self.run(order)?,
                Order::CheckRecords(workload) => self.check_records(&workload)?,
                Order::GiveNoLoad => self.gives_load = false,
                Order::LockExclusively => self.lock_exclusively()?,
                Order::Oltp(order) => self.execute_oltp(order)?,
                Order::Link(order) => self.execute_link(order)?,
                Order::Tao(order) => self.execute_tao(order)?,
                Order::Edges(order) => self.execute_edges(order)?,
                Order::Work(spec) => self.work(&spec)?,
                Order::Begin(beginning) => self.begin(&beginning)?,
                Order::Enough => self.enough()?,
                Order::SendWork { settle_s } => self.send_work(Duration::from_secs(settle_s))?,
                Order::Stop => return Ok(()),
            }
        }
    }

    /// Returns whether the machine stopped because others left, and the order to stop follows, or the end of the orders. The launcher sends it to one
    /// node after another, so that on a busy host a machine can leave before the last node has received the order.
    fn follows_stop(&self, orders: &Receiver<Result<Order, InvalidOrder>>) -> bool {
        others_left(self.machine)
            && matches!(
                orders.recv_timeout(STOP_FOLLOWS),
                Ok(Ok(Order::Stop)) | Err(RecvTimeoutError::Disconnected)
            )
    }

    /// Returns an error if the node received SIGTERM or its machine has stopped.
    fn check_running(&self) -> anyhow::Result<()> {
        if self.terminated.load(Ordering::Relaxed) {
            bail!(Terminated);
        }
        if self.machine.control().is_stopping() {
            bail!(why_stopped(self.machine));
        }
        Ok(())
    }

    /// Returns an error if an order that takes its time is to be abandoned: because the launcher is gone, or for the reasons of
    /// [`Driven::check_running`].
    fn check_wanted(&self) -> anyhow::Result<()> {
        if self.abandoned.load(Ordering::Acquire) {
            bail!("the launcher closed standard input or sent an invalid order; the node stops");
        }
        self.check_running()
    }

    /// Calls `start` for every worker and waits for one answer of each. Calls `meanwhile` whenever no answer arrives
    /// for [`PROGRESS`].
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
                Err(_) => {
                    self.check_wanted()?;
                    meanwhile();
                }
            }
        }
        Ok(all)
    }

    /// Has every worker check its share, as `run` does it. Returns what all have found.
    fn check<A: Send + 'static, R: AddAssign + Default + Send + 'static>(
        &self,
        mut share: impl FnMut(usize) -> A,
        run: fn(&mut Worker, A, Done<R>),
    ) -> anyhow::Result<R> {
        let found = self.on_all(
            |worker, machine, answer: Sender<R>| {
                let share = share(worker);
                // Fails if the node no longer waits, because the machine is stopping.
                let done = Box::new(move |found| drop(answer.send(found)));
                machine.submit(worker, move |worker| run(worker, share, done))
            },
            || {},
        )?;
        Ok(sum(found))
    }

    fn open(&mut self, spec: TableSpec) -> anyhow::Result<()> {
        self.table = Some((self.open_table(spec)?, spec));
        send_news(&News::Opened);
        Ok(())
    }

    /// Opens a table on every worker.
    fn open_table(&self, spec: TableSpec) -> anyhow::Result<TableId> {
        type Opened = Result<TableId, KvError>;
        fn opened(worker: &mut Worker, _: u64, table: Opened) {
            let answer = worker.take_layer::<Sender<Opened>>();
            // Fails if the node no longer waits, because the machine is stopping.
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
        opened.context("cannot open the table: the machine has no workers")
    }

    /// Inserts the pairs of each worker, and sends the launcher the progress and the result. Returns the number of pairs,
    /// and the seconds of the slowest worker.
    fn load_pairs<N: Name>(&self, pairs: impl Fn(usize) -> Pairs<N>) -> anyhow::Result<(u64, f64)> {
        let progress = Arc::new(AtomicU64::new(0));
        let loads = self.on_all(
            |worker, machine, answer: Sender<Ran>| {
                let (pairs, in_flight) = (pairs(worker), self.in_flight());
                let progress = Arc::clone(&progress);
                let done = Box::new(move |ran| drop(answer.send(ran)));
                machine.submit(worker, move |worker| {
                    load::load(worker, pairs, in_flight, progress, done);
                })
            },
            || loading(&progress),
        )?;
        if let Some(why) = loads.iter().find_map(|ran| ran.failure.as_ref()) {
            bail!("cannot load the records: {why}");
        }
        let records = loads.iter().map(|ran| ran.recorder.executed()).sum();
        let seconds = loads.iter().map(|ran| ran.duration_s).fold(0.0, f64::max);
        send_news(&News::Loaded { records, seconds });
        Ok((records, seconds))
    }

    /// Returns the part of a worker of this machine in a run.
    fn extent(&self, bounds: &Bounds, worker: usize) -> Extent {
        match self.gives_load {
            true => bounds.share(
                self.span.first + worker as u64,
                self.span.total,
                self.in_flight(),
            ),
            false => Extent::default(),
        }
    }

    /// Returns the number of operations that each worker keeps in flight, unless the order of a run sets another.
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
}
