//! The names that most programs use.

use std::sync::Arc;

use farm_core::machine::Attach;

pub use farm_core::alloc::{SizeClass, class_for_payload};
pub use farm_core::config::Config;
pub use farm_core::ids::{Address, MachineId, WorkerId, WorkerRef};
pub use farm_core::machine::{Machine, MachineError, start_all};
pub use farm_core::messaging::{CallError, MessageId, ReplyCont, Request};
pub use farm_core::object::{FatPointer, Incarnation};
pub use farm_core::worker::{Cont, Worker};
pub use farm_graph::tasks as graph;
pub use farm_kv::blocking;
pub use farm_kv::config::TableConfig;
pub use farm_kv::shard::Changed;
pub use farm_kv::tasks as table;
pub use farm_kv::{Change, ChangeCont, GetCont, Key, KvError, TableId, TableSpec};
pub use farm_txn::arrays::Objects;
pub use farm_txn::tasks::{Handle, Transaction, block_on, spawn};
pub use farm_txn::{
    Abort, BackoffConfig, ObjectId, TxError, TxHandle, TxLimits, api as txn, retry,
};

/// Returns the function that attaches transactions, the hashtable and the graph store to a worker. [`start_all`] takes
/// this function.
pub fn layers() -> Attach {
    Arc::new(|worker: &mut Worker| {
        farm_txn::attach(worker);
        farm_kv::attach(worker);
        farm_graph::attach(worker);
    })
}
