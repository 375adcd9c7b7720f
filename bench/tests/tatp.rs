//! TATP against the check values of `WORKLOADS.md` §3, on a store in a map.

mod model;

use farm_bench::oltp::{BadRow, Outcome, Row, RowName, Step, StepError};
use farm_bench::recorder::Recorder;
use farm_bench::tatp::names::{self, START_TIMES};
use farm_bench::tatp::row::BITS;
use farm_bench::tatp::{
    AccessInfo, CallForwarding, Choice, IndexEntry, Kind, Mix, Options, SpecialFacility, Stream,
    SubNbr, Subscriber, Transaction, rows,
};
use model::{Store, assert_shares};
use proptest::prelude::*;
use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

fn rng(seed: u64) -> Xoshiro256PlusPlus {
    Xoshiro256PlusPlus::seed_from_u64(seed)
}

fn million() -> Options {
    Options {
        subscribers: 1_000_000,
        ..Options::default()
    }
}

/// A store of subscribers 1 to `subscribers`.
fn store(seed: u64, subscribers: u32) -> Store {
    let all = (1..=subscribers).map(|s_id| rows(seed, s_id));
    let rows = all.flat_map(|one| one.encoded().collect::<Vec<_>>());
    Store(rows.collect())
}

fn run(store: &Store, transaction: &Transaction) -> farm_bench::oltp::Decision {
    store.decide(|rows| transaction.step(rows)).unwrap()
}

fn close(found: f64, wanted: f64, tolerance: f64) {
    assert!((found - wanted).abs() < tolerance, "{found}, not {wanted}");
}

#[test]
fn the_population_has_the_specified_counts() {
    const SUBSCRIBERS: u32 = 40_000;
    let (mut access, mut facilities, mut forwardings, mut active) = (0, 0, 0, 0);
    let mut by_count = [0u64; 4];
    let mut by_type = [0u64; 4];
    for s_id in 1..=SUBSCRIBERS {
        let one = rows(1, s_id);
        let present: Vec<_> = one.special_facility.iter().flatten().collect();
        by_count[present.len() - 1] += 1;
        for (count, row) in by_type.iter_mut().zip(&one.access_info) {
            *count += u64::from(row.is_some());
        }
        access += one.access_info.iter().flatten().count();
        facilities += present.len();
        active += present
            .iter()
            .filter(|facility| facility.is_active == 1)
            .count();
        forwardings += one.call_forwarding.iter().flatten().flatten().count();
        for (facility, forwardings) in one.special_facility.iter().zip(&one.call_forwarding) {
            assert!(facility.is_some() || forwardings.iter().all(Option::is_none));
            for (start, row) in START_TIMES.iter().zip(forwardings) {
                assert!(row.is_none_or(|row| (1..=8).contains(&(row.end_time - start))));
            }
        }
        assert_eq!(one.encoded().count(), 2 + rows_of(&one));
    }
    let each = |count: usize| count as f64 / f64::from(SUBSCRIBERS);
    close(each(access), 2.5, 0.02);
    close(each(facilities), 2.5, 0.02);
    close(each(forwardings), 3.75, 0.04);
    close(active as f64 / facilities as f64, 0.85, 0.004);
    assert_shares(&by_count, &[25; 4]);
    assert_shares(&by_type, &[25; 4]);
}

fn rows_of(one: &farm_bench::tatp::SubscriberRows) -> usize {
    one.access_info.iter().flatten().count()
        + one.special_facility.iter().flatten().count()
        + one.call_forwarding.iter().flatten().flatten().count()
}

#[test]
fn a_subscriber_is_a_function_of_seed_and_id() {
    assert_eq!(rows(5, 77), rows(5, 77));
    assert_ne!(rows(5, 77).subscriber.bytes, rows(6, 77).subscriber.bytes);
    assert_ne!(rows(5, 77).subscriber.bytes, rows(5, 78).subscriber.bytes);
    let names: Vec<RowName> = rows(5, 77).encoded().map(|(name, _)| name).collect();
    assert_eq!(names[0], names::subscriber(77));
    assert_eq!(names[1], names::index_entry(SubNbr::of(77)));
    for (name, row) in rows(5, 77).encoded() {
        assert_eq!(row.len(), name.table.row_bytes, "{name}");
    }
}

/// Checks the shares of the most frequent 1, 1000, 10^4 and 10^5 of a million subscribers, and the number of distinct
/// ones drawn.
#[test]
fn subscribers_are_drawn_non_uniformly() {
    const DRAWS: usize = 2_000_000;
    let draw = Stream::new(&million()).unwrap().subscribers();
    let mut counts = vec![0u32; 1_000_000];
    let mut rng = rng(2);
    for _ in 0..DRAWS {
        counts[draw.next(&mut rng) as usize - 1] += 1;
    }
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let top = |most: usize| counts[..most].iter().sum::<u32>() as f64 / DRAWS as f64;
    close(top(1), 0.0007, 0.00006);
    close(top(1_000), 0.121, 0.001);
    close(top(10_000), 0.391, 0.001);
    close(top(100_000), 0.812, 0.001);
    let distinct = counts.iter().filter(|count| **count > 0).count();
    close(distinct as f64, 338_739.0, 1_500.0);
}

#[test]
fn all_subscribers_of_a_small_population_are_drawn() {
    for choice in [Choice::Uniform, Choice::NonUniform] {
        let options = Options {
            subscribers: 10,
            choice,
            ..Options::default()
        };
        let draw = Stream::new(&options).unwrap().subscribers();
        let mut rng = rng(3);
        let mut counts = [0; 10];
        for _ in 0..10_000 {
            counts[draw.next(&mut rng) as usize - 1] += 1;
        }
        assert!(counts.iter().all(|count| *count > 400), "{counts:?}");
        if choice == Choice::Uniform {
            assert_shares(&counts[..5], &[20; 5]);
        }
    }
    let largest = Options {
        subscribers: u32::MAX,
        ..Options::default()
    };
    let draw = Stream::new(&largest).unwrap().subscribers();
    let mut rng = rng(4);
    assert!((0..10_000).all(|_| draw.next(&mut rng) >= 1));
}

/// Checks the rates of success on the loaded population, without applying writes.
#[test]
fn transactions_have_their_shares_and_rates_of_success() {
    const TRANSACTIONS: u64 = 400_000;
    let stream = Stream::new(&million()).unwrap();
    let mut rng = rng(5);
    let mut recorder = Recorder::<()>::new(Kind::ALL.len(), 1);
    for _ in 0..TRANSACTIONS {
        let transaction = stream.next(&mut rng);
        let s_id = match transaction {
            Transaction::GetSubscriberData { s_id }
            | Transaction::GetNewDestination { s_id, .. }
            | Transaction::GetAccessData { s_id, .. }
            | Transaction::UpdateSubscriberData { s_id, .. } => s_id,
            Transaction::UpdateLocation { sub_nbr, .. }
            | Transaction::InsertCallForwarding { sub_nbr, .. }
            | Transaction::DeleteCallForwarding { sub_nbr, .. } => {
                sub_nbr.to_string().parse().unwrap()
            }
        };
        // Holds only the rows of the transaction's subscriber.
        let store = Store(rows(9, s_id).encoded().collect());
        let decision = run(&store, &transaction);
        let writes = decision.outcome == Outcome::Committed && transaction.kind().writes();
        assert_eq!(!decision.writes.is_empty(), writes);
        recorder.finish(transaction.kind().index(), decision.outcome, None);
    }
    let executed = Kind::ALL.map(|kind| recorder.executed_of(kind.index()));
    assert_shares(&executed, &Mix::default().percents());
    let success = |kind: Kind| {
        let committed = recorder.of(kind.index(), Outcome::Committed);
        committed as f64 / recorder.executed_of(kind.index()) as f64
    };
    assert_eq!(success(Kind::GetSubscriberData), 1.0);
    assert_eq!(success(Kind::UpdateLocation), 1.0);
    close(success(Kind::GetNewDestination), 0.148, 0.006);
    close(success(Kind::GetAccessData), 0.625, 0.005);
    close(success(Kind::UpdateSubscriberData), 0.625, 0.016);
    close(success(Kind::InsertCallForwarding), 0.3125, 0.016);
    close(success(Kind::DeleteCallForwarding), 0.3125, 0.016);
    let overall = recorder.total(Outcome::Committed) as f64 / TRANSACTIONS as f64;
    close(overall, 0.749, 0.003);
}

/// After many inserts and deletes of call forwardings, 0.625 · 0.5 of the inserts and of the deletes succeed. 20.4 %
/// of GET_NEW_DESTINATION succeed, which follows from end times of 1 to 24.
#[test]
fn a_long_run_reaches_the_steady_state() {
    const SUBSCRIBERS: u32 = 300;
    let options = Options {
        subscribers: SUBSCRIBERS,
        choice: Choice::Uniform,
        mix: Mix {
            get_subscriber_data: 0,
            get_new_destination: 30,
            get_access_data: 0,
            update_subscriber_data: 5,
            update_location: 5,
            insert_call_forwarding: 30,
            delete_call_forwarding: 30,
        },
    };
    let stream = Stream::new(&options).unwrap();
    let mut store = store(1, SUBSCRIBERS);
    let mut rng = rng(6);
    let mut recorder = Recorder::<()>::new(Kind::ALL.len(), 1);
    for place in 0..150_000 {
        let transaction = stream.next(&mut rng);
        let decision = run(&store, &transaction);
        store.apply(&decision);
        if place >= 50_000 {
            recorder.finish(transaction.kind().index(), decision.outcome, None);
        }
    }
    let success = |kind: Kind| {
        let committed = recorder.of(kind.index(), Outcome::Committed);
        committed as f64 / recorder.executed_of(kind.index()) as f64
    };
    close(success(Kind::GetNewDestination), 0.204, 0.02);
    close(success(Kind::InsertCallForwarding), 0.3125, 0.02);
    close(success(Kind::DeleteCallForwarding), 0.3125, 0.02);
    let insert = Kind::InsertCallForwarding.index();
    assert!(
        recorder.of(insert, Outcome::Declined) > 0 && recorder.of(insert, Outcome::NotFound) > 0
    );
    // The rows are consistent: the index entry of every number refers to its subscriber, and every call forwarding has
    // a special facility.
    for (name, row) in &store.0 {
        if name.table == names::CALL_FORWARDING {
            CallForwarding::decode(row).unwrap();
            let facility = names::special_facility(name.key as u32, (name.key >> 32) as u8);
            assert!(store.0.contains_key(&facility), "{name}");
        }
        if name.table == names::SUBSCRIBER {
            let number = Subscriber::decode(row).unwrap().sub_nbr;
            let entry = IndexEntry::decode(&store.0[&names::index_entry(number)]).unwrap();
            assert_eq!(u64::from(entry.s_id), name.key);
        }
    }
}

const FACILITY: SpecialFacility = SpecialFacility {
    is_active: 1,
    error_cntrl: 1,
    data_a: 2,
    data_b: *b"ABCDE",
};

/// Returns subscriber 3 with fixed rows: facility 1 is active, facility 2 is not, and there are no others. Facility 1
/// forwards from 0 to 6 and from 16 to 20, facility 2 from 0 to 8.
fn by_hand() -> (Subscriber, Store) {
    let until = |end_time| CallForwarding {
        end_time,
        numberx: *b"000000000000123",
    };
    let inactive = SpecialFacility {
        is_active: 0,
        ..FACILITY
    };
    let mut one = rows(1, 3);
    one.special_facility = [Some(FACILITY), Some(inactive), None, None];
    one.call_forwarding = [[None; 3]; 4];
    one.call_forwarding[0] = [Some(until(6)), None, Some(until(20))];
    one.call_forwarding[1][0] = Some(until(8));
    (one.subscriber, Store(one.encoded().collect()))
}

#[test]
fn a_destination_covers_the_requested_start_and_end_times() {
    let (_, store) = by_hand();
    let destination = |sf_type, start_time, end_time| {
        let transaction = Transaction::GetNewDestination {
            s_id: 3,
            sf_type,
            start_time,
            end_time,
        };
        run(&store, &transaction).outcome == Outcome::Committed
    };
    assert!(destination(1, 0, 5) && !destination(1, 0, 6));
    assert!(!destination(1, 8, 6) && destination(1, 16, 6));
    assert!(destination(1, 16, 19) && !destination(1, 16, 20));
    // Facility 2 is not active, and facility 3 does not exist.
    assert!(!destination(2, 0, 1) && !destination(3, 0, 1));
}

#[test]
fn updates_change_only_their_rows() {
    let (before, mut store) = by_hand();
    let update = |sf_type| Transaction::UpdateSubscriberData {
        s_id: 3,
        bit_1: before.bits & 1 == 0,
        sf_type,
        data_a: 9,
    };
    let refused = run(&store, &update(3));
    let expected = (Outcome::NotFound, 0);
    assert_eq!((refused.outcome, refused.writes.len()), expected);
    store.apply(&run(&store, &update(1)));
    let bits = before.bits ^ 1;
    let vlr_location = before.vlr_location ^ 1;
    let moves = Transaction::UpdateLocation {
        sub_nbr: SubNbr::of(3),
        vlr_location,
    };
    store.apply(&run(&store, &moves));
    let after = Subscriber::decode(&store.0[&names::subscriber(3)]);
    let expected = Subscriber {
        bits,
        vlr_location,
        ..before
    };
    assert_eq!(after, Ok(expected));
    let after = SpecialFacility::decode(&store.0[&names::special_facility(3, 1)]);
    let expected = SpecialFacility {
        data_a: 9,
        ..FACILITY
    };
    assert_eq!(after, Ok(expected));
}

#[test]
fn call_forwardings_are_inserted_and_deleted_once() {
    let (_, mut store) = by_hand();
    let sub_nbr = SubNbr::of(3);
    let (end_time, numberx) = (24, *b"999999999999999");
    let insert = |sf_type, start_time| Transaction::InsertCallForwarding {
        sub_nbr,
        sf_type,
        start_time,
        end_time,
        numberx,
    };
    assert_eq!(run(&store, &insert(1, 0)).outcome, Outcome::Declined);
    assert_eq!(run(&store, &insert(4, 0)).outcome, Outcome::NotFound);
    store.apply(&run(&store, &insert(1, 8)));
    let added = CallForwarding::decode(&store.0[&names::call_forwarding(3, 1, 8)]);
    assert_eq!(added, Ok(CallForwarding { end_time, numberx }));
    let delete = Transaction::DeleteCallForwarding {
        sub_nbr,
        sf_type: 1,
        start_time: 8,
    };
    store.apply(&run(&store, &delete));
    assert_eq!(run(&store, &delete).outcome, Outcome::NotFound);
}

#[test]
fn missing_and_invalid_rows_are_typed_errors() {
    let number = SubNbr::of(8);
    let transaction = Transaction::UpdateLocation {
        sub_nbr: number,
        vlr_location: 1,
    };
    let entry = index_entry(8).encode();
    assert_eq!(
        transaction.step(&[Some(&*entry)]).unwrap(),
        Step::Read([names::subscriber(8)].into_iter().collect())
    );
    assert_eq!(
        transaction.step(&[None]).unwrap_err().to_string(),
        "the row SUB_NBR_INDEX 0x8 is missing, though nothing removes it: load it first, or look \
         for a lost write"
    );
    assert_eq!(
        transaction.step(&[Some(&*entry), None, None]),
        Err(StepError::Rows { given: 3, asked: 2 })
    );
    let row = names::subscriber(8);
    assert_eq!(
        transaction.step(&[Some(&*entry), None]),
        Err(StepError::Missing { row })
    );
    let short = BadRow::Size {
        found: 8,
        wanted: 40,
    };
    assert_eq!(
        transaction.step(&[Some(&*entry), Some(&*entry)]),
        Err(StepError::Bad { row, why: short })
    );
}

fn index_entry(s_id: u32) -> IndexEntry {
    let padding = [0; 4];
    IndexEntry { s_id, padding }
}

fn letters<const N: usize>() -> impl Strategy<Value = [u8; N]> {
    proptest::array::uniform(b'A'..=b'Z')
}

fn any_subscriber() -> impl Strategy<Value = Subscriber> {
    let fields = (
        any::<u32>(),
        any::<[u8; 5]>(),
        any::<[u8; 10]>(),
        0..=BITS,
        any::<[u32; 2]>(),
    );
    fields.prop_map(|(s_id, hex, bytes, bits, locations)| Subscriber {
        sub_nbr: SubNbr::of(s_id),
        padding: [0; 7],
        hex,
        bytes,
        bits,
        msc_location: locations[0],
        vlr_location: locations[1],
    })
}

/// Checks that a row is decoded from its encoding unchanged. Flipping a bit of the encoding makes decoding fail or
/// gives another row.
fn round_trip<R: Row + PartialEq + std::fmt::Debug>(row: R, bit: usize) {
    let bytes = row.encode();
    assert_eq!(R::decode(&bytes).unwrap(), row);
    let mut damaged = bytes.to_vec();
    damaged[bit / 8 % bytes.len()] ^= 1 << (bit % 8);
    if let Ok(other) = R::decode(&damaged) {
        assert_ne!(other, row);
        assert_eq!(other.encode().to_vec(), damaged);
    }
    assert!(R::decode(&bytes[1..]).is_err());
}

proptest! {
    #[test]
    fn rows_are_decoded_from_their_encoding(
        subscriber in any_subscriber(),
        s_id: u32,
        (data, data3, data4) in (any::<[u8; 2]>(), letters(), letters()),
        (is_active, numbers, data_b) in (0u8..=1, any::<[u8; 2]>(), letters()),
        (end_time, numberx) in (1u8..=24, proptest::array::uniform(b'0'..=b'9')),
        bit in 0usize..320,
    ) {
        round_trip(subscriber, bit);
        round_trip(index_entry(s_id), bit);
        round_trip(AccessInfo { data1: data[0], data2: data[1], data3, data4, padding: [0; 6] }, bit);
        let (error_cntrl, data_a) = (numbers[0], numbers[1]);
        round_trip(SpecialFacility { is_active, error_cntrl, data_a, data_b }, bit);
        round_trip(CallForwarding { end_time, numberx }, bit);
    }

    #[test]
    fn no_bytes_make_decoding_panic(bytes in proptest::collection::vec(any::<u8>(), 0..48)) {
        let _ = (Subscriber::decode(&bytes), AccessInfo::decode(&bytes));
        let _ = (SpecialFacility::decode(&bytes), CallForwarding::decode(&bytes));
        let _ = IndexEntry::decode(&bytes);
        for kind in 0..64u64 {
            let stream = Stream::new(&Options::default()).unwrap();
            let transaction = stream.next(&mut rng(kind));
            let _ = transaction.step(&[Some(&bytes)]);
            let _ = transaction.step(&[Some(&bytes), None, Some(&bytes)]);
        }
    }
}
