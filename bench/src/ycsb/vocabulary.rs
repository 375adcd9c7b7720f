//! The property names of YCSB, so that a misspelt one can be told from one that is
//! merely of no use here.

/// Keys that set something in the spec.
pub(super) const USED: &[&str] = &[
    "dataintegrity",
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
    "zipfianconstant",
];

/// Keys for the reference program's own machinery.
const MACHINERY: &[&str] = &[
    "db",
    "dotransactions",
    "exporter",
    "exportfile",
    "histogram.buckets",
    "label",
    "latencytrackederrors",
    "measurementtype",
    "reportlatencyforeacherror",
    "status",
    "status.interval",
    "table",
    "timeseries.granularity",
    "workload",
];

/// Beginnings of such keys.
const MACHINERY_PREFIXES: &[&str] = &["basicdb.", "hdrhistogram.", "measurement."];

/// A key that changes nothing here.
pub(super) struct Idle {
    /// The key.
    pub(super) key: &'static str,
    /// The value that asks for what happens anyway.
    pub(super) harmless: Option<&'static str>,
    /// Why it changes nothing.
    pub(super) reason: &'static str,
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

/// Keys of the workload itself that have no meaning for one value under a binary key.
pub(super) const IDLE: &[Idle] = &[
    idle("core_workload_insertion_retry_interval", None, NO_RETRY),
    idle("core_workload_insertion_retry_limit", Some("0"), NO_RETRY),
    idle("fieldlengthdistribution", Some("constant"), ONE_VALUE),
    idle("fieldlengthhistogram", None, ONE_VALUE),
    idle("fieldnameprefix", Some("field"), ONE_VALUE),
    idle("maxscanlength", None, NO_SCANS),
    idle("minfieldlength", None, ONE_VALUE),
    idle("minscanlength", None, NO_SCANS),
    idle(
        "readallfields",
        Some("true"),
        "a read returns the whole value",
    ),
    idle("readallfieldsbyname", Some("false"), ONE_VALUE),
    idle("scanlengthdistribution", None, NO_SCANS),
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

/// Whether `key` sets something, or is known to be for the reference program only.
pub(super) fn is_quiet(key: &str) -> bool {
    USED.contains(&key)
        || MACHINERY.contains(&key)
        || MACHINERY_PREFIXES
            .iter()
            .any(|prefix| key.starts_with(prefix))
}

/// The known key closest to `key`, if it is close enough to have been meant.
pub(super) fn suggestion(key: &str) -> Option<&'static str> {
    let key = key.to_ascii_lowercase();
    // Anything longer is no slip of the fingers, and the table grows with it.
    if key.len() > 64 {
        return None;
    }
    let allowed = 1 + key.len() / 6;
    USED.iter()
        .chain(MACHINERY)
        .copied()
        .chain(IDLE.iter().map(|idle| idle.key))
        .map(|known| {
            let distance = strsim::osa_distance(&key, known);
            // Of equally close keys, the one with the same first letter is meant.
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
    fn a_slip_is_recognized_and_a_stranger_is_not() {
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
