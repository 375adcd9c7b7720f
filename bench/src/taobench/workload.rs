//! The workload files of TAOBench: one distribution per line, as a JSON object with a name, values and weights.

use std::collections::BTreeMap;

use rand::RngCore;
use rand::distr::Distribution;
use rand::distr::weighted::WeightedIndex;
use serde::Deserialize;

use super::edges::{EdgeType, MAX_SHARDS};
use crate::data::{self, DataError};
use crate::recorder::kinds;

/// The greatest size of a transaction. The published files have at most 500 reads and 103 writes.
pub const MAX_SIZE: u64 = 1000;

kinds! {
    /// A kind of requests.
    pub enum Kind {
        /// Reads an object.
        ObjRead = "obj_read",
        /// Reads an edge.
        EdgePoint = "edge_point_read",
        /// Reads the newest edges of an object and a type.
        EdgeRange = "edge_range_read",
        /// Reads the number of edges of an object and a type.
        EdgeCount = "edge_count_read",
        /// Reads the edges of an object and a type within a range of times.
        EdgeTime = "edge_time_read",
        /// Adds an object with a new key.
        ObjAdd = "obj_add",
        /// Changes an object.
        ObjUpdate = "obj_update",
        /// Deletes an object.
        ObjDelete = "obj_delete",
        /// Adds an edge with new keys.
        EdgeAdd = "edge_add",
        /// Changes an edge.
        EdgeUpdate = "edge_update",
        /// Deletes an edge.
        EdgeDelete = "edge_delete",
        /// Several reads at one moment.
        ReadTxn = "read_txn",
        /// Several writes, all or none.
        WriteTxn = "write_txn",
    }
}

impl Kind {
    /// Number of kinds that read one thing; they are the first of [`Kind::ALL`].
    const READS: usize = 5;
    /// Number of kinds that write one thing; they follow.
    const WRITES: usize = 6;
}

/// Values that are drawn by their weights.
#[derive(Clone, Debug)]
pub struct Choice<T> {
    values: Vec<T>,
    index: WeightedIndex<f64>,
}

impl<T: Copy> Choice<T> {
    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Returns whether there is no value: never.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Draws a value.
    pub fn draw(&self, rng: &mut impl RngCore) -> T {
        self.values[self.index.sample(rng)]
    }

    /// Returns the values with their shares.
    pub fn shares(&self) -> impl Iterator<Item = (T, f64)> {
        let all = self.index.total_weight();
        let shares = self.index.weights().map(move |weight| weight / all);
        self.values.iter().copied().zip(shares)
    }
}

/// A request, or the kind of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// One read.
    Read,
    /// One write.
    Write,
    /// A read transaction.
    ReadTxn,
    /// A write transaction.
    WriteTxn,
}

/// The distributions of a workload file.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Reads, writes and transactions.
    pub operations: Choice<Operation>,
    /// Reads outside of transactions.
    pub reads: Choice<Kind>,
    /// Writes outside of transactions.
    pub writes: Choice<Kind>,
    /// Reads of read transactions.
    pub reads_of_txns: Choice<Kind>,
    /// Writes of write transactions.
    pub writes_of_txns: Choice<Kind>,
    /// Numbers of reads of read transactions.
    pub read_txn_sizes: Choice<u64>,
    /// Numbers of writes of write transactions.
    pub write_txn_sizes: Choice<u64>,
    /// Types of new edges.
    pub edge_types: Choice<EdgeType>,
    /// Shards of the first object of an edge.
    pub primary_shards: Choice<u64>,
    /// Shards of the second object of a new edge.
    pub remote_shards: Choice<u64>,
}

/// A line of a file.
#[derive(Deserialize)]
struct Line {
    name: String,
    values: Option<Vec<serde_json::Value>>,
    weights: Vec<f64>,
}

/// The lines of a file by name, with the numbers of the lines.
struct Lines<'a> {
    file: &'a str,
    all: BTreeMap<String, (usize, Line)>,
}

impl Workload {
    /// Parses the text of a workload file. `file` is its name in messages.
    ///
    /// # Errors
    /// [`DataError`] with the name and the line, if the file lacks a distribution or has an invalid line.
    pub fn parse(file: &str, text: &[u8]) -> Result<Self, DataError> {
        let text = data::text(file, text, "a workload file of TAOBench")?;
        let mut lines = Lines::parse(file, text)?;
        let shards = |at: usize, _: Option<&serde_json::Value>| Some(at as u64);
        let kind_of = |kinds: &'static [Kind]| {
            move |_: usize, value: Option<&serde_json::Value>| {
                let name = value?.as_str()?;
                kinds.iter().copied().find(|kind| kind.name() == name)
            }
        };
        const READS: &[Kind] = Kind::ALL.split_at(Kind::READS).0;
        const WRITES: &[Kind] = Kind::ALL.split_at(Kind::READS).1.split_at(Kind::WRITES).0;
        let size = |_: usize, value: Option<&serde_json::Value>| {
            value?.as_u64().filter(|size| (1..=MAX_SIZE).contains(size))
        };
        let edge_type = |_: usize, value: Option<&serde_json::Value>| {
            let name = value?.as_str()?;
            EdgeType::ALL.into_iter().find(|it| it.name() == name)
        };
        let operation = |at: usize, _: Option<&serde_json::Value>| {
            let all = [
                Operation::Read,
                Operation::Write,
                Operation::ReadTxn,
                Operation::WriteTxn,
            ];
            all.get(at).copied()
        };
        const SIZES: &str = "numbers from 1 to 1000";
        Ok(Self {
            operations: lines.choice(
                "operations",
                "the weights of reads, writes, read transactions and write transactions",
                (4, 4),
                operation,
            )?,
            reads: lines.choice(
                "read_operation_types",
                "kinds of reads",
                ANY,
                kind_of(READS),
            )?,
            writes: lines.choice(
                "write_operation_types",
                "kinds of writes",
                ANY,
                kind_of(WRITES),
            )?,
            reads_of_txns: lines.choice(
                "read_txn_operation_types",
                "kinds of reads",
                ANY,
                kind_of(READS),
            )?,
            writes_of_txns: lines.choice(
                "write_txn_operation_types",
                "kinds of writes",
                ANY,
                kind_of(WRITES),
            )?,
            read_txn_sizes: lines.choice("read_txn_sizes", SIZES, ANY, size)?,
            write_txn_sizes: lines.choice("write_txn_sizes", SIZES, ANY, size)?,
            edge_types: lines.choice("edge_types", "types of edges", ANY, edge_type)?,
            primary_shards: lines.choice("primary_shards", SHARDS, (1, MAX_SHARDS), shards)?,
            remote_shards: lines.choice("remote_shards", SHARDS, (1, MAX_SHARDS), shards)?,
        })
    }
}

const SHARDS: &str = "the weights of 1 to 64 shards";

/// The least and the greatest number of values that most distributions may have.
const ANY: (usize, usize) = (1, 10_000);

impl<'a> Lines<'a> {
    fn parse(file: &'a str, text: &str) -> Result<Self, DataError> {
        let mut all = BTreeMap::new();
        for (at, line) in text.lines().enumerate() {
            let number = at + 1;
            if line.trim().is_empty() {
                continue;
            }
            let refuse = |why: String| Err(DataError(format!("{file}:{number}: {why}")));
            let parsed: Line = match serde_json::from_str(line) {
                Ok(parsed) => parsed,
                Err(error) => {
                    return refuse(format!(
                        "the line is not a distribution of TAOBench, as in {{\"name\": \"operations\", \"weights\": [3, 1, \
                         1, 1]}}: {error}"
                    ));
                }
            };
            let name = parsed.name.clone();
            if let Some((before, _)) = all.insert(name.clone(), (number, parsed)) {
                return refuse(format!("{name:?} is already on line {before}"));
            }
        }
        Ok(Self { file, all })
    }

    /// Takes a distribution. `value` returns a value by its position and its text; `None` if it is not valid.
    fn choice<T: Copy>(
        &mut self,
        name: &str,
        wanted: &str,
        (least, most): (usize, usize),
        value: impl Fn(usize, Option<&serde_json::Value>) -> Option<T>,
    ) -> Result<Choice<T>, DataError> {
        let file = self.file;
        let Some((number, line)) = self.all.remove(name) else {
            return Err(DataError(format!(
                "{file}: the distribution {name:?} is missing ({wanted}): the file is truncated, or not a workload file of \
                 TAOBench"
            )));
        };
        let refuse = |why: String| DataError(format!("{file}:{number}: {name}: {why}"));
        let count = line.weights.len();
        let values = line.values.as_deref();
        if values.is_some_and(|values| values.len() != count) {
            let values = values.map_or(0, <[_]>::len);
            return Err(refuse(format!("{values} values have {count} weights")));
        }
        if !(least..=most).contains(&count) {
            return Err(refuse(format!("{count} weights are not {wanted}")));
        }
        let parsed = (0..count).map(|at| {
            let text = values.and_then(|values| values.get(at));
            let shown = || text.map_or("a missing value".to_owned(), ToString::to_string);
            value(at, text).ok_or_else(|| refuse(format!("{} is not one of: {wanted}", shown())))
        });
        let parsed = parsed.collect::<Result<Vec<T>, DataError>>()?;
        if let Some(wrong) = line
            .weights
            .iter()
            .find(|weight| !(0.0..1e15).contains(*weight))
        {
            return Err(refuse(format!(
                "the weight {wrong} is not a number from 0 to below 10^15"
            )));
        }
        let index = WeightedIndex::new(&line.weights)
            .map_err(|error| refuse(format!("the weights are not valid: {error}")))?;
        Ok(Choice {
            values: parsed,
            index,
        })
    }
}

/// The published workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    /// Requests of the applications that use transactions.
    Applications,
    /// All requests.
    Overall,
}

impl Published {
    /// Returns the text of the file.
    pub fn text(self) -> &'static str {
        match self {
            Published::Applications => include_str!("../../../config/taobench/a.json"),
            Published::Overall => include_str!("../../../config/taobench/o.json"),
        }
    }
}

#[cfg(test)]
mod tests;
