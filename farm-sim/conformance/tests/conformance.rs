//! The conformance suite on every fabric there is: shared memory between processes, between machines
//! of one process, and the simulated one.

use farm_conformance::conformance_suite;
use farm_conformance::host::{Fabric, Processes, Threads, be_child_if_asked};
use farm_conformance::sim::Sim;

/// Not a test: by this the other tests' child processes are this binary again.
#[test]
fn conformance_child() {
    be_child_if_asked();
}

conformance_suite!(shm_processes, &Processes(Fabric::Shm));
conformance_suite!(shm_threads, &Threads(Fabric::Shm));
conformance_suite!(simulated, &Sim::seeds(0..20));
