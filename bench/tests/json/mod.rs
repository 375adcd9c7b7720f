//! Checks of the JSON form of reports.

use serde_json::Value;

/// Compares the names of an object's fields, in any order, with those of a list.
#[track_caller]
pub(crate) fn assert_fields(object: &Value, names: &str) {
    let mut names: Vec<&str> = names.split_whitespace().collect();
    let fields = object.as_object().unwrap().keys();
    let mut fields: Vec<&str> = fields.map(String::as_str).collect();
    fields.sort_unstable();
    names.sort_unstable();
    assert_eq!(fields, names);
}

/// Checks that a text has lines, in any order.
#[track_caller]
pub(crate) fn assert_lines(text: &str, lines: &[&str]) {
    for line in lines {
        assert!(
            text.lines().any(|one| one == *line),
            "no {line:?} in\n{text}"
        );
    }
}

/// The fields of a report.
pub(crate) const REPORT: &str = "schema_version command started_at took_s commit processor cores host config runs \
                                 repeated uneven";
/// The fields of latencies.
pub(crate) const LATENCY: &str = "p50 p90 p99 p999 max sampled_1_in";
