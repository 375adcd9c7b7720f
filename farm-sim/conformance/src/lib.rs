//! The suite that every fabric must pass: the promises of [`farm_core::fabric`], one property each,
//! asked of any backend in the same words.
//!
//! A backend comes in as a [`Harness`], which runs a property on a [`Cluster`]: three connected
//! machines, of which the first, [`OURS`], is in the property's hands as a [`Node`]. The others'
//! processors are reached as [`Owner`]s, which load and store their own memory, and can be set to
//! work as actors ([`Role`]): a writer that hammers objects, a player of ping-pong, an adder. An
//! actor is a struct that is stepped, so the same one runs in another process, in a thread, or
//! interleaved step by step in the simulator.
//!
//! [`conformance_suite!`](crate::conformance_suite) makes one `#[test]` per property:
//!
//! ```ignore
//! farm_conformance::conformance_suite!(shm_processes, &Processes(Fabric::Shm));
//! ```
//!
//! | file | what is asked |
//! |---|---|
//! | `order` | who may pass whom, and the order in which words become visible |
//! | `posts` | completions exactly once, slots given back, `Full`, counters |
//! | `access` | what a post and an import must refuse |
//! | `reads` | content, and whole lines under a hammering writer |
//! | `atomics` | compare-and-swap and fetch-and-add, alone and contended |
//! | `endings` | killed, leaving and closed peers |
//! | `wakes` | sleeping and waking |
//!
//! That the suite has teeth is shown by `tests/teeth.rs`: each of the simulator's deliberate bugs
//! ([`farm_sim::fabric::Defect`]) fails it.
#![forbid(unsafe_code)]

mod access;
mod atomics;
mod cluster;
mod deadline;
mod endings;
pub mod host;
mod node;
mod order;
mod posts;
mod reads;
mod roles;
pub mod sim;
mod wakes;

pub use cluster::{Cluster, Harness, Location, OURS, Owner, PEER, THIRD, THREE};
pub use deadline::Deadline;
pub use node::{CLOSED_BYTES, Node, OPEN_BYTES, Offer, Peer, Refusal};
pub use reads::accepted_and_torn;
pub use roles::{Actor, Hammered, Role, Step, run_to_end};

/// A property, as it is asked of a backend.
pub type Property = fn(&mut dyn Cluster);

/// Makes a module of one `#[test]` per property of the suite, run by a
/// [`Harness`](crate::Harness).
#[macro_export]
macro_rules! conformance_suite {
    ($module:ident, $harness:expr) => {
        $crate::conformance_suite! { @each tests [$module, $harness] }
    };
    // The properties are listed here and nowhere else.
    (@each $then:ident $arguments:tt) => {
        $crate::conformance_suite! { @$then $arguments
            order::a_read_sees_the_writes_posted_before_it
            order::writes_become_visible_in_the_order_posted
            order::words_of_a_write_become_visible_in_increasing_order
            order::a_fenced_operation_waits_for_reads_and_atomics
            order::connections_are_independent
            posts::every_signalled_operation_completes_once
            posts::unsignalled_writes_complete_nothing
            posts::writes_of_all_sizes_land_and_touch_nothing_else
            posts::a_full_endpoint_goes_on_after_polls
            posts::counters_count_exactly
            access::bad_accesses_are_refused_and_do_nothing
            access::stale_and_unknown_capabilities_are_refused
            reads::reads_give_the_content
            reads::objects_are_whole_under_a_hammering_writer
            reads::words_are_whole_under_a_hammering_writer
            atomics::atomics_compute_and_tell_the_old_value
            atomics::concurrent_adds_sum_up
            atomics::concurrent_swaps_have_one_winner
            endings::a_killed_peer_breaks_what_is_outstanding
            endings::a_peer_killed_under_load_completes_everything_once
            endings::a_killed_peer_wakes_a_sleeper
            endings::a_peer_that_leaves_says_so
            endings::a_closed_connection_is_lost
            wakes::no_wake_up_is_lost_in_a_long_exchange
            wakes::a_flush_notifies_each_sleeper_once
            wakes::a_quiet_sleep_times_out
        }
    };
    (@table [] $($part:ident :: $property:ident)*) => {
        /// Every property, by name.
        pub const PROPERTIES: &[(&str, Property)] =
            &[$((stringify!($property), $part::$property)),*];
    };
    (@tests [$module:ident, $harness:expr] $($part:ident :: $property:ident)*) => {
        mod $module {
            #[allow(unused_imports)]
            use super::*;

            $(
                #[test]
                fn $property() {
                    let harness: &dyn $crate::Harness = $harness;
                    harness.run($crate::property(stringify!($property)));
                }
            )*
        }
    };
}

conformance_suite! { @each table [] }

/// Finds a property by its name.
///
/// # Panics
/// If there is none of that name.
pub fn property(name: &str) -> Property {
    let found = PROPERTIES.iter().find(|(known, _)| *known == name);
    found
        .unwrap_or_else(|| panic!("no property is called {name}"))
        .1
}
