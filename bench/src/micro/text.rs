//! Numbers for tables.

/// Millions, to three digits or so.
pub(crate) fn millions(per_s: f64) -> String {
    significant(per_s / 1e6)
}

/// Microseconds.
pub(crate) fn micros(nanos: u64) -> String {
    significant(nanos as f64 / 1e3)
}

/// To three digits, without an exponent.
pub(crate) fn significant(number: f64) -> String {
    let digits = match number.abs() {
        n if n >= 100.0 => 0,
        n if n >= 10.0 => 1,
        n if n >= 1.0 => 2,
        _ => 3,
    };
    format!("{number:.digits$}")
}

/// Bytes, in the largest unit that is whole.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [(u32, &str); 3] = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    for (shift, unit) in UNITS {
        if count >= 1 << shift && count.trailing_zeros() >= shift {
            return format!("{} {unit}", count >> shift);
        }
    }
    format!("{count} B")
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
    fn sizes_are_whole_in_their_unit() {
        let texts = [16, 1024, 1536, 4 << 30, 3 << 20].map(bytes);
        assert_eq!(texts, ["16 B", "1 KiB", "1536 B", "4 GiB", "3 MiB"]);
    }
}
