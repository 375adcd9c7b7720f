//! Tests that the report contains every class and size, and that impossible sizes are refused.

use farm_core::alloc::TooLarge;

use super::*;

fn tiny() -> AllocOptions {
    AllocOptions {
        block_bytes: 1 << 16,
        region_bytes: 4 << 20,
        payloads: vec![16, 1000],
        objects: 500,
        live_bytes: 1 << 20,
        replacements: 2000,
        seed: 3,
    }
}

#[test]
fn a_report_has_every_class_and_every_size() {
    let report = run(&tiny()).unwrap();
    assert_eq!(report.fragmentation.classes.len(), 256);
    assert_eq!(
        report.timings.iter().map(|t| t.objects).collect::<Vec<_>>(),
        [500, 500]
    );
    for timing in &report.timings {
        assert!(
            timing.replace_ns > 0.0 && timing.near_in_block > 0.0,
            "{timing:?}"
        );
    }
    let mixed = &report.mixed;
    assert!(
        [
            mixed.payload_bytes,
            mixed.object_bytes,
            mixed.reserved_bytes
        ]
        .is_sorted()
    );
    assert!((0.0..0.1).contains(&mixed.internal_fragmentation));
    let table = report.to_string();
    assert_eq!(
        table.lines().filter(|line| line.ends_with('%')).count(),
        256 + 6
    );
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["fragmentation"]["classes"][1]["payload_capacity"], 110);
}

#[test]
fn impossible_sizes_are_refused() {
    let refused = run(&AllocOptions {
        region_bytes: 1 << 12,
        ..tiny()
    })
    .unwrap_err();
    let text = refused.to_string();
    let start = "blocks of 65536 bytes are not possible in regions of 4096 bytes: ";
    assert!(text.starts_with(start), "{text}");
    let refused = run(&AllocOptions {
        payloads: vec![1 << 20],
        ..tiny()
    })
    .unwrap_err();
    assert!(refused.is::<TooLarge>(), "{refused}");
}
