//! The seeds of the fuzz target `ring`: valid rings, which the fuzzer then damages.

use std::path::PathBuf;

use super::super::testing::drain_untrusted;
use super::*;

/// Returns the content of a ring, read from `start` words into its last eighth. Bit 0 of `size`
/// selects 1 KiB or 4 KiB, bit 1 selects checksums.
fn seed(size: u8, start: u8, bodies: &[usize]) -> Vec<u8> {
    let bytes = if size & 1 == 0 { 1024 } else { 4096 };
    let position = bytes - bytes / 8 + u64::from(start) * 8;
    let mut pair = match size & 2 {
        0 => Pair::at(bytes, position),
        _ => Pair::unordered(bytes, position),
    };
    let kinds = [Kind::OneWay, Kind::Request, Kind::Reply];
    for (i, bytes) in bodies.iter().enumerate() {
        let token = i as u64;
        send(&mut pair, kinds[i % 3], token, &body(token, *bytes)).unwrap();
    }
    let mut words = pair.words();
    let first = position as usize / 8 % words.len();
    words.rotate_left(first);
    words.truncate((pair.sender.tail() - position) as usize / 8);
    let mut seed = vec![size, start];
    seed.extend(words.into_iter().flat_map(u64::to_le_bytes));
    seed
}

fn seeds() -> Vec<(&'static str, Vec<u8>, usize)> {
    vec![
        ("one_record", seed(0, 16, &[13]), 1),
        ("three_kinds", seed(0, 20, &[0, 8, 37]), 3),
        ("gap_of_one_word", seed(0, 10, &[16, 16]), 2),
        ("gap_of_a_record", seed(0, 1, &[104, 104, 1]), 3),
        ("ends_at_the_end", seed(0, 11, &[16, 16]), 2),
        ("to_the_reserve", seed(0, 16, &[40; 12]), 12),
        ("checksums", seed(2, 16, &[13, 0, 40]), 3),
        ("checksums_of_a_large_ring", seed(3, 40, &[200, 300]), 2),
        ("large_ring", seed(1, 40, &[200, 300, 488, 7]), 4),
    ]
}

#[test]
fn seeds_are_valid_rings() {
    for (name, seed, records) in seeds() {
        assert_eq!(drain_untrusted(&seed), records, "{name}");
    }
}

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/ring")
}

/// To be run after a change of the layout: `cargo test -p farm-core --lib ring -- --ignored
/// write_seeds`.
#[test]
#[ignore = "writes fuzz/corpus/ring"]
fn write_seeds() {
    std::fs::create_dir_all(directory()).unwrap();
    for (name, seed, _) in seeds() {
        std::fs::write(directory().join(name), seed).unwrap();
    }
}

/// Seeds of an older layout would end the fuzzer's input at the first check.
#[test]
fn seeds_on_disk_have_the_current_layout() {
    for (name, seed, _) in seeds() {
        let found =
            std::fs::read(directory().join(name)).expect("seed file is missing; run write_seeds");
        assert_eq!(
            found, seed,
            "seed {name} has another layout; run write_seeds"
        );
    }
}
