//! `farm status` of a program and two nodes, from another process.

mod common;

use std::time::Duration;

use common::{Place, number, wait_until};
use farm::{Cluster, Error, Table};
use farm_core::ids::MachineId;
use rustix::process::Signal;
use serde_json::Value;

/// A process that is stopped still listens. Tools do not wait for it for long, and say what they have found.
#[test]
fn a_machine_whose_process_is_stopped_is_reported() {
    let place = Place::new("stopped");
    let config = place.three_machines();
    let mut nodes = [1, 2, 3].map(|machine| place.start_node(&config, machine));
    for node in &mut nodes {
        node.wait_for("runs; stop it with Ctrl-C");
    }
    nodes[1].signal(Signal::STOP);
    let why = "machine m2: it has not answered within 5 s: its process is stopped";
    let status = ["status", "--config", &config, "--interval", "0.1"];
    let seen = place.farm(&status).end().failed(1, &[]);
    assert!(seen.stdout.contains(why), "{}", seen.stdout);
    assert!(
        seen.stdout.contains("2 of 3 machine(s) run"),
        "{}",
        seen.stdout
    );
    place
        .farm(&["verify", "--config", &config])
        .end()
        .failed(3, &[why]);
    nodes[1].signal(Signal::CONT);
    nodes[0].signal(Signal::INT);
    for node in nodes {
        node.end().ok();
    }
}

/// A machine that cannot go on says why it waits, and whose leases have expired; when machines are lost, who is left.
#[test]
fn the_status_says_why_a_cluster_waits_and_who_is_left() {
    let place = Place::new("waits");
    place.keeps_data();
    let more = format!(
        "[durability]\nmode = \"memory\"\nreplicas = 2\nlease_ms = 100\ndir = \"{}\"\n",
        place.path("store").display()
    );
    let config = place.config("farm.toml", "64MiB", 3, &more);
    let mut nodes = [1, 2, 3].map(|machine| place.start_node(&config, machine));
    for node in &mut nodes {
        node.wait_for("runs; stop it with Ctrl-C");
    }
    let status = || {
        let args = ["status", "--config", &config, "--interval", "0.1"];
        let text = place.farm(&args).end().stdout;
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        text.lines().map(words).collect::<Vec<_>>()
    };
    let seen = status();
    for line in ["m1 manager", "m2 member", "m3 member"] {
        assert!(seen.iter().any(|it| it.starts_with(line)), "{seen:#?}");
    }
    for node in &nodes[1..] {
        node.signal(Signal::STOP);
    }
    nodes[0].wait_for("the cluster waits");
    let seen = status();
    for line in [
        "m1 finds that the lease of m2 has expired",
        "m1 finds that the lease of m3 has expired",
        "m1 waits: of 3 machines that store regions and may be alive, only 1 can be reached",
    ] {
        assert!(seen.iter().any(|it| it.starts_with(line)), "{seen:#?}");
    }
    for node in &nodes[1..] {
        node.signal(Signal::CONT);
    }
    let is_quiet = |seen: &[String]| {
        let says = |text: &str| seen.iter().any(|it| it.contains(text));
        !says(" waits: ") && !says("has expired")
    };
    let most = Duration::from_secs(20);
    wait_until("the cluster still waits", most, || is_quiet(&status()));
    nodes[2].signal(Signal::KILL);
    nodes[0].wait_for("the cluster goes on with 2 of 3 machines");
    wait_until("the status has another member", most, || {
        let seen = status();
        let has = |line: &str| seen.iter().any(|it| it.starts_with(line));
        has("m1 manager") && has("m3 not a member 0 0 0") && is_quiet(&seen)
    });
    nodes[2] = place.start_node(&config, 3);
    nodes[2].wait_for("runs; stop it with Ctrl-C");
    let has_come_back = || status().iter().any(|it| it.starts_with("m3 member"));
    wait_until("machine 3 is no member", most, has_come_back);
    nodes[0].signal(Signal::INT);
    for node in nodes {
        node.end().ok();
    }
}

#[test]
fn the_status_of_a_running_cluster_is_reported() {
    let place = Place::new("status");
    let config = place.three_machines();
    let status = |more: &[&str]| {
        let args = ["status", "--config", &config, "--interval", "0.1"];
        place.farm(&[&args[..], more].concat()).end()
    };
    status(&[]).failed(1, &[]);

    let mut nodes = [2, 3].map(|machine| place.start_node(&config, machine));
    let me = MachineId::new(1).unwrap();
    let cluster = Cluster::join(&config, me).start().unwrap();
    for node in &mut nodes {
        node.wait_for("runs; stop it with Ctrl-C");
    }
    let table: Table<u64, [u8; 40]> = cluster.create_table("counted", 1000).unwrap();
    cluster.create_sequence("numbers", 1).unwrap();
    cluster
        .block_on(async |farm| {
            for key in 0..300 {
                table.insert(&farm, key, [1; 40]).await?;
            }
            farm.transact(async |tx| tx.alloc([0u64; 20]).await).await?;
            Ok::<_, Error>(())
        })
        .unwrap();

    let json = status(&["--json"]).ok();
    // No key is there twice.
    assert_eq!(json.stdout.matches("\"machine\":").count(), 3);
    let report: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(report["cluster"], place.name());
    let machines = report["machines"].as_array().unwrap();
    assert_eq!(machines.len(), 3);
    let mut pairs = 0.0;
    for (machine, id) in machines.iter().zip(1..) {
        assert_eq!(
            (&machine["machine"], &machine["runs"]),
            (&id.into(), &true.into())
        );
        assert_eq!(machine["fabric"], "shm");
        assert!(number(machine, "uptime_s") > 0.0);
        assert_eq!(number(&machine["memory"], "limit"), f64::from(64 << 20));
        let tables = machine["tables"].as_array().unwrap();
        let number_of = table.spec().id;
        let counted = tables.iter().find(|table| table["number"] == number_of);
        let counted = counted.expect("every machine has opened the table");
        assert_eq!(number(counted, "value_bytes"), 40.0);
        pairs += number(counted, "pairs");
        assert!(number(&machine["counts"], "committed") > 0.0, "{machine}");
        assert!(machine["per_second"]["committed"].is_number());
    }
    assert_eq!(pairs, 300.0);
    let names = machines
        .iter()
        .flat_map(|machine| machine["names"].as_array().unwrap());
    let names: Vec<String> = names
        .map(|it| format!("{} {} {}", it["what"], it["name"], it["table"]))
        .collect();
    let counted = format!("\"table\" \"counted\" {}", table.spec().id);
    assert_eq!(names, [counted, "\"sequence\" \"numbers\" null".into()]);
    let with_objects = machines[0]["classes"].as_array().unwrap();
    assert!(
        !with_objects.is_empty(),
        "the program has allocated an object"
    );
    assert_eq!(machines[0]["pid"], std::process::id());

    let words = status(&[]).ok().stdout;
    for text in [
        "3 of 3 machine(s) run",
        "commits/s",
        "since the start: ",
        "objects of",
        "\"counted\"  ",
        "the catalog",
    ] {
        assert!(words.contains(text), "no {text:?} in\n{words}");
    }
    let mut watch = place.farm(&[
        "status",
        "--config",
        &config,
        "--watch",
        "--interval",
        "0.1",
    ]);
    watch.wait_for_output("3 of 3 machine(s) run", 2);
    watch.signal(Signal::INT);
    watch.end().ok();

    cluster.stop().unwrap();
    for node in nodes {
        node.end().ok();
    }
    let ended = status(&[]).failed(1, &[]);
    assert!(
        ended.stdout.contains("0 of 3 machine(s) run"),
        "{}",
        ended.stdout
    );
    let bad = place.farm(&["status", "--interval", "0"]).end();
    bad.failed(2, &["--interval", "between 0.05 and 3600"]);
}
