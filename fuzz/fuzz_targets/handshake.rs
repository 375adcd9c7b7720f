//! Fuzzes the decoders of the handshake between machines over RDMA devices. They must not panic, for messages of
//! strangers and for messages of machines of the cluster.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| farm_core::fabric::verbs::read_untrusted(bytes));
