//! The simulated fabric by itself. The same seed gives exactly the same run, and the fabric shows every
//! behaviour that the guarantees allow. A simulator that behaves better than they require hides bugs.

use std::collections::BTreeSet;
use std::time::Duration;

use farm_conformance::sim::SimCluster;
use farm_conformance::{OURS, PEER, THREE, property};
use farm_core::fabric::{
    ArenaConfig, Atomic, Completion, Departure, Endpoint, Read, ReadKind, Rejected, Remote,
    RemoteMemory, Source, Status, Token, Wake, Write,
};
use farm_core::ids::WorkerId;
use farm_core::mem::Memory;
use farm_sim::fabric::{Event, Odds, SimConfig, SimFabric};
use std::sync::atomic::Ordering;

/// Two machines of a fabric: the endpoint of the first, and the memory of the second.
struct Pair {
    fabric: SimFabric,
    endpoint: Endpoint,
    memory: Memory,
    remote: RemoteMemory,
}

fn pair(config: SimConfig) -> Pair {
    let fabric = SimFabric::new(config, &THREE);
    let (memory, capability) = fabric.export(PEER, 4096, true);
    let arena = ArenaConfig {
        classes: vec![(512, 64)],
    };
    let mut endpoint = fabric.endpoint(OURS, WorkerId::FIRST, &arena);
    let remote = endpoint
        .import(&capability)
        .expect("the memory is exported");
    Pair {
        fabric,
        endpoint,
        memory,
        remote,
    }
}

fn calm(seed: u64) -> SimConfig {
    let odds = Odds {
        full: 0,
        stall: 0,
        late_completion: 512,
        spurious_wake: 0,
        steps_per_poll: 0,
        words_per_step: 2,
        places_in_order: true,
        one_pass: false,
        most_retries: 4,
        late_arrival: 0,
        accesses_between_others: 1,
        nested_turn: 0,
        retire: Odds::WHOLE / 4,
    };
    SimConfig {
        odds: Some(odds),
        keep_events: true,
        ..SimConfig::seeded(seed)
    }
}

impl Pair {
    fn at(&self, offset: u64) -> Remote {
        Remote {
            memory: self.remote,
            offset,
        }
    }

    fn write(&mut self, words: &[u64], signal: Option<Token>) {
        let write = Write {
            to: self.at(0),
            fence: false,
            notify: None,
            signal,
        };
        self.endpoint
            .post_write(write, Source::Inline(words))
            .expect("the queue has room");
    }

    fn read(&mut self, bytes: u32, kind: ReadKind, token: u64) {
        let slot = self
            .endpoint
            .arena()
            .take(bytes as usize)
            .expect("a slot is free");
        let (from, token) = (self.at(0), Token(token));
        let read = Read {
            from,
            bytes,
            kind,
            fence: false,
            token,
        };
        self.endpoint
            .post_read(read, slot)
            .expect("the queue has room");
    }

    fn poll(&mut self) -> Vec<Completion> {
        let mut out = Vec::new();
        self.endpoint.poll(64, &mut out);
        out
    }
}

/// Returns whether `happens` is true for one of 200 seeds.
fn ever(mut happens: impl FnMut(u64) -> bool) -> bool {
    (0..200).any(&mut happens)
}

fn hash_of_run(seed: u64, name: &str) -> u64 {
    let mut cluster = SimCluster::new(seed, None, Duration::from_secs(20));
    property(name)(&mut cluster);
    cluster.fabric().trace_hash()
}

#[test]
fn the_same_seed_repeats_a_run_and_other_seeds_give_other_runs() {
    let properties = [
        "every_signalled_operation_completes_once",
        "objects_are_whole_under_a_hammering_writer",
        "a_peer_killed_under_load_completes_everything_once",
        "no_wake_up_is_lost_in_a_long_exchange",
    ];
    for name in properties {
        let hashes: Vec<u64> = (0..4).map(|seed| hash_of_run(seed, name)).collect();
        let again: Vec<u64> = (0..4).map(|seed| hash_of_run(seed, name)).collect();
        assert_eq!(hashes, again, "{name}");
        assert_eq!(
            hashes.iter().collect::<BTreeSet<_>>().len(),
            4,
            "{name}: two seeds give the same run"
        );
    }
}

#[test]
fn a_partly_landed_write_is_visible() {
    assert!(ever(|seed| {
        let mut pair = pair(calm(seed));
        pair.write(&[1; 16], None);
        let mut halfway = false;
        while pair.fabric.step() {
            let (first, last) = (
                pair.memory.load(0, Ordering::Acquire),
                pair.memory.load(120, Ordering::Acquire),
            );
            halfway |= first == 1 && last == 0;
            assert!(first >= last, "a write lands in increasing order");
        }
        halfway
    }));
}

#[test]
fn a_raw_read_may_mix_words_of_different_times() {
    assert!(ever(|seed| {
        let mut pair = pair(calm(seed));
        pair.read(512, ReadKind::Raw, 1);
        let mut value = 0;
        while pair.fabric.step() {
            value += 1;
            pair.memory.write_words(0, &[value; 64]);
        }
        let completion = pair.poll().remove(0);
        let slot = completion.slot.expect("the completion returns the slot");
        let words = pair.endpoint.arena().words(&slot).to_vec();
        words.iter().any(|word| *word != words[0])
    }));
}

#[test]
fn a_read_of_a_changing_object_retries_and_then_ends_torn() {
    let (mut retried, mut torn) = (false, false);
    assert!(ever(|seed| {
        let mut pair = pair(calm(seed));
        pair.read(512, ReadKind::Objects { stride: 512 }, 1);
        let mut value = 0;
        while pair.fabric.step() {
            value += 1;
            pair.memory.store(0, value, Ordering::Release);
        }
        retried |= pair.endpoint.counters().read_retries > 0;
        torn |= pair.poll()[0].status == Status::Torn;
        retried && torn
    }));
}

/// Returns whether, at some seed, the later of two operations on a connection takes place before the earlier one.
fn passes(earlier: fn(&mut Pair), later: fn(&mut Pair)) -> bool {
    ever(|seed| {
        let mut pair = pair(calm(seed));
        earlier(&mut pair);
        later(&mut pair);
        pair.fabric.settle();
        let order: Vec<u64> = pair
            .poll()
            .iter()
            .map(|completion| completion.token.0)
            .collect();
        // Completions may be reordered, so find in the trace when each operation took place.
        let done = |number: u64| {
            let ends = |event: &Event| match event {
                Event::Landed {
                    operation, left: 0, ..
                } => *operation == number,
                Event::Collected { operation, .. } => *operation == number,
                Event::Swapped { operation, .. } => *operation == number,
                _ => false,
            };
            pair.fabric
                .events()
                .iter()
                .rposition(ends)
                .expect("both operations took place")
        };
        assert_eq!(order.len(), 2);
        done(2) < done(1)
    })
}

fn a_read(pair: &mut Pair) {
    pair.read(512, ReadKind::Raw, 1);
}

fn a_short_read(pair: &mut Pair) {
    pair.read(8, ReadKind::Raw, 4);
}

fn a_write(pair: &mut Pair) {
    pair.write(&[1; 8], Some(Token(2)));
}

fn an_atomic(pair: &mut Pair) {
    let (at, op) = (pair.at(0), Atomic::FetchAdd { delta: 1 });
    pair.endpoint
        .post_atomic(at, op, false, Token(3))
        .expect("the queue has room");
}

#[test]
fn operations_pass_earlier_ones_only_where_the_guarantees_allow_it() {
    assert!(passes(a_read, a_write), "no write passed a read");
    assert!(passes(a_read, a_read), "no read passed a read");
    assert!(passes(a_read, an_atomic), "no atomic passed a read");
    assert!(passes(an_atomic, a_write), "no write passed an atomic");
    assert!(passes(an_atomic, a_short_read), "no read passed an atomic");
    assert!(!passes(a_write, a_write), "a write passed a write");
    assert!(!passes(a_write, a_short_read), "a read passed a write");
    assert!(!passes(a_write, an_atomic), "an atomic passed a write");
    assert!(!passes(an_atomic, an_atomic), "an atomic passed an atomic");
}

#[test]
fn completions_are_polled_out_of_order() {
    assert!(ever(|seed| {
        let mut pair = pair(calm(seed));
        for token in 0..8 {
            pair.read(64, ReadKind::Raw, token);
        }
        pair.fabric.settle();
        let tokens: Vec<u64> = pair
            .poll()
            .iter()
            .map(|completion| completion.token.0)
            .collect();
        assert_eq!(tokens.iter().collect::<BTreeSet<_>>().len(), 8);
        !tokens.is_sorted()
    }));
}

#[test]
fn posts_are_refused_at_random_and_connections_stall() {
    let odds = |seed| Odds {
        full: 512,
        stall: 512,
        ..calm(seed).odds.expect("calm odds are given")
    };
    assert!(ever(|seed| {
        let mut pair = pair(SimConfig {
            odds: Some(odds(seed)),
            ..calm(seed)
        });
        let write = Write {
            to: pair.at(0),
            fence: false,
            notify: None,
            signal: None,
        };
        let answer = pair.endpoint.post_write(write, Source::Inline(&[1]));
        pair.fabric.settle();
        let stalled = pair
            .fabric
            .events()
            .iter()
            .any(|event| matches!(event, Event::Stalled { .. }));
        matches!(answer, Err(Rejected::Full(None))) || stalled
    }));
}

#[test]
fn a_break_leaves_a_prefix_of_the_writes() {
    let prefixes: BTreeSet<u64> = (0..200)
        .map(|seed| {
            let mut pair = pair(calm(seed));
            pair.write(&[1; 16], Some(Token(1)));
            for _ in 0..seed % 12 {
                pair.fabric.step();
            }
            let polled = pair.poll().len();
            pair.fabric.break_connection(OURS, PEER);
            pair.fabric.settle();
            let mut words = [0; 16];
            pair.memory.read_words(0, &mut words);
            let landed = words.iter().sum::<u64>();
            assert!(
                words[..landed as usize].iter().all(|word| *word == 1),
                "{words:?}"
            );
            let rest = pair.poll();
            assert_eq!(polled + rest.len(), 1, "the write completes once");
            let broken = rest
                .iter()
                .any(|completion| completion.status == Status::Broken);
            assert!(
                broken || landed == 16,
                "a write that landed partly is `Broken`"
            );
            assert_eq!(pair.endpoint.take_broken(), Some((PEER, Departure::Lost)));
            assert_eq!(pair.endpoint.take_broken(), None);
            landed
        })
        .collect();
    assert!(
        prefixes.contains(&0) && prefixes.contains(&16) && prefixes.len() > 4,
        "{prefixes:?}"
    );
}

#[test]
fn a_sleep_ends_by_a_notification_or_at_its_time() {
    let fabric = SimFabric::new(calm(1), &THREE);
    let arena = ArenaConfig {
        classes: vec![(64, 4)],
    };
    let (_, capability) = fabric.export(PEER, 64, true);
    let mut sleeper = fabric.endpoint(PEER, WorkerId::FIRST, &arena);
    let mut waker = fabric.endpoint(OURS, WorkerId::FIRST, &arena);
    let to = Remote {
        memory: waker.import(&capability).expect("the memory is exported"),
        offset: 0,
    };

    sleeper.arm();
    assert_eq!(sleeper.wait(Duration::from_micros(5)), Wake::TimedOut);
    let until = fabric
        .parked(PEER, WorkerId::FIRST)
        .expect("the worker sleeps");
    assert_eq!(fabric.next_wake(), Some(until));
    fabric.advance_to(until);
    fabric.unpark(PEER, WorkerId::FIRST);
    assert_eq!(fabric.clock().now(), until);

    sleeper.arm();
    assert_eq!(sleeper.wait(Duration::from_secs(1)), Wake::TimedOut);
    let write = Write {
        to,
        fence: false,
        notify: Some(WorkerId::FIRST),
        signal: None,
    };
    waker
        .post_write(write, Source::Inline(&[1]))
        .expect("the queue has room");
    fabric.settle();
    assert!(
        fabric.parked(PEER, WorkerId::FIRST).is_some(),
        "the notification was sent before the flush"
    );
    waker.flush();
    fabric.settle();
    assert_eq!(fabric.parked(PEER, WorkerId::FIRST), None);
    assert_eq!(waker.counters().wakes, 1);
}

#[test]
fn operations_on_a_killed_machine_break_and_the_trace_is_readable() {
    let mut pair = pair(calm(3));
    pair.write(&[1; 4], Some(Token(1)));
    pair.fabric.kill(PEER);
    pair.fabric.settle();
    assert_eq!(pair.poll()[0].status, Status::Broken);
    let write = Write {
        to: pair.at(0),
        fence: false,
        notify: None,
        signal: None,
    };
    let answer = pair.endpoint.post_write(write, Source::Inline(&[1]));
    assert!(matches!(answer, Err(Rejected::Closed(None))));
    let trace = pair.fabric.trace().join("\n");
    assert!(
        trace.contains("m1.w0 posts #1 to m2: Write of 32 bytes"),
        "{trace}"
    );
    assert!(
        trace.contains("m2 and m1 are disconnected: Lost"),
        "{trace}"
    );
}
