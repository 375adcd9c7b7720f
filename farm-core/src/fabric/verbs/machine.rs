//! The state that the workers of one machine share: its device, the memory that it exports, and the
//! peers to which it is connected.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use super::checked::ObjectReads;
use super::completions::Completions;
use super::control::{Hello, Secret, Terms};
use super::device::{Device, DeviceChoice, DevicePlace};
use super::doorbells::Doorbells;
use super::endpoint::{Access, VerbsEndpoint};
use super::error::VerbsError;
use super::meet::{self, Met};
use super::parking::Parking;
use super::queue_pair::{ConnectionConfig, QueueAddress, QueuePair};
use super::queues::Queues;
use super::registration::{ProtectionDomain, Reach, Registration};
use super::throttle::Throttle;
use crate::fabric::meeting::{ConnectError, Monitor, Patience, PeerOffer, Reporter, random_words};
use crate::fabric::{ArenaConfig, Capability, Departed, Departure, ExportError, ImportError};
use crate::ids::{MachineId, WorkerId};
use crate::mem::{Mapping, Memory, WORD_BYTES};

/// The configuration of a machine on this fabric.
#[derive(Clone, Debug)]
pub struct VerbsConfig {
    /// The cluster's name. Peers of another cluster are refused.
    pub cluster: String,
    /// Id of this machine.
    pub machine: MachineId,
    /// Number of workers.
    pub workers: usize,
    /// Digest of the configuration. Peers with another digest are refused.
    pub digest: u64,
    /// Address of each machine of the cluster, at which it listens, as `host:port`.
    pub addresses: BTreeMap<MachineId, String>,
    /// The secret shared by all machines of the cluster.
    pub secret: Secret,
    /// Device, port and address to use.
    pub device: DeviceChoice,
    /// Parameters of connections.
    pub connection: ConnectionConfig,
    /// Number of workers that share queue pairs (`FaRM'14 §3.1`: q).
    pub workers_per_queue: usize,
    /// Number of receive requests for each worker's notifications.
    pub receive_depth: u32,
    /// Whether to request huge pages.
    pub huge_pages: bool,
    /// How object reads are made consistent; `None`: as the device requires.
    pub object_reads: Option<ObjectReads>,
    /// Whether the number of requests in flight is adapted (SMART §4.2).
    pub adaptive_throttle: bool,
    /// Whether workers ever sleep.
    pub parks: bool,
}

/// Why a machine could not start on this fabric.
#[derive(Debug, thiserror::Error)]
pub enum VerbsStartError {
    /// The device cannot be used.
    #[error(transparent)]
    Device(#[from] VerbsError),
    /// The configuration has no address for this machine.
    #[error("machine {0} has no address: set machine.address to HOST:PORT")]
    NoAddress(MachineId),
    /// The machine cannot listen at its address.
    #[error(
        "cannot listen at {address}, the address of machine {machine}: {source}; is it an address of this \
         host, and does no other process use it?"
    )]
    Listen {
        /// Id of the machine.
        machine: MachineId,
        /// Address of the machine.
        address: String,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// A system call failed.
    #[error("a system call failed: {0}")]
    Os(#[from] std::io::Error),
}

/// A peer, from the viewpoint of this machine's workers.
pub(super) struct Peer {
    pub(super) machine: MachineId,
    pub(super) boot: u64,
    pub(super) workers: u16,
    pub(super) parks: bool,
    /// Number of the current connection to this peer.
    pub(super) generation: u32,
    /// How the connection ended, if it has.
    pub(super) departed: Option<Departure>,
    /// One queue pair for each group of workers, until the group takes it. If the peer has more
    /// groups, the additional queue pairs are used for sending only by the peer.
    pub(super) pairs: Vec<Option<QueuePair>>,
}

/// Exported memory.
struct Export {
    // Declared before the memory, so that it is dropped first.
    _registration: Registration,
    memory: Memory,
}

/// State shared by a machine's workers and its monitor.
pub(super) struct Shared {
    pub(super) config: VerbsConfig,
    pub(super) boot: u64,
    /// Exported memory, by key.
    exports: Mutex<BTreeMap<u64, Export>>,
    /// Peers in the order in which they first connected. Peers are never removed.
    peers: Mutex<Vec<Peer>>,
    /// Peers whose connections have ended, in the order in which this was noticed.
    departed: Mutex<Vec<Departed>>,
    /// Number of changes among the peers, so that a poll detects a change with a single load.
    pub(super) changes: AtomicU32,
    pub(super) parking: Parking,
    /// Most inline bytes that every queue pair supports.
    inline_bytes: AtomicU32,
    /// Whether the device reports for all connections that writes land in order.
    reports_order: AtomicBool,
    /// Completion queues, one per group of workers.
    pub(super) groups: Vec<Arc<Completions>>,
    pub(super) device: Device,
    domain: Arc<ProtectionDomain>,
}

impl Shared {
    pub(super) fn peers(&self) -> MutexGuard<'_, Vec<Peer>> {
        self.peers
            .lock()
            .expect("no thread panics while it holds the lock of the peers")
    }

    /// Resolves a capability: returns the peer's index, the generation of its connection, and, for
    /// this machine's own memory, the memory itself.
    pub(super) fn import(
        &self,
        capability: &Capability,
    ) -> Result<(usize, u32, Option<Memory>), ImportError> {
        let machine = capability.machine;
        let peers = self.peers();
        let index = peers.iter().position(|peer| peer.machine == machine);
        let index = index.ok_or(ImportError::NotConnected(machine))?;
        let peer = &peers[index];
        if peer.departed.is_some() {
            return Err(ImportError::NotConnected(machine));
        }
        if capability.boot != peer.boot {
            return Err(ImportError::Restarted {
                machine,
                stale: capability.boot,
                current: peer.boot,
            });
        }
        if machine != self.config.machine {
            return Ok((index, peer.generation, None));
        }
        let exports = self
            .exports
            .lock()
            .expect("no thread panics while it holds the lock of exports");
        let export = exports.get(&capability.key);
        let bytes = capability.bytes as usize;
        let export = export.filter(|export| bytes <= export.memory.len());
        let memory = export.map(|export| export.memory.window(0, bytes));
        let memory = memory.ok_or(ImportError::Unknown { machine })?;
        Ok((index, peer.generation, Some(memory)))
    }

    /// Records that a peer's connection has ended, with the failure that the peer reported, if any.
    /// No-op if `generation` is an earlier connection.
    pub(super) fn depart(
        &self,
        machine: MachineId,
        generation: u32,
        how: Departure,
        why: Option<String>,
    ) {
        let mut peers = self.peers();
        let peer = peers.iter_mut().find(|peer| peer.machine == machine);
        let Some(peer) = peer.filter(|peer| peer.generation == generation) else {
            return;
        };
        if peer.departed.is_some() {
            return;
        }
        peer.departed = Some(how);
        let mut departed = self
            .departed
            .lock()
            .expect("no thread panics while it holds the lock of departed peers");
        departed.push(Departed { machine, how, why });
        drop(departed);
        // Drop the queue pairs that no group has taken. Groups tear down their own.
        peer.pairs.clear();
        drop(peers);
        self.notify_workers();
    }

    /// Announces a change among the peers to the workers.
    fn notify_workers(&self) {
        self.changes.fetch_add(1, Ordering::Release);
        self.parking.ring_all();
    }

    /// Records that a peer's connection broke, because this machine's or the peer's device gave up.
    pub(super) fn break_link(&self, peer: usize, generation: u32, why: &str) {
        let machine = self.peers()[peer].machine;
        tracing::warn!(%machine, "the connection to a machine broke: {why}");
        self.depart(machine, generation, Departure::Lost, None);
    }

    /// Wakes one of the workers that share a worker's queues.
    pub(super) fn ring_member(&self, worker: WorkerId, member: usize) {
        let shared_by = self.config.workers_per_queue;
        let other = worker.index() / shared_by * shared_by + member;
        if let Some(other) = WorkerId::new(other as u16) {
            self.parking.ring(other);
        }
    }

    /// Returns whether the bytes of a write land in increasing order.
    pub(super) fn lands_in_order(&self) -> bool {
        // The kernel's software device lands bytes in order, by measurement and by its source.
        self.device.opened.is_soft_roce() || self.reports_order.load(Ordering::Acquire)
    }

    /// Returns the most bytes of an inline write: the minimum over all queue pairs.
    pub(super) fn inline_bytes(&self) -> usize {
        let bytes = self.inline_bytes.load(Ordering::Acquire) as usize;
        bytes - bytes % WORD_BYTES
    }

    /// Records that a peer has connected, for the first time or again. Returns the generation of
    /// the connection.
    fn arrive(&self, machine: MachineId, hello: &Hello, pairs: Vec<QueuePair>) -> u32 {
        let mut peers = self.peers();
        let known = peers.iter().position(|peer| peer.machine == machine);
        let generation = known.map_or(1, |known| peers[known].generation + 1);
        let peer = Peer {
            machine,
            boot: hello.boot,
            workers: hello.workers,
            parks: hello.parks,
            generation,
            departed: None,
            pairs: pairs.into_iter().map(Some).collect(),
        };
        match known {
            Some(known) => peers[known] = peer,
            None => peers.push(peer),
        }
        drop(peers);
        self.notify_workers();
        generation
    }

    /// Creates queue pairs for a machine with `their_groups` groups, to be connected later, and the
    /// hello that describes them.
    pub(super) fn prepare(
        &self,
        machine: MachineId,
        their_groups: usize,
        offer: Vec<Capability>,
    ) -> Result<(Vec<QueuePair>, Hello), ConnectError> {
        let pairs = self.make_pairs(their_groups);
        let pairs = pairs.map_err(|source| ConnectError::Device { machine, source })?;
        let addresses = pairs.iter().map(QueuePair::address).collect();
        let hello = self.hello(addresses, offer);
        Ok((pairs, hello))
    }

    fn make_pairs(&self, their_groups: usize) -> Result<Vec<QueuePair>, VerbsError> {
        let count = self.groups.len().max(their_groups);
        let pair = |index: usize| {
            let group = &self.groups[index % self.groups.len()];
            let first_packet = random_words::<1>().map_or(index as u64, |[word]| word) as u32;
            QueuePair::new(Arc::clone(group), &self.config.connection, first_packet)
        };
        (0..count).map(pair).collect()
    }

    /// Connects queue pairs to those of a machine, pairwise.
    pub(super) fn connect_pairs(
        &self,
        machine: MachineId,
        pairs: &mut [QueuePair],
        hello: &Hello,
    ) -> Result<(), ConnectError> {
        let (device, config) = (&self.device, &self.config.connection);
        for (pair, queue) in pairs.iter_mut().zip(&hello.queues) {
            pair.connect(device, config, &hello.port, *queue, hello.reads)
                .map_err(|source| ConnectError::Device { machine, source })?;
            self.inline_bytes
                .fetch_min(pair.inline_bytes, Ordering::AcqRel);
            self.reports_order
                .fetch_and(pair.lands_in_order() == Some(true), Ordering::AcqRel);
        }
        Ok(())
    }

    /// Returns the terms to which a machine that connects `pairs` queue pairs must agree.
    pub(super) fn terms(&self, pairs: usize) -> Terms {
        Terms {
            digest: self.config.digest,
            link_layer: self.device.address.link_layer,
            pairs,
        }
    }

    fn hello(&self, queues: Vec<QueueAddress>, offer: Vec<Capability>) -> Hello {
        let served = self.device.opened.attributes.max_qp_rd_atom.clamp(1, 255);
        Hello {
            digest: self.config.digest,
            boot: self.boot,
            workers: self.config.workers as u16,
            parks: self.config.parks,
            port: self.device.address,
            reads: served as u8,
            queues,
            offer,
        }
    }

    /// Returns how object reads are made consistent: as configured, else as the device requires.
    pub(super) fn object_reads(&self) -> ObjectReads {
        let needed = match self.device.opened.is_soft_roce() {
            true => ObjectReads::HeaderAfter,
            false => ObjectReads::WholeLines,
        };
        self.config.object_reads.unwrap_or(needed)
    }
}

/// One machine on the verbs fabric. Dropping it sends the farewell to the peers.
pub struct VerbsMachine {
    shared: Arc<Shared>,
    listener: TcpListener,
    monitor: Option<Monitor<TcpStream>>,
    /// Queues of each group that more than one worker shares.
    queues: Vec<Option<Arc<Mutex<Queues>>>>,
}

impl VerbsMachine {
    /// Opens the device and listens at the machine's address.
    ///
    /// # Errors
    /// [`VerbsStartError`].
    ///
    /// # Panics
    /// If `workers_per_queue` is 0.
    pub fn start(config: VerbsConfig) -> Result<Self, VerbsStartError> {
        let own = config.machine;
        let address = config.addresses.get(&own);
        let address = address.ok_or(VerbsStartError::NoAddress(own))?.clone();
        let listen = |source| VerbsStartError::Listen {
            machine: own,
            address: address.clone(),
            source,
        };
        let device = Device::open(&config.device)?;
        let domain = Arc::new(ProtectionDomain::new(Arc::clone(&device.opened))?);
        let groups = config.workers.div_ceil(config.workers_per_queue);
        advise_on_doorbells(&device, groups);
        if config.object_reads == Some(ObjectReads::WholeLines) && device.opened.is_soft_roce() {
            tracing::warn!(
                "rdma.object_reads = \"whole-lines\", but device {} tears lines: reads may return a mixture of \
                 versions; set it to \"auto\"",
                device.opened.name
            );
        }
        let ends = config.connection.send_depth * 2 * config.addresses.len() as u32;
        let completions = || {
            let made = Completions::new(Arc::clone(&domain), ends, config.receive_depth);
            made.map(Arc::new)
        };
        let groups = (0..groups).map(|_| completions());
        let groups = groups.collect::<Result<Vec<_>, _>>()?;
        let listener = TcpListener::bind(address.as_str()).map_err(listen)?;
        listener.set_nonblocking(true)?;
        let [boot] = random_words()?;
        let queues = groups.iter().map(|_| None).collect();
        let shared = Arc::new(Shared {
            boot,
            exports: Mutex::default(),
            peers: Mutex::default(),
            departed: Mutex::default(),
            changes: AtomicU32::new(0),
            parking: Parking::new(config.workers)?,
            inline_bytes: AtomicU32::new(config.connection.inline_bytes),
            reports_order: AtomicBool::new(true),
            groups,
            device,
            domain,
            config,
        });
        Ok(Self {
            shared,
            listener,
            monitor: None,
            queues,
        })
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

    /// Returns the device, port and address that the machine uses.
    pub fn device(&self) -> DevicePlace {
        self.shared.device.place()
    }

    /// Returns a handle with which other threads of the machine export memory and wake workers.
    pub fn exporter(&self) -> VerbsExporter {
        VerbsExporter {
            shared: Arc::clone(&self.shared),
        }
    }

    /// Connects to every machine of the cluster. Offers each machine the memory that `offer`
    /// returns for it. Waits at most for `patience`.
    ///
    /// # Errors
    /// [`ConnectError`] names the machine that did not connect, or refused, and the reason.
    pub fn connect<'p>(
        &mut self,
        machines: &[MachineId],
        offer: &mut dyn FnMut(MachineId) -> Vec<Capability>,
        patience: impl Into<Patience<'p>>,
    ) -> Result<Vec<PeerOffer>, ConnectError> {
        if self.monitor.is_some() {
            return Err(ConnectError::Twice);
        }
        let own = self.shared.config.machine;
        let name = format!("{own}-monitor");
        self.monitor = Some(Monitor::start(name)?);
        let mut offers = vec![self.connect_to_itself(offer(own))?];
        offers.extend(self.meet(machines, offer, patience.into())?);
        offers.sort_by_key(|offer| offer.machine);
        Ok(offers)
    }

    /// Connects again to machines that have ended or been restarted; they must do the same.
    /// Outstanding operations with them complete as broken, and memory imported from them becomes
    /// invalid: import the memory that they offer now.
    ///
    /// # Errors
    /// As [`VerbsMachine::connect`].
    pub fn reconnect<'p>(
        &mut self,
        machines: &[MachineId],
        offer: &mut dyn FnMut(MachineId) -> Vec<Capability>,
        patience: impl Into<Patience<'p>>,
    ) -> Result<Vec<PeerOffer>, ConnectError> {
        self.meet(machines, offer, patience.into())
    }

    fn meet(
        &mut self,
        machines: &[MachineId],
        offer: &mut dyn FnMut(MachineId) -> Vec<Capability>,
        patience: Patience<'_>,
    ) -> Result<Vec<PeerOffer>, ConnectError> {
        let met = meet::meet(&self.shared, &self.listener, machines, offer, patience)?;
        let mut offers = Vec::with_capacity(met.len());
        for Met {
            machine,
            hello,
            pairs,
            socket,
        } in met
        {
            let generation = self.shared.arrive(machine, &hello, pairs);
            let shared = Arc::clone(&self.shared);
            let ended = move |how, why| shared.depart(machine, generation, how, why);
            let monitor = self.monitor.as_mut();
            let monitor = monitor.expect("a connected machine has a monitor");
            monitor.add(machine, socket, Box::new(ended))?;
            let offer = hello.offer;
            offers.push(PeerOffer { machine, offer });
        }
        Ok(offers)
    }

    /// Connects this machine's own queue pairs, each to itself. They execute atomics on its own
    /// memory, which the device must execute so that they are atomic with those of peers.
    fn connect_to_itself(&mut self, offer: Vec<Capability>) -> Result<PeerOffer, ConnectError> {
        let machine = self.shared.config.machine;
        let (mut pairs, hello) = self.shared.prepare(machine, 0, offer)?;
        self.shared.connect_pairs(machine, &mut pairs, &hello)?;
        self.shared.arrive(machine, &hello, pairs);
        let offer = hello.offer;
        Ok(PeerOffer { machine, offer })
    }

    /// Creates the endpoint of one of this machine's workers.
    ///
    /// # Errors
    /// [`VerbsError::Memory`] when its arena cannot be registered.
    pub fn endpoint(
        &mut self,
        worker: WorkerId,
        arena: &ArenaConfig,
        most_outstanding: usize,
    ) -> Result<VerbsEndpoint, VerbsError> {
        let config = &self.shared.config;
        let members = config.workers_per_queue.min(config.workers);
        let group = worker.index() / config.workers_per_queue;
        let member = (worker.index() % config.workers_per_queue) as u16;
        let make = || {
            let most = most_outstanding * members;
            Queues::new(
                Arc::clone(&self.shared.groups[group]),
                members,
                most_outstanding,
                self.shared.object_reads(),
                Throttle::new(most as u32, config.adaptive_throttle),
            )
        };
        let queues = if members == 1 {
            Access::Own(Box::new(make()?))
        } else {
            let shared = match &self.queues[group] {
                Some(shared) => Arc::clone(shared),
                None => Arc::new(Mutex::new(make()?)),
            };
            self.queues[group] = Some(Arc::clone(&shared));
            Access::Shared(shared)
        };
        let shared = Arc::clone(&self.shared);
        VerbsEndpoint::new(shared, worker, (queues, member), arena, most_outstanding)
    }
}

impl Drop for VerbsMachine {
    fn drop(&mut self) {
        // Sends the farewell. Workers that have ended have dropped their connections.
        drop(self.monitor.take());
    }
}

/// A handle to export memory and wake workers, from any thread of the machine.
#[derive(Clone)]
pub struct VerbsExporter {
    shared: Arc<Shared>,
}

impl VerbsExporter {
    /// Returns the random number of this start of the machine.
    pub fn boot(&self) -> u64 {
        self.shared.boot
    }

    /// Allocates memory that peers can import. When this returns, its pages are allocated and
    /// locked.
    ///
    /// # Errors
    /// [`ExportError`] when memory cannot be allocated or registered.
    pub fn export(
        &self,
        bytes: usize,
        writable: bool,
    ) -> Result<(Memory, Capability), ExportError> {
        let shared = &self.shared;
        let mapping = match shared.config.huge_pages {
            true => Mapping::private(bytes)?,
            false => Mapping::anonymous(bytes)?,
        };
        let memory = Memory::of(mapping).window(0, bytes);
        let reach = match writable {
            true => Reach::PeersWrite,
            false => Reach::PeersRead,
        };
        let domain = Arc::clone(&shared.domain);
        // SAFETY: the memory is mapped as long as the export, which owns both, and its bytes are
        // accessed only by atomic operations.
        let registration = unsafe { Registration::new(domain, memory.start(), bytes, reach) }?;
        let key = u64::from(registration.remote_key());
        let export = Export {
            memory: memory.clone(),
            _registration: registration,
        };
        let mut exports = shared
            .exports
            .lock()
            .expect("no thread panics while it holds the lock of exports");
        exports.insert(key, export);
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
        std::sync::atomic::fence(Ordering::SeqCst);
        self.shared.parking.ring(worker);
    }
}

fn advise_on_doorbells(device: &Device, groups: usize) {
    if device.opened.driver() != "mlx5_core" {
        return;
    }
    #[expect(
        clippy::disallowed_methods,
        reason = "the driver reads its environment"
    )]
    let doorbells = Doorbells::of(|name| std::env::var(name).ok());
    if let Some(advice) = doorbells.advice(groups) {
        tracing::warn!("{advice}");
    }
}

/// Returns the first socket address of a host name.
pub(super) fn resolve(address: &str) -> std::io::Result<SocketAddr> {
    let mut found = address.to_socket_addrs()?;
    found
        .next()
        .ok_or_else(|| std::io::Error::other("the name resolves to no address"))
}
