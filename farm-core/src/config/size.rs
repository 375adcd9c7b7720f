//! Sizes as written by users: `"256MiB"`, or a plain number of bytes.

use crate::limits::{GIB, KIB, MIB};

const TIB: u64 = 1 << 40;
const UNITS: [(&str, u64); 5] = [
    ("TiB", TIB),
    ("GiB", GIB),
    ("MiB", MIB),
    ("KiB", KIB),
    ("B", 1),
];

/// Parses a size: a number, whole or with a decimal point, and a unit B, KiB, MiB, GiB or TiB.
/// Without a unit, the number is in bytes.
///
/// # Errors
///
/// The reason why `text` is not a size, as the end of a sentence that starts with the text.
///
/// ```
/// use farm_core::config::parse_size;
/// assert_eq!(parse_size("256MiB"), Ok(256 << 20));
/// assert_eq!(parse_size("1.5 GiB"), Ok(1536 << 20));
/// assert_eq!(parse_size("4096"), Ok(4096));
/// assert!(parse_size("256M").is_err());
/// ```
pub fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let split = text
        .find(|c: char| !(c.is_ascii_digit() || c == '_' || c == '.'))
        .unwrap_or(text.len());
    let (number, unit) = (&text[..split], text[split..].trim_start());
    let scale = match UNITS.iter().find(|(name, _)| *name == unit) {
        Some(&(_, scale)) => scale,
        None if unit.is_empty() => 1,
        None if number.is_empty() => return Err("is not a size".to_owned()),
        None => return Err(unknown_unit(unit)),
    };
    scaled(number, scale)
}

fn unknown_unit(unit: &str) -> String {
    let meant = UNITS.iter().map(|(name, _)| *name).find(|name| {
        let (name, unit) = (name.to_ascii_lowercase(), unit.to_ascii_lowercase());
        name == unit || name.replace("ib", "b") == unit || name.replace("ib", "") == unit
    });
    match meant {
        Some(meant) => format!("has the unknown unit {unit:?} (did you mean {meant}?)"),
        None => format!("has the unknown unit {unit:?} (units are B, KiB, MiB, GiB, TiB)"),
    }
}

/// Returns the decimal `number` times `scale`, if the product is a whole number of bytes.
fn scaled(number: &str, scale: u64) -> Result<u64, String> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let not_a_size = || "is not a size".to_owned();
    let too_large = || "is larger than 16 EiB".to_owned();
    if !whole.starts_with(|c: char| c.is_ascii_digit())
        || fraction.contains('.')
        || number.ends_with(['.', '_'])
    {
        return Err(not_a_size());
    }
    let mut digits: u128 = 0;
    for digit in whole.chars().chain(fraction.chars()).filter(|c| *c != '_') {
        let digit = digit.to_digit(10).ok_or_else(not_a_size)?;
        digits = digits.checked_mul(10).ok_or_else(too_large)? + u128::from(digit);
    }
    let places = fraction.chars().filter(|c| *c != '_').count() as u32;
    let divisor = 10u128.checked_pow(places).ok_or_else(not_a_size)?;
    let bytes = digits
        .checked_mul(u128::from(scale))
        .ok_or_else(too_large)?;
    if !bytes.is_multiple_of(divisor) {
        return Err("is not a whole number of bytes".to_owned());
    }
    u64::try_from(bytes / divisor).map_err(|_| too_large())
}

/// Formats `bytes` exactly, in the largest possible unit. [`parse_size`] returns `bytes` again.
///
/// ```
/// use farm_core::config::exact_size;
/// assert_eq!(exact_size(256 << 20), "256MiB");
/// assert_eq!(exact_size(1000), "1000B");
/// ```
pub fn exact_size(bytes: u64) -> String {
    let (unit, scale) = UNITS
        .into_iter()
        .find(|&(_, scale)| bytes >= scale && bytes.is_multiple_of(scale))
        .unwrap_or(("B", 1));
    format!("{}{unit}", bytes / scale)
}

/// Formats `bytes` with about three digits, for comparing sizes.
///
/// ```
/// use farm_core::config::rounded_size;
/// assert_eq!(rounded_size(24_684_084 << 10), "23.5 GiB");
/// assert_eq!(rounded_size(256 << 20), "256 MiB");
/// ```
pub fn rounded_size(bytes: u64) -> String {
    let (unit, scale) = UNITS
        .into_iter()
        .find(|&(_, scale)| bytes >= scale)
        .unwrap_or(("B", 1));
    let value = bytes as f64 / scale as f64;
    if value >= 100.0 || bytes.is_multiple_of(scale) {
        format!("{value:.0} {unit}")
    } else {
        format!("{value:.1} {unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn invalid_sizes_report_a_reason() {
        for (text, why) in [
            ("", "is not a size"),
            ("MiB", "is not a size"),
            ("-1MiB", "is not a size"),
            ("1.2.3MiB", "is not a size"),
            ("1.MiB", "is not a size"),
            (".5MiB", "is not a size"),
            ("_", "is not a size"),
            ("0.3B", "is not a whole number of bytes"),
            ("256M", "did you mean MiB?"),
            ("256mb", "did you mean MiB?"),
            ("256mib", "did you mean MiB?"),
            ("3 parsecs", "units are B, KiB, MiB, GiB, TiB"),
            ("16777216TiB", "is larger than 16 EiB"),
            (
                "99999999999999999999999999999999999999999999TiB",
                "is larger than 16 EiB",
            ),
            (
                "0.0000000000000000000000000000000000000000001",
                "is not a size",
            ),
        ] {
            let said = parse_size(text).expect_err(text);
            assert!(said.contains(why), "{text:?}: {said}");
        }
    }

    #[test]
    fn sizes_may_be_grouped_and_spaced() {
        assert_eq!(parse_size(" 1_024 KiB "), Ok(1 << 20));
        assert_eq!(parse_size("0.5KiB"), Ok(512));
        assert_eq!(parse_size("0"), Ok(0));
    }

    proptest! {
        #[test]
        fn exact_sizes_read_back(bytes: u64) {
            prop_assert_eq!(parse_size(&exact_size(bytes)), Ok(bytes));
        }

        #[test]
        fn parsing_never_panics(text: String) {
            let _ = parse_size(&text);
        }
    }
}
