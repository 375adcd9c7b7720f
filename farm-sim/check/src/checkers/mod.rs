//! The checkers of histories: they decide whether a correct platform may produce a history.
//!
//! Read in this order: [`check`] runs all checkers of this project. [`serial`] decides whether transactions are
//! strictly serializable, from the true versions that values carry. [`linear`] does the same for the keys of a
//! hashtable, and [`store`] for the operations on a graph. [`append`] passes the transactions to an independent checker, so that the verdict does not depend on this
//! project's checkers alone.
//!
//! The same history always produces the same verdict and the same text. The exception is the text of [`append`], which
//! may depend on a time limit.

pub mod append;
mod explain;
mod finding;
mod graph;
pub mod linear;
pub mod serial;
pub mod store;
mod version;
mod versions;

use crate::history::{History, KeyOperation, KeyResult};

pub use finding::{Anomaly, Facts, Finding};

/// Maximum number of violations of a workload that a finding lists.
const MOST_VIOLATIONS: usize = 10;

/// Checks that a correct platform may produce this history: the workload detected no violation, transactions are
/// strictly serializable, the operations on each key are linearizable, and those on a graph are strictly serializable.
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
        let text = format!(
            "{} detected by the workload\n  {}",
            violations.len(),
            shown.join("\n  ")
        );
        return Err(Finding::new(Anomaly::Violation, text));
    }
    let facts = serial::check(&history.transactions)?;
    let operations = linear::check(&history.operations)?;
    let changes = |operation: &&KeyOperation| {
        use KeyResult::{Inserted, Removed, Updated};
        matches!(operation.result, Some(Inserted | Updated | Removed))
    };
    let graph = store::check(&history.graph)?;
    let changed = history.operations.iter().filter(changes).count();
    Ok(Facts {
        operations: operations + graph,
        changed: changed + history.graph.iter().filter(|it| it.is_change()).count(),
        ..facts
    })
}
