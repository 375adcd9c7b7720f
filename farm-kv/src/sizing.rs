//! The specification of a table for a number of pairs, in a cluster of a configuration.

use farm_core::config::{Config, rounded_size};

use crate::KvError;
use crate::config::TableConfig;
use crate::layout::Layout;
use crate::table::TableSpec;

/// Returns the specification of a table for `pairs` pairs, with the neighbourhood and the occupancy of `[table]`. Each
/// worker owns `table.shards_per_worker` shards, or more if a shard would not fit into a region.
///
/// # Errors
/// [`KvError::Spec`] if no such table is possible: keys or values have a length that is not possible, or not even the
/// smallest shard fits into a region.
pub fn spec_for(
    config: &Config,
    id: u16,
    (key_bytes, value_bytes): (usize, usize),
    pairs: u64,
) -> Result<TableSpec, KvError> {
    let table = TableConfig::of(config);
    let h = table.neighbourhood;
    let layout = Layout::new(h, key_bytes, value_bytes)?;
    let owners = config.storing_workers() as u32;
    let region = config.memory.region_bytes - config.memory.block_bytes;
    let mut shards = owners * table.shards_per_worker;
    loop {
        let spec = TableSpec::sized(id, h, value_bytes, shards, pairs, table.occupancy);
        if let Ok(spec) = &spec {
            if bytes_of_shard(spec, &layout) <= region {
                return Ok(spec.with_key_bytes(key_bytes));
            }
            if spec.buckets == 1 {
                return Err(KvError::Spec(format!(
                    "memory.region_bytes is {}, but the smallest shard of the table needs {} in addition to a block; \
                     raise memory.region_bytes or lower memory.block_bytes",
                    rounded_size(config.memory.region_bytes),
                    rounded_size(bytes_of_shard(spec, &layout))
                )));
            }
        }
        // A specification that is not possible for any other reason than its number of shards stays so.
        if shards >= crate::table::MAX_SHARDS {
            return spec.and_then(|_| {
                let why = format!(
                    "{pairs} pairs need more than {shards} shards; raise memory.region_bytes"
                );
                Err(KvError::Spec(why))
            });
        }
        shards = shards.saturating_add(owners.max(shards / 8 / owners * owners));
    }
}

fn bytes_of_shard(spec: &TableSpec, layout: &Layout) -> u64 {
    (u64::from(spec.buckets) + 1).saturating_mul(layout.bucket_bytes() as u64)
}

/// Checks that the buckets of a table fit into the memory that the configuration gives all machines together.
///
/// # Errors
/// [`KvError::TooLarge`]; [`KvError::Spec`] if no such table is possible.
pub fn check_memory(config: &Config, spec: &TableSpec) -> Result<(), KvError> {
    let layout = Layout::new(spec.neighbourhood, spec.key_bytes, spec.value_bytes)?;
    let needed = bytes_of_shard(spec, &layout).saturating_mul(spec.shards.into());
    let most = config.total_memory();
    if needed > most {
        return Err(KvError::TooLarge { needed, most });
    }
    // Each machine has about its share of the shards: see `owners::propose`.
    let workers = config.storing_workers();
    for machine in config.storing_machines() {
        let shards = u64::from(spec.shards) * u64::from(machine.workers) / workers;
        let needed = bytes_of_shard(spec, &layout).saturating_mul(shards);
        let most = config.memory_of(machine.id);
        if needed > most {
            return Err(KvError::Spec(format!(
                "machine {} stores {shards} of the table's {} shards, which need {}, and has {}; raise its memory_bytes, or \
                 give it fewer workers",
                machine.id,
                spec.shards,
                rounded_size(needed),
                rounded_size(most)
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        let mut config = crate::config::default_for(3, 2);
        config.memory.region_bytes = 64 << 20;
        config.memory.per_machine_bytes = 1 << 30;
        config
    }

    #[test]
    fn a_shard_fits_into_a_region() {
        let spec = spec_for(&config(), 1, (16, 32), 1000).unwrap();
        assert_eq!((spec.shards, spec.key_bytes, spec.value_bytes), (6, 16, 32));
        let large = spec_for(&config(), 1, (8, 1000), 1_500_000).unwrap();
        let layout = Layout::new(large.neighbourhood, 8, 1000).unwrap();
        assert!(large.shards > 6 && large.shards.is_multiple_of(6));
        assert!(u64::from(large.buckets + 1) * layout.bucket_bytes() as u64 <= 63 << 20);
        assert!(large.slots() as f64 >= 1_500_000.0);
    }

    #[test]
    fn each_machine_must_have_memory_for_its_share() {
        let mut config = config();
        config.machines[1].memory_bytes = Some(64 << 20);
        let spec = spec_for(&config, 1, (8, 1000), 500_000).unwrap();
        let error = check_memory(&config, &spec).unwrap_err().to_string();
        assert!(error.contains("machine m2 stores"), "{error}");
        config.machines[1].memory_bytes = Some(0);
        let spec = spec_for(&config, 1, (8, 1000), 500_000).unwrap();
        assert_eq!(check_memory(&config, &spec), Ok(()));
    }

    #[test]
    fn tables_that_cannot_exist_are_refused() {
        let refused = |sizes, pairs| spec_for(&config(), 1, sizes, pairs).unwrap_err();
        let too_large = spec_for(&config(), 1, (8, 4096), 10_000_000).unwrap();
        let too_large = check_memory(&config(), &too_large).unwrap_err();
        assert!(matches!(too_large, KvError::TooLarge { .. }), "{too_large}");
        let absurd = refused((8, 8), u64::MAX);
        assert!(matches!(absurd, KvError::Spec(_)), "{absurd}");
        for sizes in [(0, 8), (257, 8), (8, 1 << 20)] {
            assert!(matches!(refused(sizes, 10), KvError::Spec(_)), "{sizes:?}");
        }
    }
}
