//! Numbers, lines and tables of reports.

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

/// Formats a rate in millions, with about three digits.
pub(crate) fn millions(per_s: f64) -> String {
    significant(per_s / 1e6)
}

/// Formats a duration in microseconds, with about three digits.
pub(crate) fn micros(nanos: u64) -> String {
    significant(nanos as f64 / 1e3)
}

/// Formats a number with about three digits, without an exponent.
pub(crate) fn significant(number: f64) -> String {
    let digits = match number.abs() {
        n if n >= 100.0 => 0,
        n if n >= 10.0 => 1,
        n if n >= 1.0 => 2,
        _ => 3,
    };
    format!("{number:.digits$}")
}

/// Returns the first line of a table from the headings of its columns, divided by `|`.
pub(crate) fn headings(columns: &str) -> Vec<String> {
    columns.split('|').map(str::to_owned).collect()
}

/// Creates a line of a table from values that implement `Display`.
macro_rules! cells {
    ($($cell:expr),+) => { vec![$($cell.to_string()),+] };
}
pub(crate) use cells;

/// Formats lines of cells as a table. The first column is aligned to the left, the others to the right. Each column is
/// as wide as its widest cell, and has at least the first width of `least` or, if it is not the first one, the second.
pub fn table(lines: &[Vec<String>], least: [usize; 2]) -> String {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column));
        let widest = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
        widest.max(least[column.min(1)])
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for line in lines {
        for (column, (cell, &width)) in line.iter().zip(&widths).enumerate() {
            text += &match column {
                0 => format!("  {cell:<width$}"),
                _ => format!("  {cell:>width$}"),
            };
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_whatever_the_size() {
        let texts = [123_456.7, 12.345, 1.2345, 0.012_34].map(significant);
        assert_eq!(texts, ["123457", "12.3", "1.23", "0.012"]);
        assert_eq!(
            (millions(8_085_000.0), micros(1_234)),
            ("8.09".into(), "1.23".into())
        );
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let lines = [vec!["bytes", "µs"], vec!["8", "12.3"]];
        let lines = lines.map(|line| line.into_iter().map(String::from).collect());
        assert_eq!(table(&lines, [0; 2]), "  bytes    µs\n  8      12.3\n");
        let wide = "  bytes       µs\n  8         12.3\n";
        assert_eq!(table(&lines, [6, 6]), wide);
    }
}
