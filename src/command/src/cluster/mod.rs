//! A cluster of processes that a command (the launcher) starts, drives and stops.
//!
//! The launcher starts one `farm node --driven` process for every machine. It writes orders to the standard input
//! of each node and reads news from its standard output, one JSON object per line ([`protocol`]). A node stops at
//! the end of its input, so no node keeps running if the launcher is killed. The nodes share the launcher's
//! standard error.

mod lose;
pub(crate) mod node;
mod one;
pub(crate) mod protocol;

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use farm_core::config::Config;
use farm_core::config::host::store_dir;
use farm_core::ids::MachineId;
use farm_core::membership::earlier::{Found, find};

use crate::scratch::Scratch;
use protocol::{News, Order};

/// Time after an order to stop until the launcher kills the nodes that still run.
const STOP_PATIENCE: Duration = Duration::from_secs(10);
/// Time after a first failure for which the launcher collects the failures of other nodes, which may report the cause.
const FAILURE_PATIENCE: Duration = Duration::from_millis(300);

/// Returns a flag that SIGINT and SIGTERM set.
pub(crate) fn interrupts() -> anyhow::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&flag))
            .context("cannot install handlers for SIGINT and SIGTERM")?;
    }
    Ok(flag)
}

/// The error of a command that SIGINT or SIGTERM interrupted.
#[derive(Debug, thiserror::Error)]
#[error("interrupted; the cluster was stopped")]
pub(crate) struct Interrupted;

struct Node {
    id: MachineId,
    child: Child,
    orders: Option<ChildStdin>,
    ended: bool,
}

impl Node {
    /// Writes a line to the standard input.
    fn send(&mut self, line: &[u8]) {
        if let Some(orders) = &mut self.orders
            && orders
                .write_all(line)
                .and_then(|()| orders.flush())
                .is_err()
        {
            // The node has ended. The next read of its output returns its failure or its end.
            self.orders = None;
        }
    }
}

/// What the launcher reads from the standard output of a node.
enum Output {
    News(News),
    /// A line that is not news.
    Invalid(String),
    /// The end of the output: the process has ended.
    End,
}

/// Outputs of all nodes, with the index of the node.
type Outputs = Receiver<(usize, Output)>;

/// A running cluster whose machines are processes of this host. Dropping it stops the processes.
pub(crate) struct Cluster {
    nodes: Vec<Node>,
    outputs: Outputs,
    /// What was received from other machines while news of one were awaited.
    early: VecDeque<(usize, News)>,
    /// Where further processes send their outputs.
    sender: Sender<(usize, Output)>,
    interrupted: Arc<AtomicBool>,
    launch: Launch,
    /// Directory of the nodes' configuration file, and of the store of the cluster's configuration unless `durability.dir` names
    /// another one. Removed on drop.
    dir: Scratch,
}

/// How the processes are started.
struct Launch {
    /// The configuration of the nodes.
    config: Config,
    /// Its file.
    file: PathBuf,
    log: Option<String>,
    flags: Vec<String>,
}

impl Launch {
    fn all(&self, sender: &Sender<(usize, Output)>) -> anyhow::Result<Vec<Node>> {
        let machines = 0..self.config.machines.len();
        machines.map(|machine| self.one(machine, sender)).collect()
    }

    fn one(&self, machine: usize, sender: &Sender<(usize, Output)>) -> anyhow::Result<Node> {
        let id = self.config.machines[machine].id;
        let mut command = node_command(id, &self.file, self.log.as_deref())?;
        command.args(&self.flags);
        spawn(machine, id, command, sender)
    }
}

/// Checks that the cluster of a command finds no data: the command would not be the first to use it.
fn check_new(config: &Config) -> anyhow::Result<()> {
    if !config.is_logged() {
        return Ok(());
    }
    let dir = store_dir(config);
    match find(&dir, &config.cluster.name)? {
        Found::Earlier(_) => bail!(
            "{} has the configuration of a cluster that ran before, and this command begins with an empty one: give the cluster of the \
             command another name (cluster.name), and another directory if you have named one (durability.dir), or remove what that \
             cluster has left with `farm destroy` and the options --config and --set of this command",
            dir.display()
        ),
        Found::Nothing | Found::InUse => Ok(()),
    }
}

impl Cluster {
    /// Starts every machine of the configuration, and waits until all machines are connected.
    pub(crate) fn start(config: &Config, log: Option<&str>) -> anyhow::Result<Self> {
        Self::start_with(config, log, Vec::new())
    }

    /// Starts a cluster like [`Cluster::start`], with the handlers of judged workloads attached to every worker, and with a deliberate bug
    /// from the start of every process if one is named.
    pub(crate) fn start_judged(
        config: &Config,
        log: Option<&str>,
        mutant: Option<&str>,
    ) -> anyhow::Result<Self> {
        let mutant = mutant.map(|mutant| ["--mutant", mutant]);
        let flags = ["--judged"].into_iter().chain(mutant.into_iter().flatten());
        Self::start_with(config, log, flags.map(ToOwned::to_owned).collect())
    }

    fn start_with(config: &Config, log: Option<&str>, flags: Vec<String>) -> anyhow::Result<Self> {
        let interrupted = interrupts()?;
        let mut dir = Scratch::new(&std::env::temp_dir())
            .context("the configuration of the nodes needs a file")?;
        let mut config = config.clone();
        check_new(&config)?;
        dir.keep_store_of(&mut config);
        let file = dir.path().join("cluster.toml");
        std::fs::write(&file, config.to_toml()).with_context(|| {
            format!(
                "cannot write the configuration of the nodes to {}",
                file.display()
            )
        })?;
        let launch = Launch {
            config,
            file,
            log: log.map(ToOwned::to_owned),
            flags,
        };
        let (sender, outputs) = channel();
        let mut cluster = Self {
            nodes: launch.all(&sender)?,
            outputs,
            early: VecDeque::new(),
            sender,
            interrupted,
            launch,
            dir,
        };
        cluster.gather(|_, news| matches!(news, News::Ready).then_some(()))?;
        Ok(cluster)
    }

    /// Kills all processes at once.
    pub(crate) fn kill_all(&mut self) -> anyhow::Result<()> {
        for node in &mut self.nodes {
            node.child
                .kill()
                .context("cannot kill the process of a machine")?;
        }
        for mut node in self.nodes.drain(..) {
            node.child
                .wait()
                .context("cannot wait for the process of a machine")?;
        }
        Ok(())
    }

    /// Starts a process for each machine, after all were killed.
    pub(crate) fn launch_again(&mut self) -> anyhow::Result<()> {
        // What the earlier processes have said is not awaited any more.
        (self.sender, self.outputs) = channel();
        self.early.clear();
        self.nodes = self.launch.all(&self.sender)?;
        Ok(())
    }

    /// Returns a directory for further files of the command. It is removed on drop.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the number of machines.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Sends the same order to every machine.
    pub(crate) fn order(&mut self, order: &Order) -> anyhow::Result<()> {
        let line = order_line(order)?;
        for node in &mut self.nodes {
            node.send(&line);
        }
        Ok(())
    }

    /// Sends an order to one machine. `machine` is its index in the configuration.
    pub(crate) fn order_one(&mut self, machine: usize, order: &Order) -> anyhow::Result<()> {
        let line = order_line(order)?;
        self.nodes[machine].send(&line);
        Ok(())
    }

    /// Returns an error if SIGINT or SIGTERM was received.
    pub(crate) fn check_interrupted(&self) -> anyhow::Result<()> {
        match self.interrupted.load(Ordering::Relaxed) {
            true => bail!(Interrupted),
            false => Ok(()),
        }
    }

    /// Receives the next news, with the index of its machine. Returns `None` if none arrives for 50 ms.
    pub(crate) fn receive(&mut self) -> anyhow::Result<Option<(usize, News)>> {
        self.check_interrupted()?;
        match self.early.pop_front() {
            Some(early) => Ok(Some(early)),
            None => self.receive_new(),
        }
    }

    fn receive_new(&mut self) -> anyhow::Result<Option<(usize, News)>> {
        match self.outputs.recv_timeout(Duration::from_millis(50)) {
            Ok((index, Output::News(News::Failed { why }))) => self.failed(index, why),
            Ok((index, Output::News(news))) => Ok(Some((index, news))),
            Ok((index, Output::Invalid(line))) => {
                bail!(
                    "machine {} wrote an invalid line to its standard output, where the launcher expects a \
                     message as JSON: {line:?}; the cluster is stopped",
                    self.nodes[index].id
                );
            }
            Ok((index, Output::End)) => {
                let why = self.how_it_ended(index);
                self.failed(index, why)
            }
            Err(_) => Ok(None),
        }
    }

    /// Receives news until `pick` has returned a value for every machine. Returns these values, by machine.
    pub(crate) fn gather<T>(
        &mut self,
        pick: impl FnMut(usize, News) -> Option<T>,
    ) -> anyhow::Result<Vec<T>> {
        self.gather_with(pick, |_| Ok(()))
    }

    /// Does the same as [`Cluster::gather`], and fails if that takes longer than `most`. `what` is what is awaited.
    pub(crate) fn gather_within<T>(
        &mut self,
        (what, most): (&str, Duration),
        pick: impl FnMut(usize, News) -> Option<T>,
    ) -> anyhow::Result<Vec<T>> {
        let began = Instant::now();
        self.gather_with(pick, |missing| {
            if began.elapsed() <= most {
                return Ok(());
            }
            let missing: Vec<String> = missing.map(|id| id.to_string()).collect();
            bail!(
                "{what} of machine(s) {} did not follow within {} s",
                missing.join(", "),
                most.as_secs()
            )
        })
    }

    /// Does the same as [`Cluster::gather`], and calls `meanwhile`, with the machines that have no value, whenever no output arrives for
    /// 50 ms.
    pub(crate) fn gather_with<T>(
        &mut self,
        mut pick: impl FnMut(usize, News) -> Option<T>,
        mut meanwhile: impl FnMut(&mut dyn Iterator<Item = MachineId>) -> anyhow::Result<()>,
    ) -> anyhow::Result<Vec<T>> {
        let mut picked: Vec<Option<T>> = self.nodes.iter().map(|_| None).collect();
        while picked.iter().any(Option::is_none) {
            let Some((index, news)) = self.receive()? else {
                let missing = picked.iter().zip(&self.nodes);
                let missing = missing.filter(|(picked, _)| picked.is_none());
                meanwhile(&mut missing.map(|(_, node)| node.id))?;
                continue;
            };
            if let Some(taken) = pick(index, news) {
                picked[index] = Some(taken);
            }
        }
        Ok(picked.into_iter().flatten().collect())
    }

    /// Returns the failure of a machine as an error, with the first failures that other machines report within
    /// [`FAILURE_PATIENCE`].
    fn failed<T>(&mut self, index: usize, why: String) -> anyhow::Result<T> {
        let mut failures = vec![format!("machine {}: {why}", self.nodes[index].id)];
        let until = Instant::now() + FAILURE_PATIENCE;
        while let Ok((index, output)) = self
            .outputs
            .recv_timeout(until.saturating_duration_since(Instant::now()))
        {
            let why = match output {
                Output::News(News::Failed { why }) => why,
                Output::End => self.how_it_ended(index),
                _ => continue,
            };
            let line = format!("machine {}: {why}", self.nodes[index].id);
            if !failures
                .iter()
                .any(|known| known.starts_with(&format!("machine {}:", self.nodes[index].id)))
            {
                failures.push(line);
            }
        }
        // If the signal reached the nodes, too, their failures are consequences of the interrupt.
        self.check_interrupted()?;
        bail!(
            "a machine failed, and the cluster was stopped\n  {}",
            failures.join("\n  ")
        )
    }

    /// Waits for the process of a node, and returns how it ended.
    fn how_it_ended(&mut self, index: usize) -> String {
        let node = &mut self.nodes[index];
        node.ended = true;
        match node.child.wait() {
            Ok(status) => match (status.signal(), status.code()) {
                (Some(signal), _) => format!("its process was killed by signal {signal}"),
                (_, Some(code)) => format!("its process ended with status {code}"),
                _ => "its process ended".into(),
            },
            Err(error) => format!("cannot wait for its process: {error}"),
        }
    }

    /// Stops every machine, and waits until all processes have ended.
    pub(crate) fn stop(mut self) -> anyhow::Result<()> {
        self.order(&Order::Stop)?;
        self.reap()
    }

    /// Closes the inputs of the nodes and waits for the processes. Kills those that still run after
    /// [`STOP_PATIENCE`]. Returns the first failure.
    fn reap(&mut self) -> anyhow::Result<()> {
        for node in &mut self.nodes {
            node.orders = None;
        }
        let until = Instant::now() + STOP_PATIENCE;
        let mut failure = None;
        while self.nodes.iter().any(|node| !node.ended) {
            match self
                .outputs
                .recv_timeout(until.saturating_duration_since(Instant::now()))
            {
                Ok((index, Output::End)) => {
                    let id = self.nodes[index].id;
                    let node = &mut self.nodes[index];
                    node.ended = true;
                    let status = node
                        .child
                        .wait()
                        .with_context(|| format!("cannot wait for the process of machine {id}"))?;
                    if !status.success() {
                        failure.get_or_insert_with(|| {
                            format!("the process of machine {id} ended with {status}")
                        });
                    }
                }
                Ok((index, Output::News(News::Failed { why }))) => {
                    failure
                        .get_or_insert_with(|| format!("machine {}: {why}", self.nodes[index].id));
                }
                Ok(_) => {}
                Err(_) => {
                    for node in self.nodes.iter_mut().filter(|node| !node.ended) {
                        failure.get_or_insert_with(|| {
                            format!(
                                "machine {} did not stop within {} s, and its process was killed",
                                node.id,
                                STOP_PATIENCE.as_secs()
                            )
                        });
                        // Fails if the process has just ended, which is fine.
                        let _ = node.child.kill();
                        let _ = node.child.wait();
                        node.ended = true;
                    }
                }
            }
        }
        match failure {
            Some(why) => bail!(why),
            None => Ok(()),
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // The first error was returned already. Here the processes only have to end.
        let _ = self.reap();
    }
}

/// Returns the line that sends an order.
fn order_line(order: &Order) -> anyhow::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(order)?;
    line.push(b'\n');
    Ok(line)
}

/// Returns the command that starts one machine.
fn node_command(id: MachineId, config: &Path, log: Option<&str>) -> anyhow::Result<Command> {
    let program = std::env::current_exe()
        .context("cannot start machines: the path of the running farm program is unknown")?;
    // This program, also if its file was replaced meanwhile, for example by a build.
    let mut command = Command::new(format!("/proc/{}/exe", std::process::id()));
    command
        .arg0(program)
        .args([
            "node",
            "--driven",
            "--machine",
            &id.get().to_string(),
            "--config",
        ])
        .arg(config);
    if let Some(log) = log {
        command.args(["--log", log]);
    }
    Ok(command)
}

fn spawn(
    index: usize,
    id: MachineId,
    mut command: Command,
    sender: &Sender<(usize, Output)>,
) -> anyhow::Result<Node> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot start the process of machine {id}"))?;
    let orders = child.stdin.take();
    let stdout = child.stdout.take();
    let stdout =
        stdout.with_context(|| format!("the process of machine {id} has no standard output"))?;
    let lines = BufReader::new(stdout);
    let sender = sender.clone();
    std::thread::spawn(move || {
        for line in lines.lines().map_while(Result::ok) {
            let output = serde_json::from_str(&line).map_or(Output::Invalid(line), Output::News);
            if sender.send((index, output)).is_err() {
                return;
            }
        }
        // Fails if the cluster was dropped.
        let _ = sender.send((index, Output::End));
    });
    Ok(Node {
        id,
        child,
        orders,
        ended: false,
    })
}
