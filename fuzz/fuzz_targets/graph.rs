//! Fuzzes the decoders of the graph store: messages, results, nodes and pages that come from other machines. They must
//! not panic. The first byte of the input selects the decoder.
#![no_main]

use farm_graph::fuzzing;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    match bytes {
        [0, message @ ..] => _ = fuzzing::message(message),
        [1, result @ ..] => fuzzing::result(result),
        [2, payload @ ..] => fuzzing::node(payload),
        [3, offset, limit, payload @ ..] => {
            fuzzing::first_page(payload, u64::from(*offset), u64::from(*limit));
        }
        _ => {}
    }
});
