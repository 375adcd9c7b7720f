//! Workloads of a size that a simulated cluster has room for.

use farm_check::workload::{Kind, Spec};
use rand::Rng;

use crate::cluster::ClusterLimits;

/// Operations of the whole cluster, about.
const OPERATIONS: u64 = 200;
/// Bytes of a change's message besides the value.
const CHANGE_BYTES: usize = 28;

/// What an object adds to a record of a log, and what rounding up to its size class may add.
const OBJECT_BYTES: usize = 32 + 64;
/// Bytes of the greatest object that churn's entries name.
const MOST_NAMED: usize = 640;

/// Most clients of a worker; and those whose records are to fill the logs.
const MOST_CLIENTS: usize = 6;
const CROWD: usize = 16;

/// Bytes of a payload such that four objects of a transaction may be of one machine, or an entry and two
/// objects that it names.
fn most_payload(limits: &ClusterLimits) -> usize {
    (limits.max_log_writes() / 4 - OBJECT_BYTES).max(40)
}

/// Makes as many transactions at one time write as much as they may: their records fill the logs.
pub(super) fn crowd_logs(spec: &mut Spec, limits: &ClusterLimits) {
    spec.clients = CROWD;
    spec.operations = operations_of_one(limits, spec.clients);
    spec.payload_bytes = most_payload(limits);
    (spec.read_only, spec.lock_free) = (0, 0);
}

/// Operations of one client.
fn operations_of_one(limits: &ClusterLimits, clients: usize) -> u64 {
    OPERATIONS.div_ceil((limits.machines * limits.workers * clients) as u64)
}

/// A workload for a cluster of these limits.
pub(super) fn drawn(rng: &mut impl Rng, kind: Kind, limits: &ClusterLimits) -> Spec {
    let clients = rng.random_range(1..=limits.operations.min(MOST_CLIENTS));
    let most_value = (limits.max_body_bytes() - CHANGE_BYTES).min(40);
    let most_payload = most_payload(limits);
    let most_named = (limits.max_log_writes() - most_payload) / 2 - OBJECT_BYTES;
    let most_named = most_named.clamp(40, MOST_NAMED);
    // The buckets that a transaction over rows writes fit a record of the least log.
    let most = if kind.has_rows() { 2 } else { 5 };
    let neighbourhood = [2, 4, 6, 8, 12][rng.random_range(0..most)];
    let shards = rng.random_range(1..=4u32);
    let buckets = rng.random_range(1..=4u32);
    // A table of few slots, in which pairs are moved all the time; and of few clients, so that there are
    // lookups of a pair that nobody changes meanwhile.
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
        seed: rng.random(),
    }
}

/// Whether the table has so few slots that pairs are moved all the time.
pub(super) fn moves_pairs(spec: &Spec) -> bool {
    spec.kind == Kind::Table && (spec.neighbourhood, spec.shards) == (2, 1)
}

/// Operations of all clients together.
pub(super) fn operations(spec: &Spec, limits: &ClusterLimits) -> u64 {
    (limits.machines * limits.workers * spec.clients) as u64 * spec.operations
}
