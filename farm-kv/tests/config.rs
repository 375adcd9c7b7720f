//! The section `[table]`: its values, and the refusal of invalid ones.

use std::fs;
use std::path::Path;

use farm_core::config::{Config, Place, ProblemKind, rounded_size};
use farm_core::ids::MachineId;
use farm_core::machine::Sizing;
use farm_kv::config::{self, TableConfig};

/// Returns text with one machine, followed by `rest` from line 3 on.
fn with_machine(rest: &str) -> String {
    format!("[[machine]]\nid = 1\n{rest}")
}

/// Asserts that `text` has one problem, of this kind, at this line and key, and that its message
/// contains these words.
#[track_caller]
fn refused(text: &str, kind: ProblemKind, line: usize, key: &str, words: &[&str]) {
    let error = config::from_str(text, "x.toml").expect_err(text);
    let [problem] = error.problems() else {
        panic!("{error}");
    };
    let place = Place::File {
        name: "x.toml".to_owned(),
        line,
    };
    assert_eq!(
        (problem.kind, &problem.place, problem.key.as_str()),
        (kind, &place, key)
    );
    let text = problem.to_string();
    for word in words {
        assert!(text.contains(word), "{word:?} is missing in {text:?}");
    }
}

#[test]
fn the_defaults_are_those_of_the_section() {
    let config = config::from_str("[[machine]]\nid = 1", "x.toml").expect("a valid configuration");
    let mut expected = config::default_for(1, 1);
    expected.durability.mode = None;
    assert_eq!(config, expected);
    expected = Config::default_for(1, 1);
    expected.durability.mode = None;
    assert_ne!(config, expected);
    assert_eq!(TableConfig::of(&config), TableConfig::default());
    let table = TableConfig::of(&config);
    assert_eq!((table.key_bytes, table.value_bytes), (16, 32));
}

#[test]
fn a_configuration_without_the_section_refuses_it() {
    let text = with_machine("[table]\nneighbourhood = 6\n");
    let error = Config::from_str(&text, "x.toml").expect_err("no such section");
    assert!(
        error.to_string().contains("there is no such section"),
        "{error}"
    );
}

#[test]
fn values_of_the_wrong_type_are_refused() {
    for (line, key, words) in [
        (
            "table.occupancy = \"0.9\"",
            "table.occupancy",
            ["the text \"0.9\"", "a number"],
        ),
        (
            "table.neighbourhood = [6]",
            "table.neighbourhood",
            ["a list", "2, 4, 6, 8 or 12"],
        ),
    ] {
        let text = format!("{line}\n[[machine]]\nid = 1\n");
        refused(&text, ProblemKind::WrongType, 1, key, &words);
    }
}

#[test]
fn unknown_and_misplaced_keys_get_a_suggestion() {
    let kind = ProblemKind::UnknownKey;
    let sections =
        "machine, cluster, memory, rings, worker, transactions, durability, table or rdma";
    for (rest, key, words) in [
        ("[tabel]\n", "tabel", ["did you mean [table]?", sections]),
        (
            "[table]\nvalue_bites = 5\n",
            "table.value_bites",
            [
                "did you mean \"value_bytes\"?",
                "neighbourhood, occupancy, key_bytes, value_bytes or shards_per_worker",
            ],
        ),
        (
            "[memory]\noccupancy = 0.5\n",
            "memory.occupancy",
            ["move the key below [table]", "huge_pages"],
        ),
    ] {
        let line = 2 + rest.lines().count();
        refused(&with_machine(rest), kind, line, key, &words);
    }
    let mut config = config::default_for(1, 1);
    let error = config.set("neighbourhood", "8").expect_err("no section");
    let near = "did you mean \"table.neighbourhood\"?";
    assert!(error.to_string().contains(near), "{error}");
}

#[test]
fn all_problems_are_reported_at_once_in_file_order() {
    let text = "[worker]\nspin_us = \"a\"\n[[machine]]\nid = 1\nworkers = 99\n[table]\nvalu = 1\n\
                neighbourhood = 5\n";
    let error = config::from_str(text, "x.toml").expect_err("four problems");
    let lines: Vec<Place> = error.problems().iter().map(|p| p.place.clone()).collect();
    let expected = [2, 5, 7, 8].map(|line| Place::File {
        name: "x.toml".to_owned(),
        line,
    });
    assert_eq!(lines, expected);
}

#[test]
fn flags_override_keys_and_are_named_in_errors() {
    let mut config = config::default_for(3, 1);
    let mut set = |value: &str| {
        config
            .set_by("--neighbourhood", "table.neighbourhood", value)
            .expect("a number");
        config.clone()
    };
    let valid = set("8");
    valid.validate().expect("all values fit together");
    assert_eq!(TableConfig::of(&valid).neighbourhood, 8);
    let text = set("7")
        .validate()
        .expect_err("no such neighbourhood")
        .to_string();
    assert!(
        text.starts_with("--neighbourhood: table.neighbourhood: no layout of buckets exists for the neighbourhood 7"),
        "{text}"
    );
}

/// The digest of a configuration of two machines, as other machines compute it.
const DIGEST_OF_TWO: u64 = 7_576_505_015_264_748_431;

#[test]
fn machines_compare_the_section() {
    let config = config::default_for(2, 1);
    assert_eq!(config.digest(), DIGEST_OF_TWO);
    assert_ne!(config.digest(), Config::default_for(2, 1).digest());
    let mut other = config.clone();
    other.set("table.occupancy", "0.8").expect("a valid number");
    assert_ne!(other.digest(), config.digest());
    assert_ne!(other, config);
}

#[test]
fn the_section_has_its_place_in_the_json_form() {
    let json = serde_json::to_string(&config::default_for(1, 2)).expect("JSON");
    let table = "\"table\":{\"neighbourhood\":6,\"occupancy\":0.9,\"key_bytes\":16,\"value_bytes\":32,\
                 \"shards_per_worker\":1},\"rdma\":{";
    assert!(json.contains(table), "{json}");
}

#[test]
fn a_configuration_written_out_reads_back() {
    let mut config = config::default_for(2, 3);
    config
        .set("table.occupancy", "0.85")
        .expect("a valid number");
    let text = config.to_toml();
    assert_eq!(config::from_str(&text, "x.toml").expect(&text), config);
}

#[test]
fn fuzz_corpus_inputs_are_refused_or_read_back() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/config");
    let mut accepted = 0;
    for entry in fs::read_dir(&dir).expect("the corpus") {
        let path = entry.expect("an entry").path();
        let bytes = fs::read(&path).expect("an input");
        match config::from_str(&String::from_utf8_lossy(&bytes), "x.toml") {
            Ok(accepted_one) => {
                let again = config::from_str(&accepted_one.to_toml(), "x.toml");
                assert_eq!(
                    again.expect("the accepted configuration reads back"),
                    accepted_one,
                    "{path:?}"
                );
                accepted += 1;
            }
            Err(error) => assert!(!error.problems().is_empty(), "{path:?}"),
        }
    }
    assert!(accepted > 0, "the fuzz corpus has no accepted input");
}

#[test]
fn a_pair_too_large_for_a_message_or_an_object_is_refused() {
    let kind = ProblemKind::Inconsistent;
    let text = with_machine("[table]\nvalue_bytes = \"100KiB\"\n");
    refused(
        &text,
        kind,
        4,
        "table.value_bytes",
        &["more than rings.max_message_bytes", "raise"],
    );
    let rings = "[rings]\nring_bytes = \"16MiB\"\nmax_message_bytes = \"1MiB\"\n";
    let text = with_machine(&format!("[table]\nvalue_bytes = \"600KiB\"\n{rings}"));
    refused(
        &text,
        kind,
        4,
        "table.value_bytes",
        &["a bucket of 3 pairs", "1048576"],
    );
    let text = format!("[table]\nneighbourhood = 2\nvalue_bytes = \"960KiB\"\n{rings}");
    config::from_str(&with_machine(&text), "x.toml").expect("the largest pair fits");
}

#[test]
fn impossible_tables_are_refused() {
    let range = ProblemKind::OutOfRange;
    for (line, kind, key, word) in [
        (
            "neighbourhood = 7",
            range,
            "table.neighbourhood",
            "2, 4, 6, 8 or 12",
        ),
        (
            "neighbourhood = 100",
            range,
            "table.neighbourhood",
            "write 12",
        ),
        ("occupancy = 0.0", range, "table.occupancy", "above 0"),
        ("occupancy = 1.5", range, "table.occupancy", "at most 1"),
        ("occupancy = nan", range, "table.occupancy", "at most 1"),
        (
            "shards_per_worker = 0",
            range,
            "table.shards_per_worker",
            "between 1 and 64",
        ),
        (
            "key_bytes = 0",
            ProblemKind::ImpossibleSize,
            "table.key_bytes",
            "between 1 and 256",
        ),
        (
            "key_bytes = 257",
            ProblemKind::ImpossibleSize,
            "table.key_bytes",
            "write 256 or less",
        ),
        (
            "value_bytes = 0",
            ProblemKind::ImpossibleSize,
            "table.value_bytes",
            "write 1 or more",
        ),
        (
            "value_bytes = \"1MiB\"",
            ProblemKind::ImpossibleSize,
            "table.value_bytes",
            "960KiB",
        ),
    ] {
        let text = with_machine(&format!("[table]\n{line}\n"));
        refused(&text, kind, 4, key, &[word]);
    }
}

/// Asserts that the table of docs/SIZING.md equals the computed values.
#[test]
fn the_table_of_the_documentation_is_computed() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/SIZING.md");
    let text = std::fs::read_to_string(path).unwrap();
    let mut missing = Vec::new();
    for (machines, workers, ring, log) in [
        (3, 1, 1 << 20, 8 << 20),
        (10, 4, 1 << 20, 8 << 20),
        (20, 16, 1 << 20, 8 << 20),
        (100, 30, 1 << 20, 8 << 20),
        (100, 30, 128 << 10, 512 << 10),
        (1000, 30, 32 << 10, 64 << 10),
    ] {
        let mut config = config::default_for(machines, workers);
        (config.rings.ring_bytes, config.rings.log_bytes) = (ring, log);
        let sizing = Sizing::of(&config, MachineId::new(1).unwrap()).unwrap();
        let row = format!(
            "| {machines} | {workers} | {} | {} | {} | {} | {} | {} | {:.1} µs |",
            rounded_size(ring),
            rounded_size(log),
            rounded_size(sizing.ring_bytes),
            rounded_size(sizing.log_bytes),
            rounded_size(sizing.arena_bytes),
            sizing.polled,
            sizing.idle_turn_us(),
        );
        if !text.contains(&row) {
            missing.push(row);
        }
    }
    assert!(
        missing.is_empty(),
        "docs/SIZING.md lacks these rows:\n{}",
        missing.join("\n")
    );
}
