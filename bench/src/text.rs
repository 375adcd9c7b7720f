//! Numbers in the tables of reports.

/// Returns the text that replaces a number that does not apply.
pub(crate) fn dash() -> String {
    "-".to_owned()
}

/// Returns a number with `places` decimal places, or a dash.
pub(crate) fn decimal(number: Option<f64>, places: usize) -> String {
    number.map_or_else(dash, |number| format!("{number:.places$}"))
}

/// Formats a rate as a whole number with commas between its thousands.
pub(crate) fn whole(rate: f64) -> String {
    grouped(rate.round() as u64)
}

/// Formats a share as a percentage with one decimal place.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Formats a number with commas between its thousands.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|group| std::str::from_utf8(group).unwrap_or_default())
        .collect();
    groups.join(",")
}
