//! Checks of the JSON form of reports.

use serde_json::Value;

/// Checks that an object has exactly the fields `names`, in any order.
#[track_caller]
pub(crate) fn assert_fields<const N: usize>(object: &Value, mut names: [&str; N]) {
    let mut fields: Vec<&str> = object
        .as_object()
        .unwrap()
        .keys()
        .map(|key| &**key)
        .collect();
    fields.sort_unstable();
    names.sort_unstable();
    assert_eq!(fields, names);
}
