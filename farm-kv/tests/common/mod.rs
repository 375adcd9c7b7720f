//! A cluster with the layers of the hashtable.

use farm_core::config::Config;
use farm_testing::TestCluster;

/// Starts machines with the layers of transactions and of tables on every worker.
pub(crate) fn start(name: &str, config: Config) -> TestCluster {
    TestCluster::start(name, config, |worker| {
        farm_txn::attach(worker);
        farm_kv::attach(worker);
    })
}
