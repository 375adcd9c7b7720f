//! The property names of YCSB, to distinguish a misspelt name from one without an effect here.

/// Keys that set a part of the spec.
const USED: &[&str] = &[
    "dataintegrity",
    "dotransactions",
    "exponential.frac",
    "exponential.percentile",
    "fieldcount",
    "fieldlength",
    "hotspotdatafraction",
    "hotspotopnfraction",
    "insertcount",
    "insertorder",
    "insertproportion",
    "insertstart",
    "maxexecutiontime",
    "operationcount",
    "readmodifywriteproportion",
    "readproportion",
    "recordcount",
    "requestdistribution",
    "scanproportion",
    "target",
    "threadcount",
    "updateproportion",
    "workload",
    "zipfianconstant",
];

/// A key without an effect here.
struct Idle {
    /// The key.
    key: &'static str,
    /// Value that requests the existing behaviour.
    harmless: Option<&'static str>,
    /// Why the key has no effect.
    reason: &'static str,
}

const fn idle(key: &'static str, harmless: Option<&'static str>, reason: &'static str) -> Idle {
    Idle {
        key,
        harmless,
        reason,
    }
}

const ONE_VALUE: &str = "a record is one value of fieldcount x fieldlength bytes";
const NO_SCANS: &str = "there are no scans in a hashtable";
const NO_RETRY: &str = "the store's client decides about retries";
const RESULTS: &str = "results are printed, and written as JSON by --json FILE";
const LATENCIES: &str = "latencies are always recorded in histograms of three digits";
const PROGRESS: &str = "progress is shown on a terminal";

/// Keys that have no meaning for one value under a binary key, or that concern the reference program itself.
const IDLE: &[Idle] = &[
    idle("core_workload_insertion_retry_interval", None, NO_RETRY),
    idle("core_workload_insertion_retry_limit", Some("0"), NO_RETRY),
    idle(
        "db",
        None,
        "operations go to the table of the cluster that is started",
    ),
    idle("exporter", None, RESULTS),
    idle("exportfile", None, RESULTS),
    idle("fieldlengthdistribution", Some("constant"), ONE_VALUE),
    idle("fieldlengthhistogram", None, ONE_VALUE),
    idle("fieldnameprefix", Some("field"), ONE_VALUE),
    idle("histogram.buckets", None, LATENCIES),
    idle("label", None, PROGRESS),
    idle("latencytrackederrors", None, LATENCIES),
    idle("maxscanlength", None, NO_SCANS),
    idle("measurementtype", Some("hdrhistogram"), LATENCIES),
    idle("minfieldlength", None, ONE_VALUE),
    idle("minscanlength", None, NO_SCANS),
    idle(
        "readallfields",
        Some("true"),
        "a read returns the whole value",
    ),
    idle("readallfieldsbyname", Some("false"), ONE_VALUE),
    idle("reportlatencyforeacherror", None, LATENCIES),
    idle("scanlengthdistribution", None, NO_SCANS),
    idle("status", None, PROGRESS),
    idle("status.interval", None, PROGRESS),
    idle("table", Some("usertable"), "there is one table"),
    idle("timeseries.granularity", None, LATENCIES),
    idle(
        "writeallfields",
        Some("true"),
        "an update replaces the whole value",
    ),
    idle(
        "zeropadding",
        Some("1"),
        "keys are 16 bytes in binary, not text",
    ),
];

/// Prefixes of keys without an effect here, with the reason.
const IDLE_PREFIXES: &[(&str, &str)] = &[
    (
        "basicdb.",
        "operations go to the table of the cluster that is started",
    ),
    ("hdrhistogram.", LATENCIES),
    ("measurement.", LATENCIES),
];

/// Effect of a key.
pub(super) enum Meaning {
    /// The key sets a part of the spec.
    Used,
    /// The key has no effect; this is worth a remark unless the value requests the existing behaviour.
    Idle {
        /// Value that requests the existing behaviour.
        harmless: Option<&'static str>,
        /// Why the key has no effect.
        reason: &'static str,
    },
    /// YCSB does not have the key.
    Unknown,
}

/// Returns the effect of `key`.
pub(super) fn meaning(key: &str) -> Meaning {
    if USED.contains(&key) {
        return Meaning::Used;
    }
    if let Some(idle) = IDLE.iter().find(|idle| idle.key == key) {
        return Meaning::Idle {
            harmless: idle.harmless,
            reason: idle.reason,
        };
    }
    let prefixed = IDLE_PREFIXES
        .iter()
        .find(|(prefix, _)| key.starts_with(prefix));
    prefixed.map_or(Meaning::Unknown, |(_, reason)| Meaning::Idle {
        harmless: None,
        reason,
    })
}

/// Returns the known key that is most similar to `key`, if it is similar enough.
pub(super) fn suggestion(key: &str) -> Option<&'static str> {
    let key = key.to_ascii_lowercase();
    // A longer key is not a typing error, and the distance table grows with it.
    if key.len() > 64 {
        return None;
    }
    let allowed = 1 + key.len() / 6;
    USED.iter()
        .copied()
        .chain(IDLE.iter().map(|idle| idle.key))
        .map(|known| {
            let distance = strsim::osa_distance(&key, known);
            // If several keys have the same distance, prefer one with the same first letter.
            (
                distance,
                key.as_bytes().first() != known.as_bytes().first(),
                known,
            )
        })
        .min()
        .filter(|(distance, ..)| *distance <= allowed)
        .map(|(.., known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_errors_get_a_suggestion_and_foreign_keys_do_not() {
        for (written, meant) in [
            ("recordcuont", Some("recordcount")),
            ("recordCount", Some("recordcount")),
            ("record_count", Some("recordcount")),
            ("readpropotion", Some("readproportion")),
            ("tabel", Some("table")),
            ("redis.host", None),
            ("x", None),
            ("", None),
        ] {
            let found = suggestion(written);
            assert_eq!(found, meant, "for '{written}'");
        }
    }
}
