//! Errors in the input are reported with their place and advice before any process is started. A lack of
//! memory during a run is reported and ends all processes.

mod common;

use std::path::Path;

use common::tmpfs::Tmpfs;
use common::{DEADLINE, Place, number, only_run};
use serde_json::Value;

/// Writes a configuration file of two machines, with one error added by `change`. Returns its path.
fn config(place: &Place, change: impl FnOnce(String) -> String) -> String {
    let text = format!(
        "[cluster]\nname = \"{}\"\nrun_dir = \"{}\"\n[[machine]]\nid = 1\n[[machine]]\nid = 2\n\
         [memory]\nregion_bytes = \"16MiB\"\nper_machine_bytes = \"64MiB\"\n",
        place.name(),
        place.path("run").display()
    );
    place
        .write("bad.toml", &change(text))
        .to_str()
        .unwrap()
        .to_owned()
}

/// Checks that `farm ycsb`, `node` and `doctor` refuse this configuration file with all of `texts`.
#[track_caller]
fn refused(place: &Place, config: &str, texts: &[&str]) {
    for command in [
        &["ycsb", "--records", "1000", "--config", config][..],
        &["node", "--machine", "1", "--config", config],
        &["doctor", "--config", config],
    ] {
        place.farm(command).end().failed(2, texts);
        assert_eq!(place.stale_files(), Vec::<String>::new());
    }
}

#[test]
fn a_configuration_is_refused_with_line_key_and_advice() {
    let place = Place::new("config");
    let replaced = |from: &'static str, to: &'static str| {
        move |text: String| {
            assert!(text.contains(from));
            text.replacen(from, to, 1)
        }
    };
    for (from, to, texts) in [
        // Unknown keys and sections.
        (
            "region_bytes",
            "regoin_bytes",
            &["bad.toml:9", "memory.regoin_bytes", "region_bytes"][..],
        ),
        ("[memory]", "[memroy]", &["bad.toml:8", "memroy", "memory"]),
        // Ill-typed values.
        (
            "\"16MiB\"",
            "true",
            &["bad.toml:9", "memory.region_bytes", "size"],
        ),
        (
            "\"16MiB\"",
            "\"16 apples\"",
            &["bad.toml:9", "memory.region_bytes", "16 apples"],
        ),
        (
            "id = 2",
            "id = \"two\"",
            &["bad.toml:7", "machine.id", "two"],
        ),
        (
            "id = 2",
            "id = 2\nworkers = 1.5",
            &["bad.toml:8", "machine.workers", "1.5"],
        ),
        // Invalid TOML.
        ("id = 2", "id = = 2", &["bad.toml:7"]),
        ("id = 2", "id = 2\nid = 3", &["bad.toml:8", "duplicate"]),
        // Machines.
        (
            "id = 2",
            "id = 1",
            &["bad.toml:7", "machine.id", "id 1 is also that of"],
        ),
        ("id = 2", "id = 0", &["bad.toml:7", "machine.id", "1023"]),
        ("id = 2", "id = 1024", &["bad.toml:7", "machine.id", "1023"]),
        ("id = 2", "workers = 1", &["bad.toml:6", "machine.id"]),
        (
            "id = 2",
            "id = 2\nworkers = 65",
            &["bad.toml:8", "machine.workers", "64"],
        ),
        // Impossible sizes.
        (
            "\"16MiB\"",
            "\"16MB\"",
            &["bad.toml:9", "memory.region_bytes", "16MB"],
        ),
        (
            "\"16MiB\"",
            "0",
            &["bad.toml:9", "memory.region_bytes", "0"],
        ),
        (
            "\"16MiB\"",
            "\"16777217B\"",
            &["bad.toml:9", "memory.region_bytes", "multiple"],
        ),
        (
            "\"16MiB\"",
            "\"8GiB\"",
            &["bad.toml:9", "memory.region_bytes", "4GiB"],
        ),
        (
            "\"64MiB\"",
            "\"40MiB\"",
            &[
                "bad.toml:10",
                "memory.per_machine_bytes",
                "multiple",
                "48MiB",
            ],
        ),
        (
            "[memory]",
            "[rings]\nring_bytes = 1000000\n[memory]",
            &["bad.toml:9", "rings.ring_bytes", "power of two"],
        ),
        (
            "[memory]",
            "[table]\nneighbourhood = 5\n[memory]",
            &["bad.toml:9", "table.neighbourhood", "2, 4, 6, 8 or 12"],
        ),
        (
            "[memory]",
            "[table]\noccupancy = 1.5\n[memory]",
            &["bad.toml:9", "table.occupancy", "at most 1"],
        ),
        (
            "[memory]",
            "[table]\nkey_bytes = 300\n[memory]",
            &["bad.toml:9", "table.key_bytes", "256"],
        ),
        (
            "[memory]",
            "[table]\nvalue_bytes = \"1MiB\"\n[memory]",
            &["bad.toml:9", "table.value_bytes", "960KiB"],
        ),
        // Copies.
        (
            "[memory]",
            "[durability]\nmode = \"memory\"\nreplicas = 3\n[memory]",
            &[
                "bad.toml:10",
                "durability.replicas",
                "2 machine(s) that store regions",
                "write 2",
            ],
        ),
        (
            "id = 2",
            "id = 2\nmemory_bytes = 0\n[durability]\nmode = \"memory\"\nreplicas = 2",
            &[
                "bad.toml:11",
                "durability.replicas",
                "1 machine(s) that store regions",
                "add machines",
            ],
        ),
        (
            "[memory]",
            "[durability]\nmode = \"none\"\nreplicas = 2\n[memory]",
            &[
                "bad.toml:10",
                "durability.mode is \"none\"",
                "write durability.mode = \"memory\"",
            ],
        ),
        (
            "[memory]",
            "[durability]\nmode = \"memory\"\nreplicas = 6\n[memory]",
            &["bad.toml:10", "durability.replicas", "between 1 and 5"],
        ),
        (
            "[memory]",
            "[durability]\nmode = \"disk\"\n[memory]",
            &[
                "bad.toml:9",
                "durability.mode",
                "\"auto\", \"none\" or \"memory\"",
            ],
        ),
        (
            "[memory]",
            "[durability]\nmode = \"memory\"\ndir = \"state\"\n[memory]",
            &["bad.toml:10", "durability.dir", "absolute"],
        ),
        // Values that exclude each other.
        (
            "[memory]",
            "[table]\nvalue_bytes = \"900KiB\"\n[memory]",
            &["bad.toml:9", "table.value_bytes", "lower"],
        ),
        (
            "run_dir = \"",
            "run_dir = \"not/absolute",
            &["bad.toml:3", "cluster.run_dir", "absolute"],
        ),
    ] {
        let config = config(&place, replaced(from, to));
        refused(&place, &config, texts);
    }
}

#[test]
fn all_errors_of_a_configuration_are_reported_at_once() {
    let place = Place::new("all-wrong");
    let config = config(&place, |text| {
        text.replace("id = 2", "id = 1")
            .replace("16MiB", "17MiB")
            .replace("[memory]", "[memory]\nhuge = 1")
    });
    let file = config.rsplit('/').next().unwrap();
    let wanted = [format!("{file}:7"), format!("{file}:9")];
    refused(
        &place,
        &config,
        &[&wanted[0], &wanted[1], "machine.id", "memory.huge"],
    );
}

#[test]
fn a_configuration_that_cannot_be_read_is_named() {
    let place = Place::new("unreadable");
    let missing = place.path("missing.toml");
    refused(
        &place,
        missing.to_str().unwrap(),
        &["missing.toml", "No such file", "--config"],
    );
    let directory = place.path("run");
    refused(
        &place,
        directory.to_str().unwrap(),
        &[directory.to_str().unwrap()],
    );
    let empty = place.write("empty.toml", "");
    refused(
        &place,
        empty.to_str().unwrap(),
        &["empty.toml", "no machine", "[[machine]]"],
    );
    let garbage = place.path("garbage.toml");
    std::fs::write(&garbage, [0xff, 0xfe, 0, 1, 2, 3]).unwrap();
    refused(
        &place,
        garbage.to_str().unwrap(),
        &["garbage.toml", "UTF-8"],
    );
}

#[test]
fn invalid_options_are_refused_by_name() {
    let place = Place::new("options");
    for (args, texts) in [
        (
            &["--occupancy", "0"][..],
            &["--occupancy", "above 0 and at most 1"][..],
        ),
        (
            &["--occupancy", "1.5"],
            &["--occupancy", "1.5", "at most 1"],
        ),
        (&["--occupancy=-1"], &["--occupancy", "above 0"]),
        (&["--occupancy", "nan"], &["--occupancy", "at most 1"]),
        (&["--occupancy", "full"], &["--occupancy", "full"]),
        (
            &["--neighbourhood", "5"],
            &["--neighbourhood", "5", "2, 4, 6, 8 or 12"],
        ),
        (&["--neighbourhood", "six"], &["--neighbourhood", "six"]),
        (&["--value-bytes", "0"], &["--value-bytes", "0"]),
        (&["--value-bytes", "big"], &["--value-bytes", "big", "size"]),
        (&["--value-bytes", "2MiB"], &["--value-bytes", "960KiB"]),
        (
            &["--value-bytes", "400KiB"],
            &["--value-bytes", "lower table.value_bytes"],
        ),
        (
            &["--value-bytes", "100KiB"],
            &["--value-bytes", "rings.max_message_bytes", "raise"],
        ),
        (
            &["--distribution", "gaussian"],
            &["--distribution", "gaussian", "zipfian-plain"],
        ),
        (&["--workload", "z"], &["--workload", "z"]),
        (&["--workload", "a,,b"], &["--workload"]),
        (&["--machines", "0"], &["--machines"]),
        (&["--machines", "1024"], &["--machines", "1023"]),
        (&["--workers", "65"], &["--workers", "64"]),
        (&["--records", "0"], &["--records", "at least 1"]),
        (&["--records", "-5"], &["-5"]),
        (&["--records", "1e6"], &["--records", "1e6"]),
        (&["--duration", "0"], &["--duration", "more than 0"]),
        (&["--duration", "inf"], &["--duration"]),
        (&["--duration", "nan"], &["--duration"]),
        (&["--warmup", "1e30"], &["--warmup"]),
        (&["--seed", "x"], &["--seed"]),
        (&["--set", "memory.region_bytes"], &["--set", "KEY=VALUE"]),
        (
            &["--set", "memory.regoin_bytes=1GiB"],
            &["--set", "memory.regoin_bytes", "memory.region_bytes"],
        ),
        (
            &["--set", "memory.region_bytes=lots"],
            &["--set", "memory.region_bytes", "lots"],
        ),
        (
            &["--set", "memory.region_bytes=3GiB"],
            &["--set", "memory.per_machine_bytes", "multiple"],
        ),
        (
            &["--set", "cluster.name=My Cluster"],
            &["--set", "cluster.name", "a-z"],
        ),
        (
            &["--set", "worker.idle=sleep"],
            &["--set", "worker.idle", "park"],
        ),
        (
            &["--set", "machine.*.cores=[9999999]"],
            &["--set", "machine.cores", "9999999"],
        ),
        (&["--frobnicate"], &["--frobnicate"]),
    ] {
        place.small("ycsb", args).end().failed(2, texts);
        assert_eq!(place.stale_files(), Vec::<String>::new());
    }
    let long_keys = ["--set", "table.key_bytes=20"];
    let ended = place.small("ycsb", &long_keys).end();
    ended.failed(2, &["table.key_bytes is 20", "16 bytes"]);
    place
        .farm(&["--log", "=/=", "doctor"])
        .end()
        .failed(2, &["--log", "try --log debug"]);
    place.farm(&["frobnicate"]).end().failed(2, &["frobnicate"]);
}

#[test]
fn more_memory_than_the_host_has_is_refused_with_numbers() {
    let place = Place::new("too-much");
    for memory in ["1TiB", "16TiB"] {
        let setting = format!("memory.per_machine_bytes={memory}");
        let ended = place.small("ycsb", &["--set", &setting]).end();
        ended.failed(
            2,
            &[
                "3 machine(s) may take",
                "available",
                "lower memory.per_machine_bytes",
            ],
        );
        assert_eq!(place.stale_files(), Vec::<String>::new());
    }
    let settings = ["--set", "memory.per_machine_bytes=1TiB"];
    let node = place
        .small("node", &[&settings[..], &["--machine", "1"]].concat())
        .end();
    node.failed(
        2,
        &["1 machine(s) may take", "lower memory.per_machine_bytes"],
    );
    let doctor = place.small("doctor", &settings).end().failed(1, &[]);
    let problem = doctor
        .stdout
        .lines()
        .find(|line| line.starts_with("problem"))
        .expect("a problem");
    assert!(problem.contains("TiB"), "{}", doctor.stdout);
    assert!(
        doctor.stdout.contains("lower memory.per_machine_bytes"),
        "{}",
        doctor.stdout
    );
    // More than the largest allowed value.
    let ended = place
        .small("ycsb", &["--set", "memory.per_machine_bytes=17TiB"])
        .end();
    ended.failed(2, &["--set", "memory.per_machine_bytes", "16TiB"]);
}

#[test]
fn an_invalid_memory_directory_is_named() {
    let place = Place::new("no-dir");
    let none = place.path("none").display().to_string();
    let setting = format!("memory.dir={none}");
    for command in ["ycsb", "node", "demo"] {
        let mut args = vec!["--set", &setting];
        if command == "node" {
            args.extend(["--machine", "1"]);
        }
        place
            .small(command, &args)
            .end()
            .failed(2, &["memory.dir", &none, "/dev/shm"]);
    }
    place
        .small("ycsb", &["--set", "memory.dir=relative"])
        .end()
        .failed(2, &["memory.dir", "absolute"]);
    let file = place.write("file", "");
    let setting = format!("memory.dir={}", file.display());
    place
        .small("ycsb", &["--set", &setting])
        .end()
        .failed(2, &["memory.dir", "the directory does not exist"]);
}

/// Regression: a cluster whose `memory.dir` is on a disk started without a warning.
#[test]
fn a_memory_directory_on_a_disk_causes_a_warning() {
    let place = Place::new("on-disk");
    let dir = place.path("memory");
    std::fs::create_dir(&dir).unwrap();
    const TMPFS: u32 = 0x0102_1994;
    if rustix::fs::statfs(&dir).unwrap().f_type as u32 == TMPFS {
        eprintln!("SKIPPED: the directory of temporary files is a tmpfs, not on a disk");
        return;
    }
    let setting = format!("memory.dir={}", dir.display());
    let args = [
        "--set",
        &setting,
        "--records",
        "1000",
        "--duration",
        "0.1",
        "--warmup",
        "0",
    ];
    let ended = place.small("ycsb", &args).end().ok();
    for text in [dir.to_str().unwrap(), "is on a disk", "/dev/shm"] {
        assert!(
            ended.stderr.contains(text),
            "no {text:?} in\n{}",
            ended.stderr
        );
    }
    let quiet = place.small("ycsb", &args[2..]).end().ok();
    assert!(!quiet.stderr.contains("is on a disk"), "{}", quiet.stderr);
}

/// Returns the setting by which regions are in a directory.
fn memory_in(dir: &Tmpfs) -> String {
    format!("memory.dir={}", dir.0.display())
}

fn is_empty(dir: &Path) -> bool {
    std::fs::read_dir(dir).unwrap().next().is_none()
}

#[test]
fn a_memory_directory_with_too_little_space_is_refused() {
    let place = Place::new("small-dir");
    let Some(dir) = Tmpfs::mount(&place, "memory", "size=1m") else {
        return;
    };
    let setting = memory_in(&dir);
    let ended = place.small("ycsb", &["--set", &setting]).end();
    ended.failed(
        2,
        &[
            dir.0.to_str().unwrap(),
            "1 MiB of free space",
            "enlarge it: mount",
        ],
    );
    assert!(is_empty(&dir.0));
}

#[test]
fn a_memory_directory_that_fills_up_is_reported_and_ends_all_processes() {
    let place = Place::new("full-dir");
    // Enough space for all memory, but inodes for the files of the rings only.
    let Some(dir) = Tmpfs::mount(&place, "memory", "size=400m,nr_inodes=14") else {
        return;
    };
    let setting = memory_in(&dir);
    let ended = place
        .small("ycsb", &["--set", &setting, "--records", "1000"])
        .end();
    ended.failed(1, &["machine m", dir.0.to_str().unwrap(), "No space left"]);
    assert!(is_empty(&dir.0), "{:?}", place.memory_in(&dir.0));
    // Inodes for fewer files than the rings need.
    drop(dir);
    std::fs::remove_dir(place.path("memory")).unwrap();
    let dir = Tmpfs::mount(&place, "memory", "size=400m,nr_inodes=3").unwrap();
    let ended = place
        .small("ycsb", &["--set", &setting, "--records", "1000"])
        .end();
    ended.failed(1, &["machine m", dir.0.to_str().unwrap(), "No space left"]);
    assert!(is_empty(&dir.0), "{:?}", place.memory_in(&dir.0));
}

#[test]
fn a_cluster_works_in_another_memory_directory() {
    let place = Place::new("other-dir");
    let Some(dir) = Tmpfs::mount(&place, "memory", "size=400m") else {
        return;
    };
    let setting = memory_in(&dir);
    let args = [
        "--set",
        &setting,
        "--records",
        "5000",
        "--duration",
        "0.2",
        "--warmup",
        "0",
        "--verify",
    ];
    let results = common::measure(&place, &args);
    assert_eq!(number(only_run(&results), "errors"), 0.0);
    assert!(is_empty(&dir.0));
}

#[test]
fn a_table_that_does_not_fit_is_reported_and_ends_all_processes() {
    let place = Place::new("too-small");
    for args in [
        // The buckets do not fit.
        &["--records", "5000000", "--value-bytes", "32"][..],
        &["--records", "1000000", "--value-bytes", "1000"],
        &["--records", "2000000000"],
        // The buckets fit, but the overflow blocks of a full table do not.
        &[
            "--records",
            "1100000",
            "--value-bytes",
            "32",
            "--occupancy",
            "1",
            "--neighbourhood",
            "4",
            "--machines",
            "2",
            "--set",
            "memory.per_machine_bytes=48MiB",
        ],
    ] {
        let ended = place.small("ycsb", args).end_within(DEADLINE);
        ended.failed(1, &["machine m", "raise memory.per_machine_bytes"]);
        assert_eq!(place.stale_files(), Vec::<String>::new());
    }
}

/// Regression: the size of the table's shards was searched for ever, because no shard fits into a region of one block.
#[test]
fn a_region_without_room_for_a_shard_is_refused() {
    let place = Place::new("small-region");
    let region = ["--records", "1", "--set", "memory.region_bytes=1MiB"];
    let ended = place.small("ycsb", &region).end();
    ended.failed(2, &["memory.region_bytes is 1 MiB", "raise"]);
}

#[test]
fn the_doctor_reports_the_resources_of_the_host() {
    let place = Place::new("doctor");
    let ended = place.small("doctor", &[] as &[&str]).end().ok();
    let stdout = ended.stdout.to_lowercase();
    for text in [
        "this host",
        "linux",
        "cores",
        "memory",
        "/dev/shm",
        "huge pages",
        "memlock",
        "rdma",
        "0 problem(s)",
    ] {
        assert!(stdout.contains(text), "no {text:?} in\n{}", ended.stdout);
    }
    let run_dir = place.path("run").display().to_string();
    assert!(ended.stdout.contains(&run_dir), "{}", ended.stdout);
}

#[test]
fn the_doctor_writes_json() {
    let place = Place::new("doctor-json");
    let ended = place.small("doctor", &["--json"]).end().ok();
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert!(report["host"]["memory_total_bytes"].as_u64().unwrap() > 0);
    assert_eq!(report["config"]["cluster"]["name"], place.name());
    for finding in report["findings"].as_array().unwrap() {
        assert!(
            finding["level"].is_string()
                && finding["about"].is_string()
                && finding["fact"].is_string()
        );
        assert_ne!(finding["level"], "problem");
    }
}
