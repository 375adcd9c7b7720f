//! The conformance suite on shared memory, with the machines in three processes or in one, and on the
//! simulated fabric.

use farm_conformance::conformance_suite;
use farm_conformance::host::{Fabric, Processes, Threads, be_child_if_asked};
use farm_conformance::sim::Sim;

/// Not a test. The child processes that the other tests start run this binary with only this function.
#[test]
fn conformance_child() {
    be_child_if_asked();
}

conformance_suite!(shm_processes, &Processes(Fabric::Shm));
conformance_suite!(shm_threads, &Threads(Fabric::Shm));
conformance_suite!(simulated, &Sim::seeds(0..20));
