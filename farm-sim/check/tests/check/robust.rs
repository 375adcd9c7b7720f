//! Transactions of unknown outcome, and transactions that nobody lists.

use farm_check::checkers::{Anomaly, append, check};

use crate::histories::{aborted, committed, first, history, read, unknown, write};

#[test]
fn an_unknown_outcome_counts_once_it_was_seen() {
    let unseen = unknown(1, 0, [first(1), first(2), write(1, 11, 0)]);
    let others = [
        committed(2, 0, 10, [first(2), write(2, 22, 0)]),
        committed(3, 20, 30, [first(1), read(2, 2, 22, 0)]),
    ];
    let mut all = history(others);
    all.transactions.push(unseen);
    let facts = check(&all).expect("nobody saw it");
    assert_eq!((facts.transactions, facts.committed), (3, 2));
    assert_eq!((facts.reads, facts.writes), (3, 1));
    assert_eq!(append::judge(&all), Ok(()));
    // It took effect after the second, which replaced what it had read.
    all.transactions
        .push(committed(3, 40, 50, [read(1, 2, 11, 0)]));
    let finding = check(&all).expect_err("it saw the old value of object 2");
    assert_eq!(finding.kind, Anomaly::WriteSkew, "{finding}");
    assert!(append::judge(&all).is_err());
}

#[test]
fn one_unknown_outcome_tells_of_another() {
    let chain = [
        unknown(1, 0, [first(1), write(1, 11, 0)]),
        unknown(2, 0, [read(1, 2, 11, 0), write(1, 12, 11)]),
        unknown(3, 0, [read(1, 3, 12, 11), write(1, 13, 12)]),
        unknown(4, 0, [first(1), write(1, 14, 0)]),
        aborted(5, 0, 5, [first(1), write(1, 15, 0)]),
    ];
    let mut all = history(chain);
    assert_eq!(check(&all).map(|facts| facts.committed), Ok(0));
    all.transactions
        .push(committed(9, 0, 10, [read(1, 4, 13, 12)]));
    assert_eq!(check(&all).map(|facts| facts.committed), Ok(4));
    assert_eq!(append::judge(&all), Ok(()));
    all.transactions.push(committed(9, 20, 30, [first(1)]));
    assert_eq!(check(&all).map_err(|f| f.kind), Err(Anomaly::StaleRead));
    assert!(append::judge(&all).is_err());
}

#[test]
fn a_write_that_is_not_listed_is_of_an_unknown_outcome() {
    // Client 1 wrote object 2, and was gone before it could tell.
    let mut all = history([
        unknown(1, 100, []),
        committed(2, 110, 120, [read(2, 2, 21, 0), write(2, 22, 21)]),
        committed(3, 130, 140, [read(2, 3, 22, 21)]),
    ]);
    let facts = check(&all).expect("it may be so");
    assert_eq!((facts.committed, facts.writes), (2, 1));
    assert_eq!(append::judge(&all), Ok(()));
    // The old value is gone for good all the same.
    all.transactions.push(committed(3, 150, 160, [first(2)]));
    let finding = check(&all).expect_err("the first value of object 2 was replaced");
    assert_eq!(finding.kind, Anomaly::StaleRead, "{finding}");
    // What it replaced took effect as well.
    let both = history([
        unknown(1, 0, [first(1), write(1, 11, 0)]),
        unknown(2, 0, []),
        committed(3, 0, 10, [read(1, 3, 12, 11)]),
    ]);
    assert_eq!(check(&both).map(|facts| facts.committed), Ok(2));
    // Nor was it there before anyone began that may have written it.
    let early = history([
        unknown(1, 100, []),
        committed(2, 10, 20, [read(2, 2, 21, 0)]),
    ]);
    let finding = check(&early).expect_err("nobody was there to write");
    assert_eq!(finding.kind, Anomaly::StaleRead, "{finding}");
    // Who tells what he did has told all of it.
    let told = history([
        unknown(1, 0, [first(1), write(1, 11, 0)]),
        committed(2, 10, 20, [read(2, 2, 21, 0)]),
    ]);
    let finding = check(&told).expect_err("nobody wrote it");
    assert_eq!(finding.kind, Anomaly::UnknownValue, "{finding}");
}

#[test]
fn a_broken_chain_is_an_error_to_others_only() {
    let broken = [
        unknown(1, 0, []),
        unknown(2, 0, []),
        committed(3, 0, 10, [read(1, 3, 12, 11)]),
        committed(4, 0, 10, [first(1)]),
    ];
    let mut all = history(broken);
    assert!(check(&all).is_ok());
    let text = append::judge(&all).expect_err("what came before write 11?");
    assert!(
        text.contains("no access records what write 11 of object 1 replaced"),
        "{text}"
    );
    assert!(append::to_json_lines(&all).is_err());
    all.transactions
        .push(committed(4, 0, 10, [read(1, 3, 13, 0)]));
    assert_eq!(
        check(&all).map_err(|f| f.kind),
        Err(Anomaly::DuplicateVersion)
    );
}

#[test]
fn the_lines_that_others_read() {
    let all = history([
        committed(1, 0, 10, [first(1), write(1, 11, 0)]),
        unknown(2, 5, [first(7), write(7, 71, 0)]),
        committed(2, 10, 20, [read(1, 2, 11, 0)]),
        aborted(1, 30, 40, [read(1, 2, 11, 0), write(1, 12, 11)]),
        unknown(1, 50, [read(1, 2, 11, 0), write(1, 13, 11)]),
        committed(3, 60, 70, [read(1, 3, 13, 11)]),
    ]);
    let lines = append::to_json_lines(&all).expect("chains are whole");
    let short = lines.replace(r#""f":"txn","#, "");
    let expected = r#"
{"index":0,"process":1,"time":0,"type":"invoke","value":[["r",1,null],["append",1,11]]}
{"index":1,"process":2,"time":5,"type":"invoke","value":[["r",7,null],["append",7,71]]}
{"index":2,"process":4,"time":10,"type":"invoke","value":[["r",1,null]]}
{"index":3,"process":1,"time":10,"type":"ok","value":[["r",1,[]],["append",1,11]]}
{"index":4,"process":4,"time":20,"type":"ok","value":[["r",1,[11]]]}
{"index":5,"process":1,"time":30,"type":"invoke","value":[["r",1,null],["append",1,12]]}
{"index":6,"process":1,"time":40,"type":"fail","value":[["r",1,null],["append",1,12]]}
{"index":7,"process":1,"time":50,"type":"invoke","value":[["r",1,null],["append",1,13]]}
{"index":8,"process":3,"time":60,"type":"invoke","value":[["r",1,null]]}
{"index":9,"process":3,"time":70,"type":"ok","value":[["r",1,[11,13]]]}
{"index":10,"process":2,"type":"info","value":[["r",7,null],["append",7,71]]}
{"index":11,"process":1,"type":"ok","value":[["r",1,[11]],["append",1,13]]}
"#;
    // serde_json keeps keys sorted or as given, depending on what else the build needs.
    for (line, expected) in short.lines().zip(expected.trim_start().lines()) {
        let parsed: serde_json::Value = serde_json::from_str(line).expect("it is JSON");
        let expected: serde_json::Value = serde_json::from_str(expected).expect("it is JSON");
        assert_eq!(parsed, expected);
    }
    assert_eq!(lines.lines().count(), 12);
    let parsed = adya::History::parse(&lines).expect("it reads its own format");
    let options = adya::Opts::default();
    let report = adya::check(&parsed, adya::Workload::ListAppend, &options);
    assert_eq!(report.valid, adya::Valid::True, "{:?}", report.anomalies);
}
