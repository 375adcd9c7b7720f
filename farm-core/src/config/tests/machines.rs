//! Machines: none, too many, two with one id, values outside the limits.

use super::*;

#[test]
fn no_machine_is_refused() {
    refused(
        "[worker]\npin = true\n",
        ProblemKind::NoMachines,
        0,
        "machine",
        &["x.toml: "],
    );
    refused(
        "",
        ProblemKind::NoMachines,
        0,
        "machine",
        &["at least one [[machine]] section"],
    );
}

#[test]
fn a_machine_without_id_is_refused() {
    let text = "[[machine]]\nid = 1\n\n[[machine]]\nworkers = 2\n";
    refused(
        text,
        ProblemKind::MissingKey,
        4,
        "machine.id",
        &["has no id"],
    );
}

#[test]
fn two_machines_of_one_id_are_refused_with_both_lines() {
    let text = "[[machine]]\nid = 1\n[[machine]]\nid = 2\n[[machine]]\nid = 1\n";
    let words = ["x.toml:6", "also that of the machine at x.toml:2"];
    refused(text, ProblemKind::DuplicateMachine, 6, "machine.id", &words);
    let mut config = Config::default_for(2, 1);
    config.machines[1].id = config.machines[0].id;
    let error = config.validate().expect_err("two machines with one id");
    assert_eq!(error.problems()[0].kind, ProblemKind::DuplicateMachine);
}

#[test]
fn ids_and_workers_are_within_limits() {
    let kind = ProblemKind::OutOfRange;
    for id in ["0", "1024", "-3", "70000"] {
        let text = format!("[[machine]]\nid = {id}\n");
        refused(&text, kind, 2, "machine.id", &[id, "between 1 and 1023"]);
    }
    for workers in ["0", "65"] {
        let text = format!("[[machine]]\nid = 7\nworkers = {workers}\n");
        refused(
            &text,
            kind,
            3,
            "machine.workers",
            &["machine 7 cannot have", "between 1 and 64"],
        );
    }
    for (cores, what) in [
        ("[4096]", "the core 4096"),
        ("[3, 1, 3]", "the core 3 twice"),
    ] {
        let text = format!("[[machine]]\nid = 7\ncores = {cores}\n");
        refused(&text, kind, 3, "machine.cores", &[what]);
    }
}

#[test]
fn more_machines_than_a_cluster_can_have_are_refused() {
    let limits = Limits {
        max_machines: 2,
        ..Limits::PRODUCTION
    };
    let error = Config::default_for(3, 1)
        .validate_within(&limits)
        .expect_err("one machine too many");
    assert_eq!(error.problems()[0].kind, ProblemKind::TooManyMachines);
    assert!(
        error
            .to_string()
            .contains("there are 3 machines; expected at most 2; remove 1")
    );
    assert!(
        Config::default_for(MAX_MACHINES as u16, 1)
            .validate()
            .is_ok()
    );
}

#[test]
fn machines_are_sorted_by_id() {
    let config = Config::from_str("[[machine]]\nid = 3\n[[machine]]\nid = 1\n", "x.toml");
    let config = config.expect("a valid configuration");
    let ids: Vec<u16> = config
        .machines
        .iter()
        .map(|machine| machine.id.get())
        .collect();
    assert_eq!(ids, [1, 3]);
}
