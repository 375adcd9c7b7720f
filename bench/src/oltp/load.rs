//! The rows of a benchmark that a worker inserts into the tables.

use std::ops::Range;

use farm_core::worker::Worker;
use farm_kv::{Key, TableId};

use super::attempt::table_of;
use super::{Benchmark, RowName, benchmark};
use crate::load::Pairs;

/// The rows of some items. [`super::attempt::attach`] must have been called on the worker before.
#[derive(Clone, Debug)]
pub struct Rows {
    benchmark: Benchmark,
    /// Seed of the population.
    seed: u64,
    items: Range<u64>,
    /// Remaining rows of the current item.
    rows: benchmark::Rows,
}

impl Rows {
    /// Returns the rows of a range of items.
    pub fn new(benchmark: Benchmark, seed: u64, items: Range<u64>) -> Self {
        Self {
            benchmark,
            seed,
            items,
            rows: benchmark::Rows::new(),
        }
    }
}

impl Pairs for Rows {
    type Name = RowName;
    const WHAT: &'static str = "row";

    fn next(
        &mut self,
        worker: &mut Worker,
        value: &mut Vec<u8>,
    ) -> Option<(RowName, TableId, Key)> {
        while self.rows.is_empty() {
            let item = self.items.next()?;
            self.rows = self.benchmark.rows(self.seed, item);
        }
        let (name, row) = self.rows.pop()?;
        value.clear();
        value.extend_from_slice(&row);
        Some((name, table_of(worker, &name), name.table_key()))
    }
}
