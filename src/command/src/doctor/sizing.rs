//! Checks of the memory of rings, logs and arenas, and of the time that workers take to poll rings and logs.

use farm_core::config::{Config, rounded_size};
use farm_core::machine::Sizing;

use super::{Finding, Level};

/// Longest idle turn of a worker, in microseconds, without advice. It is about an RDMA round trip.
const LONG_TURN_US: f64 = 3.0;
/// If rings and logs take more memory than the regions divided by this number, the finding is advice.
const LARGE_SHARE: u64 = 4;

/// Returns the finding about the machine that takes the most memory, or `None` if no machine is configured.
pub(super) fn sizing(config: &Config) -> Option<Finding> {
    let machines = config.machines.iter();
    let all = machines.filter_map(|machine| Sizing::of(config, machine.id));
    let sizing = all.max_by_key(Sizing::bytes)?;
    let fact = format!(
        "each machine takes at most {} for rings, {} for logs, {} for arenas and {} for regions; a worker polls {} \
         rings and logs, and an idle turn takes about {:.1} us",
        rounded_size(sizing.ring_bytes),
        rounded_size(sizing.log_bytes),
        rounded_size(sizing.arena_bytes),
        rounded_size(sizing.region_bytes),
        sizing.polled,
        sizing.idle_turn_us(),
    );
    let rings = sizing.ring_bytes + sizing.log_bytes;
    if rings > sizing.region_bytes / LARGE_SHARE {
        return Some(Finding::new(Level::Advice, "rings", fact).advice(
            "rings and logs take more than a quarter of the memory of regions: lower rings.ring_bytes and \
             rings.log_bytes (docs/SIZING.md)",
        ));
    }
    if sizing.idle_turn_us() > LONG_TURN_US {
        return Some(Finding::new(Level::Advice, "rings", fact).advice(
            "a message waits until its receiver has polled all other rings: use fewer machines with more workers \
             (docs/SIZING.md)",
        ));
    }
    Some(Finding::new(Level::Ok, "rings", fact))
}
