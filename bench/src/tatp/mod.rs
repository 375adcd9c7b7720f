//! TATP (also TM1), the benchmark of a telecom's subscriber database, as a model without a store
//! (`WORKLOADS.md` §3). Four tables and an index, seven transactions of one to four rows.
//!
//! In reading order:
//!
//! * [`names`]: tables and keys.
//! * [`row`]: the bytes of rows, as FaSST and FORD have them.
//! * [`population`]: what a subscriber has at the beginning, by seed and `s_id` alone, so that
//!   each machine makes its own share.
//! * [`options`]: how many subscribers, how they are drawn, the mix.
//! * [`stream`]: transactions with their parameters.
//! * [`transaction`]: what each reads, decides and writes.
//! * [`audit`]: what must hold of a subscriber at the end.
//!
//! Choices where the sources differ:
//!
//! * Subscribers are `1..=P`, as the public description has them; FaSST and FORD count from 0.
//! * The draw of a subscriber is FaSST's and FORD's, plus 1. BenchBase and H-Store draw uniformly:
//!   [`Choice::Uniform`].
//! * A row that is not there is an outcome, not an error, and is reported apart. No official rate
//!   for `GET_NEW_DESTINATION` (23.9 %) is to be expected: it is 14.8 % at first and 20.4 % once
//!   inserts and deletes have made the rows their own.
#![forbid(unsafe_code)]

pub mod audit;
pub mod names;
pub mod options;
pub mod population;
pub mod row;
pub mod stream;
pub mod transaction;

pub use names::SubNbr;
pub use options::{Choice, Mix, Options};
pub use population::{SubscriberRows, rows};
pub use row::{AccessInfo, CallForwarding, IndexEntry, SpecialFacility, Subscriber};
pub use stream::{Stream, SubscriberDraw};
pub use transaction::{Kind, Transaction};
