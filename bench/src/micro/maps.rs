//! Lookups in hash maps of this process, which a program would use instead of a table if its data were in one process.

use std::hint::black_box;
use std::time::{Duration, Instant};

use hashbrown::DefaultHashBuilder;
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::Serialize;

use crate::lookups::{TASK_VALUE_BYTES, key_of};

/// Number of keys that are looked up one after another.
const KEYS: usize = 1 << 20;
/// Number of lookups between two looks at the clock.
const CHUNK: usize = 1 << 12;

type Key = farm_kv::Key;
type Value = [u8; TASK_VALUE_BYTES];

/// The rate of lookups in a map.
#[derive(Clone, Debug, Serialize)]
pub struct MapRate {
    /// The library of the map.
    pub map: &'static str,
    /// Number of pairs.
    pub pairs: u64,
    /// Lookups per second of one thread, in the median of the repeats.
    pub lookups_per_s: f64,
    /// Lookups per second of every repeat, in ascending order.
    pub repeats: Vec<f64>,
}

/// Measures lookups of present keys by one thread, in maps with `pairs` pairs of the sizes of [`TaskRate`](crate::lookups::TaskRate),
/// with the default hash function of hashbrown, and sized ahead.
///
/// # Panics
/// If a map does not contain a loaded key.
pub fn measure_maps(pairs: u64, duration: Duration, repeats: usize) -> Vec<MapRate> {
    let runs = Runs {
        pairs,
        duration,
        repeats,
    };
    let of_hashbrown = {
        let mut map = hashbrown::HashMap::with_capacity(pairs as usize);
        map.extend((0..pairs).map(|number| (key_of(number), [7; TASK_VALUE_BYTES])));
        runs.rate("hashbrown", |key| map.get(key).copied())
    };
    let map =
        papaya::HashMap::with_capacity_and_hasher(pairs as usize, DefaultHashBuilder::default());
    let map = map.pin();
    for number in 0..pairs {
        map.insert(key_of(number), [7; TASK_VALUE_BYTES]);
    }
    let of_papaya = runs.rate("papaya", |key| map.get(key).copied());
    vec![of_hashbrown, of_papaya]
}

/// What is measured of each map.
struct Runs {
    pairs: u64,
    duration: Duration,
    repeats: usize,
}

impl Runs {
    #[inline]
    fn rate(&self, map: &'static str, look_up: impl Fn(&Key) -> Option<Value>) -> MapRate {
        let mut rates: Vec<f64> = (1..=self.repeats as u64)
            .map(|seed| self.once(seed, &look_up))
            .collect();
        rates.sort_by(f64::total_cmp);
        MapRate {
            map,
            pairs: self.pairs,
            lookups_per_s: rates[rates.len() / 2],
            repeats: rates,
        }
    }

    /// Returns the lookups per second.
    #[inline]
    fn once(&self, seed: u64, look_up: &impl Fn(&Key) -> Option<Value>) -> f64 {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let keys: Vec<Key> = (0..KEYS)
            .map(|_| key_of(rng.random_range(0..self.pairs)))
            .collect();
        let (began, mut count) = (Instant::now(), 0);
        for chunk in keys.chunks(CHUNK).cycle() {
            for key in chunk {
                let value = look_up(key);
                assert!(value.is_some(), "a map does not contain a loaded key");
                black_box(value);
            }
            count += chunk.len();
            if began.elapsed() >= self.duration {
                break;
            }
        }
        count as f64 / began.elapsed().as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_map_is_measured() {
        let rates = measure_maps(1000, Duration::from_millis(1), 3);
        assert_eq!(rates.len(), 2);
        for rate in rates {
            assert!(rate.lookups_per_s > 0.0, "{rate:?}");
            assert!(rate.repeats.is_sorted());
        }
    }
}
