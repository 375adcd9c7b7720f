//! A cluster of processes that a command starts, drives and stops.
//!
//! The launcher starts `farm node --driven` once for every machine, and talks with each over its
//! standard input and output, a JSON object a line ([`protocol`]). A node that sees its input end
//! stops, so nothing is left running when the launcher is killed. Errors go to standard error, which
//! the nodes share with the launcher.

pub(crate) mod node;
pub(crate) mod protocol;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use farm_core::config::Config;
use farm_core::ids::MachineId;

use protocol::{News, Order};

/// Nodes that were told to stop and do not are killed after this long.
const STOP_PATIENCE: Duration = Duration::from_secs(10);
/// How long after a first failure the launcher waits for others, which may say more.
const FAILURE_PATIENCE: Duration = Duration::from_millis(300);

/// Set by SIGINT and SIGTERM.
pub(crate) fn interrupts() -> anyhow::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&flag)).context("cannot handle signals")?;
    }
    Ok(flag)
}

/// The command was interrupted; everything was stopped.
#[derive(Debug, thiserror::Error)]
#[error("interrupted; the cluster was stopped")]
pub(crate) struct Interrupted;

struct Node {
    id: MachineId,
    child: Child,
    orders: Option<ChildStdin>,
    ended: bool,
}

enum Heard {
    News(News),
    Garbage(String),
    End,
}

/// Machines as processes of this host.
pub(crate) struct Cluster {
    nodes: Vec<Node>,
    heard: Receiver<(usize, Heard)>,
    interrupted: Arc<AtomicBool>,
    /// Holds the configuration file of the nodes.
    _dir: tempfile::TempDir,
}

impl Cluster {
    /// Starts every machine of the configuration, and waits until all have met.
    pub(crate) fn start(config: &Config, log: Option<&str>) -> anyhow::Result<Self> {
        Self::start_with(config, log, &[])
    }

    /// As [`Cluster::start`], with the handlers of judged workloads attached to every worker.
    pub(crate) fn start_judged(config: &Config, log: Option<&str>) -> anyhow::Result<Self> {
        Self::start_with(config, log, &["--judged"])
    }

    fn start_with(config: &Config, log: Option<&str>, flags: &[&str]) -> anyhow::Result<Self> {
        let interrupted = interrupts()?;
        let dir = tempfile::Builder::new()
            .prefix("farm-")
            .tempdir()
            .context("cannot make a directory for the nodes' configuration")?;
        let file = dir.path().join("cluster.toml");
        std::fs::write(&file, config.to_toml())
            .with_context(|| format!("cannot write {}", file.display()))?;
        let (tell, heard) = channel();
        let mut cluster = Self {
            nodes: Vec::new(),
            heard,
            interrupted,
            _dir: dir,
        };
        for machine in &config.machines {
            let mut command = node_command(machine.id, &file, log)?;
            command.args(flags);
            let node = spawn(cluster.nodes.len(), machine.id, command, &tell)?;
            cluster.nodes.push(node);
        }
        cluster.gather(|_, news| matches!(news, News::Ready).then_some(()))?;
        Ok(cluster)
    }

    /// Machines.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Gives every machine the same order.
    pub(crate) fn order(&mut self, order: &Order) -> anyhow::Result<()> {
        let mut line = serde_json::to_vec(order)?;
        line.push(b'\n');
        for node in &mut self.nodes {
            if let Some(orders) = &mut node.orders
                && orders
                    .write_all(&line)
                    .and_then(|()| orders.flush())
                    .is_err()
            {
                // It has ended; what it said, or how it ended, is heard next.
                node.orders = None;
            }
        }
        Ok(())
    }

    /// Listens until `pick` has taken one piece of news from every machine.
    pub(crate) fn gather<T>(
        &mut self,
        pick: impl FnMut(usize, News) -> Option<T>,
    ) -> anyhow::Result<Vec<T>> {
        self.gather_with(pick, || {})
    }

    /// As [`Cluster::gather`]; calls `meanwhile` now and then.
    pub(crate) fn gather_with<T>(
        &mut self,
        mut pick: impl FnMut(usize, News) -> Option<T>,
        mut meanwhile: impl FnMut(),
    ) -> anyhow::Result<Vec<T>> {
        let mut picked: Vec<Option<T>> = self.nodes.iter().map(|_| None).collect();
        while picked.iter().any(Option::is_none) {
            if self.interrupted.load(Ordering::Relaxed) {
                bail!(Interrupted);
            }
            match self.heard.recv_timeout(Duration::from_millis(50)) {
                Ok((index, Heard::News(News::Failed { why }))) => return self.failed(index, why),
                Ok((index, Heard::News(news))) => {
                    if let Some(taken) = pick(index, news) {
                        picked[index] = Some(taken);
                    }
                }
                Ok((index, Heard::Garbage(line))) => {
                    bail!(
                        "machine {} said what is no news: {line:?}",
                        self.nodes[index].id
                    );
                }
                Ok((index, Heard::End)) => {
                    let why = self.how_it_ended(index);
                    return self.failed(index, why);
                }
                Err(RecvTimeoutError::Timeout) => meanwhile(),
                Err(RecvTimeoutError::Disconnected) => bail!("all machines ended"),
            }
        }
        Ok(picked.into_iter().flatten().collect())
    }

    /// Reports a failure together with what the other machines say at the same time.
    fn failed<T>(&mut self, index: usize, why: String) -> anyhow::Result<T> {
        let mut told = vec![format!("machine {}: {why}", self.nodes[index].id)];
        let until = Instant::now() + FAILURE_PATIENCE;
        while let Ok((index, heard)) = self
            .heard
            .recv_timeout(until.saturating_duration_since(Instant::now()))
        {
            let why = match heard {
                Heard::News(News::Failed { why }) => why,
                Heard::End => self.how_it_ended(index),
                _ => continue,
            };
            let line = format!("machine {}: {why}", self.nodes[index].id);
            if !told
                .iter()
                .any(|known| known.starts_with(&format!("machine {}:", self.nodes[index].id)))
            {
                told.push(line);
            }
        }
        // A signal that reached the nodes, too: they stop because the whole command does.
        if self.interrupted.load(Ordering::Relaxed) {
            bail!(Interrupted);
        }
        bail!("the cluster stopped\n  {}", told.join("\n  "))
    }

    fn how_it_ended(&mut self, index: usize) -> String {
        let node = &mut self.nodes[index];
        node.ended = true;
        match node.child.wait() {
            Ok(status) => match (status.signal(), status.code()) {
                (Some(signal), _) => format!("its process was killed by signal {signal}"),
                (_, Some(code)) => format!("its process ended with status {code}"),
                _ => "its process ended".into(),
            },
            Err(error) => format!("its process cannot be waited for: {error}"),
        }
    }

    /// Stops every machine, and waits until it is gone.
    pub(crate) fn stop(mut self) -> anyhow::Result<()> {
        self.order(&Order::Stop)?;
        self.reap()
    }

    /// Waits for the nodes; those that do not end are killed.
    fn reap(&mut self) -> anyhow::Result<()> {
        for node in &mut self.nodes {
            node.orders = None;
        }
        let until = Instant::now() + STOP_PATIENCE;
        let mut failure = None;
        while self.nodes.iter().any(|node| !node.ended) {
            match self
                .heard
                .recv_timeout(until.saturating_duration_since(Instant::now()))
            {
                Ok((index, Heard::End)) => {
                    let id = self.nodes[index].id;
                    let node = &mut self.nodes[index];
                    node.ended = true;
                    let status = node.child.wait().context("cannot wait for a node")?;
                    if !status.success() {
                        failure.get_or_insert_with(|| format!("machine {id} ended with {status}"));
                    }
                }
                Ok((index, Heard::News(News::Failed { why }))) => {
                    failure
                        .get_or_insert_with(|| format!("machine {}: {why}", self.nodes[index].id));
                }
                Ok(_) => {}
                Err(_) => {
                    for node in self.nodes.iter_mut().filter(|node| !node.ended) {
                        failure.get_or_insert_with(|| {
                            format!("machine {} did not stop and was killed", node.id)
                        });
                        // Killing what has just ended fails, and is not needed.
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
        // Whatever went wrong was told; here it only matters that nothing keeps running.
        let _ = self.reap();
    }
}

/// Returns the command that starts one machine.
fn node_command(id: MachineId, config: &Path, log: Option<&str>) -> anyhow::Result<Command> {
    let program = std::env::current_exe().context("cannot find the farm program")?;
    let mut command = Command::new(program);
    command
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
    tell: &Sender<(usize, Heard)>,
) -> anyhow::Result<Node> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot start machine {id}"))?;
    let orders = child.stdin.take();
    let lines = BufReader::new(child.stdout.take().context("a node has no output")?);
    let tell = tell.clone();
    std::thread::spawn(move || {
        for line in lines.lines().map_while(Result::ok) {
            let heard = serde_json::from_str(&line).map_or(Heard::Garbage(line), Heard::News);
            if tell.send((index, heard)).is_err() {
                return;
            }
        }
        // The launcher may be gone already.
        let _ = tell.send((index, Heard::End));
    });
    Ok(Node {
        id,
        child,
        orders,
        ended: false,
    })
}
