//! Overriding keys by flags.

use super::*;

#[test]
fn flags_override_keys_and_are_named_in_errors() {
    let mut config = Config::default_for(3, 1);
    config
        .set("memory.region_bytes", "256MiB")
        .expect("a valid size");
    config.set("worker.pin", "false").expect("a valid flag");
    config
        .set("machine.2.workers", "4")
        .expect("a valid number");
    config
        .set("machine.*.cores", "[0, 1]")
        .expect("a valid list");
    config
        .set_by("--in-flight", "worker.operations_in_flight", "8")
        .expect("a valid number");
    config.validate().expect("all values fit together");
    assert_eq!(config.memory.region_bytes, 256 * MIB);
    let in_flight = config.worker.operations_in_flight;
    assert_eq!((config.total_workers(), in_flight), (6, 8));
    assert!(
        config
            .machines
            .iter()
            .all(|machine| machine.cores == [0, 1])
    );

    config
        .set_by("--in-flight", "worker.operations_in_flight", "0")
        .expect("a valid number");
    let said = config
        .validate()
        .expect_err("too few operations")
        .to_string();
    assert!(
        said.starts_with("--in-flight: worker.operations_in_flight: 0 is out of range"),
        "{said}"
    );
    let said = config
        .set("worker.idle", "spni")
        .expect_err("unknown word")
        .to_string();
    assert!(
        said.starts_with("--set: worker.idle: ") && said.contains("\"spin\"?"),
        "{said}"
    );
}

#[test]
fn flags_for_unknown_keys_get_a_suggestion() {
    let mut config = Config::default_for(3, 1);
    for (key, word) in [
        (
            "memory.regionbytes",
            "did you mean \"memory.region_bytes\"?",
        ),
        ("ring_bytes", "did you mean \"rings.ring_bytes\"?"),
        (
            "machine.9.workers",
            "there is no machine 9; expected the id of a machine (1, 2 or 3)",
        ),
        ("machine.1.id", "there is no such key"),
        ("machine.*.worker", "did you mean \"machine.*.workers\"?"),
        ("", "write section and key with a dot between"),
    ] {
        let error = config.set(key, "1").expect_err(key);
        assert_eq!(error.problems()[0].kind, ProblemKind::UnknownKey);
        assert!(error.to_string().contains(word), "{error}");
    }
    assert_eq!(config, Config::default_for(3, 1));
}

#[test]
fn machines_can_be_added_and_removed() {
    let mut config = Config::from_str(
        "[[machine]]\nid = 5\nworkers = 2\n[[machine]]\nid = 1023\nworkers = 3\n",
        "x.toml",
    )
    .expect("a valid configuration");
    config.resize_machines(4);
    let machines: Vec<(u16, u16)> = config
        .machines
        .iter()
        .map(|machine| (machine.id.get(), machine.workers))
        .collect();
    assert_eq!(machines, [(1, 3), (2, 3), (5, 2), (1023, 3)]);
    config.resize_machines(1);
    config.set_workers(9);
    assert_eq!((config.machines.len(), config.total_workers()), (1, 9));
    config.validate().expect("still a valid cluster");
}
