//! The conformance suite on every fabric there is: shared memory between processes, between machines
//! of one process, and the simulated one.

use farm_sim::conformance::host::{Fabric, Processes, Threads, be_child_if_asked};
use farm_sim::conformance::sim::Sim;
use farm_sim::conformance_suite;

/// Not a test: by this the other tests' child processes are this binary again.
#[test]
fn conformance_child() {
    be_child_if_asked();
}

conformance_suite!(shm_processes, &Processes(Fabric::Shm));
conformance_suite!(shm_threads, &Threads(Fabric::Shm));
conformance_suite!(simulated, &Sim::seeds(0..20));
