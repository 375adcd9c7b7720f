//! Faults that the shared-memory fabric must tolerate: silent callers, notifications of nonexistent
//! workers, peers that do not answer.

#![allow(clippy::disallowed_methods)] // Tests may wait.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use farm_core::fabric::shm::{ShmConfig, ShmMachine};
use farm_core::fabric::{
    ArenaConfig, Backend, Capability, Eviction, Lease, Rejected, Remote, Source, Standing, Token,
    Write,
};
use farm_core::ids::{MachineId, WorkerId};

const TIMEOUT: Duration = Duration::from_secs(5);

fn id(number: u16) -> MachineId {
    MachineId::new(number).unwrap()
}

fn start(dir: &Path, number: u16) -> ShmMachine {
    start_with(dir, number, None)
}

fn start_with(dir: &Path, number: u16, lease: Option<Duration>) -> ShmMachine {
    ShmMachine::start(ShmConfig {
        cluster: "faults".into(),
        run_dir: dir.join("run"),
        memory_dir: dir.into(),
        huge_pages: false,
        machine: id(number),
        workers: 1,
        digest: 1,
        lease,
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

/// Machine 2 gives no signs of life, as if it were stopped. It is evicted, and machine 1 is not.
#[test]
fn the_lease_of_a_silent_peer_expires_and_its_start_is_evicted() {
    let dir = tempfile::tempdir().unwrap();
    let lease = Some(Duration::from_millis(100));
    let mut machines = [
        start_with(dir.path(), 1, lease),
        start_with(dir.path(), 2, None),
    ];
    meet(&mut machines, &[id(1), id(2)], &[]);
    let arena = ArenaConfig::for_reads(4, 512);
    let endpoint = |machine: &ShmMachine| machine.endpoint(WorkerId::FIRST, &arena, 8);
    let (mut one, two) = (endpoint(&machines[0]), endpoint(&machines[1]));
    let began = std::time::Instant::now();
    let expired = loop {
        if let Some(lease) = one.take_lease() {
            break lease;
        }
        assert!(began.elapsed() < TIMEOUT, "no lease expires");
        std::thread::yield_now();
    };
    let boot = machines[1].exporter().boot();
    let expected = Lease {
        machine: id(2),
        boot,
        has_expired: true,
    };
    assert_eq!(expired, expected);
    let evictions = [one.eviction(), two.eviction()];
    assert!(!one.evict(id(2), boot + 1), "another start is not evicted");
    assert_eq!(
        evictions.each_ref().map(Eviction::standing),
        [Standing::Good; 2]
    );
    assert!(one.evict(id(2), boot));
    let standing = evictions.each_ref().map(Eviction::standing);
    assert_eq!(standing, [Standing::Good, Standing::Evicted]);
}
