//! Tests of the sizes of tables.

use super::*;

#[test]
fn a_table_is_sized_by_its_occupancy() {
    let spec = TableSpec::sized(1, 6, 32, 3, 1_000_000, 0.9).unwrap();
    let occupancy = 1_000_000.0 / spec.slots() as f64;
    assert!((occupancy - 0.9).abs() < 1e-5, "{occupancy}");
    for (shards, pairs, occupancy) in [
        (0, 1, 0.9),
        (1, 0, 0.9),
        (1, 1, 0.0),
        (1, 1, 1.1),
        (1, 1, f64::NAN),
    ] {
        assert!(TableSpec::sized(1, 6, 32, shards, pairs, occupancy).is_err());
    }
}
