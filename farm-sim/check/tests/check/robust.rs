//! Transactions of unknown outcome, and transactions that the history does not list.

use farm_check::checkers::{Anomaly, append, check};

use crate::histories::{aborted, committed, first, history, read, unknown, write};

#[test]
fn a_transaction_of_unknown_outcome_counts_once_its_write_was_read() {
    let unseen = unknown(1, 0, [first(1), first(2), write(1, 11, 0)]);
    let others = [
        committed(2, 0, 10, [first(2), write(2, 22, 0)]),
        committed(3, 20, 30, [first(1), read(2, 2, 22, 0)]),
    ];
    let mut all = history(others);
    all.transactions.push(unseen);
    let facts = check(&all).expect("no transaction read its write");
    assert_eq!((facts.transactions, facts.committed), (3, 2));
    assert_eq!((facts.reads, facts.writes), (3, 1));
    assert_eq!(append::judge(&all), Ok(()));
    // It took effect after the second transaction, which replaced a value that it had read.
    all.transactions
        .push(committed(3, 40, 50, [read(1, 2, 11, 0)]));
    let finding = check(&all).expect_err("it saw the old value of object 2");
    assert_eq!(finding.kind, Anomaly::WriteSkew, "{finding}");
    assert!(append::judge(&all).is_err());
}

#[test]
fn a_read_makes_a_chain_of_unknown_outcomes_effective() {
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
fn an_unlisted_write_belongs_to_a_transaction_of_unknown_outcome() {
    // Client 1 wrote object 2, and was lost before it could record the write.
    let mut all = history([
        unknown(1, 100, []),
        committed(2, 110, 120, [read(2, 2, 21, 0), write(2, 22, 21)]),
        committed(3, 130, 140, [read(2, 3, 22, 21)]),
    ]);
    let facts = check(&all).expect("client 1 may have written it");
    assert_eq!((facts.committed, facts.writes), (2, 1));
    assert_eq!(append::judge(&all), Ok(()));
    // The old value must not be read again either.
    all.transactions.push(committed(3, 150, 160, [first(2)]));
    let finding = check(&all).expect_err("the first value of object 2 was replaced");
    assert_eq!(finding.kind, Anomaly::StaleRead, "{finding}");
    // The write that it replaced took effect, too.
    let both = history([
        unknown(1, 0, [first(1), write(1, 11, 0)]),
        unknown(2, 0, []),
        committed(3, 0, 10, [read(1, 3, 12, 11)]),
    ]);
    assert_eq!(check(&both).map(|facts| facts.committed), Ok(2));
    // The value must not exist before a transaction began that may have written it.
    let early = history([
        unknown(1, 100, []),
        committed(2, 10, 20, [read(2, 2, 21, 0)]),
    ]);
    let finding = check(&early).expect_err("no transaction had begun that may have written it");
    assert_eq!(finding.kind, Anomaly::StaleRead, "{finding}");
    // A transaction of unknown outcome that lists an access has listed all of them.
    let listed = history([
        unknown(1, 0, [first(1), write(1, 11, 0)]),
        committed(2, 10, 20, [read(2, 2, 21, 0)]),
    ]);
    let finding = check(&listed).expect_err("no transaction wrote it");
    assert_eq!(finding.kind, Anomaly::UnknownValue, "{finding}");
}

#[test]
fn a_broken_chain_is_an_error_for_adya_only() {
    let broken = [
        unknown(1, 0, []),
        unknown(2, 0, []),
        committed(3, 0, 10, [read(1, 3, 12, 11)]),
        committed(4, 0, 10, [first(1)]),
    ];
    let mut all = history(broken);
    assert!(check(&all).is_ok());
    let text = append::judge(&all).expect_err("the write that write 11 replaced is unknown");
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
fn json_lines_have_the_format_that_adya_reads() {
    let all = history([
        committed(1, 0, 10, [first(1), write(1, 11, 0)]),
        unknown(2, 5, [first(7), write(7, 71, 0)]),
        committed(2, 10, 20, [read(1, 2, 11, 0)]),
        aborted(1, 30, 40, [read(1, 2, 11, 0), write(1, 12, 11)]),
        unknown(1, 50, [read(1, 2, 11, 0), write(1, 13, 11)]),
        committed(3, 60, 70, [read(1, 3, 13, 11)]),
    ]);
    let lines = append::to_json_lines(&all).expect("no chain is broken");
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
    // The order of keys depends on the features with which the build enables serde_json.
    for (line, expected) in short.lines().zip(expected.trim_start().lines()) {
        let parsed: serde_json::Value = serde_json::from_str(line).expect("the line is JSON");
        let expected: serde_json::Value = serde_json::from_str(expected).expect("the line is JSON");
        assert_eq!(parsed, expected);
    }
    assert_eq!(lines.lines().count(), 12);
    let parsed = adya::History::parse(&lines).expect("adya reads its own format");
    let options = adya::Opts::default();
    let report = adya::check(&parsed, adya::Workload::ListAppend, &options);
    assert_eq!(report.valid, adya::Valid::True, "{:?}", report.anomalies);
}
