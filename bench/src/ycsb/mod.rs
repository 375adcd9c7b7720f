//! The YCSB core workloads, for a store of binary keys and one value per record.
//!
//! Everything but the driver is a function of its arguments: there are no clocks and no threads, and the only random
//! numbers are those of the generator that is passed in. In reading order:
//!
//! * [`crate::properties`] reads property files and `-p key=value`, and keeps the origin of each value for messages.
//! * [`spec`] converts them to a checked [`WorkloadSpec`]; workloads A, B, C, D and F are built in.
//! * [`operation`] chooses the kind of an operation, and [`generators`] choose its record.
//! * [`key`] and [`value`] are the bytes: a key identifies its record, and every word of a value depends on the
//!   write of which it is a part.
//! * [`inserts`] tracks which of the records inserted during the run are readable.
//! * [`stream`] combines all of them to the operations of one worker.
//! * [`driver`] performs them on a table, and [`report`] has the results.
//!
//! # Differences from the reference client
//!
//! * A record is one value of `fieldcount × fieldlength` bytes, not a map of fields. A read returns the whole value,
//!   and an update replaces it.
//! * Keys are the 16 bytes of [`key::key_bytes`], not text.
//! * There are no scans, and therefore no workload E.
//! * Inserts of the run phase are divided among the workers in advance.
//! * `latest` and `exponential` go back to the first record of this client (`insertstart`), and `latest` includes it;
//!   the reference client goes back to record 0 or 1.
//!
//! # Example
//!
//! ```
//! use std::sync::Arc;
//! use farm_bench::ycsb::{inserts::{InsertTracker, WorkerSpan}, spec, stream};
//! use farm_bench::ycsb::{OpKind, WorkloadSpec};
//!
//! let mut properties = spec::builtin('d')?;
//! properties.set_override("recordcount=1000")?;
//! let parsed = WorkloadSpec::from_properties("d", &properties)?;
//!
//! let span = WorkerSpan::single_process(4);
//! let tracker = Arc::new(InsertTracker::new(parsed.spec.record_count, span));
//! let mut rng = stream::worker_rng(42, 0);
//! let mut operations = stream::OpStream::new(&parsed.spec, tracker, 0);
//! let op = operations.next_op(&mut rng);
//! match op.kind {
//!     // … send it to the store; a record is readable once its insert is acknowledged.
//!     OpKind::Insert => operations.acknowledge(op.keynum),
//!     _ => assert!(op.keynum < 1000),
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod audit;
pub mod driver;
pub mod generators;
pub mod inserts;
pub mod key;
pub mod operation;
pub mod report;
pub mod spec;
pub mod stream;
pub mod value;

mod parse;

pub use operation::{OpKind, OperationMix};
pub use parse::Parsed;
pub use spec::WorkloadSpec;
pub use stream::{Op, OpStream};
