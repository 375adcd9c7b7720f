//! Draws workloads whose size fits a simulated cluster.

use farm_check::workload::{GraphShape, Kind, Spec};
use rand::Rng;

use crate::cluster::ClusterLimits;

/// Approximate number of operations of the whole cluster.
const OPERATIONS: u64 = 200;
/// Bytes of the message of a change to the table, besides the value.
const CHANGE_BYTES: usize = 28;

/// Bytes that an object adds to a log record besides its payload, including the rounding up to its size class.
const OBJECT_BYTES: usize = 32 + 64;
/// Maximum number of bytes of an object that an entry of churn names.
const MOST_NAMED: usize = 640;

/// Maximum number of clients of a worker.
const MOST_CLIENTS: usize = 6;
/// Maximum number of clients of a worker in a run on a graph: each of them may change the same list, and the checker
/// tries the orders of concurrent changes.
const MOST_GRAPH_CLIENTS: usize = 2;
/// Least number of operations on a graph of the clients of one worker.
const GRAPH_OPERATIONS: u64 = 50;
/// Number of clients of a worker in a run that fills the logs.
const CROWD: usize = 16;

/// Returns a payload size such that one log record has room for four objects of one machine, or for an entry and the
/// two objects that it names.
fn most_payload(limits: &ClusterLimits) -> usize {
    (limits.max_log_writes() / 4 - OBJECT_BYTES).max(40)
}

/// Makes logs fill up: many concurrent transactions, each of which writes as much as it may.
pub(super) fn crowd_logs(spec: &mut Spec, limits: &ClusterLimits) {
    spec.clients = CROWD;
    spec.operations = operations_of_one(limits, spec.clients);
    spec.payload_bytes = most_payload(limits);
    (spec.read_only, spec.lock_free) = (0, 0);
}

/// Returns the number of operations of one client.
fn operations_of_one(limits: &ClusterLimits, clients: usize) -> u64 {
    OPERATIONS.div_ceil((limits.machines * limits.workers * clients) as u64)
}

/// Draws a workload for a cluster of these limits.
pub(super) fn drawn(rng: &mut impl Rng, kind: Kind, limits: &ClusterLimits) -> Spec {
    let clients = rng.random_range(1..=limits.operations.min(MOST_CLIENTS));
    let most_value = (limits.max_body_bytes() - CHANGE_BYTES).min(40);
    let most_payload = most_payload(limits);
    let most_named = (limits.max_log_writes() - most_payload) / 2 - OBJECT_BYTES;
    let most_named = most_named.clamp(40, MOST_NAMED);
    // The buckets that a transaction over rows writes must fit a record of the smallest log.
    let most = if kind.has_rows() { 2 } else { 5 };
    let neighbourhood = [2, 4, 6, 8, 12][rng.random_range(0..most)];
    let shards = rng.random_range(1..=4u32);
    let buckets = rng.random_range(1..=4u32);
    // Half of the tables have few slots, so that pairs are moved all the time, and few clients, so that some lookups
    // are of a pair that no client changes meanwhile.
    let narrow = kind == Kind::Table && rng.random_bool(0.5);
    let (neighbourhood, shards, buckets, clients) = match narrow {
        true => (2, 1, rng.random_range(3..=8u32), clients.min(2)),
        false => (neighbourhood, shards, buckets, clients),
    };
    let slots = u64::from(shards * buckets * neighbourhood / 2);
    Spec {
        kind,
        objects_per_machine: rng.random_range(3..=8),
        spread: rng.random_bool(0.5),
        payload_bytes: (40 << rng.random_range(0..4u32)).min(most_payload),
        named_bytes: most_named,
        clients,
        operations: operations_of_one(limits, clients),
        read_only: rng.random_range(0..60),
        lock_free: rng.random_range(10..80),
        in_transactions: [0, 30, 100][rng.random_range(0..3usize)],
        keys: rng.random_range(slots / 2 + 1..=2 * slots),
        neighbourhood,
        shards,
        buckets,
        value_bytes: rng.random_range(8..=most_value),
        graph: GraphShape::default(),
        seed: rng.random(),
        tasks: [0, 33, 33, 100][rng.random_range(0..4usize)],
    }
}

/// Draws the sizes of a graph: few nodes, and lists of several pages.
pub(super) fn make_graph(spec: &mut Spec, rng: &mut impl Rng) {
    spec.clients = spec.clients.min(MOST_GRAPH_CLIENTS);
    // The final state is read by operations, too.
    spec.operations = spec.operations.max(GRAPH_OPERATIONS / spec.clients as u64);
    (spec.neighbourhood, spec.shards) = (4, spec.shards.min(2));
    spec.graph = GraphShape {
        nodes: rng.random_range(1..=5),
        spare_nodes: rng.random_range(1..=3),
        assoc_types: [1, 2, 4, 6, 8, 16][rng.random_range(0..6usize)],
        ids: rng.random_range(4..=40),
        assoc_bytes: [0, 40, 190][rng.random_range(0..3usize)],
        page_bytes: 1024,
        cached_heads: [0, 1, 64][rng.random_range(0..3usize)],
        node_data: 5,
        restores: 7,
        removes_after: 0,
    };
    if rng.random_ratio(1, 6) {
        // One long list, whose index has inner pages, and most of which is removed again.
        spec.operations *= 3;
        spec.graph.removes_after = spec.operations * 3 / 5;
        spec.graph.assoc_bytes = [40, 190, 190, 190][rng.random_range(0..4usize)];
        (spec.lock_free, spec.in_transactions) = (10, 70);
        spec.graph.nodes = 1;
        (spec.graph.node_data, spec.graph.restores) = (0, 0);
        spec.graph.assoc_types = 1;
        spec.graph.ids = rng.random_range(60..=200);
    } else if rng.random_ratio(1, 5) {
        // Data of several nodes in objects of their own, which all workers read and change: cached objects with data are
        // freed, and their memory is used for the data of other nodes.
        spec.graph.node_data = 40;
        spec.graph.nodes = spec.graph.nodes.max(3);
        spec.graph.cached_heads = [2, 64][rng.random_range(0..2usize)];
    }
}

/// Returns true if the table has so few slots that pairs are moved all the time.
pub(super) fn moves_pairs(spec: &Spec) -> bool {
    spec.kind == Kind::Table && (spec.neighbourhood, spec.shards) == (2, 1)
}

/// Returns the number of operations of all clients together.
pub(super) fn operations(spec: &Spec, limits: &ClusterLimits) -> u64 {
    (limits.machines * limits.workers * spec.clients) as u64 * spec.operations
}
