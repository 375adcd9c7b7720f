//! A ring against a queue: every accepted record arrives complete, in order and once. No record
//! arrives early. Afterwards the buffer is all zero.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::super::layout::{OVERHEAD_BYTES, record_bytes};
use super::*;
use crate::fabric::Endpoint;
use crate::ring::{Capacity, RingReceiver, RingSender, SetupError, testing};

#[test]
fn a_record_arrives_as_it_was_sent() {
    let mut pair = Pair::at(1024, 0);
    for bytes in 0..=pair.sender.max_body_bytes() as usize {
        let sent = body(bytes as u64, bytes);
        send(&mut pair, Kind::Request, bytes as u64, &sent).unwrap();
        assert_eq!(
            receive(&mut pair),
            Some((header(Kind::Request, bytes as u64), sent))
        );
        assert_eq!(receive(&mut pair), None);
    }
    assert!(pair.words().iter().all(|word| *word == 0));
}

#[test]
fn parts_become_one_body() {
    let mut pair = Pair::at(1024, 0);
    let parts: [&[u8]; 5] = [b"one", b"", b"two and three", b"4", b"five"];
    pair.sender
        .try_send(&mut pair.sender_endpoint, header(Kind::OneWay, 1), &parts)
        .unwrap();
    pair.sender
        .try_send(&mut pair.sender_endpoint, header(Kind::OneWay, 2), &[])
        .unwrap();
    assert_eq!(receive(&mut pair).unwrap().1, b"onetwo and three4five");
    assert_eq!(receive(&mut pair).unwrap().1, b"");
}

/// Bytes that an earlier record left in the inline buffer or the arena's slot do not leak into
/// padding.
#[test]
fn padding_is_zero() {
    for bytes in [9, 65] {
        let mut pair = Pair::at(2048, 0);
        send(&mut pair, Kind::OneWay, 1, &[0xff; 16]).unwrap();
        send(&mut pair, Kind::OneWay, 1, &[0xff; 72]).unwrap();
        let start = pair.sender.tail() as usize / 8;
        send(&mut pair, Kind::OneWay, 2, &vec![0xff; bytes]).unwrap();
        assert_eq!(pair.words()[start + 2 + bytes / 8], 0xff);
    }
}

/// Two records at every offset at which a record can start, of sizes that produce every gap: the
/// second one ends anywhere from just before the end of the buffer to just after a wrap.
#[test]
fn records_wrap_at_every_offset() {
    let mut gaps = std::collections::BTreeSet::new();
    for start in (0..1024).step_by(8) {
        for bytes in (0..=104).step_by(8) {
            let mut pair = Pair::at(1024, 3 * 1024 + start);
            for token in [1, 2] {
                let tail = pair.sender.tail();
                let body = body(token, bytes);
                send(&mut pair, Kind::Reply, token, &body).unwrap();
                let written = pair.sender.tail() - tail;
                gaps.insert(written - u64::from(record_bytes(bytes).unwrap()));
            }
            for token in [1, 2] {
                assert_eq!(
                    receive(&mut pair).unwrap().1,
                    body(token, bytes),
                    "at {start}"
                );
            }
            assert_eq!(receive(&mut pair), None);
            assert_eq!(pair.receiver.head(), pair.sender.tail());
            assert!(pair.words().iter().all(|word| *word == 0));
        }
    }
    // No filler, and fillers of every length from one word to the largest record minus one word.
    assert_eq!(
        gaps.into_iter().collect::<Vec<_>>(),
        (0..128).step_by(8).collect::<Vec<_>>()
    );
}

/// Every word lands separately, with a poll in between: the record is returned once its last word
/// has landed.
#[test]
fn nothing_arrives_before_its_last_word() {
    for start in [0, 1024 - 32, 1024 - 8] {
        let mut pair = Pair::at(1024, start);
        pair.forth.hold();
        for token in 1..=3 {
            send(&mut pair, Kind::OneWay, token, &body(token, 40)).unwrap();
        }
        for token in 1..=3 {
            let record_words = 8;
            let filler_words = pair.forth.flying() % record_words;
            for _ in 1..filler_words + record_words {
                assert_eq!(pair.forth.land(1), 1);
                assert_eq!(peek(&mut pair), None, "start {start}, record {token}");
            }
            pair.forth.land(1);
            assert_eq!(receive(&mut pair).unwrap().1, body(token, 40));
        }
        assert_eq!(pair.forth.flying(), 0);
    }
}

/// Words land in any order, with a poll after each: the record is returned once all its words have
/// landed.
#[test]
fn with_checksums_a_record_arrives_with_its_last_landed_word() {
    for start in [0, 1024 - 32, 1024 - 8] {
        for picks in 0..500usize {
            let mut pair = Pair::unordered(1024, start);
            pair.forth.hold();
            for token in 1..=3 {
                send(&mut pair, Kind::OneWay, token, &body(token, 40)).unwrap();
            }
            let ends: Vec<usize> = (1..=3)
                .map(|nth| pair.forth.flying() - 8 * (3 - nth))
                .collect();
            let mut seen = 0;
            let mut pick = picks;
            while pair.forth.land_any(pick) {
                pick = pick.wrapping_mul(0x9e37_79b9).wrapping_add(picks) >> 3;
                while ends
                    .get(seen)
                    .is_some_and(|end| pair.forth.landed() >= *end)
                {
                    seen += 1;
                    let token = seen as u64;
                    assert_eq!(receive(&mut pair).unwrap().1, body(token, 40));
                }
                assert_eq!(peek(&mut pair), None, "start {start}, picks {picks}");
            }
            assert_eq!(seen, 3);
            assert!(pair.words().iter().all(|word| *word == 0));
        }
    }
}

/// A record whose trailer landed before its body: without a checksum, the receiver would accept it
/// too early.
#[test]
fn a_trailer_that_lands_first_does_not_complete_a_record() {
    let mut pair = Pair::unordered(1024, 0);
    pair.forth.hold();
    send(&mut pair, Kind::OneWay, 1, &body(1, 24)).unwrap();
    // The head lands, then the trailer, then token and body.
    for pick in [0, 4, 0, 0, 0, 0] {
        assert_eq!(peek(&mut pair), None);
        pair.forth.land_any(pick);
    }
    assert_eq!(receive(&mut pair).unwrap().1, body(1, 24));
}

/// A record that is not consumed is returned again, and blocks the records after it.
#[test]
fn a_record_stays_until_it_is_consumed() {
    let mut pair = Pair::at(1024, 0);
    send(&mut pair, Kind::Request, 1, b"first").unwrap();
    send(&mut pair, Kind::Request, 2, b"second").unwrap();
    for _ in 0..3 {
        assert_eq!(peek(&mut pair).unwrap().1, b"first");
    }
    pair.receiver.consume(&mut pair.receiver_endpoint);
    assert_eq!(peek(&mut pair).unwrap().1, b"second");
}

#[test]
#[should_panic(expected = "consumed or kept only after `peek`")]
fn consuming_twice_panics() {
    let mut pair = Pair::at(1024, 0);
    send(&mut pair, Kind::Request, 1, b"first").unwrap();
    receive(&mut pair);
    pair.receiver.consume(&mut pair.receiver_endpoint);
}

/// Calls stop where the reserve begins; replies may use the ring up to the last byte (FaRM'14 §3.1:
/// never beyond the head); one report after half of the ring makes the space available again.
#[test]
fn space_is_reserved_for_replies_and_reported_by_halves() {
    let mut pair = Pair::at(1024, 0);
    let record = |pair: &mut Pair, kind| send(pair, kind, 7, &[1; 40]);
    for _ in 0..768 / 64 {
        record(&mut pair, Kind::OneWay).unwrap();
    }
    assert_eq!(record(&mut pair, Kind::OneWay), Err(SendError::Full));
    assert_eq!(record(&mut pair, Kind::Request), Err(SendError::Full));
    assert_eq!(pair.sender.has_room(Kind::Request, 40), Ok(false));
    assert_eq!(pair.sender.has_room(Kind::Reply, 40), Ok(true));
    for _ in 0..256 / 64 {
        record(&mut pair, Kind::Reply).unwrap();
    }
    assert_eq!(record(&mut pair, Kind::Reply), Err(SendError::Full));
    assert_eq!(pair.sender.free_bytes(), Ok(0));
    for _ in 0..512 / 64 - 1 {
        receive(&mut pair).unwrap();
    }
    assert_eq!(pair.back.posts(), 0);
    assert_eq!(
        record(&mut pair, Kind::Reply),
        Err(SendError::Full),
        "the head is reported lazily"
    );
    receive(&mut pair).unwrap();
    assert_eq!(pair.back.posts(), 1);
    assert_eq!(pair.sender.free_bytes(), Ok(512));
    record(&mut pair, Kind::Request).unwrap();
}

/// A report that the endpoint rejected as full is posted by a later call of any kind.
#[test]
fn a_rejected_report_is_posted_later() {
    let mut pair = Pair::at(1024, 0);
    for _ in 0..8 {
        send(&mut pair, Kind::OneWay, 7, &[1; 40]).unwrap();
    }
    pair.back.admit(0);
    for _ in 0..8 {
        receive(&mut pair).unwrap();
    }
    assert_eq!(peek(&mut pair), None);
    assert_eq!(pair.sender.free_bytes(), Ok(512));
    pair.back.admit(1);
    assert_eq!(peek(&mut pair), None);
    assert_eq!(pair.sender.free_bytes(), Ok(1024));
}

/// The endpoint accepted the filler and rejected its record: the filler stays, and the ring
/// continues after it.
#[test]
fn a_filler_without_its_record_is_harmless() {
    let mut pair = Pair::at(1024, 1024 - 8);
    pair.forth.admit(1);
    assert_eq!(
        send(&mut pair, Kind::OneWay, 1, b"refused"),
        Err(SendError::Full)
    );
    assert_eq!(receive(&mut pair), None);
    assert_eq!(pair.receiver.head(), 1024, "stepped over the filler");
    pair.forth.admit(usize::MAX);
    send(&mut pair, Kind::OneWay, 2, b"accepted").unwrap();
    assert_eq!(receive(&mut pair).unwrap().1, b"accepted");
}

/// Slots of the arena are returned for every outcome of the post.
#[test]
fn no_slot_leaks() {
    let mut pair = Pair::at(8192, 0);
    let long = [7; 600];
    send(&mut pair, Kind::OneWay, 1, &long).unwrap();
    pair.forth.admit(0);
    assert_eq!(
        send(&mut pair, Kind::OneWay, 2, &long),
        Err(SendError::Full)
    );
    pair.forth.admit(usize::MAX);
    while send(&mut pair, Kind::OneWay, 2, &long).is_ok() {}
    pair.forth.close();
    assert_eq!(
        send(&mut pair, Kind::Reply, 2, &long),
        Err(SendError::Closed)
    );
    assert_eq!(send(&mut pair, Kind::Reply, 2, b""), Err(SendError::Closed));
    assert_eq!(pair.sender_endpoint.arena().taken(), 0);
    // While all slots are taken, a record that needs a slot waits, and an inline record does not.
    let mut pair = Pair::at(8192, 0);
    let slots: Vec<_> =
        std::iter::from_fn(|| pair.sender_endpoint.arena().take_to_send(1)).collect();
    assert_eq!(
        send(&mut pair, Kind::OneWay, 1, &long),
        Err(SendError::Full)
    );
    send(&mut pair, Kind::OneWay, 1, b"short").unwrap();
    for slot in slots {
        pair.sender_endpoint.arena().give(slot);
    }
    send(&mut pair, Kind::OneWay, 1, &long).unwrap();
}

/// Records that the sender wrote before the connection broke can still be read.
#[test]
fn a_closed_connection_is_drained() {
    let mut pair = Pair::at(1024, 0);
    for token in 0..12 {
        send(&mut pair, Kind::OneWay, token, &body(token, 40)).unwrap();
    }
    pair.back.close();
    for token in 0..12 {
        assert_eq!(receive(&mut pair).unwrap().1, body(token, 40));
    }
    assert_eq!(receive(&mut pair), None);
}

#[test]
fn a_body_that_never_fits_has_its_own_error() {
    let mut pair = Pair::at(1024, 0);
    let refused = send(&mut pair, Kind::OneWay, 1, &[0; 105]).unwrap_err();
    assert_eq!(
        refused,
        SendError::TooLarge {
            body_bytes: 105,
            max_body_bytes: 104
        }
    );
    send(&mut pair, Kind::OneWay, 1, &[0; 104]).unwrap();
    assert!(pair.sender.has_room(Kind::OneWay, usize::MAX).is_err());
    // The arena's largest slot limits records, too.
    let largest = Pair::at(1 << 24, 0);
    assert_eq!(largest.sender.max_body_bytes(), (1 << 20) - OVERHEAD_BYTES);
}

#[test]
fn setups_that_break_the_guarantees_are_rejected() {
    let pair = Pair::at(1024, 0);
    let endpoint: &mut Endpoint = &mut pair.forth.endpoint(4);
    let capacity = Capacity::new(1024).unwrap();
    let config = testing::sender_config(capacity, pair.head_copy.clone());
    let refused = RingSender::new(config.clone(), endpoint).unwrap_err();
    assert_eq!(
        refused,
        SetupError::NoInlineWord {
            max_inline_bytes: 4
        }
    );
    let endpoint = &mut pair.forth.endpoint(8);
    let greedy = crate::ring::SenderConfig {
        reply_reserve_bytes: 264,
        ..config.clone()
    };
    let refused = RingSender::new(greedy, endpoint).unwrap_err();
    assert_eq!(
        refused,
        SetupError::Reserve {
            asked_bytes: 264,
            most_bytes: 256
        }
    );
    let unordered = &mut pair.forth.endpoint_that(8, false);
    let refused = RingSender::new(config.clone(), unordered).unwrap_err();
    assert_eq!(refused, SetupError::UnorderedPlacement);
    assert!(refused.to_string().contains("rings.checksums"), "{refused}");
    let refused = RingSender::resume(config, endpoint, 12, 1).unwrap_err();
    assert_eq!(refused, SetupError::Position { position: 12 });
    let config = testing::receiver_config(pair.buffer.window(0, 1000));
    let refused = RingReceiver::new(config, endpoint).unwrap_err();
    assert!(
        refused.to_string().contains("a ring of 1000 bytes"),
        "{refused}"
    );
}

#[derive(Clone, Debug)]
enum Step {
    Send(Kind, usize, usize),
    Peek,
    Receive,
    LandForth(usize),
    LandAny(usize),
    LandBack(usize),
    AdmitForth(usize),
    AdmitBack(usize),
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![Just(Kind::OneWay), Just(Kind::Request), Just(Kind::Reply)]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (kind(), 0usize..=104, 0usize..=104).prop_map(|(k, b, cut)| Step::Send(k, b, cut)),
        2 => Just(Step::Peek),
        5 => Just(Step::Receive),
        5 => (0usize..40).prop_map(Step::LandForth),
        2 => any::<usize>().prop_map(Step::LandAny),
        2 => (0usize..3).prop_map(Step::LandBack),
        1 => (0usize..4).prop_map(Step::AdmitForth),
        1 => (0usize..2).prop_map(Step::AdmitBack),
    ]
}

/// Accepted records that have not arrived: header, body, and the number of words posted up to the
/// record's trailer.
type Sent = VecDeque<(Header, Vec<u8>, usize)>;

fn run(mut pair: Pair, ordered: bool, steps: &[Step]) -> Result<(), TestCaseError> {
    let bytes = u64::from(pair.sender.capacity_bytes());
    pair.forth.hold();
    pair.back.hold();
    let mut sent: Sent = VecDeque::new();
    let (mut posted, mut token) = (0usize, 0u64);
    for step in steps {
        match *step {
            Step::Send(kind, bytes, cut) => {
                token += 1;
                let bytes = bytes.min(pair.sender.max_body_bytes() as usize);
                let body = body(token, bytes);
                let (front, back) = body.split_at(cut.min(bytes));
                let flying = pair.forth.flying();
                let (sender, endpoint) = (&mut pair.sender, &mut pair.sender_endpoint);
                let result = sender.try_send(endpoint, header(kind, token), &[front, back]);
                posted += pair.forth.flying() - flying;
                match result {
                    Ok(()) => sent.push_back((header(kind, token), body, posted)),
                    Err(error) => prop_assert_eq!(error, SendError::Full),
                }
            }
            Step::Peek | Step::Receive => {
                let landed = pair.forth.landed();
                let due = sent.front().filter(|(_, _, at)| *at <= landed);
                let expected = due.map(|(header, body, _)| (*header, body.clone()));
                prop_assert_eq!(peek(&mut pair), expected.clone());
                if matches!(step, Step::Receive) && expected.is_some() {
                    pair.receiver.consume(&mut pair.receiver_endpoint);
                    sent.pop_front();
                }
            }
            Step::LandForth(most) => _ = pair.forth.land(most),
            Step::LandAny(_) if ordered => _ = pair.forth.land(1),
            Step::LandAny(pick) => _ = pair.forth.land_any(pick),
            Step::LandBack(most) => _ = pair.back.land(most),
            Step::AdmitForth(posts) => pair.forth.admit(posts),
            Step::AdmitBack(posts) => pair.back.admit(posts),
        }
        // Every schedule eventually continues.
        if matches!(step, Step::Receive) {
            pair.forth.admit(usize::MAX);
            pair.back.admit(usize::MAX);
        }
    }
    pair.forth.release();
    pair.back.release();
    pair.back.admit(usize::MAX);
    for (header, body, _) in sent {
        prop_assert_eq!(receive(&mut pair), Some((header, body)));
    }
    prop_assert_eq!(receive(&mut pair), None);
    prop_assert_eq!(pair.receiver.head(), pair.sender.tail());
    prop_assert!(pair.words().iter().all(|word| *word == 0));
    prop_assert_eq!(pair.sender_endpoint.arena().taken(), 0);
    let used = u64::from(pair.sender.free_bytes().unwrap());
    prop_assert!(
        used > bytes / 2,
        "half of the ring is known to be free at the end"
    );
    Ok(())
}

proptest! {
    #[test]
    fn a_ring_is_a_queue(
        shift in 9u32..=11,
        start in (0u64..512).prop_map(|word| word * 8),
        steps in prop::collection::vec(step(), 1..400),
    ) {
        run(Pair::at(1 << shift, start), true, &steps)?;
    }

    #[test]
    fn a_ring_is_a_queue_with_unordered_placement(
        shift in 9u32..=11,
        start in (0u64..512).prop_map(|word| word * 8),
        steps in prop::collection::vec(step(), 1..400),
    ) {
        run(Pair::unordered(1 << shift, start), false, &steps)?;
    }
}
