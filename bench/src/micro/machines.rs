//! The two machines of a bench, and the options of all benches between two machines.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use farm_core::config::{Config, HugePages};
use farm_core::fabric::{Capability, FabricMachine};
use farm_core::ids::{MachineId, WorkerId};
use farm_core::machine::fabric_config;
use farm_core::mem::Mapping;

use super::host::Conditions;

/// Maximum time for which the machines of a bench wait for each other.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// The worker of each machine that measures or answers.
pub(super) const WORKER: WorkerId = WorkerId::FIRST;

/// The options of a bench between two machines.
#[derive(Clone, Debug)]
pub struct MicroRun {
    /// The cluster whose directories, page sizes and kind of ring records the benchmark uses.
    pub config: Config,
    /// Bytes of a message or an operation; one row of results for each size.
    pub sizes: Vec<usize>,
    /// Cores of the measuring machine and of the other machine. If a bench needs two cores and these are not exactly
    /// two, it chooses both cores itself.
    pub cores: Vec<u32>,
    /// Number of time slices of each measurement. Over RDMA devices: number of turns of this platform, and of perftest.
    pub repeats: usize,
    /// Duration of one time slice.
    pub slice: Duration,
}

impl MicroRun {
    /// Returns the configuration of the bench's machines, with one worker each. The name of their cluster is derived
    /// from the name of the configured cluster, so that two benches of one cluster cannot run at the same time. If a
    /// bench is killed, the next bench of the cluster removes its files.
    pub(super) fn machines(&self) -> Config {
        let Config {
            cluster,
            memory,
            rings,
            ..
        } = &self.config;
        let mut config = Config::default_for(2, 1);
        // Names have at most 40 characters.
        let name: String = cluster.name.chars().take(32).collect();
        config.cluster.name = format!("{name}-bench");
        config.cluster.run_dir.clone_from(&cluster.run_dir);
        config.memory.dir.clone_from(&memory.dir);
        config.memory.huge_pages = memory.huge_pages;
        config.rings.checksums = rings.checksums;
        config
    }

    /// Returns the conditions that are known before the bench.
    pub(super) fn conditions(&self) -> Result<Conditions> {
        let memory = &self.config.memory;
        let page_bytes = Mapping::page_bytes_of(&memory.dir, memory.huge_pages != HugePages::Off)?;
        Ok(Conditions::before(
            &memory.dir,
            page_bytes as u64,
            self.repeats,
            self.slice,
        ))
    }
}

/// Refuses sizes other than multiples of `unit` up to `most`.
pub(super) fn check_sizes(sizes: &[usize], unit: usize, most: usize) -> Result<()> {
    let fits = |bytes: &usize| (1..=most).contains(bytes) && bytes.is_multiple_of(unit);
    ensure!(
        sizes.iter().all(fits),
        "sizes: each must be a multiple of {unit} bytes, from {unit} to {most} bytes"
    );
    Ok(())
}

/// Returns the ids of the two machines of a configuration.
pub(super) fn ids(config: &Config) -> [MachineId; 2] {
    [0, 1].map(|index: usize| config.machines[index].id)
}

/// Starts a machine on its fabric.
pub(super) fn start(config: &Config, machine: MachineId) -> Result<FabricMachine> {
    Ok(FabricMachine::start(fabric_config(config, machine)?)?)
}

/// Starts both machines in this process.
pub(super) fn start_both(config: &Config) -> Result<[FabricMachine; 2]> {
    let [one, other] = ids(config);
    Ok([start(config, one)?, start(config, other)?])
}

/// Connects a machine to its peer. Returns the memories that the peer offers.
pub(super) fn connect(
    machine: &mut FabricMachine,
    [own, peer]: [MachineId; 2],
    offer: &[Capability],
) -> Result<Vec<Capability>> {
    let met = machine.connect(&[own, peer], &mut |_| offer.to_vec(), PATIENCE)?;
    let theirs = met.into_iter().find(|met| met.machine == peer);
    let theirs =
        theirs.with_context(|| format!("machine {own} did not connect to machine {peer}"))?;
    Ok(theirs.offer)
}

/// Connects two machines of this process. Returns the memories that the first machine is offered by the second one, and
/// vice versa.
pub(super) fn connect_both(
    [one, other]: &mut [FabricMachine; 2],
    ids: [MachineId; 2],
    [of_one, of_other]: [&[Capability]; 2],
) -> Result<[Vec<Capability>; 2]> {
    let [id, other_id] = ids;
    std::thread::scope(|scope| {
        let others = scope.spawn(move || connect(other, [other_id, id], of_other));
        let to_one = connect(one, ids, of_one);
        let to_other = others
            .join()
            .expect("the thread that connects the other machine does not panic");
        Ok([to_one?, to_other?])
    })
}
