//! The state that the workers of one machine share: the peers to which it is connected, and their memory.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Mutex, OnceLock};

use super::files::Names;
use super::park::Doorbells;
use crate::fabric::{Capability, Departed, Departure, ImportError};
use crate::ids::{MachineId, WorkerId};
use crate::mem::{Access, Mapping, MappingError, Memory};

/// The configuration of a machine on this fabric.
#[derive(Clone, Debug)]
pub struct ShmConfig {
    /// The cluster's name. Machines with the same name find each other, and each of them has only
    /// one process.
    pub cluster: String,
    /// Directory of sockets and locks.
    pub run_dir: PathBuf,
    /// Directory of shared memory.
    pub memory_dir: PathBuf,
    /// Whether to request huge pages.
    pub huge_pages: bool,
    /// Id of this machine.
    pub machine: MachineId,
    /// Number of workers.
    pub workers: usize,
    /// Digest of the configuration. Peers with another digest are refused.
    pub digest: u64,
}

const CONNECTED: u8 = 1;
const LEFT: u8 = 2;
const LOST: u8 = 3;

/// A peer, from the viewpoint of this machine's workers.
#[derive(Debug)]
pub(super) struct PeerState {
    pub(super) machine: MachineId,
    pub(super) boot: u64,
    doorbells: Doorbells,
    state: AtomicU8,
}

impl PeerState {
    /// Creates a connected peer.
    pub(super) fn connected(machine: MachineId, boot: u64, doorbells: Memory) -> Self {
        Self {
            machine,
            boot,
            doorbells: Doorbells::new(doorbells),
            state: AtomicU8::new(CONNECTED),
        }
    }

    pub(super) fn departure(&self) -> Option<Departure> {
        match self.state.load(Ordering::Acquire) {
            LEFT => Some(Departure::Left),
            LOST => Some(Departure::Lost),
            _ => None,
        }
    }

    /// Returns whether the peer has this worker.
    #[inline]
    pub(super) fn has(&self, worker: WorkerId) -> bool {
        self.doorbells.has(worker)
    }

    pub(super) fn ring(&self, worker: WorkerId) -> bool {
        self.doorbells.ring(worker)
    }
}

/// State shared by a machine's workers and its monitor.
pub(super) struct Shared {
    pub(super) config: ShmConfig,
    pub(super) names: Names,
    pub(super) boot: u64,
    pub(super) next_key: AtomicU64,
    pub(super) doorbells: Doorbells,
    pub(super) doorbell_capability: Capability,
    /// The machines that the configuration lists. Set when this machine begins to connect.
    pub(super) machines: OnceLock<Vec<MachineId>>,
    /// Peers in ascending order of id, including this machine. Set once connected.
    pub(super) peers: OnceLock<Vec<PeerState>>,
    /// Peers whose connections have ended, in the order in which this was noticed.
    pub(super) departed: Mutex<Vec<Departed>>,
    /// Number of departures, so that a poll detects a new one with a single load.
    pub(super) departures: AtomicU32,
    /// Mapped memory of peers, by machine and key. One mapping serves all workers.
    pub(super) imported: Mutex<BTreeMap<(MachineId, u64), Memory>>,
}

impl Shared {
    pub(super) fn peers(&self) -> &[PeerState] {
        self.peers.get().map_or(&[], Vec::as_slice)
    }

    pub(super) fn peer_index(&self, machine: MachineId) -> Option<usize> {
        self.peers()
            .binary_search_by_key(&machine, |peer| peer.machine)
            .ok()
    }

    pub(super) fn import(&self, capability: &Capability) -> Result<(Memory, usize), ImportError> {
        let machine = capability.machine;
        let index = self
            .peer_index(machine)
            .ok_or(ImportError::NotConnected(machine))?;
        let peer = &self.peers()[index];
        if peer.departure().is_some() {
            return Err(ImportError::NotConnected(machine));
        }
        capability.check_start(peer.boot)?;
        let mut imported = self
            .imported
            .lock()
            .expect("no thread panics while it holds the lock of imported memory");
        if let Some(memory) = imported.get(&(machine, capability.key)) {
            return Ok((memory.clone(), index));
        }
        let memory = map_capability(&self.names, capability)?;
        imported.insert((machine, capability.key), memory.clone());
        Ok((memory, index))
    }

    /// Records that the connection of a peer has ended, with the failure that the peer reported, if
    /// any.
    pub(super) fn depart(&self, machine: MachineId, how: Departure, why: Option<String>) {
        let Some(index) = self.peer_index(machine) else {
            return;
        };
        let mut departed = self
            .departed
            .lock()
            .expect("no thread panics while it holds the lock of departed peers");
        // The monitor also reports connections that a worker broke. Record only the first report.
        if !departed.iter().any(|known| known.machine == machine) {
            departed.push(Departed { machine, how, why });
        }
        drop(departed);
        let state = if how == Departure::Left { LEFT } else { LOST };
        self.peers()[index].state.store(state, Ordering::Release);
        self.departures.fetch_add(1, Ordering::Release);
        self.wake_all();
    }

    pub(super) fn wake_all(&self) {
        fence(Ordering::SeqCst);
        for worker in 0..self.config.workers {
            self.doorbells.ring(
                WorkerId::new(worker as u16).expect("every worker of a machine has a valid id"),
            );
        }
    }

    /// Returns the machines that the configuration lists.
    pub(super) fn machines(&self) -> &[MachineId] {
        self.machines.get().map_or(&[], Vec::as_slice)
    }

    pub(super) fn socket(&self, machine: MachineId) -> PathBuf {
        self.names.socket(machine)
    }
}

pub(super) fn map_capability(
    names: &Names,
    capability: &Capability,
) -> Result<Memory, MappingError> {
    let access = if capability.writable {
        Access::ReadWrite
    } else {
        Access::ReadOnly
    };
    let path = names.memory(capability.machine, capability.boot, capability.key);
    let bytes = capability.bytes as usize;
    Ok(Memory::of(Mapping::open(&path, bytes, access)?).window(0, bytes))
}
