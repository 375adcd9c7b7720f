//! Recovery of transactions from the records that logs keep (`FaRM'15 §5.3`).
//!
//! A transaction that commits writes LOCK at the primaries of the regions that it writes, then COMMIT-BACKUP at all their backups, then
//! COMMIT-PRIMARY at the primaries. Whoever finds only these records decides as its coordinator may have done:
//!
//! 1. Each region that the transaction wrote [votes](Vote), by the [evidence](Evidence) of all machines that have the whole region.
//! 2. The votes of all regions make the [decision](Decision). A transaction that may have been reported gets the same decision whichever
//!    of the machines are left, as long as each region is left on one of them.
//!
//! [`Drain`] gathers what the logs of a machine say, and [`Recovery`] is the machine's part in recovery, as a value (docs/decisions/0038).
//! [`replica`] is what its steps do to objects, and `serve` runs it on a machine. [`Findings`] are the same rules for one who sees the
//! logs of all machines at once, with which the simulator compares.

pub(crate) mod drained;
mod evidence;
mod findings;
pub(crate) mod journal;
mod machine;
pub mod message;
pub mod replica;
pub(crate) mod serve;
#[cfg(test)]
mod tests;
mod undecided;
mod votes;

pub use evidence::Evidence;
pub use findings::{Findings, Found};
pub use machine::{Recovery, Roles, Unexpected};
pub(crate) use serve::Recovering;
pub use undecided::{Body, Coordinator, Drain, EndedHere, InRegion, Known, LowBounds, Undecided};
pub use votes::{Decision, Vote};
