//! The memory that the allocator wastes, computed from the sizes: inside objects because of the steps between classes,
//! after the last object of each block, and in block tables.
//!
//! `FaRM'14 §3.3`: "The sizes are selected so the average fragmentation is 1.8% and the maximum is 3.6%." The tests of
//! this module check the classes against these values.

use serde::Serialize;

use crate::limits::MAX_VALUE_BYTES;

use super::{FINE_LINES, Geometry, SizeClass};

/// Waste of one class.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClassFragmentation {
    /// Size class.
    pub class: SizeClass,
    /// Bytes of an object.
    pub object_bytes: usize,
    /// Bytes of data that fit into an object.
    pub payload_capacity: usize,
    /// Smallest number of bytes of data that needs this class.
    pub least_payload: usize,
    /// Share of the capacity that is unused, averaged over all data sizes that need this class; 0 if no allowed data
    /// size needs this class.
    pub mean_waste: f64,
    /// Share of the capacity that is unused for the smallest such size, which wastes most.
    pub max_waste: f64,
    /// Share of the object that is header and line versions.
    pub versions_share: f64,
    /// Blocks in a run of this class.
    pub run_blocks: u32,
    /// Objects in such a run.
    pub objects_per_run: u32,
    /// Share of the run that is unused after its last object.
    pub tail_waste: f64,
}

/// Waste of all classes and of block tables.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fragmentation {
    /// Bytes of a block.
    pub block_bytes: usize,
    /// Bytes of a region.
    pub region_bytes: usize,
    /// Bytes of a region's block table.
    pub table_bytes: usize,
    /// Share of the region that is its block table.
    pub table_share: f64,
    /// Waste inside objects, averaged over data of every size from 1 byte to the largest value.
    pub mean_waste: f64,
    /// Greatest waste inside objects, over the classes of more than [`FINE_LINES`] lines.
    pub max_waste: f64,
    /// Waste inside objects, averaged over data that needs a class of at most [`FINE_LINES`] lines.
    pub mean_waste_small: f64,
    /// Waste after the last object of a run, averaged over classes.
    pub mean_tail_waste: f64,
    /// Greatest waste after the last object of a run.
    pub max_tail_waste: f64,
    /// Waste of each class.
    pub classes: Vec<ClassFragmentation>,
}

/// Returns the waste with blocks and regions of these sizes, or `None` if a region of that size has no room for a
/// block.
pub fn fragmentation(block_bytes: usize, region_bytes: usize) -> Option<Fragmentation> {
    let geometry = Geometry::new(block_bytes, region_bytes)?;
    let limit = MAX_VALUE_BYTES as usize;
    let mut classes = Vec::new();
    let mut fitting_less = 0;
    for class in SizeClass::all() {
        classes.push(class_fragmentation(geometry, class, fitting_less));
        fitting_less = class.payload_capacity();
    }
    let sizes = |c: &ClassFragmentation| {
        (c.payload_capacity.min(limit) + 1).saturating_sub(c.least_payload) as f64
    };
    let mean = |classes: &[ClassFragmentation]| {
        let wasted: f64 = classes.iter().map(|c| c.mean_waste * sizes(c)).sum();
        wasted / classes.iter().map(sizes).sum::<f64>()
    };
    let most = |of: fn(&ClassFragmentation) -> f64, classes: &[ClassFragmentation]| {
        classes.iter().map(of).fold(0.0, f64::max)
    };
    Some(Fragmentation {
        block_bytes,
        region_bytes,
        table_bytes: geometry.table_bytes(),
        table_share: geometry.table_bytes() as f64 / region_bytes as f64,
        mean_waste: mean(&classes),
        max_waste: most(|c| c.max_waste, &classes[FINE_LINES..]),
        mean_waste_small: mean(&classes[..FINE_LINES]),
        mean_tail_waste: classes.iter().map(|c| c.tail_waste).sum::<f64>() / classes.len() as f64,
        max_tail_waste: most(|c| c.tail_waste, &classes),
        classes,
    })
}

/// Returns the waste of one class; data of `fitting_less` bytes or fewer needs a smaller class.
fn class_fragmentation(
    geometry: Geometry,
    class: SizeClass,
    fitting_less: usize,
) -> ClassFragmentation {
    let (object_bytes, capacity) = (class.object_bytes(), class.payload_capacity());
    let least = fitting_less + 1;
    let greatest = capacity.min(MAX_VALUE_BYTES as usize);
    let waste = |payload: f64| {
        if least > greatest {
            0.0
        } else {
            1.0 - payload / capacity as f64
        }
    };
    // Any block but the region's first, which the table shortens.
    let block = geometry.first_block() + 1;
    let run_blocks = geometry.snug_run(block, class);
    let objects_per_run = geometry.slots(block, run_blocks, class);
    let run_bytes = run_blocks as usize * geometry.block_bytes();
    ClassFragmentation {
        class,
        object_bytes,
        payload_capacity: capacity,
        least_payload: least,
        mean_waste: waste((least + greatest) as f64 / 2.0),
        max_waste: waste(least as f64),
        versions_share: 1.0 - capacity as f64 / object_bytes as f64,
        run_blocks,
        objects_per_run,
        tail_waste: 1.0 - objects_per_run as f64 * object_bytes as f64 / run_bytes as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alloc::class_for_payload;

    fn production() -> Fragmentation {
        fragmentation(1 << 20, 2 << 30).unwrap()
    }

    #[test]
    fn average_waste_is_at_most_1_8_percent_and_maximum_3_6() {
        let report = production();
        assert!(report.mean_waste <= 0.018, "{}", report.mean_waste);
        assert!(report.max_waste <= 0.036, "{}", report.max_waste);
    }

    #[test]
    fn the_average_equals_a_count_over_every_size() {
        let report = production();
        let limit = MAX_VALUE_BYTES as usize;
        let counted: f64 = (1..=limit)
            .map(|bytes| {
                1.0 - bytes as f64 / class_for_payload(bytes).unwrap().payload_capacity() as f64
            })
            .sum();
        assert!((report.mean_waste - counted / limit as f64).abs() < 1e-9);
    }

    #[test]
    fn blocks_waste_at_most_1_32_behind_their_last_object() {
        for region_bytes in [256 << 20, 2 << 30] {
            let report = fragmentation(1 << 20, region_bytes).unwrap();
            assert!(
                report.max_tail_waste <= 1.0 / 32.0,
                "{}",
                report.max_tail_waste
            );
            assert!(report.mean_tail_waste < 0.01, "{}", report.mean_tail_waste);
            assert!(report.table_share < 0.0001, "{}", report.table_share);
        }
    }

    #[test]
    fn small_classes_are_reported_separately() {
        let report = production();
        assert_eq!(report.classes.len(), 256);
        let first = &report.classes[0];
        assert_eq!((first.least_payload, first.payload_capacity), (1, 48));
        assert!((first.mean_waste - (1.0 - 24.5 / 48.0)).abs() < 1e-12);
        assert!(report.mean_waste_small > report.mean_waste);
        assert_eq!(fragmentation(1 << 20, 1 << 10), None);
    }
}
