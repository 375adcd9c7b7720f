//! Arbitrary bytes as the messages by which machines over RDMA devices meet: whatever a stranger sends is refused,
//! and what a machine of the cluster sends is judged, without a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| farm_core::fabric::verbs::read_untrusted(bytes));
