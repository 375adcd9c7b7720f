//! The state that the workers of one machine share: its device, the memory that it exports, and the
//! peers to which it is connected.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::checked::ObjectReads;
use super::completions::Completions;
use super::control::{Hello, Secret, Terms};
use super::device::{Device, DeviceChoice};
use super::error::VerbsError;
use super::lease::Desk;
use super::parking::Parking;
use super::queue_pair::{ConnectionConfig, QueueAddress, QueuePair};
use super::registration::{ProtectionDomain, Registration};
use crate::fabric::handshake::{ConnectError, random_words};
use crate::fabric::turns::Turns;
use crate::fabric::{Capability, Departed, Departure, ImportError};
use crate::ids::{MachineId, WorkerId};
use crate::mem::{Memory, WORD_BYTES};

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
    /// Number of receive requests of each group of workers, for notifications from peers.
    pub receive_depth: u32,
    /// Whether to request huge pages.
    pub huge_pages: bool,
    /// How object reads are made consistent; `None`: as the device requires.
    pub object_reads: Option<ObjectReads>,
    /// Whether the number of requests in flight is adapted (SMART §4.2).
    pub adaptive_throttle: bool,
    /// Whether workers ever sleep.
    pub parks: bool,
    /// The time of a lease, if the others go on without a machine that does not answer.
    pub lease: Option<Duration>,
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
    /// How the connection before this one ended.
    pub(super) before: Option<Departure>,
    /// One queue pair for each group of workers, until the group takes it. If the peer has more
    /// groups, the additional queue pairs are used for sending only by the peer.
    pub(super) pairs: Vec<Option<QueuePair>>,
}

/// Exported memory.
pub(super) struct Export {
    // Declared before the memory, so that it is dropped first.
    pub(super) _registration: Registration,
    pub(super) memory: Memory,
}

/// State shared by a machine's workers and its monitor.
pub(super) struct Shared {
    pub(super) config: VerbsConfig,
    pub(super) boot: u64,
    /// Exported memory, by key.
    pub(super) exports: Mutex<BTreeMap<u64, Export>>,
    /// Peers in the order in which they first connected. Peers are never removed.
    pub(super) peers: Mutex<Vec<Peer>>,
    /// Peers whose connections have ended, in the order in which this was noticed.
    pub(super) departed: Mutex<Vec<Departed>>,
    /// Number of changes among the peers, so that a poll detects a change with a single load.
    pub(super) changes: AtomicU32,
    pub(super) parking: Arc<Parking>,
    /// Numbers of turns of the workers of this machine.
    pub(super) turns: Arc<Turns>,
    /// Leases by time, if there are any.
    pub(super) leases: Option<Arc<Desk>>,
    /// Whether this machine has connected and admits further machines.
    pub(super) runs: AtomicBool,
    /// Maximum number of inline bytes that every queue pair supports.
    pub(super) inline_bytes: AtomicU32,
    /// Whether the device reports for all connections that writes land in order.
    pub(super) reports_order: AtomicBool,
    /// Completion queues, one per group of workers.
    pub(super) groups: Vec<Arc<Completions>>,
    pub(super) device: Device,
    pub(super) domain: Arc<ProtectionDomain>,
}

impl Shared {
    pub(super) fn peers(&self) -> MutexGuard<'_, Vec<Peer>> {
        self.peers
            .lock()
            .expect("no thread panics while it holds the lock of the peers")
    }

    /// Returns the peers whose connections have ended.
    pub(super) fn departures(&self) -> MutexGuard<'_, Vec<Departed>> {
        let departed = self.departed.lock();
        departed.expect("no thread panics while it holds the lock of departed peers")
    }

    /// Returns whether this machine is connected to a peer.
    pub(super) fn is_connected(&self, machine: MachineId) -> bool {
        let peers = self.peers();
        let mut peers = peers.iter().filter(|peer| peer.departed.is_none());
        peers.any(|peer| peer.machine == machine)
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
        capability.check_start(peer.boot)?;
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
        self.departures().push(Departed { machine, how, why });
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
        // The kernel's software device lands bytes in order, as its source and measurements show.
        self.device.opened.is_soft_roce() || self.reports_order.load(Ordering::Acquire)
    }

    /// Returns the most bytes of an inline write: the minimum over all queue pairs.
    pub(super) fn inline_bytes(&self) -> usize {
        let bytes = self.inline_bytes.load(Ordering::Acquire) as usize;
        bytes - bytes % WORD_BYTES
    }

    /// Records that a peer has connected, for the first time or again. Returns the generation of
    /// the connection.
    pub(super) fn arrive(&self, machine: MachineId, hello: &Hello, pairs: Vec<QueuePair>) -> u32 {
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
            before: known.and_then(|known| peers[known].departed),
            pairs: pairs.into_iter().map(Some).collect(),
        };
        match known {
            Some(known) => peers[known] = peer,
            None => peers.push(peer),
        }
        self.departures().retain(|known| known.machine != machine);
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
            runs: self.runs.load(Ordering::Acquire),
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
