//! Single machines of a cluster are killed or stopped while the others go on, and come back.

use std::time::Duration;

use rand::Rng;
use rand_xoshiro::Xoshiro256PlusPlus;

use super::{MOST_RUNNING_MS, RunResult, wait};
use crate::cluster::Cluster;
use crate::cluster::protocol::{Beginning, News, Order};

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
        let lost = cluster.lose_one(rng, machine, patience)?;
        result.stops += u32::from(lost.was_stopped);
        if !lost.is_new {
            continue;
        }
        beginning.starts += 1;
        cluster.order_one(machine, &Order::Begin(beginning.clone()))?;
        let has_begun = |news| matches!(news, News::Begun { .. }).then_some(());
        cluster.gather_one(machine, ("the first operations", patience), has_begun)?;
    }
    Ok(())
}
