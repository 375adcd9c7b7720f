//! One test per kind of invalid input, and the properties of valid configurations.

mod flags;
mod keys_and_types;
mod machines;
mod sizes;

use std::fs;

use super::*;
use crate::limits::{GIB, MAX_MACHINES};

/// Returns text with one machine, followed by `rest` from line 3 on.
fn with_machine(rest: &str) -> String {
    format!("[[machine]]\nid = 1\n{rest}")
}

fn problems(text: &str) -> Vec<Problem> {
    Config::from_str(text, "x.toml")
        .expect_err(text)
        .problems()
        .to_vec()
}

/// Returns the only problem of `text`.
fn problem(text: &str) -> Problem {
    let found = problems(text);
    assert_eq!(found.len(), 1, "{found:#?}");
    found.into_iter().next().expect("one problem")
}

/// Asserts that `text` has one problem, of this kind, at this line and key, and that its message
/// contains these words.
#[track_caller]
fn refused(text: &str, kind: ProblemKind, line: usize, key: &str, words: &[&str]) {
    let problem = problem(text);
    let place = Place::File {
        name: "x.toml".to_owned(),
        line,
    };
    assert_eq!(
        (problem.kind, &problem.place, problem.key.as_str()),
        (kind, &place, key)
    );
    let said = problem.to_string();
    for word in words {
        assert!(said.contains(word), "{word:?} is missing in {said:?}");
    }
}

#[test]
fn one_machine_is_enough_and_the_rest_has_defaults() {
    let config = Config::from_str("[[machine]]\nid = 1", "x.toml").expect("a valid configuration");
    let mut expected = Config::default_for(1, 1);
    assert_eq!(expected.durability(), Durability::None);
    expected.durability.mode = None;
    assert_eq!(config, expected);
    assert_eq!(config.memory.region_bytes, 2 * GIB);
    // On RDMA devices nothing survives.
    assert_eq!(config.durability(), Durability::Memory);
    expected.cluster.fabric = Fabric::Verbs;
    assert_eq!(expected.durability(), Durability::None);
}

#[test]
fn a_configuration_written_out_reads_back() {
    let mut config = Config::default_for(2, 3);
    config
        .set("cluster.run_dir", "/run/farm \"1\" '\u{7f}\n")
        .expect("a valid path");
    config
        .set("memory.per_machine_bytes", "6GiB")
        .expect("a valid size");
    config.set("worker.pin", "false").expect("a valid flag");
    config
        .set("machine.2.cores", "[4, 5]")
        .expect("a valid list");
    let text = config.to_toml();
    assert_eq!(Config::from_str(&text, "x.toml").expect(&text), config);
    for key in keys::KEYS {
        assert!(
            text.contains(&format!("\n{} = ", key.name())),
            "{}",
            key.path
        );
    }
}

#[test]
fn unreadable_files_are_reported() {
    let dir = tempfile::tempdir().expect("a directory");
    let error = Config::load(dir.path().join("none.toml")).expect_err("no file");
    let said = error.to_string();
    assert!(
        said.contains("none.toml") && said.contains("--config"),
        "{said}"
    );
    assert!(matches!(
        Config::load(dir.path()),
        Err(ConfigError::Read { .. })
    ));
    let large = dir.path().join("large.toml");
    fs::write(&large, "# \n".repeat(1 << 20)).expect("a file");
    let said = Config::load(&large).expect_err("too large").to_string();
    assert!(said.contains("larger than 1 MiB"), "{said}");
    let binary = dir.path().join("binary.toml");
    fs::write(&binary, b"[memory]\ndir = \"\xff\"\n").expect("a file");
    let error = Config::load(&binary).expect_err("not text");
    assert!(
        error
            .to_string()
            .contains("binary.toml:2: bytes that are not text"),
        "{error}"
    );
}

#[test]
fn the_digest_is_stable() {
    let config = Config::default_for(2, 1);
    assert_eq!(
        config.canonical(),
        "cluster.name = \"farm\"\n\
         cluster.fabric = \"shm\"\n\
         memory.dir = \"/dev/shm\"\n\
         memory.region_bytes = \"2GiB\"\n\
         memory.block_bytes = \"1MiB\"\n\
         memory.per_machine_bytes = \"4GiB\"\n\
         rings.ring_bytes = \"1MiB\"\n\
         rings.max_message_bytes = \"64KiB\"\n\
         rings.log_bytes = \"8MiB\"\n\
         rings.checksums = false\n\
         durability.mode = \"none\"\n\
         durability.replicas = \"auto\"\n\
         durability.dir = \"auto\"\n\
         machine.id = 1\n\
         machine.workers = 1\n\
         machine.memory_bytes = \"auto\"\n\
         machine.rack = \"auto\"\n\
         machine.id = 2\n\
         machine.workers = 1\n\
         machine.memory_bytes = \"auto\"\n\
         machine.rack = \"auto\"\n"
    );
    assert_eq!(config.digest(), DIGEST_OF_TWO);
}

/// Workers on other hosts take no cores of this host.
#[test]
fn machines_of_one_host_are_known_by_their_addresses() {
    let mut config = Config::default_for(3, 2);
    let beside = |config: &Config| -> Vec<u16> {
        let id = config.machines[0].id;
        let beside = config.machines_beside(id);
        beside.map(|machine| machine.id.get()).collect()
    };
    for (key, address) in [
        ("1", "node1:7401"),
        ("2", "node2:7401"),
        ("3", "node1:7403"),
    ] {
        config
            .set(&format!("machine.{key}.address"), address)
            .unwrap();
    }
    assert_eq!(beside(&config), [1, 2, 3], "one host's memory");
    config.set("cluster.fabric", "verbs").unwrap();
    assert_eq!(beside(&config), [1, 3]);
    let config = Config {
        cluster: config.cluster,
        ..Config::default_for(2, 1)
    };
    assert_eq!(beside(&config), [1, 2], "ports of this host");
}

/// The digest of the text above.
const DIGEST_OF_TWO: u64 = 4_847_220_894_367_630_339;

#[test]
fn the_digest_covers_shared_keys_only() {
    let config = Config::default_for(2, 1);
    let with = |key: &str, value: &str| {
        let mut config = config.clone();
        config.set(key, value).expect(key);
        config.digest()
    };
    for (key, value) in [
        ("cluster.name", "other"),
        ("memory.block_bytes", "2MiB"),
        ("rings.ring_bytes", "2MiB"),
        ("rings.checksums", "true"),
        ("durability.mode", "memory"),
        ("durability.replicas", "2"),
        ("durability.dir", "/var/lib/farm"),
        ("machine.2.workers", "2"),
    ] {
        assert_ne!(with(key, value), config.digest(), "{key}");
    }
    for (key, value) in [
        ("cluster.run_dir", "/run/farm"),
        ("worker.idle", "spin"),
        ("transactions.bytes", "32MiB"),
        ("transactions.patience_ms", "5"),
        ("rdma.timeout", "9"),
        ("memory.huge_pages", "off"),
        ("machine.*.cores", "[1]"),
        ("memory.region_bytes", "2048MiB"),
    ] {
        assert_eq!(with(key, value), config.digest(), "{key}");
    }
    // Each key is either in the canonical form or one that a machine may choose.
    let (canonical, own) = (config.canonical(), config.own_keys());
    for line in config
        .to_toml()
        .lines()
        .filter(|line| !line.starts_with('['))
    {
        let name = line.split(' ').next().expect("a line is not empty");
        let is_own = own.iter().any(|key| key.ends_with(&format!(".{name}")));
        let is_shared = canonical.contains(&format!(".{name} = "));
        assert!(is_own || is_shared, "{name}");
    }
    assert!(
        own.iter()
            .all(|key| !canonical.contains(&format!("{key} = ")))
    );
    let mut backwards = config.clone();
    backwards.machines.reverse();
    assert_eq!(backwards.digest(), config.digest());
}

#[test]
fn presets_are_valid_within_their_limits() {
    Config::default_for(3, 2)
        .validate()
        .expect("the default is valid");
    Config::tiny_for(3, 2)
        .validate_within(&Limits::TINY)
        .expect("the tiny preset is valid");
    let error = Config::tiny_for(3, 2)
        .validate()
        .expect_err("too tiny for production");
    let keys: Vec<&str> = error
        .problems()
        .iter()
        .map(|problem| problem.key.as_str())
        .collect();
    assert_eq!(keys, ["memory.block_bytes", "rings.ring_bytes"]);
}

/// More copies than machines, or copies without durability, would be promises that are not kept.
#[test]
fn copies_need_a_mode_and_machines() {
    let refused = |machines, settings: &[(&str, &str)]| {
        let mut config = Config::default_for(machines, 1);
        for (key, value) in settings {
            config
                .set(key, value)
                .expect("a value that the key accepts");
        }
        config.validate().err().map(|error| error.to_string())
    };
    let memory = ("durability.mode", "memory");
    for (settings, why) in [
        (
            &[("durability.replicas", "2")][..],
            "durability.mode is \"none\"",
        ),
        (
            &[memory, ("durability.replicas", "4")],
            "4 copies of every region on 3 machine(s)",
        ),
        (
            &[
                memory,
                ("durability.replicas", "3"),
                ("machine.2.memory_bytes", "0"),
            ],
            "on 2 machine(s)",
        ),
        (&[memory, ("durability.replicas", "0")], "between 1 and 5"),
        (&[memory, ("durability.replicas", "6")], "between 1 and 5"),
        (&[memory, ("durability.dir", "state")], "durability.dir"),
    ] {
        let error = refused(3, settings).expect("it is refused");
        assert!(error.contains(why), "{settings:?}: {error}");
    }
    assert_eq!(refused(3, &[memory, ("durability.replicas", "3")]), None);
    assert_eq!(refused(1, &[("durability.replicas", "1")]), None);
    let mut config = Config::default_for(5, 1);
    assert_eq!((config.replicas(), config.is_logged()), (1, false));
    config.durability.mode = Some(Durability::Memory);
    assert_eq!((config.replicas(), config.is_logged()), (3, true));
    config.machines.truncate(2);
    assert_eq!(config.replicas(), 2);
}

#[test]
fn idle_workers_park_where_they_outnumber_cores() {
    assert_eq!(IdlePolicy::Auto.resolve(3, 2), Idle::Park);
    assert_eq!(IdlePolicy::Auto.resolve(2, 2), Idle::SpinOrYield);
    assert_eq!(IdlePolicy::Spin.resolve(3, 2), Idle::Spin);
    assert_eq!(IdlePolicy::Park.resolve(1, 2), Idle::Park);
}

#[test]
fn a_configuration_is_shown_as_json_by_its_keys() {
    let json = serde_json::to_value(Config::default_for(1, 2)).expect("JSON");
    for key in keys::KEYS {
        assert!(!json[key.section()][key.name()].is_null(), "{}", key.path);
    }
    assert_eq!(json["memory"]["block_bytes"], 1 << 20);
    assert_eq!(json["machine"][0]["id"], 1);
    assert_eq!(json["cluster"]["run_dir"], "auto");
}
