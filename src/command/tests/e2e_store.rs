//! The directory of the configuration of a cluster with copies: what `farm doctor` reports about it, what `farm clean` removes, and
//! that a start refuses what it cannot use, and changes nothing there.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use common::tmpfs::Tmpfs;
use common::{Ended, Place, Run, wait_until};
use farm::{Cluster, Table};
use farm_core::ids::MachineId;
use rustix::process::Signal;

/// The message of a node whose cluster runs.
const RUNS: &str = "runs; stop it with Ctrl-C";
/// The message of a node that has not met the others.
const WAITS: &str = "waits up to";

/// Writes the configuration of machines with two copies of every region. Returns its path.
fn replicated(place: &Place, machines: u16, dir: &Path) -> String {
    let more = format!(
        "[durability]\nmode = \"memory\"\nreplicas = 2\ndir = \"{}\"\n",
        dir.display()
    );
    place.keeps_data();
    place.config("farm.toml", "64MiB", machines, &more)
}

/// Runs two machines until their cluster runs, and stops them in order.
fn run_once(place: &Place, config: &str) {
    let mut nodes = [1, 2].map(|machine| place.start_node(config, machine));
    for node in &mut nodes {
        node.wait_for(RUNS);
    }
    stop(nodes);
}

fn stop(nodes: [Run; 2]) {
    nodes[0].signal(Signal::INT);
    for node in nodes {
        node.end().ok();
    }
}

fn doctor(place: &Place, config: &str) -> Ended {
    place.farm(&["doctor", "--config", config]).end()
}

/// Returns the lines of the report of `farm doctor` about the store, with this exit status.
#[track_caller]
fn reported(place: &Place, config: &str, code: i32) -> String {
    let report = doctor(place, config).failed(code, &[]).stdout;
    let mut lines = report.lines();
    let is_about = |line: &&str| line.get(9..).is_some_and(|line| line.starts_with("store "));
    let first = lines.find(is_about);
    let first = first.unwrap_or_else(|| panic!("nothing about the store in\n{report}"));
    let more = lines.take_while(|line| line.starts_with("         ") && !is_about(line));
    [first]
        .into_iter()
        .chain(more)
        .collect::<Vec<_>>()
        .join("\n")
}

#[track_caller]
fn contains(text: &str, texts: &[&str]) {
    for one in texts {
        assert!(text.contains(one), "no {one:?} in\n{text}");
    }
}

fn clean(place: &Place, config: &str, more: &[&str]) -> Ended {
    place
        .farm(&[&["clean", "--config", config], more].concat())
        .end()
}

fn destroy(place: &Place, config: &str, more: &[&str]) -> Ended {
    place
        .farm(&[&["destroy", "--config", config], more].concat())
        .end()
}

/// Returns the names and bytes of all files of a directory.
fn content(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect();
    found.sort();
    found
}

/// Returns the file of the newest configuration.
fn newest(dir: &Path) -> PathBuf {
    content(dir).pop().expect("a configuration").0
}

#[test]
fn the_store_of_an_earlier_cluster_is_reported_and_removed_where_a_user_asks_for_it() {
    let place = Place::new("store");
    let dir = place.path("state/store");
    let config = replicated(&place, 2, &dir);
    let path = dir.to_str().unwrap();
    contains(
        &reported(&place, &config, 0),
        &["ok", path, "does not exist; a start creates it"],
    );
    let nothing = destroy(&place, &config, &["--yes"]).ok().stdout;
    contains(&nothing, &["has left nothing"]);

    let mut nodes = [1, 2].map(|machine| place.start_node(&config, machine));
    nodes.iter_mut().for_each(|node| node.wait_for(RUNS));
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&dir), mode(dir.parent().unwrap())), (0o700, 0o700));
    contains(
        &reported(&place, &config, 0),
        &["note", "a running cluster keeps"],
    );
    let kept = clean(&place, &config, &[]).ok().stdout;
    contains(&kept, &["kept its configuration", "a running process uses"]);
    let running = ["a running process uses it", "stop all machines"];
    destroy(&place, &config, &["--yes"]).failed(1, &running);
    // A second process of a machine is refused, and does not take the store for an earlier one.
    let twice = place.start_node(&config, 1).end();
    twice.failed(
        1,
        &["machine m1", "is already running (process", "stop it, or"],
    );
    stop(nodes);

    let options = format!("farm destroy --config {config}");
    let note = [
        "note",
        path,
        "has ended (change 1)",
        "goes on with its data",
        options.as_str(),
    ];
    contains(&reported(&place, &config, 0), &note);
    // Memory without its link is still that of the cluster, as long as the configuration names it.
    let is_link = |file: &PathBuf| file.to_string_lossy().contains("-place-");
    let links = place.memory().into_iter().filter(is_link);
    let is_of_second = |file: &PathBuf| file.to_string_lossy().contains("-m2-");
    let link = links.filter(is_of_second).max().unwrap();
    fs::remove_file(&link).unwrap();
    let name = link.to_str().unwrap();
    let remove = format!("rm {}-*", name.split_once("-place-").unwrap().0);
    let kept = clean(&place, &config, &[]).ok().stdout;
    assert!(!kept.contains(&remove), "{kept}");

    // Without its configuration, the memory stays, and a start refuses.
    let away = place.path("away");
    fs::rename(&dir, &away).unwrap();
    let kept = clean(&place, &config, &[]).ok().stdout;
    contains(&kept, &["whose link to its configuration", &remove]);
    let report = doctor(&place, &config).failed(1, &[]).stdout;
    let gone = ["memory for the configuration in", "the next start refuses"];
    contains(&report, &gone);
    let refused = place.start_node(&config, 1).end();
    refused.failed(
        1,
        &[
            "has kept memory in",
            "no configuration is there",
            "farm destroy",
        ],
    );
    // Neither does a command use its name, with a configuration of its own.
    let command = ["smallbank", "--config", &config, "--set"];
    let elsewhere = format!("durability.dir={}", place.path("else").display());
    fs::rename(&away, &dir).unwrap();
    let refused = place.farm(&[&command[..], &[&elsewhere]].concat()).end();
    refused.failed(1, &["start the machine with durability.dir", path]);

    // Nothing is destroyed by halves when the memory is in another directory than the one that is named.
    let memory = format!("memory.dir={}", place.path("tmp").display());
    let missing = [
        "machine(s) m1, m2, which is not complete in",
        "--memory-is-gone",
    ];
    destroy(&place, &config, &["--yes", "--set", &memory]).failed(1, &missing);
    let would = destroy(&place, &config, &["--set", &memory]).ok().stdout;
    contains(&would, &missing);
    assert!(!would.contains("farm destroy --yes"), "{would}");
    let run_dir = format!("cluster.run_dir={}", place.path("other").display());
    destroy(&place, &config, &["--yes", "--set", &run_dir]).failed(1, &missing);
    let node = ["node", "--machine", "1", "--config", &config];
    let mode = [
        "--set",
        "durability.mode=none",
        "--set",
        "durability.replicas=1",
    ];
    let mut none = place.farm(&[&node[..], &mode].concat());
    none.wait_for("kept its data in");
    none.wait_for(WAITS);
    none.signal(Signal::INT);
    none.end().ok();

    // Nor by a copy of the configuration: the memory is that of the other one, which is there.
    let copy = place.path("copy");
    fs::create_dir(&copy).unwrap();
    for (file, bytes) in content(&dir) {
        fs::write(copy.join(file.file_name().unwrap()), bytes).unwrap();
    }
    let by_copy = format!("durability.dir={}", copy.display());
    let kept_for = ["has kept memory for the configuration in", path];
    destroy(&place, &config, &["--yes", "--set", &by_copy]).failed(1, &kept_for);

    // The journals of this cluster stay, too, when another one of its name is destroyed.
    let other = ["--yes", "--set", &elsewhere, "--set", &memory];
    let nothing = destroy(&place, &config, &other).ok().stdout;
    contains(&nothing, &["has left nothing"]);
    let nothing = destroy(&place, &config, &["--set", &elsewhere]).ok().stdout;
    let named = format!("--set durability.dir={path}");
    contains(&nothing, &["has left nothing", &named]);

    let before = content(&dir);
    assert_eq!(before.len(), 1);
    let kept = clean(&place, &config, &[]).ok().stdout;
    contains(&kept, &["kept 1 file(s)", options.as_str()]);
    let would = destroy(&place, &config, &[]).ok().stdout;
    let memory = [
        "memory of machine m1",
        "memory of machine m2",
        "2 file(s) of journals",
    ];
    contains(
        &would,
        &[
            "would remove 1 file(s)",
            path,
            "change 1",
            "nothing was removed",
        ],
    );
    contains(&would, &memory);
    assert_eq!(content(&dir), before);

    // A file that is not of the store stays.
    fs::write(dir.join("notes"), "mine").unwrap();
    let same = place.path("same");
    std::os::unix::fs::symlink(&dir, &same).unwrap();
    let by_link = format!("durability.dir={}", same.display());
    let removed = destroy(&place, &config, &["--yes", "--set", &by_link])
        .ok()
        .stdout;
    contains(&removed, &["removes 1 file(s)", same.to_str().unwrap()]);
    assert_eq!(place.memory(), Vec::<PathBuf>::new());
    contains(&removed, &memory);
    assert_eq!(content(&dir), [(dir.join("notes"), b"mine".to_vec())]);
    contains(
        &reported(&place, &config, 0),
        &["has no configuration; a start can use it"],
    );
    run_once(&place, &config);
    fs::remove_file(dir.join("notes")).unwrap();
    destroy(&place, &config, &["--yes"]).ok();
    // A directory that the user has named stays.
    assert!(content(&dir).is_empty());
}

/// Regression test: a node that only waited for others left a directory, which other users could read.
#[test]
fn a_node_that_only_waits_leaves_no_directory() {
    let place = Place::new("store-waits");
    let dir = place.path("state/store");
    let config = replicated(&place, 2, &dir);
    let mut node = place.start_node(&config, 1);
    node.wait_for(WAITS);
    wait_until("machine 1 does not listen", common::DEADLINE, || {
        !place.sockets().is_empty()
    });
    place
        .start_node(&config, 1)
        .end()
        .failed(1, &["machine m1", "is already running"]);
    node.signal(Signal::INT);
    node.end().ok();
    assert!(!place.path("state").exists());
}

#[test]
fn a_store_is_not_removed_while_any_machine_runs() {
    let place = Place::new("store-stopped");
    let dir = place.path("store");
    let config = replicated(&place, 2, &dir);
    let mut nodes = [1, 2].map(|machine| place.start_node(&config, machine));
    nodes.iter_mut().for_each(|node| node.wait_for(RUNS));
    let [manager, other] = nodes;
    other.signal(Signal::STOP);
    manager.signal(Signal::KILL);
    assert_eq!(manager.end().signal, Some(9));
    destroy(&place, &config, &["--yes"]).failed(1, &["machine(s) m2", "stop all machines"]);
    assert_eq!(content(&dir).len(), 1);
    other.signal(Signal::CONT);
    let mut other = other;
    other.wait_for("the cluster goes on with 1 of 2 machines");
    // It has changed the configuration.
    let uses = ["a running process uses it", "stop all machines"];
    destroy(&place, &config, &["--yes"]).failed(1, &uses);
    other.signal(Signal::KILL);
    assert_eq!(other.end().signal, Some(9));
    // All memory has a second name by which killed processes held it, and stayed until `farm clean`.
    let removed = destroy(&place, &config, &["--yes"]).ok().stdout;
    contains(&removed, &["of processes that were killed"]);
    assert_eq!(place.memory(), Vec::<PathBuf>::new());
    assert_eq!(place.names(), Vec::<PathBuf>::new());
    // A directory that the user has named stays.
    assert!(content(&dir).is_empty());
}

#[test]
fn destroy_needs_the_configuration_of_a_cluster_with_copies() {
    let place = Place::new("store-none");
    let without = place.config("farm.toml", "64MiB", 2, "");
    destroy(&place, &without, &[]).failed(2, &["\"none\"", "--config"]);
    let report = doctor(&place, &without).ok().stdout;
    assert!(
        !report.contains("durability") && !report.contains(" store "),
        "{report}"
    );
}

/// Checks that the doctor, a start, and a removal refuse what is in the directory, and change nothing.
#[track_caller]
fn refused(place: &Place, config: &str, dir: &Path, texts: &[&str]) {
    let before = dir.is_dir().then(|| content(dir));
    contains(&reported(place, config, 1), &[&["problem"], texts].concat());
    place.start_node(config, 1).end().failed(1, texts);
    contains(
        &clean(place, config, &[]).ok().stdout,
        &[&["kept what is in"], texts].concat(),
    );
    destroy(place, config, &["--yes"]).failed(1, texts);
    assert_eq!(dir.is_dir().then(|| content(dir)), before);
    assert_eq!(place.stale_files(), Vec::<String>::new());
}

#[test]
fn content_that_is_not_of_this_cluster_or_cannot_be_read_is_refused_and_kept() {
    let place = Place::new("store-bad");
    let dir = place.path("store");
    let config = replicated(&place, 2, &dir);
    run_once(&place, &config);
    let file = newest(&dir);
    let good = fs::read(&file).unwrap();

    let mut newer = good.clone();
    newer[8] = 9;
    fs::write(&file, &newer).unwrap();
    refused(
        &place,
        &config,
        &dir,
        &["has format 9", "use the program that wrote it"],
    );
    let mut damaged = good.clone();
    damaged[40] ^= 1;
    fs::write(&file, &damaged).unwrap();
    refused(
        &place,
        &config,
        &dir,
        &["checksum is wrong", "Restore this file"],
    );
    destroy(&place, &config, &["--yes"]).failed(1, &["config-*", "rm "]);
    fs::write(&file, &good[..50]).unwrap();
    refused(&place, &config, &dir, &["50 bytes", "Restore this file"]);
    fs::write(&file, &good).unwrap();
    let renamed = dir.join("config-00000000000000000009");
    fs::rename(&file, &renamed).unwrap();
    refused(
        &place,
        &config,
        &dir,
        &["was renamed or copied", "Restore its name"],
    );
    fs::rename(&renamed, &file).unwrap();

    // The directory of another cluster.
    let text = fs::read_to_string(&config).unwrap();
    let text = text.replace(place.name(), &format!("{}-other", place.name()));
    let other = place.write("other.toml", &text);
    let texts = [
        "has the configuration of the cluster",
        "give each cluster a directory of its own",
    ];
    refused(&place, other.to_str().unwrap(), &dir, &texts);

    // A file in the place of the directory.
    destroy(&place, &config, &["--yes"]).ok();
    fs::remove_dir(&dir).unwrap();
    fs::write(&dir, "").unwrap();
    refused(&place, &config, &dir, &["a file has this name: remove it"]);
}

#[test]
fn a_directory_that_this_user_cannot_write_is_refused_before_the_machines_meet() {
    let place = Place::new("store-ro");
    let Some(disk) = Tmpfs::mount(&place, "disk", "size=1m") else {
        return;
    };
    disk.set_read_only(true);
    let dir = disk.0.join("store");
    let config = replicated(&place, 2, &dir);
    let texts = [
        "Read-only file system",
        "let this user read and write there",
    ];
    contains(&reported(&place, &config, 1), &texts);
    place.start_node(&config, 1).end().failed(1, &texts);
    assert!(!dir.exists());
}

/// Returns a cluster of a program and a node, which keeps the configuration, with two copies of every region.
fn joined(place: &Place, dir: &Path) -> (Cluster, Run) {
    let config = replicated(place, 2, dir);
    let node = place.start_node(&config, 1);
    let second = MachineId::new(2).unwrap();
    (Cluster::join(&config, second).start().unwrap(), node)
}

/// Pairs of a table whose shards take more than half of a region each.
const PAIRS: u64 = 11_000;

type Value = [u8; 1000];

fn fill(cluster: &Cluster, table: &Table<u64, Value>, keys: std::ops::Range<u64>) {
    let insert = async |farm: farm::Farm| {
        for key in keys {
            table.insert(&farm, key, [key as u8; 1000]).await?;
        }
        Ok::<_, farm::Error>(())
    };
    cluster.block_on(insert).unwrap();
}

/// Checks that no table can be created while `fault` lasts, that the node logs these words, and that nothing is lost afterwards.
fn survives(
    (cluster, node): (&Cluster, &mut Run),
    texts: &[&str],
    fault: impl FnOnce(),
    repair: impl FnOnce(),
) {
    let table: Table<u64, Value> = cluster.create_table("before", PAIRS).unwrap();
    fill(cluster, &table, 0..50);
    fault();
    // The shards of one fit into the regions that were made ahead, if these were recorded before; those of another one do not.
    let mut tables = ["large", "larger", "largest"].into_iter();
    let create = |name| {
        cluster
            .create_table::<u64, Value>(name, PAIRS)
            .err()
            .map(|error| (name, error))
    };
    let (name, refused) = tables
        .find_map(create)
        .expect("one of the tables needs a region that is not recorded yet");
    contains(&refused.to_string(), &["see the log of that machine"]);
    for text in texts {
        node.wait_for(text);
    }
    fill(cluster, &table, 50..100);
    repair();
    let large = cluster.create_table(name, PAIRS);
    let large: Table<u64, Value> =
        large.unwrap_or_else(|error| panic!("{error}\n{}", node.stderr()));
    cluster
        .block_on(async |farm: farm::Farm| {
            large.insert(&farm, 7, [7; 1000]).await?;
            assert_eq!(large.get(&farm, 7).await?, Some([7; 1000]));
            for key in 0..100 {
                assert_eq!(table.get(&farm, key).await?, Some([key as u8; 1000]));
            }
            Ok::<_, farm::Error>(())
        })
        .unwrap();
}

#[test]
fn a_directory_that_goes_away_while_the_cluster_runs_is_reported_and_can_be_restored() {
    let place = Place::new("store-gone");
    let dir = place.path("store");
    let (cluster, mut node) = joined(&place, &dir);
    let away = place.path("away");
    let fault = || fs::rename(&dir, &away).unwrap();
    let repair = || fs::rename(&away, &dir).unwrap();
    survives(
        (&cluster, &mut node),
        &["is gone: restore it", "durability.dir"],
        fault,
        repair,
    );
    cluster.stop().unwrap();
    node.end().ok();
}

#[test]
fn a_full_disk_is_reported_and_the_cluster_continues() {
    let place = Place::new("store-full");
    let Some(disk) = Tmpfs::mount(&place, "disk", "size=256k") else {
        return;
    };
    let dir = disk.0.join("store");
    let config = replicated(&place, 2, &dir);
    let filler = disk.0.join("filler");
    let fault = || {
        let mut bytes = 256 << 10;
        while bytes >= 1024 {
            let mut file = fs::OpenOptions::new()
                .create(true)
                .append(true)
                .open(&filler)
                .unwrap();
            if std::io::Write::write_all(&mut file, &vec![1; bytes]).is_err() {
                bytes /= 2;
            }
        }
    };
    fault();
    contains(
        &reported(&place, &config, 1),
        &["does not exist; a start creates it"],
    );
    let report = doctor(&place, &config).stdout;
    contains(&report, &["0 B free", "free some space there"]);
    // A start on a full disk leaves nothing.
    let second = place.start_node(&config, 2);
    place
        .start_node(&config, 1)
        .end()
        .failed(1, &["No space left", "free some space there"]);
    second.end().failed(1, &["m1"]);
    assert!(!dir.exists());
    fs::remove_file(&filler).unwrap();

    let (cluster, mut node) = joined(&place, &dir);
    let repair = || fs::remove_file(&filler).unwrap();
    survives(
        (&cluster, &mut node),
        &["No space left", "free some space there"],
        fault,
        repair,
    );
    cluster.stop().unwrap();
    node.end().ok();
}

/// A machine of a cluster that has ended waits for another one in vain. It takes over the memory of its process before, and leaves no logs of its
/// own, which would take 24 MiB each time.
#[test]
fn a_start_that_waits_in_vain_leaves_no_logs() {
    let place = Place::new("in-vain");
    let config = replicated(&place, 2, &place.path("store"));
    run_once(&place, &config);
    // A file of memory may have several names.
    let kept_logs = || {
        let is_log = |path: &PathBuf| {
            let name = path.to_string_lossy();
            let what = name.split('-').nth(4).unwrap_or_default().to_owned();
            what.starts_with('l')
        };
        let logs = place.memory().into_iter().filter(is_log);
        let files = logs.map(|path| path.metadata().unwrap().ino());
        files.collect::<BTreeSet<u64>>().len()
    };
    let before = kept_logs();
    assert!(before > 0);
    for _ in 0..2 {
        let mut node = place.start_node(&config, 1);
        node.wait_for(WAITS);
        node.signal(Signal::INT);
        node.end();
    }
    assert_eq!(kept_logs(), before);
    run_once(&place, &config);
}

/// What a machine has kept is refused in another format, and with another configuration file, before anything changes: also where the memory of
/// another machine is gone, so that the next configuration would be made without that.
#[test]
fn kept_memory_of_another_version_or_configuration_is_refused() {
    let place = Place::new("format");
    let config = replicated(&place, 2, &place.path("store"));
    run_once(&place, &config);
    let newest = || {
        let entries = fs::read_dir(place.path("store")).unwrap().flatten();
        entries.map(|entry| entry.file_name()).collect::<Vec<_>>()
    };
    let before = newest();
    for path in place.memory() {
        if path.to_string_lossy().contains("-m2-") {
            fs::remove_file(path).unwrap();
        }
    }
    let other = fs::read_to_string(&config)
        .unwrap()
        .replace("16MiB", "8MiB");
    let other = place.write("other.toml", &other).display().to_string();
    let text = "was written by a machine with another configuration: memory.region_bytes is ";
    place.start_node(&other, 1).end().failed(1, &[text]);
    for journal in place.names() {
        if journal.to_string_lossy().ends_with(".journal") {
            let mut bytes = fs::read(&journal).unwrap();
            bytes[7] += 1;
            fs::write(&journal, bytes).unwrap();
        }
    }
    let text = "has format 4, and this program reads format 3";
    place
        .start_node(&config, 1)
        .end()
        .failed(1, &[text, "farm destroy"]);
    assert_eq!(newest(), before);
}

/// A file that is too short is named before anything changes, and the machines go on without that memory when a user does what the error says.
#[test]
fn a_truncated_file_of_kept_memory_is_named() {
    let place = Place::new("truncated");
    let config = replicated(&place, 2, &place.path("store"));
    run_once(&place, &config);
    let is_of = |path: &PathBuf| {
        let name = path.to_string_lossy();
        name.contains("-m2-") && name.contains("-l1.")
    };
    let logs = place.memory().into_iter().find(is_of).unwrap();
    let file = fs::File::options().write(true).open(&logs).unwrap();
    file.set_len(100).unwrap();
    let named = [
        logs.to_str().unwrap(),
        "has 100 bytes instead of",
        "journals",
    ];
    place.start_node(&config, 2).end().failed(1, &named);
    for journal in place.names() {
        let name = journal.file_name().unwrap().to_string_lossy().into_owned();
        if name.starts_with("m2-") && name.ends_with(".journal") {
            fs::rename(&journal, place.path(&name)).unwrap();
        }
    }
    run_once(&place, &config);
}

/// What machines have kept is theirs again when they start: `farm doctor` does not ask for as much memory beside it.
#[test]
fn kept_memory_counts_as_free_for_the_machines_that_have_kept_it() {
    let place = Place::new("kept-free");
    let Some(memory) = Tmpfs::mount(&place, "memory", "size=215m") else {
        return;
    };
    let config = replicated(&place, 2, &place.path("store"));
    let text = fs::read_to_string(&config).unwrap();
    let dir = format!("[memory]\ndir = \"{}\"\n", memory.0.display());
    fs::write(&config, text.replace("[memory]\n", &dir)).unwrap();
    let report = doctor(&place, &config).ok().stdout;
    contains(&report, &["a thread with priority", "leases have 500ms"]);
    run_once(&place, &config);
    let kept = place.memory_in(&memory.0).into_iter();
    let kept = kept.map(|path| path.symlink_metadata().unwrap());
    let files: BTreeMap<u64, u64> = kept.map(|file| (file.ino(), file.len())).collect();
    let kept: u64 = files.values().sum();
    assert!(kept > 40_000_000, "{kept} bytes");
    doctor(&place, &config).ok();
    run_once(&place, &config);
    // Others have taken what was free. The data is there, and the machines go on with it. They once refused.
    let other = memory.0.join("other");
    let free = rustix::fs::statvfs(&memory.0).unwrap();
    let free = free.f_bavail * free.f_frsize;
    fs::write(&other, vec![0; free as usize - 52_000_000]).unwrap();
    doctor(&place, &config).failed(1, &[]);
    run_once(&place, &config);
}
