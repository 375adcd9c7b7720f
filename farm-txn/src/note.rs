//! The word that is stored beside a log when its records are freed.

use farm_core::mutants;

/// Bits of the low bound. The others are the last ones of the number of the configuration.
const LOW_BITS: u32 = 48;
const LOW: u64 = (1 << LOW_BITS) - 1;

/// Returns the word for a low bound of the log's writer in a configuration. The low bound of one that has begun more transactions than
/// the word can count does not advance.
pub(crate) fn encode(configuration: u64, low: u64) -> u64 {
    configuration << LOW_BITS | low.min(LOW)
}

/// Returns the configuration and the low bound of a word that was stored no later than in `newest`.
pub fn decode(word: u64, newest: u64) -> (u64, u64) {
    if mutants::is_on("low bound of an earlier configuration") {
        return (newest.saturating_sub(1), word & LOW);
    }
    let before = (newest << LOW_BITS).wrapping_sub(word & !LOW) >> LOW_BITS;
    (newest.saturating_sub(before), word & LOW)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn notes_are_decoded(configuration in 1u64..1 << 40, low: u64, later in 0u64..1 << 16) {
            let decoded = decode(encode(configuration, low), configuration + later);
            prop_assert_eq!(decoded, (configuration, low.min(LOW)));
        }
    }

    #[test]
    fn a_log_without_a_note_has_no_low_bound() {
        assert_eq!(decode(0, 5).1, 0);
        assert_eq!(decode(0, 1 << 20).1, 0);
    }
}
