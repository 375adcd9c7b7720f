//! How long simulated clusters give no service when a machine is killed.

use std::time::Duration;

use farm_sim::run::pauses::{Pause, PauseSpec, measure};

/// Nothing proves the end of a process, so that the others wait until its lease has ended, and not much longer.
#[test]
fn the_others_go_on_when_the_lease_of_a_killed_machine_has_ended() {
    for (machines, of_manager) in [(3, false), (5, true)] {
        let lease = Duration::from_millis(5);
        let spec = PauseSpec {
            machines,
            lease,
            of_manager,
        };
        for seed in 0..3 {
            let Pause {
                without_service,
                without_end,
                transactions,
            } = measure(seed, &spec).unwrap();
            let said = format!("seed {seed} of {spec:?}: {without_service:?}, {without_end:?}");
            assert!(without_service > lease / 2, "{said}");
            assert!(without_service < 6 * lease, "{said}");
            assert!((lease / 2..2 * lease).contains(&without_end), "{said}");
            assert!(transactions > 100, "{said}");
        }
    }
}
