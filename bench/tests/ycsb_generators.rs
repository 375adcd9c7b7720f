//! The key generators against shares that were measured on the reference client with 5·10^7 draws.
//!
//! The quick tests draw a few million times and compare the shares of known hot sets. Sorting the counts of so few
//! draws would rank records of the tail by chance. `measured_shares_in_full` repeats the original measurement.

use farm_bench::properties::Properties;
use farm_bench::ycsb::WorkloadSpec;
use farm_bench::ycsb::generators::{KeyChooser, Latest, ScatteredZipfian, Scrambled, Zipfian};
use farm_bench::ycsb::key::{fnv64, fnv64_abs};
use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

const RECORDS: u64 = 1_000_000;
const DRAWS: u64 = 3_000_000;

fn rng(seed: u64) -> Xoshiro256PlusPlus {
    Xoshiro256PlusPlus::seed_from_u64(seed)
}

fn spec(settings: &[&str]) -> WorkloadSpec {
    let mut properties = Properties::new("-p");
    for setting in settings {
        properties.set_override(setting).unwrap();
    }
    WorkloadSpec::from_properties("test", &properties)
        .unwrap()
        .spec
}

fn chooser(settings: &[&str]) -> KeyChooser {
    KeyChooser::new(&spec(settings), 0, 1)
}

/// Returns how often each of `records` records is drawn.
fn counts(records: u64, draws: u64, mut draw: impl FnMut() -> u64) -> Vec<u32> {
    let mut counts = vec![0; records as usize];
    for _ in 0..draws {
        counts[draw() as usize] += 1;
    }
    counts
}

fn share(counts: &[u32], of: impl Iterator<Item = u64>) -> f64 {
    let all: u64 = counts.iter().map(|count| u64::from(*count)).sum();
    let part: u64 = of.map(|place| u64::from(counts[place as usize])).sum();
    part as f64 / all as f64
}

fn assert_close(what: &str, found: f64, known: f64, tolerance: f64) {
    assert!(
        (found - known).abs() <= tolerance,
        "{what}: {found:.5}, known as {known:.5}"
    );
}

/// Known shares of the hottest 1, 2, 10, 100, 1000, 10^4 and 10^5 records.
const PLAIN: [(u64, f64); 7] = [
    (1, 0.0650),
    (2, 0.0976),
    (10, 0.2020),
    (100, 0.3545),
    (1000, 0.5104),
    (10_000, 0.6699),
    (100_000, 0.8339),
];

#[test]
fn plain_ranks_have_the_measured_shares() {
    let (zipfian, mut rng) = (Zipfian::new(RECORDS, 0.99), rng(1));
    let counts = counts(RECORDS, DRAWS, || zipfian.next(&mut rng));
    for (top, known) in PLAIN {
        assert_close(&format!("top {top}"), share(&counts, 0..top), known, 0.001);
    }
    for (rank, known) in [
        (0, 0.06496),
        (1, 0.03268),
        (2, 0.02617),
        (3, 0.01865),
        (9, 0.00689),
        (99, 0.000677),
    ] {
        let found = share(&counts, rank..rank + 1);
        assert_close(&format!("rank {rank}"), found, known, 0.0005);
    }
}

#[test]
fn plain_zipfian_scatters_its_ranks_one_to_one() {
    let scattered = ScatteredZipfian::new(5, 10_007, 0.99);
    let mut places: Vec<u64> = (0..10_007)
        .map(|rank| scattered.key_of_rank(rank))
        .collect();
    assert!(
        places[..10]
            .windows(2)
            .all(|pair| pair[0].abs_diff(pair[1]) > 1000),
        "hot records are close to each other"
    );
    places.sort_unstable();
    assert!(places.into_iter().eq(5..10_012));

    let mut chooser = chooser(&["recordcount=1000000", "requestdistribution=zipfian-plain"]);
    let mut rng = rng(2);
    let counts = counts(RECORDS, DRAWS, || chooser.next(&mut rng, RECORDS - 1));
    let scattered = ScatteredZipfian::new(0, RECORDS, 0.99);
    for (top, known) in PLAIN {
        let hot = (0..top).map(|rank| scattered.key_of_rank(rank));
        assert_close(&format!("top {top}"), share(&counts, hot), known, 0.001);
    }
}

#[test]
fn scrambled_zipfian_has_the_measured_shares() {
    let mut chooser = chooser(&["recordcount=1000000", "requestdistribution=zipfian"]);
    let mut rng = rng(3);
    let counts = counts(RECORDS, DRAWS, || chooser.next(&mut rng, RECORDS - 1));
    let hottest = (0..RECORDS).max_by_key(|place| counts[*place as usize]);
    assert_eq!(hottest, Some(801_320));
    assert_eq!(fnv64_abs(0) % (RECORDS + 1), 801_320);

    // The hot records are the images of the first ranks under the hash. A few images collide.
    let scrambled = Scrambled::new(0, RECORDS + 1, 0.99);
    let mut images = std::collections::BTreeSet::new();
    let mut rank = 0;
    for (top, known, tolerance) in [
        (1, 0.0378, 0.0005),
        (2, 0.0568, 0.0005),
        (10, 0.1180, 0.001),
        (100, 0.2073, 0.001),
        (1000, 0.2996, 0.001),
        (10_000, 0.4001, 0.002),
    ] {
        while images.len() < top {
            images.insert(scrambled.key_of_rank(rank));
            rank += 1;
        }
        let found = share(&counts, images.iter().copied());
        assert_close(&format!("top {top}"), found, known, tolerance);
    }
}

#[test]
fn the_unsigned_hash_gives_the_hottest_record_of_the_other_client() {
    assert_eq!(fnv64(0) % RECORDS, 174_405);
}

#[test]
fn latest_prefers_the_newest_by_the_measured_shares() {
    let mut latest = Latest::new(0, RECORDS - 1, 0.99);
    let mut rng = rng(4);
    let counts = counts(RECORDS, DRAWS, || latest.next(&mut rng, RECORDS - 1));
    let newest = |top: u64| (RECORDS - top)..RECORDS;
    for (top, known) in PLAIN {
        assert_close(
            &format!("newest {top}"),
            share(&counts, newest(top)),
            known,
            0.001,
        );
    }
}

#[test]
fn latest_follows_the_table_as_it_grows() {
    let (mut grown, mut rng) = (Latest::new(0, 99, 0.99), rng(5));
    for last in 99..RECORDS {
        let key = grown.next(&mut rng, last);
        assert!(key <= last);
    }
    let counts = counts(RECORDS, DRAWS, || grown.next(&mut rng, RECORDS - 1));
    for (top, known) in PLAIN {
        let found = share(&counts, (RECORDS - top)..RECORDS);
        assert_close(&format!("newest {top}"), found, known, 0.001);
    }
}

#[test]
fn records_not_inserted_yet_are_drawn_again() {
    let settings = [
        "recordcount=1000",
        "operationcount=100000",
        "readproportion=0.9",
        "insertproportion=0.1",
        "insertstart=200",
    ];
    for name in ["zipfian", "zipfian-plain"] {
        let distribution = format!("requestdistribution={name}");
        let settings: Vec<&str> = settings.iter().copied().chain([&*distribution]).collect();
        let (mut chooser, mut rng) = (chooser(&settings), rng(6));
        for last in [200, 999, 5000, 19_999] {
            let mut newest = 0;
            for _ in 0..20_000 {
                let key = chooser.next(&mut rng, last);
                assert!((200..=last).contains(&key), "{name}: {key} of {last}");
                newest = newest.max(key);
            }
            assert!(newest > last - last / 4, "{name}: {newest} of {last}");
        }
    }
}

#[test]
fn uniform_hotspot_exponential_and_sequential() {
    let draw = |settings: &[&str]| {
        let (mut chooser, mut rng) = (chooser(settings), rng(7));
        counts(10_000, 1_000_000, || chooser.next(&mut rng, 9999))
    };
    let base = "recordcount=10000";
    let even = draw(&[base, "requestdistribution=uniform"]);
    assert!(even.iter().all(|count| (40..200).contains(count)));

    let hot = draw(&[base, "requestdistribution=hotspot"]);
    assert_close("hot set", share(&hot, 0..2000), 0.8, 0.002);
    assert_close("half of it", share(&hot, 0..1000), 0.4, 0.002);

    // 95 % of an untruncated distribution fall into 0.857 of the records. Draws beyond all records are excluded.
    let falling = draw(&[base, "requestdistribution=exponential"]);
    let gamma = -(0.05f64.ln()) / (10_000.0 * 0.857_142_857_1);
    let within = |records: f64| 1.0 - (-gamma * records).exp();
    for newest in [1000, 5000, 8571] {
        let known = within(newest as f64) / within(10_000.0);
        let found = share(&falling, (10_000 - newest)..10_000);
        assert_close(&format!("newest {newest}"), found, known, 0.002);
    }

    let turns = draw(&[base, "requestdistribution=sequential"]);
    assert!(turns.iter().all(|count| *count == 100));
    let spec = spec(&[base, "requestdistribution=sequential", "insertstart=10"]);
    let mut second = KeyChooser::new(&spec, 1, 4);
    let keys: Vec<u64> = (0..3).map(|_| second.next(&mut rng(0), 9999)).collect();
    assert_eq!(keys, [11, 15, 19]);
}

#[test]
fn tiny_tables_and_extreme_parameters_stay_in_range() {
    for records in [1u64, 2, 3] {
        for name in farm_bench::ycsb::spec::Distribution::NAMES {
            for extra in [
                "zipfianconstant=0",
                "zipfianconstant=0.9999",
                "hotspotdatafraction=0",
            ] {
                let count = format!("recordcount={records}");
                let distribution = format!("requestdistribution={name}");
                let mut chooser = chooser(&[&count, &distribution, extra]);
                let mut rng = rng(8);
                for _ in 0..200 {
                    assert!(chooser.next(&mut rng, records - 1) < records, "{name}");
                }
            }
        }
    }
    let zipfian = Zipfian::new(1000, 0.99);
    assert_eq!(zipfian.rank(1.0 - f64::EPSILON / 2.0), 999);
    assert_eq!(zipfian.rank(0.0), 0);
}

/// Checks the number of distinct records and the shares of the hottest ones against the figures published for 5·10^7
/// draws.
#[test]
#[ignore = "draws a hundred million times"]
fn measured_shares_in_full() {
    let tops = [1usize, 2, 10, 100, 1000, 10_000, 100_000];
    let known = [
        (
            "zipfian",
            1_000_000,
            [0.0378, 0.0568, 0.1180, 0.2073, 0.2996, 0.4001, 0.5455],
        ),
        ("zipfian-plain", 995_140, PLAIN.map(|(_, share)| share)),
    ];
    for (name, distinct, shares) in known {
        let distribution = format!("requestdistribution={name}");
        let mut chooser = chooser(&["recordcount=1000000", &distribution]);
        let mut rng = rng(9);
        let mut counts = counts(RECORDS, 50_000_000, || chooser.next(&mut rng, RECORDS - 1));
        counts.sort_unstable_by_key(|count| std::cmp::Reverse(*count));
        let touched = counts.iter().filter(|count| **count > 0).count();
        assert!(
            touched.abs_diff(distinct) < 500,
            "{name}: {touched} distinct"
        );
        for (top, known) in tops.into_iter().zip(shares) {
            let found = share(&counts, 0..top as u64);
            assert_close(&format!("{name}, top {top}"), found, known, 0.001);
        }
    }
}
