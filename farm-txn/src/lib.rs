//! Transactions over objects of the shared address space (`FaRM'14 §3.2, §3.4`).
//!
//! A transaction runs on one worker, its coordinator. It reads objects, buffers what it writes, allocates and frees,
//! and then commits all of it or nothing. Committed transactions are strictly serializable; reads of a transaction that
//! has not committed may be mutually inconsistent, which the commit detects.
//!
//! There are three interfaces, over the same context:
//! - the functions of [`api`] take a handle and a continuation, as in `FaRM'14` figure 6. Applications use them. The
//!   objects may be on any machines.
//! - [`Tx`] is the context itself, from [`checkout`]: its reads and allocations return at once, for code that runs on
//!   the machine of its objects (message handlers of shipped operations). A read of an object of another machine
//!   returns the error [`TxError::Address`]. [`commit`](crate::commit()) calls a continuation.
//! - [`tasks`] are `async` functions on the worker's event loop, over the functions of [`api`].
//!
//! [`retry`] and [`Handle::transact`] run a transaction until it commits, and reduce its conflicts with other
//! transactions.
//!
//! Read in this order: [`api`] (the calls) → [`Tx`] (read and write sets) → `commit` (the protocol) → [`record`] (the
//! records in the logs).
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//! use farm_core::config::Config;
//! use farm_core::machine::Machine;
//! use farm_core::worker::{Cont, Worker};
//! use farm_txn::{ObjectId, TxError, TxHandle, api};
//!
//! // Begin, allocate, write, commit: each step is a continuation of the previous step.
//! fn allocated(w: &mut Worker, tx: u64, object: Result<ObjectId, TxError>) {
//!     let tx = TxHandle::from_context(tx);
//!     api::payload_mut(w, tx, object.unwrap()).unwrap()[..5].copy_from_slice(b"hello");
//!     api::commit(w, tx, Cont::new(committed, 0));
//! }
//! fn committed(w: &mut Worker, _: u64, outcome: Result<(), TxError>) {
//!     outcome.unwrap();
//!     w.take_layer::<std::sync::mpsc::Sender<()>>().send(()).unwrap();
//! }
//!
//! let mut config = Config::tiny_for(1, 1);
//! config.cluster.name = "doc-txn".into();
//! let machine = Machine::start(
//!     &config,
//!     config.machines[0].id,
//!     Arc::new(farm_txn::attach),
//!     Duration::from_secs(5),
//! )?;
//! let () = machine.ask(0, |w, done| {
//!     w.put_layer(Box::new(done));
//!     let tx = api::begin(w);
//!     api::alloc(w, tx, 5, None, Cont::new(allocated, tx.to_context()));
//! })?;
//! machine.stop()?;
//! # Ok::<_, farm_core::machine::MachineError>(())
//! ```
#![forbid(unsafe_code)]

pub mod api;
pub mod arrays;
mod attach;
mod backoff;
mod calls;
mod commit;
mod contexts;
mod counters;
mod error;
mod handle;
mod layer;
mod leave;
mod lent;
mod limits;
pub mod note;
mod object_run;
mod open;
pub mod record;
pub mod recovery;
mod regions;
mod remote;
mod replica;
mod results;
pub mod retry;
mod slots;
pub mod tasks;
mod tx;

pub use api::{commit_context as commit, validate_context as validate};
pub use attach::{attach, counters, left_over, lock_exclusively, set_limits};
#[doc(hidden)]
pub use attach::{most_overtaken, set_most_ahead};
pub use backoff::{Backoff, BackoffConfig};
pub use contexts::{checkin, checkout};
pub use counters::{AbortCounters, RecordCounters, TxCounters};
pub use error::{Abort, TxError};
pub use handle::TxHandle;
pub use limits::TxLimits;
pub use retry::RetryCounters;
pub use tasks::{Begun, Handle, Transaction, block_on, handle, spawn};
#[doc(hidden)]
#[cfg(debug_assertions)]
pub use tx::entries_looked_at;
pub use tx::{ObjectId, Tx};
