//! Either benchmark as data: the initial contents of its tables, and what must hold at the end.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::{OptionsError, RowBytes, RowName, Stream, Table, attempt};
use crate::closed_loop::part_of;
use crate::load::Pairs;
use crate::{smallbank, tatp};

/// Maximum number of subscribers all of whose rows are checked at the end. If there are more, all rows of every n-th
/// subscriber are checked, and two rows of the others.
const MOST_WHOLE: u32 = 100_000;

/// A benchmark with its options.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "benchmark", content = "options", rename_all = "snake_case")]
pub enum Benchmark {
    /// TATP.
    Tatp(tatp::Options),
    /// SmallBank.
    Smallbank(smallbank::Options),
}

/// The rows of one item.
pub type Rows = SmallVec<[(RowName, RowBytes); 8]>;
/// The names of the rows of one item.
pub type ItemNames = SmallVec<[RowName; 8]>;

impl Benchmark {
    /// Returns the name.
    pub fn name(&self) -> &'static str {
        match self {
            Benchmark::Tatp(_) => "tatp",
            Benchmark::Smallbank(_) => "smallbank",
        }
    }

    /// Returns the stream of transactions.
    ///
    /// # Errors
    /// An invalid option.
    pub fn stream(&self) -> Result<Stream, OptionsError> {
        match self {
            Benchmark::Tatp(options) => tatp::Stream::new(options).map(Stream::Tatp),
            Benchmark::Smallbank(options) => smallbank::Stream::new(options).map(Stream::SmallBank),
        }
    }

    /// Returns the names of the kinds of transactions, in their order.
    pub fn kinds(&self) -> &'static [&'static str] {
        match self {
            Benchmark::Tatp(_) => tatp::Kind::NAMES,
            Benchmark::Smallbank(_) => smallbank::Kind::NAMES,
        }
    }

    /// Returns the options as JSON.
    pub fn options(&self) -> serde_json::Value {
        let options = match self {
            Benchmark::Tatp(options) => serde_json::to_value(options),
            Benchmark::Smallbank(options) => serde_json::to_value(options),
        };
        options.expect("the options of a benchmark can be serialized as JSON")
    }

    /// Returns the tables.
    pub fn tables(&self) -> &'static [Table] {
        match self {
            Benchmark::Tatp(_) => &tatp::names::TABLES,
            Benchmark::Smallbank(_) => &smallbank::account::TABLES,
        }
    }

    /// Returns the number of rows that a table has initially and while transactions run, averaged over all seeds.
    pub fn expected_rows(&self, table: &Table) -> u64 {
        match self {
            Benchmark::Tatp(options) => {
                let of_four = tatp::population::rows_of_four(table);
                (of_four * u64::from(options.subscribers)).div_ceil(4)
            }
            Benchmark::Smallbank(options) => options.accounts,
        }
    }

    /// Returns the number of items, the owners of rows: subscribers or accounts.
    pub fn items(&self) -> u64 {
        match self {
            Benchmark::Tatp(options) => u64::from(options.subscribers),
            Benchmark::Smallbank(options) => options.accounts,
        }
    }

    /// Returns the name of the items, in the plural.
    pub fn item_name(&self) -> &'static str {
        match self {
            Benchmark::Tatp(_) => "subscribers",
            Benchmark::Smallbank(_) => "accounts",
        }
    }

    /// Returns the items that a worker loads, and checks at the end.
    ///
    /// # Panics
    /// If `worker` is not below `workers`.
    pub fn share(&self, worker: u64, workers: u64) -> Range<u64> {
        part_of(self.items(), worker, workers)
    }

    /// Returns the initial rows of an item.
    pub fn rows(&self, seed: u64, item: u64) -> Rows {
        match self {
            Benchmark::Tatp(_) => tatp::rows(seed, s_id(item)).encoded().collect(),
            Benchmark::Smallbank(options) => {
                let rows = smallbank::account::rows(item, options.initial_cents);
                rows.into_iter().collect()
            }
        }
    }

    /// Returns the rows of some items, for the loader. [`attempt::attach`] must have been called on the worker before.
    pub fn pairs(&self, seed: u64, items: Range<u64>) -> Pairs<RowName> {
        let benchmark = self.clone();
        let mut rows = items.flat_map(move |item| benchmark.rows(seed, item));
        Pairs {
            what: "row",
            may_exist: false,
            next: Box::new(move |worker, value| {
                let (name, row) = rows.next()?;
                value.clear();
                value.extend_from_slice(&row);
                Some((name, attempt::table_of(worker, &name), name.table_key()))
            }),
        }
    }

    /// Returns the names of the rows of an item that are checked at the end; some of them may be absent.
    pub fn audited(&self, item: u64) -> ItemNames {
        match self {
            Benchmark::Tatp(options) => {
                let whole =
                    item.is_multiple_of(u64::from(options.subscribers.div_ceil(MOST_WHOLE)));
                let names = tatp::names::all(s_id(item));
                names.take(if whole { usize::MAX } else { 2 }).collect()
            }
            Benchmark::Smallbank(_) => {
                let account = smallbank::account::rows(item, 0);
                account.map(|(name, _)| name).into_iter().collect()
            }
        }
    }

    /// Checks that the rows of an item, named by [`Benchmark::audited`], can be the result of transactions. Returns
    /// their money, in cents.
    ///
    /// # Errors
    /// A description of the error.
    pub fn audit(&self, seed: u64, item: u64, rows: &[Option<RowBytes>]) -> Result<i64, String> {
        match self {
            Benchmark::Tatp(_) => tatp::audit::check(seed, s_id(item), rows).map(|()| 0),
            Benchmark::Smallbank(_) => smallbank::account::worth(item, rows),
        }
    }

    /// Returns the initial sum of all money, in cents; `None` for a benchmark without money.
    pub fn initial_cents(&self) -> Option<i128> {
        match self {
            Benchmark::Tatp(_) => None,
            Benchmark::Smallbank(options) => Some(options.initial_total_cents()),
        }
    }
}

/// Returns the subscriber of an item.
fn s_id(item: u64) -> u32 {
    (item + 1) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_sized_by_what_is_loaded() {
        let benchmark = Benchmark::Tatp(tatp::Options {
            subscribers: 4_000,
            ..Default::default()
        });
        let mut loaded = vec![0u64; benchmark.tables().len()];
        for item in 0..benchmark.items() {
            for (name, row) in benchmark.rows(7, item) {
                let at = benchmark.tables().iter().position(|one| *one == name.table);
                loaded[at.unwrap()] += 1;
                assert_eq!(row.len(), name.table.row_bytes);
            }
        }
        for (table, loaded) in benchmark.tables().iter().zip(loaded) {
            let expected = benchmark.expected_rows(table) as f64;
            let off = (loaded as f64 - expected).abs() / expected;
            assert!(off < 0.03, "{table:?}: {loaded} rows, {expected} expected");
        }
    }

    #[test]
    fn loaded_rows_pass_the_audit_and_missing_rows_do_not() {
        let tatp = Benchmark::Tatp(tatp::Options::default());
        let bank = Benchmark::Smallbank(smallbank::Options::default());
        for (benchmark, cents) in [(tatp, 0), (bank, 2 * 100_000_000_000)] {
            for item in 0..50 {
                let rows = benchmark.rows(3, item);
                let find = |name: &RowName| {
                    let found = rows.iter().find(|(one, _)| one == name);
                    found.map(|(_, row)| *row)
                };
                let names = benchmark.audited(item);
                let mut found: Vec<_> = names.iter().map(find).collect();
                assert_eq!(benchmark.audit(3, item, &found), Ok(cents));
                found[0] = None;
                let missing = benchmark.audit(3, item, &found).unwrap_err();
                assert!(missing.contains("is missing"), "{missing}");
            }
        }
    }
}
