//! One process of a cluster: it is killed, stopped or ends, while the others go on, and another one follows it.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use farm_core::config::Config;
use farm_core::machine::newest_configuration;
use farm_core::membership::configuration::Configuration;
use rustix::process::{Pid, Signal, kill_process};

use super::protocol::News;
use super::{Cluster, Output};

/// Time between two looks for what is awaited.
const LOOK: Duration = Duration::from_millis(50);

impl Cluster {
    /// Returns the configuration of the nodes.
    pub(crate) fn config(&self) -> &Config {
        &self.launch.config
    }

    /// Returns the newest configuration of the cluster; `None` if it has stored none.
    pub(crate) fn newest(&self) -> anyhow::Result<Option<Configuration>> {
        Ok(newest_configuration(self.config())?)
    }

    /// Sends a signal to the process of a machine. `machine` is its index in the configuration, here and below.
    pub(crate) fn signal_one(&self, machine: usize, signal: Signal) -> anyhow::Result<()> {
        let node = &self.nodes[machine];
        kill_process(Pid::from_child(&node.child), signal)
            .with_context(|| format!("cannot send a signal to the process of machine {}", node.id))
    }

    /// Returns whether the process of a machine has ended.
    pub(crate) fn has_ended(&mut self, machine: usize) -> anyhow::Result<bool> {
        let ended = self.nodes[machine].child.try_wait();
        let ended = ended.context("cannot wait for the process of a machine")?;
        Ok(ended.is_some())
    }

    /// Waits until the process of a machine has ended, which may report a failure.
    pub(crate) fn await_end(&mut self, machine: usize, most: Duration) -> anyhow::Result<()> {
        let began = Instant::now();
        loop {
            self.check_interrupted()?;
            match self.outputs.recv_timeout(LOOK) {
                Ok((index, Output::End)) if index == machine => break,
                Ok((index, Output::News(News::Failed { why }))) if index != machine => {
                    return self.failed(index, why);
                }
                Ok((index, _)) if index == machine => {}
                Ok((index, Output::News(news))) => self.early.push_back((index, news)),
                Ok((index, Output::End)) => {
                    let why = self.how_it_ended(index);
                    return self.failed(index, why);
                }
                Ok(_) => {}
                Err(_) if began.elapsed() > most => {
                    let (id, seconds) = (self.nodes[machine].id, most.as_secs());
                    bail!("the process of machine {id} has not ended within {seconds} s")
                }
                Err(_) => {}
            }
        }
        let node = &mut self.nodes[machine];
        node.ended = true;
        let ended = node.child.wait();
        ended.context("cannot wait for the process of a machine")?;
        Ok(())
    }

    /// Starts another process of a machine, whose last one has ended.
    pub(crate) fn launch_one(&mut self, machine: usize) -> anyhow::Result<()> {
        self.nodes[machine] = self.launch.one(machine, &self.sender)?;
        Ok(())
    }

    /// Receives news until `pick` has returned a value for this machine. `what` is what is awaited.
    pub(crate) fn gather_one<T>(
        &mut self,
        machine: usize,
        (what, most): (&str, Duration),
        mut pick: impl FnMut(News) -> Option<T>,
    ) -> anyhow::Result<T> {
        let began = Instant::now();
        loop {
            self.check_interrupted()?;
            match self.receive_new()? {
                Some((index, news)) if index == machine => {
                    if let Some(picked) = pick(news) {
                        return Ok(picked);
                    }
                }
                Some(of_other) => self.early.push_back(of_other),
                None if began.elapsed() > most => {
                    let (id, seconds) = (self.nodes[machine].id, most.as_secs());
                    bail!("{what} of machine {id} did not follow within {seconds} s")
                }
                None => {}
            }
        }
    }
}
