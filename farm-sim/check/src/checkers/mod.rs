//! Judges of histories: whether what clients saw is what a correct platform may show.
//!
//! Read in this order: [`check`] runs everything that this project wrote itself; [`serial`] decides
//! whether transactions are strictly serializable, from the true versions that values carry;
//! [`linear`] does the same for the keys of a hashtable; [`append`] hands the transactions to a
//! checker written by others, so that no one judges his own work alone.
//!
//! The same history always gives the same verdict, to the letter.

pub mod append;
mod explain;
mod finding;
mod graph;
pub mod linear;
pub mod serial;
mod version;
mod versions;

use crate::history::{Answered, History, KeyOperation};

pub use finding::{Anomaly, Facts, Finding};

/// Most violations of a workload that a finding tells.
const MOST_VIOLATIONS: usize = 10;

/// Whether a correct platform may show this history: the workload saw no violation, transactions are
/// strictly serializable, operations on each key are linearizable.
///
/// # Errors
///
/// The first anomaly found.
pub fn check(history: &History) -> Result<Facts, Finding> {
    let violations = &history.violations;
    if !violations.is_empty() {
        let shown: Vec<&str> = violations
            .iter()
            .take(MOST_VIOLATIONS)
            .map(String::as_str)
            .collect();
        let text = format!("{} seen\n  {}", violations.len(), shown.join("\n  "));
        return Err(Finding::new(Anomaly::Violation, text));
    }
    let facts = serial::check(&history.transactions)?;
    let operations = linear::check(&history.operations)?;
    let changes = |operation: &&KeyOperation| {
        use Answered::{Inserted, Removed, Updated};
        matches!(operation.answered, Some(Inserted | Updated | Removed))
    };
    Ok(Facts {
        operations,
        changed: history.operations.iter().filter(changes).count(),
        ..facts
    })
}
