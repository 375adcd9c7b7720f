//! Histories with one known anomaly, which this project's checker must name, and `adya` too where it can detect it.
//! Also correct histories that look wrong.

use farm_check::checkers::{Anomaly, append, check};
use farm_check::history::{History, Transaction};

use crate::histories::{aborted, committed, first, history, read, unknown, write};

/// The expected verdict of `adya`.
#[derive(Clone, Copy, Debug)]
enum Adya {
    /// It finds this anomaly.
    Finds(&'static str),
    /// It finds nothing: it knows neither version numbers nor which transaction wrote a value.
    FindsNothing,
}

fn rejected(transactions: impl IntoIterator<Item = Transaction>, kind: Anomaly, expected: Adya) {
    let history = history(transactions);
    let finding = check(&history).expect_err("the history is wrong");
    assert_eq!(finding.kind, kind, "{finding}");
    assert_eq!(
        check(&history),
        Err(finding),
        "the verdict must be deterministic"
    );
    match (expected, append::judge(&history)) {
        (Adya::Finds(name), Err(text)) => {
            assert!(text.contains(name), "{text}");
            assert_eq!(append::judge(&history), Err(text));
        }
        (Adya::FindsNothing, Ok(())) => {}
        (expected, verdict) => panic!("expected of adya: {expected:?}; it returned {verdict:?}"),
    }
}

fn accepted(transactions: impl IntoIterator<Item = Transaction>) {
    let history = history(transactions);
    if let Err(finding) = check(&history) {
        panic!("{finding}");
    }
    assert_eq!(append::judge(&history), Ok(()));
}

#[test]
fn lost_update() {
    let both = [
        committed(1, 0, 10, [first(1), write(1, 11, 0)]),
        committed(2, 0, 10, [first(1), write(1, 12, 0)]),
    ];
    rejected(both, Anomaly::LostUpdate, Adya::Finds("lost-update"));
    // One transaction read before the write of the other, and wrote after it.
    let late = [
        committed(1, 0, 10, [first(1), write(1, 11, 0)]),
        committed(2, 0, 10, [first(1), write(1, 12, 11)]),
        committed(3, 0, 10, [read(1, 3, 12, 11)]),
    ];
    rejected(late, Anomaly::LostUpdate, Adya::Finds("lost-update"));
}

#[test]
fn write_skew() {
    let skewed = [
        committed(1, 0, 10, [first(1), first(2), write(1, 11, 0)]),
        committed(2, 0, 10, [first(1), first(2), write(2, 12, 0)]),
    ];
    rejected(skewed, Anomaly::WriteSkew, Adya::Finds("G2-item"));
    // Two readers that saw two independent writes in different orders.
    let long_fork = [
        committed(1, 0, 10, [first(1), write(1, 11, 0)]),
        committed(2, 0, 10, [first(2), write(2, 12, 0)]),
        committed(3, 0, 10, [read(1, 2, 11, 0), first(2)]),
        committed(4, 0, 10, [first(1), read(2, 2, 12, 0)]),
    ];
    rejected(long_fork, Anomaly::WriteSkew, Adya::Finds("G-nonadjacent"));
}

#[test]
fn circular_information_flow() {
    let circle = [
        committed(1, 0, 10, [first(1), write(1, 11, 0), read(2, 2, 12, 0)]),
        committed(2, 0, 10, [first(2), write(2, 12, 0), read(1, 2, 11, 0)]),
    ];
    rejected(circle, Anomaly::CircularInformationFlow, Adya::Finds("G1c"));
}

#[test]
fn write_cycle() {
    let cycle = [
        committed(1, 0, 10, [write(1, 11, 0), write(2, 21, 22)]),
        committed(2, 0, 10, [write(2, 22, 0), write(1, 12, 11)]),
        committed(3, 0, 10, [read(1, 3, 12, 11)]),
        committed(4, 0, 10, [read(2, 3, 21, 22)]),
    ];
    rejected(cycle, Anomaly::WriteCycle, Adya::Finds("G0"));
}

#[test]
fn aborted_read() {
    let seen = [
        aborted(1, 0, 10, [first(1), write(1, 11, 0)]),
        committed(2, 0, 10, [read(1, 2, 11, 0)]),
    ];
    rejected(seen, Anomaly::AbortedRead, Adya::Finds("G1a"));
    let replaced = [
        aborted(1, 0, 10, [first(1), write(1, 11, 0)]),
        committed(2, 0, 10, [read(1, 2, 11, 0), write(1, 12, 11)]),
        committed(3, 20, 30, [read(1, 3, 12, 11)]),
    ];
    rejected(replaced, Anomaly::AbortedRead, Adya::Finds("G1a"));
}

#[test]
fn intermediate_read() {
    let halfway = [
        committed(1, 0, 10, [first(1), write(1, 11, 0), write(1, 12, 11)]),
        committed(2, 0, 10, [read(1, 2, 11, 0)]),
    ];
    rejected(halfway, Anomaly::IntermediateRead, Adya::Finds("G1b"));
}

#[test]
fn stale_read() {
    let wrote = committed(1, 0, 10, [first(1), write(1, 11, 0)]);
    let late = [wrote.clone(), committed(2, 11, 20, [first(1)])];
    rejected(late, Anomaly::StaleRead, Adya::Finds("realtime"));
    // After one transaction has read the new value, no later one may read the old value, although the write is still
    // under way.
    let back = [
        committed(1, 0, 100, [first(1), write(1, 11, 0)]),
        committed(2, 10, 20, [read(1, 2, 11, 0)]),
        committed(3, 30, 40, [first(1)]),
    ];
    rejected(back, Anomaly::StaleRead, Adya::Finds("realtime"));
    let text =
        check(&history([wrote, committed(2, 11, 20, [first(1)])])).expect_err("the read is stale");
    let expected = "a cycle of 2\n  \
        T1 = client 2, 11 to 20: read 1: 0 (version 1, after 0);\n  \
        T0 = client 1, 0 to 10: read 1: 0 (version 1, after 0); write 1: 11 after 0;\n  \
        T1 -rw-> T0: T1 read the initial value of object 1 (version 1), which T0 replaced by write 11 of object 1\n  \
        T0 -rt-> T1: T0 ended at 10, before T1 began at 11";
    let mut lines: Vec<&str> = expected.lines().collect();
    lines.sort_unstable();
    let mut found: Vec<&str> = text.text.lines().collect();
    found.sort_unstable();
    assert_eq!(found, lines);
}

#[test]
fn a_read_of_a_later_write_is_rejected() {
    let before = [
        committed(1, 0, 10, [read(1, 2, 11, 0)]),
        committed(2, 20, 30, [first(1), write(1, 11, 0)]),
    ];
    rejected(before, Anomaly::StaleRead, Adya::Finds("G1c-realtime"));
}

#[test]
fn fractured_read() {
    let both = committed(
        1,
        0,
        10,
        [first(1), first(2), write(1, 11, 0), write(2, 21, 0)],
    );
    let part = [
        both.clone(),
        committed(2, 0, 10, [read(1, 2, 11, 0), first(2)]),
    ];
    rejected(part, Anomaly::FracturedRead, Adya::Finds("G-single"));
    let twice = [
        committed(1, 0, 10, [first(1), write(1, 11, 0)]),
        committed(2, 0, 10, [first(1), read(1, 2, 11, 0)]),
    ];
    // `adya` does not treat a read that changes within a transaction as an anomaly of the graph.
    rejected(twice, Anomaly::FracturedRead, Adya::Finds("internal"));
}

#[test]
fn read_skew() {
    let skewed = [
        committed(
            1,
            0,
            10,
            [first(1), first(2), write(1, 11, 0), write(2, 21, 0)],
        ),
        committed(2, 0, 10, [read(1, 2, 11, 0), first(3), write(3, 31, 0)]),
        committed(3, 0, 10, [first(2), read(3, 2, 31, 0)]),
    ];
    rejected(skewed, Anomaly::ReadSkew, Adya::Finds("G-single"));
}

#[test]
fn duplicate_version() {
    let one_number = [
        committed(1, 0, 10, [first(1), write(1, 11, 0)]),
        committed(2, 20, 30, [read(1, 2, 11, 0), write(1, 12, 11)]),
        committed(3, 40, 50, [read(1, 2, 12, 11)]),
    ];
    rejected(one_number, Anomaly::DuplicateVersion, Adya::FindsNothing);
    let two_numbers = [
        committed(1, 0, 10, [first(1), write(1, 11, 0)]),
        committed(2, 20, 30, [read(1, 2, 11, 0)]),
        committed(2, 40, 50, [read(1, 3, 11, 0)]),
    ];
    rejected(two_numbers, Anomaly::DuplicateVersion, Adya::FindsNothing);
    let two_writers = [
        committed(1, 0, 10, [first(1), write(1, 11, 0)]),
        committed(2, 20, 30, [first(1), write(1, 11, 0)]),
    ];
    rejected(
        two_writers,
        Anomaly::DuplicateVersion,
        Adya::Finds("made twice"),
    );
}

#[test]
fn incompatible_order() {
    let falling = [
        committed(1, 0, 10, [read(1, 5, 0, 0), write(1, 11, 0)]),
        committed(2, 20, 30, [read(1, 4, 11, 0)]),
    ];
    rejected(falling, Anomaly::IncompatibleOrder, Adya::FindsNothing);
    let two_parents = [
        committed(1, 0, 10, [first(1), write(1, 11, 0)]),
        committed(2, 20, 30, [read(1, 2, 11, 0), write(1, 12, 11)]),
        committed(3, 40, 50, [read(1, 3, 12, 0)]),
        committed(3, 60, 70, [read(1, 2, 11, 0)]),
    ];
    let expected = Adya::Finds("incompatible-order");
    rejected(two_parents, Anomaly::IncompatibleOrder, expected);
    let circle = [
        committed(1, 0, 10, [write(1, 11, 12)]),
        committed(2, 0, 10, [write(1, 12, 11), read(1, 2, 12, 11)]),
    ];
    rejected(
        circle,
        Anomaly::IncompatibleOrder,
        Adya::Finds("led to itself"),
    );
    let before_the_first = [committed(1, 0, 10, [read(1, 1, 0, 11)])];
    rejected(
        before_the_first,
        Anomaly::IncompatibleOrder,
        Adya::FindsNothing,
    );
}

#[test]
fn unknown_value() {
    let unwritten = [committed(1, 0, 10, [read(1, 2, 11, 0)])];
    rejected(unwritten, Anomaly::UnknownValue, Adya::FindsNothing);
    let of_another = [
        committed(1, 0, 10, [first(1), write(1, 11, 0)]),
        committed(2, 20, 30, [read(2, 2, 11, 0)]),
        unknown(3, 0, []),
    ];
    rejected(of_another, Anomaly::UnknownValue, Adya::FindsNothing);
}

#[test]
fn internal_inconsistency() {
    let future = [committed(1, 0, 10, [read(1, 2, 11, 0), write(1, 11, 0)])];
    rejected(future, Anomaly::Internal, Adya::Finds("future-read"));
    let forgot = [committed(1, 0, 10, [first(1), write(1, 11, 0), first(1)])];
    rejected(forgot, Anomaly::Internal, Adya::Finds("internal"));
}

#[test]
fn violations_of_the_workload() {
    let torn = History {
        violations: vec!["object 7 was torn: lines of writes 3 and 4".into()],
        ..History::default()
    };
    let finding = check(&torn).expect_err("the history is wrong");
    assert_eq!(finding.kind, Anomaly::Violation);
    assert!(finding.text.contains("object 7 was torn"), "{finding}");
    let turned = history([committed(1, 10, 0, [])]);
    assert_eq!(
        check(&turned).expect_err("the history is wrong").kind,
        Anomaly::Violation
    );
    assert!(append::judge(&turned).is_err());
}

#[test]
fn correct_histories_are_accepted() {
    accepted([]);
    accepted([committed(1, 0, 10, [first(1), first(2)])]);
    accepted([
        committed(1, 0, 10, [first(1), write(1, 11, 0)]),
        committed(2, 20, 30, [read(1, 2, 11, 0), write(1, 12, 11)]),
        committed(1, 40, 50, [read(1, 3, 12, 11)]),
    ]);
    // Version numbers may have gaps, and a transaction may read its own write.
    accepted([
        committed(
            1,
            0,
            10,
            [read(1, 7, 0, 0), write(1, 11, 0), read(1, 9, 11, 0)],
        ),
        committed(2, 20, 30, [read(1, 9, 11, 0)]),
    ]);
    // The reads of an aborted transaction need not be consistent.
    accepted([
        committed(
            1,
            0,
            10,
            [first(1), first(2), write(1, 11, 0), write(2, 21, 0)],
        ),
        aborted(2, 0, 10, [read(1, 2, 11, 0), first(2), write(2, 22, 0)]),
        committed(3, 20, 30, [read(2, 2, 21, 0)]),
    ]);
}

#[test]
fn equal_moments_order_nothing() {
    accepted([
        committed(1, 0, 10, [first(1), write(1, 11, 0)]),
        committed(2, 10, 20, [first(1)]),
    ]);
    // Not even for the operations of one client, or for operations that take no time.
    accepted([
        committed(1, 5, 5, [read(1, 2, 11, 0)]),
        committed(1, 5, 5, [first(1), write(1, 11, 0)]),
        committed(1, 5, 5, [first(1)]),
    ]);
}
