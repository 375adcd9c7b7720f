//! How the manager adds machines and replicas to the configuration.
//!
//! 1. When all machines have recovered in a configuration, the manager looks for regions with too few replicas. When a machine with
//!    memory asks to [join](super::join), it looks again, and counts that machine.
//! 2. It has the machines make memory for their new replicas, a few at the same time. A machine that has none is passed over.
//! 3. The next configuration has the machines as members, and their new replicas, which are not full
//!    ([`Reconfiguration::extend`](crate::membership::reconfiguration::Reconfiguration::extend)). When it is in effect, they are
//!    [filled](super::fill).
//!
//! Whatever changes the configuration meanwhile ends the attempt.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::regions::{DONE, NOT_YET, PREPARE_BACKUP, REPLY_BYTES};
use super::{Cont, Worker};
use crate::ids::{MachineId, RegionId, WorkerRef};
use crate::marks;
use crate::mem::Context;
use crate::membership::configuration::{Configuration, Member, Process, RegionReplicas};
use crate::membership::reconfiguration::Extension;
use crate::messaging::{CallError, ReplyCont};

/// Number of regions for which memory is made at the same time: to zero it takes a processor of the machine.
const AT_ONCE: usize = 4;
/// Time between two requests for memory.
const ASK_AGAIN: Duration = Duration::from_millis(1);
/// Time after which an attempt whose copies have memory, and which has not changed the configuration, is given up.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time until the manager looks again for missing replicas for which no machine had memory.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// What the manager adds.
#[derive(Default)]
pub(super) struct Extending {
    /// The configuration in which the manager has looked for missing replicas.
    considered: u64,
    /// Processes with memory that have asked to join since.
    joining: BTreeMap<MachineId, u64>,
    attempt: Option<Attempt>,
    /// Number of attempts so far.
    attempts: u64,
}

/// What is being added to a configuration.
struct Attempt {
    number: u64,
    /// New replicas whose memory was not requested yet.
    missing: VecDeque<Missing>,
    /// Regions for whose next replica memory is being made.
    under_way: Vec<Missing>,
    extension: Extension,
    phase: Phase,
}

/// How far an attempt is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Memory is being made.
    Prepares,
    /// The configuration changes.
    Extends,
    /// No machine has memory: the manager waits until it looks again.
    Waits,
}

/// New replicas of a region.
#[derive(Debug, PartialEq, Eq)]
struct Missing {
    region: RegionId,
    count: usize,
    /// Machines that may have them, in order.
    proposed: VecDeque<MachineId>,
}

/// A request for memory: the attempt and the region.
#[derive(Clone, Copy)]
struct Preparing {
    number: u64,
    region: RegionId,
}

impl Context for Preparing {
    fn to_word(self) -> u64 {
        self.number << 32 | self.region.to_word()
    }

    fn from_word(word: u64) -> Self {
        Self {
            number: word >> 32,
            region: RegionId::from_word(word & u64::from(u32::MAX)),
        }
    }
}

impl Extending {
    /// Forgets what was being added, because the configuration changes. Processes that join ask again.
    pub(super) fn give_up(&mut self) {
        self.attempt = None;
        self.joining.clear();
    }

    fn attempt(&mut self, number: u64) -> Option<&mut Attempt> {
        self.attempt.as_mut().filter(|one| one.number == number)
    }

    /// Returns the replicas of a region for which memory is being made.
    fn preparing(&mut self, number: u64, region: RegionId) -> Option<&mut Missing> {
        let attempt = self.attempt(number)?;
        attempt
            .under_way
            .iter_mut()
            .find(|one| one.region == region)
    }

    /// Returns the processes that are being added.
    pub(super) fn processes(&self) -> impl Iterator<Item = Process> {
        let attempt = self.attempt.iter();
        let members = attempt.flat_map(|attempt| &attempt.extension.members);
        members.map(Member::process)
    }

    /// Returns whether something is being added.
    pub(super) fn is_under_way(&self) -> bool {
        let attempt = self.attempt.as_ref();
        attempt.is_some_and(|attempt| attempt.phase != Phase::Waits) || !self.joining.is_empty()
    }
}

/// Returns the replicas that are missing in a configuration if `storing` are the machines with memory. `propose` returns the machines
/// that may have further replicas of a region, in order.
fn missing(
    configuration: &Configuration,
    storing: &[MachineId],
    replicas: usize,
    propose: impl Fn(&RegionReplicas) -> Vec<MachineId>,
) -> VecDeque<Missing> {
    let most = replicas.min(storing.len());
    let regions = configuration.regions.iter();
    let too_few = regions.filter(|region| region.replicas.len() < most);
    let missing = too_few.map(|region| Missing {
        region: region.region,
        count: most - region.replicas.len(),
        proposed: propose(region)
            .into_iter()
            .filter(|machine| storing.contains(machine))
            .collect(),
    });
    missing.collect()
}

impl Worker {
    /// Handles that a process with memory asks to join, on the manager. It asks until it is a member.
    pub(super) fn add_to_configuration(&mut self, process: Process) {
        self.extending.joining.insert(process.machine, process.boot);
        if let Some(manager) = &mut self.recorder.manager {
            manager.record_recovered_again();
        }
        let attempt = &mut self.extending.attempt;
        attempt.take_if(|attempt| attempt.phase == Phase::Waits);
        self.extend_configuration();
    }

    /// Begins to add what is missing in the configuration, if this worker runs the manager, and all machines have recovered.
    pub(super) fn extend_configuration(&mut self) {
        let Some(manager) = self.recorder.manager.as_ref().filter(|_| self.survives()) else {
            return;
        };
        let configuration = manager.configuration();
        let id = configuration.version.id;
        let is_considered = self.extending.considered == id && self.extending.joining.is_empty();
        if is_considered || self.extending.attempt.is_some() || !manager.has_recovered() {
            return;
        }
        let joining = std::mem::take(&mut self.extending.joining);
        let mut members: Vec<Member> = Vec::new();
        for (machine, boot) in joining {
            // An earlier process of the machine may be a member, until its end is noticed.
            let is_new = configuration.member(machine).is_none();
            let process = Process { machine, boot };
            let others = members.iter().map(Member::process);
            let unlinked = self.not_linked(process, others);
            if is_new && self.is_connected_to(process) && unlinked.is_none() {
                members.push(self.new_member(machine, boot));
            }
        }
        let storing = configuration.members.iter().chain(&members);
        let storing = storing.filter(|member| member.stores);
        let storing: Vec<MachineId> = storing.map(|member| member.machine).collect();
        let replicas = self.store.replication().replicas;
        let missing = missing(configuration, &storing, replicas, |region| {
            self.store.propose_replicas(region)
        });
        self.extending.considered = id;
        if missing.is_empty() && members.is_empty() {
            return;
        }
        tracing::info!(
            configuration = %configuration.version,
            machines = members.len(),
            regions = missing.len(),
            "preparing new copies of regions"
        );
        self.extending.attempts += 1;
        let number = self.extending.attempts;
        self.extending.attempt = Some(Attempt {
            number,
            missing,
            under_way: Vec::new(),
            extension: Extension {
                members,
                replicas: Vec::new(),
            },
            phase: Phase::Prepares,
        });
        self.defer(Cont::new(Self::prepare_next, number));
    }

    /// Returns a process that joins as a member.
    fn new_member(&self, machine: MachineId, boot: u64) -> Member {
        let mut machines = self.machines().iter();
        let workers = machines.find(|one| one.0 == machine).map_or(0, |one| one.1);
        let domain = self.store.replication().domains.get(&machine);
        Member {
            machine,
            boot,
            workers: workers as u16,
            stores: true,
            domain: domain.cloned().unwrap_or_default(),
        }
    }

    /// Has memory made for the next replicas. When all have memory, begins to change the configuration.
    fn prepare_next(&mut self, number: u64, (): ()) {
        let attempt = self.extending.attempt(number);
        let Some(attempt) = attempt.filter(|attempt| attempt.phase == Phase::Prepares) else {
            return;
        };
        let mut begun = Vec::new();
        while attempt.under_way.len() < AT_ONCE
            && let Some(next) = attempt.missing.pop_front()
        {
            if next.count == 0 {
                continue;
            }
            if next.proposed.is_empty() {
                let (region, copies) = (next.region, next.count);
                tracing::warn!(%region, copies, "no machine has memory for further copies of a region; see the logs of the machines");
                continue;
            }
            begun.push(next.region);
            attempt.under_way.push(next);
        }
        if attempt.under_way.is_empty() {
            return self.extend_by_attempt(number);
        }
        for region in begun {
            self.prepare(Preparing { number, region }, ());
        }
    }

    /// Asks the first machine that may have the next replica of a region to make its memory.
    fn prepare(&mut self, of: Preparing, (): ()) {
        let Preparing { number, region } = of;
        let Some(next) = self.extending.preparing(number, region) else {
            return;
        };
        let to = WorkerRef::first_of(next.proposed[0]);
        let body = region.to_bits().to_le_bytes();
        let cont = ReplyCont::new(Self::on_prepared, of);
        match self.call(to, PREPARE_BACKUP, &[&body], REPLY_BYTES, cont) {
            Ok(()) => {}
            Err(CallError::Busy) => self.when_room(Cont::new(Self::prepare, of)),
            Err(error) => self.on_prepared(of, Err(error)),
        }
    }

    fn on_prepared(&mut self, of: Preparing, reply: Result<&[u8], CallError>) {
        let Preparing { number, region } = of;
        if reply == Ok(&[NOT_YET]) {
            return self.set_timer(ASK_AGAIN, Cont::new(Self::prepare, of));
        }
        let Some(attempt) = self.extending.attempt(number) else {
            return;
        };
        let mut under_way = attempt.under_way.iter();
        let Some(at) = under_way.position(|one| one.region == region) else {
            return;
        };
        let mut next = attempt.under_way.swap_remove(at);
        if let Some(machine) = next.proposed.pop_front() {
            if reply == Ok(&[DONE]) {
                next.count -= 1;
                attempt.extension.replicas.push((region, machine));
            } else {
                marks::mark("extend: a machine has no memory for a copy");
            }
        }
        attempt.missing.push_front(next);
        self.defer(Cont::new(Self::prepare_next, number));
    }

    fn extend_by_attempt(&mut self, number: u64) {
        let Some(attempt) = self.extending.attempt(number) else {
            return;
        };
        let extension = std::mem::take(&mut attempt.extension);
        if extension.is_empty() {
            attempt.phase = Phase::Waits;
            return self.set_timer(LOOK_AGAIN, Cont::new(Self::end_attempt, number));
        }
        attempt.phase = Phase::Extends;
        let mut begins = false;
        self.drive(|value, out| begins = value.extend(extension, out));
        let patience = match begins {
            true => PATIENCE,
            false => {
                marks::mark("extend: waits for the end of another change");
                ASK_AGAIN
            }
        };
        self.set_timer(patience, Cont::new(Self::end_attempt, number));
    }

    /// Gives up an attempt that has not changed the configuration.
    fn end_attempt(&mut self, number: u64, (): ()) {
        if self.extending.attempt(number).is_some() {
            self.extending.attempt = None;
            self.extending.considered = 0;
            self.extend_configuration();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::configuration::testing::{configuration, machine, region_of};

    #[test]
    fn regions_with_too_few_replicas_get_as_many_as_there_are_machines() {
        let mut known = configuration("test", &[1, 2, 3]);
        known.regions = (1..=3).map(region_of).collect();
        let replica = known.regions[0].replicas[0];
        for id in [2, 3] {
            known.regions[1]
                .replicas
                .push(crate::membership::configuration::Replica {
                    machine: machine(id),
                    ..replica
                });
        }
        let propose = |_: &RegionReplicas| [4, 3, 2].map(machine).to_vec();
        let found = |storing: &[u16], replicas| {
            let storing: Vec<MachineId> = storing.iter().map(|id| machine(*id)).collect();
            let found = missing(&known, &storing, replicas, propose);
            let found = found.into_iter().map(|one| {
                let proposed = one.proposed.iter().map(|id| id.get());
                (one.region, one.count, proposed.collect::<Vec<u16>>())
            });
            found.collect::<Vec<_>>()
        };
        let [first, second, third] = [1, 2, 3].map(|number| region_of(number).region);
        assert_eq!(found(&[1, 2, 3], 1), []);
        assert_eq!(
            found(&[1, 2, 3], 3),
            [(first, 2, vec![3, 2]), (third, 2, vec![3, 2])]
        );
        assert_eq!(
            found(&[1, 2, 3, 4], 4),
            [
                (first, 3, vec![4, 3, 2]),
                (second, 1, vec![4, 3, 2]),
                (third, 3, vec![4, 3, 2])
            ]
        );
        assert_eq!(found(&[1], 3), []);
    }
}
