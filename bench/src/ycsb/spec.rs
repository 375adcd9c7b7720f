//! The checked specification of a workload: [`WorkloadSpec`].
//!
//! Invariants of a spec of [`WorkloadSpec::from_properties`]: there is at least one record; `insert_start +
//! insert_count <= record_count`; the mix adds up to 1; every parameter of the distribution is in its range; the value
//! is 1 byte to [`MAX_VALUE_BYTES`] long. A caller that changes a field must keep them.

use std::fmt;

use super::operation::OperationMix;
use super::properties::{Origin, Properties, PropertyError, Setting};

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
    /// Number of operations of a run that is bounded by it, else 0 (`operationcount`).
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
        /// Percentage of the operations …
        percentile: f64,
        /// … that access this fraction of the records.
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

/// A spec, and remarks on its settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Parsed {
    /// The workload.
    pub spec: WorkloadSpec,
    /// Warnings and notes, in the order of the keys.
    pub remarks: Vec<Remark>,
}

/// A remark for the author of the settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remark {
    /// A key that YCSB does not have; most often misspelt.
    UnknownProperty {
        /// The key.
        key: String,
        /// Origin of the setting.
        origin: Origin,
        /// A known key that is similar.
        suggestion: Option<&'static str>,
    },
    /// A YCSB key without an effect here.
    NoEffect {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// Origin of the setting.
        origin: Origin,
        /// Why it has no effect.
        reason: String,
    },
    /// The proportions add up to less than 1.
    ProportionsScaled {
        /// Sum of the proportions.
        sum: String,
    },
}

impl Remark {
    /// Returns whether the remark is a warning: it is for a misspelt key, but not for a harmless setting.
    pub fn is_warning(&self) -> bool {
        !matches!(self, Remark::NoEffect { .. })
    }
}

impl fmt::Display for Remark {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Remark::UnknownProperty {
                key,
                origin,
                suggestion,
            } => {
                write!(out, "unknown property '{key}' ({origin})")?;
                match suggestion {
                    Some(known) => write!(out, "; did you mean '{known}'?"),
                    None => Ok(()),
                }
            }
            Remark::NoEffect {
                key,
                value,
                origin,
                reason,
            } => write!(out, "{key}={value} ({origin}) has no effect: {reason}"),
            Remark::ProportionsScaled { sum } => {
                write!(out, "the proportions add up to {sum} and are scaled to 1")
            }
        }
    }
}

/// Why settings are not a valid workload.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    /// A required setting is missing.
    #[error("{key} is not set; {advice}")]
    Missing {
        /// The key.
        key: &'static str,
        /// Advice.
        advice: &'static str,
    },
    /// A value has the wrong type or is out of its range.
    #[error("{key} = '{value}' ({origin}) is not {wanted}")]
    BadValue {
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
        /// Origin of the setting.
        origin: Origin,
        /// Description of the accepted values.
        wanted: String,
    },
    /// The proportions add up to 0 or to more than 1.
    #[error("the proportions add up to {sum} ({parts}); they have to add up to 1")]
    ProportionSum {
        /// Sum of the proportions.
        sum: String,
        /// The proportions with their origins.
        parts: String,
    },
    /// Scans are requested.
    #[error(
        "{asked} needs an ordered index, which this hashtable does not have; \
         workload E is not supported, use a, b, c, d or f"
    )]
    NeedsOrderedIndex {
        /// The setting or workload that requests them.
        asked: String,
    },
    /// The request distribution has an unknown name.
    #[error(
        "requestdistribution = '{value}' ({origin}) is unknown; the distributions are {}",
        Distribution::NAMES.join(", ")
    )]
    UnknownDistribution {
        /// The name.
        value: String,
        /// Origin of the setting.
        origin: Origin,
    },
    /// The records of this client exceed those of the table.
    #[error(
        "insertstart {start} + insertcount {count} is more than recordcount {records}; \
         recordcount is the size of the whole table, of which this client loads a part"
    )]
    InsertRange {
        /// `insertstart`.
        start: u64,
        /// `insertcount`.
        count: u64,
        /// `recordcount`.
        records: u64,
    },
    /// `fieldcount × fieldlength` is not a valid length of a value.
    #[error(
        "fieldcount {field_count} x fieldlength {field_length} gives a value outside 1 to {} bytes; \
         a record is one value of that length here",
        MAX_VALUE_BYTES
    )]
    ValueLength {
        /// `fieldcount`.
        field_count: u64,
        /// `fieldlength`.
        field_length: u64,
    },
    /// There is no built-in workload with that letter.
    #[error("there is no workload '{asked}'; the built-in workloads are a, b, c, d and f")]
    UnknownWorkload {
        /// The letter.
        asked: char,
    },
    /// A built-in file cannot be parsed; never in a build that passed its tests.
    #[error(transparent)]
    Property(#[from] PropertyError),
}

impl SpecError {
    /// Returns the error for a `threadcount` that exceeds the operations that the workers can have in flight.
    pub fn too_many_threads(setting: &Setting, workers: u64, each: u64) -> Self {
        Self::BadValue {
            key: "threadcount",
            value: setting.value.clone(),
            origin: setting.origin.clone(),
            wanted: format!(
                "from 1 to {}: {workers} worker(s) keep at most {each} operations in flight each; lower \
                 it, or raise worker.operations_in_flight by --set",
                workers * each
            ),
        }
    }
}

impl WorkloadSpec {
    /// Checks settings, and fills in the defaults of the reference client.
    ///
    /// # Errors
    /// The first invalid setting: see [`SpecError`].
    pub fn from_properties(name: &str, properties: &Properties) -> Result<Parsed, SpecError> {
        super::parse::parse(name, properties)
    }

    /// Returns the records of this client that `worker` of `workers` loads: parts of equal size, in order.
    ///
    /// # Panics
    /// If `worker` is not below `workers`.
    pub fn load_range(&self, worker: u64, workers: u64) -> std::ops::Range<u64> {
        assert!(worker < workers, "worker {worker} of {workers}");
        let cut = |part: u64| {
            let before = u128::from(self.insert_count) * u128::from(part) / u128::from(workers);
            self.insert_start + before as u64
        };
        cut(worker)..cut(worker + 1)
    }
}

/// Returns the settings of built-in workload `letter`: `a`, `b`, `c`, `d` or `f`.
///
/// Further files and `-p` settings can override them.
///
/// # Errors
/// [`SpecError::NeedsOrderedIndex`] for `e`, [`SpecError::UnknownWorkload`] for others.
pub fn builtin(letter: char) -> Result<Properties, SpecError> {
    let text = match letter.to_ascii_lowercase() {
        'a' => include_str!("../../../config/ycsb/workloada"),
        'b' => include_str!("../../../config/ycsb/workloadb"),
        'c' => include_str!("../../../config/ycsb/workloadc"),
        'd' => include_str!("../../../config/ycsb/workloadd"),
        'f' => include_str!("../../../config/ycsb/workloadf"),
        'e' => {
            return Err(SpecError::NeedsOrderedIndex {
                asked: "workload E (95 % scans)".to_owned(),
            });
        }
        _ => return Err(SpecError::UnknownWorkload { asked: letter }),
    };
    let name = format!("config/ycsb/workload{}", letter.to_ascii_lowercase());
    let mut properties = Properties::new();
    properties.load_bytes(&name, text.as_bytes())?;
    Ok(properties)
}
