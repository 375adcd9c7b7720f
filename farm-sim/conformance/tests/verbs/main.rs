//! Tests that need RDMA devices. Most hosts have none: `./x test-rdma` runs these tests in a guest that has two.
#![allow(clippy::disallowed_methods)] // Tests may wait.

mod rings;

use std::time::{Duration, Instant};

use std::net::TcpStream;

use farm_conformance::conformance_suite;
use farm_conformance::host::{Fabric, Processes, Threads, Variant, VerbsPlace, be_child_if_asked};
use farm_conformance::{Cluster, Hammered, Harness, Node, OURS, PEER, accepted_and_torn};
use farm_core::fabric::verbs::{ObjectReads, Secret, VerbsConfig, VerbsEndpoint, VerbsMachine};
use farm_core::fabric::{
    Backend, Capability, Completion, ConnectError, Departure, ImportError, Read, ReadKind,
    Rejected, Remote, RemoteMemory, Status, Token,
};
use farm_core::ids::{MachineId, WorkerId};
use farm_core::mem::Memory;

/// Not a test. The child processes that the other tests start run this binary with only this function.
#[test]
fn conformance_child() {
    be_child_if_asked();
}

const DEFAULT: Fabric = Fabric::Verbs(Variant::DEFAULT);
/// All options that are off by default, and a small limit of requests in flight.
const OTHER_WAYS: Fabric = Fabric::Verbs(Variant {
    object_reads: Some(ObjectReads::HeadersAround),
    adaptive_throttle: true,
    workers_per_queue: 2,
    send_depth: 64,
});

conformance_suite!(processes, &Processes(DEFAULT));
conformance_suite!(threads, &Threads(DEFAULT));
conformance_suite!(other_ways, &Threads(OTHER_WAYS));

/// One object of one line, which has no line versions. The rests between updates are long enough for a read
/// and its header checks.
const SHORT: Hammered = Hammered {
    objects: 1,
    lines: 1,
    longest_rest: 512,
    rests: 1,
};

const fn reading(object_reads: ObjectReads) -> Threads {
    Threads(Fabric::Verbs(Variant {
        object_reads: Some(object_reads),
        ..Variant::DEFAULT
    }))
}

/// The software device does not read whole lines. A plain read, which suffices for devices that do, accepts
/// images that mix two versions while a writer updates the object.
#[test]
fn a_plain_read_of_objects_is_torn() {
    reading(ObjectReads::WholeLines).run(|cluster: &mut dyn Cluster| {
        let until = Instant::now() + Duration::from_secs(120);
        let (accepted, torn) =
            accepted_and_torn(cluster, SHORT, |_, torn| torn > 0 || Instant::now() > until);
        println!("plain: {torn} of {accepted} accepted images were torn");
        assert!(
            torn > 0,
            "none of {accepted} accepted images was torn: this device may read whole lines"
        );
    });
}

#[test]
fn a_read_of_objects_with_their_headers_after_is_whole() {
    reading(ObjectReads::HeaderAfter).run(no_torn_read);
}

#[test]
fn a_read_of_objects_with_their_headers_around_is_whole() {
    reading(ObjectReads::HeadersAround).run(no_torn_read);
}

fn no_torn_read(cluster: &mut dyn Cluster) {
    let begun = Instant::now();
    let (accepted, torn) = accepted_and_torn(cluster, SHORT, |accepted, _| {
        let least = match accepted >= LEAST_ACCEPTED {
            true => Duration::from_secs(10),
            // On a slow host few reads fall into the rests of the writer.
            false => Duration::from_secs(120),
        };
        begun.elapsed() > least
    });
    println!("checked: {torn} of {accepted} accepted images were torn");
    assert!(
        accepted >= LEAST_ACCEPTED,
        "only {accepted} images were accepted"
    );
    assert_eq!(torn, 0);
}

/// Least number of accepted images that tell something.
const LEAST_ACCEPTED: u64 = 51;

const PATIENCE: Duration = Duration::from_secs(30);

/// A machine with one worker, and one page that its peers may read.
struct Machine {
    // The first field: the endpoint is dropped before the machine and the memory.
    endpoint: Option<VerbsEndpoint>,
    machine: VerbsMachine,
    memory: Memory,
    offer: Capability,
}

impl Machine {
    fn start(config: VerbsConfig) -> Self {
        let machine = VerbsMachine::start(config).expect("the machine starts");
        let (memory, offer) = machine.exporter().export(4096, false).expect("a page");
        Self {
            endpoint: None,
            machine,
            memory,
            offer,
        }
    }

    /// Connects to the other of two machines for the first time. Returns the capability of its memory.
    fn connect(&mut self, other: MachineId) -> Result<Capability, ConnectError> {
        let offer = self.offer;
        let met = self
            .machine
            .connect(&[OURS, PEER], &mut |_| vec![offer], PATIENCE)?;
        let endpoint = self.machine.endpoint(WorkerId::FIRST, &Node::arena(), 64);
        self.endpoint = Some(endpoint.expect("an endpoint"));
        let met = met.into_iter().find(|met| met.machine == other);
        Ok(met.expect("the other machine is connected").offer[0])
    }

    /// Connects again after the connection ended. Returns the capability of the other machine's memory.
    fn reconnect(&mut self, other: MachineId) -> Capability {
        let offer = self.offer;
        let met = self
            .machine
            .reconnect(&[other], &mut |_| vec![offer], PATIENCE);
        met.expect("the machines connect again")[0].offer[0]
    }

    fn endpoint(&mut self) -> &mut VerbsEndpoint {
        self.endpoint.as_mut().expect("it has connected")
    }

    fn post_read(&mut self, memory: RemoteMemory) -> Result<(), Rejected> {
        let endpoint = self.endpoint();
        let read = Read {
            from: Remote { memory, offset: 0 },
            bytes: 8,
            kind: ReadKind::Raw,
            fence: false,
            token: Token(1),
        };
        let slot = endpoint.arena().take(8).expect("a slot");
        endpoint.post_read(read, slot)
    }

    fn completion(&mut self) -> Completion {
        let until = Instant::now() + PATIENCE;
        let mut done = Vec::new();
        while self.endpoint().poll(1, &mut done) == 0 {
            assert!(Instant::now() < until, "no completion");
            std::thread::yield_now();
        }
        done.remove(0)
    }

    /// Reads the first word of imported memory.
    fn read(&mut self, memory: RemoteMemory) -> u64 {
        self.post_read(memory).expect("the read is taken");
        let done = self.completion();
        assert_eq!(done.status, Status::Ok);
        let slot = done.slot.expect("a read has a slot");
        let word = self.endpoint().arena().words(&slot)[0];
        self.endpoint().arena().give(slot);
        word
    }

    /// Waits until the endpoint reports the end of the connection, and checks how it ended.
    fn await_end(&mut self, other: MachineId, how: Departure) {
        let until = Instant::now() + PATIENCE;
        loop {
            self.endpoint().poll(0, &mut Vec::new());
            if let Some(ended) = self.endpoint().take_broken() {
                return assert_eq!(ended, (other, how));
            }
            assert!(
                Instant::now() < until,
                "the end of the connection to {other} was not reported"
            );
            std::thread::yield_now();
        }
    }
}

/// Runs two closures in parallel, one per machine.
fn both<A: Send, B: Send>(
    one: impl FnOnce() -> A + Send,
    other: impl FnOnce() -> B + Send,
) -> (A, B) {
    std::thread::scope(|scope| {
        let other = scope.spawn(other);
        (one(), other.join().expect("neither side fails"))
    })
}

fn two() -> (VerbsPlace, Machine, Machine, Capability) {
    two_of(Variant::DEFAULT)
}

fn two_of(variant: Variant) -> (VerbsPlace, Machine, Machine, Capability) {
    let place = VerbsPlace::fresh(variant);
    let mut ours = Machine::start(place.config(OURS));
    let mut theirs = Machine::start(place.config(PEER));
    let (offered, _) = both(
        || ours.connect(PEER).expect("the machines connect"),
        || theirs.connect(OURS).expect("the machines connect"),
    );
    (place, ours, theirs, offered)
}

/// A machine leaves and starts again. Its old capability and memory are refused; its new ones work.
#[test]
fn a_machine_that_was_started_again_is_connected_anew() {
    let (place, mut ours, theirs, offered) = two();
    theirs
        .memory
        .store(0, 7, std::sync::atomic::Ordering::Release);
    let before = ours.endpoint().import(&offered).expect("it is connected");
    assert_eq!(ours.read(before), 7);
    drop(theirs);
    ours.await_end(PEER, Departure::Left);
    for _ in 0..3 {
        let refused = ours.post_read(before);
        let Err(Rejected::Closed(Some(slot))) = refused else {
            panic!("{refused:?} after the end");
        };
        ours.endpoint().arena().give(slot);
    }
    let mut theirs = Machine::start(place.config(PEER));
    theirs
        .memory
        .store(0, 8, std::sync::atomic::Ordering::Release);
    let (offers, _) = both(|| ours.reconnect(PEER), || theirs.connect(OURS).unwrap());
    let stale = ours.endpoint().import(&offered);
    assert!(
        matches!(stale, Err(ImportError::Restarted { .. })),
        "{stale:?}"
    );
    assert!(matches!(ours.post_read(before), Err(Rejected::Closed(_))));
    let after = ours
        .endpoint()
        .import(&offers)
        .expect("it is connected again");
    assert_eq!(ours.read(after), 8);
    assert_eq!(
        ours.endpoint().take_broken(),
        None,
        "the end of the old connection is reported again"
    );
}

/// A connection is closed and established again between machines that kept running. Operations outstanding at
/// the close end `Broken`; later operations use the new connection.
#[test]
fn a_broken_connection_is_established_again() {
    let (_place, mut ours, mut theirs, offered) = two();
    for round in 1..=5 {
        theirs
            .memory
            .store(0, round, std::sync::atomic::Ordering::Release);
        let memory = ours.endpoint().import(&offered).expect("it is connected");
        assert_eq!(ours.read(memory), round);
        ours.post_read(memory).expect("the read is taken");
        ours.endpoint().close(PEER);
        ours.await_end(PEER, Departure::Lost);
        let broken = ours.completion();
        assert_eq!(broken.status, Status::Broken);
        ours.endpoint()
            .arena()
            .give(broken.slot.expect("a read has a slot"));
        both(|| ours.reconnect(PEER), || theirs.reconnect(OURS));
    }
    assert_eq!(
        ours.endpoint().arena().taken(),
        0,
        "all slots are back in the arena"
    );
    assert_eq!(ours.endpoint().outstanding(), 0);
}

/// A worker's endpoint is dropped while its reads are in flight and another worker shares its queue pairs. The
/// completions that arrive later do not affect the other worker, whose reads still succeed.
#[test]
fn an_endpoint_that_shares_queue_pairs_may_be_dropped_with_reads_in_flight() {
    let variant = Variant {
        workers_per_queue: 2,
        ..Variant::DEFAULT
    };
    for _ in 0..20 {
        let (_place, mut ours, _theirs, offered) = two_of(variant);
        let second = WorkerId::new(1).expect("a worker");
        let stays = ours.machine.endpoint(second, &Node::arena(), 64);
        let stays = stays.expect("an endpoint");
        let memory = ours.endpoint().import(&offered).expect("it is connected");
        for token in 0..32 {
            let endpoint = ours.endpoint();
            let read = Read {
                from: Remote { memory, offset: 0 },
                bytes: 64,
                kind: ReadKind::Objects { stride: 64 },
                fence: false,
                token: Token(token),
            };
            let slot = endpoint.arena().take(64).expect("a slot");
            endpoint.post_read(read, slot).expect("the read is taken");
        }
        ours.endpoint().flush();
        ours.endpoint = Some(stays);
        let memory = ours.endpoint().import(&offered).expect("it is connected");
        for _ in 0..8 {
            assert_eq!(ours.read(memory), 0);
        }
        assert_eq!(ours.endpoint().take_broken(), None);
    }
}

/// A connection that two workers share is closed and established again. Both workers can use the new
/// connection at once.
#[test]
fn a_broken_connection_of_two_workers_is_established_again() {
    let variant = Variant {
        workers_per_queue: 2,
        ..Variant::DEFAULT
    };
    let (_place, mut ours, mut theirs, offered) = two_of(variant);
    let second = WorkerId::new(1).expect("a worker");
    let other = ours.machine.endpoint(second, &Node::arena(), 64);
    let mut other = Some(other.expect("an endpoint"));
    for round in 1..=5 {
        theirs
            .memory
            .store(0, round, std::sync::atomic::Ordering::Release);
        for _ in 0..2 {
            let memory = ours.endpoint().import(&offered).expect("it is connected");
            assert_eq!(ours.read(memory), round);
            std::mem::swap(&mut ours.endpoint, &mut other);
        }
        ours.endpoint().close(PEER);
        for _ in 0..2 {
            ours.await_end(PEER, Departure::Lost);
            std::mem::swap(&mut ours.endpoint, &mut other);
        }
        both(|| ours.reconnect(PEER), || theirs.reconnect(OURS));
    }
    drop(other);
}

type Change = fn(&mut VerbsConfig);

/// Two machines connect although other connections arrive at the port: one that sends nothing, some that send
/// invalid data, one of another cluster, and one with another secret.
#[test]
fn strangers_are_refused_and_the_machines_meet() {
    use std::io::Write;
    let place = VerbsPlace::fresh(Variant::DEFAULT);
    let mut ours = Machine::start(place.config(OURS));
    let address = &place.machines[&OURS].0;
    let _silent = TcpStream::connect(address).unwrap();
    for data in ["GET / HTTP/1.1\r\n\r\n", "{}\n", "\n", "[[[["] {
        TcpStream::connect(address)
            .unwrap()
            .write_all(data.as_bytes())
            .unwrap();
    }
    let other = |change: Change| {
        let mut config = place.config(PEER);
        change(&mut config);
        move || Machine::start(config).connect(OURS)
    };
    let another_secret: Change = |config| config.secret = Secret::of(b"known to another test");
    let another_cluster: Change = |config| config.cluster = "other".into();
    let refused = [
        (another_secret, "secret"),
        (another_cluster, "cluster names differ"),
    ];
    let (met, _) = both(
        || ours.connect(PEER),
        || {
            for (change, why) in refused {
                match other(change)() {
                    Err(ConnectError::Refused {
                        machine: OURS,
                        why: reason,
                    }) => {
                        assert!(reason.contains(why), "{reason}");
                    }
                    other => panic!("{other:?}"),
                }
            }
            let mut theirs = Machine::start(place.config(PEER));
            theirs.connect(OURS).expect("the machines connect");
            theirs
        },
    );
    met.expect("the machines connect");
}
