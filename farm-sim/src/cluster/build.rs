//! Assembles machines and workers from the parts that `farm_core::machine` also uses.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use farm_core::alloc::BlockConfig;
use farm_core::control::Control;
use farm_core::fabric::{ArenaConfig, Capability};
use farm_core::ids::{MachineId, RegionId, WorkerId, WorkerRef};
use farm_core::kept::Kept;
use farm_core::limits::ReadTries;
use farm_core::mem::Memory;
use farm_core::membership::Membership;
use farm_core::membership::configuration::{self, Configuration, Domain, Member};
use farm_core::membership::manager::Manager;
use farm_core::membership::writer::{ConfigWriter, WriteError};
use farm_core::messaging::{LinkPeer, Links};
use farm_core::region::backups::Backups;
use farm_core::region::placement::Placement;
use farm_core::region::store::{AllocationError, RegionMemory, Replication, Store};
use farm_core::worker::{Inbox, MembersParts, Worker, WorkerLimits, WorkerParts};

use super::config_store::SimStore;
use super::kept::SimKept;
use super::{Cluster, ClusterLimits, Machine, Pace, Parts, Process, Seat, Segment};
use crate::fabric::{SimConfig, SimFabric};

/// Bytes that a machine reads in a second of virtual time while it fills replicas: a region within some milliseconds.
const FILL_RATE: u64 = 64 << 20;

/// Memory that one machine (`owner`) exports for the rings and logs that another (`peer`) writes, and its capability.
pub(super) struct Exported {
    pub(super) owner: MachineId,
    pub(super) peer: MachineId,
    pub(super) memory: Memory,
    pub(super) capability: Capability,
}

impl Exported {
    /// Exports memory of `owner` for what `peer` writes.
    pub(super) fn new(
        fabric: &SimFabric,
        limits: &ClusterLimits,
        (owner, peer): (MachineId, MachineId),
    ) -> Self {
        let bytes = limits.layout(owner, peer).bytes();
        let (memory, capability) = fabric.export(owner, bytes, true);
        Self {
            owner,
            peer,
            memory,
            capability,
        }
    }

    /// Keeps the logs in the segment, which the peer's process is to write that runs now.
    pub(super) fn keep(&self, kept: Option<&SimKept>, fabric: &SimFabric) {
        let Some(kept) = kept else { return };
        let boot = fabric.boot(self.peer);
        let machine = self.peer;
        let is_kept = kept.keep_logs(machine, &self.capability);
        is_kept.expect("the simulator keeps everything");
        kept.connected(configuration::Process { machine, boot }, &self.capability);
    }

    /// Returns the segment as it is in memory.
    pub(super) fn kept(&self, fabric: &SimFabric, limits: &ClusterLimits) -> Segment {
        Segment {
            peer: self.peer,
            layout: limits.layout(self.owner, self.peer),
            memory: fabric.local_view(&self.capability),
        }
    }
}

/// Returns what a new process of a machine keeps, if it keeps anything.
pub(super) fn new_kept(
    fabric: &SimFabric,
    limits: &ClusterLimits,
    machine: MachineId,
) -> Option<Arc<SimKept>> {
    let storing = limits.machines - limits.without_memory;
    let keeps = limits.survives && usize::from(machine.get()) <= storing;
    let boot = fabric.boot(machine);
    let me = configuration::Process { machine, boot };
    keeps.then(|| Arc::new(SimKept::new(fabric, limits, me)))
}

impl Cluster {
    /// Creates a cluster on a new fabric. `attach` attaches the layers to each worker, as in production.
    pub fn new(
        config: SimConfig,
        limits: &ClusterLimits,
        pace: Pace,
        attach: impl Fn(&mut Worker),
    ) -> Self {
        let ids: Vec<MachineId> = machine_ids(limits).collect();
        let seed = config.seed;
        let fabric = SimFabric::new(
            SimConfig {
                workers: limits.workers,
                processors: true,
                ..config
            },
            &ids,
        );
        let segments = segments(&fabric, limits, &ids);
        let first = first(&fabric, limits, &ids);
        let changes = SimStore::new(first.clone(), seed % 5);
        let (mut seats, mut machines) = (Vec::new(), Vec::new());
        for (place, id) in ids.iter().enumerate() {
            let kept = new_kept(&fabric, limits, *id);
            let own = segments.iter().filter(|segment| segment.owner == *id);
            own.for_each(|segment| segment.keep(kept.as_deref(), &fabric));
            let store = store((&fabric, limits, kept.as_ref()), &ids, *id, seed);
            let store = Arc::new(store);
            let control = Arc::new(Control::default());
            let peers = peers(&segments, limits, *id);
            let mut inboxes = Vec::new();
            for index in 0..limits.workers {
                let me = WorkerRef::new(*id, worker_id(index));
                let begun = (&fabric, limits, &first);
                let own = (&store, &control, kept.as_ref());
                let mut parts = worker(begun, me, &peers, own, seed);
                if parts.membership.manager() == *id && index == 0 {
                    parts.manager = Some(match limits.survives {
                        true => {
                            Box::new(Manager::new(first.clone(), changes.clone()).among_others())
                        }
                        false => manager(first.clone(), seed),
                    });
                }
                parts.members = members(begun, me, &changes);
                inboxes.push(Arc::clone(&parts.inbox));
                let mut worker = Box::new(Worker::new(parts));
                attach(&mut worker);
                seats.push(Seat {
                    me,
                    machine: place,
                    worker: Mutex::new(Some(worker)),
                    in_turn: AtomicBool::new(false),
                });
            }
            let own = segments.iter().filter(|segment| segment.owner == *id);
            machines.push(Machine {
                id: *id,
                process: RefCell::new(Process {
                    control,
                    store,
                    segments: own.map(|one| one.kept(&fabric, limits)).collect(),
                    inboxes,
                    kept: kept.clone(),
                }),
                kept: RefCell::new(
                    kept.map(|kept| (fabric.boot(*id), kept))
                        .into_iter()
                        .collect(),
                ),
                paused_until: AtomicU64::new(0),
                stopping: AtomicBool::new(false),
                stalls: AtomicBool::new(false),
                ends: AtomicBool::new(false),
                killed: AtomicBool::new(false),
                gone: AtomicBool::new(false),
                lost: AtomicBool::new(false),
            });
        }
        let parts = Rc::new(Parts {
            fabric,
            pace,
            seats,
            machines,
            links: RefCell::default(),
            connected: RefCell::default(),
            depth: AtomicU32::new(0),
            limits: *limits,
            changes,
            seed,
            under_way: Mutex::new(Vec::new()),
            turns: AtomicU64::new(0),
            idle_turns: AtomicU32::new(0),
        });
        let others = Rc::clone(&parts);
        parts.fabric.set_interruption(move || others.run_others());
        Cluster { parts }
    }
}

pub(super) fn worker_id(index: usize) -> WorkerId {
    WorkerId::new(index as u16).expect("every worker of a simulated machine has a valid id")
}

fn machine_ids(limits: &ClusterLimits) -> impl Iterator<Item = MachineId> + use<> {
    (1..=limits.machines as u16).map(|number| {
        MachineId::new(number)
            .expect("the ids of simulated machines count from 1 and are within the limit")
    })
}

fn segments(fabric: &SimFabric, limits: &ClusterLimits, ids: &[MachineId]) -> Vec<Exported> {
    let pairs = ids
        .iter()
        .flat_map(|owner| ids.iter().map(move |peer| (*owner, *peer)));
    pairs
        .map(|pair| Exported::new(fabric, limits, pair))
        .collect()
}

pub(super) fn peers(
    segments: &[Exported],
    limits: &ClusterLimits,
    own: MachineId,
) -> Vec<LinkPeer> {
    let ours = segments.iter().filter(|segment| segment.owner == own);
    let peer = |segment: &Exported| {
        let back = |other: &&Exported| other.owner == segment.peer && other.peer == own;
        let theirs = segments
            .iter()
            .find(back)
            .expect("every pair of machines has a segment in each direction");
        LinkPeer {
            machine: segment.peer,
            workers: limits.workers,
            ours: segment.memory.clone(),
            theirs: theirs.capability,
        }
    };
    let mut peers: Vec<LinkPeer> = ours.map(peer).collect();
    // Workers look machines up in this order.
    peers.sort_by_key(|peer| peer.machine);
    peers
}

pub(super) fn store(
    (fabric, limits, kept): (&SimFabric, &ClusterLimits, Option<&Arc<SimKept>>),
    ids: &[MachineId],
    id: MachineId,
    seed: u64,
) -> Store {
    let storing = &ids[..ids.len() - limits.without_memory];
    let blocks = BlockConfig {
        block_bytes: limits.block_bytes,
        region_bytes: limits.region_bytes,
        per_machine_bytes: match storing.contains(&id) {
            true => limits.per_machine_bytes,
            false => 0,
        },
        seed,
    };
    let (fabric, kept) = (fabric.clone(), kept.cloned());
    let export = move |region, bytes| {
        let (memory, capability) = fabric.export(id, bytes, false);
        if let Some(kept) = &kept {
            kept.keep_region(region, &capability)?;
        }
        Ok((memory, capability))
    };
    let copy = export.clone();
    let seed = seed ^ u64::from(id.get());
    let memory = SlowMemory {
        allocate: export,
        // Not drawn from the fabric, so that the choices of runs do not depend on it.
        asks: (seed % MOST_ASKS) as u32,
        left: AtomicU32::new(0),
    };
    let store = Store::new(blocks, id, Placement::new(storing), seed, memory);
    let replication = Replication {
        replicas: limits.replicas.max(1),
        logged: limits.replicas > 0,
        domains: Default::default(),
    };
    store.with_replication(replication, Backups::new(Arc::new(copy), false))
}

/// The memory of a region is made after fewer questions than this number.
const MOST_ASKS: u64 = 4;

/// Memory that others have to ask for several times.
struct SlowMemory<A> {
    allocate: A,
    asks: u32,
    /// Number of further questions until it is ready.
    left: AtomicU32,
}

impl<A> RegionMemory for SlowMemory<A>
where
    A: FnMut(RegionId, usize) -> Result<(Memory, Capability), AllocationError> + Send,
{
    fn allocate(
        &mut self,
        region: RegionId,
        bytes: usize,
    ) -> Result<(Memory, Capability), AllocationError> {
        self.left.store(self.asks, Ordering::Relaxed);
        (self.allocate)(region, bytes)
    }

    fn is_ready(&self, _: usize) -> bool {
        let next = |left: u32| left.checked_sub(1);
        self.left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
            .is_err()
    }
}

/// Returns the first configuration.
fn first(fabric: &SimFabric, limits: &ClusterLimits, ids: &[MachineId]) -> Configuration {
    let storing = ids.len() - limits.without_memory;
    let member = |(place, id): (usize, &MachineId)| Member {
        machine: *id,
        boot: fabric.boot(*id),
        workers: limits.workers as u16,
        stores: place < storing,
        domain: Domain::default(),
    };
    let members = ids.iter().enumerate().map(member).collect();
    Configuration::first("sim", members).expect("the machines of a simulated cluster can form one")
}

/// Returns the manager of the configuration. Its store takes a number of polls that depends on the seed.
fn manager(first: Configuration, seed: u64) -> Box<Manager> {
    let slow = SlowStore {
        polls: seed % 5,
        left: None,
        fails: seed % 11 == 3,
        tries: 0,
    };
    Box::new(Manager::new(first, slow))
}

/// Stores configurations in the process, each within a number of polls.
struct SlowStore {
    polls: u64,
    /// Polls until the configuration is stored, if one is being stored.
    left: Option<u64>,
    /// Whether every second try fails, after the first ones, which workloads need to begin.
    fails: bool,
    tries: u64,
}

impl ConfigWriter for SlowStore {
    fn begin(&mut self, _: Configuration) {
        self.left = Some(self.polls);
        self.tries += 1;
    }

    fn poll(&mut self) -> Option<Result<(), WriteError>> {
        let left = self.left?;
        self.left = left.checked_sub(1);
        let outcome = match self.fails && self.tries > 6 && self.tries % 2 == 1 {
            true => Err(WriteError::Failed("the simulated store is full".into())),
            false => Ok(()),
        };
        self.left.is_none().then_some(outcome)
    }
}

/// Returns what the first worker of a machine needs to take part in changes of the configuration, if the cluster survives losses.
pub(super) fn members(
    (fabric, limits, configuration): (&SimFabric, &ClusterLimits, &Configuration),
    me: WorkerRef,
    changes: &SimStore,
) -> Option<MembersParts> {
    (limits.survives && me.worker == WorkerId::FIRST).then(|| MembersParts {
        me: configuration::Process {
            machine: me.machine,
            boot: fabric.boot(me.machine),
        },
        configuration: configuration.clone(),
        store: Box::new(changes.clone()),
    })
}

/// Returns the parts of a worker that begins in a configuration.
pub(super) fn worker(
    (fabric, limits, configuration): (&SimFabric, &ClusterLimits, &Configuration),
    me: WorkerRef,
    peers: &[LinkPeer],
    (store, control, kept): (&Arc<Store>, &Arc<Control>, Option<&Arc<SimKept>>),
    seed: u64,
) -> WorkerParts {
    let slots = limits.operations;
    let arena = ArenaConfig {
        classes: vec![(512, slots), (2048, slots.min(8)), (8192, 2)],
    };
    let mut endpoint = fabric.endpoint(me.machine, me.worker, &arena);
    let machines = machine_ids(limits).map(|id| (id, limits.workers));
    let machines: Vec<(MachineId, usize)> = machines.collect();
    let links = Links::wire(
        &mut endpoint,
        me.machine,
        me.worker,
        (&machines, peers),
        limits.ring_format(),
    )
    .expect("the limits of the cluster allow the rings to be wired");
    let membership = Membership::of(configuration);
    let membership = match limits.survives {
        true => membership.that_survives(),
        false => membership,
    };
    WorkerParts {
        me,
        endpoint,
        links,
        store: Arc::clone(store),
        membership,
        manager: None,
        members: None,
        control: Arc::clone(control),
        inbox: Arc::new(Inbox::new(16, Box::new(|| {}))),
        clock: fabric.clock(),
        kept: kept.cloned().map(|kept| kept as Arc<dyn Kept>),
        seed: seed ^ u64::from(me.to_bits()) << 32,
        limits: WorkerLimits {
            max_message_bytes: limits.max_body_bytes(),
            operations: limits.operations,
            read_tries: ReadTries::soon(limits.read_tries),
            fill_rate: FILL_RATE,
            transactions: limits.transactions,
        },
    }
}
