//! The state that the workers of one machine share: the memory that it exports, and the peers to
//! which it is connected.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock};

use super::connect::{self, Hello};
use super::door::Door;
use super::endpoint::ShmEndpoint;
use super::files::{Claim, Names, StartError, is_in_memory, os};
use super::leavings::{hold, remove_leavings};
use super::park::Doorbells;
use crate::fabric::meeting::{ConnectError, Monitor, Patience, PeerOffer, Reporter, random_words};
use crate::fabric::{ArenaConfig, Capability, Departed, Departure, ImportError};
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
    boot: u64,
    doorbells: Doorbells,
    state: AtomicU8,
}

impl PeerState {
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
    names: Names,
    pub(super) boot: u64,
    next_key: AtomicU64,
    pub(super) doorbells: Doorbells,
    doorbell_capability: Capability,
    /// The machines that the configuration lists. Set when this machine begins to connect.
    machines: OnceLock<Vec<MachineId>>,
    /// Peers in ascending order of id, including this machine. Set once connected.
    peers: OnceLock<Vec<PeerState>>,
    /// Peers whose connections have ended, in the order in which this was noticed.
    departed: Mutex<Vec<Departed>>,
    /// Number of departures, so that a poll detects a new one with a single load.
    pub(super) departures: AtomicU32,
    /// Mapped memory of peers, by machine and key. One mapping serves all workers.
    imported: Mutex<BTreeMap<(MachineId, u64), Memory>>,
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
        if capability.boot != peer.boot {
            return Err(ImportError::Restarted {
                machine,
                stale: capability.boot,
                current: peer.boot,
            });
        }
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
            self.doorbells
                .ring(WorkerId::new(worker as u16).expect("worker ids are valid"));
        }
    }

    /// Returns the machines that the configuration lists.
    pub(super) fn machines(&self) -> &[MachineId] {
        self.machines.get().map_or(&[], Vec::as_slice)
    }

    pub(super) fn hello(&self, offer: Vec<Capability>) -> Hello {
        Hello {
            machines: self.machines().to_vec(),
            asks_only: false,
            version: connect::VERSION,
            cluster: self.config.cluster.clone(),
            digest: self.config.digest,
            machine: self.config.machine,
            boot: self.boot,
            doorbells: self.doorbell_capability,
            offer,
        }
    }

    pub(super) fn socket(&self, machine: MachineId) -> PathBuf {
        self.names.socket(machine)
    }
}

fn map_capability(names: &Names, capability: &Capability) -> Result<Memory, MappingError> {
    let access = if capability.writable {
        Access::ReadWrite
    } else {
        Access::ReadOnly
    };
    let path = names.memory(capability.machine, capability.boot, capability.key);
    let bytes = capability.bytes as usize;
    Ok(Memory::of(Mapping::open(&path, bytes, access)?).window(0, bytes))
}

/// Creates the doorbells' file, which is the first file of a start, and takes the lock on it that
/// marks the start's files as in use. Between these two steps another machine's start may take the
/// file for one left behind, and remove it. Then the file is not used, and the loop retries with
/// another start number.
fn first_file(
    names: &Names,
    machine: MachineId,
    bytes: usize,
) -> Result<(u64, Mapping, File), StartError> {
    loop {
        let [boot] = random_words().map_err(StartError::Random)?;
        let path = names.memory(machine, boot, 0);
        let mapping = Mapping::create(&path, bytes, false)?;
        if let Some(held) = hold(&path).map_err(os("lock", &path))? {
            return Ok((boot, mapping, held));
        }
    }
}

/// One machine on the shared-memory fabric. Dropping it sends the farewell to the peers, and
/// removes its files, including its lock.
pub struct ShmMachine {
    shared: Arc<Shared>,
    listener: UnixListener,
    /// Answers callers once the machines are connected.
    door: Option<Door>,
    monitor: Option<Monitor<UnixStream>>,
    _lock: Claim,
    /// The lock by which every other start that uses the memory directory detects that this machine
    /// runs. Dropped after the files are removed.
    _alive: File,
}

impl ShmMachine {
    /// Claims the machine's name, removes files that an earlier process left behind, and listens.
    ///
    /// [`StartError::AlreadyRunning`] when another process runs the machine.
    /// [`StartError::AlreadyRunning`] when the machine already has a process.
    pub fn start(config: ShmConfig) -> Result<Self, StartError> {
        let names = Names::new(&config.run_dir, &config.memory_dir, &config.cluster);
        let lock = names.claim(config.machine)?;
        if let Ok(false) = is_in_memory(&config.memory_dir) {
            tracing::warn!(
                "memory.dir = {:?} is on a disk: the kernel writes the memory of the cluster back to it, which is \
                 slow and fills it; set memory.dir to a tmpfs, such as /dev/shm, or a hugetlbfs",
                config.memory_dir
            );
        }
        remove_leavings(&config.memory_dir);
        let machine = config.machine;
        match Self::listen(config, names.clone()) {
            Ok((shared, listener, alive)) => Ok(Self {
                shared,
                listener,
                door: None,
                monitor: None,
                _lock: lock,
                _alive: alive,
            }),
            Err(error) => {
                // Report the first error. The next start removes what this clean-up leaves behind.
                let _ = names.clean(machine);
                Err(error)
            }
        }
    }

    fn listen(
        config: ShmConfig,
        names: Names,
    ) -> Result<(Arc<Shared>, UnixListener, File), StartError> {
        let socket = names.socket(config.machine);
        let listener = UnixListener::bind(&socket).map_err(os("listen on", &socket))?;
        let bytes = Doorbells::bytes(config.workers);
        let (boot, doorbells, alive) = first_file(&names, config.machine, bytes)?;
        let doorbell_capability = Capability {
            machine: config.machine,
            boot,
            key: 0,
            bytes: bytes as u64,
            writable: true,
        };
        let shared = Arc::new(Shared {
            config,
            names,
            boot,
            next_key: AtomicU64::new(1),
            doorbells: Doorbells::new(Memory::of(doorbells).window(0, bytes)),
            doorbell_capability,
            machines: OnceLock::new(),
            peers: OnceLock::new(),
            departed: Mutex::default(),
            departures: AtomicU32::new(0),
            imported: Mutex::new(BTreeMap::new()),
        });
        Ok((shared, listener, alive))
    }

    /// Returns a handle with which other threads of the machine export memory and wake workers.
    pub fn exporter(&self) -> Exporter {
        Exporter {
            shared: Arc::clone(&self.shared),
        }
    }

    /// Allocates memory that peers can import. Reserves its space immediately.
    ///
    /// # Errors
    /// [`MappingError::NoSpace`] when the directory is full.
    pub fn export(
        &self,
        bytes: usize,
        writable: bool,
    ) -> Result<(Memory, Capability), MappingError> {
        self.exporter().export(bytes, writable)
    }

    /// Connects to every machine of the cluster, this one included, through the same code. Offers
    /// each machine the memory that `offer` returns for it. Waits at most for `patience`.
    ///
    /// # Errors
    /// [`ConnectError`] names the machine that did not connect, or refused, and the reason.
    pub fn connect<'p>(
        &mut self,
        machines: &[MachineId],
        offer: &mut dyn FnMut(MachineId) -> Vec<Capability>,
        patience: impl Into<Patience<'p>>,
    ) -> Result<Vec<PeerOffer>, ConnectError> {
        let own = self.shared.config.machine;
        let listed = self.shared.machines.set(machines.to_vec());
        listed.map_err(|_| ConnectError::Twice)?;
        let mut met = connect::meet(
            &self.shared,
            &self.listener,
            machines,
            offer,
            patience.into(),
        )?;
        met.push((self.shared.hello(offer(own)), None));
        met.sort_by_key(|(hello, _)| hello.machine);

        let mut peers = Vec::with_capacity(met.len());
        let mut offers = Vec::with_capacity(met.len());
        let mut sockets: Vec<(MachineId, UnixStream)> = Vec::new();
        for (hello, socket) in met {
            let doorbells =
                map_capability(&self.shared.names, &hello.doorbells).map_err(|source| {
                    ConnectError::Memory {
                        machine: hello.machine,
                        source,
                    }
                })?;
            peers.push(PeerState {
                machine: hello.machine,
                boot: hello.boot,
                doorbells: Doorbells::new(doorbells),
                state: AtomicU8::new(CONNECTED),
            });
            sockets.extend(socket.map(|socket| (hello.machine, socket)));
            offers.push(PeerOffer {
                machine: hello.machine,
                offer: hello.offer,
            });
        }
        self.shared
            .peers
            .set(peers)
            .map_err(|_| ConnectError::Twice)?;
        let name = format!("{}-monitor", self.shared.config.machine);
        let mut monitor = Monitor::start(name)?;
        for (machine, socket) in sockets {
            let shared = Arc::clone(&self.shared);
            let ended = move |how, why| shared.depart(machine, how, why);
            monitor.add(machine, socket, Box::new(ended))?;
        }
        self.monitor = Some(monitor);
        let listener = self.listener.try_clone()?;
        self.door = Some(Door::open(Arc::clone(&self.shared), listener)?);
        Ok(offers)
    }

    /// Returns the peers whose connections have ended, in the order in which this machine noticed.
    pub fn departed(&self) -> Vec<Departed> {
        let departed = self.shared.departed.lock();
        departed
            .expect("no thread panics while it holds the lock of departed peers")
            .clone()
    }

    /// Returns the handle with which threads of this machine report its failure to the peers;
    /// `None` before it has connected.
    pub(crate) fn reporter(&self) -> Option<Reporter> {
        self.monitor.as_ref().map(Monitor::reporter)
    }

    /// Creates the endpoint of one of this machine's workers.
    pub fn endpoint(
        &self,
        worker: WorkerId,
        arena: &ArenaConfig,
        most_outstanding: usize,
    ) -> ShmEndpoint {
        ShmEndpoint::new(Arc::clone(&self.shared), worker, arena, most_outstanding)
    }
}

impl Drop for ShmMachine {
    fn drop(&mut self) {
        drop(self.door.take());
        drop(self.monitor.take());
        if let Err(error) = self.shared.names.clean(self.shared.config.machine) {
            tracing::warn!(%error, "cannot remove all files of this machine; its next start removes them");
        }
    }
}

/// A handle to export memory and wake workers, from any thread of the machine.
#[derive(Clone)]
pub struct Exporter {
    shared: Arc<Shared>,
}

impl Exporter {
    /// Returns the random number of this start of the machine.
    pub fn boot(&self) -> u64 {
        self.shared.boot
    }

    /// See [`ShmMachine::export`].
    ///
    /// # Errors
    /// [`MappingError::NoSpace`] when the directory is full.
    pub fn export(
        &self,
        bytes: usize,
        writable: bool,
    ) -> Result<(Memory, Capability), MappingError> {
        let shared = &self.shared;
        let key = shared.next_key.fetch_add(1, Ordering::Relaxed);
        let path = shared.names.memory(shared.config.machine, shared.boot, key);
        let memory =
            Memory::of(Mapping::create(&path, bytes, shared.config.huge_pages)?).window(0, bytes);
        let capability = Capability {
            machine: shared.config.machine,
            boot: shared.boot,
            key,
            bytes: bytes as u64,
            writable,
        };
        Ok((memory, capability))
    }

    /// Wakes a worker of this machine.
    pub fn wake(&self, worker: WorkerId) {
        fence(Ordering::SeqCst);
        self.shared.doorbells.ring(worker);
    }
}
