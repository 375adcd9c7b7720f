//! TATP (also TM1), the benchmark of a subscriber database for telecommunication, as a model without a store
//! (`WORKLOADS.md` §3). It has four tables and an index, and seven transactions of one to four rows.
//!
//! In reading order:
//!
//! * [`row`]: the rows, with the bytes of FaSST and FORD.
//! * [`names`]: tables and keys.
//! * [`population`]: the initial rows of a subscriber, a function of seed and `s_id`, so that each machine can create
//!   its own share.
//! * [`transaction`]: the transactions, and what each of them reads, decides and writes.
//! * [`options`]: the number of subscribers, their distribution, the mix.
//! * [`stream`]: transactions with random parameters.
//! * [`audit`]: the conditions on the rows of a subscriber at the end.
//!
//! Decisions where the sources differ:
//!
//! * Subscribers are `1..=P`, as in the public description; FaSST and FORD count from 0.
//! * Subscribers are drawn as in FaSST and FORD, plus 1. BenchBase and H-Store draw uniformly: [`Choice::Uniform`].
//! * An absent row is an outcome, not an error, and is reported separately. The official rate for `GET_NEW_DESTINATION`
//!   (23.9 %) is not reached: the rate is 14.8 % initially, and 20.4 % after inserts and deletes have replaced the
//!   rows.
#![forbid(unsafe_code)]

pub mod audit;
pub mod names;
pub mod options;
pub mod population;
pub mod row;
pub mod stream;
pub mod transaction;

pub use options::{Choice, Options};
pub use population::{SubscriberRows, rows};
pub use row::{AccessInfo, CallForwarding, IndexEntry, SpecialFacility, SubNbr, Subscriber};
pub use stream::{Stream, SubscriberDraw};
pub use transaction::{Kind, Mix, Transaction};
