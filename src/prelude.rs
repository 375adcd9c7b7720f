//! The names that most programs use.

pub use bytemuck::{Pod, Zeroable};
pub use farm_core::alloc::{SizeClass, class_for_payload};
pub use farm_core::config::Config;
pub use farm_core::ids::{Address, MachineId, WorkerId, WorkerRef};
pub use farm_core::machine::{Machine, MachineError, start_all};
pub use farm_core::mem::Ptr;
pub use farm_core::messaging::{CallError, MessageId, ReplyCont, Request};
pub use farm_core::object::{FatPointer, Image, Incarnation};
pub use farm_core::worker::{Cont, Context, ReadResult, Worker};
pub use farm_graph::tasks as graph;
pub use farm_kv as kv;
pub use farm_kv::blocking;
pub use farm_kv::config::TableConfig;
pub use farm_kv::shard::Changed;
pub use farm_kv::tasks as table;
pub use farm_kv::{Change, ChangeCont, GetCont, KvError, TableId, TableSpec};
pub use farm_txn::arrays::Objects;
pub use farm_txn::tasks::{Handle, Transaction, block_on, spawn};
pub use farm_txn::{
    Abort, BackoffConfig, ObjectId, TxError, TxHandle, TxLimits, api as txn, retry,
};

pub use crate::{
    Access, Cluster, Error, Farm, Graph, Key, Kind, LocalFarm, Promise, Sequence, Table, Tx, Value,
    layers,
};
