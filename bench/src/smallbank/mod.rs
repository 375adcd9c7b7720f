//! SmallBank, transactions between accounts of a bank, as a model without a store (`WORKLOADS.md`
//! §4), in the variant of the RDMA papers (FaSST, FORD, Smart, Motor): no table of names, savings and
//! checking accounts of 8 bytes.
//!
//! In reading order:
//!
//! * [`account`]: tables, keys and balances. Money is in whole cents, so that sums are exact.
//! * [`options`]: how many accounts, which are hot, the mix.
//! * [`stream`]: transactions with their parameters.
//! * [`transaction`]: what each reads, decides and writes, and what it adds to all the money there is.
//! * [`ledger`]: what all the money has to be at the end.
//!
//! Choices where the sources differ:
//!
//! * TransactSavings pays in, as FaSST and FORD have it; BenchBase withdraws: [`SavingsRule`].
//! * Amalgamate and WriteCheck are as the benchmark describes them. H-Store and BenchBase zero and
//!   charge the wrong accounts in them.
#![forbid(unsafe_code)]

pub mod account;
pub mod ledger;
pub mod options;
pub mod stream;
pub mod transaction;

pub use account::Balance;
pub use ledger::Ledger;
pub use options::{Mix, Options, SavingsRule};
pub use stream::Stream;
pub use transaction::{Kind, Transaction};
