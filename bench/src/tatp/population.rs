//! The initial rows of a subscriber (`WORKLOADS.md` §3.1).
//!
//! The rows are a function of the seed and of `s_id`. So each machine can create the rows that it stores, in any order,
//! without those of others.

use rand::{Rng, RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::names::{self, START_TIMES};
use super::row::{
    AccessInfo, BITS, CallForwarding, IndexEntry, NUMBERX_DIGITS, SpecialFacility, SubNbr,
    Subscriber,
};
use crate::oltp::{Row, RowBytes, RowName, Table};

/// Percentage of special facilities that are active.
const ACTIVE_PERCENT: u32 = 85;

/// Separates the random numbers of the population from those of workers with the same seed.
const POPULATION: u64 = 0x7A79_0000_0000_0001;

/// Returns the number of rows of a table per four subscribers, on average.
pub(crate) fn rows_of_four(table: &Table) -> u64 {
    match *table {
        names::ACCESS_INFO | names::SPECIAL_FACILITY => 10,
        names::CALL_FORWARDING => 15,
        _ => 4,
    }
}

/// All rows of one subscriber.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriberRows {
    /// Id of the subscriber.
    pub s_id: u32,
    /// The row of SUBSCRIBER.
    pub subscriber: Subscriber,
    /// Access infos, indexed by type - 1.
    pub access_info: [Option<AccessInfo>; 4],
    /// Special facilities, indexed by type - 1.
    pub special_facility: [Option<SpecialFacility>; 4],
    /// Call forwardings, indexed by type - 1 and by the index of their start in [`START_TIMES`].
    pub call_forwarding: [[Option<CallForwarding>; 3]; 4],
}

/// Returns the initial rows of a subscriber: 1 to 4 access infos and special facilities of distinct types, and 0 to 3
/// call forwardings for each special facility.
pub fn rows(seed: u64, s_id: u32) -> SubscriberRows {
    let rng = &mut random(seed, s_id);
    let subscriber = Subscriber {
        sub_nbr: SubNbr::of(s_id),
        padding: [0; 7],
        hex: std::array::from_fn(|_| rng.random_range(0..16) | rng.random_range(0..16) << 4),
        bytes: rng.random(),
        bits: rng.random_range(0..=BITS),
        msc_location: rng.random(),
        vlr_location: rng.random(),
    };
    let has_access: [bool; 4] = some(rng, 1);
    let access_info = has_access.map(|has| has.then(|| random_access_info(rng)));
    let has_facility: [bool; 4] = some(rng, 1);
    let special_facility = has_facility.map(|has| has.then(|| random_facility(rng)));
    let call_forwarding = has_facility.map(|has| {
        let starts: [bool; 3] = if has { some(rng, 0) } else { [false; 3] };
        std::array::from_fn(|place| {
            starts[place].then(|| CallForwarding {
                end_time: START_TIMES[place] + rng.random_range(1..=8),
                numberx: random_numberx(rng),
            })
        })
    });
    SubscriberRows {
        s_id,
        subscriber,
        access_info,
        special_facility,
        call_forwarding,
    }
}

impl SubscriberRows {
    /// Returns the names and bytes of all 4 to 22 rows, including the index entry.
    pub fn encoded(&self) -> impl Iterator<Item = (RowName, RowBytes)> + '_ {
        let index = IndexEntry {
            s_id: self.s_id,
            padding: [0; 4],
        };
        let first = [self.subscriber.encode(), index.encode()].map(Some);
        let rows = first.into_iter().chain(encode(&self.access_info));
        let rows = rows.chain(encode(&self.special_facility));
        let rows = rows.chain(encode(self.call_forwarding.as_flattened()));
        let named = names::all(self.s_id).zip(rows);
        named.filter_map(|(name, row)| Some((name, row?)))
    }
}

fn encode<R: Row>(rows: &[Option<R>]) -> impl Iterator<Item = Option<RowBytes>> + '_ {
    rows.iter().map(|row| row.as_ref().map(R::encode))
}

/// Returns the random number generator of a subscriber.
fn random(seed: u64, s_id: u32) -> Xoshiro256PlusPlus {
    // Seeding hashes its argument, so that neighbouring subscribers get very different generators.
    let mut of_subscriber = Xoshiro256PlusPlus::seed_from_u64(POPULATION ^ u64::from(s_id) << 8);
    Xoshiro256PlusPlus::seed_from_u64(seed ^ of_subscriber.next_u64())
}

/// Selects some of `N`: each number of selected elements from `least` on is equally likely, and so is each selection of
/// the same size.
fn some<const N: usize>(rng: &mut Xoshiro256PlusPlus, least: usize) -> [bool; N] {
    let mut wanted = rng.random_range(least..=N);
    std::array::from_fn(|place| {
        let chosen = rng.random_range(0..N - place) < wanted;
        wanted -= usize::from(chosen);
        chosen
    })
}

fn random_access_info(rng: &mut Xoshiro256PlusPlus) -> AccessInfo {
    AccessInfo {
        data1: rng.random(),
        data2: rng.random(),
        data3: random_letters(rng),
        data4: random_letters(rng),
        padding: [0; 6],
    }
}

fn random_facility(rng: &mut Xoshiro256PlusPlus) -> SpecialFacility {
    SpecialFacility {
        is_active: u8::from(rng.random_range(0..100) < ACTIVE_PERCENT),
        error_cntrl: rng.random(),
        data_a: rng.random(),
        data_b: random_letters(rng),
    }
}

fn random_letters<const N: usize>(rng: &mut Xoshiro256PlusPlus) -> [u8; N] {
    std::array::from_fn(|_| rng.random_range(b'A'..=b'Z'))
}

/// Returns a random number to which calls are forwarded.
pub(super) fn random_numberx<R: RngCore + ?Sized>(rng: &mut R) -> [u8; NUMBERX_DIGITS] {
    std::array::from_fn(|_| rng.random_range(b'0'..=b'9'))
}
