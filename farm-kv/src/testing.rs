//! A cluster for the tests of this package.

use farm_core::config::Config;
use farm_testing::TestCluster;

/// Starts machines of one worker each, with little memory, and with the layers of transactions and of tables.
pub(crate) fn cluster(name: &str, machines: u16) -> TestCluster {
    TestCluster::start(name, Config::tiny_for(machines, 1), |worker| {
        farm_txn::attach(worker);
        crate::attach(worker);
    })
}
