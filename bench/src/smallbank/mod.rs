//! SmallBank, transactions between accounts of a bank, as a model without a store (`WORKLOADS.md` §4), in the variant
//! of the RDMA papers (FaSST, FORD, Smart, Motor): without a table of names, and with savings and checking accounts of
//! 8 bytes.
//!
//! In reading order:
//!
//! * [`account`]: tables, keys and balances. Money is in whole cents, so that sums are exact.
//! * [`transaction`]: the transactions, what each of them reads, decides and writes, and how it changes the sum of all
//!   money.
//! * [`options`]: the number of accounts, the hot accounts, the mix.
//! * [`stream`]: transactions with random accounts.
//! * [`ledger`]: the expected sum of all money at the end.
//!
//! Decisions where the sources differ:
//!
//! * TransactSavings deposits, as in FaSST and FORD; BenchBase withdraws: [`SavingsRule`].
//! * Amalgamate and WriteCheck follow the description of the benchmark. In H-Store and BenchBase they clear and charge
//!   the wrong accounts.
#![forbid(unsafe_code)]

pub mod account;
pub mod ledger;
pub mod options;
pub mod stream;
pub mod transaction;

pub use account::Balance;
pub use ledger::Ledger;
pub use options::Options;
pub use stream::Stream;
pub use transaction::{Kind, Mix, SavingsRule, Transaction};
