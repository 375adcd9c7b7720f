//! A cluster and its transactions, for the tests of this package.

use std::sync::mpsc::Sender;

use farm_core::config::Config;
use farm_core::ids::Address;
use farm_core::worker::{Cont, Worker};
use farm_testing::TestCluster;
use farm_txn::{Tx, TxError};

use crate::edit::{Edit, EditError, Work};

/// Starts machines of one worker each, with the layers of transactions and of tables.
pub(crate) fn cluster(name: &str, machines: u16) -> TestCluster {
    start(name, Config::tiny_for(machines, 1))
}

/// Starts a machine with memory for a list of a million associations.
pub(crate) fn large_machine(name: &str) -> TestCluster {
    let mut config = Config::tiny_for(1, 1);
    config.memory.block_bytes = 1 << 20;
    (config.memory.region_bytes, config.memory.per_machine_bytes) = (64 << 20, 512 << 20);
    start(name, config)
}

fn start(name: &str, config: Config) -> TestCluster {
    TestCluster::start(name, config, |worker| {
        farm_txn::attach(worker);
        farm_kv::attach(worker);
    })
}

/// Makes an edit on objects of this machine, which succeeds.
pub(crate) fn complete<T>(
    worker: &mut Worker,
    tx: &mut Tx,
    work: &mut Work,
    near: Address,
    make: impl FnMut(&mut Edit<'_>) -> Result<T, EditError>,
) -> T {
    crate::complete::complete(worker, tx, work, near, make).unwrap()
}

struct Committed<T>(Sender<T>, T);

/// Runs `work` in a transaction of worker 0 of the first machine, and commits the transaction.
pub(crate) fn in_transaction<T: Send + 'static>(
    cluster: &TestCluster,
    work: impl FnOnce(&mut Worker, &mut Tx) -> T + Send + 'static,
) -> T {
    fn committed<T: Send + 'static>(worker: &mut Worker, (): (), result: Result<(), TxError>) {
        result.unwrap();
        let Committed(answer, made) = *worker.take_layer::<Committed<T>>();
        answer.send(made).unwrap();
    }
    let made = cluster.machines[0].ask(0, |worker, answer| {
        let mut tx = farm_txn::checkout(worker);
        let made = work(worker, &mut tx);
        worker.put_layer(Box::new(Committed(answer, made)));
        farm_txn::commit(worker, tx, Cont::new(committed::<T>, ()));
    });
    made.unwrap()
}
