//! One machine on the verbs fabric: its start, its connections, the memory that it exports, and its end.

use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use super::checked::ObjectReads;
use super::completions::Completions;
use super::device::{Device, DevicePlace};
use super::door::VerbsCallers;
use super::doorbells::Doorbells;
use super::endpoint::{Access, VerbsEndpoint};
use super::error::VerbsError;
use super::lease::{LeaseParts, LeaseThread};
use super::meet;
use super::parking::Parking;
use super::queue_pair::MOST_RETRIES;
use super::queues::Queues;
use super::registration::{ProtectionDomain, Reach, Registration};
use super::shared::{Export, Shared, VerbsConfig};
use super::silence::Checks;
use super::throttle::Throttle;
use crate::fabric::handshake::{
    Admission, ConnectError, Door, Monitor, Patience, PeerOffer, Reporter, Roster, announce_ready,
    random_words,
};
use crate::fabric::turns::Turns;
use crate::fabric::{ArenaConfig, Capability, Departed, ExportError};
use crate::ids::{MachineId, WorkerId};
use crate::mem::{Mapping, Memory};

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
    #[error("a system call failed while the machine started: {0}")]
    Os(#[from] std::io::Error),
}

/// One machine on the verbs fabric. Dropping it sends the farewell to the peers.
pub struct VerbsMachine {
    shared: Arc<Shared>,
    listener: TcpListener,
    /// Answers callers once the machine admits them.
    door: Option<Door>,
    monitor: Option<Monitor<TcpStream>>,
    /// Queues of each group of workers. `None` before the group's first endpoint is created, and if
    /// every worker has its own queues.
    queues: Vec<Option<Arc<Mutex<Queues>>>>,
    /// Asks for leases by time and grants them, if there are any.
    leases: Option<LeaseThread>,
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
                 versions; set rdma.object_reads to \"auto\"",
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
        let parking = Arc::new(Parking::new(config.workers)?);
        let turns = Arc::new(Turns::new(config.workers));
        let leases = config.lease.map(|lease| {
            LeaseThread::start(LeaseParts {
                me: (own, boot),
                cluster: &config.cluster,
                lease,
                addresses: &config.addresses,
                secret: &config.secret,
                parking: Arc::clone(&parking),
                turns: Arc::clone(&turns),
            })
        });
        let leases = leases.transpose().map_err(listen)?;
        let queues = groups.iter().map(|_| None).collect();
        let shared = Arc::new(Shared {
            boot,
            exports: Mutex::default(),
            peers: Mutex::default(),
            departed: Mutex::default(),
            changes: AtomicU32::new(0),
            parking,
            turns,
            leases: leases.as_ref().map(|thread| Arc::clone(thread.desk())),
            runs: AtomicBool::new(false),
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
            door: None,
            monitor: None,
            queues,
            leases,
        })
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

    /// Connects to the machines of the cluster: to those that join only if they are present, and this one joins, too. Offers each
    /// machine the memory that `offer` returns for it. Waits at most for `patience`.
    ///
    /// # Errors
    /// [`ConnectError`] names the machine that did not connect, or refused, and the reason.
    pub fn connect<'r, 'p>(
        &mut self,
        machines: impl Into<Roster<'r>>,
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
        offers.extend(self.meet(machines.into(), offer, patience.into())?);
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
        self.meet(machines.into(), offer, patience.into())
    }

    /// Sets which machines may connect to this connected machine from now on. Until it is set, callers get no answer.
    ///
    /// # Errors
    /// [`ConnectError::Socket`] if the thread that answers cannot be started.
    ///
    /// # Panics
    /// If this machine has not connected.
    pub fn admit(&mut self, admission: Box<dyn Admission>) -> Result<(), ConnectError> {
        let monitor = self.monitor.as_ref();
        let monitor = monitor.expect("a machine connects before it admits callers");
        let callers = VerbsCallers {
            shared: Arc::clone(&self.shared),
            listener: self.listener.try_clone()?,
            sockets: monitor.sockets().clone(),
        };
        let door = Door::open(format!("{}-door", self.shared.config.machine), callers)?;
        self.shared.runs.store(true, Ordering::Release);
        door.admit(admission);
        self.door = Some(door);
        Ok(())
    }

    fn meet(
        &mut self,
        roster: Roster<'_>,
        offer: &mut dyn FnMut(MachineId) -> Vec<Capability>,
        patience: Patience<'_>,
    ) -> Result<Vec<PeerOffer>, ConnectError> {
        let met = meet::meet(&self.shared, &self.listener, roster, offer, patience)?;
        let mut offers = Vec::with_capacity(met.len());
        let monitor = self.monitor.as_ref();
        let monitor = monitor
            .expect("`connect` creates the monitor, and `reconnect` may be called only afterwards");
        for met in met {
            let (arrival, mut socket) = met.split();
            if arrival.runs() {
                announce_ready(&mut socket)?;
            }
            offers.push(arrival.arrive(socket, &self.shared, monitor.sockets())?);
        }
        Ok(offers)
    }

    /// Connects this machine's own queue pairs, each to itself. This machine's atomics on its own
    /// memory use them: the device must execute these atomics, so that they are atomic with those of
    /// peers.
    fn connect_to_itself(&mut self, offer: Vec<Capability>) -> Result<PeerOffer, ConnectError> {
        let machine = self.shared.config.machine;
        let (mut pairs, hello) = self.shared.prepare(machine, 0, offer)?;
        self.shared.connect_pairs(machine, &mut pairs, &hello)?;
        self.shared.arrive(machine, &hello, pairs);
        Ok(PeerOffer {
            machine,
            runs: false,
            offer: hello.offer,
        })
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
                Checks::new(config.connection.timeout, MOST_RETRIES + 1),
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
        drop(self.door.take());
        // Sends the farewell. Workers that have ended have dropped their connections.
        drop(self.monitor.take());
        drop(self.leases.take());
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

    /// Removes exported memory: peers cannot access it any more.
    pub fn withdraw(&self, capability: &Capability) {
        let exports = self.shared.exports.lock();
        let mut exports = exports.expect("no thread panics while it holds the lock of exports");
        exports.remove(&capability.key);
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
        reason = "the device's driver takes the number of doorbells from environment variables"
    )]
    let doorbells = Doorbells::of(|name| std::env::var(name).ok());
    if let Some(advice) = doorbells.advice(groups) {
        tracing::warn!("{advice}");
    }
}
