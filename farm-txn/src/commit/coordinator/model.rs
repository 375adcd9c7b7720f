//! Model check of commits: runs the production code of coordinators and primaries, which are values, in every order of
//! their messages.
//!
//! Each transaction has a coordinator of its own; object `i` is stored on machine `i + 1`. All transactions have read
//! all of their objects at the first version before the model begins. The model provides memory, logs, one-sided reads
//! and messages. A coordinator performs one action per step. Between two actions of a coordinator any other step may be
//! taken, but events are delivered to the coordinator only when it has no action left, as within a turn of the event
//! loop.

use std::hash::{Hash, Hasher};

use farm_core::ids::{Address, WorkerRef};
use farm_core::object::Version;
use stateright::{Checker, Model, Property};

use super::tests::{SETTINGS, address, transaction};
use super::*;
use crate::commit::primary::{self, LogState, RecordAt};
use crate::commit::reply::Verdict;
use crate::commit::truncations::Truncations;
use crate::record::{self, Record, TxId};

/// An error of a commit that the checker must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Fault {
    None,
    /// A primary grants LOCK for objects that another transaction has locked.
    GrantsLocked,
    /// The one-sided read of a header returns what the header was before the commit began.
    StaleHeader,
    /// A primary replies that LOCK was granted when it was refused.
    RepliesGranted,
    /// A coordinator lets primaries truncate when the first of them has acknowledged.
    TruncatesEarly,
    /// A primary that is to abort leaves its locks.
    KeepsLocks,
}

/// The machine of a coordinator, and what its transaction does with each object.
type Spec = (u16, &'static [Option<Intent>]);

const R: Option<Intent> = Some(Intent::Read);
const W: Option<Intent> = Some(Intent::Write);

struct Commits {
    specs: Vec<Spec>,
    fault: Fault,
    /// This machine may be lost at any time; none of the coordinators runs on it.
    may_lose: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Outcome {
    Committed,
    Aborted,
    InDoubt,
}

/// A coordinator, and the truncations of its worker.
#[derive(Debug)]
struct Node {
    spec: Spec,
    commit: Coordinator,
    truncations: Truncations,
    /// It has actions to perform.
    runs: bool,
    outcome: Option<Outcome>,
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
        );
        let values = (&commit.plan, &commit.validation, &self.truncations);
        (flags, position, locks, values, self.runs, self.outcome)
    }
}

impl Clone for Node {
    fn clone(&self) -> Self {
        let commit = &self.commit;
        let tx = match commit.tx.is_empty() {
            true => Box::new(Tx::new()),
            false => tx_of(self.spec),
        };
        let why = commit.why.as_ref().map(|why| match why {
            TxError::Abort(abort) => TxError::Abort(*abort),
            other => unreachable!("{other}"),
        });
        let plan = commit.plan.clone();
        let validation = commit.validation.clone();
        let (truncations, outcome) = (self.truncations.clone(), self.outcome);
        Self {
            spec: self.spec,
            commit: Coordinator {
                tx,
                why,
                plan,
                validation,
                ..*commit
            },
            truncations,
            runs: self.runs,
            outcome,
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

fn tx_of((own, objects): Spec) -> Box<Tx> {
    let places = objects.iter().zip(1..);
    let places = places.filter_map(|(intent, machine)| {
        let machine = (machine != own).then_some(machine);
        Some((machine, (*intent)?))
    });
    transaction(&places.collect::<Vec<_>>())
}

/// A message, or a one-sided operation, on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Flying {
    Reply(u32, Verdict),
    Acknowledged(u32),
    /// The read of the header of an entry.
    Header(u32),
    /// The header as it was read.
    Read(u32, u64),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Cell {
    version: u64,
    locked_by: Option<usize>,
}

/// The log of one coordinator at one machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Log {
    /// Records that the primary has not handled: kind, sequence number and bytes.
    records: std::collections::VecDeque<(u16, u64, Vec<u8>)>,
    end: u64,
    state: LogState,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    nodes: Vec<Node>,
    cells: Vec<Cell>,
    /// By transaction and machine.
    logs: Vec<Vec<Log>>,
    /// What is on its way to each coordinator.
    flying: Vec<Vec<Flying>>,
    lost: Option<u16>,
    /// Records that can still meet a full log.
    stalls: u8,
    /// What must never happen has happened.
    wrong: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
enum Move {
    /// A coordinator performs its next action.
    Act(usize),
    /// As [`Move::Act`], but if it sends a record, the log is full.
    Stall(usize),
    /// The log has room again.
    Resume(usize),
    /// A primary handles the next record of a transaction's log.
    Handle(usize, usize),
    /// Something that is on its way to a coordinator goes on.
    Deliver(usize, Flying),
    Lose(u16),
}

impl World {
    fn is_lost(&self, machine: MachineId) -> bool {
        self.lost.and_then(MachineId::new) == Some(machine)
    }

    /// The objects of a transaction on a machine, with what it does.
    fn objects(&self, tx: usize) -> impl Iterator<Item = (usize, Intent)> + use<> {
        let objects = self.nodes[tx].spec.1;
        let all = objects.iter().enumerate();
        all.filter_map(|(object, intent)| Some((object, (*intent)?)))
    }

    /// The object of an entry of a transaction.
    fn object_of(&self, tx: usize, entry: u32) -> usize {
        let object = self.objects(tx).nth(entry as usize);
        object.expect("an entry is an object").0
    }

    fn written_at(&self, tx: usize, machine: usize) -> impl Iterator<Item = usize> + use<> {
        let written = self.objects(tx).filter(|one| one.1 == Intent::Write);
        let here = written.filter(move |(object, _)| object + 1 == machine);
        here.map(|(object, _)| object)
    }

    fn lock(&mut self, tx: usize, machine: usize, fault: Fault) -> Verdict {
        for object in self.written_at(tx, machine) {
            let Cell { version, locked_by } = self.cells[object];
            if version != 1 {
                return Verdict::Changed(address(object));
            }
            if locked_by.is_some() && fault != Fault::GrantsLocked {
                return Verdict::Locked(address(object));
            }
        }
        for object in self.written_at(tx, machine) {
            self.cells[object].locked_by = Some(tx);
        }
        Verdict::Granted
    }

    fn unlock(&mut self, tx: usize, machine: usize, installs: bool) {
        for object in self.written_at(tx, machine) {
            let cell = &mut self.cells[object];
            if cell.locked_by != Some(tx) {
                self.wrong = Some(format!("transaction {tx} does not hold object {object}"));
            }
            cell.locked_by = None;
            cell.version += u64::from(installs);
        }
    }

    fn header(&self, object: usize) -> VersionWord {
        let cell = self.cells[object];
        let mode = match cell.locked_by {
            Some(_) => LockMode::Exclusive,
            None => LockMode::Unlocked,
        };
        VersionWord::of(Version::new(cell.version), mode)
    }

    fn append(&mut self, tx: usize, machine: MachineId, kind: Kind, sequence: u64) -> Sent {
        if self.is_lost(machine) {
            return Sent::Lost;
        }
        let truncations = &mut self.nodes[tx].truncations;
        let batch = truncations.batch(machine);
        truncations.on_sent(machine, batch.count);
        let mut rest = Vec::new();
        if kind == Kind::Lock {
            record::encode_lock(&mut rest, 1, &[], 0);
        }
        let mut body = Vec::new();
        record::encode_head(&mut body, kind, id(sequence), batch.low, &rest);
        body.extend_from_slice(&rest);
        let log = &mut self.logs[tx][machine.index()];
        log.records.push_back((kind.code(), sequence, body));
        Sent::Yes
    }

    fn act(&mut self, tx: usize, fault: Fault, full: bool) {
        let own = usize::from(self.nodes[tx].spec.0);
        let commit = &mut self.nodes[tx].commit;
        let sequence = commit.sequence;
        let Some(action) = commit.next_action() else {
            return self.rest(tx);
        };
        let machine = |commit: &Coordinator, at: u32| commit.plan.participants[at as usize].machine;
        match action {
            Action::SendLock(_) | Action::SendEnd(..) if full => {
                let refused = match action {
                    Action::SendLock(_) => commit.on_lock_sent(Sent::Full),
                    _ => commit.on_end_sent(Sent::Full),
                };
                assert_eq!(refused, Err(Blocked::Room));
                commit.on_blocked();
                self.nodes[tx].runs = false;
                self.stalls -= 1;
            }
            Action::Reserve => {
                for participant in &mut commit.plan.participants {
                    participant.reply = Some(1);
                }
                let sequence = self.nodes[tx].truncations.begin();
                self.nodes[tx].commit.on_reserved(sequence);
            }
            Action::LockLocal(_) => {
                let result = match self.lock(tx, own, fault) {
                    Verdict::Granted => Ok(()),
                    _ => Err(Abort::Locked(Address::NULL)),
                };
                self.nodes[tx].commit.on_locked_local(result);
            }
            Action::MakeExclusive | Action::SendValidate(..) => unreachable!("few objects"),
            Action::LogOwn(..) | Action::SendBackup(_) => unreachable!("not logged"),
            Action::SendLock(at) => {
                let machine = machine(commit, at);
                let sent = match commit.plan.participants[at as usize].reply {
                    Some(_) => self.append(tx, machine, Kind::Lock, sequence),
                    None => Sent::Lost,
                };
                self.nodes[tx].commit.on_lock_sent(sent).unwrap();
            }
            Action::ValidateLocal(range) => {
                let read = self.objects(tx).filter(|one| one.1 == Intent::Read);
                let here = read.filter(|one| one.0 + 1 == own);
                let changed = here.filter(|one| self.header(one.0) != first());
                let result = match changed.count() {
                    0 => Ok(()),
                    _ => Err(Abort::Changed(Address::NULL)),
                };
                let commit = &mut self.nodes[tx].commit;
                commit.on_validated_local(range, result).unwrap();
            }
            Action::ReadHeader(at) => {
                commit.on_header_posted(at, true).unwrap();
                self.flying[tx].push(Flying::Header(at));
            }
            Action::InstallLocal => self.unlock(tx, own, true),
            Action::UnlockLocal => self.unlock(tx, own, false),
            Action::ReleaseNew => {
                commit.keep_logged();
                commit.tx.clear();
            }
            Action::ReleaseReserved(at) => commit.plan.participants[at as usize].reply = None,
            Action::SendEnd(at, kind) => {
                let machine = machine(commit, at);
                let sent = self.append(tx, machine, kind, sequence);
                if sent == Sent::Yes {
                    self.flying[tx].push(Flying::Acknowledged(at));
                }
                self.nodes[tx].commit.on_end_sent(sent).unwrap();
            }
        }
    }

    /// A coordinator has no action left: it reports its outcome, and truncates.
    fn rest(&mut self, tx: usize) {
        let node = &mut self.nodes[tx];
        node.runs = false;
        if let Some((_, result)) = node.commit.outcome() {
            let outcome = match result {
                Ok(()) => Outcome::Committed,
                Err(TxError::InDoubt(_)) => Outcome::InDoubt,
                Err(_) => Outcome::Aborted,
            };
            if node.outcome.replace(outcome).is_some() {
                self.wrong = Some("an outcome was reported twice".into());
            }
        }
        if node.commit.has_ended() && node.commit.sequence != 0 {
            self.truncate(tx);
        }
    }

    fn truncate(&mut self, tx: usize) {
        let Node {
            commit,
            truncations,
            ..
        } = &mut self.nodes[tx];
        let logged = commit.plan.participants.iter().filter(|one| one.asked);
        let machines: Vec<MachineId> = logged.map(|one| one.machine).collect();
        truncations.end(commit.sequence, machines.iter().copied());
        for machine in machines {
            if self.nodes[tx].truncations.has_due(machine) {
                self.append(tx, machine, Kind::Truncate, 0);
            }
        }
    }

    fn handle(&mut self, tx: usize, machine: usize, fault: Fault) {
        let log = &mut self.logs[tx][machine];
        let (kind, sequence, body) = log.records.pop_front().expect("a record");
        log.end += 1;
        let at = RecordAt {
            end: log.end,
            bytes: body.len(),
        };
        let record = Record::decode(kind, id(sequence), &body).expect("a whole record");
        match log.state.on_record(&record, sequence, at) {
            Err(violation) => self.wrong = Some(violation.to_string()),
            Ok(primary::Action::Nothing) => {}
            Ok(primary::Action::Lock) => {
                let verdict = self.lock(tx, machine, fault);
                if verdict == Verdict::Granted {
                    self.logs[tx][machine].state.on_locked(sequence);
                }
                let participants = &self.nodes[tx].commit.plan.participants;
                let place = participants.iter().zip(0..);
                let mut place = place.filter(|one| one.0.machine.index() == machine);
                let (_, at) = place.next().expect("a participant");
                let reply = match fault {
                    Fault::RepliesGranted => Verdict::Granted,
                    _ => verdict,
                };
                self.flying[tx].push(Flying::Reply(at, reply));
            }
            Ok(primary::Action::Install(_)) => self.unlock(tx, machine, true),
            Ok(primary::Action::Abort { locked, .. }) => {
                if locked && fault != Fault::KeepsLocks {
                    self.unlock(tx, machine, false);
                }
            }
        }
        self.logs[tx][machine].state.take_free();
    }

    fn deliver(&mut self, tx: usize, flying: Flying, fault: Fault) {
        let place = self.flying[tx].iter().position(|one| *one == flying);
        self.flying[tx].swap_remove(place.expect("it is on its way"));
        let machine = |world: &Self, at: u32| {
            let participants = &world.nodes[tx].commit.plan.participants;
            participants[at as usize].machine
        };
        match flying {
            Flying::Header(entry) => {
                let object = self.object_of(tx, entry);
                let header = match fault {
                    Fault::StaleHeader => first(),
                    _ => self.header(object),
                };
                self.flying[tx].push(Flying::Read(entry, header.0));
                return;
            }
            Flying::Read(entry, header) => {
                let machine = MachineId::new(self.object_of(tx, entry) as u16 + 1).unwrap();
                let header = match self.is_lost(machine) {
                    true => Err(ReadError::PeerLost(machine)),
                    false => Ok(VersionWord(header)),
                };
                self.nodes[tx].commit.on_header(entry, header);
            }
            Flying::Reply(at, verdict) => {
                let machine = machine(self, at);
                let lost = self.is_lost(machine);
                let commit = &mut self.nodes[tx].commit;
                match lost {
                    true => commit.on_lock_reply(at, Err(CallError::PeerLost(machine))),
                    false => commit.on_lock_reply(at, Ok(&verdict.encode())),
                }
            }
            Flying::Acknowledged(at) => {
                let status = match self.is_lost(machine(self, at)) {
                    true => Status::Broken,
                    false => Status::Ok,
                };
                let is_first = self.nodes[tx].commit.on_acknowledged(at, status);
                if is_first && fault == Fault::TruncatesEarly {
                    self.truncate(tx);
                }
            }
        }
        self.nodes[tx].runs = true;
    }

    /// A machine is lost: what its primary has not answered is answered by the failure of the call.
    fn lose(&mut self, machine: u16) {
        self.lost = Some(machine);
        for tx in 0..self.nodes.len() {
            let participants = self.nodes[tx].commit.plan.participants.iter().zip(0..);
            let here = participants.filter(|one| one.0.machine.get() == machine);
            for (at, reply) in here.map(|one| (one.1, one.0.reply)).collect::<Vec<_>>() {
                let flies = |one: &Flying| matches!(one, Flying::Reply(to, _) if *to == at);
                if reply.is_some() && !self.flying[tx].iter().any(flies) {
                    self.flying[tx].push(Flying::Reply(at, Verdict::Granted));
                }
            }
            self.logs[tx][usize::from(machine)] = Log::default();
        }
    }

    /// The transactions that are committed are serializable: no cycle of "read what the other overwrote". All have
    /// read the first versions.
    fn is_serializable(&self) -> bool {
        let committed = |tx: &usize| self.nodes[*tx].outcome == Some(Outcome::Committed);
        let mut left: Vec<usize> = (0..self.nodes.len()).filter(committed).collect();
        let overwrites = |reader: usize, writer: usize| {
            let mut read = self.objects(reader);
            let writes = self.nodes[writer].spec.1;
            reader != writer && read.any(|(object, _)| writes[object] == W)
        };
        // Whose reads nobody of the rest overwrites comes last.
        while let Some(last) = left
            .iter()
            .position(|tx| !left.iter().any(|other| overwrites(*tx, *other)))
        {
            left.remove(last);
        }
        left.is_empty()
    }

    /// At the end every lock is released, every log is empty, and each transaction took effect as it was reported.
    fn is_settled(&self) -> bool {
        let cells = self.cells.iter().zip(1..);
        let reachable = cells.filter(|one| self.lost != Some(one.1));
        let settled = reachable.map(|(cell, machine)| {
            let writers = (0..self.nodes.len()).filter(|tx| self.writes(*tx, machine));
            let outcomes = writers.map(|tx| self.nodes[tx].outcome);
            let outcomes: Vec<_> = outcomes.collect();
            let count = |outcome| outcomes.iter().filter(|one| **one == outcome).count() as u64;
            let least = 1 + count(Some(Outcome::Committed));
            let most = least + count(Some(Outcome::InDoubt));
            cell.locked_by.is_none() && (least..=most).contains(&cell.version)
        });
        let logs = self.logs.iter().flatten();
        settled.into_iter().all(|settled| settled)
            && logs.into_iter().all(|log| log.state.is_empty())
            && self.nodes.iter().all(|node| node.commit.has_ended())
    }

    fn writes(&self, tx: usize, machine: u16) -> bool {
        self.written_at(tx, machine.into()).next().is_some()
    }
}

/// The coordinators have logs of their own, so that one name will do.
fn id(sequence: u64) -> TxId {
    TxId {
        configuration: record::FIXED_CONFIGURATION,
        coordinator: WorkerRef::from_bits(1 << 16).unwrap(),
        sequence,
    }
}

fn first() -> VersionWord {
    VersionWord::of(Version::new(1), LockMode::Unlocked)
}

impl Model for Commits {
    type State = World;
    type Action = Move;

    fn init_states(&self) -> Vec<World> {
        let machines = self.specs[0].1.len();
        let begin = |spec: &Spec| {
            let mut commit = Coordinator::default();
            commit.begin(tx_of(*spec), Cont::new(|_, _, _| (), ()), SETTINGS);
            Node {
                spec: *spec,
                commit,
                truncations: Truncations::default(),
                runs: true,
                outcome: None,
            }
        };
        let cell = Cell {
            version: 1,
            locked_by: None,
        };
        vec![World {
            nodes: self.specs.iter().map(begin).collect(),
            cells: vec![cell; machines],
            logs: vec![vec![Log::default(); machines + 1]; self.specs.len()],
            flying: vec![Vec::new(); self.specs.len()],
            lost: None,
            stalls: 1,
            wrong: None,
        }]
    }

    fn actions(&self, world: &World, moves: &mut Vec<Move>) {
        if world.wrong.is_some() {
            return;
        }
        for (tx, node) in world.nodes.iter().enumerate() {
            if node.runs {
                moves.push(Move::Act(tx));
                if world.stalls > 0 {
                    moves.push(Move::Stall(tx));
                }
            }
            if node.commit.blocked {
                moves.push(Move::Resume(tx));
            }
            let arrives = |one: &&Flying| !node.runs || matches!(one, Flying::Header(_));
            let flying = world.flying[tx].iter().filter(arrives);
            moves.extend(flying.map(|one| Move::Deliver(tx, *one)));
            for (machine, log) in world.logs[tx].iter().enumerate() {
                if !log.records.is_empty() {
                    moves.push(Move::Handle(tx, machine));
                }
            }
        }
        if let Some(machine) = self.may_lose.filter(|_| world.lost.is_none()) {
            moves.push(Move::Lose(machine));
        }
    }

    fn next_state(&self, world: &World, next: Move) -> Option<World> {
        let mut world = world.clone();
        match next {
            Move::Act(tx) => world.act(tx, self.fault, false),
            Move::Stall(tx) => world.act(tx, self.fault, true),
            Move::Resume(tx) => {
                world.nodes[tx].commit.on_resumed();
                world.nodes[tx].runs = true;
            }
            Move::Handle(tx, machine) => world.handle(tx, machine, self.fault),
            Move::Deliver(tx, flying) => world.deliver(tx, flying, self.fault),
            Move::Lose(machine) => world.lose(machine),
        }
        for flying in &mut world.flying {
            flying.sort_unstable_by_key(|one| format!("{one:?}"));
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("keeps to the protocol", |_, world: &World| {
                world.wrong.is_none()
            }),
            Property::always("serializable", |_, world: &World| world.is_serializable()),
            Property::always("settles", |model: &Commits, world: &World| {
                let mut moves = Vec::new();
                model.actions(world, &mut moves);
                let at_rest = moves.iter().all(|next| matches!(next, Move::Lose(_)));
                !at_rest || world.wrong.is_some() || world.is_settled()
            }),
            Property::sometimes("all commit", |_, world: &World| {
                let committed = |node: &Node| node.outcome == Some(Outcome::Committed);
                world.nodes.iter().all(committed)
            }),
            Property::sometimes("one aborts", |_, world: &World| {
                let aborted = |node: &Node| node.outcome == Some(Outcome::Aborted);
                world.nodes.iter().any(aborted)
            }),
        ]
    }
}

/// Two transactions that write what the other reads; each has objects on three machines.
const SKEW: [Spec; 2] = [(1, &[W, W, R]), (3, &[R, R, W])];
/// Two that write the same two objects of other machines.
const SAME: [Spec; 2] = [(1, &[None, W, W]), (1, &[None, W, W])];
/// Two that overlap in one object that one of them only reads.
const CHAIN: [Spec; 2] = [(1, &[W, R, None]), (3, &[None, W, W])];

fn check(specs: &[Spec], fault: Fault, may_lose: Option<u16>) -> Vec<&'static str> {
    let model = Commits {
        specs: specs.to_vec(),
        fault,
        may_lose,
    };
    let checker = model.checker().spawn_bfs().join();
    println!(
        "{specs:?} {fault:?}: {} states",
        checker.unique_state_count()
    );
    let mut found: Vec<_> = checker.discoveries().into_keys().collect();
    found.sort_unstable();
    found
}

#[test]
fn conflicting_commits_are_serializable_and_settle_in_every_order() {
    for specs in [SKEW, SAME] {
        assert_eq!(check(&specs, Fault::None, None), ["one aborts"]);
    }
    let both = ["all commit", "one aborts"];
    assert_eq!(check(&CHAIN, Fault::None, None), both);
}

#[test]
fn commits_settle_when_a_participant_is_lost_at_any_time() {
    for specs in [SAME, CHAIN] {
        let found = check(&specs, Fault::None, Some(2));
        assert!(
            found
                .iter()
                .all(|name| ["all commit", "one aborts"].contains(name)),
            "{found:?}"
        );
    }
}

#[test]
fn the_model_finds_errors_of_each_kind() {
    for (fault, specs, finds) in [
        (Fault::GrantsLocked, SAME, "keeps to the protocol"),
        (Fault::StaleHeader, SKEW, "serializable"),
        (Fault::RepliesGranted, SAME, "keeps to the protocol"),
        (Fault::TruncatesEarly, SAME, "keeps to the protocol"),
        (Fault::KeepsLocks, SAME, "settles"),
    ] {
        let found = check(&specs, fault, None);
        assert!(found.contains(&finds), "{fault:?}: {found:?}");
    }
}
