//! What a workload asks for, checked: [`WorkloadSpec`].
//!
//! Invariants of a spec made by [`WorkloadSpec::from_properties`]: at least one
//! record; `insert_start + insert_count <= record_count`; the mix adds up to 1;
//! every parameter of the distribution is in its range; the value is 1 byte to
//! [`MAX_VALUE_BYTES`] long. A caller who changes a field keeps them.

use std::fmt;

use super::operation::OperationMix;
use super::properties::{Origin, Properties, PropertyError, Setting};

/// Records must be fewer than this (2^31): the reference client passes key numbers
/// through a 32-bit integer.
pub const MAX_RECORDS: u64 = 1 << 31;

/// The longest value, 960 KiB: with its header it still fits the largest object.
pub const MAX_VALUE_BYTES: usize = 960 * 1024;

/// A checked workload.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkloadSpec {
    /// What to call it in results: `a`, or the name of a file.
    pub name: String,
    /// Records in the whole table once all loaders are done (`recordcount`).
    pub record_count: u64,
    /// Operations of a run that is bounded by their number, 0 if it is not
    /// (`operationcount`).
    pub operation_count: u64,
    /// First record this client loads and asks for (`insertstart`).
    pub insert_start: u64,
    /// How many records it loads and asks for (`insertcount`).
    pub insert_count: u64,
    /// Shares of the operations.
    pub mix: OperationMix,
    /// How records are chosen.
    pub distribution: Distribution,
    /// Length of every value in bytes, `fieldcount × fieldlength` unless the caller
    /// says otherwise.
    pub value_bytes: usize,
    /// Whether the workload asks for values to be checked (`dataintegrity`).
    pub data_integrity: bool,
    /// Settings for the program that runs the workload.
    pub hints: DriverHints,
}

/// Settings for the program that runs a workload.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct DriverHints {
    /// Operations in flight at a time, of all workers together (`threadcount`): a thread of the reference
    /// client has one operation in flight.
    pub threads: Option<u64>,
    /// Operations per second to hold the run to, of all workers together (`target`; 0 is no bound).
    pub target_ops_per_s: Option<u64>,
    /// The longest time the run may take, in seconds (`maxexecutiontime`; 0 is no bound).
    pub max_execution_s: Option<u64>,
}

/// How the record of an operation is chosen (`requestdistribution`).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Distribution {
    /// Every record alike.
    Uniform,
    /// Zipf over 10^10 ranks, hashed onto the records: the reference client's
    /// `zipfian`.
    ZipfianScrambled {
        /// Zipf's constant.
        theta: f64,
    },
    /// Zipf over the records themselves, scattered over them one to one: what the C++
    /// client and FaRM's papers mean.
    ZipfianPlain {
        /// Zipf's constant.
        theta: f64,
    },
    /// The newest records most.
    Latest {
        /// Zipf's constant.
        theta: f64,
    },
    /// A hot set of records.
    Hotspot {
        /// Share of the records that is hot.
        data_fraction: f64,
        /// Share of the operations that goes to them.
        operation_fraction: f64,
    },
    /// The newest records most, falling off exponentially.
    Exponential {
        /// Percent of the operations …
        percentile: f64,
        /// … that fall within this fraction of the records.
        fraction: f64,
    },
    /// One record after the other.
    Sequential,
}

impl Distribution {
    /// The names `requestdistribution` can have; `zipfian` is `zipfian-scrambled`.
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

    /// The unambiguous one of its names.
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
    /// The name and its parameters, as results show it: `zipfian-plain 0.99`.
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

/// A spec and what there is to say about its settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Parsed {
    /// The workload.
    pub spec: WorkloadSpec,
    /// Warnings and notes, in the order of the keys.
    pub remarks: Vec<Remark>,
}

/// Something to tell the person who wrote the settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remark {
    /// A key that no YCSB workload knows; most often misspelt.
    UnknownProperty {
        /// The key.
        key: String,
        /// Where it is set.
        origin: Origin,
        /// A known key that is close to it.
        suggestion: Option<&'static str>,
    },
    /// A key that YCSB knows and that changes nothing here.
    NoEffect {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// Where it is set.
        origin: Origin,
        /// Why.
        reason: String,
    },
    /// The proportions add up to less than 1.
    ProportionsScaled {
        /// Their sum.
        sum: String,
    },
}

impl Remark {
    /// Whether it deserves attention: a misspelt key does, a harmless setting does not.
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

/// Why settings make no workload.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    /// A setting that must be there is missing.
    #[error("{key} is not set; {advice}")]
    Missing {
        /// The key.
        key: &'static str,
        /// What to do.
        advice: &'static str,
    },
    /// A value of the wrong kind or out of its range.
    #[error("{key} = '{value}' ({origin}) is not {wanted}")]
    BadValue {
        /// The key.
        key: &'static str,
        /// What it is set to.
        value: String,
        /// Where.
        origin: Origin,
        /// What it may be.
        wanted: String,
    },
    /// The proportions add up to nothing or to more than 1.
    #[error("the proportions add up to {sum} ({parts}); they have to add up to 1")]
    ProportionSum {
        /// The sum.
        sum: String,
        /// The proportions with their origins.
        parts: String,
    },
    /// Scans are asked for.
    #[error(
        "{asked} needs an ordered index, which this hashtable does not have; \
         workload E is not supported, use a, b, c, d or f"
    )]
    NeedsOrderedIndex {
        /// What asked for it.
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
        /// Where it is set.
        origin: Origin,
    },
    /// The records of this client reach beyond the records there are.
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
    /// `fieldcount × fieldlength` is no length a value can have.
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
    /// There is no built-in workload of that letter.
    #[error("there is no workload '{asked}'; the built-in ones are a, b, c, d and f")]
    UnknownWorkload {
        /// The letter.
        asked: char,
    },
    /// A built-in file that does not parse; never in a build that passed its tests.
    #[error(transparent)]
    Property(#[from] PropertyError),
}

impl SpecError {
    /// `threadcount` is more than the workers keep in flight.
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
    /// Checks settings and fills in the reference client's defaults.
    ///
    /// # Errors
    /// The first setting that cannot be: see [`SpecError`].
    pub fn from_properties(name: &str, properties: &Properties) -> Result<Parsed, SpecError> {
        super::parse::parse(name, properties)
    }

    /// The records of this client that `worker` of `workers` loads: parts of equal
    /// size, in order.
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

/// The settings of built-in workload `letter`: `a`, `b`, `c`, `d` or `f`.
///
/// Further files and `-p` settings can be laid over them.
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
