//! Single machines of a cluster are killed or stopped while the others go on, and come back.

use std::time::{Duration, Instant};

use anyhow::bail;
use farm_core::config::Config;
use farm_core::membership::configuration::{Configuration, Member, Process};
use rand::Rng;
use rand_xoshiro::Xoshiro256PlusPlus;
use rustix::process::Signal;

use super::{MOST_RUNNING_MS, RunResult, wait};
use crate::cluster::Cluster;
use crate::cluster::protocol::{Beginning, News, Order};

/// Time between two looks at the configuration of the cluster.
const LOOK_MS: u64 = 5;
/// Least time after a process goes on in which it ends if the others have gone on without it.
const LEAST_TO_END: Duration = Duration::from_millis(500);

/// Has one machine after another be lost, and come back, until this has happened `losses` times.
pub(super) fn lose_some(
    cluster: &mut Cluster,
    (rng, patience): (&mut Xoshiro256PlusPlus, Duration),
    beginning: &mut Beginning,
    (losses, result): (u32, &mut RunResult),
) -> anyhow::Result<()> {
    while result.kills < losses {
        wait(cluster, rng.random_range(0..MOST_RUNNING_MS))?;
        let machine = rng.random_range(0..cluster.len());
        result.kills += 1;
        let is_lost = match rng.random_bool(0.5) {
            true => {
                cluster.signal_one(machine, Signal::KILL)?;
                true
            }
            false => {
                result.stops += 1;
                stop_for_a_while(cluster, rng, machine)?
            }
        };
        if !is_lost {
            continue;
        }
        cluster.await_end(machine, patience)?;
        cluster.launch_one(machine)?;
        let is_ready = |news| matches!(news, News::Ready).then_some(());
        cluster.gather_one(machine, ("the start", patience), is_ready)?;
        until_full(cluster, patience)?;
        beginning.starts += 1;
        cluster.order_one(machine, &Order::Begin(beginning.clone()))?;
        let has_begun = |news| matches!(news, News::Begun { .. }).then_some(());
        cluster.gather_one(machine, ("the first operations", patience), has_begun)?;
    }
    Ok(())
}

/// Stops a process for up to twice the time of a lease, and lets it go on. Returns whether the others have gone on without it, so that it ends.
fn stop_for_a_while(
    cluster: &mut Cluster,
    rng: &mut Xoshiro256PlusPlus,
    machine: usize,
) -> anyhow::Result<bool> {
    let lease = cluster.config().lease();
    let before = process_of(cluster, machine)?;
    cluster.signal_one(machine, Signal::STOP)?;
    wait(cluster, rng.random_range(0..2 * lease.as_millis() as u64))?;
    cluster.signal_one(machine, Signal::CONT)?;
    let went_on = Instant::now();
    loop {
        if cluster.has_ended(machine)? {
            return Ok(true);
        }
        let is_member = process_of(cluster, machine)? == before;
        if is_member && went_on.elapsed() > lease.max(LEAST_TO_END) {
            return Ok(false);
        }
        wait(cluster, LOOK_MS)?;
    }
}

/// Returns the process of a machine that is a member of the newest configuration.
fn process_of(cluster: &Cluster, machine: usize) -> anyhow::Result<Option<Process>> {
    let newest = cluster.newest()?;
    let id = cluster.config().machines[machine].id;
    let member = newest.as_ref().and_then(|newest| newest.running_on(id));
    Ok(member.map(Member::process))
}

/// Waits until all machines are members, and all copies are full.
fn until_full(cluster: &Cluster, patience: Duration) -> anyhow::Result<()> {
    let began = Instant::now();
    loop {
        let newest = cluster.newest()?;
        if newest.is_some_and(|newest| is_full(&newest, cluster.config())) {
            return Ok(());
        }
        if began.elapsed() > patience {
            bail!(
                "the copies of all regions were not full again within {} s",
                patience.as_secs()
            );
        }
        wait(cluster, LOOK_MS)?;
    }
}

fn is_full(newest: &Configuration, config: &Config) -> bool {
    newest.running().count() == config.machines.len()
        && newest.recovered == newest.version.id
        && newest.has_full_copies(config.replicas())
}
