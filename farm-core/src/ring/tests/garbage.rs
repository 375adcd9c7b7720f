//! The peer writes arbitrary data: the result is a permanent error, never a panic, and never space
//! beyond the valid part of the ring.

use super::super::layout::{Expected, trailer_word};
use super::super::testing::{BETWEEN_POLLS, MOST_POLLS, receiver_config};
use super::*;
use crate::ring::{BadHead, ReceiverConfig, RecordIntegrity, RingError, RingReceiver};

/// Creates a ring with three records around a wrap, of 64, 24 and 48 bytes, with a gap of 16 before
/// the last.
fn sample() -> Pair {
    filled(Pair::at(1024, START))
}

/// Position at which the sample begins.
const START: u64 = 1024 - 64 - 24 - 16;

fn filled(mut pair: Pair) -> Pair {
    send(&mut pair, Kind::Request, 1, &body(1, 37)).unwrap();
    send(&mut pair, Kind::OneWay, 2, b"").unwrap();
    send(&mut pair, Kind::Reply, 3, &body(3, 24)).unwrap();
    pair
}

/// The records, and the error if there was one.
type Drained = (Vec<(Header, Vec<u8>)>, Option<RingError>);

/// Polls until no record arrives, for longer than a receiver waits for the rest of a record.
fn drain(pair: &mut Pair) -> Drained {
    let (mut records, mut polls) = (Vec::new(), 0);
    loop {
        let now = Nanos(polls * BETWEEN_POLLS);
        match pair.receiver.peek(&mut pair.receiver_endpoint, now) {
            Ok(None) if polls < MOST_POLLS => {
                polls += 1;
                continue;
            }
            Ok(None) => return (records, None),
            Ok(Some(r)) => {
                let header = Header {
                    kind: r.kind,
                    to_worker: r.to_worker,
                    message_id: r.message_id,
                    token: r.token,
                };
                records.push((header, r.body.to_vec()));
            }
            Err(error) => {
                let again = pair.receiver.peek(&mut pair.receiver_endpoint, now);
                assert_eq!(
                    again.unwrap_err(),
                    error,
                    "a later peek did not return the same error"
                );
                return (records, Some(error));
            }
        }
        pair.receiver.consume(&mut pair.receiver_endpoint);
    }
}

/// Yields the drained result of one ring per bit of the buffer, with that bit flipped, and a
/// description of the flip.
fn with_a_bit_flipped(sample: impl Fn() -> Pair) -> impl Iterator<Item = (String, Drained)> {
    let bits = (0..1024)
        .step_by(8)
        .flat_map(|at| (0..64).map(move |bit| (at, bit)));
    bits.map(move |(offset, bit)| {
        let mut pair = sample();
        let word = pair.words()[offset / 8];
        pair.buffer.write_words(offset, &[word ^ 1 << bit]);
        let drained = drain(&mut pair);
        let place = format!("word {offset:#x} bit {bit}: {:?}", drained.1);
        (place, drained)
    })
}

/// Flips one bit anywhere. Structure is never misread: the receiver returns records that were sent,
/// with their lengths. If a record is missing, the ring either is in error or waits for a trailer.
/// Only the contents of the record with the flipped bit (kind, worker, id, token, body) may differ.
#[test]
fn any_flipped_bit_is_an_error_or_stays_within_its_record() {
    let (sound, none) = drain(&mut sample());
    assert_eq!((sound.len(), none), (3, None));
    let (mut errors, mut waits, mut contents) = (0, 0, 0);
    for (place, (records, error)) in with_a_bit_flipped(sample) {
        let differing = records
            .iter()
            .zip(&sound)
            .filter(|(ours, sent)| ours != sent)
            .count();
        assert!(differing <= 1, "{place}");
        errors += usize::from(error.is_some());
        waits += usize::from(error.is_none() && records.len() < 3);
        contents += usize::from(records.len() == 3 && differing == 1);
        if let Some(error) = error {
            assert_eq!(error.sequence, records.len() as u64 + 1, "{place}");
            assert!(error.to_string().contains("expected"), "{error}");
        } else if records.len() == 3 {
            for (ours, sent) in records.iter().zip(&sound) {
                // A flip in the padding count changes a body's length within its last word.
                assert!(ours.1.len().abs_diff(sent.1.len()) < 8, "{place}");
            }
        }
    }
    assert!(
        errors > 300 && waits > 0 && contents > 300,
        "{errors} {waits} {contents}"
    );
}

/// With checksums every flipped bit is an error. Regression test: a receiver once waited forever
/// for the rest of a damaged record, if a word of the record was zero or became zero by the flip,
/// or if the length was damaged.
#[test]
fn with_checksums_any_flipped_bit_is_an_error() {
    for sample in [
        || filled(Pair::unordered(1024, START)),
        || with_zeroes(Pair::unordered(1024, START)),
    ] {
        let (sound, none) = drain(&mut sample());
        assert_eq!((sound.len(), none), (3, None));
        let mut errors = 0;
        for (place, (records, error)) in with_a_bit_flipped(sample) {
            assert_eq!(records[..], sound[..records.len()], "{place}");
            assert!(error.is_some() || records.len() == 3, "{place}");
            errors += u32::from(error.is_some());
        }
        // 17 words of records, one word of a filler, and the place of the next record's head.
        assert!(errors >= 19 * 64, "{errors}");
    }
}

/// Sends the records of the sample with bodies whose words are zero or have few bits set.
fn with_zeroes(mut pair: Pair) -> Pair {
    let bits = |bytes: usize| -> Vec<u8> { (0..bytes).map(|at| (at % 16 / 8) as u8).collect() };
    send(&mut pair, Kind::Request, 1, &bits(37)).unwrap();
    send(&mut pair, Kind::OneWay, 0, b"").unwrap();
    send(&mut pair, Kind::Reply, 1 << 40, &bits(24)).unwrap();
    pair
}

/// A word that became zero looks like a word that has not landed. If words land in order, no word
/// lands after the trailer, so the record is an error at once.
#[test]
fn a_word_that_became_zero_is_an_error() {
    for ordered in [false, true] {
        for at in (0..64).step_by(8) {
            let mut pair = Pair::unordered(1024, START);
            pair.receiver = receiver_of(&pair, ordered);
            let mut pair = filled(pair);
            pair.buffer.write_words(START as usize + at, &[0]);
            let first = pair.receiver.peek(&mut pair.receiver_endpoint, Nanos(0));
            // A zeroed head looks like free space. With ordered placement, a zeroed trailer looks
            // like a paused sender.
            let at_once = ordered && at > 0 && at < 56;
            assert_eq!(first.is_err(), at_once, "{at}: {first:?}");
            let (records, error) = drain(&mut pair);
            let unnoticed = at == 0 || ordered && at == 56;
            assert_eq!(
                (records.len(), error.is_none()),
                (0, unnoticed),
                "{at}: {error:?}"
            );
        }
    }
}

/// Returns a receiver of a pair's ring over a fabric with or without ordered placement.
fn receiver_of(pair: &Pair, ordered: bool) -> RingReceiver {
    let config = ReceiverConfig {
        integrity: RecordIntegrity::Checksum,
        ..receiver_config(pair.buffer.clone())
    };
    let endpoint = pair.back.endpoint_that(64, ordered);
    RingReceiver::resume(config, &endpoint, START, 1).unwrap()
}

/// A record is not an error while its words land, however late, nor after a pause of the receiver.
#[test]
fn a_record_whose_words_land_late_is_not_an_error() {
    const WAIT: u64 = 4_900_000_000;
    for first in 0..8 {
        let mut pair = Pair::unordered(1024, 0);
        pair.forth.hold();
        send(&mut pair, Kind::Request, 1, &[1; 40]).unwrap();
        let words = pair.forth.flying();
        let mut now = Nanos(0);
        for landed in 1..=words {
            pair.forth.land_any(if landed == 1 {
                first
            } else {
                words - 1 - landed / 2
            });
            // The receiver polls for almost five seconds, and then pauses for an hour.
            for _ in 0..50 {
                let found = pair.receiver.peek(&mut pair.receiver_endpoint, now);
                assert_eq!(
                    found.unwrap().is_some(),
                    landed == words,
                    "{landed} of {words}"
                );
                now = now + WAIT / 50;
            }
            now = now + 3_600_000_000_000;
        }
    }
}

#[test]
fn a_wrong_checksum_is_reported() {
    let mut pair = Pair::unordered(1024, 0);
    send(&mut pair, Kind::Request, 1, &body(1, 16)).unwrap();
    let word = pair.words()[2];
    pair.buffer.write_words(16, &[word ^ 1]);
    let error = drain(&mut pair).1.expect("expected an error");
    assert_eq!(error.offset, 32);
    assert!(
        matches!(error.expected, Expected::Checksum { .. }),
        "{error}"
    );
    assert!(error.to_string().contains("checksum"), "{error}");
}

fn error_of(offset: usize, word: u64) -> RingError {
    let mut pair = Pair::at(1024, 0);
    send(&mut pair, Kind::Request, 1, &body(1, 13)).unwrap();
    pair.buffer.write_words(offset, &[word]);
    drain(&mut pair)
        .1
        .unwrap_or_else(|| panic!("{word:#x} at {offset} was accepted"))
}

#[test]
fn errors_report_offset_and_expected_value() {
    let head = 40 | 0x62 << 32 | 5 << 40 | 0xbeef << 48;
    let error = error_of(0, 0xff);
    assert_eq!((error.offset, error.sequence), (0, 1));
    assert_eq!((error.expected, error.found), (Expected::Kind, 0xff));
    for length in [0, 8, 16, 23, 39, 41, 136, 0xffff_fff8] {
        let found = head & !0xffff_ffff | length;
        assert_eq!(
            error_of(0, found).expected,
            Expected::Length { most: 128 },
            "{length}"
        );
    }
    assert_eq!(error_of(0, 24 | 0x22 << 32).expected, Expected::Padding);
    assert_eq!(error_of(0, head | 0xff << 40).expected, Expected::Worker);
    assert_eq!(
        error_of(0, 1024 | 4 << 32).expected,
        Expected::Filler { bytes: 1024 }
    );
    let error = error_of(24, u64::MAX);
    assert_eq!((error.offset, error.expected), (24, Expected::Padding));
    let error = error_of(32, trailer_word(2));
    assert_eq!(
        (error.offset, error.expected),
        (
            32,
            Expected::Trailer {
                word: trailer_word(1)
            }
        )
    );
    assert_eq!(
        error.to_string(),
        "invalid data at ring offset 0x20, record 1: found 0x8000000000000002, expected trailer 0x8000000000000001"
    );
}

/// A record that would extend past the end of the buffer, and fillers that do not end there.
#[test]
fn records_and_fillers_past_the_end_are_rejected() {
    for (word, expected) in [
        (72 | 1 << 32, Expected::Length { most: 64 }),
        (56 | 4 << 32, Expected::Filler { bytes: 64 }),
        (72 | 4 << 32, Expected::Filler { bytes: 64 }),
        (64 | 4 << 32 | 1 << 48, Expected::Filler { bytes: 64 }),
    ] {
        let mut pair = Pair::at(1024, 1024 - 64);
        pair.buffer.write_words(1024 - 64, &[word]);
        assert_eq!(
            drain(&mut pair).1.map(|error| error.expected),
            Some(expected),
            "{word:#x}"
        );
    }
    // A gap of a whole record needs no filler, so a filler there is invalid.
    let mut pair = Pair::at(1024, 1024 - 128);
    pair.buffer.write_words(1024 - 128, &[128 | 4 << 32]);
    assert!(drain(&mut pair).1.is_some());
}

/// A trailer from the previous lap, or of a record sent twice, has the wrong number.
#[test]
fn a_record_out_of_sequence_is_an_error() {
    let mut pair = Pair::at(1024, 0);
    send(&mut pair, Kind::OneWay, 1, b"one").unwrap();
    let copy = pair.words();
    assert!(receive(&mut pair).is_some());
    pair.buffer.write_words(32, &copy[..4]);
    let error = drain(&mut pair).1.expect("expected an error");
    assert_eq!((error.sequence, error.found), (2, trailer_word(1)));
}

#[test]
fn head_copies_are_validated_and_errors_stick() {
    for found in [8, 256, 248 + 512, u64::MAX, 512 - 64, 513, 520] {
        let mut pair = Pair::at(512, 512);
        pair.sender
            .try_send(&mut pair.sender_endpoint, header(Kind::Reply, 0), &[])
            .unwrap();
        pair.head_copy.write_words(0, &[found]);
        if found == 520 {
            assert_eq!(pair.sender.free_bytes(), Ok(512 - 16), "a valid head");
            pair.head_copy.write_words(0, &[512]);
        }
        let error = pair.sender.free_bytes().unwrap_err();
        let SendError::BadHead(BadHead { tail: 536, .. }) = error else {
            panic!("{error}")
        };
        pair.head_copy.write_words(0, &[536]);
        assert_eq!(send(&mut pair, Kind::Reply, 1, b""), Err(error));
        assert_eq!(pair.sender.has_room(Kind::Reply, 0), Err(error));
    }
}

/// The peer named memory that does not exist: both ends report an error and stop.
#[test]
fn nonexistent_peer_memory_is_an_error() {
    let mut pair = Pair::at(1024, 0);
    // The wrong memory: the sender's head copy is one word and not a ring.
    pair.sender_endpoint = pair.back.endpoint(64);
    let error = send(&mut pair, Kind::OneWay, 1, b"lost").unwrap_err();
    assert_eq!(
        error,
        SendError::Refused {
            offset: 0,
            bytes: 32
        }
    );
    assert_eq!(send(&mut pair, Kind::OneWay, 1, b"lost"), Err(error));

    let mut pair = Pair::at(1024, 0);
    pair.receiver_endpoint =
        crate::ring::testing::Wire::<crate::mem::Memory>::new(vec![]).endpoint(8);
    for token in 0..8 {
        send(&mut pair, Kind::OneWay, token, &[1; 40]).unwrap();
    }
    let (records, error) = drain(&mut pair);
    assert_eq!(
        (records.len(), error.map(|e| e.expected)),
        (8, Some(Expected::HeadCopy))
    );
}
