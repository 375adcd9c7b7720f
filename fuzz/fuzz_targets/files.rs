//! Fuzzes the decoders of the files of LinkBench and TAOBench, of edge lists, and of schemas. The first byte chooses the kind of file. A file is accepted or
//! refused; an error names the file, and an accepted file gives values within their bounds.
#![no_main]

use farm_bench::graph::edge_list::EdgeList;
use farm_bench::linkbench::LinkSpec;
use farm_bench::linkbench::degree::Degrees;
use farm_bench::properties::Properties;
use farm_bench::taobench::edges::MAX_SHARDS;
use farm_bench::taobench::workload::{MAX_SIZE, Workload};
use farm_graph::Schema;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, file)) = bytes.split_first() else {
        return;
    };
    match kind {
        b'd' => degrees(file),
        b'e' => edges(file),
        b's' => schema(file),
        b't' => workload(file),
        _ => properties(file),
    }
});

fn degrees(file: &[u8]) {
    match Degrees::parse("fuzz", file) {
        Ok(degrees) => {
            let all: Vec<u64> = (0..100).map(|rank| degrees.of(rank, 100)).collect();
            assert!(all.is_sorted_by(|one, next| one >= next), "{all:?}");
        }
        Err(error) => assert!(error.to_string().starts_with("fuzz:"), "{error}"),
    }
}

fn edges(file: &[u8]) {
    let list = EdgeList::new("fuzz", file);
    let mut lines = 0;
    for edge in list {
        lines += 1;
        if let Err(error) = edge {
            assert!(error.to_string().starts_with("fuzz:"), "{error}");
        }
    }
    assert!(lines <= file.len());
}

fn schema(file: &[u8]) {
    let Ok(text) = str::from_utf8(file) else {
        return;
    };
    if let Err(error) = Schema::parse("fuzz", text) {
        assert!(error.to_string().contains("fuzz"), "{error}");
    }
}

fn workload(file: &[u8]) {
    match Workload::parse("fuzz", file) {
        Ok(workload) => {
            for (size, share) in workload.read_txn_sizes.shares() {
                assert!((1..=MAX_SIZE).contains(&size) && (0.0..=1.0).contains(&share));
            }
            assert!((1..=MAX_SHARDS).contains(&workload.primary_shards.len()));
        }
        Err(error) => assert!(error.to_string().starts_with("fuzz:"), "{error}"),
    }
}

fn properties(file: &[u8]) {
    let mut properties = Properties::new("-D");
    if let Err(error) = properties.load_bytes("fuzz", file) {
        assert!(error.to_string().starts_with("fuzz:"), "{error}");
        return;
    }
    for compat in [false, true] {
        match LinkSpec::from_properties(&properties, compat) {
            Ok(parsed) => assert!(parsed.spec.first_id < parsed.spec.end_id),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}
