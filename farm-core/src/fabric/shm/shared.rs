//! The state that the workers of one machine share: the peers to which it is connected, and their memory.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use super::files::Names;
use super::park::Doorbells;
use super::signs::Signs;
use crate::fabric::handshake::Begins;
use crate::fabric::turns::Turns;
use crate::fabric::{Capability, Departed, Departure, ImportError, Lease};
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
    /// Time without a sign of life after which a peer's lease has expired; `None` if peers have no leases.
    pub lease: Option<Duration>,
}

const CONNECTED: u8 = 1;
const LEFT: u8 = 2;
const LOST: u8 = 3;

/// The connection to one start of a peer, from the viewpoint of this machine's workers. A peer that is started again gets a
/// new one.
#[derive(Debug)]
pub(super) struct PeerState {
    pub(super) machine: MachineId,
    pub(super) boot: u64,
    doorbells: Doorbells,
    pub(super) signs: Signs,
    state: AtomicU8,
    /// The first file of the start, whose lock the process holds as long as it lives.
    first: File,
}

impl PeerState {
    /// Creates a connected peer.
    pub(super) fn connected(machine: MachineId, boot: u64, memory: &Memory, first: File) -> Self {
        Self {
            machine,
            boot,
            doorbells: Doorbells::in_first_file(memory),
            signs: Signs::of(memory),
            state: AtomicU8::new(CONNECTED),
            first,
        }
    }

    /// Returns whether the process has ended: the system has released its lock. A process that is stopped has not.
    pub(super) fn has_died(&self) -> bool {
        let died = self.departure().is_some() && matches!(self.first.try_lock_shared(), Ok(()));
        if died {
            // Others test the lock, too. If it cannot be released, it is when the connection is dropped.
            let _ = self.first.unlock();
        }
        died
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
    pub(super) signs: Signs,
    pub(super) turns: Turns,
    pub(super) doorbell_capability: Capability,
    /// What has changed with leases of peers, and no worker has taken.
    leases: Mutex<VecDeque<Lease>>,
    has_leases: AtomicBool,
    /// The machines that the configuration lists, and those of them that may call later. Set when this machine begins to connect.
    pub(super) machines: OnceLock<(Vec<MachineId>, Vec<MachineId>)>,
    /// With what this machine begins. Set with the machines.
    pub(super) begins: OnceLock<Begins>,
    /// The last connection to each peer that has connected, in ascending order of id, and one to this machine itself.
    peers: Mutex<Vec<Arc<PeerState>>>,
    /// Peers whose connections have ended, in the order in which this was noticed.
    departed: Mutex<Vec<Departed>>,
    /// Number of arrivals and departures of peers, so that a poll detects a new one with a single load.
    pub(super) changes: AtomicU32,
    /// Mapped memory of connected peers, by machine, start and key. One mapping serves all workers.
    imported: Mutex<BTreeMap<(MachineId, u64, u64), Memory>>,
}

impl Shared {
    pub(super) fn new(
        config: ShmConfig,
        names: Names,
        boot: u64,
        (first, doorbell_capability): (&Memory, Capability),
    ) -> Self {
        Self {
            turns: Turns::new(config.workers),
            config,
            names,
            boot,
            next_key: AtomicU64::new(1),
            doorbells: Doorbells::in_first_file(first),
            signs: Signs::of(first),
            doorbell_capability,
            leases: Mutex::default(),
            has_leases: AtomicBool::new(false),
            machines: OnceLock::new(),
            begins: OnceLock::new(),
            peers: Mutex::default(),
            departed: Mutex::default(),
            changes: AtomicU32::new(0),
            imported: Mutex::default(),
        }
    }

    pub(super) fn peers(&self) -> MutexGuard<'_, Vec<Arc<PeerState>>> {
        let peers = self.peers.lock();
        peers.expect("no thread panics while it holds the lock of the peers")
    }

    /// As [`Shared::peers`]; `None` if another thread has the lock.
    pub(super) fn try_peers(&self) -> Option<MutexGuard<'_, Vec<Arc<PeerState>>>> {
        self.peers.try_lock().ok()
    }

    pub(super) fn departures(&self) -> MutexGuard<'_, Vec<Departed>> {
        let departed = self.departed.lock();
        departed.expect("no thread panics while it holds the lock of departed peers")
    }

    /// Returns the last connection to a peer.
    pub(super) fn peer(&self, machine: MachineId) -> Option<Arc<PeerState>> {
        let peers = self.peers();
        let found = peers.binary_search_by_key(&machine, |peer| peer.machine);
        found.ok().map(|at| Arc::clone(&peers[at]))
    }

    /// Returns whether a process to which this machine is not connected has ended. Its files may be gone.
    pub(super) fn has_died(&self, machine: MachineId, boot: u64) -> bool {
        match File::open(self.names.memory(machine, boot, 0)) {
            Ok(first) => matches!(first.try_lock_shared(), Ok(())),
            Err(error) => error.kind() == std::io::ErrorKind::NotFound,
        }
    }

    /// Returns whether this machine is connected to a peer.
    pub(super) fn is_connected(&self, machine: MachineId) -> bool {
        let peer = self.peer(machine);
        peer.is_some_and(|peer| peer.departure().is_none())
    }

    /// Records that a peer has connected, for the first time or after its last connection has ended.
    pub(super) fn arrive(&self, peer: Arc<PeerState>) {
        let mut peers = self.peers();
        match peers.binary_search_by_key(&peer.machine, |known| known.machine) {
            Ok(at) => {
                self.departures()
                    .retain(|known| known.machine != peer.machine);
                peers[at] = peer;
            }
            Err(at) => peers.insert(at, peer),
        }
        drop(peers);
        self.changes.fetch_add(1, Ordering::Release);
        self.wake_all();
    }

    pub(super) fn import(
        &self,
        capability: &Capability,
    ) -> Result<(Memory, Arc<PeerState>), ImportError> {
        let machine = capability.machine;
        let not_connected = ImportError::NotConnected(machine);
        let Some(peer) = self.peer(machine).filter(|peer| peer.departure().is_none()) else {
            return Err(not_connected);
        };
        capability.check_start(peer.boot)?;
        let mut imported = self.imported();
        let key = (machine, peer.boot, capability.key);
        if let Some(memory) = imported.get(&key) {
            return Ok((memory.clone(), peer));
        }
        let memory = map_capability(&self.names, capability)?;
        // A peer that has departed meanwhile must not leave a mapping behind.
        if peer.departure().is_none() {
            imported.insert(key, memory.clone());
        }
        Ok((memory, peer))
    }

    fn imported(&self) -> MutexGuard<'_, BTreeMap<(MachineId, u64, u64), Memory>> {
        let imported = self.imported.lock();
        imported.expect("no thread panics while it holds the lock of imported memory")
    }

    /// Records that a connection has ended, with the failure that the peer reported, if any.
    pub(super) fn depart(&self, peer: &PeerState, how: Departure, why: Option<String>) {
        let machine = peer.machine;
        let peers = self.peers();
        let is_last = |known: &Arc<PeerState>| std::ptr::eq(&raw const **known, peer);
        let mut departed = self.departures();
        // The monitor also reports connections that a worker broke. Record only the first report.
        if peers.iter().any(is_last) && !departed.iter().any(|known| known.machine == machine) {
            departed.push(Departed { machine, how, why });
        }
        drop((peers, departed));
        let state = if how == Departure::Left { LEFT } else { LOST };
        peer.state.store(state, Ordering::Release);
        // What the peer exported takes memory until it is unmapped, although its files are removed.
        let is_of = |key: &(MachineId, u64, u64)| (key.0, key.1) == (machine, peer.boot);
        self.imported().retain(|key, _| !is_of(key));
        self.changes.fetch_add(1, Ordering::Release);
        self.wake_all();
    }

    /// Moves changes of leases to where workers take them. If a worker holds the lock, they stay for the next call.
    pub(super) fn leases_changed(&self, changes: &mut VecDeque<Lease>) {
        if changes.is_empty() {
            return;
        }
        let Ok(mut leases) = self.leases.try_lock() else {
            return;
        };
        leases.append(changes);
        self.has_leases.store(true, Ordering::Release);
        drop(leases);
        self.wake_all();
    }

    /// Returns the oldest change of a lease that no worker has taken.
    #[inline]
    pub(super) fn take_lease(&self) -> Option<Lease> {
        if !self.has_leases.load(Ordering::Acquire) {
            return None;
        }
        let leases = self.leases.lock();
        let mut leases = leases.expect("no thread panics while it holds the lock of the leases");
        let taken = leases.pop_front();
        self.has_leases.store(!leases.is_empty(), Ordering::Release);
        taken
    }

    pub(super) fn wake_all(&self) {
        fence(Ordering::SeqCst);
        for worker in 0..self.config.workers {
            self.doorbells.ring(
                WorkerId::new(worker as u16).expect("every worker of a machine has a valid id"),
            );
        }
    }

    /// Returns with what this machine begins.
    pub(super) fn begins(&self) -> Begins {
        self.begins.get().copied().unwrap_or_default()
    }

    /// Returns the machines that the configuration lists.
    pub(super) fn machines(&self) -> &[MachineId] {
        self.machines.get().map_or(&[], |machines| &machines.0)
    }

    /// Returns whether a machine may call while this one runs.
    pub(super) fn joins(&self, machine: MachineId) -> bool {
        let machines = self.machines.get();
        machines.is_some_and(|machines| machines.1.contains(&machine))
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
