//! Unknown keys, values of the wrong type, text that is not TOML, and several problems at once.

use super::*;

#[test]
fn an_unknown_key_gets_file_line_and_suggestion() {
    let text = with_machine("[memory]\ndir = \"/dev/shm\"\nregoin_bytes = \"2GiB\"\n");
    let kind = ProblemKind::UnknownKey;
    refused(
        &text,
        kind,
        5,
        "memory.regoin_bytes",
        &["x.toml:5", "did you mean \"region_bytes\"?"],
    );
}

#[test]
fn an_unknown_key_of_a_machine_gets_a_suggestion() {
    let text = "[[machine]]\nid = 1\nworker = 2\n";
    refused(
        text,
        ProblemKind::UnknownKey,
        3,
        "machine.worker",
        &["did you mean \"workers\"?"],
    );
}

#[test]
fn a_key_in_the_wrong_section_gets_its_section_as_advice() {
    let text = with_machine("[cluster]\nring_bytes = \"1MiB\"\n");
    refused(
        &text,
        ProblemKind::UnknownKey,
        4,
        "cluster.ring_bytes",
        &["move the key below [rings]"],
    );
    let text = "ring_bytes = \"1MiB\"\n[[machine]]\nid = 1\n";
    refused(
        text,
        ProblemKind::UnknownKey,
        1,
        "ring_bytes",
        &["move the key below [rings]"],
    );
}

#[test]
fn an_unknown_section_gets_a_suggestion() {
    let text = with_machine("[memroy]\n");
    refused(
        &text,
        ProblemKind::UnknownKey,
        3,
        "memroy",
        &["did you mean [memory]?"],
    );
    refused(
        "[[machines]]\nid = 1\n",
        ProblemKind::UnknownKey,
        1,
        "machines",
        &["[[machine]]?"],
    );
}

#[test]
fn values_of_the_wrong_type_are_refused() {
    for (line, key, words) in [
        (
            "cluster.name = 5",
            "cluster.name",
            ["the whole number 5", "a-z"],
        ),
        (
            "memory.region_bytes = true",
            "memory.region_bytes",
            ["true", "a size"],
        ),
        (
            "memory.region_bytes = 2.5",
            "memory.region_bytes",
            ["the number 2.5", "a size"],
        ),
        (
            "memory.region_bytes = \"2G\"",
            "memory.region_bytes",
            ["mean GiB?", "\"256MiB\""],
        ),
        (
            "worker.pin = \"yes\"",
            "worker.pin",
            ["the text \"yes\"", "true or false"],
        ),
        (
            "worker.spin_us = \"20\"",
            "worker.spin_us",
            ["the text \"20\"", "microseconds"],
        ),
        (
            "rings.checksums = [true]",
            "rings.checksums",
            ["a list", "true or false"],
        ),
        (
            "memory.dir = { a = 1 }",
            "memory.dir",
            ["a table", "absolute path"],
        ),
        (
            "memory.dir = 2024-01-01",
            "memory.dir",
            ["a date", "absolute path"],
        ),
    ] {
        let text = format!("{line}\n[[machine]]\nid = 1\n");
        refused(&text, ProblemKind::WrongType, 1, key, &words);
    }
    let text = "[[machine]]\nid = 1\ncores = 3\n";
    refused(
        text,
        ProblemKind::WrongType,
        3,
        "machine.cores",
        &["a list of different numbers"],
    );
    let text = "[[machine]]\nid = \"one\"\n";
    refused(
        text,
        ProblemKind::WrongType,
        2,
        "machine.id",
        &["between 1 and 1023"],
    );
}

#[test]
fn unknown_words_are_refused() {
    for (line, key, word) in [
        (
            "cluster.fabric = \"verb\"",
            "cluster.fabric",
            "did you mean \"verbs\"?",
        ),
        (
            "memory.huge_pages = \"tyr\"",
            "memory.huge_pages",
            "did you mean \"try\"?",
        ),
        (
            "worker.idle = \"sleep\"",
            "worker.idle",
            "\"auto\", \"spin\" or \"park\"",
        ),
    ] {
        let text = format!("{line}\n[[machine]]\nid = 1\n");
        refused(&text, ProblemKind::OutOfRange, 1, key, &[word]);
    }
}

#[test]
fn numbers_beyond_the_type_are_out_of_range() {
    let text = with_machine("[worker]\nspin_us = -1\n");
    refused(
        &text,
        ProblemKind::OutOfRange,
        4,
        "worker.spin_us",
        &["-1", "between 0 and 1000000"],
    );
    let text = with_machine("[worker]\nspin_us = 99999999999999999999999999999999999999999999\n");
    refused(
        &text,
        ProblemKind::OutOfRange,
        4,
        "worker.spin_us",
        &["between 0 and 1000000"],
    );
}

#[test]
fn text_that_is_not_toml_is_refused_at_its_line() {
    let text = with_machine("[memory]\nregion_bytes = 256MiB\n");
    let found = &problems(&text)[0];
    assert_eq!(found.kind, ProblemKind::Syntax);
    assert_eq!(
        found.place,
        Place::File {
            name: "x.toml".to_owned(),
            line: 4
        }
    );
    assert!(found.advice.contains("in quotes"), "{found}");
}

#[test]
fn a_key_given_twice_is_refused_at_the_second() {
    let text = with_machine("[memory]\nblock_bytes = \"1MiB\"\nblock_bytes = \"2MiB\"\n");
    refused(&text, ProblemKind::Syntax, 5, "", &["duplicate key"]);
}

#[test]
fn sections_and_lists_are_distinguished() {
    let kind = ProblemKind::WrongType;
    refused("[machine]\nid = 1\n", kind, 1, "machine", &["two brackets"]);
    refused(
        "machine = 3\n",
        kind,
        1,
        "machine",
        &["the whole number 3", "[[machine]]"],
    );
    refused(
        "machine = [1]\n",
        kind,
        1,
        "machine",
        &["the whole number 1", "[[machine]]"],
    );
    let text = "memory = \"1GiB\"\n[[machine]]\nid = 1\n";
    refused(text, kind, 1, "memory", &["a section [memory]"]);
}

#[test]
fn all_problems_are_reported_at_once_in_file_order() {
    let text = "[worker]\nspin_us = \"a\"\n[[machine]]\nid = 1\nworkers = 99\n[rings]\nring_byte = 1\n\
                log_bytes = 5\n";
    let error = Config::from_str(text, "x.toml").expect_err("four problems");
    let lines: Vec<Place> = error.problems().iter().map(|p| p.place.clone()).collect();
    let expected = [2, 5, 7, 8].map(|line| Place::File {
        name: "x.toml".to_owned(),
        line,
    });
    assert_eq!(lines, expected);
    assert!(
        error
            .to_string()
            .starts_with("4 problems in x.toml:\n  x.toml:2: worker.spin_us: ")
    );
}

#[test]
fn consequences_of_another_problem_are_not_reported() {
    // With region_bytes at its default, per_machine_bytes would not be a multiple of it.
    let rest = "per_machine_bytes = \"512MiB\"\n";
    let text = with_machine(&format!("[memory]\nregion_bytes = \"256\"\n{rest}"));
    assert!(
        problems(&text)
            .iter()
            .all(|problem| problem.key != "memory.per_machine_bytes")
    );
    let text = with_machine(&format!("[memory]\nregoin_bytes = \"256MiB\"\n{rest}"));
    refused(
        &text,
        ProblemKind::UnknownKey,
        4,
        "memory.regoin_bytes",
        &[],
    );
    let text = with_machine(&format!("[memory]\nregion_bytes = true\n{rest}"));
    refused(&text, ProblemKind::WrongType, 4, "memory.region_bytes", &[]);
}

#[test]
fn at_most_20_problems_are_listed() {
    let text: String = (0..100).map(|n| format!("nonsense{n} = 1\n")).collect();
    let error = Config::from_str(&text, "x.toml").expect_err("nonsense");
    assert!(error.to_string().ends_with("\n  and 80 more"), "{error}");
}
