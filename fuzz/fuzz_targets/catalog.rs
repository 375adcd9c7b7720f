//! Fuzzes the decoders of the hashtable: the objects of the catalog, and messages, that come from other machines. They must not
//! panic, and a table that is possible has every key in one of its buckets. The first byte of the input selects the decoder.
#![no_main]

use farm_kv::fuzzing;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    match bytes {
        [0, description @ ..] => _ = fuzzing::description(description),
        [1, shards, list @ ..] => _ = fuzzing::list(list, u32::from(*shards)),
        [2, spec @ ..] => _ = fuzzing::specification(spec),
        [3, asked @ ..] => _ = fuzzing::pairs_of(asked),
        [4, change @ ..] => _ = fuzzing::change(change),
        _ => {}
    }
});
