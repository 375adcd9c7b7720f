//! What the workers of one machine share: the memory it exports, the peers it is connected to.

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

/// What a machine needs to know to start on this fabric.
#[derive(Clone, Debug)]
pub struct ShmConfig {
    /// The cluster's name: machines of one name find each other, and only one process may be each.
    pub cluster: String,
    /// Sockets and locks.
    pub run_dir: PathBuf,
    /// Shared memory.
    pub memory_dir: PathBuf,
    /// Ask for huge pages.
    pub huge_pages: bool,
    /// This machine.
    pub machine: MachineId,
    /// Its workers.
    pub workers: usize,
    /// Digest of the configuration: peers with another one are refused.
    pub digest: u64,
}

const CONNECTED: u8 = 1;
const LEFT: u8 = 2;
const LOST: u8 = 3;

/// A peer as the workers of this machine see it.
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

    /// Whether the peer has this worker.
    #[inline]
    pub(super) fn has(&self, worker: WorkerId) -> bool {
        self.doorbells.has(worker)
    }

    pub(super) fn ring(&self, worker: WorkerId) -> bool {
        self.doorbells.ring(worker)
    }
}

/// Shared by a machine's workers and its monitor.
pub(super) struct Shared {
    pub(super) config: ShmConfig,
    names: Names,
    pub(super) boot: u64,
    next_key: AtomicU64,
    pub(super) doorbells: Doorbells,
    doorbell_capability: Capability,
    /// The machines that the configuration lists. Set when this machine begins to connect.
    machines: OnceLock<Vec<MachineId>>,
    /// Peers in ascending order of id; this machine is one of them. Set once connected.
    peers: OnceLock<Vec<PeerState>>,
    /// Peers whose connections have ended, in that order.
    departed: Mutex<Vec<Departed>>,
    /// Counts departures, so that a poll notices one by one load.
    pub(super) departures: AtomicU32,
    /// Memory of peers that is mapped, by machine and key: one mapping serves all workers.
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
        let mut imported = self.imported.lock().expect("no import panics half-way");
        if let Some(memory) = imported.get(&(machine, capability.key)) {
            return Ok((memory.clone(), index));
        }
        let memory = map_capability(&self.names, capability)?;
        imported.insert((machine, capability.key), memory.clone());
        Ok((memory, index))
    }

    /// The connection of a peer has ended, with the failure that it reported, if it did.
    pub(super) fn depart(&self, machine: MachineId, how: Departure, why: Option<String>) {
        let Some(index) = self.peer_index(machine) else {
            return;
        };
        let mut departed = self.departed.lock().expect("no push panics half-way");
        // A connection that a worker broke ends for the monitor, too.
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
                .ring(WorkerId::new(worker as u16).expect("workers are within the limit"));
        }
    }

    /// The machines that the configuration lists.
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

/// Makes the doorbells' file, which is the first of a start, and takes the lock on it that says that
/// the start's files are in use. Another machine's start may come between the two and take the file
/// for a leaving; then it is not used, and this one tries with another start number.
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

/// One machine on the shared-memory fabric. Dropping it sends the farewell to the peers and removes its
/// files, its lock among them.
pub struct ShmMachine {
    shared: Arc<Shared>,
    listener: UnixListener,
    /// Answers callers once the machines have met.
    door: Option<Door>,
    monitor: Option<Monitor<UnixStream>>,
    _lock: Claim,
    /// Tells every other start that uses the memory directory that this machine lives. Dropped after
    /// the files are removed.
    _alive: File,
}

impl ShmMachine {
    /// Claims the machine's name, cleans up after an earlier process, and listens.
    ///
    /// # Errors
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
                // The error matters more than what stays for the next start to remove.
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

    /// A handle by which threads other than the machine's own export memory and wake workers.
    pub fn exporter(&self) -> Exporter {
        Exporter {
            shared: Arc::clone(&self.shared),
        }
    }

    /// Makes memory that peers can import. Its space is reserved now.
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

    /// Connects to every machine of the cluster (this one included, through the same code), giving
    /// each the memory that `offer` names for it. Waits for them no longer than `patience` says.
    ///
    /// # Errors
    /// [`ConnectError`] names the machine that did not come, or refused, and why.
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

    /// Peers whose connections have ended, in the order in which that was noticed.
    pub fn departed(&self) -> Vec<Departed> {
        let departed = self.shared.departed.lock();
        departed.expect("no push panics half-way").clone()
    }

    /// How threads of this machine tell its peers that it has failed; `None` before it has connected.
    pub(crate) fn reporter(&self) -> Option<Reporter> {
        self.monitor.as_ref().map(Monitor::reporter)
    }

    /// The endpoint of one of this machine's workers.
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
            tracing::warn!(%error, "leaving files behind; the next start of this machine removes them");
        }
    }
}

/// Exports memory and wakes workers, from any thread of the machine.
#[derive(Clone)]
pub struct Exporter {
    shared: Arc<Shared>,
}

impl Exporter {
    /// The number of this start of the machine, drawn at random.
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
