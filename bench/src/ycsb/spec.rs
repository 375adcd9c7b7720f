//! The checked specification of a workload: [`WorkloadSpec`].
//!
//! Invariants of a spec that was created from properties: there is at least one record; `insert_start + insert_count <=
//! record_count`; the mix adds up to 1; every parameter of the distribution is in its range; the value is 1 byte to
//! [`MAX_VALUE_BYTES`] long. A caller that changes a field must preserve these invariants.

use std::fmt;

use super::operation::OperationMix;
use crate::closed_loop::part_of;
use crate::properties::{Properties, PropertyError, Setting};

/// The number of records must be less than this (2^31): the reference client passes key numbers through a 32-bit
/// integer.
pub const MAX_RECORDS: u64 = 1 << 31;

/// Longest value, 960 KiB: with its header it still fits into the largest object.
pub const MAX_VALUE_BYTES: usize = 960 * 1024;

/// A checked workload.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkloadSpec {
    /// Name in results: `a`, or the name of a file.
    pub name: String,
    /// Number of records of the whole table when all loaders are done (`recordcount`).
    pub record_count: u64,
    /// Maximum number of operations of a run; 0 if it is not bounded (`operationcount`).
    pub operation_count: u64,
    /// First record that this client loads and requests (`insertstart`).
    pub insert_start: u64,
    /// Number of records that this client loads and requests (`insertcount`).
    pub insert_count: u64,
    /// Shares of the operations.
    pub mix: OperationMix,
    /// Distribution of the requested records.
    pub distribution: Distribution,
    /// Length of every value in bytes: `fieldcount × fieldlength`, unless the caller changes it.
    pub value_bytes: usize,
    /// Whether the workload requests checks of values (`dataintegrity`).
    pub data_integrity: bool,
    /// Settings for the program that runs the workload.
    pub hints: DriverHints,
}

/// Settings for the program that runs a workload.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct DriverHints {
    /// Operations in flight, of all workers together (`threadcount`): a thread of the reference client has one
    /// operation in flight.
    pub threads: Option<u64>,
    /// Limit of operations per second, of all workers together (`target`; 0 means no limit).
    pub target_ops_per_s: Option<u64>,
    /// Longest duration of the run, in seconds (`maxexecutiontime`; 0 means no limit).
    pub max_execution_s: Option<u64>,
}

/// The choice of the record of an operation (`requestdistribution`).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Distribution {
    /// All records are equally likely.
    Uniform,
    /// Zipf over 10^10 ranks, hashed onto the records: the `zipfian` of the reference client.
    ZipfianScrambled {
        /// Zipf's constant.
        theta: f64,
    },
    /// Zipf over the records themselves, scattered over them one to one: the meaning in the C++ client and in FaRM's
    /// papers.
    ZipfianPlain {
        /// Zipf's constant.
        theta: f64,
    },
    /// Prefers the newest records, by a zipfian distribution.
    Latest {
        /// Zipf's constant.
        theta: f64,
    },
    /// Prefers a hot set of records.
    Hotspot {
        /// Share of the records in the hot set.
        data_fraction: f64,
        /// Share of the operations on the hot set.
        operation_fraction: f64,
    },
    /// Prefers the newest records, by an exponential distribution.
    Exponential {
        /// Percentage of the operations that access the newest `fraction` of the records.
        percentile: f64,
        /// Fraction of the records that these operations access.
        fraction: f64,
    },
    /// One record after the other.
    Sequential,
}

impl Distribution {
    /// The names for `requestdistribution`; `zipfian` means `zipfian-scrambled`.
    pub const NAMES: [&'static str; 8] = [
        "uniform",
        "zipfian",
        "zipfian-scrambled",
        "zipfian-plain",
        "latest",
        "hotspot",
        "exponential",
        "sequential",
    ];

    /// Returns the unambiguous name.
    pub fn name(&self) -> &'static str {
        match self {
            Distribution::Uniform => "uniform",
            Distribution::ZipfianScrambled { .. } => "zipfian-scrambled",
            Distribution::ZipfianPlain { .. } => "zipfian-plain",
            Distribution::Latest { .. } => "latest",
            Distribution::Hotspot { .. } => "hotspot",
            Distribution::Exponential { .. } => "exponential",
            Distribution::Sequential => "sequential",
        }
    }
}

impl fmt::Display for Distribution {
    /// Formats the name and its parameters, as in results: `zipfian-plain 0.99`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())?;
        match self {
            Distribution::Uniform | Distribution::Sequential => Ok(()),
            Distribution::ZipfianScrambled { theta }
            | Distribution::ZipfianPlain { theta }
            | Distribution::Latest { theta } => write!(out, " {theta}"),
            Distribution::Hotspot {
                data_fraction,
                operation_fraction,
            } => write!(out, " {operation_fraction} on {data_fraction}"),
            Distribution::Exponential {
                percentile,
                fraction,
            } => write!(out, " {percentile}% in {fraction}"),
        }
    }
}

/// Why settings are not a valid workload.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    /// A setting is missing or invalid. The message names the setting, its origin, and what is accepted.
    #[error("{0}")]
    Invalid(String),
    /// Settings could not be read.
    #[error(transparent)]
    Property(#[from] PropertyError),
}

impl SpecError {
    /// Returns the error for a `threadcount` that exceeds the operations that the workers can have in flight.
    pub fn too_many_threads(setting: &Setting, workers: u64, each: u64) -> Self {
        let wanted = format!(
            "from 1 to {}: {workers} worker(s) keep at most {each} operations in flight each; lower threadcount, or \
             raise worker.operations_in_flight by --set",
            workers * each
        );
        PropertyError::bad_value("threadcount", setting, &wanted).into()
    }

    /// Returns the error for a request of scans, by a setting or by a workload.
    pub(super) fn needs_ordered_index(asked: &str) -> Self {
        Self::Invalid(format!(
            "{asked} needs an ordered index, which this hashtable does not have; workload E is not supported, \
             use a, b, c, d or f"
        ))
    }
}

impl WorkloadSpec {
    /// Returns the records of this client that `worker` of `workers` loads: parts of equal size, in order.
    ///
    /// # Panics
    /// If `worker` is not below `workers`.
    pub fn load_range(&self, worker: u64, workers: u64) -> std::ops::Range<u64> {
        let part = part_of(self.insert_count, worker, workers);
        self.insert_start + part.start..self.insert_start + part.end
    }
}

/// Returns the settings of built-in workload `letter`: `a`, `b`, `c`, `d` or `f`.
///
/// Further files and `-p` settings can override them.
///
/// # Errors
/// If there is no such workload; `e` is not supported.
pub fn builtin(letter: char) -> Result<Properties, SpecError> {
    let letter = letter.to_ascii_lowercase();
    let text = match letter {
        'a' => include_str!("../../../config/ycsb/workloada"),
        'b' => include_str!("../../../config/ycsb/workloadb"),
        'c' => include_str!("../../../config/ycsb/workloadc"),
        'd' => include_str!("../../../config/ycsb/workloadd"),
        'f' => include_str!("../../../config/ycsb/workloadf"),
        'e' => return Err(SpecError::needs_ordered_index("workload E (95 % scans)")),
        _ => {
            return Err(SpecError::Invalid(format!(
                "there is no workload '{letter}'; the built-in workloads are a, b, c, d and f"
            )));
        }
    };
    let mut properties = Properties::new("-p");
    let name = format!("config/ycsb/workload{letter}");
    properties.load_bytes(&name, text.as_bytes())?;
    Ok(properties)
}
