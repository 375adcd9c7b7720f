//! The conversion of properties to a checked workload.

use super::generators::ZIPFIAN_CONSTANT;
use super::operation::OperationMix;
use super::spec::{
    Distribution, DriverHints, MAX_RECORDS, MAX_VALUE_BYTES, SpecError, WorkloadSpec,
};
use crate::properties::{Properties, PropertyError, Reader, Remark, Vocabulary};

/// Largest difference from 1 at which a sum of decimal fractions still counts as 1.
const SUM_TOLERANCE: f64 = 1e-6;

/// The proportions, in the order of their accumulation.
const PROPORTIONS: [&str; 5] = [
    "readproportion",
    "updateproportion",
    "insertproportion",
    "scanproportion",
    "readmodifywriteproportion",
];

/// Keys that have no effect here, because they concern features that this program does not have, or the reference
/// program itself. They are grouped by the reason. `key=value` contains the value that requests the existing behaviour;
/// `prefix.*` stands for all keys with this prefix.
const VOCABULARY: Vocabulary = Vocabulary(&[
    (
        "a record is one value of fieldcount x fieldlength bytes",
        "fieldlengthdistribution=constant fieldlengthhistogram fieldnameprefix=field minfieldlength \
         readallfieldsbyname=false",
    ),
    ("a read returns the whole value", "readallfields=true"),
    ("an update replaces the whole value", "writeallfields=true"),
    (
        "there are no scans in a hashtable",
        "maxscanlength minscanlength scanlengthdistribution",
    ),
    (
        "the client of the hashtable decides whether an operation is retried",
        "core_workload_insertion_retry_interval core_workload_insertion_retry_limit=0",
    ),
    (
        "results are printed, and written as JSON by --json FILE",
        "exporter exportfile",
    ),
    (
        "latencies are always recorded in histograms of three digits",
        "hdrhistogram.* histogram.buckets latencytrackederrors measurement.* \
         measurementtype=hdrhistogram reportlatencyforeacherror timeseries.granularity",
    ),
    (
        "progress is shown on a terminal",
        "label status status.interval",
    ),
    (
        "operations go to the table of the cluster that is started",
        "basicdb.* db",
    ),
    ("there is one table", "table=usertable"),
    ("keys are 16 bytes in binary, not text", "zeropadding=1"),
]);

/// A spec, and remarks on its settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Parsed {
    /// The workload.
    pub spec: WorkloadSpec,
    /// Warnings and notes, in the order of the keys.
    pub remarks: Vec<Remark>,
}

impl WorkloadSpec {
    /// Checks settings, and fills in the defaults of the reference client.
    ///
    /// # Errors
    /// The first invalid setting.
    pub fn from_properties(name: &str, properties: &Properties) -> Result<Parsed, SpecError> {
        let reader = Reader::new(properties);
        let mut remarks = Vec::new();

        let (record_count, insert_start, insert_count) = records(&reader)?;
        let mix = mix(&reader, &mut remarks)?;
        let distribution = distribution(&reader)?;
        reader.one_of("insertorder", &["hashed", "ordered"])?;
        reader.one_of("dotransactions", &["true"])?;
        core_workload(&reader)?;
        let spec = WorkloadSpec {
            name: name.to_owned(),
            record_count,
            operation_count: reader.count("operationcount")?.unwrap_or(0),
            insert_start,
            insert_count,
            mix,
            distribution,
            value_bytes: value_bytes(&reader)?,
            data_integrity: reader.one_of("dataintegrity", &["false", "true"])? == Some(1),
            hints: DriverHints {
                threads: reader.positive("threadcount")?,
                // As in the reference client, 0 means no bound.
                target_ops_per_s: reader.count("target")?.filter(|count| *count > 0),
                max_execution_s: reader.count("maxexecutiontime")?.filter(|count| *count > 0),
            },
        };
        remarks.extend(reader.remarks(VOCABULARY, |key, value| {
            reason_within_spec(key, value, &spec)
        }));
        Ok(Parsed { spec, remarks })
    }
}

/// Checks `workload`, the class of the reference client. All workloads of this library are its core workload.
fn core_workload(reader: &Reader<'_>) -> Result<(), SpecError> {
    match reader.get("workload") {
        Some(setting) if !setting.value.ends_with("CoreWorkload") => {
            let wanted = "site.ycsb.workloads.CoreWorkload, the only supported class";
            Err(PropertyError::bad_value("workload", setting, wanted).into())
        }
        _ => Ok(()),
    }
}

/// Returns `recordcount`, `insertstart` and `insertcount`.
fn records(reader: &Reader<'_>) -> Result<(u64, u64, u64), SpecError> {
    let is_valid = |count: &u64| (1..MAX_RECORDS).contains(count);
    let records = reader.number("recordcount", COUNT_OF_RECORDS, is_valid)?;
    let records = records.ok_or_else(|| {
        let advice =
            "set it to the number of records of the table, for example -p recordcount=1000000";
        SpecError::Invalid(format!("recordcount is not set; {advice}"))
    })?;
    let start = reader.count("insertstart")?.unwrap_or(0);
    let count = reader.positive("insertcount")?;
    let count = count.unwrap_or_else(|| records.saturating_sub(start));
    match start.checked_add(count) {
        Some(end) if end <= records && count > 0 => Ok((records, start, count)),
        _ => Err(SpecError::Invalid(format!(
            "insertstart {start} + insertcount {count} is more than recordcount {records}, or leaves no \
             record to load; recordcount is the size of the whole table, of which this client loads a part"
        ))),
    }
}

/// Accepted values of `recordcount`. The reference client interprets 0 as the largest possible number, which is never
/// intended.
const COUNT_OF_RECORDS: &str = "a whole number from 1 to 2147483647 (2^31 - 1)";

/// Returns the shares of the operations.
///
/// If no proportion is set, the defaults of the reference client apply: 95 % reads and 5 % updates. If one is set, the
/// others count as 0, so that `readproportion=1` means only reads.
fn mix(reader: &Reader<'_>, remarks: &mut Vec<Remark>) -> Result<OperationMix, SpecError> {
    let mut shares = [0.0; PROPORTIONS.len()];
    let mut parts = Vec::new();
    for (share, key) in shares.iter_mut().zip(PROPORTIONS) {
        if let Some(setting) = reader.get(key) {
            *share = reader.fraction(key)?.unwrap_or(0.0);
            parts.push(format!("{key} {} at {}", setting.value, setting.origin));
        }
    }
    let [mut read, mut update, insert, scan, read_modify_write] = shares;
    if parts.is_empty() {
        (read, update) = (0.95, 0.05);
    }
    if scan > 0.0 {
        let setting = reader.get("scanproportion");
        let place = setting.map_or_else(String::new, |it| format!(" ({})", it.origin));
        let asked = format!("scanproportion = {scan}{place}");
        return Err(SpecError::needs_ordered_index(&asked));
    }
    let sum = read + update + insert + read_modify_write;
    if sum <= 0.0 || sum > 1.0 + SUM_TOLERANCE {
        return Err(SpecError::Invalid(format!(
            "the proportions add up to {} ({}); they have to add up to 1",
            rounded(sum),
            parts.join(", ")
        )));
    }
    if sum < 1.0 - SUM_TOLERANCE {
        let sum = rounded(sum);
        remarks.push(Remark {
            is_warning: true,
            text: format!("the proportions add up to {sum} and are scaled to 1"),
        });
    }
    Ok(OperationMix {
        read: read / sum,
        update: update / sum,
        insert: insert / sum,
        read_modify_write: read_modify_write / sum,
    })
}

/// Returns a sum without the rounding errors of binary fractions: 1.1 instead of 1.1000000000000001.
fn rounded(sum: f64) -> String {
    ((sum * 1e9).round() / 1e9).to_string()
}

fn distribution(reader: &Reader<'_>) -> Result<Distribution, SpecError> {
    let wanted = "a number from 0 to below 1; the method of Gray et al. supports no others";
    let theta = reader
        .number("zipfianconstant", wanted, |theta: &f64| {
            (0.0..1.0).contains(theta)
        })?
        .unwrap_or(ZIPFIAN_CONSTANT);
    let hotspot = Distribution::Hotspot {
        data_fraction: reader.fraction("hotspotdatafraction")?.unwrap_or(0.2),
        operation_fraction: reader.fraction("hotspotopnfraction")?.unwrap_or(0.8),
    };
    let percentile = reader.number(
        "exponential.percentile",
        "a number between 0 and 100, such as 95",
        |percent: &f64| *percent > 0.0 && *percent < 100.0,
    )?;
    let fraction = reader.number(
        "exponential.frac",
        "a positive number, such as 0.857",
        |part: &f64| *part > 0.0 && part.is_finite(),
    )?;
    let exponential = Distribution::Exponential {
        percentile: percentile.unwrap_or(95.0),
        fraction: fraction.unwrap_or(0.857_142_857_1),
    };
    let Some(setting) = reader.get("requestdistribution") else {
        return Ok(Distribution::Uniform);
    };
    match setting.value.to_ascii_lowercase().as_str() {
        "uniform" => Ok(Distribution::Uniform),
        "zipfian" | "zipfian-scrambled" => Ok(Distribution::ZipfianScrambled { theta }),
        "zipfian-plain" => Ok(Distribution::ZipfianPlain { theta }),
        "latest" => Ok(Distribution::Latest { theta }),
        "hotspot" => Ok(hotspot),
        "exponential" => Ok(exponential),
        "sequential" => Ok(Distribution::Sequential),
        _ => Err(SpecError::Invalid(format!(
            "requestdistribution = '{}' ({}) is unknown; the distributions are {}",
            setting.value,
            setting.origin,
            Distribution::NAMES.join(", ")
        ))),
    }
}

fn value_bytes(reader: &Reader<'_>) -> Result<usize, SpecError> {
    let field_count = reader.count("fieldcount")?.unwrap_or(10);
    let field_length = reader.count("fieldlength")?.unwrap_or(100);
    let bytes = field_count.checked_mul(field_length);
    let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok());
    let bytes = bytes.filter(|bytes| (1..=MAX_VALUE_BYTES).contains(bytes));
    bytes.ok_or_else(|| {
        SpecError::Invalid(format!(
            "fieldcount {field_count} x fieldlength {field_length} gives a value outside 1 to \
             {MAX_VALUE_BYTES} bytes; a record is one value of that length here"
        ))
    })
}

/// Returns the reason why a supported key has no effect in this workload, if that is so.
fn reason_within_spec(key: &str, value: &str, spec: &WorkloadSpec) -> Option<String> {
    let distribution = &spec.distribution;
    let matters = match key {
        "zipfianconstant" => matches!(
            distribution,
            Distribution::ZipfianScrambled { .. }
                | Distribution::ZipfianPlain { .. }
                | Distribution::Latest { .. }
        ),
        "hotspotdatafraction" | "hotspotopnfraction" => {
            matches!(distribution, Distribution::Hotspot { .. })
        }
        "exponential.frac" | "exponential.percentile" => {
            matches!(distribution, Distribution::Exponential { .. })
        }
        "insertorder" if value.eq_ignore_ascii_case("ordered") => {
            return Some("the table places records by the hash of their keys, so the order of the keys does not matter".to_owned());
        }
        _ => true,
    };
    (!matters).then(|| format!("requestdistribution is {}", distribution.name()))
}
