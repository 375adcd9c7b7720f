//! Workloads of a size that a simulated cluster has room for.

use farm_bench::workload::{Kind, Spec};
use rand::Rng;

use crate::cluster::ClusterLimits;

/// Operations of the whole cluster, about.
const OPERATIONS: u64 = 200;
/// Bytes of a change's message besides the value.
const CHANGE_BYTES: usize = 28;

/// A workload for a cluster of these limits.
pub(super) fn drawn(rng: &mut impl Rng, kind: Kind, limits: &ClusterLimits) -> Spec {
    let workers = limits.machines * limits.workers;
    let clients = rng.random_range(1..=limits.operations.min(6));
    let most_value = (limits.max_body_bytes() - CHANGE_BYTES).min(40);
    let neighbourhood = [2, 4, 6, 8, 12][rng.random_range(0..5usize)];
    let shards = rng.random_range(1..=4u32);
    let buckets = rng.random_range(1..=4u32);
    let slots = u64::from(shards * buckets * neighbourhood / 2);
    Spec {
        kind,
        objects_per_machine: rng.random_range(3..=8),
        spread: rng.random_bool(0.75),
        payload_bytes: 40 << rng.random_range(0..4u32),
        clients,
        operations: OPERATIONS.div_ceil((workers * clients) as u64),
        read_only: rng.random_range(0..60),
        lock_free: rng.random_range(10..80),
        keys: rng.random_range(slots / 2 + 1..=2 * slots),
        neighbourhood,
        shards,
        buckets,
        value_bytes: rng.random_range(8..=most_value),
        seed: rng.random(),
    }
}

/// Operations of all clients together.
pub(super) fn operations(spec: &Spec, limits: &ClusterLimits) -> u64 {
    (limits.machines * limits.workers * spec.clients) as u64 * spec.operations
}
