//! The suite finds bugs: each deliberate bug of the simulated fabric fails the properties that cover it,
//! within a few seeds. If no bug failed a property, the property might test nothing.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use farm_conformance::sim::Sim;
use farm_conformance::{Harness, property};
use farm_sim::fabric::Defect;

const MOST_SEEDS: u64 = 40;

/// Runs a property on the fabric with a defect, one seed after another, until the property fails.
fn must_fail(defect: Defect, name: &str) {
    let found = (0..MOST_SEEDS).find(|seed| {
        // A property that would hang fails after this time.
        let patience = Some(Duration::from_secs(1));
        let sim = Sim {
            seeds: *seed..*seed + 1,
            defect: Some(defect),
            patience,
        };
        catch_unwind(AssertUnwindSafe(|| sim.run(property(name)))).is_err()
    });
    let seed = found
        .unwrap_or_else(|| panic!("{name} passed with {defect:?} at all of {MOST_SEEDS} seeds"));
    println!("{name} failed with {defect:?} at seed {seed}");
}

macro_rules! each_defect {
    ($($test:ident: $defect:ident by $($property:ident)+;)*) => {
        $(
            #[test]
            fn $test() {
                $(must_fail(Defect::$defect, stringify!($property));)+
            }
        )*

        #[test]
        fn every_defect_is_tested() {
            let tested = [$(Defect::$defect),*];
            assert!(Defect::ALL.iter().all(|defect| tested.contains(defect)));
        }
    };
}

each_defect! {
    fences: FencesIgnored by a_fenced_operation_waits_for_reads_and_atomics;
    reads_pass: ReadsPassWrites by a_read_sees_the_writes_posted_before_it;
    writes_pass: WritesUnordered by writes_become_visible_in_the_order_posted;
    placement: PlacedBackwards by words_of_a_write_become_visible_in_increasing_order;
    twice: CompletedTwice by every_signalled_operation_completes_once;
    lost: CompletionLost by every_signalled_operation_completes_once;
    unsignalled: UnsignalledCompletes by unsignalled_writes_have_no_completion;
    slots: SlotKept by every_signalled_operation_completes_once
        writes_of_all_sizes_land_and_change_nothing_else;
    wakes: WakeLost by no_wake_up_is_lost_in_a_long_exchange;
    early: WakeEarly by no_wake_up_is_lost_in_a_long_exchange;
    lines: LinesTorn by objects_are_whole_under_a_hammering_writer;
    headers: HeadersUnchecked by objects_are_whole_under_a_hammering_writer;
    forgotten: BreakForgets by a_killed_peer_breaks_outstanding_operations
        a_peer_killed_under_load_completes_everything_once a_closed_connection_is_reported_as_lost;
    forgiven: BreakForgiven by a_killed_peer_breaks_outstanding_operations
        a_peer_that_leaves_is_reported_as_left;
    access: AccessUnchecked by bad_accesses_are_refused_and_have_no_effect;
    stale: StaleAccepted by stale_and_unknown_capabilities_are_refused;
    atomics: AtomicsTorn by concurrent_adds_sum_up concurrent_swaps_have_one_winner;
    counters: Miscounted by counters_count_exactly;
}
