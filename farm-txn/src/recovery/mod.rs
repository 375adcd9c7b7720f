//! Recovery of transactions from the records that logs keep (`FaRM'15 §5.3`).
//!
//! A transaction that commits writes LOCK at the primaries of the regions that it writes, then COMMIT-BACKUP at all their backups, then
//! COMMIT-PRIMARY at the primaries. Whoever finds only these records decides as its coordinator may have done:
//!
//! 1. Each region that the transaction wrote [votes](Vote), by the [evidence](Evidence) of all machines that have the whole region.
//! 2. The votes of all regions make the [decision](Decision), which is the same whichever of the machines are left, as long as each
//!    region is left on one of them.
//!
//! [`Findings`] gathers what the records of logs say. Machines do not recover yet: the simulator uses these rules to check that the
//! memory of killed machines always has what a correct decision needs.

mod evidence;
mod findings;
mod votes;

pub use evidence::Evidence;
pub use findings::{Findings, Found};
pub use votes::{Decision, Vote};
