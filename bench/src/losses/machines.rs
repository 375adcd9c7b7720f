//! The processes of the machines of a cluster.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use farm_core::config::Config;
use farm_core::fabric::shm::remove_stale_files;
use farm_core::ids::MachineId;
use farm_core::machine::{forget_kept, newest_configuration, stale_files};
use rustix::process::{Pid, Signal, kill_process};

use super::LossOptions;
use super::curve::{Curve, Latency, now_ns};
use super::program::{Account, CHILD_VARIABLE, EACH, News, Order, Part, Task};
use crate::recorder::histogram;

/// Longest time that a machine may take to answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time between two looks at the configuration.
const LOOK: Duration = Duration::from_millis(2);
/// Time by which the counted time is longer than the planned one.
const SPARE: Duration = Duration::from_secs(5);

/// The machines of a cluster. Dropping it stops those that run, and removes the files of those that were killed.
pub(super) struct Machines {
    config: Config,
    /// The file of the configuration.
    file: PathBuf,
    /// None after it was killed.
    all: Vec<Option<Machine>>,
    /// Those that were stopped, and have not ended.
    stopped: Vec<Machine>,
    /// Those that were killed and run again, without load.
    returned: Vec<Machine>,
    accounts: Vec<Account>,
}

struct Machine {
    id: MachineId,
    child: Child,
    /// None when it was told to end.
    orders: Option<ChildStdin>,
    news: Receiver<String>,
}

/// A load that has begun.
pub(super) struct Begun {
    origin_ns: u64,
}

impl Begun {
    /// Returns the time since it began.
    pub(super) fn elapsed(&self) -> Duration {
        Duration::from_nanos(now_ns() - self.origin_ns)
    }

    /// Kills a machine. Returns when the signal was sent, since the load began.
    pub(super) fn kill(&self, machines: &mut Machines, index: usize) -> Result<Duration> {
        let mut machine = machines.all[index].take().context("it was killed before")?;
        let signal = self.elapsed();
        machine.kill()?;
        Ok(signal)
    }

    /// Stops a machine, which then does nothing and has not ended. Returns when the signal was sent, since the load began.
    pub(super) fn stop(&self, machines: &mut Machines, index: usize) -> Result<Duration> {
        let machine = machines.all[index]
            .take()
            .context("it was stopped before")?;
        let signal = self.elapsed();
        kill_process(Pid::from_child(&machine.child), Signal::STOP)?;
        machines.stopped.push(machine);
        Ok(signal)
    }
}

impl Machines {
    /// Starts the machines of a configuration, with a store of their own in `dir`, and waits until all have created their accounts.
    pub(super) fn start(config: &Config, dir: &Path, options: &LossOptions) -> Result<Self> {
        std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
        let mut config = config.clone();
        config.durability.dir = Some(dir.join("configuration"));
        let file = dir.join("cluster.toml");
        std::fs::write(&file, config.to_toml()).with_context(|| file.display().to_string())?;
        let mut machines = Self {
            config,
            file,
            all: Vec::new(),
            stopped: Vec::new(),
            returned: Vec::new(),
            accounts: Vec::new(),
        };
        for machine in machines.config.machines.clone() {
            let part = Part::Load {
                in_flight: options.in_flight,
                ballast: match machines.config.memory_of(machine.id) {
                    0 => 0,
                    _ => options.ballast,
                },
            };
            let started = Machine::start(machine.id, &machines.file, part)?;
            machines.all.push(Some(started));
        }
        for machine in machines.all.iter().flatten() {
            let News::Created { accounts } = machine.hear()? else {
                bail!("machine {} did not create accounts", machine.id);
            };
            machines.accounts.extend(accounts);
        }
        Ok(machines)
    }

    /// Ends the machines that are stopped.
    pub(super) fn end_stopped(&mut self) -> Result<()> {
        let mut stopped = self.stopped.drain(..);
        stopped.try_for_each(|mut machine| machine.kill())
    }

    fn left(&mut self) -> impl Iterator<Item = &mut Machine> {
        self.all.iter_mut().flatten()
    }

    /// Begins the load, for at most this time.
    pub(super) fn begin(&mut self, most: Duration) -> Result<Begun> {
        let origin_ns = now_ns();
        let accounts = self.accounts.clone();
        let order = Order::Begin {
            accounts,
            origin_ns,
            most: most + SPARE,
        };
        self.left().try_for_each(|machine| machine.tell(&order))?;
        Ok(Begun { origin_ns })
    }

    /// Starts a machine again that was killed, and waits until all copies are full again. Returns the times when it was a member, and when
    /// they were full, since the load began.
    pub(super) fn bring_back(&mut self, index: usize, begun: &Begun) -> Result<[Duration; 2]> {
        let id = self.config.machines[index].id;
        let machine = Machine::start(id, &self.file, Part::Return)?;
        let News::Joined = machine.hear()? else {
            bail!("machine {id} did not join");
        };
        let joined = begun.elapsed();
        self.returned.push(machine);
        while !self.are_full()? {
            ensure!(
                begun.elapsed() < joined + PATIENCE,
                "the copies on machine {id} are not full after {PATIENCE:?}"
            );
            std::thread::sleep(LOOK);
        }
        Ok([joined, begun.elapsed()])
    }

    /// Kills all machines.
    pub(super) fn kill_all(&mut self) -> Result<()> {
        let mut killed = self.all.iter_mut().filter_map(Option::take);
        killed.try_for_each(|mut machine| machine.kill())
    }

    /// Starts all machines again, which were killed. Returns the times from then until the last one has read an account, and until the last
    /// one has committed a transaction.
    pub(super) fn resume(&mut self) -> Result<[Duration; 2]> {
        let account = *self.accounts.first().context("there are no accounts")?;
        let started = now_ns();
        for (place, machine) in self.config.machines.iter().enumerate() {
            let machine = Machine::start(machine.id, &self.file, Part::Resume(account))?;
            self.all[place] = Some(machine);
        }
        let mut last = [0, 0];
        for machine in self.left() {
            let News::Used {
                read_ns,
                committed_ns,
            } = machine.hear()?
            else {
                bail!("machine {} did not use an account", machine.id);
            };
            last = [last[0].max(read_ns), last[1].max(committed_ns)];
        }
        Ok(last.map(|at| Duration::from_nanos(at - started)))
    }

    /// Returns whether all copies of all regions are there, and full.
    fn are_full(&self) -> Result<bool> {
        let newest = newest_configuration(&self.config)?;
        let newest = newest.context("the cluster has no configuration")?;
        Ok(newest.has_full_copies(self.config.replicas()))
    }

    /// Ends the load. Returns the curve of the machines that are left.
    pub(super) fn end(&mut self) -> Result<Curve> {
        self.left()
            .try_for_each(|machine| machine.tell(&Order::End))?;
        let mut curve = Curve::default();
        for machine in self.left() {
            let News::Committed { bins } = machine.hear()? else {
                bail!("machine {} did not count commits", machine.id);
            };
            curve.add(&bins);
        }
        Ok(curve)
    }

    /// Returns how long the transactions took that ended in a part of the time since the load began.
    pub(super) fn latency(&mut self, [from, to]: [Duration; 2]) -> Result<Latency> {
        let mut all = histogram();
        for machine in self.left() {
            machine.tell(&Order::Latency { from, to })?;
            let News::Latency { taken } = machine.hear()? else {
                bail!("machine {} did not report latencies", machine.id);
            };
            all.add(taken)?;
        }
        let us = |quantile| all.value_at_quantile(quantile) as f64 / 1e3;
        Ok(Latency {
            p50_us: us(0.5),
            p99_us: us(0.99),
        })
    }

    /// Checks that the accounts have the same sum as at first.
    pub(super) fn check_sum(&mut self) -> Result<()> {
        let accounts = self.accounts.clone();
        let expected = EACH * accounts.len() as i64;
        let machine = self.left().next().context("no machine is left")?;
        machine.tell(&Order::Sum { accounts })?;
        let News::Sum { sum } = machine.hear()? else {
            bail!("machine {} did not add up the accounts", machine.id);
        };
        ensure!(
            sum == expected,
            "the sum of all accounts is {sum}, and was {expected} before: the cluster is wrong"
        );
        Ok(())
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        // A failure cannot be reported here.
        let _ = self.end_stopped();
        // A machine stops when its standard input is closed. Closes all of them before it waits for the first one, so that all stop in
        // order, and remove their files.
        let returned = std::mem::take(&mut self.returned);
        self.all.extend(returned.into_iter().map(Some));
        self.left().for_each(|machine| machine.orders = None);
        for machine in self.left() {
            // The end of its output is the end of the process.
            while machine.news.recv_timeout(PATIENCE).is_ok() {}
            let _ = machine.kill();
        }
        // `farm clean` removes what stays.
        let _ = forget_kept(&self.config);
        for files in stale_files(&self.config) {
            // The next start of the cluster, or `farm clean`, removes what stays.
            let _ = remove_stale_files(&files);
        }
    }
}

impl Machine {
    fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Starts the process of a machine of the configuration in a file.
    fn start(id: MachineId, config: &Path, part: Part) -> Result<Self> {
        let task = Task {
            config: config.to_owned(),
            machine: id.get(),
            part,
        };
        let program = std::env::current_exe().context("cannot determine this program's path")?;
        let mut child = Command::new(program)
            .env(CHILD_VARIABLE, serde_json::to_string(&task)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start machine {id}"))?;
        let orders = child.stdin.take();
        let output = child.stdout.take().context("the process has no output")?;
        let (send, news) = channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            lines.map(|line| send.send(line)).all(|sent| sent.is_ok())
        });
        Ok(Self {
            id,
            child,
            orders,
            news,
        })
    }

    fn tell(&mut self, order: &Order) -> Result<()> {
        let orders = self.orders.as_mut().context("it was told to end")?;
        let told = serde_json::to_writer(&mut *orders, order).map_err(std::io::Error::from);
        let told = told.and_then(|()| orders.write_all(b"\n"));
        told.with_context(|| format!("machine {} has ended", self.id))
    }

    fn hear(&self) -> Result<News> {
        let id = self.id;
        match self.news.recv_timeout(PATIENCE) {
            Ok(line) => {
                serde_json::from_str(&line).with_context(|| format!("machine {id} told: {line}"))
            }
            Err(RecvTimeoutError::Timeout) => {
                bail!("machine {id} did not answer within {PATIENCE:?}")
            }
            Err(RecvTimeoutError::Disconnected) => bail!("machine {id} has ended"),
        }
    }
}
