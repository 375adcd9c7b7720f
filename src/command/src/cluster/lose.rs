//! A machine of a cluster is lost while the others go on, and comes back.

use std::time::{Duration, Instant};

use anyhow::bail;
use farm_core::config::Config;
use farm_core::membership::configuration::{Configuration, Member, Process};
use rand::Rng;
use rand_xoshiro::Xoshiro256PlusPlus;
use rustix::process::Signal;

use super::Cluster;
use super::protocol::News;

/// Time between two looks at the configuration of the cluster.
const LOOK: Duration = Duration::from_millis(5);
/// Least time after a process goes on in which it ends if the others have gone on without it.
const LEAST_TO_END: Duration = Duration::from_millis(500);

/// What has happened to a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lost {
    /// Whether its process was stopped, and not killed.
    pub(crate) was_stopped: bool,
    /// Whether another process of it was started, because the others have gone on without it.
    pub(crate) is_new: bool,
}

impl Cluster {
    /// Kills a machine, or stops it for up to twice the time of a lease. If the others have gone on without it, starts it again, and waits
    /// until it has joined, and all copies are full. Fails if one of these steps takes longer than `patience`.
    pub(crate) fn lose_one(
        &mut self,
        rng: &mut Xoshiro256PlusPlus,
        machine: usize,
        patience: Duration,
    ) -> anyhow::Result<Lost> {
        let is_killed = rng.random_bool(0.5);
        let is_new = match is_killed {
            true => {
                self.signal_one(machine, Signal::KILL)?;
                true
            }
            false => self.stop_for_a_while(rng, machine)?,
        };
        if is_new {
            self.await_end(machine, patience)?;
            self.launch_one(machine)?;
            let is_ready = |news| matches!(news, News::Ready).then_some(());
            self.gather_one(machine, ("the start", patience), is_ready)?;
            self.until_full(patience)?;
        }
        Ok(Lost {
            was_stopped: !is_killed,
            is_new,
        })
    }

    /// Stops a process for up to twice the time of a lease, and lets it go on. Returns whether the others have gone on without it, so that it
    /// ends.
    fn stop_for_a_while(
        &mut self,
        rng: &mut Xoshiro256PlusPlus,
        machine: usize,
    ) -> anyhow::Result<bool> {
        let lease = self.config().lease();
        let before = self.process_of(machine)?;
        self.signal_one(machine, Signal::STOP)?;
        let stopped = rng.random_range(0..2 * lease.as_millis() as u64);
        self.pause(Duration::from_millis(stopped))?;
        self.signal_one(machine, Signal::CONT)?;
        let went_on = Instant::now();
        loop {
            if self.has_ended(machine)? {
                return Ok(true);
            }
            let is_member = self.process_of(machine)? == before;
            if is_member && went_on.elapsed() > lease.max(LEAST_TO_END) {
                return Ok(false);
            }
            self.pause(LOOK)?;
        }
    }

    /// Returns the process of a machine that is a member of the newest configuration.
    fn process_of(&self, machine: usize) -> anyhow::Result<Option<Process>> {
        let newest = self.newest()?;
        let id = self.config().machines[machine].id;
        let member = newest.as_ref().and_then(|newest| newest.running_on(id));
        Ok(member.map(Member::process))
    }

    /// Waits until all machines are members, and all copies are full.
    fn until_full(&self, patience: Duration) -> anyhow::Result<()> {
        let began = Instant::now();
        loop {
            let newest = self.newest()?;
            if newest.is_some_and(|newest| is_full(&newest, self.config())) {
                return Ok(());
            }
            if began.elapsed() > patience {
                bail!(
                    "the copies of all regions were not full again within {} s",
                    patience.as_secs()
                );
            }
            self.pause(LOOK)?;
        }
    }

    /// Lets the processes run for a time, unless the command is interrupted.
    pub(crate) fn pause(&self, time: Duration) -> anyhow::Result<()> {
        std::thread::sleep(time);
        self.check_interrupted()
    }
}

fn is_full(newest: &Configuration, config: &Config) -> bool {
    newest.running().count() == config.machines.len()
        && newest.recovered == newest.version.id
        && newest.has_full_copies(config.replicas())
}
