//! Machines that connect, are refused, die or are interrupted: their messages and exit codes, and that they leave
//! nothing behind.

mod common;

use std::time::Duration;

use common::{DEADLINE, Place, Run, wait_until};
use rustix::process::Signal;

/// Options of a run of 120 seconds, which the tests end earlier.
const LONG: [&str; 8] = [
    "--records",
    "10000",
    "--value-bytes",
    "32",
    "--duration",
    "120",
    "--workload",
    "a",
];
/// Options of a run whose load of the table takes long.
const LARGE: [&str; 6] = [
    "--records",
    "3000000",
    "--value-bytes",
    "32",
    "--set",
    "memory.per_machine_bytes=512MiB",
];
/// Time limit within which the other processes end after a machine has died or was refused.
const NOTICED: Duration = Duration::from_secs(5);
/// Time limit within which a process ends after a signal.
const PROMPT: Duration = Duration::from_secs(3);

/// Starts all machines of a configuration file and waits until they run.
fn nodes(place: &Place, config: &str, machines: u16) -> Vec<Run> {
    let mut nodes: Vec<Run> = (1..=machines)
        .map(|machine| place.start_node(config, machine))
        .collect();
    let sockets = place.path("run").join(place.name());
    for node in &mut nodes {
        node.wait_for("runs; stop it with Ctrl-C");
        // What the node has taken is reported before.
        node.wait_for(&format!(
            "shared memory, sockets in {}; ",
            sockets.display()
        ));
        node.wait_for("and up to 32 MiB for regions in /");
    }
    nodes
}

/// Starts `farm ycsb` and waits until its run is in progress.
fn mid_run(place: &Place) -> Run {
    let mut launcher = place.small("ycsb", &LONG);
    launcher.wait_for("running workload a");
    std::thread::sleep(Duration::from_millis(200));
    launcher
}

/// Checks that a cluster of the place's name can run.
fn runs_again(place: &Place) {
    let args = [
        "--records",
        "10000",
        "--duration",
        "0.2",
        "--warmup",
        "0",
        "--verify",
    ];
    place.small("ycsb", &args).end().ok();
}

/// Waits until the table is being created: until there are more files than three doorbells and nine ring segments.
fn wait_for_load(place: &Place) {
    wait_until("the table is not being created", DEADLINE, || {
        place.memory().len() > 3 + 9 + 3
    });
    std::thread::sleep(Duration::from_millis(100));
}

#[test]
fn two_nodes_connect_and_stop_when_interrupted() {
    let place = Place::new("nodes");
    let config = place.config("cluster.toml", "32MiB", 2, "");
    let nodes = nodes(&place, &config, 2);
    assert!(!place.memory().is_empty() && place.sockets().len() == 2);
    assert_eq!(
        place.names().len(),
        4,
        "a lock and a socket of each machine"
    );
    for node in &nodes {
        node.signal(Signal::INT);
    }
    for node in nodes {
        node.end_within(PROMPT).ok();
    }
    assert_eq!(place.stale_files(), Vec::<String>::new());
}

#[test]
fn a_node_that_is_stopped_stops_the_others() {
    let place = Place::new("leaving");
    let config = place.config("cluster.toml", "32MiB", 3, "");
    let mut nodes = nodes(&place, &config, 3);
    let leaving = nodes.remove(1);
    leaving.signal(Signal::TERM);
    let left = leaving.end_within(PROMPT).ok();
    let line = "machine m2 stops: it received SIGINT or SIGTERM";
    assert!(left.stderr.contains(line), "{}", left.stderr);
    for (node, id) in nodes.into_iter().zip(["m1", "m3"]) {
        // Regression: the node ended without a message.
        let ended = node.end_within(NOTICED).ok();
        let line = format!("machine {id} stops: machine m2 left the cluster");
        assert!(ended.stderr.contains(&line), "{}", ended.stderr);
    }
    assert_eq!(place.stale_files(), Vec::<String>::new());
}

/// Regression: the node ended with exit code 0, and did not report the failure to the launcher.
#[test]
fn an_invalid_order_stops_a_node_with_an_error() {
    let place = Place::new("bad-order");
    let config = place.config("cluster.toml", "32MiB", 1, "");
    let orders = place.write("orders", "{\"order\":\"fly\"}\n");
    let ended = place
        .farm_reading(&["node", "--driven", "--config", &config], &orders)
        .end();
    assert!(ended.stdout.contains("invalid order"), "{}", ended.stdout);
    ended.failed(1, &[]);
}

/// Regression: every node attached the handlers of judged workloads.
#[test]
fn a_node_refuses_judged_workloads_unless_started_with_judged() {
    let place = Place::new("not-judged");
    let config = place.config("cluster.toml", "32MiB", 1, "");
    let orders = place.write("orders", "{\"order\":\"send_work\",\"settle_s\":0}\n");
    let node = ["node", "--driven", "--config", &config];
    let ended = place.farm_reading(&node, &orders).end();
    assert!(
        ended.stdout.contains("started without --judged"),
        "{}",
        ended.stdout
    );
    ended.failed(1, &[]);
    place
        .farm(&["node", "--judged", "--config", &config])
        .end()
        .failed(2, &["--driven"]);
}

/// Regression: a driven node ignored SIGTERM.
#[test]
fn a_driven_machine_that_is_asked_to_stop_is_named() {
    let place = Place::new("asked");
    for early in [true, false] {
        let launcher = if early {
            let launcher = place.small("ycsb", &LARGE);
            wait_for_load(&place);
            launcher
        } else {
            mid_run(&place)
        };
        place.node(2).signal(Signal::TERM);
        let ended = launcher.end_within(NOTICED);
        ended.failed(1, &["machine m2: the node received SIGTERM"]);
        assert!(place.processes().is_empty(), "{:?}", place.processes());
        assert_eq!(place.stale_files(), Vec::<String>::new());
    }
}

/// A SIGTERM to all processes of a command has the same effect as one to the launcher alone.
#[test]
fn a_command_whose_processes_are_all_asked_to_stop_is_interrupted() {
    let place = Place::new("all-asked");
    let mut launcher = place.small_in_group("ycsb", &LONG);
    launcher.wait_for("running workload a");
    launcher.signal_group(Signal::TERM);
    launcher.end_within(PROMPT).failed(130, &["interrupted"]);
    assert_eq!(place.stale_files(), Vec::<String>::new());
}

/// A machine whose configuration lists more machines than that of the running cluster is refused at once.
/// Regression: it was refused only after 60 seconds, with "Resource temporarily unavailable".
#[test]
fn a_machine_of_another_list_is_refused_at_once_on_both_sides() {
    let place = Place::new("another-list");
    let list = |file: &str, ids: &[u16]| {
        let sections = ids.iter().map(|id| format!("[[machine]]\nid = {id}\n"));
        place.config(file, "32MiB", 0, &sections.collect::<String>())
    };
    let (running, all) = (list("two.toml", &[2, 3]), list("four.toml", &[1, 2, 3, 4]));
    let mut nodes: Vec<Run> = [2, 3].map(|id| place.start_node(&running, id)).into();
    for node in &mut nodes {
        node.wait_for("runs; stop it with Ctrl-C");
    }
    // A machine dials those with smaller ids: machine 1 would accept the others, machine 4 dials them.
    for id in [1, 4] {
        let refused = place.start_node(&all, id).end_within(NOTICED);
        let lists =
            format!("that of m{id} lists m1, m2, m3, m4; start all machines from the same file");
        refused.failed(
            1,
            &[
                "machine m",
                "the configurations differ",
                " lists machines m2, m3",
                &lists,
            ],
        );
    }
    for node in &mut nodes {
        assert!(
            node.is_running(),
            "a node stopped after it refused another machine:\n{}",
            node.stderr()
        );
    }
    let stderr: String = nodes.iter().map(Run::stderr).collect();
    for id in ["m1", "m4"] {
        let line = format!("machine {id} was refused: the configurations differ");
        assert!(stderr.contains(&line), "no {line:?} in\n{stderr}");
    }
    // A second start of machine 2 with the same configuration is refused for another reason.
    let again = place.start_node(&running, 2).end_within(NOTICED);
    again.failed(1, &["already running"]);
    for node in nodes {
        node.signal(Signal::INT);
        node.end_within(PROMPT).ok();
    }
    assert_eq!(place.stale_files(), Vec::<String>::new());
}

/// Two machines whose configurations list different machines refuse each other while they wait to connect.
#[test]
fn machines_of_different_lists_that_wait_refuse_each_other_at_once() {
    let place = Place::new("lists-waiting");
    let two = place.config("two.toml", "32MiB", 2, "");
    let three = place.config("three.toml", "32MiB", 3, "");
    for (first, second) in [
        ((&two, 1), (&three, 2)),
        ((&two, 2), (&three, 3)),
        ((&three, 1), (&two, 2)),
    ] {
        let mut waiting = place.start_node(first.0, first.1);
        waiting.wait_for("waits");
        let other = place.start_node(second.0, second.1);
        for node in [waiting, other] {
            let texts = ["the configurations differ", "m1, m2, m3", "same file"];
            node.end_within(NOTICED).failed(1, &texts);
        }
        assert_eq!(place.stale_files(), Vec::<String>::new());
    }
}

/// If a machine is killed while another machine that is connected to it waits for a third, the waiting machine
/// ends and names both. Regression: it kept waiting, never connected to the restarted machine, and named neither.
#[test]
fn a_node_killed_while_others_wait_is_named_and_all_can_start_again() {
    let place = Place::new("ended-waiting");
    let config = place.config("cluster.toml", "32MiB", 3, "");
    for killed in [1, 2] {
        let waiting = [1, 2].map(|machine: u16| {
            let machine = machine.to_string();
            let args = [
                "node",
                "--config",
                &config,
                "--machine",
                &machine,
                "--log",
                "info",
            ];
            place.farm(&args)
        });
        let [first, second] = waiting.map(|mut node| {
            node.wait_for("connected to");
            node
        });
        let (ends, waits) = match killed {
            1 => (first, second),
            _ => (second, first),
        };
        ends.signal(Signal::KILL);
        let (own, killed) = (
            format!("machine m{}", 3 - killed),
            format!("machine m{killed}"),
        );
        let lost = format!("{killed} is lost");
        let waited = format!("{own} was still waiting for m3");
        waits.end_within(NOTICED).failed(1, &[&lost, &waited]);
        ends.end_within(NOTICED);
    }
    for node in nodes(&place, &config, 3) {
        node.signal(Signal::INT);
        node.end_within(PROMPT);
    }
}

/// After all processes of a run were killed, `farm doctor` reports the files that they left, and `farm clean`
/// removes them. `farm clean` does not remove the files of a running cluster.
#[test]
fn files_of_a_killed_run_are_reported_and_removed() {
    let killed = Place::new("killed-run").with_own_memory();
    let running = Place::new("runs-on");
    let config = running.config("two.toml", "32MiB", 2, "");
    let nodes = nodes(&running, &config, 2);
    let (its_memory, its_names) = (running.memory(), running.names());
    let launcher = mid_run(&killed);
    let all = killed.processes();
    assert_eq!(all.len(), 4);
    // First stopped, so that none notices the end of another and removes its files.
    all.iter().for_each(|process| process.signal(Signal::STOP));
    all.iter().for_each(|process| process.signal(Signal::KILL));
    assert_eq!(launcher.end_within(PROMPT).signal, Some(9));
    killed.wait_gone(NOTICED);
    let (left, names) = (killed.memory(), killed.names());
    assert!(left.len() > 3 && names.len() == 6, "{left:?} {names:?}");

    let doctor = killed.small("doctor", &[] as &[&str]).end().ok();
    let run_dir = killed.path("run").display().to_string();
    for text in [
        "advice   leftovers".to_owned(),
        killed.name().to_owned(),
        format!(" --set cluster.run_dir={run_dir}"),
    ] {
        assert!(
            doctor.stdout.contains(&text),
            "no {text:?} in\n{}",
            doctor.stdout
        );
    }
    let dry = killed.small("clean", &["--dry-run"]).end().ok();
    let memory = format!(
        "cluster \"{}\": would remove {} file(s), ",
        killed.name(),
        left.len()
    );
    let others = format!("cluster \"{}\"", running.name());
    assert!(
        dry.stdout.contains(&memory) && dry.stdout.contains("MiB"),
        "{}",
        dry.stdout
    );
    assert!(
        dry.stdout
            .contains("would remove 6 file(s) of machine(s) m1, m2, m3"),
        "{}",
        dry.stdout
    );
    assert!(!dry.stdout.contains(&others), "{}", dry.stdout);
    assert_eq!(
        (killed.memory().len(), killed.names().len()),
        (left.len(), 6)
    );

    let dirs = || std::fs::read_dir(killed.path("tmp")).unwrap().count();
    let directory = "a killed command: would remove its working directory";
    assert!(
        dry.stdout.contains(directory) && dirs() == 1,
        "{}",
        dry.stdout
    );

    let cleaned = killed.small("clean", &[] as &[&str]).end().ok();
    assert_eq!(dirs(), 0, "{}", cleaned.stdout);
    assert!(
        cleaned
            .stdout
            .contains(&memory.replace("would remove", "removed")),
        "{}",
        cleaned.stdout
    );
    assert_eq!(killed.stale_files(), Vec::<String>::new());
    // The run directory of the other cluster, whose machines run.
    running.small("clean", &[] as &[&str]).end().ok();
    assert_eq!(
        (running.memory().len(), running.names()),
        (its_memory.len(), its_names)
    );
    for node in nodes {
        node.signal(Signal::INT);
        node.end_within(PROMPT).ok();
    }
    let nothing = killed.small("clean", &[] as &[&str]).end().ok();
    assert!(
        !nothing.stdout.contains(killed.name()) || !nothing.stdout.contains("cluster \""),
        "{}",
        nothing.stdout
    );
}

#[test]
fn a_node_that_is_killed_is_named_by_the_others() {
    let place = Place::new("killed-by-hand");
    let config = place.config("cluster.toml", "32MiB", 3, "");
    let mut nodes = nodes(&place, &config, 3);
    let killed = nodes.remove(1);
    killed.signal(Signal::KILL);
    assert_eq!(killed.end_within(PROMPT).signal, Some(9));
    for node in nodes {
        node.end_within(NOTICED).failed(1, &["m2"]);
    }
    // The next start of machine 2 removes the files that the killed process left.
    let mut one = place.start_node(&config, 2);
    one.wait_for("waits");
    one.signal(Signal::INT);
    one.end_within(PROMPT).ok();
}

#[test]
fn a_second_start_of_a_machine_is_refused_with_the_running_process() {
    let place = Place::new("second");
    let config = place.config("cluster.toml", "32MiB", 2, "");
    let nodes = nodes(&place, &config, 2);
    let pid = nodes[0].pid().to_string();
    let second = place.start_node(&config, 1).end_within(NOTICED);
    second.failed(
        1,
        &["m1", "already running", &pid, "cluster.name", place.name()],
    );
    for node in nodes {
        // The running nodes are not affected by the refusal.
        node.signal(Signal::INT);
        node.end_within(PROMPT).ok();
    }
}

#[test]
fn a_second_cluster_of_the_same_name_is_refused() {
    let place = Place::new("same-name");
    let mut first = mid_run(&place);
    let second = place.small("ycsb", &LONG).end_within(NOTICED);
    second.failed(1, &["already running", "cluster.name", place.name()]);
    assert!(
        first.is_running(),
        "the first cluster stopped after the second was refused:\n{}",
        first.stderr()
    );
    first.signal(Signal::INT);
    first.end_within(PROMPT).failed(130, &[]);
}

/// A key of each kind: a format, the protocol, the placement, copies, and where the configuration is.
#[test]
fn nodes_of_different_configurations_refuse_each_other() {
    let place = Place::new("different");
    let one = place.config("one.toml", "32MiB", 2, "");
    for more in [
        "[table]\nneighbourhood = 8\n",
        "[rings]\nchecksums = true\n",
        "memory_bytes = 0\n",
        "[durability]\nmode = \"memory\"\n",
        "[durability]\nreplicas = 1\n",
        "[durability]\ndir = \"/var/lib/farm\"\n",
    ] {
        let other = place.config("other.toml", "32MiB", 2, more);
        let nodes = [place.start_node(&one, 1), place.start_node(&other, 2)];
        for node in nodes {
            node.end_within(NOTICED)
                .failed(1, &["configurations differ", "same file"]);
        }
        assert_eq!(place.stale_files(), Vec::<String>::new());
    }
}

#[test]
fn nodes_may_differ_in_keys_of_their_own() {
    let place = Place::new("own-keys");
    let one = place.config("one.toml", "32MiB", 2, "");
    let own = "cores = [0]\n[worker]\nidle = \"park\"\noperations_in_flight = 7\n[transactions]\nobjects = 9\nbytes = \"1MiB\"\n\
               patience_ms = 1\nopen_ms = 5\nconcurrency = 3\n[graph]\ncached_heads = 5\n";
    let other = place.config("other.toml", "32MiB", 2, own);
    let mut nodes = [place.start_node(&one, 1), place.start_node(&other, 2)];
    for node in &mut nodes {
        node.wait_for("runs; stop it with Ctrl-C");
    }
    nodes[1].signal(Signal::INT);
    for node in nodes {
        node.end_within(NOTICED).ok();
    }
}

#[test]
fn a_node_that_waits_for_others_stops_when_interrupted() {
    let place = Place::new("alone");
    let config = place.config("cluster.toml", "32MiB", 2, "");
    for (machine, signal) in [(1, Signal::INT), (2, Signal::TERM)] {
        let mut alone = place.start_node(&config, machine);
        alone.wait_for("waits");
        std::thread::sleep(Duration::from_millis(200));
        assert!(alone.is_running(), "{}", alone.stderr());
        alone.signal(signal);
        alone.end_within(PROMPT).ok();
        assert_eq!(place.stale_files(), Vec::<String>::new());
    }
}

#[test]
fn a_machine_must_be_chosen_and_must_exist() {
    let place = Place::new("which");
    let config = place.config("cluster.toml", "32MiB", 2, "");
    let unspecified = place.farm(&["node", "--config", &config]).end();
    unspecified.failed(2, &["2 machines", "--machine", "1, 2"]);
    place
        .start_node(&config, 7)
        .end()
        .failed(2, &["machine m7", "has no machine"]);
    place
        .start_node(&config, 0)
        .end()
        .failed(2, &["--machine", "between 1 and 1023"]);
}

#[test]
fn a_killed_machine_is_named_and_the_name_can_be_used_again() {
    let place = Place::new("killed");
    let launcher = mid_run(&place);
    let killed = place.node(2);
    assert_eq!(killed.parent, launcher.pid());
    killed.signal(Signal::KILL);
    let ended = launcher.end_within(NOTICED);
    ended.failed(1, &["machine m2: its process was killed by signal 9"]);
    assert!(place.processes().is_empty(), "{:?}", place.processes());
    runs_again(&place);
}

#[test]
fn a_machine_that_is_killed_while_it_loads_is_named() {
    let place = Place::new("killed-loading");
    let launcher = place.small("ycsb", &LARGE);
    let killed = place.node(3);
    wait_for_load(&place);
    killed.signal(Signal::KILL);
    launcher
        .end_within(NOTICED)
        .failed(1, &["machine m3", "signal 9"]);
    assert!(place.processes().is_empty(), "{:?}", place.processes());
    runs_again(&place);
}

#[test]
fn the_nodes_end_when_their_launcher_is_killed() {
    let place = Place::new("orphans");
    let killed = |launcher: Run| {
        launcher.signal(Signal::KILL);
        assert_eq!(launcher.end_within(PROMPT).signal, Some(9));
        place.wait_gone(NOTICED);
        assert!(place.memory().is_empty(), "{:?}", place.memory());
        assert!(place.names().is_empty(), "{:?}", place.names());
        place.forget_temporary_files();
    };
    let running = mid_run(&place);
    assert_eq!(place.processes().len(), 4);
    killed(running);
    let loading = place.small("ycsb", &LARGE);
    wait_for_load(&place);
    killed(loading);
    // Killed before all nodes have started, so that some wait for machines that never start.
    let starting = place.small("ycsb", &LARGE);
    place.node(1);
    killed(starting);
    runs_again(&place);
}

#[test]
fn an_interrupted_run_stops_cleanly() {
    let place = Place::new("interrupted");
    for signal in [Signal::INT, Signal::TERM] {
        let launcher = mid_run(&place);
        launcher.signal(signal);
        launcher.end_within(PROMPT).failed(130, &["interrupted"]);
        assert_eq!(place.stale_files(), Vec::<String>::new());
    }
}

#[test]
fn an_interrupt_of_the_whole_process_group_stops_cleanly() {
    let place = Place::new("terminal");
    let mut launcher = place.small_in_group("ycsb", &LONG);
    launcher.wait_for("running workload a");
    launcher.signal_group(Signal::INT);
    launcher.end_within(PROMPT).failed(130, &["interrupted"]);
    assert_eq!(place.stale_files(), Vec::<String>::new());
}

#[test]
fn an_interrupt_during_a_load_or_a_start_stops_cleanly() {
    let place = Place::new("interrupted-early");
    for early in [true, false] {
        let launcher = place.small("ycsb", &LARGE);
        place.node(1);
        if !early {
            wait_for_load(&place);
        }
        launcher.signal(Signal::INT);
        let ended = launcher.end_within(PROMPT).failed(130, &["interrupted"]);
        assert!(!ended.stderr.contains("loaded"), "{}", ended.stderr);
        assert_eq!(place.stale_files(), Vec::<String>::new());
    }
}

/// Overwrites all of a file with one word.
fn scribble(path: &std::path::Path, word: u64) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    let words = word.to_le_bytes().repeat(512);
    let bytes = file.metadata().unwrap().len();
    for at in (0..bytes).step_by(words.len()) {
        let left = (bytes - at).min(words.len() as u64) as usize;
        file.write_all_at(&words[..left], at).unwrap();
    }
}

/// The content of a ring comes from another process and is not trusted. A record with an invalid kind or length
/// is not delivered. The receiver closes the connection and reports the sending machine.
#[test]
fn garbage_in_a_ring_is_reported_and_stops_the_cluster() {
    let mut reports = String::new();
    for (ring, word) in [
        (0, u64::MAX),
        (1, u64::MAX),
        (1, 0x0102_0304_0506_0708),
        (1, 0xEE),
    ] {
        let place = Place::new("garbage");
        let config = place.config("two.toml", "32MiB", 2, "");
        let mut nodes = nodes(&place, &config, 2);
        // The memory files of machine 2 except the first, which has the doorbells. They are its rings, from its own
        // workers and from machine 1. No region is allocated yet.
        let mut rings = place.memory();
        rings.retain(|path| {
            let name = path.file_name().unwrap().to_str().unwrap();
            let parts: Vec<&str> = name.split('-').collect();
            parts[2] == "m2" && parts[4] != "0"
        });
        rings.sort();
        assert_eq!(rings.len(), 2, "{rings:?}");
        scribble(&rings[ring], word);
        let second = nodes.pop().unwrap().end_within(NOTICED);
        let second = second.failed(1, &["was cut off", "holds garbage", "ring offset"]);
        // The first ends with a failure. Regression: it was notified that the second had left, and ended with status 0.
        let first = nodes.pop().unwrap().end_within(NOTICED);
        let first = first.failed(1, &["machine m2", "failure", "was cut off"]);
        for stderr in [second.stderr, first.stderr] {
            assert!(!stderr.contains("panicked"), "{stderr}");
            reports.push_str(&stderr);
        }
    }
    assert!(reports.contains("machine m1 was cut off"), "{reports}");
}
