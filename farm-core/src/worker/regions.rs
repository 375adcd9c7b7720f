//! How a region gets into the region map of every machine.
//!
//! The allocator uses a new region at once. A worker of its machine has the configuration's manager record it, and every commit
//! with a new object in it waits for that ([`Worker::region_state`]). So no transaction waits for a region before it commits, and no
//! machine learns an address in a region that it does not know.
//!
//! 1. The worker whose allocation made the region has the proposed backups make memory for their copies. One that has none is
//!    replaced by the next machine.
//! 2. It asks the manager to record the region, until the answer is final.
//! 3. The manager stores a configuration with the region ([`Manager`]), and tells every machine.
//! 4. When all machines have answered, the region is recorded.
//!
//! The catalog is recorded in the same way, by the manager's own worker ([`Worker::record_catalog`]).

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use super::{Cont, Worker};
use crate::ids::{Address, MachineId, RegionId, WorkerRef};
use crate::marks;
use crate::membership::configuration::Configuration;
use crate::membership::manager::{Changes, Duty, Manager, Recorded};
use crate::messaging::{CallError, MessageId, ReplyCont, Request};
use crate::region::backups::Prepared;
use crate::region::map::{Replicas, Unrecorded};
use crate::time::Nanos;

/// To the manager: record a region. The reply is a code.
const RECORD_REGION: MessageId = MessageId(MessageId::CORE + 3);
/// To a backup: make memory for a copy of a region. The reply is a code.
pub(super) const PREPARE_BACKUP: MessageId = MessageId(MessageId::CORE + 5);
/// From the manager: the number of a configuration, and what is new in it. The reply is empty.
pub(super) const CHANGES: MessageId = MessageId(MessageId::CORE + 4);

/// Interval between requests to the manager.
pub(super) const ASK_AGAIN: Duration = Duration::from_micros(100);
pub(super) const REPLY_BYTES: usize = 1;
pub(super) const NOT_YET: u8 = 0;
/// The region is recorded, the copy has memory, or the machine has joined.
pub(super) const DONE: u8 = 1;
pub(super) const REFUSED: u8 = 2;
/// Largest number of bytes that a region takes in a message.
pub(super) const REGION_BYTES: usize = 5 + 2 * crate::limits::MAX_REPLICAS;
/// Bytes of a CHANGES before its regions: the configuration and the catalog's address.
pub(super) const CHANGES_HEAD_BYTES: usize = 16;

/// A region that is being recorded.
struct Asked {
    region: RegionId,
    /// Machines whose copies have memory.
    ready: Vec<MachineId>,
    /// Machines to ask for memory, in order.
    proposed: VecDeque<MachineId>,
    /// The machine that was asked last.
    asking: Option<MachineId>,
}

impl Asked {
    fn new(region: RegionId, proposed: impl Iterator<Item = MachineId>) -> Self {
        Self {
            region,
            ready: Vec::new(),
            proposed: proposed.collect(),
            asking: None,
        }
    }

    /// Handles another configuration, in which these machines store regions. `proposed` are those that may have copies, in order.
    fn reconsider(
        &mut self,
        stores: impl Fn(MachineId) -> bool,
        proposed: impl Iterator<Item = MachineId>,
    ) {
        self.ready.retain(|machine| stores(*machine));
        // A machine may have come back.
        let is_new = |one: &MachineId| stores(*one) && !self.ready.contains(one);
        self.proposed = proposed.filter(is_new).collect();
    }

    /// Handles the answer of the machine that was asked last: whether it has memory.
    fn on_answer(&mut self, has_memory: bool) {
        let machine = self.asking.take();
        let at = machine.and_then(|machine| self.proposed.iter().position(|one| *one == machine));
        // Otherwise it was lost meanwhile.
        let Some(machine) = at.and_then(|at| self.proposed.remove(at)) else {
            return;
        };
        match has_memory {
            true => self.ready.push(machine),
            false => marks::mark("region: another backup tried"),
        }
    }
}

/// What a worker does to have regions recorded.
#[derive(Default)]
pub(super) struct RegionRecorder {
    /// Regions that this worker has recorded.
    asked: Vec<Asked>,
    /// The manager, on the first worker of its machine.
    pub(super) manager: Option<Box<Manager>>,
    /// The body of the message by which machines are being told of changes.
    told: Vec<u8>,
    /// Number of machines that have not answered it.
    untold: usize,
    /// Members that could not be told, and may run: the changes are not known to all machines before these have left, or the next
    /// configuration is in effect.
    missed: BTreeSet<MachineId>,
    /// Whether they are being told.
    tells: bool,
}

impl RegionRecorder {
    pub(super) fn new(manager: Option<Box<Manager>>, most_message: usize) -> Self {
        let mut recorder = Self::default();
        if let Some(manager) = manager {
            recorder.set_manager(manager, most_message);
        }
        recorder
    }

    /// Makes this worker the one that runs the manager.
    pub(super) fn set_manager(&mut self, mut manager: Box<Manager>, most_message: usize) {
        manager.set_most_told((most_message - CHANGES_HEAD_BYTES) / REGION_BYTES);
        self.manager = Some(manager);
    }

    /// Goes on from another configuration, which the store has.
    pub(super) fn rebase(&mut self, configuration: Configuration) {
        self.missed.clear();
        self.tells = false;
        if let Some(manager) = &mut self.manager {
            manager.rebase(configuration);
        }
    }

    fn asked(&mut self, context: u64) -> Option<&mut Asked> {
        self.asked.iter_mut().find(|one| is(one.region, context))
    }

    fn take_asked(&mut self, context: u64) -> Option<RegionId> {
        let mut asked = self.asked.iter();
        let at = asked.position(|one| is(one.region, context))?;
        Some(self.asked.swap_remove(at).region)
    }

    /// Returns the number of regions that are being recorded.
    pub(super) fn unfinished(&self) -> usize {
        let managed = self.manager.as_ref().map_or(0, |one| one.unfinished());
        self.asked.len() + managed + self.untold
    }
}

impl Worker {
    pub(super) fn register_region_handlers(&mut self) {
        self.register(PREPARE_BACKUP, Self::handle_prepare_backup);
        self.register(RECORD_REGION, Self::handle_record_region);
        self.register(CHANGES, Self::handle_changes);
    }

    /// Returns why a commit with a new object in a region of this machine must wait or fail; `None` if the region is recorded.
    /// A failure that is older than `since`, the time from which the caller waits, is not reported: the region is recorded again.
    #[inline]
    pub fn region_state(&mut self, region: RegionId, since: Nanos) -> Option<Unrecorded> {
        match self.store.map().has_unrecorded() {
            false => None,
            true => self.unrecorded(region, since),
        }
    }

    #[cold]
    fn unrecorded(&mut self, region: RegionId, since: Nanos) -> Option<Unrecorded> {
        let state = self.store.map().unrecorded(region);
        match state {
            Some(Unrecorded::Failed(_, at)) if at < since => {
                self.store.map().begin_again(region);
                self.record_new_regions();
                Some(Unrecorded::UnderWay)
            }
            _ => state,
        }
    }

    /// Has the regions recorded that an allocation of this worker has made.
    #[inline]
    pub(super) fn record_new_regions(&mut self) {
        while let Some(region) = self.store.map().take_new() {
            let proposed = self.store.propose_backups(region);
            let proposed = proposed.filter(|one| self.membership.stores(*one));
            self.recorder.asked.push(Asked::new(region, proposed));
            // The caller may be anywhere in an operation.
            self.defer(Cont::new(Self::ask_to_record, u64::from(region.to_bits())));
        }
    }

    /// Reconsiders the regions that are being recorded, because the configuration has changed.
    pub(super) fn reconsider_regions(&mut self, configuration: &Configuration) {
        self.recorder
            .asked
            .retain(|asked| configuration.region(asked.region).is_none());
        for asked in &mut self.recorder.asked {
            let proposed = self.store.propose_backups(asked.region);
            asked.reconsider(|machine| configuration.stores(machine), proposed);
        }
    }

    /// Handles that a machine which was asked for a region is lost.
    fn asked_the_lost(&mut self, context: u64, error: &CallError) {
        match self.survives() {
            true => self.set_timer(ASK_AGAIN, Cont::new(Self::ask_to_record, context)),
            false => self.not_recorded(context, error.to_string()),
        }
    }

    /// Sends the next request for a region: to a backup, or to the manager when all backups have memory.
    fn ask_to_record(&mut self, context: u64, (): ()) {
        // After losses there may be fewer machines than copies.
        let others = self.membership.storing().len() - 1;
        let backups = (self.store.replication().replicas - 1).min(others);
        let manager = self.membership.manager();
        let me = self.me.machine;
        let Some(asked) = self.recorder.asked(context) else {
            return;
        };
        let mut body = Vec::with_capacity(REGION_BYTES);
        let (to, id, cont) = match asked.proposed.front() {
            Some(backup) if asked.ready.len() < backups => {
                body.extend_from_slice(&asked.region.to_bits().to_le_bytes());
                let cont = ReplyCont::new(Self::on_prepare_reply, context);
                asked.asking = Some(*backup);
                (*backup, PREPARE_BACKUP, cont)
            }
            None if asked.ready.len() < backups => {
                let why =
                    "too few machines have memory for its copies; see their logs for the reasons";
                return self.not_recorded(context, why.into());
            }
            _ => {
                let machines = [me].into_iter().chain(asked.ready.iter().copied());
                let replicas = Replicas::new(machines);
                let replicas =
                    replicas.expect("a region has at most as many replicas as are allowed");
                encode(&mut body, asked.region, replicas);
                let cont = ReplyCont::new(Self::on_record_reply, context);
                (manager, RECORD_REGION, cont)
            }
        };
        match self.call(WorkerRef::first_of(to), id, &[&body], REPLY_BYTES, cont) {
            Ok(()) => {}
            Err(CallError::Busy) => self.when_room(Cont::new(Self::ask_to_record, context)),
            Err(error) => self.asked_the_lost(context, &error),
        }
    }

    fn on_prepare_reply(&mut self, context: u64, reply: Result<&[u8], CallError>) {
        let code = match reply {
            Ok([code]) => *code,
            Ok(_) => REFUSED,
            Err(error) => return self.asked_the_lost(context, &error),
        };
        if code == NOT_YET {
            return self.set_timer(ASK_AGAIN, Cont::new(Self::ask_to_record, context));
        }
        let Some(asked) = self.recorder.asked(context) else {
            return;
        };
        asked.on_answer(code == DONE);
        self.ask_to_record(context, ());
    }

    fn handle_prepare_backup(&mut self, request: Request, body: &[u8]) {
        let region = body.try_into().ok().map(u32::from_le_bytes);
        let Some(region) = region.and_then(RegionId::from_bits) else {
            let why = format!("{} sent a PREPARE_BACKUP that is malformed", request.from);
            return self.distrust(request.from.machine, why);
        };
        let code = match self.store.prepare_backup(region) {
            Prepared::Yes => DONE,
            Prepared::NotYet => NOT_YET,
            Prepared::No(why) => {
                tracing::error!(%region, why, "no memory for a copy of a region of {}", request.from.machine);
                REFUSED
            }
        };
        self.reply(request, &[&[code]]);
    }

    fn on_record_reply(&mut self, context: u64, reply: Result<&[u8], CallError>) {
        match reply {
            Ok([NOT_YET]) => {
                marks::mark("region: recording waited for");
                self.set_timer(ASK_AGAIN, Cont::new(Self::ask_to_record, context));
            }
            Ok([DONE]) => {
                if let Some(region) = self.recorder.take_asked(context) {
                    self.store.map().confirm(region);
                }
            }
            Ok(_) => {
                let manager = self.membership.manager();
                let why =
                    format!("machine {manager} did not record it; see its log for the reason");
                self.not_recorded(context, why);
            }
            Err(error) => self.asked_the_lost(context, &error),
        }
    }

    fn not_recorded(&mut self, context: u64, why: String) {
        marks::mark("region: not recorded");
        if let Some(region) = self.recorder.take_asked(context) {
            self.store.map().fail(region, why, self.now());
        }
    }

    fn handle_record_region(&mut self, request: Request, body: &[u8]) {
        let mut rest = body;
        let Some((region, replicas)) = decode(&mut rest).filter(|_| rest.is_empty()) else {
            let why = format!("{} sent a RECORD_REGION that is malformed", request.from);
            return self.distrust(request.from.machine, why);
        };
        // The next manager takes requests when its configuration is in effect, and names of machines that are lost when they are asked
        // again.
        let waits =
            self.survives() && (self.recorder.manager.is_none() || !self.are_members(&replicas));
        if waits {
            marks::mark("region: asked again after a loss");
            return self.reply(request, &[&[NOT_YET]]);
        }
        let Some(manager) = &mut self.recorder.manager else {
            return self.reply(request, &[&[REFUSED]]);
        };
        let code = match manager.record(region, replicas) {
            Recorded::Yes => DONE,
            Recorded::NotYet => NOT_YET,
            Recorded::No(why) => {
                tracing::error!(%region, why, "cannot record a region of {}", request.from.machine);
                REFUSED
            }
        };
        self.reply(request, &[&[code]]);
        self.manage();
    }

    /// Returns whether all replicas are on members that store regions.
    fn are_members(&self, replicas: &Replicas) -> bool {
        let mut machines = replicas.all().iter();
        machines.all(|machine| self.membership.stores(*machine))
    }

    /// Returns whether this worker runs the manager of the configuration.
    pub fn is_manager(&self) -> bool {
        self.recorder.manager.is_some()
    }

    /// Has the configuration name the catalog, on the worker that runs the manager. The caller repeats the call until the answer
    /// is final. If it is [`Recorded::Yes`], every machine knows the catalog
    /// ([`RegionMap::catalog`](crate::region::map::RegionMap::catalog)), which is another one if that was recorded before.
    pub fn record_catalog(&mut self, catalog: Address) -> Recorded {
        let Some(manager) = &mut self.recorder.manager else {
            return Recorded::No("the manager of the configuration runs on another worker".into());
        };
        let recorded = manager.record_catalog(catalog);
        self.manage();
        recorded
    }

    /// Continues what the manager does, until it has nothing to store.
    pub(super) fn manage_soon(&mut self) {
        self.manage();
        let manager = self.recorder.manager.as_ref();
        if manager.is_some_and(|manager| manager.has_queued()) {
            let again = Cont::new(|worker: &mut Worker, _: u64, ()| worker.manage_soon(), 0);
            self.set_timer(ASK_AGAIN, again);
        }
    }

    /// Continues what the manager does, if it can.
    pub(super) fn manage(&mut self) {
        self.record_changes();
        self.extend_configuration();
    }

    fn record_changes(&mut self) {
        self.end_telling();
        let Some(manager) = self
            .recorder
            .manager
            .as_mut()
            .filter(|_| self.recorder.untold == 0 && self.recorder.missed.is_empty())
        else {
            return;
        };
        let duty = manager.step();
        let configuration = manager.configuration().version.id;
        if manager.take_recorded_starts() {
            self.on_starts_recorded();
        }
        match duty {
            None => {}
            Some(Duty::Stop(why)) => self.control.fail(why),
            Some(Duty::Tell(changes)) => {
                encode_changes(&mut self.recorder.told, configuration, &changes);
                let machines = self.machines().iter().map(|machine| machine.0);
                let machines: Vec<MachineId> = machines.collect();
                self.recorder.untold = machines.len();
                self.recorder.missed.clear();
                self.recorder.tells = true;
                for machine in machines {
                    self.tell(machine.get().into(), ());
                }
            }
        }
    }

    fn tell(&mut self, machine: u64, (): ()) {
        let id = MachineId::new(machine as u16);
        let id = id.expect("the context of this continuation is the id of a machine");
        let body = std::mem::take(&mut self.recorder.told);
        let cont = ReplyCont::new(Self::on_told, machine);
        let called = self.call(WorkerRef::first_of(id), CHANGES, &[&body], 0, cont);
        self.recorder.told = body;
        match called {
            Ok(()) => {}
            Err(CallError::Busy) => self.when_room(Cont::new(Self::tell, machine)),
            Err(error) => self.on_told(machine, Err(error)),
        }
    }

    fn on_told(&mut self, machine: u64, reply: Result<&[u8], CallError>) {
        self.recorder.untold -= 1;
        if reply.is_err()
            && let Some(machine) = MachineId::new(machine as u16)
            && self.may_be_running(machine)
        {
            marks::mark("region: a machine that may run was not told");
            self.recorder.missed.insert(machine);
        }
        if self.recorder.untold == 0 {
            self.manage();
        }
    }

    /// Handles that all machines know the last changes, if they do.
    fn end_telling(&mut self) {
        let missed = std::mem::take(&mut self.recorder.missed);
        let still = missed.into_iter().filter(|one| self.may_be_running(*one));
        self.recorder.missed = still.collect();
        let is_told = self.recorder.untold == 0 && self.recorder.missed.is_empty();
        if let Some(manager) = self.recorder.manager.as_mut().filter(|_| is_told)
            && std::mem::take(&mut self.recorder.tells)
        {
            manager.on_told();
        }
    }

    /// Returns whether a machine to which this one is not connected is a member that has not left, and whose process may run: it reads what
    /// others have not closed to it.
    fn may_be_running(&self, machine: MachineId) -> bool {
        let manager = self.recorder.manager.as_ref().filter(|_| self.survives());
        let member = manager.and_then(|manager| manager.running(machine));
        member.is_some_and(|process| !self.endpoint.has_died(machine, process.boot))
    }

    /// Returns whether this is the configuration of this machine, and it is not changing to a later one.
    fn is_at(&self, configuration: u64) -> bool {
        configuration == self.membership.configuration() && !self.store.is_past(configuration)
    }

    fn handle_changes(&mut self, request: Request, body: &[u8]) {
        let manager = self.membership.manager();
        let changes = decode_changes(body);
        if let Some((of, _)) = changes
            && self.survives()
            && !self.is_at(of)
        {
            marks::mark("region: told of another configuration");
            // The one that this machine has applied since has these regions, perhaps with other replicas.
            return self.reply(request, &[]);
        }
        let changes = changes.filter(|_| request.from.machine == manager);
        let Some((_, Changes { regions, catalog })) = changes else {
            let why = format!(
                "{} sent a CHANGES that is malformed or not from the manager {manager}",
                request.from
            );
            return self.distrust(request.from.machine, why);
        };
        self.store.map().record(&regions);
        if let Some(catalog) = catalog {
            self.store.map().set_catalog(catalog);
        }
        self.reply(request, &[]);
    }
}

fn is(region: RegionId, context: u64) -> bool {
    u64::from(region.to_bits()) == context
}

fn encode(out: &mut Vec<u8>, region: RegionId, replicas: Replicas) {
    out.extend_from_slice(&region.to_bits().to_le_bytes());
    out.push(replicas.all().len() as u8);
    for machine in replicas.all() {
        out.extend_from_slice(&machine.get().to_le_bytes());
    }
}

/// Takes a region from the front of a message; `None` if the message does not begin with one.
fn decode(bytes: &mut &[u8]) -> Option<(RegionId, Replicas)> {
    let (region, rest) = bytes.split_first_chunk()?;
    let (count, rest) = rest.split_first()?;
    let (machines, rest) = rest.split_at_checked(usize::from(*count) * 2)?;
    let machines = machines.chunks_exact(2);
    let machines: Option<Vec<MachineId>> = machines
        .map(|id| MachineId::new(u16::from_le_bytes([id[0], id[1]])))
        .collect();
    let region = RegionId::from_bits(u32::from_le_bytes(*region))?;
    let replicas = Replicas::new(machines?)?;
    *bytes = rest;
    Some((region, replicas))
}

pub(super) fn encode_changes(out: &mut Vec<u8>, configuration: u64, changes: &Changes) {
    out.clear();
    out.extend_from_slice(&configuration.to_le_bytes());
    let catalog = changes.catalog.unwrap_or(Address::NULL);
    out.extend_from_slice(&catalog.to_bits().to_le_bytes());
    let regions = changes.regions.iter();
    regions.for_each(|one| encode(out, one.0, one.1));
}

/// Returns the configuration and what is new in it.
fn decode_changes(body: &[u8]) -> Option<(u64, Changes)> {
    let (configuration, rest) = body.split_first_chunk()?;
    let (catalog, mut rest) = rest.split_first_chunk()?;
    let catalog = Address::from_bits(u64::from_le_bytes(*catalog))?;
    let mut regions = Vec::new();
    while let Some(region) = decode(&mut rest) {
        regions.push(region);
    }
    let catalog = Some(catalog).filter(|catalog| !catalog.is_null());
    let changes = Changes { regions, catalog };
    let configuration = u64::from_le_bytes(*configuration);
    rest.is_empty().then_some((configuration, changes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_decoded_as_encoded_and_others_are_rejected() {
        let machine = MachineId::new(5).unwrap();
        let region = RegionId::new(3, 7).unwrap();
        for catalog in [None, Some(Address::new(region, 128))] {
            for regions in [Vec::new(), vec![(region, Replicas::one(machine))]] {
                let changes = Changes { regions, catalog };
                let mut body = vec![1, 2, 3];
                encode_changes(&mut body, 9, &changes);
                assert_eq!(decode_changes(&body), Some((9, changes)));
                assert_eq!(decode_changes(&body[..body.len() - 1]), None);
                body.push(0);
                assert_eq!(decode_changes(&body), None);
            }
        }
    }

    #[test]
    fn regions_in_messages_are_decoded_as_encoded_and_others_are_rejected() {
        let machine = |id| MachineId::new(id).unwrap();
        let regions = [
            (RegionId::new(3, 7).unwrap(), Replicas::one(machine(1023))),
            (
                RegionId::new(99, 1).unwrap(),
                Replicas::new([5, 4, 3, 2, 1].map(machine)).unwrap(),
            ),
        ];
        let mut bytes = Vec::new();
        for (region, replicas) in regions {
            encode(&mut bytes, region, replicas);
        }
        let mut rest = &bytes[..];
        assert_eq!(decode(&mut rest), Some(regions[0]));
        assert_eq!(decode(&mut rest), Some(regions[1]));
        assert!(rest.is_empty() && decode(&mut rest).is_none());
        for length in 0..bytes.len() {
            let mut rest = &bytes[..length];
            while decode(&mut rest).is_some() {}
            assert!(rest.is_empty() == (length == 0 || length == 7));
        }
        for wrong in [
            [0u8, 0, 0, 0, 1, 1, 0],
            [1, 0, 0, 0, 0, 1, 0],
            [1, 0, 0, 0, 1, 0, 0],
        ] {
            assert_eq!(decode(&mut &wrong[..]), None);
        }
        let machines = |ids: &[u8]| -> Vec<u8> {
            let ids = ids.iter().flat_map(|id| [*id, 0]);
            [1, 0, 0, 0, (ids.clone().count() / 2) as u8]
                .into_iter()
                .chain(ids)
                .collect()
        };
        assert!(decode(&mut &machines(&[1, 2, 3])[..]).is_some());
        assert_eq!(decode(&mut &machines(&[1, 2, 1])[..]), None, "twice");
        assert_eq!(decode(&mut &machines(&[1, 2, 3, 4, 5, 6])[..]), None);
    }

    /// Regression test: the answer of the machine that was asked was taken for that of one which joined meanwhile, and comes before it. The
    /// region was recorded with a copy on a machine that had no memory for it.
    #[test]
    fn an_answer_is_that_of_the_machine_that_was_asked() {
        let machine = |id: u16| MachineId::new(id).unwrap();
        let all = |ids: &[u16]| -> Vec<MachineId> { ids.iter().copied().map(machine).collect() };
        let region = RegionId::new(3, 9).unwrap();
        let mut asked = Asked::new(region, all(&[2, 3]).into_iter());
        asked.asking = asked.proposed.front().copied();
        asked.reconsider(|_| true, all(&[4, 2, 3]).into_iter());
        asked.on_answer(true);
        assert_eq!(asked.ready, all(&[2]));
        assert_eq!(asked.proposed, all(&[4, 3]));
        // One that has no memory is not asked again.
        asked.asking = Some(machine(4));
        asked.on_answer(false);
        assert_eq!((asked.ready.len(), asked.proposed.len()), (1, 1));
        // One that was lost does not count.
        asked.asking = Some(machine(3));
        asked.reconsider(|one| one == machine(5), all(&[5, 3]).into_iter());
        asked.on_answer(true);
        assert!(asked.ready.is_empty());
        assert_eq!(asked.proposed, all(&[5]));
    }
}
