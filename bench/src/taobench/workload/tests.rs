use super::*;

fn published(which: Published) -> Workload {
    Workload::parse("x.json", which.text().as_bytes()).unwrap()
}

fn share<T: Copy + PartialEq>(choice: &Choice<T>, value: T) -> f64 {
    let mut shares = choice.shares();
    shares.find(|(it, _)| *it == value).unwrap().1
}

fn near(value: f64, wanted: f64) {
    assert!((value - wanted).abs() < 1e-9, "{value} is not {wanted}");
}

#[test]
fn the_published_files_have_the_known_shares() {
    let a = published(Published::Applications);
    near(share(&a.operations, Operation::Read), 171.0 / 244.0);
    near(share(&a.operations, Operation::WriteTxn), 1.0 / 244.0);
    near(share(&a.reads, Kind::EdgeRange), 376.0 / 958.0);
    near(share(&a.writes, Kind::EdgeUpdate), 380.0 / 715.0);
    near(share(&a.edge_types, EdgeType::Unique), 0.052);
    let o = published(Published::Overall);
    near(share(&o.operations, Operation::Read), 8387.0 / 8649.0);
    near(share(&o.reads, Kind::EdgeCount), 0.0);
    near(share(&o.writes, Kind::EdgeAdd), 1.0 / 616.0);
    for both in [a, o] {
        near(share(&both.reads_of_txns, Kind::EdgePoint), 5.0 / 6.0);
        let shards = [both.primary_shards, both.remote_shards];
        assert!(shards.iter().all(|shards| shards.len() == 50));
        let most = shards.map(|shards| share(&shards, 0));
        assert!(
            (most[0] - 0.578).abs() < 5e-4 && (most[1] - 0.693).abs() < 5e-4,
            "{most:?}"
        );
        let sizes = |choice: &Choice<u64>| {
            let all: Vec<(u64, f64)> = choice.shares().collect();
            let mean: f64 = all.iter().map(|(size, share)| *size as f64 * share).sum();
            let at = |quantile: f64| {
                let mut sum = 0.0;
                let found = all.iter().find(|(_, share)| {
                    sum += share;
                    sum >= quantile
                });
                found.unwrap().0
            };
            let most = all.iter().filter(|(_, share)| *share > 0.0).map(|it| it.0);
            (
                (mean * 1000.0).round() / 1000.0,
                at(0.5),
                at(0.9),
                at(0.99),
                most.max().unwrap(),
            )
        };
        let (mean, p50, p90, p99, most) = sizes(&both.read_txn_sizes);
        assert!((mean - 19.18).abs() < 0.005, "{mean}");
        assert_eq!((p50, p90, p99, most), (4, 49, 241, 500));
        assert_eq!(sizes(&both.write_txn_sizes), (5.298, 4, 7, 26, 103));
    }
}

#[test]
fn wrong_files_are_refused_with_their_line() {
    let good = Published::Applications.text();
    let refused = |text: &[u8], words: &[&str]| {
        let error = Workload::parse("w.json", text).unwrap_err().to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    };
    let changed = |from: &str, to: &str| {
        assert!(good.contains(from));
        good.replacen(from, to, 1)
    };
    refused(b"", &["w.json: ", "\"operations\" is missing", "truncated"]);
    refused(
        &good.as_bytes()[..300],
        &["w.json:2: ", "not a distribution"],
    );
    refused(b"a\n\xff\xfe\n", &["w.json:2: ", "not text"]);
    refused(b"recordcount=1000\n", &["w.json:1: ", "not a distribution"]);
    let names = changed("\"unique\"", "\"uniq\"");
    refused(
        names.as_bytes(),
        &["w.json:4: edge_types: \"uniq\" is not one of"],
    );
    let fewer = changed("[171,57,15,1]", "[171,57,15]");
    refused(fewer.as_bytes(), &["w.json:1: operations: 3 weights"]);
    let negative = changed("[171,57,15,1]", "[171,-57,15,1]");
    refused(
        negative.as_bytes(),
        &["w.json:1: operations: the weight -57"],
    );
    let none = changed("[171,57,15,1]", "[0,0,0,0]");
    refused(none.as_bytes(), &["w.json:1: operations: the weights"]);
    let kinds = changed("\"obj_read\"", "\"obj_add\"");
    refused(
        kinds.as_bytes(),
        &["w.json:5: read_operation_types: \"obj_add\""],
    );
    let twice = format!("{good}\n{}", good.lines().next().unwrap());
    refused(twice.as_bytes(), &["\"operations\" is already on line 1"]);
    let large = changed("[1, 2, 3,", "[1001, 2, 3,");
    refused(
        large.as_bytes(),
        &["w.json:2: write_txn_sizes: 1001 is not one of"],
    );
}
