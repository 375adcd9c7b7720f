//! Clusters with a graph of LinkBench.

use farm_bench::linkbench::loaded::{self, NODE_TYPE};
use farm_core::config::Config;
use farm_graph::{GraphSpec, NodeType, Schema, open_all};
use farm_kv::TableSpec;
use farm_testing::TestCluster;

/// Entries of the cache of list heads: more than the lists of any test.
pub(crate) const CACHED_HEADS: usize = 4096;

/// A type of nodes besides that of LinkBench.
pub(crate) const OTHER_TYPE: u32 = 2049;

/// Starts machines of one worker each, with an open graph of two types of links.
pub(crate) fn cluster(name: &str, machines: u16) -> TestCluster {
    let mut config = Config::tiny_for(machines, 1);
    config.memory.per_machine_bytes = 64 << 20;
    config.rings.log_bytes = 1 << 20;
    config.rings.ring_bytes = 64 << 10;
    config.rings.max_message_bytes = 4096;
    let cluster = TestCluster::start(name, config, |worker| {
        farm_txn::attach(worker);
        farm_kv::attach(worker);
        farm_graph::attach(worker);
    });
    let node = |id: u32| NodeType {
        id,
        name: format!("node {id}"),
        lists: 2,
    };
    let links = (0..2).map(|number| {
        let schema = loaded::schema(2);
        let link = schema.assoc(loaded::link_type(number));
        link.expect("the schema has two types of links").clone()
    });
    let schema = Schema::new(vec![node(NODE_TYPE), node(OTHER_TYPE)], links.collect());
    let spec = GraphSpec {
        schema: schema.expect("a valid schema"),
        ids: TableSpec {
            id: 9,
            neighbourhood: 4,
            key_bytes: farm_kv::KEY_BYTES,
            value_bytes: farm_graph::ID_VALUE_BYTES,
            shards: u32::from(machines) * 2,
            buckets: 256,
        },
        page_bytes: 2048,
        cached_heads: CACHED_HEADS,
    };
    open_all(&cluster.machines, &spec).expect("the graph can be opened");
    cluster
}

/// Runs an operation in a transaction on a machine until it commits.
macro_rules! transact {
    ($cluster:expr, $machine:expr, $body:expr) => {
        farm_txn::block_on(
            &$cluster.machines[$machine],
            0,
            async move |farm: farm_txn::Handle| farm.transact($body).await,
        )
        .expect("the machine runs")
        .expect("the operation succeeds")
    };
}
pub(crate) use transact;
