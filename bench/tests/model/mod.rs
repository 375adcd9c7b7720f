//! A store of rows in a map, for transactions that run one after the other, and a statistical test of shares.

use std::collections::BTreeMap;

use farm_bench::oltp::{Decision, RowBytes, RowName, Step, StepError, Write};

/// Rows by name.
#[derive(Default)]
pub(crate) struct Store(pub(crate) BTreeMap<RowName, RowBytes>);

impl Store {
    /// Reads the rows that a transaction requests, until it returns its decision.
    pub(crate) fn decide(
        &self,
        step: impl Fn(&[Option<&[u8]>]) -> Result<Step, StepError>,
    ) -> Result<Decision, StepError> {
        let mut rows: Vec<Option<&[u8]>> = Vec::new();
        loop {
            match step(&rows)? {
                Step::Read(names) => {
                    assert!(!names.is_empty());
                    rows.extend(names.iter().map(|name| self.0.get(name).map(|row| &**row)));
                }
                Step::End(decision) => return Ok(decision),
            }
        }
    }

    /// Applies the writes of a decision.
    pub(crate) fn apply(&mut self, decision: &Decision) {
        for write in &decision.writes {
            match *write {
                Write::Insert(name, row) => assert_eq!(self.0.insert(name, row), None),
                Write::Update(name, row) => assert!(self.0.insert(name, row).is_some()),
                Write::Remove(name) => assert!(self.0.remove(&name).is_some()),
            }
        }
    }
}

/// Compares counts with expected percentages by a chi-square test that rejects true ones with a probability of 0.001.
pub(crate) fn assert_shares(counts: &[u64], percents: &[u8]) {
    // The 0.999 quantiles of 1 to 6 degrees of freedom.
    const QUANTILES: [f64; 6] = [10.83, 13.82, 16.27, 18.47, 20.52, 22.46];
    let total: u64 = counts.iter().sum();
    let statistic: f64 = counts
        .iter()
        .zip(percents)
        .map(|(count, percent)| {
            let expected = total as f64 * f64::from(*percent) / 100.0;
            (*count as f64 - expected).powi(2) / expected
        })
        .sum();
    let most = QUANTILES[counts.len() - 2];
    assert!(
        statistic < most,
        "chi-square {statistic}, above {most}: {counts:?}"
    );
}
