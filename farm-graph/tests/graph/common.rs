//! Clusters with a graph.

use farm_core::config::Config;
use farm_graph::{AssocType, GraphSpec, NodeType, Schema, open_all};
use farm_kv::TableSpec;
use farm_testing::TestCluster;

/// Types of associations: without an inverse; each other's inverses; its own inverse; at most one of a node.
pub(crate) const PLAIN: u32 = 1;
pub(crate) const PARENT: u32 = 2;
pub(crate) const CHILD: u32 = 3;
pub(crate) const FRIEND: u32 = 4;
pub(crate) const SPOUSE: u32 = 5;
/// The type of nodes.
pub(crate) const PERSON: u32 = 7;

pub(crate) fn schema() -> Schema {
    let assoc = |id, name: &str, inverse, unique| AssocType {
        id,
        name: name.to_owned(),
        inverse,
        unique,
    };
    let person = NodeType {
        id: PERSON,
        name: "person".to_owned(),
        lists: 2,
    };
    let assocs = vec![
        assoc(PLAIN, "plain", None, false),
        assoc(PARENT, "parent", Some(CHILD), false),
        assoc(CHILD, "child", Some(PARENT), false),
        assoc(FRIEND, "friend", Some(FRIEND), false),
        assoc(SPOUSE, "spouse", None, true),
    ];
    Schema::new(vec![person], assocs).unwrap()
}

pub(crate) fn spec(page_bytes: usize) -> GraphSpec {
    GraphSpec {
        schema: schema(),
        ids: TableSpec {
            id: 9,
            neighbourhood: 4,
            value_bytes: farm_graph::ID_VALUE_BYTES,
            shards: 4,
            buckets: 64,
        },
        page_bytes,
    }
}

/// Starts machines of one worker each, with an open graph.
pub(crate) fn cluster(name: &str, machines: u16, page_bytes: usize) -> TestCluster {
    let mut config = Config::tiny_for(machines, 1);
    // One transaction of a test writes many pages.
    config.rings.log_bytes = 1 << 20;
    let cluster = TestCluster::start(name, config, |worker| {
        farm_txn::attach(worker);
        farm_kv::attach(worker);
    });
    open_all(&cluster.machines, &spec(page_bytes)).unwrap();
    cluster
}
