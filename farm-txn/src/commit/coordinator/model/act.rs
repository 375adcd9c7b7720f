//! Actions of coordinators, and events that reach them.

use std::sync::Arc;

use farm_core::ids::Address;

use super::super::*;
use super::properties::Broken;
use super::world::{Flying, Node, Outcome, World, Write};
use super::{Commits, Fault, W};
use crate::commit::reply::Verdict;
use crate::commit::{own, truncate, written};
use crate::record::Kind;

impl Node {
    /// What the transaction writes to objects of its own machine.
    fn own_writes(&self) -> Vec<Write> {
        let entries = written(&self.commit.tx);
        let write = entries.map(|entry| Write {
            object: self.object_at(entry.address),
            version: entry.version,
            value: self.commit.tx.payload_of(entry)[0],
        });
        write.collect()
    }

    fn object_at(&self, address: Address) -> usize {
        let mut objects = self.objects();
        let object = objects.find(|one| super::address(one.0) == address);
        object.expect("an object of the transaction").0
    }

    /// The acknowledgement of a record, if it was sent.
    fn fly_if(&mut self, sent: Sent, flying: Flying) {
        if sent == Sent::Yes {
            self.fly(flying);
        }
    }

    fn machine(&self, at: u32) -> MachineId {
        self.commit.plan.participants[at as usize].machine
    }
}

impl World {
    pub(super) fn act(&mut self, model: &Commits, tx: usize, full: bool) {
        let node = self.node(tx);
        let before = node.commit.step;
        let action = node.commit.next_action();
        if node.commit.step == Step::Abort {
            node.failed.get_or_insert(before);
            let backed = !node.written.backups.is_empty();
            self.break_if(backed, Broken::AbortsLate);
        }
        let Some(action) = action else {
            return self.rest(model, tx);
        };
        match action {
            Action::SendLock(_) | Action::SendBackup(_) | Action::SendEnd(..) if full => {
                self.refuse(tx, action);
            }
            Action::Reserve => self.reserve(tx),
            Action::LogOwn(at, kind) => {
                self.log_own(model, tx, at, kind);
                self.node(tx).commit.on_own_logged(at, kind);
            }
            Action::LockLocal(mode) => self.lock_local(model, tx, mode),
            Action::MakeExclusive => {
                for write in self.nodes[tx].own_writes() {
                    self.cells[write.object][0].mode = LockMode::Exclusive;
                }
            }
            Action::SendLock(at) => {
                let reply = self.nodes[tx].commit.plan.participants[at as usize].reply;
                let sent = match reply {
                    Some(reply) => self.send(model, tx, (at, Kind::Lock), reply),
                    None => Sent::Lost,
                };
                self.node(tx).commit.on_lock_sent(sent).unwrap();
            }
            Action::ValidateLocal(range) => self.validate_local(model, tx, range),
            Action::SendValidate(..) => unreachable!("few objects"),
            Action::ReadHeader(at) => {
                let node = self.node(tx);
                node.commit.on_header_posted(at, true).unwrap();
                node.fly(Flying::Header(at));
            }
            Action::SendBackup(at) => {
                let sent = self.send(model, tx, (at, Kind::CommitBackup), 0);
                self.node(tx).fly_if(sent, Flying::Backup(at));
                self.node(tx).commit.on_backup_sent(sent).unwrap();
            }
            Action::InstallLocal | Action::UnlockLocal => self.end_local(model, tx, action),
            Action::ReleaseNew => {
                let commit = &mut self.node(tx).commit;
                commit.keep_logged();
                commit.tx.clear();
            }
            Action::ReleaseReserved(at) => {
                self.node(tx).commit.plan.participants[at as usize].reply = None;
            }
            Action::SendEnd(at, kind) => {
                let sent = self.send(model, tx, (at, kind), 0);
                self.node(tx).fly_if(sent, Flying::End(at));
                self.node(tx).commit.on_end_sent(sent).unwrap();
            }
        }
    }

    /// The log has no room for the record of this action.
    fn refuse(&mut self, tx: usize, action: Action) {
        let node = self.node(tx);
        let refused = match action {
            Action::SendLock(_) => node.commit.on_lock_sent(Sent::Full),
            Action::SendBackup(_) => node.commit.on_backup_sent(Sent::Full),
            _ => node.commit.on_end_sent(Sent::Full),
        };
        assert_eq!(refused, Err(Blocked::Write));
        node.commit.on_blocked();
        node.runs = false;
        self.stalls -= 1;
    }

    fn lock_local(&mut self, model: &Commits, tx: usize, mode: LockMode) {
        let node = &self.nodes[tx];
        let writes = node.own_writes();
        let is_logged = writes.is_empty() || node.written.locks.has(node.spec.0);
        self.break_if(model.scenario.logged && !is_logged, Broken::LocksUnlogged);
        let result = match self.lock(tx, (&writes, mode), model.fault) {
            Verdict::Granted => Ok(()),
            _ => Err(Abort::Locked(Address::NULL)),
        };
        self.node(tx).commit.on_locked_local(result);
    }

    fn validate_local(&mut self, model: &Commits, tx: usize, range: EntryRange) {
        let node = &self.nodes[tx];
        let read = node.objects().filter(|one| one.1 == Intent::Read);
        let mut here = read.filter(|one| model.scenario.objects[one.0][0] == node.spec.0);
        let changed = here.any(|(object, _)| {
            let read = node.version_of(object).expect("it was read");
            !is_unchanged(self.cells[object][0].header(), read)
        });
        let result = match changed {
            true => Err(Abort::Changed(Address::NULL)),
            false => Ok(()),
        };
        let commit = &mut self.node(tx).commit;
        commit.on_validated_local(range, result).unwrap();
    }

    /// Installs or unlocks the objects of the coordinator's machine.
    fn end_local(&mut self, model: &Commits, tx: usize, action: Action) {
        let node = &self.nodes[tx];
        let writes = node.own_writes();
        let is_logged = writes.is_empty() || node.written.ends.has(node.spec.0);
        let unlogged = model.scenario.logged && !is_logged;
        if action == Action::InstallLocal {
            self.break_if(unlogged, Broken::InstallsUnlogged);
            self.install(model, tx, &writes);
        } else {
            self.break_if(unlogged, Broken::UnlocksUnlogged);
            self.unlock(tx, &writes);
        }
    }

    fn reserve(&mut self, tx: usize) {
        let mut participants = self.nodes[tx].commit.plan.participants.iter();
        let lost = participants.find(|one| self.is_lost(one.machine));
        if let Some(machine) = lost.map(|one| one.machine) {
            let node = self.node(tx);
            node.failed = Some(Step::Reserve);
            return node.commit.on_refused(Abort::Lost(machine).into());
        }
        let participants = &mut self.node(tx).commit.plan.participants;
        for (at, participant) in (0..).zip(participants) {
            let replies = participant.is_primary() && !participant.is_own;
            participant.reply = replies.then_some(at);
        }
        let worker = Arc::make_mut(&mut self.workers[self.nodes[tx].worker]);
        let sequence = worker.truncations.begin();
        self.node(tx).commit.on_reserved(sequence);
    }

    /// Sends a record of a transaction to a participant.
    fn send(&mut self, model: &Commits, tx: usize, (at, kind): (u32, Kind), reply: u64) -> Sent {
        let node = &self.nodes[tx];
        let (machine, worker) = (node.machine(at), node.worker);
        let mut rest = Vec::new();
        if kind.has_objects() {
            own::encode(&mut rest, &node.commit, at as usize, kind, reply);
        }
        let sequence = node.commit.sequence;
        if self.is_lost(machine) {
            return Sent::Lost;
        }
        if model.fault == Fault::Drops(kind) {
            return Sent::Yes;
        }
        self.append(worker, machine, (kind, sequence), &rest);
        self.node(tx).note(kind, machine.get(), false);
        Sent::Yes
    }

    fn log_own(&mut self, model: &Commits, tx: usize, at: u32, kind: Kind) {
        if model.fault == Fault::OmitsOwn(kind) {
            return;
        }
        let node = &self.nodes[tx];
        let (own, worker, sequence) = (node.spec.0, node.worker, node.commit.sequence);
        let mut rest = Vec::new();
        if kind.has_objects() {
            own::encode(&mut rest, &node.commit, at as usize, kind, 0);
        }
        self.append_own(worker, own, (kind, sequence), &rest);
        self.node(tx).note(kind, own, true);
    }

    /// A coordinator has no action left: it reports its outcome, and truncates.
    fn rest(&mut self, model: &Commits, tx: usize) {
        let node = self.node(tx);
        node.runs = false;
        if let Some((_, result)) = node.commit.outcome() {
            let outcome = match result {
                Ok(()) => Outcome::Committed,
                Err(TxError::InDoubt(_)) => Outcome::InDoubt,
                Err(_) => Outcome::Aborted(node.failed.expect("a failure leads to an abort")),
            };
            let before = node.outcome.replace(outcome);
            let (written, participants) = (node.written, &node.commit.plan.participants);
            let has_records = model.scenario.logged || !participants.is_empty();
            let needs = has_records && node.spec.1.contains(&W);
            let backups = model.scenario.backups(tx);
            let acknowledged = !written.ends_acknowledged.is_empty()
                && backups.are_in(written.backups_acknowledged);
            self.break_if(before.is_some(), Broken::Protocol);
            let early = outcome == Outcome::Committed && needs && !acknowledged;
            self.break_if(early, Broken::ReportsEarly);
        }
        if self.nodes[tx].commit.has_ended() && self.nodes[tx].commit.is_finished() {
            self.truncate(model, tx);
        }
    }

    /// Lets the participants truncate a transaction.
    fn truncate(&mut self, model: &Commits, tx: usize) {
        let node = self.nodes[tx].clone();
        let worker = Arc::make_mut(&mut self.workers[node.worker]);
        truncate::end(&mut worker.truncations, &node.commit);
        self.truncate_own(model, node.worker, node.spec.0);
    }

    pub(super) fn deliver(&mut self, model: &Commits, tx: usize, flying: Flying) {
        let node = self.node(tx);
        node.flying.retain(|one| *one != flying);
        let lost = |world: &Self, at: u32| {
            let machine = world.nodes[tx].machine(at);
            Some(machine).filter(|machine| world.is_lost(*machine))
        };
        match flying {
            Flying::Header(entry) => {
                let object = self.nodes[tx].object_of(entry);
                let read = self.nodes[tx].version_of(object).expect("it was read");
                let header = match model.fault {
                    Fault::StaleHeader => VersionWord::of(read, LockMode::Unlocked),
                    _ => self.cells[object][0].header(),
                };
                return self.node(tx).fly(Flying::Read(entry, header.0));
            }
            Flying::Read(entry, header) => {
                let object = self.nodes[tx].object_of(entry);
                let machine = MachineId::new(model.scenario.objects[object][0]);
                let lost = machine.filter(|machine| self.is_lost(*machine));
                let header = match lost {
                    Some(machine) => Err(ReadError::PeerLost(machine)),
                    None => Ok(VersionWord(header)),
                };
                self.node(tx).commit.on_header(entry, header);
            }
            Flying::Reply(at, verdict) => {
                let lost = lost(self, at);
                let commit = &mut self.node(tx).commit;
                match lost {
                    Some(machine) => commit.on_lock_reply(at, Err(CallError::PeerLost(machine))),
                    None => commit.on_lock_reply(at, Ok(&verdict.encode())),
                }
            }
            Flying::Backup(at) | Flying::End(at) => {
                let lost = lost(self, at);
                self.acknowledge(model, tx, flying, lost);
            }
        }
        self.node(tx).runs = true;
    }

    fn acknowledge(&mut self, model: &Commits, tx: usize, flying: Flying, lost: Option<MachineId>) {
        let node = self.node(tx);
        let (at, is_backup) = match flying {
            Flying::Backup(at) => (at, true),
            Flying::End(at) => (at, false),
            other => unreachable!("{other:?} is no acknowledgement"),
        };
        let machine = node.machine(at).get();
        if lost.is_none() {
            node.on_acknowledged(machine, is_backup);
        }
        let status = match lost {
            Some(_) => Status::Broken,
            None => Status::Ok,
        };
        let is_first = node.commit.on_acknowledged(at, status);
        if let Some(machine) = lost
            && model.fault == Fault::AbortsLate
            && node.commit.step == Step::Backup
        {
            node.commit.stop(Abort::Lost(machine).into());
            node.commit.go_to(Step::Abort);
        }
        if is_first && model.fault == Fault::TruncatesEarly {
            self.truncate(model, tx);
        }
    }
}
