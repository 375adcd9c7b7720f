//! Atomics on remote words. Only the fabric's atomics are tested together. Whether they are also atomic
//! with the processor's atomics depends on the backend, and no layer above relies on it.

use farm_core::fabric::Atomic;

use super::roles::COUNTER;
use super::{Cluster, PEER, Role, THIRD};

/// Each atomic changes the word as specified and returns its old value.
pub(super) fn atomics_compute_and_return_the_old_value(cluster: &mut dyn Cluster) {
    let node = cluster.node();
    let at = node.peer(PEER).open(COUNTER);
    let add = |delta| Atomic::FetchAdd { delta };
    let swap = |expected, new| Atomic::CompareSwap { expected, new };
    let script = [
        (add(5), 0),
        (add(u64::MAX), 5), // Minus one: additions wrap.
        (add(0), 4),
        (swap(4, 100), 4),
        (swap(4, 200), 100),
        (swap(100, u64::MAX), 100),
        (add(2), u64::MAX),
        (swap(1, 0), 1),
        (swap(0, 0), 0),
    ];
    for (op, old) in script {
        assert_eq!(node.atomic(at, op), old, "{op:?}");
    }
    assert_eq!(node.read(at, 1), [0]);
    let neighbours = node.peer(PEER).open(COUNTER - 8);
    assert_eq!(
        node.read(neighbours, 3),
        [0; 3],
        "the neighbouring words are unchanged"
    );
    cluster.settle();
}

/// Two machines add to one word of a third: no addition is lost, and no old value is returned twice.
pub(super) fn concurrent_adds_sum_up(cluster: &mut dyn Cluster) {
    let count = cluster.rounds(4_000);
    cluster.start(PEER, Role::Add { to: THIRD, count });
    let mut old_values = cluster.drive(Role::Add { to: THIRD, count });
    old_values.extend(cluster.join(PEER));
    assert_each_once(cluster, old_values, 2 * count);
}

/// Two machines increment one word of a third by compare-and-swap: each value is replaced by exactly one of them.
pub(super) fn concurrent_swaps_have_one_winner(cluster: &mut dyn Cluster) {
    let count = cluster.rounds(2_000);
    cluster.start(PEER, Role::Swap { to: THIRD, count });
    let mut won = cluster.drive(Role::Swap { to: THIRD, count });
    won.extend(cluster.join(PEER));
    assert_each_once(cluster, won, 2 * count);
}

fn assert_each_once(cluster: &mut dyn Cluster, mut values: Vec<u64>, total: u64) {
    values.sort_unstable();
    assert_eq!(
        values,
        (0..total).collect::<Vec<_>>(),
        "each old value is returned exactly once"
    );
    let node = cluster.node();
    let at = node.peer(THIRD).open(COUNTER);
    assert_eq!(node.read(at, 1), [total]);
    cluster.settle();
}
