//! Clusters with a graph of TAOBench.

use farm_bench::taobench::edges;
use farm_core::config::Config;
use farm_graph::{GraphSpec, open_all};
use farm_kv::TableSpec;
use farm_testing::TestCluster;

/// Starts machines of one worker each, with the default limits of records and messages, and an open graph.
pub(crate) fn cluster(name: &str, machines: u16) -> TestCluster {
    let mut config = Config::default();
    config.resize_machines(machines);
    config.memory.region_bytes = 16 << 20;
    config.memory.per_machine_bytes = 128 << 20;
    config.worker.operations_in_flight = 16;
    let cluster = TestCluster::start(name, config, |worker| {
        farm_txn::attach(worker);
        farm_kv::attach(worker);
        farm_graph::attach(worker);
    });
    let spec = GraphSpec {
        schema: edges::schema(),
        ids: TableSpec {
            id: 9,
            neighbourhood: 6,
            key_bytes: farm_kv::KEY_BYTES,
            value_bytes: farm_graph::ID_VALUE_BYTES,
            shards: u32::from(machines) * 2,
            buckets: 4096,
        },
        page_bytes: 8192,
        cached_heads: 4096,
    };
    open_all(&cluster.machines, &spec).expect("the graph can be opened");
    cluster
}
