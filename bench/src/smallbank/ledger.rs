//! The expected sum of all money at the end (`WORKLOADS.md` §4.4).

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::oltp::{Decision, Outcome};

/// The changes of the sum of all money by committed transactions. Each worker has a ledger. The merged ledgers give the
/// expected sum of the balances of all accounts.
///
/// ```
/// use farm_bench::smallbank::{Ledger, Options};
///
/// let ledger = Ledger::default();
/// let options = Options::default();
/// let sum = 2 * 100_000 * i128::from(options.initial_cents); // Of all rows, read at the end.
/// assert!(ledger.totals(options.initial_total_cents()).contains(&sum));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    /// Change by transactions that are known to have committed.
    #[serde(with = "as_text")]
    known_cents: i128,
    /// Sum of the negative changes by transactions whose outcome is unknown.
    #[serde(with = "as_text")]
    perhaps_out_cents: i128,
    /// Sum of the positive changes by transactions whose outcome is unknown.
    #[serde(with = "as_text")]
    perhaps_in_cents: i128,
}

impl Ledger {
    /// Records a transaction that is known to have committed. Aborted transactions are not recorded.
    pub fn committed(&mut self, decision: &Decision) {
        if decision.outcome == Outcome::Committed {
            self.known_cents += i128::from(decision.delta_cents);
        }
    }

    /// Records a transaction whose outcome is unknown, because a machine was lost during the commit.
    pub fn unknown(&mut self, decision: &Decision) {
        let delta = i128::from(decision.delta_cents);
        self.perhaps_out_cents += delta.min(0);
        self.perhaps_in_cents += delta.max(0);
    }

    /// Adds the ledger of another worker.
    pub fn merge(&mut self, other: &Self) {
        self.known_cents += other.known_cents;
        self.perhaps_out_cents += other.perhaps_out_cents;
        self.perhaps_in_cents += other.perhaps_in_cents;
    }

    /// Returns the possible sums of all money, in cents: one number if every outcome is known.
    pub fn totals(&self, initial_total_cents: i128) -> RangeInclusive<i128> {
        let known = initial_total_cents + self.known_cents;
        known + self.perhaps_out_cents..=known + self.perhaps_in_cents
    }
}

/// Cents as decimal text: some readers of JSON do not support numbers of 128 bits.
pub(crate) mod as_text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(cents: &i128, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(cents)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<i128, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_outcomes_widen_the_range() {
        let of = |delta_cents| Decision {
            delta_cents,
            ..Decision::commit([])
        };
        let mut ledger = Ledger::default();
        ledger.committed(&of(130));
        ledger.committed(&Decision::none(Outcome::Declined));
        assert_eq!(ledger.totals(1_000), 1_130..=1_130);
        let mut other = Ledger::default();
        other.committed(&of(-500));
        other.unknown(&of(-600));
        other.unknown(&of(2_020));
        ledger.merge(&other);
        assert_eq!(ledger.totals(1_000), 30..=2_650);
        let text = serde_json::to_string(&ledger).unwrap();
        assert_eq!(serde_json::from_str::<Ledger>(&text).unwrap(), ledger);
    }
}
