//! The table of the module's documentation: every state of a transaction with every record.

use farm_core::ids::WorkerRef;

use super::*;
use crate::record::{self, TxId};

const TX: u64 = 5;
const LOCK: RecordAt = RecordAt { end: 1, bytes: 64 };

/// Passes a record with a low bound to a log.
fn pass(
    log: &mut LogState,
    (kind, sequence): (Kind, u64),
    low: u64,
    at: RecordAt,
) -> Result<Action, Violation> {
    let mut rest = Vec::new();
    if kind == Kind::Lock {
        record::encode_lock(&mut rest, 1, &[], 0);
    }
    let mut body = Vec::new();
    let id = TxId {
        configuration: 1,
        coordinator: WorkerRef::from_bits(1 << 16).unwrap(),
        sequence,
    };
    record::encode_head(&mut body, kind, id, low, &rest);
    body.extend_from_slice(&rest);
    let record = Record::decode(kind.code(), id, &body).unwrap();
    log.on_record(&record, sequence, at)
}

fn pass_end(log: &mut LogState, kind: Kind) -> Result<Action, Violation> {
    let at = RecordAt { end: 2, bytes: 32 };
    pass(log, (kind, TX), 1, at)
}

/// A log with one transaction in a state; none if there is no LOCK.
fn log_in(state: Option<State>) -> LogState {
    let mut log = LogState::default();
    let Some(state) = state else { return log };
    let lock = pass(&mut log, (Kind::Lock, TX), 1, LOCK);
    assert_eq!(lock, Ok(Action::Lock));
    if state != State::Refused {
        log.on_locked(TX);
    }
    if state == State::Ended {
        let lock = Ok(Action::Install(LOCK));
        assert_eq!(pass_end(&mut log, Kind::CommitPrimary), lock);
    }
    log
}

#[test]
fn every_state_and_record_has_its_action() {
    use State::{Ended, Locked, Refused};
    let abort = |locked| Ok(Action::Abort { lock: LOCK, locked });
    let states = [None, Some(Locked), Some(Refused), Some(Ended)];
    let second = Err(Violation::SecondLock);
    let no_lock = Err(Violation::NoLock);
    let twice = Err(Violation::EndedTwice);
    let install = Ok(Action::Install(LOCK));
    let refused = Err(Violation::CommitsRefused);
    for (kind, expected) in [
        (Kind::Lock, [Ok(Action::Lock), second, second, second]),
        (Kind::CommitPrimary, [no_lock, install, refused, twice]),
        (Kind::Abort, [no_lock, abort(true), abort(false), twice]),
    ] {
        for (state, expected) in states.into_iter().zip(expected) {
            let action = pass_end(&mut log_in(state), kind);
            assert_eq!(action, expected, "{kind:?} in {state:?}");
        }
    }
}

#[test]
fn a_record_truncates_only_transactions_that_have_ended() {
    let truncates_open = Err(Violation::TruncatesOpen);
    for (state, expected) in [
        (None, Ok(Action::Nothing)),
        (Some(State::Locked), truncates_open),
        (Some(State::Refused), truncates_open),
        (Some(State::Ended), Ok(Action::Nothing)),
    ] {
        let mut log = log_in(state);
        let at = RecordAt { end: 3, bytes: 24 };
        let action = pass(&mut log, (Kind::Truncate, 0), TX + 1, at);
        assert_eq!(action, expected, "{state:?}");
        if expected.is_ok() {
            assert_eq!(log.take_free(), Some((3, TX + 1)));
            assert!(log.is_empty());
        }
    }
}

#[test]
fn a_log_is_free_up_to_the_first_record_that_is_not_truncated() {
    let mut log = LogState::default();
    let at = |end| RecordAt { end, bytes: 32 };
    // The second transaction got its room before the first.
    for (end, sequence) in [(1, 2), (2, 1), (3, 3)] {
        pass(&mut log, (Kind::Lock, sequence), 1, at(end)).unwrap();
        log.on_locked(sequence);
        assert_eq!(log.take_free(), None);
    }
    for (end, sequence) in [(4, 2), (5, 3), (6, 1)] {
        pass(&mut log, (Kind::CommitPrimary, sequence), 1, at(end)).unwrap();
    }
    // The first transaction is truncated, and the second one's record comes before its records.
    pass(&mut log, (Kind::Truncate, 0), 2, at(7)).unwrap();
    assert_eq!(log.take_free(), None);
    pass(&mut log, (Kind::Truncate, 0), 3, at(8)).unwrap();
    assert_eq!(log.take_free(), Some((2, 3)));
    assert_eq!(log.locked(3), None);
    pass(&mut log, (Kind::Truncate, 0), 4, at(9)).unwrap();
    assert_eq!(log.take_free(), Some((9, 4)));
    assert!(log.is_empty());
}
