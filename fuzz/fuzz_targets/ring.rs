//! Arbitrary bytes as the content of a ring: the receiver gives records or an error, never panics,
//! never hangs, and what it consumed is zero (FaRM'14 §3.1).
#![no_main]

use farm_core as api;
use libfuzzer_sys::fuzz_target;

#[allow(dead_code, unreachable_pub)]
#[path = "../../farm-core/src/ring/testing.rs"]
mod testing;

fuzz_target!(|bytes: &[u8]| {
    testing::drain_untrusted(bytes);
});
