//! `--lose-machines`: machines of a benchmark's cluster are lost, one after another, while it runs, and come back.
//!
//! Machines with memory store the data and give no load. Those without memory give all of it, and are not lost: so they know what has
//! committed, and the checks after the run are those of a run without losses.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use farm_core::config::Config;
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::Usage;
use crate::cli::LosingArgs;
use crate::cluster::Cluster;
use crate::cluster::protocol::{News, Order};
use crate::measure::{self, Length, bar};

/// Longest time from a return until the next loss, in milliseconds.
const MOST_BETWEEN_MS: u64 = 500;
/// Longest time for a machine to end, to start, or to fill its copies.
const PATIENCE: Duration = Duration::from_secs(60);

/// If machines are to be lost, changes a valid configuration so that it survives losses, and so that a machine gives load that is not lost.
pub(crate) fn prepare(config: &mut Config, args: &LosingArgs) -> anyhow::Result<()> {
    if !args.lose_machines {
        return Ok(());
    }
    let machines = config.machines.len() as u64;
    if config.storing_machines().count() == config.machines.len()
        && let Some(last) = config.machines.last_mut()
    {
        last.memory_bytes = Some(0);
    }
    if !config.is_logged() {
        return Err(Usage::error(
            "--lose-machines needs durability.mode = \"memory\", which is the default: with \"none\" all machines stop when one is lost",
        ));
    }
    let (storing, copies) = (
        config.storing_machines().count() as u64,
        config.replicas() as u64,
    );
    if storing < 2 || copies < 2 {
        return Err(Usage::error(
            "--lose-machines needs three machines or more (--machines), because the last one has no memory and gives the load, and two \
             copies or more (durability.replicas)",
        ));
    }
    // As much data as before on fewer machines, with its copies.
    let memory = &mut config.memory;
    let bytes = memory.per_machine_bytes.saturating_mul(machines * copies) / storing;
    memory.per_machine_bytes = bytes.next_multiple_of(memory.region_bytes);
    Ok(config.validate()?)
}

/// Sends an order to run, and loses machines meanwhile, if that is requested. Returns one report of each machine, as `pick` returns it.
pub(crate) fn run<T>(
    cluster: &mut Cluster,
    (name, length): (&str, Length),
    order: &Order,
    losing: Option<&mut Losing>,
    pick: impl Fn(News) -> Option<T>,
) -> anyhow::Result<Vec<T>> {
    match losing {
        Some(losing) => losing.run(cluster, (name, length), order, pick),
        None => measure::run(cluster, name, length, order, pick),
    }
}

/// Returns an error if a run is bounded otherwise than by time: machines that give no load would have a part of these bounds.
pub(crate) fn check_bounds(bounds: &[(&str, bool)]) -> anyhow::Result<()> {
    match bounds.iter().find(|(_, is_set)| *is_set) {
        None => Ok(()),
        Some((name, _)) => Err(Usage::error(format!(
            "--lose-machines cannot be used together with {name}, which all machines would share: bound the run by --duration alone"
        ))),
    }
}

/// Returns the number of workers that give load.
pub(crate) fn loading_workers(config: &Config, loses: bool) -> u64 {
    let machines = config.machines.iter();
    let loading = machines.filter(|machine| !loses || config.memory_of(machine.id) == 0);
    loading.map(|machine| u64::from(machine.workers)).sum()
}

/// Loses machines while a benchmark runs.
pub(crate) struct Losing {
    rng: Xoshiro256PlusPlus,
    /// What a machine executes that was started again, before it can take part in a check.
    set_up: Vec<Order>,
    kills: u32,
    stops: u32,
}

impl Losing {
    /// If machines are to be lost, has those with memory give no load from now on.
    pub(crate) fn begin(
        cluster: &mut Cluster,
        loses: bool,
        seed: u64,
        set_up: Vec<Order>,
    ) -> anyhow::Result<Option<Self>> {
        if !loses {
            return Ok(None);
        }
        for machine in storing(cluster) {
            cluster.order_one(machine, &Order::GiveNoLoad)?;
        }
        Ok(Some(Self {
            rng: Xoshiro256PlusPlus::seed_from_u64(seed),
            set_up,
            kills: 0,
            stops: 0,
        }))
    }

    /// Sends an order to run, and loses machines until those without memory have sent their reports. Then has those that were started again
    /// execute the orders of the set-up, and compares all copies. Returns one report of each machine, as `pick` returns it.
    fn run<T>(
        &mut self,
        cluster: &mut Cluster,
        (name, length): (&str, Length),
        order: &Order,
        pick: impl Fn(News) -> Option<T>,
    ) -> anyhow::Result<Vec<T>> {
        let storing: Vec<usize> = storing(cluster).collect();
        crate::write_stderr(format_args!(
            "running {name} {}, and losing machines",
            length.in_words()
        ));
        let bar = bar(length.whole_ms(), name, "{msg} {wide_bar} {elapsed}");
        cluster.order(order)?;
        bar.enable_steady_tick(Duration::from_millis(100));
        let mut reports: Vec<Option<T>> = (0..cluster.len()).map(|_| None).collect();
        let (mut back, mut next) = (BTreeSet::new(), Instant::now());
        while reports.iter().any(Option::is_none) {
            // Machines with memory report at once, because they give no load.
            let all_serve = storing.iter().all(|one| reports[*one].is_some());
            if all_serve && Instant::now() >= next {
                let machine = storing[self.rng.random_range(0..storing.len())];
                let lost = cluster.lose_one(&mut self.rng, machine, PATIENCE)?;
                match lost.was_stopped {
                    true => self.stops += 1,
                    false => self.kills += 1,
                }
                if lost.is_new {
                    back.insert(machine);
                }
                let between = self.rng.random_range(0..MOST_BETWEEN_MS);
                next = Instant::now() + Duration::from_millis(between);
            }
            if let Some((machine, news)) = cluster.receive()?
                && let Some(report) = pick(news)
            {
                reports[machine] = Some(report);
            }
        }
        bar.finish_and_clear();
        for machine in back {
            for order in &self.set_up {
                cluster.order_one(machine, order)?;
                let is_done = |news| matches!(news, News::Opened).then_some(());
                cluster.gather_one(machine, ("the set-up", PATIENCE), is_done)?;
            }
            cluster.order_one(machine, &Order::GiveNoLoad)?;
        }
        crate::verify::check_equal(cluster.config(), PATIENCE)?;
        crate::write_stderr(format_args!(
            "machines were lost {} time(s) so far, {} killed and {} stopped; all copies are equal",
            self.kills + self.stops,
            self.kills,
            self.stops
        ));
        Ok(reports.into_iter().flatten().collect())
    }
}

/// Returns the indices of the machines with memory.
fn storing(cluster: &Cluster) -> impl Iterator<Item = usize> + use<> {
    let config = cluster.config().clone();
    (0..config.machines.len())
        .filter(move |machine| config.memory_of(config.machines[*machine].id) > 0)
}
