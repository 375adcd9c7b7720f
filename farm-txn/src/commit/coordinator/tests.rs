//! Tests of the coordinator as a value: which actions follow which events, without a cluster.

use farm_core::alloc::class_for_payload;
use farm_core::ids::{Address, RegionId};
use farm_core::object::{Incarnation, LockMode, Version};
use farm_core::region::map::Replicas;
use proptest::prelude::*;

use super::next::LOCAL_PER_TURN;
use super::*;
use crate::commit::plan::Logged;
use crate::commit::reply::{REPLY_BYTES, Verdict};
use crate::tx::Place;

const HERE: Option<u16> = None;

pub(super) const SETTINGS: Settings<'static> = Settings {
    most_in_message: 100,
    locks_exclusively: false,
    logged: None,
    configuration: 1,
    survives: false,
};

/// The actions after an abort of a commit that has sent LOCK to both of its participants.
const ABORT_AT_BOTH: [Action; 4] = [
    Action::UnlockLocal,
    Action::ReleaseNew,
    Action::SendEnd(0, Kind::Abort),
    Action::SendEnd(1, Kind::Abort),
];

/// Returns a transaction with one object on each of these machines, with these intents.
pub(super) fn transaction(objects: &[(Option<u16>, Intent)]) -> Box<Tx> {
    let mut tx = Box::new(Tx::new());
    for (index, (machine, intent)) in objects.iter().enumerate() {
        let place = Place {
            address: address(index),
            machine: machine.and_then(MachineId::new),
            class: class_for_payload(40).unwrap(),
        };
        let incarnation = Incarnation::new(place.class, 0);
        tx.reserved(place, Version::new(1), incarnation);
        tx.entries[index].intent = *intent;
    }
    tx
}

pub(super) fn address(index: usize) -> Address {
    Address::new(RegionId::new(1, 1).unwrap(), 64 * (index as u32 + 1))
}

fn begin(objects: &[(Option<u16>, Intent)]) -> Coordinator {
    let mut commit = Coordinator::default();
    commit.begin(transaction(objects), Cont::new(|_, _, _| (), ()), SETTINGS);
    commit
}

/// Returns a commit over two machines with writes, one machine with a read, and one write and one read on the
/// coordinator's own machine.
fn over_four() -> Coordinator {
    begin(&[
        (Some(2), Intent::Write),
        (HERE, Intent::Write),
        (Some(3), Intent::Write),
        (HERE, Intent::Read),
        (Some(4), Intent::Read),
    ])
}

fn held() -> [u8; REPLY_BYTES] {
    Verdict::Granted.encode()
}

fn unlocked(version: u64) -> VersionWord {
    VersionWord::of(Version::new(version), LockMode::Unlocked)
}

/// Returns the outcome that the commit reports.
fn told(commit: &mut Coordinator) -> Result<(), String> {
    let (_, result) = commit.outcome().expect("the commit has no outcome");
    assert!(commit.outcome().is_none(), "the outcome is reported twice");
    result.map_err(|error| error.to_string())
}

/// Locks the objects of this machine and sends LOCK to two participants; `second` is the result of the second send.
fn lock_until(commit: &mut Coordinator, second: Sent) {
    assert_eq!(
        commit.next_action(),
        Some(Action::LockLocal(LockMode::Exclusive))
    );
    commit.on_locked_local(Ok(()));
    for (at, sent) in [(0, Sent::Yes), (1, second)] {
        assert_eq!(commit.next_action(), Some(Action::SendLock(at)));
        commit.on_lock_sent(sent).unwrap();
    }
}

/// Runs a commit up to a step, without any failure.
fn up_to(step: Step) -> Coordinator {
    let mut commit = over_four();
    assert_eq!(commit.next_action(), Some(Action::Reserve));
    if step == Step::Reserve {
        return commit;
    }
    commit.on_reserved(7);
    if step == Step::Lock {
        return commit;
    }
    lock_until(&mut commit, Sent::Yes);
    assert_eq!(commit.next_action(), None, "two replies are missing");
    commit.on_lock_reply(1, Ok(&held()));
    assert_eq!(commit.next_action(), None, "one reply is missing");
    commit.on_lock_reply(0, Ok(&held()));
    assert_eq!(
        commit.next_action(),
        Some(Action::ValidateLocal((0..5).into()))
    );
    if step == Step::Validate {
        return commit;
    }
    commit.on_validated_local((0..5).into(), Ok(())).unwrap();
    assert_eq!(commit.next_action(), Some(Action::ReadHeader(4)));
    commit.on_header_posted(4, true).unwrap();
    assert_eq!(commit.next_action(), None);
    assert!(commit.outcome().is_none());
    commit.on_header(4, Ok(unlocked(1)));
    assert_eq!(commit.next_action(), Some(Action::InstallLocal));
    commit
}

#[test]
fn a_commit_reserves_locks_validates_and_installs() {
    let mut commit = up_to(Step::Commit);
    for at in 0..2 {
        let action = Action::SendEnd(at, Kind::CommitPrimary);
        assert_eq!(commit.next_action(), Some(action));
        commit.on_end_sent(Sent::Yes).unwrap();
    }
    assert_eq!(commit.next_action(), None);
    assert!(
        commit.outcome().is_none(),
        "no primary has acknowledged the commit"
    );
    assert!(commit.on_acknowledged(1, Status::Ok));
    assert_eq!(told(&mut commit), Ok(()));
    assert!(
        !commit.has_ended(),
        "one primary has not acknowledged the commit"
    );
    assert!(!commit.on_acknowledged(0, Status::Ok));
    assert_eq!(commit.next_action(), None);
    assert!(commit.has_ended());
}

#[test]
fn a_commit_of_a_single_read_has_no_actions() {
    let mut commit = begin(&[(Some(2), Intent::Read)]);
    assert_eq!(commit.next_action(), None);
    assert_eq!(told(&mut commit), Ok(()));
    assert!(commit.has_ended());
    let mut two = begin(&[(Some(2), Intent::Read), (HERE, Intent::Read)]);
    assert_eq!(
        two.next_action(),
        Some(Action::ValidateLocal((0..2).into()))
    );
}

/// The objects of this machine are validated in several turns if there are many.
#[test]
fn one_turn_validates_a_limited_number_of_entries() {
    let mut commit = begin(&vec![(HERE, Intent::Read); LOCAL_PER_TURN + 1]);
    let first = Action::ValidateLocal((0..LOCAL_PER_TURN).into());
    assert_eq!(commit.next_action(), Some(first));
    let blocked = commit.on_validated_local((0..LOCAL_PER_TURN).into(), Ok(()));
    assert_eq!(blocked, Err(Blocked::Turn));
    let last = Action::ValidateLocal((LOCAL_PER_TURN..LOCAL_PER_TURN + 1).into());
    assert_eq!(commit.next_action(), Some(last));
}

/// Many objects of one machine are validated by messages of at most 100 objects each. If there is no room for a
/// message, each of its objects is validated by a read of its header.
#[test]
fn objects_are_validated_by_messages_or_by_header_reads() {
    let mut objects = vec![(Some(2), Intent::Read); 130];
    objects.push((HERE, Intent::Write));
    let mut commit = begin(&objects);
    commit.on_reserved(1);
    assert_eq!(
        commit.next_action(),
        Some(Action::LockLocal(LockMode::Exclusive))
    );
    commit.on_locked_local(Ok(()));
    assert_eq!(
        commit.next_action(),
        Some(Action::ValidateLocal((0..131).into()))
    );
    commit.on_validated_local((0..131).into(), Ok(())).unwrap();
    let machine = MachineId::new(2).unwrap();
    let first = Action::SendValidate(machine, (0..100).into());
    assert_eq!(commit.next_action(), Some(first));
    commit.on_validate_sent((0..100).into(), Ok(()));
    let second = Action::SendValidate(machine, (100..130).into());
    assert_eq!(commit.next_action(), Some(second));
    commit.on_validate_sent((100..130).into(), Err(CallError::Busy));
    for entry in (100..130).rev() {
        assert_eq!(commit.next_action(), Some(Action::ReadHeader(entry)));
        commit.on_header_posted(entry, true).unwrap();
        commit.on_header(entry, Ok(unlocked(1)));
    }
    assert_eq!(commit.next_action(), None);
    commit.on_validate_reply(Ok(&held()));
    assert_eq!(commit.next_action(), Some(Action::InstallLocal));
}

/// Failures at each step: the actions that follow, and the reported error.
#[test]
fn failures_are_undone_and_reported() {
    type Wrong = fn(&mut Coordinator);
    let cases: [(&str, Step, Wrong, &[Action], &str); 7] = [
        (
            "no room",
            Step::Reserve,
            |commit| commit.on_refused(Abort::Lost(MachineId::new(2).unwrap()).into()),
            &[Action::ReleaseNew],
            "lost",
        ),
        (
            "locked here",
            Step::Lock,
            |commit| {
                assert_eq!(
                    commit.next_action(),
                    Some(Action::LockLocal(LockMode::Exclusive))
                );
                commit.on_locked_local(Err(Abort::Locked(address(1))));
            },
            &[
                Action::ReleaseNew,
                Action::ReleaseReserved(0),
                Action::ReleaseReserved(1),
            ],
            "locked",
        ),
        (
            "the second machine is lost",
            Step::Lock,
            |commit| {
                lock_until(commit, Sent::Lost);
                assert_eq!(
                    commit.next_action(),
                    None,
                    "the first participant has not replied"
                );
                commit.on_lock_reply(0, Ok(&held()));
            },
            &[
                Action::UnlockLocal,
                Action::ReleaseNew,
                Action::SendEnd(0, Kind::Abort),
                Action::ReleaseReserved(1),
            ],
            "lost",
        ),
        (
            "locked there",
            Step::Lock,
            |commit| {
                lock_until(commit, Sent::Yes);
                let refused = Verdict::Locked(address(2)).encode();
                commit.on_lock_reply(1, Ok(&refused));
                assert_eq!(
                    commit.next_action(),
                    None,
                    "the first participant has not replied"
                );
                commit.on_lock_reply(0, Ok(&held()));
            },
            &ABORT_AT_BOTH,
            "locked",
        ),
        (
            "changed here",
            Step::Validate,
            |commit| {
                let changed = Err(Abort::Changed(address(3)));
                commit.on_validated_local((0..5).into(), changed).unwrap();
            },
            &ABORT_AT_BOTH,
            "changed",
        ),
        (
            "changed there",
            Step::Validate,
            |commit| {
                commit.on_validated_local((0..5).into(), Ok(())).unwrap();
                assert_eq!(commit.next_action(), Some(Action::ReadHeader(4)));
                commit.on_header_posted(4, true).unwrap();
                commit.on_header(4, Ok(unlocked(2)));
            },
            &ABORT_AT_BOTH,
            "changed",
        ),
        (
            "both machines are lost before they acknowledge",
            Step::Commit,
            |commit| {
                for at in 0..2 {
                    let action = Action::SendEnd(at, Kind::CommitPrimary);
                    assert_eq!(commit.next_action(), Some(action));
                    commit.on_end_sent(Sent::Yes).unwrap();
                }
                commit.on_acknowledged(0, Status::Broken);
                commit.on_acknowledged(1, Status::Broken);
            },
            &[],
            "m3",
        ),
    ];
    for (name, step, wrong, follows, why) in cases {
        let mut commit = up_to(step);
        wrong(&mut commit);
        for action in follows {
            assert_eq!(commit.next_action().as_ref(), Some(action), "{name}");
            match action {
                Action::ReleaseNew => commit.tx.clear(),
                Action::SendEnd(..) => commit.on_end_sent(Sent::Yes).unwrap(),
                _ => {}
            }
        }
        assert_eq!(commit.next_action(), None, "{name}");
        let error = told(&mut commit).unwrap_err();
        assert!(error.contains(why), "{name}: {error}");
    }
}

/// The machine of the first LOCK is lost: the commit aborts without a record, and may have to wait for the next configuration. That once
/// released the room at the other machines again.
#[test]
fn room_is_released_once() {
    let mut commit = up_to(Step::Lock);
    assert!(commit.holds_room());
    assert_eq!(
        commit.next_action(),
        Some(Action::LockLocal(LockMode::Exclusive))
    );
    commit.on_locked_local(Ok(()));
    assert_eq!(commit.next_action(), Some(Action::SendLock(0)));
    commit.on_lock_sent(Sent::Lost).unwrap();
    let mut actions = Vec::new();
    while let Some(action) = commit.next_action() {
        if action == Action::ReleaseNew {
            commit.tx.clear();
        }
        actions.push(action);
    }
    let released = [
        Action::UnlockLocal,
        Action::ReleaseNew,
        Action::ReleaseReserved(0),
        Action::ReleaseReserved(1),
    ];
    assert_eq!(actions, released);
    assert!(!commit.has_record() && !commit.holds_room());
}

/// The reservation for a new object is released by the primary if it was sent the LOCK, else by the coordinator.
#[test]
fn a_primary_releases_the_reservations_of_a_lock_that_it_received() {
    let mut commit = begin(&[(Some(2), Intent::Allocate), (Some(3), Intent::Allocate)]);
    commit.on_reserved(1);
    lock_until(&mut commit, Sent::Lost);
    commit.on_lock_reply(0, Ok(&held()));
    assert_eq!(commit.next_action(), Some(Action::UnlockLocal));
    assert_eq!(commit.next_action(), Some(Action::ReleaseNew));
    commit.keep_logged();
    let given_back = commit.tx.entries.iter().map(|entry| entry.is_reserved());
    assert_eq!(given_back.collect::<Vec<_>>(), [false, true]);
}

/// Performs the actions of a commit whose objects are all local until `fails`, and returns them.
fn run_locally(commit: &mut Coordinator, fails: Option<Action>) -> Vec<Action> {
    let mut actions = Vec::new();
    while let Some(action) = commit.next_action() {
        actions.push(action);
        let result = match fails == Some(action) {
            true => Err(Abort::Locked(address(0))),
            false => Ok(()),
        };
        match action {
            Action::LockLocal(_) => commit.on_locked_local(result),
            Action::ValidateLocal(range) => commit.on_validated_local(range, result).unwrap(),
            Action::ReleaseNew => commit.tx.clear(),
            _ => {}
        }
    }
    actions
}

#[test]
fn a_local_commit_is_readable_until_all_locks_are_held() {
    let readable = Action::LockLocal(LockMode::Readable);
    let objects = [Intent::Write, Intent::Read, Intent::Free].map(|intent| (HERE, intent));
    let validate = Action::ValidateLocal((0..3).into());
    let mut commit = begin(&objects);
    let all = [
        readable,
        Action::MakeExclusive,
        validate,
        Action::InstallLocal,
    ];
    assert_eq!(run_locally(&mut commit, None), all);
    assert!(commit.local_outcome().1);

    let mut commit = begin(&objects);
    let refused = [readable, Action::ReleaseNew];
    assert_eq!(run_locally(&mut commit, Some(readable)), refused);
    assert!(!commit.local_outcome().1);
    let why = commit.take_reason();
    assert!(matches!(why, TxError::Abort(Abort::Locked(_))), "{why}");

    let mut commit = begin(&objects);
    let failed = [
        readable,
        Action::MakeExclusive,
        validate,
        Action::UnlockLocal,
        Action::ReleaseNew,
    ];
    assert_eq!(run_locally(&mut commit, Some(validate)), failed);
    assert!(!commit.local_outcome().1);
}

#[test]
fn a_single_local_lock_is_exclusive_from_the_start() {
    let exclusive = Action::LockLocal(LockMode::Exclusive);
    let validate = Action::ValidateLocal((0..2).into());
    let mut commit = begin(&[(HERE, Intent::Write), (HERE, Intent::Read)]);
    let all = [exclusive, validate, Action::InstallLocal];
    assert_eq!(run_locally(&mut commit, None), all);
    let mut commit = begin(&[(HERE, Intent::Write)]);
    let all = [exclusive, Action::InstallLocal];
    assert_eq!(run_locally(&mut commit, None), all);

    let mut commit = Coordinator::default();
    let settings = Settings {
        locks_exclusively: true,
        ..SETTINGS
    };
    let tx = transaction(&[(HERE, Intent::Write), (HERE, Intent::Write)]);
    commit.begin(tx, Cont::new(|_, _, _| (), ()), settings);
    let all = [exclusive, Action::InstallLocal];
    assert_eq!(run_locally(&mut commit, None), all);
}

#[test]
fn local_objects_that_were_only_read_are_validated_if_there_are_several() {
    let mut commit = begin(&[(HERE, Intent::Read)]);
    assert_eq!(run_locally(&mut commit, None), []);
    assert_eq!(told(&mut commit), Ok(()));
    let mut commit = begin(&[(HERE, Intent::Read), (HERE, Intent::Absent)]);
    let validate = Action::ValidateLocal((0..2).into());
    assert_eq!(run_locally(&mut commit, None), [validate]);
    assert_eq!(told(&mut commit), Ok(()));
}

/// The environment of a commit, with random events.
struct World {
    draws: std::vec::IntoIter<u8>,
    /// Participants that received LOCK and have not replied, and participants that have replied.
    asked: Vec<u32>,
    hold: Vec<u32>,
    headers: Vec<u32>,
    ended: Vec<(u32, Kind)>,
    unacknowledged: Vec<u32>,
    locked_here: bool,
    validated: bool,
    installed: bool,
    gave_back: bool,
    released: Vec<u32>,
}

impl World {
    fn draw(&mut self, below: u8) -> u8 {
        self.draws.next().unwrap_or(0) % below
    }

    fn perform(&mut self, commit: &mut Coordinator, action: Action) -> Result<(), Blocked> {
        match action {
            Action::Reserve => match self.draw(8) {
                7 => commit.on_refused(Abort::Lost(MachineId::new(2).unwrap()).into()),
                6 => return Err(Blocked::Room),
                _ => commit.on_reserved(1),
            },
            Action::LockLocal(LockMode::Exclusive) => {
                self.locked_here = self.draw(8) < 7;
                let locked = self.locked_here.then_some(());
                commit.on_locked_local(locked.ok_or(Abort::Locked(address(0))));
            }
            Action::SendLock(at) => {
                assert!(!self.asked.contains(&at) && !self.hold.contains(&at));
                let sent = [Sent::Yes, Sent::Yes, Sent::Yes, Sent::Full, Sent::Lost];
                let sent = sent[self.draw(5) as usize];
                if sent == Sent::Yes {
                    self.asked.push(at);
                }
                return commit.on_lock_sent(sent);
            }
            Action::ValidateLocal(part) => {
                self.may_validate();
                let changed = self.draw(8) == 7;
                self.validated &= !changed;
                let result = match changed {
                    true => Err(Abort::Changed(address(0))),
                    false => Ok(()),
                };
                return commit.on_validated_local(part, result);
            }
            Action::ReadHeader(at) => {
                self.may_validate();
                let has_slot = self.draw(4) < 3;
                if has_slot {
                    self.headers.push(at);
                }
                return commit.on_header_posted(at, has_slot);
            }
            Action::LockLocal(LockMode::Readable | LockMode::Unlocked)
            | Action::MakeExclusive
            | Action::LogOwn(..)
            | Action::SendBackup(_)
            | Action::SendValidate(..) => {
                unreachable!("the commit has few objects, on several machines, and is not logged")
            }
            Action::InstallLocal => {
                self.may_commit(commit);
                self.installed = true;
                self.locked_here = false;
            }
            Action::UnlockLocal => assert!(std::mem::take(&mut self.locked_here)),
            Action::ReleaseNew => {
                commit.keep_logged();
                commit.tx.clear();
                self.gave_back = true;
            }
            Action::ReleaseReserved(at) => self.released.push(at),
            Action::SendEnd(at, kind) => {
                assert!(
                    self.asked.is_empty(),
                    "a LOCK record may still be in flight"
                );
                if kind == Kind::CommitPrimary {
                    self.may_commit(commit);
                }
                let sent = [Sent::Yes, Sent::Yes, Sent::Yes, Sent::Full, Sent::Lost];
                let sent = sent[self.draw(5) as usize];
                if sent == Sent::Yes {
                    self.unacknowledged.push(at);
                }
                if sent != Sent::Full {
                    self.ended.push((at, kind));
                }
                return commit.on_end_sent(sent);
            }
        }
        Ok(())
    }

    /// Asserts that all locks are held: nothing may be validated before.
    fn may_validate(&self) {
        assert!(self.locked_here && self.asked.is_empty() && self.hold.len() == 2);
    }

    /// Asserts that everything is validated: nothing may take effect before.
    fn may_commit(&self, commit: &Coordinator) {
        assert!(self.validated && self.headers.is_empty() && self.hold.len() == 2);
        assert!(commit.why.is_none());
    }

    /// Delivers one of the events that are due; always a success when all random draws are used up.
    fn happen(&mut self, commit: &mut Coordinator) {
        let which = self.draw(4);
        if let Some(at) = self.asked.pop() {
            return match which {
                0..=2 => {
                    self.hold.push(at);
                    commit.on_lock_reply(at, Ok(&held()));
                }
                _ => {
                    let refused = Verdict::Changed(address(at as usize)).encode();
                    self.hold.push(at);
                    self.validated = false;
                    commit.on_lock_reply(at, Ok(&refused));
                }
            };
        }
        if let Some(at) = self.headers.pop() {
            return match which {
                3 => commit.on_header(at, Err(ReadError::Busy)),
                2 => {
                    self.validated = false;
                    commit.on_header(at, Ok(unlocked(9)));
                }
                _ => commit.on_header(at, Ok(unlocked(1))),
            };
        }
        if let Some(at) = self.unacknowledged.pop() {
            let status = [Status::Ok, Status::Ok, Status::Ok, Status::Broken];
            commit.on_acknowledged(at, status[which as usize]);
            return;
        }
        commit.on_resumed();
    }
}

proptest! {
    /// For any events in any order: a commit ends, reports its outcome once, keeps no lock and no reservation, and
    /// takes effect at all participants or at none.
    #[test]
    fn every_commit_ends_the_same_at_all_participants(draws in prop::collection::vec(any::<u8>(), 0..60)) {
        let mut commit = over_four();
        let mut world = World {
            draws: draws.into_iter(),
            asked: Vec::new(),
            hold: Vec::new(),
            headers: Vec::new(),
            ended: Vec::new(),
            unacknowledged: Vec::new(),
            locked_here: false,
            validated: true,
            installed: false,
            gave_back: false,
            released: Vec::new(),
        };
        let mut outcome = None;
        for _ in 0..1000 {
            while let Some(action) = commit.next_action() {
                if world.perform(&mut commit, action).is_err() {
                    commit.on_blocked();
                    break;
                }
            }
            if let Some((_, result)) = commit.outcome() {
                prop_assert!(outcome.is_none());
                outcome = Some(result);
            }
            if commit.has_ended() {
                break;
            }
            world.happen(&mut commit);
        }
        prop_assert!(commit.has_ended());
        prop_assert!(!world.locked_here);
        let committed = matches!(outcome, Some(Ok(()) | Err(TxError::InDoubt(_))));
        prop_assert_eq!(world.installed, committed);
        prop_assert_eq!(world.gave_back, !committed);
        let kind = if committed { Kind::CommitPrimary } else { Kind::Abort };
        prop_assert!(world.ended.iter().all(|(_, ended)| *ended == kind));
        let mut ended: Vec<u32> = world.ended.iter().map(|(at, _)| *at).collect();
        ended.extend(&world.released);
        ended.sort_unstable();
        // A commit whose reservation was refused has no participants.
        let all = (0..commit.plan.participants.len() as u32).collect::<Vec<_>>();
        prop_assert_eq!(ended, all);
    }
}

/// Returns the actions of a commit on the machine of its objects, which has backups on two others, in order.
fn of_copied(objects: &[Intent], ignores_reads: bool) -> Vec<Action> {
    let objects: Vec<_> = objects.iter().map(|intent| (HERE, *intent)).collect();
    let mut tx = transaction(&objects);
    if ignores_reads {
        tx.ignore_reads();
    }
    let machine = |id| MachineId::new(id).unwrap();
    let logged = Logged {
        me: machine(1),
        replicas: &|_| Replicas::new([machine(1), machine(2), machine(3)]),
    };
    let settings = Settings {
        logged: Some(logged),
        ..SETTINGS
    };
    let mut commit = Coordinator::default();
    commit.begin(tx, Cont::new(|_, _, _| (), ()), settings);
    let mut actions = Vec::new();
    while let Some(action) = commit.next_action() {
        match action {
            Action::Reserve => commit.on_reserved(1),
            Action::LogOwn(at, kind) => commit.on_own_logged(at, kind),
            Action::LockLocal(_) => commit.on_locked_local(Ok(())),
            Action::ValidateLocal(range) => commit.on_validated_local(range, Ok(())).unwrap(),
            Action::SendBackup(at) => {
                commit.on_backup_sent(Sent::Yes).unwrap();
                if at == 2 {
                    actions.push(action);
                    assert_eq!(commit.next_action(), None, "not acknowledged");
                    for at in 1..=2 {
                        commit.on_acknowledged(at, Status::Ok);
                    }
                    continue;
                }
            }
            _ => {}
        }
        actions.push(action);
    }
    assert!(told(&mut commit).is_ok());
    actions
}

/// Lock-free reads return the old values until the backups have acknowledged, unless the transaction validates: then a report of
/// another transaction may already depend on the new values (docs/decisions/0037).
#[test]
fn reads_pass_the_locks_until_the_backups_have_acknowledged() {
    let own = |kind| Action::LogOwn(0, kind);
    let until_exclusive = |objects: &[Intent], ignores_reads| {
        let actions = of_copied(objects, ignores_reads);
        let exclusive = |one: &Action| {
            matches!(
                one,
                Action::MakeExclusive | Action::LockLocal(LockMode::Exclusive)
            )
        };
        let at = actions.iter().position(exclusive).unwrap();
        (actions[..at].to_vec(), actions[at + 1..].to_vec())
    };
    let locked = [
        Action::Reserve,
        own(Kind::Lock),
        Action::LockLocal(LockMode::Readable),
    ];
    let backups = [Action::SendBackup(1), Action::SendBackup(2)];
    let end = [own(Kind::CommitPrimary), Action::InstallLocal];
    for written in 1..=2 {
        let (before, after) = until_exclusive(&[Intent::Write, Intent::Write][..written], false);
        assert_eq!(
            (before, after),
            ([&locked[..], &backups].concat(), end.to_vec())
        );
    }
    let (before, after) = until_exclusive(&[Intent::Write, Intent::Read], true);
    assert_eq!(
        (before, after),
        ([&locked[..], &backups].concat(), end.to_vec())
    );
    let (before, after) = until_exclusive(&[Intent::Write, Intent::Read], false);
    assert_eq!(before, locked[..2]);
    let validate = Action::ValidateLocal((0..2).into());
    assert_eq!(after, [&[validate][..], &backups, &end].concat());
}
