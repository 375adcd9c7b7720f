//! Bad starts on shared memory, and what each gets: two processes for one machine, machines of
//! different configurations, a full file system, the leavings of a killed process, a stranger at
//! the door.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use farm_conformance::host::{Child, ChildTask, Place, Reply, be_child_if_asked};
use farm_conformance::{OURS, PEER, THIRD, THREE};
use farm_core::fabric::ConnectError;
use farm_core::fabric::shm::{ShmMachine, StartError};
use farm_core::mem::MappingError;

const SOON: Duration = Duration::from_millis(300);
const IN_TIME: Duration = Duration::from_secs(10);

/// Not a test: by this the other tests' child processes are this binary again.
#[test]
fn conformance_child() {
    be_child_if_asked();
}

fn running(place: &Place) -> Child {
    let mut child = Child::start(&ChildTask::Alone(place.clone(), OURS));
    assert_eq!(child.reply(), Reply::Ready);
    child
}

fn refused(config: farm_core::fabric::shm::ShmConfig) -> StartError {
    match ShmMachine::start(config) {
        Ok(_) => panic!("the machine started"),
        Err(error) => error,
    }
}

#[test]
fn a_second_cluster_of_one_name_is_refused_and_told_who_runs() {
    let (place, _ground) = Place::fresh();
    let child = running(&place);
    let files = place.memory_files();
    let error = refused(place.config(OURS));
    assert!(
        matches!(error, StartError::AlreadyRunning { .. }),
        "{error}"
    );
    let text = error.to_string();
    assert!(text.contains(&format!("process {}", child.id())), "{text}");
    assert!(
        text.contains(&place.cluster) && text.contains("m1"),
        "{text}"
    );
    assert_eq!(
        place.memory_files(),
        files,
        "the running cluster keeps its memory"
    );
    ShmMachine::start(place.config(PEER)).expect("another machine of the cluster may start");
    assert_eq!(
        place.memory_files(),
        files,
        "and cleans up after itself alone"
    );
}

/// The message of a refused start offers another run directory as a way out. Taking it must not
/// take the memory of the cluster that runs.
#[test]
fn a_cluster_of_the_same_name_elsewhere_keeps_its_memory() {
    let (place, _ground) = Place::fresh();
    let elsewhere = tempfile::tempdir().expect("a temporary directory");
    let _child = running(&place);
    let files = place.memory_files();
    assert!(files.len() >= 2, "doorbells and an export: {files:?}");
    let other = Place {
        run_dir: elsewhere.path().into(),
        ..place.clone()
    };
    let machine =
        ShmMachine::start(other.config(OURS)).expect("another directory is another cluster");
    assert!(place.memory_files().len() > files.len());
    drop(machine);
    assert_eq!(
        place.memory_files(),
        files,
        "each cleans up after itself alone"
    );
}

/// Names may contain what the names of files are made of.
#[test]
fn a_cluster_whose_name_begins_like_another_ones_files_keeps_its_memory() {
    let (place, _ground) = Place::fresh();
    let longer = Place {
        cluster: format!("{}-m1-x", place.cluster),
        ..place.clone()
    };
    let other = ShmMachine::start(longer.config(PEER)).expect("the longer name starts");
    let files = longer.memory_files();
    let ours = ShmMachine::start(place.config(OURS)).expect("the shorter name starts");
    drop(ours);
    assert_eq!(
        longer.memory_files(),
        files,
        "a start removed another cluster's memory"
    );
    drop(other);
}

#[test]
fn different_configurations_are_refused_on_both_sides() {
    let (place, _ground) = Place::fresh();
    let mut machines = [OURS, PEER].map(|machine| {
        let mut config = place.config(machine);
        config.digest = u64::from(machine.get());
        ShmMachine::start(config).expect("each starts by itself")
    });
    let both = [OURS, PEER];
    let answers = std::thread::scope(|scope| {
        let meeting = machines
            .each_mut()
            .map(|machine| scope.spawn(|| machine.connect(&both, &mut |_| Vec::new(), IN_TIME)));
        meeting.map(|thread| thread.join().expect("no panic"))
    });
    for answer in answers {
        let error = answer.expect_err("their digests differ");
        assert!(matches!(error, ConnectError::Refused { .. }), "{error}");
        let text = error.to_string();
        assert!(
            text.contains("0x1") && text.contains("0x2") && text.contains("same file"),
            "{text}"
        );
    }
}

#[test]
fn a_machine_that_does_not_come_is_named() {
    let (place, _ground) = Place::fresh();
    let mut machine = ShmMachine::start(place.config(PEER)).expect("the machine starts");
    let error = machine
        .connect(&THREE, &mut |_| Vec::new(), SOON)
        .expect_err("nobody else is there");
    let text = error.to_string();
    assert!(matches!(error, ConnectError::Missing { .. }), "{text}");
    assert!(
        text.contains("m1, m3") && text.contains(&place.cluster),
        "{text}"
    );
}

#[test]
fn a_stranger_at_the_door_is_no_reason_to_fail() {
    let (place, _ground) = Place::fresh();
    let mut machine = ShmMachine::start(place.config(OURS)).expect("the machine starts");
    let door = socket(&place.run_dir);
    let garbage: [&[u8]; 4] = [b"", b"\n", b"{\"version\":1}\n", &[0xFF; 4096]];
    for bytes in garbage {
        let mut stranger = UnixStream::connect(&door).expect("the machine listens");
        stranger.write_all(bytes).expect("it reads");
    }
    let error = machine
        .connect(&[OURS, PEER], &mut |_| Vec::new(), SOON)
        .expect_err("nobody came");
    assert!(matches!(error, ConnectError::Missing { .. }), "{error}");
}

/// The one socket below a run directory.
fn socket(run_dir: &Path) -> PathBuf {
    let is_socket = |path: &PathBuf| path.extension().is_some_and(|end| end == "sock");
    let mut found = entries(run_dir)
        .into_iter()
        .flat_map(|cluster| entries(&cluster))
        .filter(is_socket);
    found.next().expect("a running machine has a socket")
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).expect("a directory");
    entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .collect()
}

#[test]
fn leavings_of_a_killed_process_are_cleaned_at_the_next_start() {
    let (place, _ground) = Place::fresh();
    let mut child = running(&place);
    child.kill();
    let left = place.memory_files();
    let old_socket = socket(&place.run_dir);
    assert!(
        left.len() >= 2,
        "doorbells and an export were left: {left:?}"
    );
    assert!(
        UnixStream::connect(&old_socket).is_err(),
        "nobody listens there any more"
    );

    let machine = ShmMachine::start(place.config(OURS)).expect("the machine starts again");
    let now = place.memory_files();
    assert!(
        now.iter().all(|file| !left.contains(file)),
        "left from before: {left:?}, now {now:?}"
    );
    UnixStream::connect(socket(&place.run_dir)).expect("the new process listens");
    drop(machine);
    assert_eq!(
        place.memory_files(),
        [] as [PathBuf; 0],
        "a clean end leaves nothing behind"
    );
    assert!(!old_socket.exists());
}

/// A tmpfs of one MiB, unmounted when dropped.
struct SmallFileSystem(tempfile::TempDir);

impl SmallFileSystem {
    /// `None`, and a notice, where we may not mount.
    fn mount() -> Option<Self> {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=1m", "farm-small"])
            .arg(dir.path())
            .output()
            .is_ok_and(|output| output.status.success());
        if !mounted {
            println!("skipped: a tmpfs cannot be mounted here (it takes root)");
        }
        mounted.then_some(Self(dir))
    }
}

impl Drop for SmallFileSystem {
    fn drop(&mut self) {
        // Lazily, because a failed test may still have it mapped.
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_file_system_is_an_error_and_no_bus_error() {
    let Some(small) = SmallFileSystem::mount() else {
        return;
    };
    let (place, _ground) = Place::fresh();
    let place = Place {
        memory_dir: small.0.path().into(),
        ..place
    };
    let machine = ShmMachine::start(place.config(THIRD)).expect("doorbells fit");
    let no_space = |answer: Result<_, MappingError>| match answer {
        Ok((_, _)) => panic!("there is no room for that"),
        Err(error @ MappingError::NoSpace { .. }) => error.to_string(),
        Err(other) => panic!("{other}"),
    };
    let text = no_space(machine.export(2 << 20, true));
    let dir = small.0.path().display().to_string();
    assert!(
        text.contains(&dir) && text.contains("bytes are free"),
        "{text}"
    );
    let before = place.memory_files();

    // Fill it: every page that was promised is there, to the last one.
    let (memory, _) = machine.export(512 << 10, true).expect("half of it fits");
    for page in (0..memory.len()).step_by(4096) {
        memory.store(page, 1, std::sync::atomic::Ordering::Relaxed);
    }
    no_space(machine.export(512 << 10, true));
    assert_eq!(
        place.memory_files().len(),
        before.len() + 1,
        "a refused export leaves no file"
    );

    let mut config = place.config(OURS);
    std::fs::write(small.0.path().join("rest"), vec![0; 2 << 20]).expect_err("the rest is filled");
    config.cluster.push('b');
    let error = refused(config);
    assert!(
        matches!(error, StartError::Mapping(MappingError::NoSpace { .. })),
        "{error}"
    );
}
