//! One machine on the shared-memory fabric: its start, its connections, the memory that it exports, and its end.

use std::fs::{File, TryLockError};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use super::connect::{self, Hello};
use super::door::ShmCallers;
use super::endpoint::ShmEndpoint;
use super::files::{Claim, Names, StartError, is_in_memory, os};
use super::lease::LeaseThread;
use super::park::Doorbells;
use super::shared::{Shared, ShmConfig};
use super::stale_files::{hold, remove_all_stale_files};
use crate::fabric::handshake::{
    Admission, ConnectError, Door, Monitor, Patience, PeerOffer, Reporter, Roster, announce_ready,
    random_words,
};
use crate::fabric::{ArenaConfig, Capability, Departed};
use crate::ids::{MachineId, WorkerId};
use crate::mem::{Mapping, MappingError, Memory};

/// Number of tries to take the lock of a process that may have ended, and the time between two of them.
const LOCK_TRIES: u32 = 5;
const LOCK_AGAIN: Duration = Duration::from_millis(1);

/// Creates the doorbells' file, which is the first file of a start, and takes the lock on it that
/// marks the start's files as in use. Between these two steps, another starting machine may mistake
/// the file for a stale one and remove it. In that case this function retries with another start
/// number.
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

/// Starts to give signs of life, if peers have leases: from the begin, because others may be connected before this machine is.
fn lease_thread(shared: &Arc<Shared>) -> Result<Option<LeaseThread>, StartError> {
    let lease = shared.config.lease;
    let started = lease.map(|lease| LeaseThread::start(Arc::clone(shared), lease));
    started.transpose().map_err(|source| StartError::Os {
        what: "start the thread of the leases for",
        path: shared.socket(shared.config.machine),
        source,
    })
}

/// One machine on the shared-memory fabric. Dropping it sends the farewell to the peers, and
/// removes its files, including its lock.
pub struct ShmMachine {
    shared: Arc<Shared>,
    listener: UnixListener,
    /// Gives signs of life, if peers have leases.
    _lease: Option<LeaseThread>,
    /// Answers callers once the machines are connected.
    door: Option<Door>,
    monitor: Option<Monitor<UnixStream>>,
    _lock: Claim,
    /// The lock by which every other start that uses the memory directory detects that this machine
    /// runs. Dropped after the files are removed.
    alive: File,
}

impl ShmMachine {
    /// Claims the machine's name, removes files that an earlier process left behind, and listens.
    ///
    /// # Errors
    /// [`StartError::AlreadyRunning`] when another process runs the machine.
    pub fn start(config: ShmConfig) -> Result<Self, StartError> {
        let names = Names::new(&config.run_dir, &config.memory_dir, &config.cluster);
        let lock = names.claim(config.machine)?;
        if let Ok(false) = is_in_memory(&config.memory_dir) {
            tracing::warn!(
                "memory.dir = {:?} is on a disk: the kernel writes the memory of the cluster to the disk, which is \
                 slow and fills the disk; set memory.dir to a tmpfs, such as /dev/shm, or a hugetlbfs",
                config.memory_dir
            );
        }
        remove_all_stale_files(&config.memory_dir);
        let machine = config.machine;
        let listened = Self::listen(config, names.clone());
        match listened.and_then(|parts| Ok((lease_thread(&parts.0)?, parts))) {
            Ok((lease, (shared, listener, alive))) => Ok(Self {
                _lease: lease,
                shared,
                listener,
                door: None,
                monitor: None,
                _lock: lock,
                alive,
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
        let bytes = Doorbells::bytes_of_first_file(config.workers);
        let (boot, first, alive) = first_file(&names, config.machine, bytes)?;
        let doorbell_capability = Capability {
            machine: config.machine,
            boot,
            key: 0,
            bytes: bytes as u64,
            writable: true,
        };
        let first = Memory::of(first).window(0, bytes);
        let first = (&first, doorbell_capability);
        let shared = Arc::new(Shared::new(config, names, boot, first));
        Ok((shared, listener, alive))
    }

    /// Returns a handle with which other threads of the machine export memory and wake workers.
    pub fn exporter(&self) -> Exporter {
        Exporter {
            shared: Arc::clone(&self.shared),
            huge_pages: self.shared.config.huge_pages,
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

    /// Connects to the machines of the cluster, including this machine itself, whose workers thus
    /// access their own memory through the same code: to those that join only if they are present, and this one joins, too. Offers
    /// each machine the memory that `offer` returns for it. Waits at most for `patience`.
    ///
    /// # Errors
    /// [`ConnectError`] names the machine that did not connect, or refused, and the reason.
    pub fn connect<'r, 'p>(
        &mut self,
        machines: impl Into<Roster<'r>>,
        offer: &mut dyn FnMut(MachineId) -> Vec<Capability>,
        patience: impl Into<Patience<'p>>,
    ) -> Result<Vec<PeerOffer>, ConnectError> {
        let own = self.shared.config.machine;
        let roster = machines.into();
        let later = [roster.joiners, roster.returning].concat();
        let listed = (roster.machines.to_vec(), later);
        let listed = self.shared.machines.set(listed);
        listed.map_err(|_| ConnectError::Twice)?;
        let begins = self.shared.begins.set(roster.begins);
        begins.map_err(|_| ConnectError::Twice)?;
        let mut met = connect::meet(&self.shared, &self.listener, roster, offer, patience.into())?;
        met.push((Hello::of(&self.shared, offer(own)), None));
        met.sort_by_key(|(hello, _)| hello.machine);

        let mut peers = Vec::with_capacity(met.len());
        for (hello, _) in &met {
            peers.push(connect::connected(&self.shared, hello)?);
        }
        let monitor = Monitor::start(format!("{own}-monitor"))?;
        let mut offers = Vec::with_capacity(met.len());
        for ((hello, socket), peer) in met.into_iter().zip(peers) {
            self.shared.arrive(Arc::clone(&peer));
            if let Some(mut socket) = socket {
                if hello.runs
                    && let Err(error) = announce_ready(&mut socket)
                {
                    // What it has sent tells how it has ended.
                    tracing::info!(machine = %hello.machine, %error, "a machine has ended");
                }
                connect::watch(&self.shared, monitor.sockets(), peer, socket)?;
            }
            offers.push(PeerOffer {
                machine: hello.machine,
                runs: hello.runs,
                offer: hello.offer,
            });
        }
        let callers = ShmCallers {
            shared: Arc::clone(&self.shared),
            listener: self.listener.try_clone()?,
            sockets: monitor.sockets().clone(),
        };
        self.monitor = Some(monitor);
        self.door = Some(Door::open(format!("{own}-door"), callers)?);
        Ok(offers)
    }

    /// Sets which machines may connect to this connected machine from now on. Until it is set, all callers are refused.
    ///
    /// # Panics
    /// If this machine has not connected.
    pub fn admit(&self, admission: Box<dyn Admission>) {
        let door = self.door.as_ref();
        door.expect("a machine connects before it admits callers")
            .admit(admission);
    }

    /// Returns the peers whose connections have ended, in the order in which this machine noticed
    /// the ends.
    pub fn departed(&self) -> Vec<Departed> {
        self.shared.departures().clone()
    }

    /// Returns the handle with which threads of this machine report its failure to the peers;
    /// `None` before it has connected.
    pub(crate) fn reporter(&self) -> Option<Reporter> {
        self.monitor.as_ref().map(Monitor::reporter)
    }

    #[cfg(test)]
    pub(super) fn hello(&self) -> Hello {
        Hello::of(&self.shared, Vec::new())
    }

    /// Returns the file whose lock shows that this machine runs; `None` if the system has no more file descriptors.
    pub(crate) fn life(&self) -> Option<File> {
        self.alive.try_clone().ok()
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

/// Returns whether this start of a machine runs, on this host: its process holds the lock of its first file. A process that removes the
/// files of another one holds that lock for a moment, too: so the answer can be true for one that has just ended.
pub(crate) fn is_alive(config: &ShmConfig, machine: MachineId, boot: u64) -> bool {
    let names = Names::new(&config.run_dir, &config.memory_dir, &config.cluster);
    is_locked(&names.memory(machine, boot, 0))
}

/// Returns whether a process holds the lock of a file. If that cannot be found out, it may.
pub(super) fn is_locked(path: &Path) -> bool {
    let first = match File::open(path) {
        Ok(first) => first,
        Err(error) => return error.kind() != std::io::ErrorKind::NotFound,
    };
    for _ in 0..LOCK_TRIES {
        if !matches!(first.try_lock_shared(), Err(TryLockError::WouldBlock)) {
            return false;
        }
        std::thread::park_timeout(LOCK_AGAIN);
    }
    true
}

/// A handle to export memory and wake workers, from any thread of the machine.
#[derive(Clone)]
pub struct Exporter {
    pub(super) shared: Arc<Shared>,
    huge_pages: bool,
}

impl Exporter {
    /// Returns an exporter that does not ask for huge pages: the kernel makes them only after work on all processors, which takes up to
    /// half a second if these are busy.
    pub(crate) fn with_small_pages(self) -> Self {
        Self {
            huge_pages: false,
            ..self
        }
    }

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
        let capability = self.next_capability(bytes, writable);
        let path = self.exported(&capability);
        let memory = Memory::of(Mapping::create(&path, bytes, self.huge_pages)?).window(0, bytes);
        Ok((memory, capability))
    }

    /// Returns the capability of memory that is to be exported.
    pub(super) fn next_capability(&self, bytes: usize, writable: bool) -> Capability {
        let shared = &self.shared;
        Capability {
            machine: shared.config.machine,
            boot: shared.boot,
            key: shared.next_key.fetch_add(1, Ordering::Relaxed),
            bytes: bytes as u64,
            writable,
        }
    }

    /// Returns the path of the file of exported memory.
    pub(super) fn exported(&self, capability: &Capability) -> PathBuf {
        let Capability {
            machine, boot, key, ..
        } = *capability;
        self.shared.names.memory(machine, boot, key)
    }

    /// Removes exported memory: peers cannot import it any more. Where it is mapped, it stays until it is unmapped.
    pub fn withdraw(&self, capability: &Capability) {
        let path = self.exported(capability);
        if let Err(error) = std::fs::remove_file(&path) {
            tracing::warn!(%error, "cannot remove the shared memory {}; this machine's end removes it", path.display());
        }
    }

    /// Wakes a worker of this machine.
    pub fn wake(&self, worker: WorkerId) {
        fence(Ordering::SeqCst);
        self.shared.doorbells.ring(worker);
    }
}
