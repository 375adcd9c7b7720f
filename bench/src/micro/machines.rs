//! The two machines of a bench, and what all benches between two machines are given.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use farm_core::config::{Config, HugePages};
use farm_core::fabric::{Capability, FabricMachine};
use farm_core::ids::{MachineId, WorkerId};
use farm_core::machine::fabric_config;
use farm_core::mem::Mapping;

use super::host::Conditions;

/// How long machines of a bench wait for each other.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// The worker of each machine that measures or answers.
pub(super) const WORKER: WorkerId = WorkerId::FIRST;

/// What a bench between two machines measures.
#[derive(Clone, Debug)]
pub struct MicroRun {
    /// The cluster whose directories, page sizes and kind of ring records the benchmark uses.
    pub config: Config,
    /// Bytes of a message or an operation.
    pub sizes: Vec<usize>,
    /// The cores of the measuring machine and of the other one. If there are too few, the bench chooses
    /// them.
    pub cores: Vec<u32>,
    /// Slices of each measurement; over RDMA devices turns, of ours and of perftest.
    pub repeats: usize,
    /// Time of one slice.
    pub slice: Duration,
}

impl MicroRun {
    /// The configuration of the bench's machines, one worker each. Two benches beside one cluster cannot
    /// run at a time. The next bench of the same name removes the files of one that was killed.
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

    /// The conditions before the bench.
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
        "sizes: {unit} to {most} bytes, in multiples of {unit}"
    );
    Ok(())
}

/// The two machines of a configuration.
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

/// Connects a machine to its peer. Returns what the peer offers.
pub(super) fn connect(
    machine: &mut FabricMachine,
    [own, peer]: [MachineId; 2],
    offer: &[Capability],
) -> Result<Vec<Capability>> {
    let met = machine.connect(&[own, peer], &mut |_| offer.to_vec(), PATIENCE)?;
    let theirs = met.into_iter().find(|met| met.machine == peer);
    let theirs = theirs.with_context(|| format!("machine {own} did not meet {peer}"))?;
    Ok(theirs.offer)
}

/// Connects two machines of this process. Returns what each is offered by the other.
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
