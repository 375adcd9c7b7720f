//! Failing starts on shared memory: two processes for one machine, machines with different configurations,
//! a full file system, files left by a killed process, and invalid data on the machine's socket.

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

/// Not a test. The child processes that the other tests start run this binary with only this function.
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
        Ok(_) => panic!("the machine started, but the start should have been refused"),
        Err(error) => error,
    }
}

#[test]
fn a_second_cluster_of_the_same_name_is_refused_with_the_running_process() {
    let (place, _dirs) = Place::fresh();
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
        "a refused start removed memory of the running cluster"
    );
    ShmMachine::start(place.config(PEER)).expect("another machine of the cluster may start");
    assert_eq!(
        place.memory_files(),
        files,
        "a machine that ends removes only its own memory"
    );
}

/// The message of a refused start suggests another run directory. A start there must not remove the memory of
/// the running cluster of the same name.
#[test]
fn a_cluster_of_the_same_name_elsewhere_keeps_its_memory() {
    let (place, _dirs) = Place::fresh();
    let elsewhere = tempfile::tempdir().expect("a temporary directory");
    let _child = running(&place);
    let files = place.memory_files();
    assert!(
        files.len() >= 2,
        "expected the files of doorbells and of an export: {files:?}"
    );
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
        "a machine that ends removes only its own memory"
    );
}

/// Cluster names may contain the separators that the names of memory files use.
#[test]
fn a_cluster_whose_name_starts_like_the_file_names_of_another_keeps_its_memory() {
    let (place, _dirs) = Place::fresh();
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
    let (place, _dirs) = Place::fresh();
    let mut machines = [OURS, PEER].map(|machine| {
        let mut config = place.config(machine);
        config.digest = u64::from(machine.get());
        ShmMachine::start(config).expect("each machine starts without the other")
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
fn a_missing_machine_is_named() {
    let (place, _dirs) = Place::fresh();
    let mut machine = ShmMachine::start(place.config(PEER)).expect("the machine starts");
    let error = machine
        .connect(&THREE, &mut |_| Vec::new(), SOON)
        .expect_err("no other machine runs");
    let text = error.to_string();
    assert!(matches!(error, ConnectError::Missing { .. }), "{text}");
    assert!(
        text.contains("m1, m3") && text.contains(&place.cluster),
        "{text}"
    );
}

#[test]
fn invalid_data_on_the_socket_does_not_stop_a_machine() {
    let (place, _dirs) = Place::fresh();
    let mut machine = ShmMachine::start(place.config(OURS)).expect("the machine starts");
    let socket = socket(&place.run_dir);
    let garbage: [&[u8]; 4] = [b"", b"\n", b"{\"version\":1}\n", &[0xFF; 4096]];
    for bytes in garbage {
        let mut stranger = UnixStream::connect(&socket).expect("the machine listens");
        stranger.write_all(bytes).expect("the machine reads");
    }
    let error = machine
        .connect(&[OURS, PEER], &mut |_| Vec::new(), SOON)
        .expect_err("no other machine has connected");
    assert!(matches!(error, ConnectError::Missing { .. }), "{error}");
}

/// Returns the only socket below a run directory.
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
fn files_of_a_killed_process_are_removed_at_the_next_start() {
    let (place, _dirs) = Place::fresh();
    let mut child = running(&place);
    child.kill();
    let left = place.memory_files();
    let old_socket = socket(&place.run_dir);
    assert!(
        left.len() >= 2,
        "expected the files of doorbells and of an export: {left:?}"
    );
    assert!(
        UnixStream::connect(&old_socket).is_err(),
        "no process listens on the socket of the killed process"
    );

    let machine = ShmMachine::start(place.config(OURS)).expect("the machine starts again");
    let now = place.memory_files();
    assert!(
        now.iter().all(|file| !left.contains(file)),
        "files of the killed process are still there: {left:?}, now {now:?}"
    );
    UnixStream::connect(socket(&place.run_dir)).expect("the new process listens");
    drop(machine);
    assert_eq!(
        place.memory_files(),
        [] as [PathBuf; 0],
        "a machine that ends in order removes its memory"
    );
    assert!(!old_socket.exists());
}

/// A tmpfs of one MiB, unmounted when dropped.
struct SmallFileSystem(tempfile::TempDir);

impl SmallFileSystem {
    /// Mounts it. Prints a notice and returns `None` if this user may not mount.
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
        // Lazy unmount, because a failed test may still have files mapped.
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_file_system_causes_an_error_instead_of_sigbus() {
    let Some(small) = SmallFileSystem::mount() else {
        return;
    };
    let (place, _dirs) = Place::fresh();
    let place = Place {
        memory_dir: small.0.path().into(),
        ..place
    };
    let machine = ShmMachine::start(place.config(THIRD)).expect("doorbells fit");
    let no_space = |answer: Result<_, MappingError>| match answer {
        Ok((_, _)) => panic!("the export succeeded without enough space"),
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

    // Write to every page of an export: each page was allocated when the export was created.
    let (memory, _) = machine
        .export(512 << 10, true)
        .expect("512 KiB fit into 1 MiB");
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
    std::fs::write(small.0.path().join("rest"), vec![0; 2 << 20])
        .expect_err("the file is larger than the file system");
    config.cluster.push('b');
    let error = refused(config);
    assert!(
        matches!(error, StartError::Mapping(MappingError::NoSpace { .. })),
        "{error}"
    );
}
