//! Clusters over RDMA devices, run as a user runs them. Most hosts have no such devices: `./x test-rdma` runs
//! these tests in a guest with two devices, `rxe0` on the network interface `wire0` and `rxe1` on `wire1`, the
//! two ends of a veth pair. The tests run one at a time, because they use the same ports and change the
//! interfaces.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use common::{Place, Run};
use rustix::process::Signal;
use serde_json::Value;

/// Time limit of a run. The software devices and the emulated processors are slow.
const SLOW: Duration = Duration::from_secs(150);
/// Time limit within which a machine is reported as lost or refused.
const GIVEN_UP: Duration = Duration::from_secs(60);

/// Starts `farm COMMAND` with three machines over the two devices.
fn start(place: &Place, command: &str, args: &[&str]) -> Run {
    let secret = secret(place, "secret", "known to this cluster");
    let mut all: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    for setting in [
        "cluster.fabric=verbs",
        "machine.1.device=rxe0",
        "machine.2.device=rxe1",
        "machine.3.device=rxe0",
        &format!("rdma.secret_file={secret}"),
    ] {
        all.extend(["--set".to_owned(), setting.to_owned()]);
    }
    place.small(command, &all)
}

/// Runs a workload and checks that it is judged right.
fn judged(place: &Place, workload: &str, operations: &str, more: &[&str]) {
    let args = [&[workload, "--verify", "--operations", operations], more].concat();
    let ended = start(place, "workload", &args).end_within(SLOW).ok();
    assert!(ended.stdout.contains("right: "), "{}", ended.stdout);
}

fn secret(place: &Place, file: &str, text: &str) -> String {
    let path = place.write(file, text);
    fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Runs a shell command and checks that it succeeds.
fn system(command: &str) {
    let ended = Command::new("sh").args(["-ec", command]).status().unwrap();
    assert!(ended.success(), "{command}: {ended}");
}

/// Runs a shell command when dropped, also if the test fails.
struct Finally(&'static str);

impl Drop for Finally {
    fn drop(&mut self) {
        system(self.0);
    }
}

#[test]
fn three_machines_serve_lookups_and_updates_that_are_verified() {
    let place = Place::new("rdma-ycsb");
    for workload in ["b", "a"] {
        let args = [
            "--workload",
            workload,
            "--records",
            "1000",
            "--duration",
            "4",
            "--warmup",
            "1",
            "--verify",
        ];
        let ended = start(&place, "ycsb", &args).end_within(SLOW).ok();
        assert!(ended.stdout.contains("right, 0 wrong"), "{}", ended.stdout);
    }
}

#[test]
fn transactions_are_judged_right_in_every_workload() {
    let place = Place::new("rdma-judged");
    for workload in ["cycle", "bank", "append", "churn", "table"] {
        judged(&place, workload, "40", &[]);
    }
}

/// Two workers of each machine share its queue pairs, so each polls completions of the other.
#[test]
fn workers_that_share_queue_pairs_are_judged_right() {
    let place = Place::new("rdma-shared");
    let more = [
        "--workers",
        "2",
        "--set",
        "rdma.workers_per_queue=2",
        "--set",
        "rdma.object_reads=headers-around",
    ];
    for workload in ["bank", "append"] {
        judged(&place, workload, "20", &more);
    }
}

/// Records carry checksums, as for devices that place the bytes of a write in any order.
#[test]
fn records_with_checksums_are_judged_right() {
    let place = Place::new("rdma-checksums");
    judged(&place, "append", "20", &["--set", "rings.checksums=true"]);
}

#[test]
fn the_bench_compares_the_fabric_with_perftest() {
    let place = Place::new("rdma-bench");
    let json = place.path("fabric.json");
    let args = [
        "bench",
        "fabric",
        "--fabric",
        "verbs",
        "--sizes",
        "64,1024",
        "--pairs",
        "2",
        "--operations",
        "200",
        "--set",
        "machine.1.device=rxe0",
        "--set",
        "machine.2.device=rxe1",
        "--json",
        json.to_str().unwrap(),
    ];
    let ended = place.farm(&args).end_within(SLOW).ok();
    assert!(
        ended.stdout.contains("rxe0 (port 1, GID 1"),
        "{}",
        ended.stdout
    );
    let report: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    let rows = report["runs"][0]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 8, "{}", ended.stdout);
    for row in rows {
        for figures in [
            &row["farm"],
            &row["beside"]["perftest"],
            &row["beside"]["ratio"],
        ] {
            let least = figures["least"].as_f64().unwrap();
            assert!(least > 0.0, "{}", ended.stdout);
        }
    }
}

#[test]
fn the_doctor_shows_both_devices_and_finds_nothing_wrong() {
    let place = Place::new("rdma-doctor");
    let mut args = vec!["doctor", "--json"];
    for setting in [
        "cluster.fabric=verbs",
        "memory.region_bytes=16MiB",
        "memory.per_machine_bytes=64MiB",
    ] {
        args.extend(["--set", setting]);
    }
    let ended = place.farm(&args).end_within(SLOW).ok();
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    let devices = report["host"]["verbs_devices"].as_array().unwrap();
    let names: Vec<&Value> = devices.iter().map(|device| &device["name"]).collect();
    assert_eq!(names, ["rxe0", "rxe1"], "{}", ended.stdout);
    for device in devices {
        assert_eq!(device["unfit"], Value::Null, "{device}");
        let port = &device["ports"][0];
        assert_eq!(port["is_active"], true, "{port}");
        assert!(port["gids"].as_array().unwrap().len() > 1, "{port}");
    }
}

#[test]
fn lost_packets_do_not_change_results() {
    let place = Place::new("rdma-loss");
    system("tc qdisc add dev wire0 root netem loss 1%; tc qdisc add dev wire1 root netem loss 1%");
    let _restore = Finally("tc qdisc del dev wire0 root; tc qdisc del dev wire1 root");
    for workload in ["bank", "append"] {
        judged(&place, workload, "20", &[]);
    }
}

/// Starts a run of 300 seconds and waits until it is in progress.
fn mid_run(place: &Place) -> Run {
    let args = ["--workload", "a", "--records", "1000", "--duration", "300"];
    let mut launcher = start(place, "ycsb", &args);
    launcher.wait_for("running workload a");
    std::thread::sleep(Duration::from_millis(500));
    launcher
}

#[test]
fn a_machine_that_is_killed_is_named_and_ends_the_run() {
    let place = Place::new("rdma-kill");
    let launcher = mid_run(&place);
    place.node(2).signal(Signal::KILL);
    launcher.end_within(GIVEN_UP).failed(1, &["m2"]);
    judged(&place, "bank", "20", &[]);
}

/// The sockets whose EOF means that a machine died do not use the interfaces `wire0` and `wire1`, so the
/// devices must detect the loss.
#[test]
fn the_devices_detect_an_interface_that_is_down() {
    let place = Place::new("rdma-cut");
    let launcher = mid_run(&place);
    let restore = Finally(
        "ip link set wire1 up
         ip route replace 10.77.0.2/32 dev wire0 src 10.77.0.1 table 101
         ip route replace 10.77.0.1/32 dev wire1 src 10.77.0.2 table 102
         until grep -q ffff:0a4d /sys/class/infiniband/rxe1/ports/1/gids/1; do sleep 0.05; done",
    );
    // The whole guest may stall for most of a minute while its kernel takes the interface down.
    system("ip link set wire1 down");
    launcher.end_within(SLOW).failed(1, &["is lost"]);
    drop(restore);
    judged(&place, "bank", "20", &[]);
}

/// Starts one of two nodes. `more` is the end of the second machine's section.
fn node(place: &Place, machine: u16, secret: &str, more: &str) -> Run {
    let text = format!(
        "[cluster]\nname = \"{}\"\nrun_dir = \"{}\"\nfabric = \"verbs\"\n\
         [memory]\nregion_bytes = \"16MiB\"\nper_machine_bytes = \"32MiB\"\n\
         [rdma]\nsecret_file = \"{secret}\"\n\
         [[machine]]\nid = 1\ndevice = \"rxe0\"\n[[machine]]\nid = 2\ndevice = \"rxe1\"\n{more}",
        place.name(),
        place.path("run").display(),
    );
    let config = place.write(&format!("{machine}.toml"), &text);
    let config = config.to_str().unwrap();
    place.start_node(config, machine)
}

#[test]
fn a_machine_with_another_secret_is_refused_with_the_reason() {
    let place = Place::new("rdma-secret");
    let ours = secret(&place, "ours", "known to this cluster");
    let theirs = secret(&place, "theirs", "known to another one");
    let mut first = node(&place, 1, &ours, "");
    first.wait_for("waits up to");
    let second = node(&place, 2, &theirs, "");
    second
        .end_within(GIVEN_UP)
        .failed(1, &["machine m1", "secret"]);
    first.wait_for("the peer has another secret");
    // The first machine still waits after the refusal, and accepts the machine with the right secret.
    let mut second = node(&place, 2, &ours, "");
    for node in [&mut first, &mut second] {
        node.wait_for("runs; stop it with Ctrl-C");
        node.wait_for("worker(s); device ");
        node.wait_for(", GID ");
    }
    let config = place.path("1.toml");
    let status = place.farm(&["status", "--config", config.to_str().unwrap(), "--json"]);
    let status = status.end().ok().stdout;
    for device in [
        "\"fabric\":\"rxe0 (port 1, GID ",
        "\"fabric\":\"rxe1 (port 1, GID ",
    ] {
        assert!(status.contains(device), "no {device:?} in {status}");
    }
    first.signal(Signal::INT);
    for node in [first, second] {
        node.end_within(GIVEN_UP);
    }
}

#[test]
fn a_machine_without_memory_joins_and_leaves_and_the_other_continues() {
    let place = Place::new("rdma-no-memory");
    judged(&place, "tatp", "20", &["--set", "machine.3.memory_bytes=0"]);
    let place = Place::new("rdma-leaves");
    let secret = secret(&place, "secret", "known to this cluster");
    let start = |machine| {
        let mut node = node(&place, machine, &secret, "memory_bytes = 0\n");
        node.wait_for("runs; stop it with Ctrl-C");
        node
    };
    let config = place.path("1.toml");
    let running = |texts: &str| {
        let status = place.farm(&["status", "--config", config.to_str().unwrap()]);
        let status = status.end().stdout;
        assert!(status.contains(texts), "{status}");
    };
    let mut first = start(1);
    running("1 of 2 machine(s) run");
    for _ in 0..3 {
        let second = start(2);
        running("2 of 2 machine(s) run");
        second.signal(Signal::INT);
        second.end_within(GIVEN_UP).ok();
        running("1 of 2 machine(s) run");
    }
    assert!(first.is_running());
    first.signal(Signal::INT);
    first.end_within(GIVEN_UP).ok();
}
