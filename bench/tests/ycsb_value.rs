//! Self-describing values: the check accepts whole values and rejects everything else.

use farm_bench::ycsb::value::{MAX_KEYS, Stamp, ValueError, check, fill};
use proptest::prelude::*;

/// Key, writer and sequence number of a write.
type Write = (u64, u16, u64);

fn value(bytes: usize, (key, writer, sequence): Write) -> Vec<u8> {
    let mut value = vec![0xAA; bytes];
    fill(&mut value, key, writer, sequence);
    value
}

fn stamp((_, writer, sequence): Write) -> Stamp {
    Stamp { writer, sequence }
}

/// Generates writes from a small range, which often share fields, and from the full range.
fn write() -> impl Strategy<Value = Write> {
    let small = (0u64..4, 0u16..3, 0u64..4);
    let any = (0..MAX_KEYS, any::<u16>(), any::<u64>());
    prop_oneof![small, any]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_whole_value_passes_with_its_stamp(write in write(), bytes in 16usize..1200) {
        prop_assert_eq!(check(&value(bytes, write), write.0), Ok(stamp(write)));
    }

    #[test]
    fn a_short_value_passes_too(write in write(), bytes in 0usize..16) {
        let found = check(&value(bytes, write), write.0).unwrap();
        let kept = if bytes < 8 {
            Stamp { writer: 0, sequence: 0 }
        } else {
            Stamp { writer: write.1, sequence: write.2 & 0xFFFF_FFFF }
        };
        prop_assert_eq!(found, kept);
    }

    #[test]
    fn any_single_word_of_another_write_is_caught(
        ours in write(), theirs in write(), bytes in 16usize..300, place in any::<prop::sample::Index>(),
    ) {
        let (mut spliced, other) = (value(bytes, ours), value(bytes, theirs));
        let whole = spliced.clone();
        let at = place.index(bytes / 8) * 8;
        spliced[at..at + 8].copy_from_slice(&other[at..at + 8]);
        let found = check(&spliced, ours.0);
        if spliced == whole {
            prop_assert_eq!(found, Ok(stamp(ours)));
        } else {
            prop_assert!(found.is_err(), "{:?} in {:?}: {:?}", theirs, ours, found);
        }
    }

    #[test]
    fn a_word_in_the_wrong_place_is_caught(
        write in write(), bytes in 24usize..300, from in any::<prop::sample::Index>(),
        to in any::<prop::sample::Index>(),
    ) {
        let whole = value(bytes, write);
        let (from, to) = (from.index(bytes / 8) * 8, to.index(bytes / 8) * 8);
        let mut moved = whole.clone();
        moved.copy_within(from..from + 8, to);
        prop_assert_eq!(check(&moved, write.0).is_ok(), from == to);
    }

    #[test]
    fn a_tear_at_any_line_is_named(
        key in 0u64..1000, before in any::<u64>(), after in any::<u64>(), line in 1usize..15,
    ) {
        prop_assume!(before != after);
        let (old, mut torn) = (value(1000, (key, 1, before)), value(1000, (key, 2, after)));
        torn[line * 64..].copy_from_slice(&old[line * 64..]);
        let begins_with = Some(Stamp { writer: 2, sequence: after });
        prop_assert_eq!(check(&torn, key), Err(ValueError::Torn { word: line * 8, begins_with }));
    }

    #[test]
    fn any_flipped_bit_is_caught(
        write in write(), bytes in 16usize..100, bit in any::<prop::sample::Index>(),
    ) {
        let mut value = value(bytes, write);
        let bit = bit.index(bytes * 8);
        value[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(check(&value, write.0).is_err());
    }

    #[test]
    fn the_value_of_another_record_is_named(write in write(), bytes in 24usize..300) {
        let expected = Err(ValueError::WrongKey { found: write.0, stamp: stamp(write) });
        prop_assert_eq!(check(&value(bytes, write), write.0 ^ 1), expected);
    }

    #[test]
    fn random_bytes_are_unrecognized(bytes in prop::collection::vec(any::<u8>(), 16..200)) {
        prop_assert_eq!(check(&bytes, 7), Err(ValueError::Unrecognized));
    }
}

#[test]
fn short_values_reject_most_wrong_keys() {
    for (bytes, most) in [(15, 0), (8, 3), (4, 0), (1, 60)] {
        let passed = (1..10_000u64)
            .filter(|key| check(&value(bytes, (*key, 1, *key)), 0).is_ok())
            .count();
        assert!(passed <= most, "{passed} of 10,000 at {bytes} bytes");
    }
}

#[test]
fn unwritten_memory_is_unrecognized() {
    for bytes in [8, 15, 16, 17, 24, 32, 1000] {
        for byte in [0u8, 0xFF] {
            for key in [0, 1, 12345] {
                assert_eq!(
                    check(&vec![byte; bytes], key),
                    Err(ValueError::Unrecognized)
                );
            }
        }
    }
}

#[test]
fn a_tear_through_the_first_words_is_named() {
    let (old, new) = (value(64, (9, 1, 5)), value(64, (9, 1, 6)));
    let mut torn = new.clone();
    torn[8..].copy_from_slice(&old[8..]);
    let begins_with = None;
    assert_eq!(
        check(&torn, 9),
        Err(ValueError::Torn {
            word: 0,
            begins_with
        })
    );
}

#[test]
fn error_texts_name_the_write() {
    let stamp = Stamp {
        writer: 3,
        sequence: 77,
    };
    let torn = ValueError::Torn {
        word: 8,
        begins_with: Some(stamp),
    };
    assert_eq!(
        torn.to_string(),
        "torn value: word 8 does not belong to the same write as the start, write 77 of worker 3"
    );
    assert_eq!(
        ValueError::WrongKey { found: 4, stamp }.to_string(),
        "value of another record: record 4, write 77 of worker 3"
    );
}

#[test]
#[should_panic(expected = "does not fit the 48 bits")]
fn a_key_that_does_not_fit_panics() {
    fill(&mut [0; 32], MAX_KEYS, 0, 0);
}
