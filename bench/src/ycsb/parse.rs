//! The conversion of properties to a checked workload.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::str::FromStr;

use super::generators::ZIPFIAN_CONSTANT;
use super::operation::OperationMix;
use super::properties::{Properties, Setting};
use super::spec::{
    Distribution, DriverHints, MAX_RECORDS, MAX_VALUE_BYTES, Remark, SpecError, WorkloadSpec,
};
use super::vocabulary::{idle, suggestion};

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
        let reader = Reader {
            properties,
            used: RefCell::default(),
        };
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
        remark_on_settings(&reader, &spec, &mut remarks);
        Ok(Parsed { spec, remarks })
    }
}

/// Checks `workload`, the class of the reference client. All workloads of this library are its core workload.
fn core_workload(reader: &Reader<'_>) -> Result<(), SpecError> {
    match reader.get("workload") {
        Some(setting) if !setting.value.ends_with("CoreWorkload") => {
            let wanted = "site.ycsb.workloads.CoreWorkload, the only supported class";
            Err(SpecError::bad_value("workload", setting, wanted))
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

/// Adds remarks on unknown keys and on settings without an effect.
fn remark_on_settings(reader: &Reader<'_>, spec: &WorkloadSpec, remarks: &mut Vec<Remark>) {
    let used = reader.used.borrow();
    for (key, Setting { value, origin }) in reader.properties.iter() {
        let idle = idle(key);
        let reason = match &idle {
            _ if used.contains(key) => reason_within_spec(key, value, spec),
            Some(idle) => {
                let is = |harmless: &str| value.eq_ignore_ascii_case(harmless);
                (!idle.harmless.is_some_and(is)).then(|| idle.reason.to_owned())
            }
            None => {
                let mut text = format!("unknown property '{key}' ({origin})");
                if let Some(known) = suggestion(key, &used) {
                    text += &format!("; did you mean '{known}'?");
                }
                remarks.push(Remark {
                    is_warning: true,
                    text,
                });
                None
            }
        };
        remarks.extend(reason.map(|reason| Remark {
            is_warning: false,
            text: format!("{key}={value} ({origin}) has no effect: {reason}"),
        }));
    }
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

/// Typed access to settings, with errors that name the setting.
struct Reader<'a> {
    properties: &'a Properties,
    /// Keys that were read, whether they are set or not.
    used: RefCell<BTreeSet<&'static str>>,
}

impl<'a> Reader<'a> {
    /// Returns a setting, and records that its key has an effect.
    fn get(&self, key: &'static str) -> Option<&'a Setting> {
        self.used.borrow_mut().insert(key);
        self.properties.get(key)
    }

    /// Returns a number that `accepts` accepts; `wanted` describes the accepted range.
    fn number<T: FromStr>(
        &self,
        key: &'static str,
        wanted: &str,
        accepts: impl Fn(&T) -> bool,
    ) -> Result<Option<T>, SpecError> {
        let Some(setting) = self.get(key) else {
            return Ok(None);
        };
        match setting.value.parse::<T>().ok().filter(accepts) {
            Some(number) => Ok(Some(number)),
            None => Err(SpecError::bad_value(key, setting, wanted)),
        }
    }

    fn count(&self, key: &'static str) -> Result<Option<u64>, SpecError> {
        self.number(key, "a whole number from 0 on", |_: &u64| true)
    }

    fn fraction(&self, key: &'static str) -> Result<Option<f64>, SpecError> {
        self.number(key, "a number from 0 to 1, such as 0.5", |part: &f64| {
            (0.0..=1.0).contains(part)
        })
    }

    fn positive(&self, key: &'static str) -> Result<Option<u64>, SpecError> {
        self.number(key, "a whole number from 1 on", |count: &u64| *count > 0)
    }

    /// Returns the index in `words` of the setting, if it is set.
    fn one_of(&self, key: &'static str, words: &[&str]) -> Result<Option<usize>, SpecError> {
        let Some(setting) = self.get(key) else {
            return Ok(None);
        };
        let place = words
            .iter()
            .position(|word| setting.value.eq_ignore_ascii_case(word));
        match place {
            Some(place) => Ok(Some(place)),
            None => Err(SpecError::bad_value(key, setting, &words.join(" or "))),
        }
    }
}
