//! `farm verify` of a program and two nodes, from another process.

mod common;

use std::fs::File;
use std::io::Write as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::atomic::{AtomicBool, Ordering};

use common::{DEADLINE, Ended, Place, Run, number, wait_until};
use farm::status::replicas::replica_state;
use farm::{Cluster, Error, Farm, Ptr, Table};
use farm_core::ids::{Address, MachineId};
use farm_core::machine::newest_configuration;
use rustix::process::Signal;
use serde_json::Value;

/// Exit status if the replicas could not be compared.
const NOT_COMPARED: i32 = 3;
/// Bytes of a value.
type Bytes = [u8; 120];

fn first() -> MachineId {
    MachineId::new(1).unwrap()
}

/// Writes the configuration of three small machines with copies. Returns its path.
fn with_replicas(place: &Place, replicas: u8) -> String {
    let dir = place.path("state");
    let more = format!(
        "[durability]\nmode = \"memory\"\nreplicas = {replicas}\ndir = \"{}\"\n",
        dir.display()
    );
    place.keeps_data();
    place.config("farm.toml", "64MiB", 3, &more)
}

/// Starts two nodes, and the first machine in this process.
fn start(place: &Place, config: &str) -> (Cluster, [Run; 2]) {
    let nodes = [2, 3].map(|machine| place.start_node(config, machine));
    (Cluster::join(config, first()).start().unwrap(), nodes)
}

fn stop(cluster: Cluster, nodes: [Run; 2]) {
    cluster.stop().unwrap();
    for node in nodes {
        node.end().ok();
    }
}

fn verify(place: &Place, config: &str, more: &[&str]) -> Ended {
    place
        .farm(&[&["verify", "--config", config], more].concat())
        .end()
}

/// Inserts, changes and removes pairs on all machines, and allocates, writes and frees objects. Returns objects that remain.
fn work(cluster: &Cluster) -> Vec<Ptr<Bytes>> {
    let table: Table<u64, Bytes> = cluster.create_table("verified", 2000).unwrap();
    let run = async |farm: Farm| {
        for key in 0..500 {
            table.insert(&farm, key, [1; 120]).await?;
        }
        for key in 0..200 {
            table.remove(&farm, key * 2).await?;
            table.put(&farm, key * 2 + 1, [2; 120]).await?;
        }
        let mut kept = Vec::new();
        for number in 0..60 {
            let made: Ptr<Bytes> = farm
                .transact(async |tx| tx.alloc([number; 120]).await)
                .await?;
            farm.transact(async |tx| tx.set(made, [number + 1; 120]).await)
                .await?;
            match number % 3 {
                0 => farm.transact(async |tx| tx.free(made).await).await?,
                _ => kept.push(made),
            }
        }
        // A transaction that reserves memory, and does not commit.
        let refused = farm
            .transact(async |tx| {
                tx.alloc([0u64; 100]).await?;
                Err::<(), _>(Error::refused("no"))
            })
            .await;
        assert!(refused.is_err());
        Ok::<_, Error>(kept)
    };
    cluster.block_on(run).unwrap()
}

/// A byte or word of the file of a machine's replica of a region.
struct Stored {
    file: File,
    at: u64,
}

impl Stored {
    /// Finds the file by the region's number in its block table, and by the machine in its name.
    fn find(place: &Place, machine: MachineId, address: Address, at: u64) -> Self {
        let name = format!("-{machine}-");
        let files = place.memory().into_iter();
        // Without the further names of what is kept.
        let files = files.filter(|path| {
            let path = path.to_string_lossy();
            path.contains(&name) && path.contains("/farm-")
        });
        let found = files.filter_map(|path| {
            let file = File::options().read(true).write(true).open(path).unwrap();
            let mut header = [0; 12];
            file.read_at(&mut header, 0).unwrap();
            let (magic, region) = header.split_at(8);
            let region = u32::from_le_bytes(region.try_into().unwrap());
            (magic == b"FaRMblk2" && region == address.region().to_bits()).then_some(file)
        });
        let found: Vec<File> = found.collect();
        let [file] = <[File; 1]>::try_from(found).expect("a machine has one replica of a region");
        Self { file, at }
    }

    fn flip(&self, bits: u8) {
        let mut byte = [0];
        self.file.read_exact_at(&mut byte, self.at).unwrap();
        self.file.write_all_at(&[byte[0] ^ bits], self.at).unwrap();
    }
}

/// Returns the report of a comparison with this exit status.
fn report(place: &Place, config: &str, code: i32) -> Value {
    let ended = verify(place, config, &["--json"]).failed(code, &[]);
    serde_json::from_str(&ended.stdout).unwrap()
}

fn equal_replicas_and_damaged_ones(replicas: u8) {
    let place = Place::new("verify");
    let config = with_replicas(&place, replicas);
    verify(&place, &config, &[]).failed(NOT_COMPARED, &["none of its machines runs on this host"]);
    let (cluster, nodes) = start(&place, &config);
    let kept = work(&cluster);

    let equal = report(&place, &config, 0);
    assert_eq!(
        (&equal["equal"], &equal["different"]),
        (&true.into(), &0.into())
    );
    let machines = equal["machines"].as_array().unwrap();
    let sum = |key: &str| {
        machines
            .iter()
            .map(|machine| number(machine, key))
            .sum::<f64>()
    };
    assert_eq!(sum("primaries"), number(&equal, "regions"));
    assert_eq!(
        sum("replicas"),
        number(&equal, "regions") * f64::from(replicas)
    );
    let objects = sum("objects") / f64::from(replicas);
    assert!(
        objects > kept.len() as f64 && objects.fract() == 0.0,
        "{equal:#}"
    );
    let words = verify(&place, &config, &[]).ok().stdout;
    assert!(words.contains("all replicas are equal"), "{words}");

    // A byte of an object at its last backup.
    let state = replica_state(cluster.config(), first()).unwrap().unwrap();
    let address = Address::from_bits(kept[7].to_words()[0]).unwrap();
    let mut regions = state.regions.iter();
    let stored = regions.find(|region| region.region == address.region());
    let stored = stored
        .expect("the region of an object is recorded")
        .machines
        .clone();
    assert_eq!(stored.len(), usize::from(replicas));
    let (primary, backup) = (stored[0], stored[stored.len() - 1]);
    let offset = u64::from(address.offset());
    let byte = Stored::find(&place, backup, address, offset + 16 + 40);
    byte.flip(4);
    let differ = verify(&place, &config, &[]).failed(1, &[]).stdout;
    let named = format!("object {address}: bytes on {backup} differs from the primary {primary}");
    assert!(differ.contains(&named), "no {named:?} in\n{differ}");
    let found = report(&place, &config, 1);
    assert_eq!(found["different"], 1);
    let difference = &found["differences"][0];
    assert_eq!(difference["address"], address.to_string());
    assert_eq!(difference["machine"], backup.to_string());
    assert_eq!(difference["differs"], serde_json::json!(["bytes"]));
    byte.flip(4);
    verify(&place, &config, &[]).ok();

    // The version of an object at its primary: all backups differ from it.
    let version = Stored::find(&place, primary, address, offset + 1);
    version.flip(1);
    let found = report(&place, &config, 1);
    assert_eq!(found["different"], replicas - 1);
    assert_eq!(
        found["differences"][0]["differs"],
        serde_json::json!(["version"])
    );
    version.flip(1);

    // The block table of a backup.
    let table = Stored::find(&place, backup, address, 64);
    table.flip(0xf0);
    let differ = verify(&place, &config, &[]).failed(1, &[]).stdout;
    let named = format!(
        "the replica of {backup} is unusable: region {}",
        address.region()
    );
    assert!(differ.contains(&named), "no {named:?} in\n{differ}");
    table.flip(0xf0);
    verify(&place, &config, &[]).ok();
    stop(cluster, nodes);
}

#[test]
fn two_replicas_are_compared_and_damage_is_found() {
    equal_replicas_and_damaged_ones(2);
}

#[test]
fn three_replicas_are_compared_and_damage_is_found() {
    equal_replicas_and_damaged_ones(3);
}

/// A cluster that has lost a machine was refused, when an operator most wants to know.
#[test]
fn what_is_left_after_a_loss_is_compared() {
    compare_without_a_machine("verify-lost", Signal::KILL);
}

/// A machine that stands still is left out, and does not answer.
#[test]
fn what_is_left_without_a_machine_that_stands_still_is_compared() {
    compare_without_a_machine("verify-stands", Signal::STOP);
}

fn compare_without_a_machine(name: &str, signal: Signal) {
    let place = Place::new(name);
    let config = with_replicas(&place, 2);
    let (cluster, [second, third]) = start(&place, &config);
    work(&cluster);
    third.signal(signal);
    wait_until("the others have not gone on", DEADLINE, || {
        let newest = newest_configuration(cluster.config()).unwrap().unwrap();
        newest.running().count() == 2
    });
    let text = verify(&place, &config, &[]).ok().stdout;
    assert!(
        text.contains("all replicas are equal") && text.contains("without machine(s) m3"),
        "{text}"
    );
    assert_eq!(
        report(&place, &config, 0)["lost"],
        serde_json::json!(["m3"])
    );
    third.signal(Signal::KILL);
    assert_eq!(third.end().signal, Some(9));
    cluster.stop().unwrap();
    second.end().ok();
    let destroy = ["destroy", "--yes", "--config", &config];
    place.farm(&destroy).end().ok();
}

#[test]
fn a_cluster_that_is_not_idle_is_not_compared() {
    let place = Place::new("verify-busy");
    let config = with_replicas(&place, 2);
    let (cluster, nodes) = start(&place, &config);
    let numbers = cluster.create_sequence("numbers", 1).unwrap();
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            cluster.block_on(async |farm| {
                while !ends.load(Ordering::Relaxed) {
                    numbers.next(&farm).await.unwrap();
                }
            });
        });
        let busy = verify(&place, &config, &["--wait", "0.3"]);
        ends.store(true, Ordering::Relaxed);
        busy.failed(NOT_COMPARED, &["not idle after 0.3 s: machine m", "--wait"]);
    });
    verify(&place, &config, &[]).ok();

    // Configurations that the cluster does not run with.
    let dir = place.path("state");
    let dir = dir.display();
    let of = |name: &str, machines, replicas, more: &str| {
        let more = format!(
            "[durability]\nmode = \"memory\"\nreplicas = {replicas}\ndir = \"{dir}\"\n{more}"
        );
        place.config(name, "64MiB", machines, &more)
    };
    for (other, differs) in [
        (of("four.toml", 4, 2, ""), "machine.4.id = 4 is only here"),
        (of("two.toml", 2, 2, ""), "machine.3.id = 3 is only there"),
        (
            of("copies.toml", 3, 3, ""),
            "durability.replicas is 3 here, and 2 there",
        ),
        (
            of("table.toml", 3, 2, "[table]\noccupancy = 0.5\n"),
            "table.occupancy is 0.5 here, and 0.9 there",
        ),
    ] {
        let texts = ["another configuration", differs, "--config"];
        verify(&place, &other, &[]).failed(NOT_COMPARED, &texts);
    }
    // A key that each machine may choose.
    let patient = of("patient.toml", 3, 2, "[transactions]\npatience_ms = 5\n");
    verify(&place, &patient, &[]).ok();
    verify(&place, &config, &["--wait", "soon"]).failed(2, &["--wait"]);
    stop(cluster, nodes);
}

#[test]
fn a_cluster_without_copies_has_nothing_to_compare() {
    for (name, mode, why) in [
        ("verify-none", "none", "durability.mode = \"none\""),
        ("verify-one", "memory", "durability.replicas = 1"),
    ] {
        let place = Place::new(name);
        let more = format!(
            "[durability]\nmode = \"{mode}\"\nreplicas = 1\ndir = \"{}\"\n",
            place.path("state").display()
        );
        place.keeps_data();
        let config = place.config("farm.toml", "64MiB", 2, &more);
        let cluster = Cluster::from_file(&config).start().unwrap();
        verify(&place, &config, &[]).failed(NOT_COMPARED, &["nothing to compare", why]);
        cluster.stop().unwrap();
    }
}

/// Regression test: a cluster without regions was reported as equal.
#[test]
fn a_cluster_without_regions_is_not_reported_as_equal() {
    let place = Place::new("verify-empty");
    let config = with_replicas(&place, 2);
    let (cluster, nodes) = start(&place, &config);
    let ended = verify(&place, &config, &["--json"]);
    let ended = ended.failed(NOT_COMPARED, &["nothing to compare", "no regions"]);
    assert_eq!(ended.stdout, "");
    cluster.create_sequence("numbers", 1).unwrap();
    verify(&place, &config, &[]).ok();
    stop(cluster, nodes);
}

/// A machine without memory joins, writes and leaves between two looks at the others: what they report has changed.
#[test]
fn a_machine_that_joins_and_leaves_between_two_looks_is_noticed() {
    let place = Place::new("verify-visit");
    let dir = place.path("state");
    let more = format!(
        "memory_bytes = 0\n[durability]\nmode = \"memory\"\nreplicas = 2\ndir = \"{}\"\n",
        dir.display()
    );
    place.keeps_data();
    let config = place.config("farm.toml", "64MiB", 3, &more);
    let (cluster, [second, third]) = start(&place, &config);
    let numbers = cluster.create_sequence("numbers", 1).unwrap();
    let leave = |node: Run| {
        node.signal(Signal::INT);
        node.end().ok();
        let changed = || {
            connections(&cluster)
                .iter()
                .all(|(connected, _)| !connected)
        };
        wait_until("machine 3 is still connected", DEADLINE, changed);
    };
    leave(third);
    let before = connections(&cluster);
    verify(&place, &config, &[]).ok();
    let mut third = place.start_node(&config, 3);
    third.wait_for("runs; stop it with Ctrl-C");
    leave(third);
    let after = connections(&cluster);
    assert!(
        before
            .iter()
            .zip(&after)
            .all(|(before, after)| before.1 < after.1),
        "{before:?} {after:?}"
    );
    cluster
        .block_on(async |farm| numbers.next(&farm).await)
        .unwrap();
    verify(&place, &config, &[]).ok();
    cluster.stop().unwrap();
    second.end().ok();
}

/// Returns what machines 1 and 2 report about their connections to machine 3: whether there is one, and how many began or ended.
fn connections(cluster: &Cluster) -> Vec<(bool, u64)> {
    let third = MachineId::new(3).unwrap();
    let of = |id| {
        let state = replica_state(cluster.config(), MachineId::new(id).unwrap());
        let state = state.unwrap().expect("the machine runs");
        let log = state.logs.iter().find(|log| log.machine == third);
        let log = log.expect("all machines are listed");
        (log.connected, log.changes)
    };
    [1, 2].map(of).to_vec()
}

/// Programs from before this command answer `farm status`, and have no socket for requests about replicas.
#[test]
fn a_machine_of_an_older_program_is_named() {
    let place = Place::new("verify-old");
    let config = place.three_machines();
    let dir = place.path("run").canonicalize().unwrap().join(place.name());
    let identity = xxhash_rust::xxh3::xxh3_64(dir.as_os_str().as_bytes());
    let name = format!("farm-{identity:016x}-m1-status");
    let address = SocketAddr::from_abstract_name(name).unwrap();
    let listener = UnixListener::bind_addr(&address).unwrap();
    let answering = std::thread::spawn(move || {
        let status = serde_json::json!({
            "version": 1, "farm": "0.0.9", "machine": 1, "pid": 77, "uptime_s": 1.0, "workers": 1, "fabric": "shm",
            "address": null, "classes": [], "tables": [], "counts": {},
            "memory": {"dir": "/", "limit": 1, "regions": 1, "free": 1, "slabs": 1, "arrays": 1},
        });
        let (mut caller, _) = listener.accept().unwrap();
        caller.write_all(status.to_string().as_bytes()).unwrap();
    });
    let texts = [
        "machine m1 (process 77, farm 0.0.9)",
        "does not know `farm verify`",
    ];
    verify(&place, &config, &[]).failed(NOT_COMPARED, &texts);
    answering.join().unwrap();
}
