//! The state of a simulated fabric: machines, their exports, sleeping workers, and connections.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use farm_core::fabric::{
    Capability, Completion, Counters, Departure, Eviction, ImportError, Lease, Slot, Status, Token,
};
use farm_core::ids::{MachineId, WorkerId, WorkerRef};
use farm_core::mem::{MappingError, Memory};
use farm_core::time::{Nanos, VirtualTime};
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::buffers::Processors;
use super::config::{Defect, Odds, SimConfig};
use super::connection::{Ack, Connection, Kind, Operation};
use super::lease_net::Leases;
use super::trace::{Event, Trace};

/// The sleep state of a worker, from `arm` to the end of `wait`.
#[derive(Debug, Default)]
pub(super) struct Sleeper {
    pub(super) armed: bool,
    pub(super) notified: bool,
    /// End of the sleep, set while the scheduler must not run the worker. A notification ends the sleep earlier.
    pub(super) parked: Option<Nanos>,
}

/// Memory that a machine exports.
#[derive(Debug)]
pub(super) struct Export {
    pub(super) machine: MachineId,
    /// The memory, without buffered stores and without remotely written words that processors do not see yet.
    pub(super) memory: Memory,
    writable: bool,
}

#[derive(Debug)]
struct Machine {
    boot: u64,
    gone: bool,
    /// Indices among all exports. A capability's key is the position in this list, counted from 1.
    exports: Vec<usize>,
    workers: Vec<Sleeper>,
    eviction: Eviction,
    /// What its workers do not know yet of leases of others.
    changes: VecDeque<Lease>,
}

/// Memory that an endpoint has imported.
#[derive(Clone, Debug)]
pub(super) struct Import {
    pub(super) export: usize,
    pub(super) bytes: usize,
    pub(super) writable: bool,
    pub(super) connection: usize,
}

/// The fabric's state of an endpoint.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) worker: WorkerRef,
    pub(super) most_outstanding: usize,
    pub(super) imports: Vec<Import>,
    connections: BTreeMap<MachineId, usize>,
    /// Completions that wait to be polled, each with the words that a read returned.
    pub(super) arrived: VecDeque<(Completion, Vec<u64>)>,
    /// Slots of unsignalled writes that have landed, to be returned to the endpoint's arena.
    pub(super) returned: Vec<Slot>,
    pub(super) departed: VecDeque<(MachineId, Departure)>,
    pub(super) outstanding: usize,
    pub(super) unsignalled: usize,
    pub(super) counters: Counters,
}

pub(super) struct State {
    pub(super) rng: Xoshiro256PlusPlus,
    pub(super) now: Nanos,
    pub(super) clock: Arc<VirtualTime>,
    pub(super) trace: Trace,
    pub(super) odds: Odds,
    pub(super) defect: Option<Defect>,
    machines: BTreeMap<MachineId, Machine>,
    pub(super) exports: Vec<Export>,
    pub(super) processors: Processors,
    parted: BTreeMap<(MachineId, MachineId), Departure>,
    /// If leases end by time.
    pub(super) leases: Option<Leases>,
    pub(super) ports: Vec<Port>,
    pub(super) connections: Vec<Connection>,
    pub(super) next_operation: u64,
    /// Scratch space of `step`.
    pub(super) choices: Vec<usize>,
}

impl State {
    pub(super) fn new(config: &SimConfig, machines: &[MachineId]) -> Self {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(config.seed);
        let drawn = Odds::drawn(&mut rng);
        let machine = |rng: &mut Xoshiro256PlusPlus| Machine {
            boot: rng.random(),
            gone: false,
            exports: Vec::new(),
            eviction: Eviction::never(),
            changes: VecDeque::new(),
            workers: (0..config.workers).map(|_| Sleeper::default()).collect(),
        };
        let mut state = Self {
            machines: machines.iter().map(|id| (*id, machine(&mut rng))).collect(),
            rng,
            now: Nanos(0),
            clock: Arc::default(),
            trace: Trace::new(config.keep_events),
            odds: config.odds.clone().unwrap_or(Odds {
                one_pass: false,
                ..drawn
            }),
            defect: config.defect,
            exports: Vec::new(),
            processors: Processors::new(config.processors),
            parted: BTreeMap::new(),
            leases: config.lease.map(Leases::new),
            ports: Vec::new(),
            connections: Vec::new(),
            next_operation: 0,
            choices: Vec::new(),
        };
        for id in machines {
            let boot = state.machine(*id).boot;
            let eviction = state.begin_leases(*id, boot);
            if let Some(machine) = state.machines.get_mut(id) {
                machine.eviction = eviction;
            }
        }
        state
    }

    pub(super) fn has(&self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }

    /// Returns true with a probability of `share` in [`Odds::WHOLE`].
    pub(super) fn chance(&mut self, share: u32) -> bool {
        self.rng.random_range(0..Odds::WHOLE) < share
    }

    pub(super) fn note(&mut self, event: Event) {
        self.trace.add(self.now, event);
    }

    pub(super) fn set_now(&mut self, now: Nanos) {
        self.now = now;
        self.clock.set(now);
    }

    pub(super) fn add_port(&mut self, worker: WorkerRef, most_outstanding: usize) -> usize {
        assert!(
            self.machine(worker.machine).workers.len() > worker.worker.index(),
            "cannot create an endpoint: {worker} is not a worker of this fabric"
        );
        self.ports.push(Port {
            worker,
            most_outstanding,
            imports: Vec::new(),
            connections: BTreeMap::new(),
            arrived: VecDeque::new(),
            returned: Vec::new(),
            departed: VecDeque::new(),
            outstanding: 0,
            unsignalled: 0,
            counters: Counters::default(),
        });
        self.processors.add();
        self.ports.len() - 1
    }

    pub(super) fn boot(&self, id: MachineId) -> u64 {
        self.machine(id).boot
    }

    fn machine(&self, id: MachineId) -> &Machine {
        self.machines
            .get(&id)
            .unwrap_or_else(|| panic!("cannot use machine {id}: it is not on this fabric"))
    }

    /// Exports new memory of a machine. Returns the memory, its capability, and its index among all exports.
    pub(super) fn export(
        &mut self,
        id: MachineId,
        memory: Memory,
        writable: bool,
    ) -> (Memory, Capability, usize) {
        let bytes = memory.len();
        let export = self.exports.len();
        let machine = self
            .machines
            .get_mut(&id)
            .unwrap_or_else(|| panic!("cannot use machine {id}: it is not on this fabric"));
        machine.exports.push(export);
        let key = machine.exports.len() as u64;
        let capability = Capability {
            machine: id,
            boot: machine.boot,
            key,
            bytes: bytes as u64,
            writable,
        };
        self.exports.push(Export {
            machine: id,
            memory: memory.clone(),
            writable,
        });
        (memory, capability, export)
    }

    pub(super) fn local_view(&self, capability: &Capability) -> Memory {
        let exports = &self.machines[&capability.machine].exports;
        self.exports[exports[capability.key as usize - 1]]
            .memory
            .clone()
    }

    pub(super) fn import(
        &mut self,
        port: usize,
        capability: &Capability,
    ) -> Result<u32, ImportError> {
        let (own, to) = (self.ports[port].worker.machine, capability.machine);
        let Some(machine) = self.machines.get(&to) else {
            return Err(ImportError::NotConnected(to));
        };
        if machine.gone || self.machine(own).gone || self.parted.contains_key(&(own, to)) {
            return Err(ImportError::NotConnected(to));
        }
        if !self.has(Defect::StaleAccepted) {
            capability.check_start(machine.boot)?;
        }
        let export = (capability.key as usize)
            .checked_sub(1)
            .and_then(|at| machine.exports.get(at).copied());
        let long_enough =
            |export: &usize| self.exports[*export].memory.len() as u64 >= capability.bytes;
        let Some(export) = export.filter(long_enough) else {
            return Err(ImportError::Mapping(MappingError::Os {
                what: "import",
                path: format!("export {} of {to}", capability.key).into(),
                source: std::io::ErrorKind::NotFound.into(),
            }));
        };
        let writable = self.exports[export].writable && capability.writable;
        let connection = self.connection(port, to);
        let imports = &mut self.ports[port].imports;
        imports.push(Import {
            export,
            bytes: capability.bytes as usize,
            writable,
            connection,
        });
        Ok(imports.len() as u32 - 1)
    }

    fn connection(&mut self, port: usize, to: MachineId) -> usize {
        let next = self.connections.len();
        let index = *self.ports[port].connections.entry(to).or_insert(next);
        if index == next {
            let until = self.still_until(self.ports[port].worker.machine, to);
            let mut connection = Connection::new(port, to, false);
            connection.stalled_until = until;
            self.connections.push(connection);
        }
        index
    }

    pub(super) fn sleeper(&mut self, worker: WorkerRef) -> &mut Sleeper {
        let machine = self.machines.get_mut(&worker.machine);
        &mut machine
            .expect("the worker belongs to a machine of the simulated fabric")
            .workers[worker.worker.index()]
    }

    pub(super) fn has_worker(&self, worker: WorkerRef) -> bool {
        self.machines
            .get(&worker.machine)
            .is_some_and(|machine| worker.worker.index() < machine.workers.len())
    }

    /// Notifies a worker. If the worker is armed (it sleeps or is about to sleep), ends its sleep and returns true.
    pub(super) fn notify(&mut self, worker: WorkerRef) -> bool {
        let sleeper = self.sleeper(worker);
        let woken = sleeper.armed;
        if woken {
            *sleeper = Sleeper {
                armed: false,
                notified: true,
                parked: None,
            };
        }
        self.note(Event::Notified { worker, woken });
        woken
    }

    /// Returns the earliest future end of a sleep. Past ends are skipped: while its machine is paused, a worker remains
    /// parked after its sleep has ended.
    pub(super) fn next_wake(&self) -> Option<Nanos> {
        let sleepers = self.machines.values().flat_map(|machine| &machine.workers);
        let ends = sleepers.filter_map(|sleeper| sleeper.parked);
        let leases = self.leases.as_ref().map(|_| self.next_lease());
        ends.chain(leases).filter(|end| *end > self.now).min()
    }

    /// Breaks all connections of a machine, and marks the machine as gone: it can import nothing and cannot be imported
    /// from.
    pub(super) fn depart(&mut self, id: MachineId, how: Departure) {
        let others: Vec<MachineId> = self.machines.keys().copied().filter(|m| *m != id).collect();
        for other in others {
            self.disconnect(id, other, how);
        }
        let own = |c: &Connection, ports: &[Port]| c.to == id && ports[c.port].worker.machine == id;
        for index in 0..self.connections.len() {
            if own(&self.connections[index], &self.ports) {
                self.break_connection(index);
            }
        }
        self.machines
            .get_mut(&id)
            .expect("the machine that departs belongs to the simulated fabric")
            .gone = true;
    }

    /// Returns whether a start of a machine is proved to have ended.
    pub(super) fn has_died(&self, id: MachineId, boot: u64) -> bool {
        let machine = self.machine(id);
        self.leases.is_none() && (machine.gone || machine.boot != boot)
    }

    /// Returns whether a start of a machine runs.
    pub(super) fn runs(&self, id: MachineId) -> bool {
        !self.machine(id).gone
    }

    /// Notifies all workers of a machine.
    pub(super) fn notify_all(&mut self, id: MachineId) {
        for worker in 0..self.machine(id).workers.len() {
            let worker = WorkerId::new(worker as u16)
                .expect("every worker of a simulated machine has a valid id");
            self.notify(WorkerRef::new(id, worker));
        }
    }

    /// Returns all machines.
    pub(super) fn ids(&self) -> Vec<MachineId> {
        self.machines.keys().copied().collect()
    }

    /// Has connections stand still while the network between their machines is cut.
    pub(super) fn stall_cut_connections(&mut self) {
        for index in 0..self.connections.len() {
            let Connection { port, to, .. } = self.connections[index];
            let until = self.still_until(self.ports[port].worker.machine, to);
            let connection = &mut self.connections[index];
            connection.stalled_until = connection.stalled_until.max(until);
        }
    }

    /// Returns whether this is the last start of a machine.
    pub(super) fn machine_has(&self, id: MachineId, boot: u64) -> bool {
        self.machine(id).boot == boot
    }

    /// Returns whether others have evicted the last start of a machine.
    pub(super) fn eviction(&self, id: MachineId) -> &Eviction {
        &self.machine(id).eviction
    }

    /// Evicts a start of a machine. Returns false if it had another one since.
    pub(super) fn evict(&self, id: MachineId, boot: u64) -> bool {
        let machine = self.machine(id);
        let is_last = machine.boot == boot;
        if is_last {
            machine.eviction.set();
        }
        is_last
    }

    /// Has all machines notice that the lease of one has expired, or is renewed.
    pub(super) fn change_lease(&mut self, id: MachineId, has_expired: bool) {
        let boot = self.machine(id).boot;
        let others: Vec<MachineId> = self.machines.keys().copied().filter(|m| *m != id).collect();
        for other in others {
            let lease = Lease {
                machine: id,
                boot,
                has_expired,
            };
            self.tell_lease(other, lease);
        }
        self.note(Event::Lease {
            machine: id,
            has_expired,
        });
    }

    /// Has a machine notice a change of a lease.
    pub(super) fn tell_lease(&mut self, id: MachineId, change: Lease) {
        if let Some(machine) = self.machines.get_mut(&id) {
            machine.changes.push_back(change);
            self.notify(WorkerRef::first_of(id));
        }
    }

    /// Returns a change of a lease that a machine does not know yet.
    pub(super) fn take_lease(&mut self, id: MachineId) -> Option<Lease> {
        self.machines.get_mut(&id)?.changes.pop_front()
    }

    /// Starts a machine that has gone again, with another number. It exports nothing yet, and has no connections.
    pub(super) fn restart(&mut self, id: MachineId) {
        self.parted
            .retain(|(one, other), _| *one != id && *other != id);
        for port in &mut self.ports {
            port.connections.remove(&id);
        }
        let boot = self.rng.random();
        let eviction = self.begin_leases(id, boot);
        let machine = self.machines.get_mut(&id);
        let machine =
            machine.expect("the machine that starts again belongs to the simulated fabric");
        assert!(machine.gone, "only a machine that has gone starts again");
        machine.boot = boot;
        machine.gone = false;
        machine.exports.clear();
        machine.eviction = eviction;
        machine.changes.clear();
        machine.workers.fill_with(Sleeper::default);
        self.note(Event::Restarted { machine: id });
    }

    /// Breaks all connections between two machines, in both directions, and notifies all their workers.
    pub(super) fn disconnect(&mut self, one: MachineId, other: MachineId, how: Departure) {
        if self.parted.contains_key(&(one, other)) {
            return;
        }
        self.parted.insert((one, other), how);
        self.parted.insert((other, one), how);
        self.note(Event::Broke { one, other, how });
        let pair = |from: MachineId, to: MachineId| {
            from == one && to == other || from == other && to == one
        };
        for index in 0..self.connections.len() {
            let Connection { port, to, .. } = self.connections[index];
            if pair(self.ports[port].worker.machine, to) {
                self.break_connection(index);
            }
        }
        for port in &mut self.ports {
            match port.worker.machine {
                machine if machine == one => port.departed.push_back((other, how)),
                machine if machine == other => port.departed.push_back((one, how)),
                _ => {}
            }
        }
        for machine in [one, other] {
            self.notify_all(machine);
        }
    }

    /// Completes every outstanding operation as `Broken`. Changes each completion that has not been delivered yet to
    /// `Broken` with a probability of one half.
    fn break_connection(&mut self, index: usize) {
        if self.has(Defect::BreakForgets) {
            self.connections[index].operations.clear();
        }
        let operations = std::mem::take(&mut self.connections[index].operations);
        for place in 0..self.connections[index].acks.len() {
            if self.chance(Odds::WHOLE / 2) {
                let completion = &mut self.connections[index].acks[place].completion;
                *completion = Completion {
                    status: Status::Broken,
                    value: 0,
                    slot: completion.slot.take(),
                    ..*completion
                };
            }
        }
        let forgiven = self.has(Defect::BreakForgiven);
        let connection = &mut self.connections[index];
        connection.broken = !forgiven;
        connection.stalled_until = self.now;
        for Operation { number, kind, .. } in operations {
            match kind {
                Kind::Write(w) => self.acknowledge(
                    index,
                    number,
                    w.signal,
                    Status::Broken,
                    w.slot,
                    0,
                    Vec::new(),
                ),
                Kind::Read(r) => self.acknowledge(
                    index,
                    number,
                    Some(r.token),
                    Status::Broken,
                    Some(r.slot),
                    0,
                    r.out,
                ),
                Kind::Atomic { token, .. } => self.acknowledge(
                    index,
                    number,
                    Some(token),
                    Status::Broken,
                    None,
                    0,
                    Vec::new(),
                ),
                Kind::Notify(_) => {}
            }
        }
    }

    /// Queues the completion of an operation for delivery to its poster. If `token` is `None`, the operation is
    /// unsignalled: it has no completion, and its slot returns to the arena.
    #[allow(clippy::too_many_arguments)] // They are the parts of a completion.
    pub(super) fn acknowledge(
        &mut self,
        connection: usize,
        number: u64,
        token: Option<Token>,
        status: Status,
        mut slot: Option<Slot>,
        value: u64,
        data: Vec<u64>,
    ) {
        let unsignalled = token.is_none();
        let port = &mut self.ports[self.connections[connection].port];
        if unsignalled {
            port.unsignalled -= 1;
            port.returned.extend(slot.take());
        }
        let token = match token {
            None if self.defect == Some(Defect::UnsignalledCompletes) => Token(u64::MAX),
            None => return,
            Some(token) => token,
        };
        if self.defect == Some(Defect::SlotKept) && data.is_empty() {
            slot = None;
        }
        let completion = Completion {
            token,
            status,
            slot,
            value,
        };
        self.connections[connection].acks.push(Ack {
            number,
            completion,
            data,
        });
    }
}
