//! What the workers of one machine share: its device, the memory it exports, the peers it is connected to.

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

/// What a machine needs to know to start on this fabric.
#[derive(Clone, Debug)]
pub struct VerbsConfig {
    /// The cluster's name: peers of another one are refused.
    pub cluster: String,
    /// This machine.
    pub machine: MachineId,
    /// Its workers.
    pub workers: usize,
    /// Digest of the configuration: peers with another one are refused.
    pub digest: u64,
    /// Where each machine of the cluster listens for others to connect, as `host:port`.
    pub addresses: BTreeMap<MachineId, String>,
    /// What all machines of the cluster know.
    pub secret: Secret,
    /// Device, port and address.
    pub device: DeviceChoice,
    /// How connections behave.
    pub connection: ConnectionConfig,
    /// How many workers share queue pairs (`FaRM'14 §3.1`: q).
    pub workers_per_queue: usize,
    /// Receive requests of each worker's notifications.
    pub receive_depth: u32,
    /// Ask for huge pages.
    pub huge_pages: bool,
    /// How reads of objects are made whole; `None`: as the device needs it.
    pub object_reads: Option<ObjectReads>,
    /// Whether the number of requests in flight is adapted (SMART §4.2).
    pub adaptive_throttle: bool,
    /// Whether workers ever sleep.
    pub parks: bool,
}

/// Why a machine could not start on this fabric.
#[derive(Debug, thiserror::Error)]
pub enum VerbsStartError {
    /// The device.
    #[error(transparent)]
    Device(#[from] VerbsError),
    /// The configuration gives this machine no address.
    #[error("machine {0} has no address: set machine.address to HOST:PORT")]
    NoAddress(MachineId),
    /// The address cannot be listened at.
    #[error(
        "cannot listen at {address}, the address of machine {machine}: {source}; is it an address of this \
         host, and does no other process use it?"
    )]
    Listen {
        /// The machine.
        machine: MachineId,
        /// Its address.
        address: String,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The system refused something small.
    #[error("the system refused: {0}")]
    Os(#[from] std::io::Error),
}

/// A peer as the workers of this machine see it.
pub(super) struct Peer {
    pub(super) machine: MachineId,
    pub(super) boot: u64,
    pub(super) workers: u16,
    pub(super) parks: bool,
    /// Counts its connections.
    pub(super) generation: u32,
    /// How it ended, if it has.
    pub(super) departed: Option<Departure>,
    /// A queue pair for each group of workers, until the group takes it; and those that only the peer
    /// sends by, which has more groups.
    pub(super) pairs: Vec<Option<QueuePair>>,
}

/// Exported memory.
struct Export {
    // Before the memory, which must be there for as long as it.
    _registration: Registration,
    memory: Memory,
}

/// Shared by a machine's workers and its monitor.
pub(super) struct Shared {
    pub(super) config: VerbsConfig,
    pub(super) boot: u64,
    /// By key.
    exports: Mutex<BTreeMap<u64, Export>>,
    /// In the order in which they came to be known; nobody is ever removed.
    peers: Mutex<Vec<Peer>>,
    /// Peers whose connections have ended, in that order.
    departed: Mutex<Vec<Departed>>,
    /// Counts what changes among the peers, so that a poll notices by one load.
    pub(super) changes: AtomicU32,
    pub(super) parking: Parking,
    /// Most bytes that every queue pair takes inline.
    inline_bytes: AtomicU32,
    /// Whether the device says of all connections that writes land in order.
    tells_order: AtomicBool,
    /// One for each group of workers.
    pub(super) groups: Vec<Arc<Completions>>,
    pub(super) device: Device,
    domain: Arc<ProtectionDomain>,
}

impl Shared {
    pub(super) fn peers(&self) -> MutexGuard<'_, Vec<Peer>> {
        self.peers
            .lock()
            .expect("nobody panics half-way through the peers")
    }

    /// Memory of a peer, to be reached by its number among the peers, its connection's generation, and for
    /// this machine's own directly.
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
        let exports = self.exports.lock().expect("no export panics half-way");
        let export = exports.get(&capability.key);
        let bytes = capability.bytes as usize;
        let export = export.filter(|export| bytes <= export.memory.len());
        let memory = export.map(|export| export.memory.window(0, bytes));
        let memory = memory.ok_or(ImportError::Unknown { machine })?;
        Ok((index, peer.generation, Some(memory)))
    }

    /// A peer's connection has ended, with the failure that it reported, if it did. No-op for an earlier
    /// connection.
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
        let mut departed = self.departed.lock().expect("no push panics half-way");
        departed.push(Departed { machine, how, why });
        drop(departed);
        // Those that a group has are torn down by it.
        peer.pairs.clear();
        drop(peers);
        self.tell_workers();
    }

    /// Something has changed among the peers.
    fn tell_workers(&self) {
        self.changes.fetch_add(1, Ordering::Release);
        self.parking.ring_all();
    }

    /// A peer's connection broke: its device, or ours, gave up.
    pub(super) fn break_link(&self, peer: usize, generation: u32, why: &str) {
        let machine = self.peers()[peer].machine;
        tracing::warn!(%machine, "the connection broke: {why}");
        self.depart(machine, generation, Departure::Lost, None);
    }

    /// Wakes one of those that share a worker's queues.
    pub(super) fn ring_member(&self, worker: WorkerId, member: usize) {
        let shared_by = self.config.workers_per_queue;
        let other = worker.index() / shared_by * shared_by + member;
        if let Some(other) = WorkerId::new(other as u16) {
            self.parking.ring(other);
        }
    }

    /// Whether the bytes of a write land in increasing order.
    pub(super) fn lands_in_order(&self) -> bool {
        // Measured of the kernel's software device, which is also what it does by its source.
        self.device.opened.is_soft_roce() || self.tells_order.load(Ordering::Acquire)
    }

    /// Most bytes of an inline write: what the least queue pair takes.
    pub(super) fn inline_bytes(&self) -> usize {
        let bytes = self.inline_bytes.load(Ordering::Acquire) as usize;
        bytes - bytes % WORD_BYTES
    }

    /// A peer has connected, perhaps again.
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
        self.tell_workers();
        generation
    }

    /// Queue pairs for a machine that has so many groups, to be connected, and what to say of them.
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

    /// Connects queue pairs to those of a machine, each to its own.
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
            self.tells_order
                .fetch_and(pair.lands_in_order() == Some(true), Ordering::AcqRel);
        }
        Ok(())
    }

    /// What a machine that connects so many queue pairs must agree to.
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

    /// How reads of objects are made whole: as configured, else as the device needs it.
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
    /// Of each group that more than one worker shares.
    queues: Vec<Option<Arc<Mutex<Queues>>>>,
}

impl VerbsMachine {
    /// Opens the device and listens at the machine's address.
    ///
    /// # Errors
    /// [`VerbsStartError`].
    ///
    /// # Panics
    /// If there are no workers, or none of them share a queue pair.
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
                "rdma.object_reads = \"whole-lines\", and {} tears lines: reads may be of no version that there \
                 ever was; leave it \"auto\"",
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
            tells_order: AtomicBool::new(true),
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

    /// Peers whose connections have ended, in the order in which that was noticed.
    pub fn departed(&self) -> Vec<Departed> {
        let departed = self.shared.departed.lock();
        departed.expect("no push panics half-way").clone()
    }

    /// How threads of this machine tell its peers that it has failed; `None` before it has connected.
    pub(crate) fn reporter(&self) -> Option<Reporter> {
        self.monitor.as_ref().map(Monitor::reporter)
    }

    /// The device, port and address that it uses.
    pub fn device(&self) -> DevicePlace {
        self.shared.device.place()
    }

    /// A handle by which threads other than the machine's own export memory and wake workers.
    pub fn exporter(&self) -> VerbsExporter {
        VerbsExporter {
            shared: Arc::clone(&self.shared),
        }
    }

    /// Connects to every machine of the cluster, giving each the memory that `offer` names for it. Waits
    /// for them no longer than `patience` says.
    ///
    /// # Errors
    /// [`ConnectError`] names the machine that did not come, or refused, and why.
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

    /// Connects anew with machines of which each has ended, or been started again; they do the same. What
    /// was outstanding with them ends, broken, and memory that was imported from them is gone: what they
    /// offer now is to be imported.
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
            let monitor = monitor.expect("a machine that has connected has a monitor");
            monitor.add(machine, socket, Box::new(ended))?;
            let offer = hello.offer;
            offers.push(PeerOffer { machine, offer });
        }
        Ok(offers)
    }

    /// Its own queue pairs, each connected to itself: by them it does atomics on its own memory, which must
    /// meet those of peers in the device.
    fn connect_to_itself(&mut self, offer: Vec<Capability>) -> Result<PeerOffer, ConnectError> {
        let machine = self.shared.config.machine;
        let (mut pairs, hello) = self.shared.prepare(machine, 0, offer)?;
        self.shared.connect_pairs(machine, &mut pairs, &hello)?;
        self.shared.arrive(machine, &hello, pairs);
        let offer = hello.offer;
        Ok(PeerOffer { machine, offer })
    }

    /// The endpoint of one of this machine's workers.
    ///
    /// # Errors
    /// [`VerbsError::Memory`]: its arena cannot be registered.
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
        // Sends the farewell. Workers that have ended have taken their connections with them.
        drop(self.monitor.take());
    }
}

/// Exports memory and wakes workers, from any thread of the machine.
#[derive(Clone)]
pub struct VerbsExporter {
    shared: Arc<Shared>,
}

impl VerbsExporter {
    /// The number of this start of the machine, drawn at random.
    pub fn boot(&self) -> u64 {
        self.shared.boot
    }

    /// Makes memory that peers can import. Its pages are there, and locked, when this returns.
    ///
    /// # Errors
    /// [`ExportError`]: there is no memory, or it cannot be registered.
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
        // SAFETY: the memory is mapped for as long as the export, which has both, and its bytes are
        // reached by atomic operations only.
        let registration = unsafe { Registration::new(domain, memory.start(), bytes, reach) }?;
        let key = u64::from(registration.remote_key());
        let export = Export {
            memory: memory.clone(),
            _registration: registration,
        };
        let mut exports = shared.exports.lock().expect("no export panics half-way");
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

/// The first address of a name that stands for one.
pub(super) fn resolve(address: &str) -> std::io::Result<SocketAddr> {
    let mut found = address.to_socket_addrs()?;
    found
        .next()
        .ok_or_else(|| std::io::Error::other("it stands for no address"))
}
