//! The state of the model.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use farm_core::alloc::class_for_payload;
use farm_core::object::{Incarnation, Version};

use super::super::*;
use super::properties::Broken;
use super::{Commits, Fault, Machines, Spec, W, address};
use crate::commit::plan::Logged;
use crate::commit::primary::LogState;
use crate::commit::reply::Verdict;
use crate::commit::truncations::Truncations;
use crate::record::{Kind, Record};
use crate::tx::Place;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Outcome {
    Committed,
    /// Aborted, because of a failure in this step.
    Aborted(Step),
    InDoubt,
}

/// The machines at which a transaction has these records, as far as its coordinator has sent them or knows of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Written {
    pub(super) locks: Machines,
    pub(super) backups: Machines,
    pub(super) backups_acknowledged: Machines,
    /// COMMIT-PRIMARY or ABORT.
    pub(super) ends: Machines,
    pub(super) ends_acknowledged: Machines,
}

/// A message, or a one-sided operation, on its way to a coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Flying {
    Reply(u32, Verdict),
    /// The acknowledgement of COMMIT-BACKUP.
    Backup(u32),
    /// The acknowledgement of COMMIT-PRIMARY or ABORT.
    End(u32),
    /// The read of the header of an entry.
    Header(u32),
    /// The header as it was read.
    Read(u32, u64),
}

impl Flying {
    /// The order in which they are stored, so that equal states have equal representations.
    fn order(self) -> (u8, u32) {
        match self {
            Self::Reply(at, _) => (0, at),
            Self::Backup(at) => (1, at),
            Self::End(at) => (2, at),
            Self::Header(at) => (3, at),
            Self::Read(at, _) => (4, at),
        }
    }
}

/// A transaction and its coordinator.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) number: usize,
    pub(super) spec: Spec,
    /// Index of its worker.
    pub(super) worker: usize,
    /// The versions of its objects that it has read; none before it begins.
    pub(super) read: Vec<Version>,
    pub(super) commit: Coordinator,
    /// It has actions to perform.
    pub(super) runs: bool,
    pub(super) flying: Vec<Flying>,
    pub(super) written: Written,
    /// The step in which it failed.
    pub(super) failed: Option<Step>,
    pub(super) outcome: Option<Outcome>,
}

impl std::fmt::Debug for Coordinator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}, {} replies missing", self.step, self.waiting)
    }
}

impl Node {
    fn state(&self) -> impl Hash + PartialEq + '_ {
        let commit = &self.commit;
        let flags = (commit.blocked, commit.acknowledged, commit.why.is_some());
        let position = (commit.step, commit.validated, commit.next, commit.waiting);
        let locks = (
            commit.mode,
            commit.locked,
            commit.lost,
            commit.tx.is_empty(),
            (commit.own_ended, commit.sequence),
        );
        let values = (&commit.plan, &commit.validation, &self.read, &self.flying);
        let seen = (self.runs, self.written, self.failed, self.outcome);
        (flags, position, locks, values, seen)
    }

    pub(super) fn has_begun(&self) -> bool {
        !self.read.is_empty()
    }

    /// The objects of the transaction, with what it does.
    pub(super) fn objects(&self) -> impl Iterator<Item = (usize, Intent)> + use<> {
        let all = self.spec.1.iter().enumerate();
        all.filter_map(|(object, intent)| Some((object, (*intent)?)))
    }

    /// The object of an entry.
    pub(super) fn object_of(&self, entry: u32) -> usize {
        let object = self.objects().nth(entry as usize);
        object.expect("an entry is an object").0
    }

    pub(super) fn writes(&self, object: usize) -> bool {
        self.spec.1[object] == W
    }

    /// Returns the version of an object that it has read, if it has.
    pub(super) fn version_of(&self, object: usize) -> Option<Version> {
        let at = self.objects().position(|one| one.0 == object)?;
        self.read.get(at).copied()
    }

    pub(super) fn fly(&mut self, flying: Flying) {
        self.flying.push(flying);
        self.flying.sort_unstable_by_key(|one| one.order());
    }

    /// Returns the transaction as it was when its commit began. What it writes has its number as value.
    fn tx(&self, primaries: impl Fn(usize) -> u16) -> Box<Tx> {
        let mut tx = Box::new(Tx::new());
        for ((object, intent), version) in self.objects().zip(&self.read) {
            let primary = Some(primaries(object)).filter(|one| *one != self.spec.0);
            let class = class_for_payload(1).expect("there is a class for one byte");
            let place = Place {
                address: address(object),
                machine: primary.and_then(MachineId::new),
                class,
            };
            let id = tx.reserved(place, *version, Incarnation::new(class, 0));
            tx.payload_mut(id)[0] = self.number as u8 + 1;
            let at = tx.len() - 1;
            tx.entries[at].intent = intent;
        }
        tx
    }
}

impl Clone for Node {
    fn clone(&self) -> Self {
        let commit = &self.commit;
        let tx = match commit.tx.is_empty() {
            true => Box::new(Tx::new()),
            false => {
                let machine = |object: usize| {
                    let mut entries = commit.tx.entries.iter();
                    let entry = entries.find(|entry| entry.address == address(object));
                    let machine = entry.expect("an object of the transaction").machine;
                    machine.map_or(self.spec.0, MachineId::get)
                };
                self.tx(machine)
            }
        };
        let why = commit.why.as_ref().map(|why| match why {
            TxError::Abort(abort) => TxError::Abort(*abort),
            other => unreachable!("{other}"),
        });
        let plan = commit.plan.clone();
        let validation = commit.validation.clone();
        Self {
            commit: Coordinator {
                tx,
                why,
                plan,
                validation,
                ..*commit
            },
            read: self.read.clone(),
            flying: self.flying.clone(),
            ..*self
        }
    }
}

impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        self.state() == other.state()
    }
}

impl Eq for Node {}

impl Hash for Node {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.state().hash(state);
    }
}

/// A replica of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Cell {
    pub(super) version: Version,
    pub(super) mode: LockMode,
    pub(super) locked_by: Option<usize>,
    pub(super) value: u8,
}

impl Cell {
    pub(super) fn header(self) -> VersionWord {
        VersionWord::of(self.version, self.mode)
    }
}

/// A record in a log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Stored {
    pub(super) kind: u16,
    pub(super) sequence: u64,
    pub(super) end: u64,
    pub(super) body: Arc<[u8]>,
}

/// What a transaction does to an object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Write {
    pub(super) object: usize,
    /// The version that the transaction has read.
    pub(super) version: Version,
    pub(super) value: u8,
}

impl Stored {
    /// Returns what a LOCK or COMMIT-BACKUP record contains.
    pub(super) fn writes(&self) -> Vec<Write> {
        let kind = Kind::of(self.kind).expect("a kind of records");
        let record = Record::decode_unchecked(kind, &self.body).expect("a whole record");
        let objects = record.lock().expect("a record with objects").objects();
        let write = |object: crate::record::Object<'_>| Write {
            object: (0..)
                .find(|one| address(*one) == object.address)
                .expect("an object of the scenario"),
            version: object.version,
            value: object.payload[0],
        };
        let objects = objects.map(|object| write(object.expect("a whole object")));
        objects.collect()
    }
}

/// The log of one worker at one machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Log {
    /// Records that are not freed.
    pub(super) records: VecDeque<Stored>,
    /// Number of these records, from the first on, that the machine has handled.
    pub(super) handled: usize,
    /// Number of records that were ever appended.
    pub(super) end: u64,
    pub(super) state: LogState,
}

/// What a worker has for all of its transactions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Worker {
    pub(super) truncations: Truncations,
    /// By machine. The one at its own machine is its own log.
    pub(super) logs: Vec<Arc<Log>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct World {
    pub(super) nodes: Vec<Arc<Node>>,
    pub(super) workers: Vec<Arc<Worker>>,
    /// The replicas of each object, as in the scenario.
    pub(super) cells: Vec<Vec<Cell>>,
    pub(super) lost: Option<u16>,
    pub(super) stalls: u8,
    /// What must never happen has happened.
    pub(super) broken: Option<Broken>,
}

impl World {
    pub(super) fn new(model: &Commits) -> Self {
        let scenario = &model.scenario;
        let node = |(number, spec): (usize, &Spec)| {
            Arc::new(Node {
                number,
                spec: *spec,
                worker: if scenario.one_worker { 0 } else { number },
                read: Vec::new(),
                commit: Coordinator::default(),
                runs: false,
                flying: Vec::new(),
                written: Written::default(),
                failed: None,
                outcome: None,
            })
        };
        let nodes: Vec<_> = scenario.txs.iter().enumerate().map(node).collect();
        let worker = Arc::new(Worker {
            truncations: Truncations::default(),
            logs: vec![Arc::default(); usize::from(scenario.machines()) + 1],
        });
        let cell = Cell {
            version: Version::new(1),
            mode: LockMode::Unlocked,
            locked_by: None,
            value: 0,
        };
        let objects = scenario.objects.iter();
        Self {
            workers: vec![worker; nodes.iter().map(|node| node.worker + 1).max().unwrap_or(0)],
            nodes,
            cells: objects.map(|one| vec![cell; one.len()]).collect(),
            lost: None,
            stalls: scenario.stalls,
            broken: None,
        }
    }

    pub(super) fn is_lost(&self, machine: MachineId) -> bool {
        self.lost == Some(machine.get())
    }

    pub(super) fn node(&mut self, tx: usize) -> &mut Node {
        Arc::make_mut(&mut self.nodes[tx])
    }

    pub(super) fn log(&mut self, worker: usize, machine: u16) -> &mut Log {
        let worker = Arc::make_mut(&mut self.workers[worker]);
        Arc::make_mut(&mut worker.logs[usize::from(machine)])
    }

    /// Records that what must never happen has happened.
    pub(super) fn break_if(&mut self, wrong: bool, what: Broken) {
        if wrong {
            self.broken.get_or_insert(what);
        }
    }

    /// Returns whether the objects of a transaction can be read now.
    pub(super) fn may_begin(&self, tx: usize) -> bool {
        let mut objects = self.nodes[tx].objects();
        objects.all(|(object, _)| self.cells[object][0].mode != LockMode::Exclusive)
    }

    /// A transaction reads its objects, and its commit begins.
    pub(super) fn begin(&mut self, model: &Commits, tx: usize) {
        let (objects, primaries) = (self.nodes[tx].objects(), model.scenario.objects);
        let read = objects.map(|(object, _)| self.cells[object][0].version);
        let read = read.collect();
        let node = self.node(tx);
        node.read = read;
        node.runs = true;
        let replicas = |region| model.replicas(region);
        let logged = Logged {
            me: MachineId::new(node.spec.0).expect("a machine"),
            replicas: &replicas,
        };
        let settings = Settings {
            most_in_message: 100,
            locks_exclusively: false,
            logged: model.scenario.logged.then_some(logged),
            configuration: 1,
            survives: false,
        };
        let begun = node.tx(|object| primaries[object][0]);
        node.commit
            .begin(begun, Cont::new(|_, _, _| (), ()), settings);
    }

    pub(super) fn lock(
        &mut self,
        tx: usize,
        (writes, mode): (&[Write], LockMode),
        fault: Fault,
    ) -> Verdict {
        for write in writes {
            let cell = &self.cells[write.object][0];
            if cell.version != write.version {
                return Verdict::Changed(address(write.object));
            }
            if cell.locked_by.is_some() && fault != Fault::GrantsLocked {
                return Verdict::Locked(address(write.object));
            }
        }
        for write in writes {
            let cell = &mut self.cells[write.object][0];
            (cell.mode, cell.locked_by) = (mode, Some(tx));
        }
        Verdict::Granted
    }

    pub(super) fn unlock(&mut self, tx: usize, writes: &[Write]) {
        for write in writes {
            let cell = &mut self.cells[write.object][0];
            let held = cell.locked_by == Some(tx);
            (cell.mode, cell.locked_by) = (LockMode::Unlocked, None);
            self.break_if(!held, Broken::Protocol);
        }
    }

    pub(super) fn install(&mut self, model: &Commits, tx: usize, writes: &[Write]) {
        for write in writes {
            let cell = &mut self.cells[write.object][0];
            (cell.version, cell.value) = (cell.version.next(), write.value);
        }
        self.unlock(tx, writes);
        let acknowledged = self.nodes[tx].written.backups_acknowledged;
        let all = model.scenario.backups(tx).are_in(acknowledged);
        self.break_if(!all, Broken::InstallsEarly);
    }
}
