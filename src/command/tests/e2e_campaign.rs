//! Clusters whose processes are all killed, again and again.

mod common;

use std::fs;

use common::Place;

/// Fifty times all processes of clusters are killed, and nothing that was reported is lost, or done by halves. The results of a campaign
/// that was interrupted are used by the next one.
#[test]
fn all_processes_are_killed_fifty_times() {
    let place = Place::new("campaign");
    let file = place.path("results.jsonl");
    let results = ["--results", file.to_str().unwrap(), "--note", "test"];
    let run = |kills: &str| {
        let args = [&["--kills", kills][..], &results].concat();
        let ended = place.small("campaign", &args).end().ok();
        assert_eq!(place.stale_files(), Vec::<String>::new());
        ended.stdout
    };
    let first = run("15");
    assert!(first.contains("[15 of 15] seed 1: "), "{first}");
    run("32");
    let rest = run("50");
    assert!(rest.contains(" of 50] seed "), "{rest}");
    assert!(rest.contains(": 0 run(s) were wrong"), "{rest}");
    assert!(rest.contains("of which 0 were wrong"), "{rest}");
    let text = fs::read_to_string(&file).unwrap();
    let lines: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let kills = lines.iter().map(|line| line["kills"].as_u64().unwrap());
    assert_eq!(kills.sum::<u64>(), 50);
    let is_right = |line: &serde_json::Value| line["outcome"] == "ok" && line["note"] == "test";
    assert!(lines.iter().all(is_right), "{text}");
    assert!(
        lines
            .iter()
            .all(|line| line["operations"].as_u64().unwrap() > 100),
        "{text}"
    );
}

/// Single machines are killed or stopped, the others go on, and each that was lost comes back before the next one is.
#[test]
fn single_machines_are_lost_and_come_back() {
    let place = Place::new("campaign-one");
    let file = place.path("results.jsonl");
    let args = "--losses one --kills 24 --kills-per-run 8 --set durability.lease_ms=100 --results";
    let mut args: Vec<&str> = args.split(' ').collect();
    args.push(file.to_str().unwrap());
    let ended = place.small("campaign", &args).end().ok();
    assert_eq!(place.stale_files(), Vec::<String>::new());
    let text = "one machine was killed or stopped 24 time(s): 0 run(s) were wrong";
    assert!(ended.stdout.contains(text), "{}", ended.stdout);
    let text = fs::read_to_string(&file).unwrap();
    let lines = text.lines();
    let lines: Vec<serde_json::Value> = lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let sum = |field: &str| {
        lines
            .iter()
            .map(|line| line[field].as_u64().unwrap())
            .sum::<u64>()
    };
    assert!((1..24).contains(&sum("stops")), "{text}");
    let is_right = |line: &serde_json::Value| {
        line["outcome"] == "ok" && line["losses"] == "one" && line["copies"].as_u64().unwrap() >= 2
    };
    assert!(lines.iter().all(is_right), "{text}");
}

#[test]
fn a_campaign_that_cannot_be_run_is_refused_with_the_reason() {
    let place = Place::new("campaign-bad");
    let refuse = |args: &[&str], code, texts: &[&str]| {
        place.small("campaign", args).end().failed(code, texts);
        assert_eq!(place.stale_files(), Vec::<String>::new());
    };
    refuse(&["--copies", "4"], 2, &["4 copies (--copies)", "has 3"]);
    refuse(&["--machines", "2", "--copies", "3"], 2, &["has 2"]);
    refuse(
        &["--set", "durability.mode=none"],
        2,
        &["a campaign needs durability.mode"],
    );
    refuse(
        &["--set", "durability.dir=/nowhere"],
        2,
        &["leave out durability.dir", "/nowhere"],
    );
    for of_one in [&["--copies", "1"], &["--machines", "1"]] {
        let args = [&["--losses", "one"][..], of_one].concat();
        refuse(
            &args,
            2,
            &["(--losses one)", "two machines, and two copies"],
        );
    }
    refuse(
        &["--set", "machine.2.memory_bytes=0"],
        2,
        &["machine m2 has no memory"],
    );
    let file = place.path("results.jsonl");
    fs::write(&file, "{}\n").unwrap();
    let file = file.to_str().unwrap();
    refuse(
        &["--results", file],
        1,
        &["line 1 of", "(--results)", "seed"],
    );
    refuse(
        &["--results", "/nowhere/results.jsonl"],
        1,
        &["cannot write /nowhere/results.jsonl"],
    );
}
