//! Recovery on a machine: the first worker runs [`Recovery`], and does with objects what its steps say.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use farm_core::alloc::{BlockTable, SizeClass};
use farm_core::ids::{Address, MachineId, RegionId, WorkerId, WorkerRef};
use farm_core::membership::configuration::Configuration;
use farm_core::object::write;
use farm_core::region::map::Replicas;
use farm_core::worker::{MembershipHook, Worker};
use farm_core::{marks, mutants};

use super::drained::DrainedLogs;
use super::journal::{self, Entry, Resumed};
use super::message::{Message, Step};
use super::{Decision, Drain, EndedHere, Recovery, Roles, Undecided, Unexpected, replica};
use crate::commit::reconfigure;
use crate::layer::transactions;
use crate::record::{Effect, Lock, Object, TxId};
use crate::slots;

/// Long messages: to the first worker of the machine, what another one has found in its logs; between first workers, a [`Message`]; to the
/// other workers of the machine, a decision about a transaction, and that all objects of undecided transactions are locked.
const DRAINED: u16 = 32;
const RECOVERY: u16 = 33;
const OUTCOME: u16 = 34;
const ACTIVE: u16 = 35;

/// Recovery on the first worker of a machine.
#[derive(Default)]
pub(crate) struct Recovering {
    recovery: Option<Recovery>,
    /// Messages that came before the first recovery of this machine began.
    early: Vec<(MachineId, u64, Message)>,
    drain: Drain,
    /// Suspended commits of the workers that have drained their logs, with the regions that they write.
    suspended: Vec<(TxId, BTreeSet<RegionId>)>,
    /// The configuration for which logs are being drained, and the workers that have not.
    draining: Option<(u64, BTreeSet<WorkerRef>)>,
    /// The blocks of the replicas of this machine.
    tables: BTreeMap<RegionId, BlockTable>,
    /// Number of regions of which this machine is the primary and that are not active.
    inactive: usize,
    /// Slots that transactions which have not ended here have reserved or free. If an object is not allocated when they are decided, its
    /// slot is released.
    open_slots: BTreeMap<Address, SizeClass>,
}

impl Recovering {
    /// Returns whether this machine recovers, or has not been told that all machines have.
    pub(crate) fn is_under_way(&self) -> bool {
        let recovery = self.recovery.as_ref();
        self.draining.is_some() || recovery.is_some_and(|recovery| !recovery.is_forgotten())
    }
}

pub(crate) fn attach(worker: &mut Worker) {
    worker.register_own_long(DRAINED, handle_drained);
    worker.register_long(RECOVERY, handle_message);
    worker.register_long(OUTCOME, handle_outcome);
    worker.register_long(ACTIVE, handle_active);
    worker.on_membership(MembershipHook {
        apply: reconfigure::apply,
        commit: drain,
        forget,
    });
}

fn first(worker: &Worker) -> WorkerRef {
    WorkerRef::first_of(worker.me().machine)
}

/// Drains the logs of this worker.
fn drain(worker: &mut Worker, configuration: &Configuration) {
    let drained = match reconfigure::drain(worker, configuration.version.id) {
        Ok(drained) => drained,
        Err(why) => return worker.control().fail(why),
    };
    match worker.me().worker == WorkerId::FIRST {
        true => on_drained(worker, worker.me(), drained),
        false => worker.send_long(first(worker), DRAINED, drained.encode()),
    }
}

fn handle_drained(worker: &mut Worker, from: WorkerRef, body: &[u8]) {
    match DrainedLogs::decode(body) {
        Some(drained) => on_drained(worker, from, drained),
        None => distrust(worker, from, "sent drained logs that are malformed"),
    }
}

fn distrust(worker: &mut Worker, from: WorkerRef, what: &str) {
    worker.distrust(from.machine, format!("{from} {what}"));
}

/// Gathers what a worker of this machine has found. When all have, recovery begins.
fn on_drained(worker: &mut Worker, from: WorkerRef, drained: DrainedLogs) {
    let id = drained.configuration;
    let workers = worker.own_workers();
    let state = &mut transactions(worker).recovering;
    let Recovering {
        drain, open_slots, ..
    } = state;
    let added = drained.add_to(drain, |id, lock| {
        if !drained.ended.contains(&id) && !drained.ended_below.have_passed(id) {
            note_slots(open_slots, lock, drained.holding.contains(&id));
        }
    });
    state.suspended.extend(drained.suspended);
    if state.draining.as_ref().is_none_or(|(of, _)| *of < id) {
        state.draining = Some((id, workers.collect()));
    }
    let all_have = match &mut state.draining {
        Some((of, left)) if *of == id => {
            left.remove(&from);
            left.is_empty()
        }
        _ => false,
    };
    if let Err(error) = added {
        let why = format!("a log of this machine cannot be recovered: {error}");
        return worker.control().fail(why);
    }
    if all_have {
        transactions(worker).recovering.draining = None;
        begin(worker, id);
    }
}

/// Notes the slots that may become free with the end of a transaction: those that it has reserved, and, if it holds the locks, those
/// of objects that it frees. Without the locks it does not commit, and another one may have freed them.
fn note_slots(slots: &mut BTreeMap<Address, SizeClass>, lock: &Lock<'_>, holds: bool) {
    let objects = lock.objects().map_while(Result::ok);
    let frees = |object: &Object<'_>| match object.effect {
        Effect::Allocate | Effect::Format => true,
        Effect::Free => holds,
        Effect::Write => false,
    };
    for object in objects.filter(frees) {
        let addresses = object.addresses();
        slots.extend(addresses.map(|address| (address, object.class)));
    }
}

fn roles(worker: &Worker, configuration: &Configuration) -> Roles {
    let regions = configuration.regions.iter();
    Roles {
        configuration: configuration.version.id,
        recovered: configuration.recovered,
        me: worker.me().machine,
        members: configuration.running().map(|one| one.machine).collect(),
        regions: regions.filter_map(Replicas::recorded).collect(),
    }
}

/// Begins the recovery of this machine in a configuration.
fn begin(worker: &mut Worker, id: u64) {
    let Some(configuration) = worker.store().applied_as(id) else {
        // A later one is being applied: it drains again.
        return;
    };
    let roles = roles(worker, &configuration);
    let primary_of = roles.regions.iter();
    let primary_of = primary_of.filter(|(_, replicas)| replicas.primary() == roles.me);
    let primary_of: BTreeSet<RegionId> = primary_of.map(|(region, _)| *region).collect();
    let inactive = primary_of.len();
    let state = &mut transactions(worker).recovering;
    state.inactive = inactive;
    state.tables.clear();
    let mut drain = std::mem::take(&mut state.drain);
    let mut suspended = std::mem::take(&mut state.suspended);
    let (before, early) = (state.recovery.take(), std::mem::take(&mut state.early));
    let resumed = match &before {
        None => resume(worker, (id, roles.recovered)),
        Some(_) => Ok(Resumed::default()),
    };
    let resumed = match resumed {
        Ok(resumed) => resumed,
        Err(why) => return worker.control().fail(why),
    };
    drain.absorb(resumed.drain);
    suspended.extend(resumed.suspended);
    let mut ended = resumed.ended;
    let mut steps = Vec::new();
    let recovered = roles.recovered;
    let gather = |known: Undecided| {
        let (mut all, over) = drain.finish(known);
        for (id, regions) in suspended {
            all.add_tx(id, regions);
        }
        // All of it is kept.
        all.take_told();
        ended.extend(over);
        all
    };
    let begun = match before {
        Some(before) => before.next(roles, gather, &mut steps),
        None => Recovery::begin(roles, gather(resumed.known), &mut steps),
    };
    let begun = begun.and_then(|mut begun| {
        for (from, configuration, message) in early {
            begun.on_message(from, configuration, message, &mut steps)?;
        }
        Ok(begun)
    });
    let recovery = match begun {
        Ok(recovery) => recovery,
        Err(unexpected) => return on_unexpected(worker, &unexpected),
    };
    let kept = recovery.known().objects();
    transactions(worker).recovering.recovery = Some(recovery);
    let begun = Entry::Begun {
        configuration: id,
        recovered,
    };
    let is_kept = journal::keep(worker.kept(), id, || begun).and_then(|()| keep_told(worker));
    if let Err(why) = is_kept {
        return worker.control().fail(why);
    }
    tracing::info!(
        configuration = id,
        "recovering transactions of earlier configurations"
    );
    for one in &ended {
        if let Err(why) = end_here(worker, one, (&kept, &primary_of)) {
            return worker.control().fail(why);
        }
    }
    if mutants::is_on("region served before its locks") {
        for region in configuration.regions.iter() {
            worker.serve_region(region.region);
        }
    }
    if inactive == 0 {
        activate(worker);
    }
    perform(worker, steps);
}

/// Returns what earlier processes of this machine have kept, if this is the first recovery of this one, in a configuration. All machines have
/// recovered for the configuration `recovered`.
fn resume(worker: &mut Worker, (configuration, recovered): (u64, u64)) -> Result<Resumed, String> {
    let Some(kept) = worker.kept().cloned() else {
        return Ok(Resumed::default());
    };
    let resumed = Resumed::read(&*kept, configuration).and_then(|mut resumed| {
        resumed.drain_earlier(&kept, (configuration, recovered))?;
        Ok(resumed)
    });
    resumed.map_err(|error| {
        format!("what earlier processes of this machine have kept cannot be recovered: {error}")
    })
}

/// Keeps what recovery was told, before anything follows from it.
fn keep_told(worker: &mut Worker) -> Result<(), String> {
    let recovery = recovery(worker);
    let (configuration, told) = (recovery.configuration(), recovery.take_told());
    match told.is_empty() || mutants::is_on("what was told is not kept") {
        true => Ok(()),
        false => journal::keep(worker.kept(), configuration, || Entry::Told(told)),
    }
}

/// Does what is left of a transaction that has ended. `kept` are the objects of undecided transactions. This machine is the primary of the
/// regions `primary_of`.
fn end_here(
    worker: &mut Worker,
    one: &EndedHere,
    (kept, primary_of): (&BTreeSet<Address>, &BTreeSet<RegionId>),
) -> Result<(), String> {
    let regions: BTreeSet<RegionId> = one.of.iter().map(|of| of.0).collect();
    for region in regions {
        let is_primary = primary_of.contains(&region);
        if let Some(table) = table(worker, region) {
            replica::end(table, one, (kept, is_primary)).map_err(|error| error.to_string())?;
        }
    }
    for (region, body) in &one.of {
        let objects = body
            .objects_in(*region)
            .flat_map(|object| object.addresses());
        for address in objects.filter(|address| !kept.contains(address)) {
            release_slot(worker, address);
        }
    }
    Ok(())
}

/// Returns the blocks of this machine's replica of a region, if it has one.
fn table(worker: &mut Worker, region: RegionId) -> Option<&BlockTable> {
    if !transactions(worker).recovering.tables.contains_key(&region) {
        let memory = worker.store().replica(region)?;
        // Other workers may be changing it.
        let table = BlockTable::open_in_use(memory, region).ok()?;
        transactions(worker).recovering.tables.insert(region, table);
    }
    transactions(worker).recovering.tables.get(&region)
}

/// Releases the slot of an object that an undecided transaction had reserved or was to free, if it is not allocated.
fn release_slot(worker: &mut Worker, address: Address) {
    let Some(class) = transactions(worker).recovering.open_slots.remove(&address) else {
        return;
    };
    if worker.store().region(address.region()).is_none() {
        return;
    }
    let is_allocated = worker
        .local_memory(address)
        .is_ok_and(|(memory, at)| write::load_incarnation(memory, at).is_allocated());
    if !is_allocated {
        marks::mark("recovery: the slot of an object is released");
        slots::release_local(worker, address, class);
    }
}

fn handle_message(worker: &mut Worker, from: WorkerRef, body: &[u8]) {
    let (configuration, message) = match Message::decode(body) {
        Ok(decoded) => decoded,
        Err(error) => {
            let why = format!("{from} sent a message of recovery that is malformed: {error}");
            return worker.distrust(from.machine, why);
        }
    };
    let state = &mut transactions(worker).recovering;
    let Some(recovery) = &mut state.recovery else {
        marks::mark("recovery: a message before the first recovery");
        return state.early.push((from.machine, configuration, message));
    };
    let mut steps = Vec::new();
    let handled = recovery.on_message(from.machine, configuration, message, &mut steps);
    if let Err(unexpected) = handled {
        return on_unexpected(worker, &unexpected);
    }
    match keep_told(worker) {
        Ok(()) => perform(worker, steps),
        Err(why) => worker.control().fail(why),
    }
}

fn on_unexpected(worker: &mut Worker, unexpected: &Unexpected) {
    worker.control().fail(unexpected.to_string());
}

fn perform(worker: &mut Worker, steps: Vec<Step>) {
    let mut steps = VecDeque::from(steps);
    while let Some(step) = steps.pop_front() {
        if let Err(why) = perform_one(worker, step, &mut steps) {
            return worker
                .control()
                .fail(format!("recovery cannot go on: {why}"));
        }
    }
}

fn perform_one(worker: &mut Worker, step: Step, more: &mut VecDeque<Step>) -> Result<(), String> {
    let me = worker.me().machine;
    let configuration = recovery(worker).configuration();
    match step {
        Step::Send(to, message) if to == me => {
            let mut out = Vec::new();
            let handled = recovery(worker).on_message(me, configuration, message, &mut out);
            handled.map_err(|error| error.to_string())?;
            keep_told(worker)?;
            more.extend(out);
            Ok(())
        }
        Step::Send(to, message) => {
            let to = WorkerRef::first_of(to);
            worker.send_long(to, RECOVERY, message.encode(configuration));
            Ok(())
        }
        Step::Lock(region, body) => with_table(worker, region, |table| replica::lock(table, &body)),
        Step::Apply(region, body) => {
            with_table(worker, region, |table| replica::apply_all(table, &body))
        }
        Step::Release(address, bodies) => {
            with_table(worker, address.region(), |table| {
                replica::release(table, address, &bodies)
            })?;
            release_slot(worker, address);
            Ok(())
        }
        Step::Activate(region) => {
            if !worker.serve_region(region) {
                return Err(format!("this machine has no copy of region {region}"));
            }
            let state = &mut transactions(worker).recovering;
            state.inactive = state.inactive.saturating_sub(1);
            if state.inactive == 0 {
                activate(worker);
            }
            Ok(())
        }
        Step::Outcome(id, decision) => {
            tell_outcome(worker, id, decision);
            Ok(())
        }
        Step::Recovered => {
            tracing::info!(configuration, "this machine has recovered");
            worker.report_recovered(configuration);
            Ok(())
        }
    }
}

fn recovery(worker: &mut Worker) -> &mut Recovery {
    let recovery = transactions(worker).recovering.recovery.as_mut();
    recovery.expect("steps come from a recovery that has begun")
}

fn with_table(
    worker: &mut Worker,
    region: RegionId,
    work: impl FnOnce(&BlockTable) -> Result<(), replica::ReplicaError>,
) -> Result<(), String> {
    let table = table(worker, region);
    let table = table.ok_or_else(|| format!("this machine has no copy of region {region}"))?;
    work(table).map_err(|error| error.to_string())
}

/// All objects of undecided transactions of this machine's regions are locked: its workers take records from logs, and begin
/// commits.
fn activate(worker: &mut Worker) {
    marks::mark("recovery: the regions of a machine are active");
    let configuration = recovery(worker).configuration();
    for one in worker.own_workers() {
        worker.send_long(one, ACTIVE, configuration.to_le_bytes().into());
    }
}

fn handle_active(worker: &mut Worker, from: WorkerRef, body: &[u8]) {
    let configuration = body.try_into().ok().map(u64::from_le_bytes);
    let Some(configuration) = configuration.filter(|_| from == first(worker)) else {
        return distrust(worker, from, "sent ACTIVE to a worker of another machine");
    };
    let state = transactions(worker);
    // Unless a later configuration was applied meanwhile.
    if state.configuration == configuration {
        state.recovers = false;
        worker.thaw_logs();
    }
}

fn tell_outcome(worker: &mut Worker, id: TxId, decision: Decision) {
    let to = id.coordinator;
    if to == worker.me() {
        return reconfigure::decide(worker, id, decision);
    }
    let body = postcard::to_allocvec(&(id, decision));
    let body = body.expect("a decision has no part that cannot be encoded");
    worker.send_long(to, OUTCOME, body);
}

fn handle_outcome(worker: &mut Worker, from: WorkerRef, body: &[u8]) {
    let decoded = postcard::from_bytes::<(TxId, Decision)>(body).ok();
    match decoded.filter(|(id, _)| from == first(worker) && id.coordinator == worker.me()) {
        Some((id, decision)) => reconfigure::decide(worker, id, decision),
        None => distrust(worker, from, "sent a decision that is malformed"),
    }
}

/// All machines have recovered in a configuration.
fn forget(worker: &mut Worker, configuration: u64) {
    let is_past = worker.store().is_past(configuration);
    let state = &mut transactions(worker).recovering;
    if let Some(recovery) = &mut state.recovery
        && recovery.configuration() == configuration
    {
        recovery.forget();
        state.tables.clear();
        // Otherwise it may have those of the next recovery.
        if state.draining.is_none() && !is_past {
            state.open_slots.clear();
        }
    }
}
