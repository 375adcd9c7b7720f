//! Fuzzes the receiver of a ring with arbitrary bytes as the content of the ring. The receiver returns records or an
//! error, does not panic or hang, and zeroes the consumed bytes (FaRM'14 §3.1).
#![no_main]

use farm_core as api;
use libfuzzer_sys::fuzz_target;

#[allow(dead_code, unreachable_pub)]
#[path = "../../farm-core/src/ring/testing.rs"]
mod testing;

fuzz_target!(|bytes: &[u8]| {
    testing::drain_untrusted(bytes);
});
