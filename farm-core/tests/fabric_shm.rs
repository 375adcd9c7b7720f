//! Faults that the shared-memory fabric must tolerate: silent callers, notifications of nonexistent
//! workers.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use farm_core::fabric::shm::{ShmConfig, ShmMachine};
use farm_core::fabric::{ArenaConfig, Backend, Capability, Rejected, Remote, Source, Token, Write};
use farm_core::ids::{MachineId, WorkerId};

const TIMEOUT: Duration = Duration::from_secs(5);

fn id(number: u16) -> MachineId {
    MachineId::new(number).unwrap()
}

fn start(dir: &Path, number: u16) -> ShmMachine {
    ShmMachine::start(ShmConfig {
        cluster: "faults".into(),
        run_dir: dir.join("run"),
        memory_dir: dir.into(),
        huge_pages: false,
        machine: id(number),
        workers: 1,
        digest: 1,
        lease: None,
    })
    .expect("the machine starts")
}

fn meet(machines: &mut [ShmMachine], ids: &[MachineId], offer: &[Capability]) {
    std::thread::scope(|scope| {
        for machine in machines {
            scope.spawn(|| {
                machine
                    .connect(ids, &mut |_| offer.to_vec(), TIMEOUT)
                    .expect("all machines connect in time")
            });
        }
    });
}

#[test]
fn silent_callers_do_not_prevent_connecting() {
    let dir = tempfile::tempdir().unwrap();
    let mut machines = [start(dir.path(), 1), start(dir.path(), 2)];
    let socket = dir.path().join("run/faults/m1.sock");
    let silent: Vec<UnixStream> = (0..100)
        .map(|_| UnixStream::connect(&socket).expect("the machine listens"))
        .collect();
    meet(&mut machines, &[id(1), id(2)], &[]);
    drop(silent);
}

#[test]
fn notifying_a_worker_that_the_peer_does_not_have_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let mut machine = [start(dir.path(), 1)];
    let (memory, capability) = machine[0].export(4096, true).unwrap();
    meet(&mut machine, &[id(1)], &[]);
    let arena = ArenaConfig::for_reads(4, 512);
    let mut endpoint = machine[0].endpoint(WorkerId::new(0).unwrap(), &arena, 8);
    let imported = endpoint.import(&capability).unwrap();
    let mut write = Write {
        to: Remote {
            memory: imported,
            offset: 0,
        },
        fence: false,
        notify: WorkerId::new(1),
        signal: Some(Token(1)),
    };
    let mut slot = endpoint.arena().take(64).unwrap();
    endpoint.arena().words_mut(&mut slot)[0] = 7;
    let refused = endpoint.post_write(write, Source::Slot { slot, bytes: 8 });
    let Err(Rejected::BadAccess(Some(slot))) = refused else {
        panic!("{refused:?}");
    };
    endpoint.flush();
    let load = || memory.load(0, std::sync::atomic::Ordering::SeqCst);
    assert_eq!((load(), endpoint.outstanding()), (0, 0));

    write.notify = WorkerId::new(0);
    endpoint
        .post_write(write, Source::Slot { slot, bytes: 8 })
        .expect("the peer has this worker");
    endpoint.flush();
    assert_eq!(load(), 7);
}
