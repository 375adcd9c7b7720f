//! What several tests of simulated clusters share.

use farm_sim::cluster::{Cluster, Stepped};

const MOST_STEPS: u64 = 1_000_000;

/// Has the cluster take steps until something is done.
///
/// # Panics
/// If all machines stop, or it takes too many steps to do `what`.
pub(crate) fn until(cluster: &Cluster, what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..MOST_STEPS {
        if done() {
            return;
        }
        assert_ne!(cluster.step(), Stepped::Stopped, "{:?}", cluster.failures());
    }
    panic!("{what} takes more than {MOST_STEPS} steps");
}
