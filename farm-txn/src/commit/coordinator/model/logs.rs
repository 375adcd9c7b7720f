//! Records in logs: how they get there, and what their receivers do with them.

use std::sync::Arc;

use farm_core::ids::WorkerRef;

use super::super::*;
use super::properties::Broken;
use super::world::{Flying, Log, Node, Stored, World};
use super::{Commits, Fault};
use crate::commit::backup::{Change, change};
use crate::commit::primary::{self, RecordAt};
use crate::commit::reply::Verdict;
use crate::record::{self, Kind, Record, TxId};

/// The workers have logs of their own, so that one name will do.
fn id(sequence: u64) -> TxId {
    TxId {
        configuration: record::FIRST_CONFIGURATION,
        coordinator: WorkerRef::from_bits(1 << 16).expect("a worker"),
        sequence,
    }
}

impl Node {
    /// Notes that a record was written.
    pub(super) fn note(&mut self, kind: Kind, machine: u16, acknowledged: bool) {
        let written = &mut self.written;
        let records = match kind {
            Kind::Lock => &mut written.locks,
            Kind::CommitBackup => &mut written.backups,
            _ => &mut written.ends,
        };
        *records = records.with(machine);
        if acknowledged && kind != Kind::Lock {
            self.on_acknowledged(machine, kind == Kind::CommitBackup);
        }
    }

    /// Notes an acknowledgement. It counts only if the record was written.
    pub(super) fn on_acknowledged(&mut self, machine: u16, is_backup: bool) {
        let written = &mut self.written;
        let (records, acknowledged) = match is_backup {
            true => (written.backups, &mut written.backups_acknowledged),
            false => (written.ends, &mut written.ends_acknowledged),
        };
        if records.has(machine) {
            *acknowledged = acknowledged.with(machine);
        }
    }
}

impl Log {
    fn push(&mut self, kind: Kind, sequence: u64, low: u64, rest: &[u8]) -> RecordAt {
        let mut body = Vec::new();
        record::encode_head(&mut body, kind, id(sequence), low, rest);
        body.extend_from_slice(rest);
        self.end += 1;
        let place = RecordAt {
            end: self.end,
            bytes: body.len(),
        };
        self.records.push_back(Stored {
            kind: kind.code(),
            sequence,
            end: self.end,
            body: body.into(),
        });
        place
    }

    fn find(&self, at: RecordAt) -> Option<Stored> {
        let mut records = self.records.iter();
        records.find(|one| one.end == at.end).cloned()
    }
}

impl World {
    /// Appends a record to the log of a worker at another machine.
    pub(super) fn append(
        &mut self,
        worker: usize,
        machine: MachineId,
        (kind, sequence): (Kind, u64),
        rest: &[u8],
    ) {
        let truncations = &mut Arc::make_mut(&mut self.workers[worker]).truncations;
        let batch = truncations.batch(machine);
        truncations.on_sent(machine, batch.count);
        let log = self.log(worker, machine.get());
        log.push(kind, sequence, batch.low, rest);
    }

    /// Appends a record to the own log of a worker.
    pub(super) fn append_own(
        &mut self,
        worker: usize,
        own: u16,
        (kind, sequence): (Kind, u64),
        rest: &[u8],
    ) {
        let low = self.workers[worker].truncations.low();
        let log = self.log(worker, own);
        let place = log.push(kind, sequence, low, rest);
        log.handled = log.records.len();
        log.state.on_own(kind, sequence, place);
    }

    /// Truncates the own log of a worker.
    pub(super) fn truncate_own(&mut self, model: &Commits, worker: usize, own: u16) {
        let low = self.workers[worker].truncations.low();
        if !self.log(worker, own).state.is_unused() {
            self.log(worker, own).state.truncate_own(low);
            self.free(model, worker, own);
        }
    }

    /// Sends the low bound of a worker to every machine that can truncate something by it.
    pub(super) fn send_low_bound(&mut self, worker: usize) {
        let machines = self.workers[worker].truncations.machines().to_vec();
        for machine in machines {
            let truncations = &mut Arc::make_mut(&mut self.workers[worker]).truncations;
            if !truncations.has_due(machine) {
                continue;
            }
            match self.is_lost(machine) {
                true => {
                    _ = Arc::make_mut(&mut self.workers[worker])
                        .truncations
                        .on_lost(machine)
                }
                false => self.append(worker, machine, (Kind::Truncate, 0), &[]),
            }
        }
    }

    /// A machine handles the next record of a worker's log.
    pub(super) fn handle(&mut self, model: &Commits, worker: usize, machine: u16) {
        let log = self.log(worker, machine);
        let stored = log.records[log.handled].clone();
        log.handled += 1;
        let sequence = stored.sequence;
        let at = RecordAt {
            end: stored.end,
            bytes: stored.body.len(),
        };
        let record = Record::decode(stored.kind, id(sequence), &stored.body);
        let record = record.expect("a whole record");
        let work = log.state.on_record(&record, sequence, at);
        let locked = |world: &mut Self, lock| {
            let record = world.log(worker, machine).find(lock);
            world.break_if(record.is_none(), Broken::FreesEarly);
            record.map_or(Vec::new(), |record| record.writes())
        };
        match work {
            Err(_) => self.break_if(true, Broken::Protocol),
            Ok(primary::Action::Nothing) => {}
            Ok(primary::Action::Lock) => self.lock_record(model, (worker, machine), &stored),
            Ok(primary::Action::Install(lock)) => {
                let writes = locked(self, lock);
                self.install(model, self.tx_of(worker, sequence), &writes);
            }
            Ok(primary::Action::Abort {
                lock,
                locked: has_locks,
            }) => {
                let writes = locked(self, lock);
                if has_locks && model.fault != Fault::KeepsLocks {
                    self.unlock(self.tx_of(worker, sequence), &writes);
                }
            }
        }
        self.free(model, worker, machine);
    }

    fn tx_of(&self, worker: usize, sequence: u64) -> usize {
        let mut nodes = self.nodes.iter();
        let tx = nodes.position(|node| node.worker == worker && node.commit.sequence == sequence);
        tx.expect("the record of a transaction")
    }

    fn lock_record(&mut self, model: &Commits, (worker, machine): (usize, u16), lock: &Stored) {
        let tx = self.tx_of(worker, lock.sequence);
        let (writes, mode) = (lock.writes(), LockMode::Exclusive);
        let verdict = self.lock(tx, (&writes, mode), model.fault);
        if verdict == Verdict::Granted {
            self.log(worker, machine).state.on_locked(lock.sequence);
        }
        let record = Record::decode_unchecked(Kind::Lock, &lock.body).expect("a whole record");
        let at = record.lock().expect("a LOCK record").reply as u32;
        let reply = match model.fault {
            Fault::RepliesGranted => Verdict::Granted,
            _ => verdict,
        };
        self.node(tx).fly(Flying::Reply(at, reply));
    }

    /// A machine applies the next COMMIT-BACKUP record of a worker's log.
    pub(super) fn apply(&mut self, model: &Commits, worker: usize, machine: u16) {
        let log = self.log(worker, machine);
        let at = log.state.next_to_apply().expect("a record to apply");
        let record = log.find(at);
        log.state.on_applied();
        self.break_if(record.is_none(), Broken::FreesEarly);
        let writes = record.map_or(Vec::new(), |record| record.writes());
        for write in writes.iter().filter(|_| model.fault != Fault::SkipsCopies) {
            let mut replicas = model.scenario.objects[write.object].iter();
            let at = replicas.position(|one| *one == machine);
            let copy = &mut self.cells[write.object][at.expect("a replica")];
            let next = match change(copy.header(), write.version) {
                Change::Installs(next) => next,
                Change::IsOlder if model.fault == Fault::AppliesByArrival => write.version.next(),
                Change::IsOlder => continue,
                Change::Waits => unreachable!("a copy changes in one step"),
            };
            (copy.version, copy.value) = (next, write.value);
        }
        self.free(model, worker, machine);
    }

    /// Frees the records that a machine does not need.
    fn free(&mut self, model: &Commits, worker: usize, machine: u16) {
        let log = self.log(worker, machine);
        let Some((end, _)) = log.state.take_free() else {
            return;
        };
        let count = log.records.partition_point(|one| one.end <= end);
        log.handled -= count;
        let freed: Vec<Stored> = log.records.drain(..count).collect();
        let backup = Kind::CommitBackup.code();
        for write in freed
            .iter()
            .filter(|one| one.kind == backup)
            .flat_map(Stored::writes)
        {
            let mut replicas = model.scenario.objects[write.object].iter();
            let at = replicas.position(|one| *one == machine);
            let copy = &self.cells[write.object][at.expect("a replica")];
            self.break_if(copy.version <= write.version, Broken::FreesEarly);
        }
    }

    /// A machine is lost: what its primary has not answered is answered by the failure of the call.
    pub(super) fn lose(&mut self, machine: u16) {
        self.lost = Some(machine);
        for tx in 0..self.nodes.len() {
            let participants = self.nodes[tx].commit.plan.participants.iter();
            let mut here = (0..)
                .zip(participants)
                .filter(|one| one.1.machine.get() == machine);
            if let Some(at) = here.find_map(|(at, one)| one.reply.map(|_| at)) {
                let node = self.node(tx);
                let flies = |one: &Flying| matches!(one, Flying::Reply(to, _) if *to == at);
                if !node.flying.iter().any(flies) {
                    node.fly(Flying::Reply(at, Verdict::Granted));
                }
            }
        }
        for worker in 0..self.workers.len() {
            *self.log(worker, machine) = Log::default();
        }
    }
}
