//! The conformance suite that every fabric must pass. Each property checks one guarantee of
//! [`farm_core::fabric`], with the same code for every backend.
//!
//! A [`Harness`] runs a property on a [`Cluster`] of one backend: three connected machines. The
//! property uses the first machine, [`OURS`], directly as a [`Node`]. It uses the processors of the
//! other two machines as [`Owner`]s, which load and store their own memory, or starts actors
//! ([`Role`]) on them: a writer that updates objects continuously, a ping-pong player, an adder. An
//! actor is a state machine that advances by steps, so the same actor runs in another process, in a
//! thread, or interleaved step by step in the simulator.
//!
//! [`conformance_suite!`](crate::conformance_suite) makes one `#[test]` per property:
//!
//! ```ignore
//! farm_conformance::conformance_suite!(shm_processes, &Processes(Fabric::Shm));
//! ```
//!
//! | file | properties |
//! |---|---|
//! | `order` | which operations may pass earlier ones, and the order in which words become visible |
//! | `posts` | one completion per signalled operation, returned slots, `Full`, counters |
//! | `access` | posts and imports that must be refused |
//! | `reads` | content, and whole lines while a writer updates the objects |
//! | `atomics` | compare-and-swap and fetch-and-add, alone and contended |
//! | `endings` | killed, leaving and closed peers |
//! | `wakes` | sleeping and waking |
//!
//! `tests/defects.rs` shows that the suite finds bugs: each deliberate bug of the simulated fabric
//! ([`farm_sim::fabric::Defect`]) fails a property.
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

/// A check of one guarantee. It panics if the cluster's backend violates the guarantee.
pub type Property = fn(&mut dyn Cluster);

/// Makes a module of one `#[test]` per property of the suite, run by a
/// [`Harness`](crate::Harness).
#[macro_export]
macro_rules! conformance_suite {
    ($module:ident, $harness:expr) => {
        $crate::conformance_suite! { @each tests [$module, $harness] }
    };
    // The only list of the properties.
    (@each $then:ident $arguments:tt) => {
        $crate::conformance_suite! { @$then $arguments
            order::a_read_sees_the_writes_posted_before_it
            order::writes_become_visible_in_the_order_posted
            order::words_of_a_write_become_visible_in_increasing_order
            order::a_fenced_operation_waits_for_reads_and_atomics
            order::connections_are_independent
            posts::every_signalled_operation_completes_once
            posts::unsignalled_writes_have_no_completion
            posts::writes_of_all_sizes_land_and_change_nothing_else
            posts::a_full_endpoint_accepts_posts_after_polls
            posts::a_read_completes_among_endless_writes
            posts::counters_count_exactly
            access::bad_accesses_are_refused_and_have_no_effect
            access::stale_and_unknown_capabilities_are_refused
            reads::reads_return_the_content
            reads::objects_are_whole_under_a_hammering_writer
            reads::words_are_whole_under_a_hammering_writer
            atomics::atomics_compute_and_return_the_old_value
            atomics::concurrent_adds_sum_up
            atomics::concurrent_swaps_have_one_winner
            endings::a_killed_peer_breaks_outstanding_operations
            endings::a_peer_killed_under_load_completes_everything_once
            endings::a_killed_peer_wakes_a_sleeper
            endings::a_peer_that_leaves_is_reported_as_left
            endings::a_closed_connection_is_reported_as_lost
            wakes::no_wake_up_is_lost_in_a_long_exchange
            wakes::a_flush_notifies_each_sleeper_once
            wakes::a_quiet_sleep_times_out
        }
    };
    (@table [] $($part:ident :: $property:ident)*) => {
        /// All properties, with their names.
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

/// Returns the property with this name.
///
/// # Panics
/// If no property has this name.
pub fn property(name: &str) -> Property {
    let found = PROPERTIES.iter().find(|(known, _)| *known == name);
    found
        .unwrap_or_else(|| panic!("there is no property {name:?}"))
        .1
}
