//! Posts that are out of range, misaligned or lack the access right, and capabilities of memory that
//! does not exist. They must be refused and have no effect.

use farm_core::fabric::{
    Atomic, Capability, Departure, ImportError, Read, ReadKind, Rejected, Remote, RemoteMemory,
    Slot, Source, Status, Write,
};
use farm_core::ids::MachineId;

use super::roles::AREA;
use super::{CLOSED_BYTES, Cluster, Location, Node, OPEN_BYTES, PEER, Peer};

const MARK: u64 = 0x5afe;

/// Every bad post returns `BadAccess` with its slot, changes no memory and is not counted.
pub(super) fn bad_accesses_are_refused_and_have_no_effect(cluster: &mut dyn Cluster) {
    let ends = [0, OPEN_BYTES - 8];
    for at in ends {
        cluster.owner(PEER).store(Location::Open, at, &[MARK]);
        let at = at % CLOSED_BYTES;
        cluster.owner(PEER).store(Location::Closed, at, &[MARK]);
    }
    let node = cluster.node();
    let before = node.endpoint.counters();
    bad_reads(node);
    bad_writes(node);
    bad_atomics(node);
    assert_eq!(
        node.endpoint.counters(),
        before,
        "a refused post is not counted"
    );
    cluster.settle();
    for at in ends {
        assert_eq!(cluster.owner(PEER).load(Location::Open, at, 1), [MARK]);
        let at = at % CLOSED_BYTES;
        assert_eq!(cluster.owner(PEER).load(Location::Closed, at, 1), [MARK]);
    }
    // The connection still works.
    let node = cluster.node();
    let at = node.peer(PEER).open(AREA);
    assert_eq!(node.read(at, 1), [MARK]);
    cluster.settle();
}

/// Returns an address in memory that was never imported.
fn nowhere() -> Remote {
    Remote {
        memory: RemoteMemory::from_index(u32::MAX),
        offset: 0,
    }
}

/// Returns invalid reads. Each violates one rule.
fn bad_shapes(peer: Peer) -> [(&'static str, Remote, u32, ReadKind); 14] {
    let closed = |offset: u64| Remote {
        offset,
        ..peer.closed(0)
    };
    let end = CLOSED_BYTES as u64;
    let objects = |stride| ReadKind::Objects { stride };
    [
        ("past the end", closed(end), 8, ReadKind::Raw),
        ("across the end", closed(end - 8), 16, ReadKind::Raw),
        (
            "longer than the memory",
            closed(0),
            CLOSED_BYTES as u32 + 64,
            ReadKind::Raw,
        ),
        (
            "an offset that wraps",
            closed(u64::MAX - 7),
            16,
            ReadKind::Raw,
        ),
        (
            "the last offset there is",
            closed(u64::MAX),
            8,
            ReadKind::Raw,
        ),
        ("a misaligned offset", closed(4), 8, ReadKind::Raw),
        ("a misaligned length", closed(0), 12, ReadKind::Raw),
        ("no such memory", nowhere(), 8, ReadKind::Raw),
        ("objects of nothing", closed(0), 64, objects(0)),
        ("objects of half lines", closed(0), 64, objects(32)),
        ("objects of a line and a half", closed(0), 192, objects(96)),
        (
            "objects that start inside a line",
            closed(8),
            64,
            objects(64),
        ),
        ("objects cut inside a line", closed(0), 72, objects(64)),
        ("objects past the end", closed(end - 64), 128, objects(64)),
    ]
}

fn bad_reads(node: &mut Node) {
    let peer = node.peer(PEER);
    for (what, from, bytes, kind) in bad_shapes(peer) {
        let slot = node
            .endpoint
            .arena()
            .take(16 << 10)
            .expect("a slot is free");
        let token = node.token();
        let answer = node.endpoint.post_read(
            Read {
                from,
                bytes,
                kind,
                fence: false,
                token,
            },
            slot,
        );
        assert_bad_access(node, what, answer, true);
    }
    let slot = node.endpoint.arena().take(64).expect("a slot is free");
    let (from, bytes, token) = (peer.closed(0), slot.bytes() as u32 + 64, node.token());
    let read = Read {
        from,
        bytes,
        kind: ReadKind::Raw,
        fence: false,
        token,
    };
    let answer = node.endpoint.post_read(read, slot);
    assert_bad_access(node, "a read longer than its slot", answer, true);
}

fn bad_writes(node: &mut Node) {
    let peer = node.peer(PEER);
    let open = |offset: u64| Remote {
        offset,
        ..peer.open(0)
    };
    let end = OPEN_BYTES as u64;
    let cases = [
        ("past the end", open(end), 8),
        ("across the end", open(end - 8), 16),
        ("an offset that wraps", open(u64::MAX - 7), 16),
        ("a misaligned offset", open(end - 12), 8),
        ("a misaligned length", open(end - 16), 12),
        ("no such memory", nowhere(), 8),
        ("memory that may only be read", peer.closed(0), 8),
    ];
    for (what, to, bytes) in cases {
        let slot = node.endpoint.arena().take(64).expect("a slot is free");
        let signal = Some(node.token());
        let write = Write {
            to,
            fence: false,
            notify: None,
            signal,
        };
        let answer = node
            .endpoint
            .post_write(write, Source::Slot { slot, bytes });
        assert_bad_access(node, what, answer, true);
        if bytes % 8 == 0 {
            let words = &[1; 2][..bytes as usize / 8];
            let answer = node.endpoint.post_write(write, Source::Inline(words));
            assert_bad_access(node, what, answer, false);
        }
    }
    let write = Write {
        to: open(0),
        fence: false,
        notify: None,
        signal: None,
    };
    let slot = node.endpoint.arena().take(64).expect("a slot is free");
    let bytes = slot.bytes() as u32 + 8;
    let answer = node
        .endpoint
        .post_write(write, Source::Slot { slot, bytes });
    assert_bad_access(node, "a write longer than its slot", answer, true);
    let words = vec![1; node.endpoint.capabilities().max_inline_bytes / 8 + 1];
    let answer = node.endpoint.post_write(write, Source::Inline(&words));
    assert_bad_access(node, "an inline write that is too long", answer, false);
}

fn bad_atomics(node: &mut Node) {
    let peer = node.peer(PEER);
    let open = |offset: u64| Remote {
        offset,
        ..peer.open(0)
    };
    let cases = [
        ("past the end", open(OPEN_BYTES as u64)),
        ("across the end", open(OPEN_BYTES as u64 - 4)),
        ("misaligned", open(4)),
        ("an offset that wraps", open(u64::MAX - 7)),
        ("no such memory", nowhere()),
        ("memory that may only be read", peer.closed(0)),
    ];
    for (what, at) in cases {
        for op in [
            Atomic::FetchAdd { delta: 1 },
            Atomic::CompareSwap {
                expected: MARK,
                new: 0,
            },
        ] {
            let token = node.token();
            let answer = node.endpoint.post_atomic(at, op, false, token);
            assert_bad_access(node, what, answer, false);
        }
    }
}

/// Checks that a post returned `BadAccess`, and that it returned the slot if `with_slot`. A bad access
/// must return `BadAccess`, not `Full`, even if the queue is full.
fn assert_bad_access(node: &mut Node, what: &str, answer: Result<(), Rejected>, with_slot: bool) {
    let slot: Option<Slot> = match answer {
        Err(Rejected::BadAccess(slot)) => slot,
        other => panic!("{what}: {other:?} instead of BadAccess"),
    };
    assert_eq!(
        slot.is_some(),
        with_slot,
        "{what}: whether the slot is returned"
    );
    slot.into_iter()
        .for_each(|slot| node.endpoint.arena().give(slot));
}

/// Importing a capability from an earlier start of the machine, of a machine outside the cluster, or of
/// memory that was never exported fails with the reason.
pub(super) fn stale_and_unknown_capabilities_are_refused(cluster: &mut dyn Cluster) {
    let node = cluster.node();
    let good = node.peer(PEER).offer.closed;
    node.endpoint
        .import(&good)
        .expect("a valid capability can be imported more than once");

    let stale = Capability {
        boot: good.boot ^ 1,
        ..good
    };
    match node.endpoint.import(&stale) {
        Err(ImportError::Restarted {
            machine,
            stale,
            current,
        }) => {
            assert_eq!((machine, stale, current), (PEER, good.boot ^ 1, good.boot));
        }
        other => panic!("a stale capability: {other:?}"),
    }
    let stranger = MachineId::new(77).expect("a machine can have this number");
    match node.endpoint.import(&Capability {
        machine: stranger,
        ..good
    }) {
        Err(ImportError::NotConnected(machine)) => assert_eq!(machine, stranger),
        other => panic!("a capability of an unknown machine: {other:?}"),
    }
    let absent = Capability {
        key: good.key + 1_000_000,
        ..good
    };
    let longer = Capability {
        key: good.key + 1_000_001,
        bytes: 1 << 40,
        ..good
    };
    for unknown in [absent, longer] {
        check_unknown_memory(cluster, &unknown);
    }
}

/// Checks that importing memory that was never exported fails, or that the first access breaks the connection.
fn check_unknown_memory(cluster: &mut dyn Cluster, unknown: &Capability) {
    let node = cluster.node();
    if node.endpoint.capabilities().imports_are_checked {
        let refused = node.endpoint.import(unknown);
        assert!(
            matches!(refused, Err(ImportError::Mapping(_))),
            "{refused:?}"
        );
        return;
    }
    let memory = match node.endpoint.import(unknown) {
        Ok(memory) => memory,
        Err(ImportError::NotConnected(PEER)) => return,
        Err(other) => panic!("{other}"),
    };
    let from = Remote { memory, offset: 0 };
    let read = node.try_read(from, 64, ReadKind::Raw, false);
    let (status, _) = node.finish_read(
        read.expect("the connection still works when the read is posted"),
        64,
    );
    assert_eq!(
        status,
        Status::Broken,
        "a read of memory that was never exported"
    );
    let ended = node.endpoint.take_broken();
    assert_eq!(ended, Some((PEER, Departure::Lost)));
}
