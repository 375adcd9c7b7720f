//! What a machine of the configuration takes besides its regions.

use farm_core::config::{Config, rounded_size};
use farm_core::machine::Sizing;

use super::{Finding, Level};

/// An idle turn beyond this, in microseconds, delays messages by more than an RDMA round trip.
const LONG_TURN_US: f64 = 3.0;
/// Rings and logs beyond this share of the regions are worth making smaller.
const LARGE_SHARE: u64 = 4;

/// The memory of the rings, logs and arenas of the machine that has the most of them, and what its workers poll.
pub(super) fn sizing(config: &Config) -> Option<Finding> {
    let machines = config.machines.iter();
    let all = machines.filter_map(|machine| Sizing::of(config, machine.id));
    let sizing = all.max_by_key(Sizing::bytes)?;
    let fact = format!(
        "at most {} of rings, {} of logs and {} of arenas a machine, beside {} of regions; a worker polls {} rings \
         and logs, an idle turn takes about {:.1} us",
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
            "rings and logs take much of the memory: lower rings.ring_bytes and rings.log_bytes (docs/SIZING.md)",
        ));
    }
    if sizing.idle_turn_us() > LONG_TURN_US {
        return Some(Finding::new(Level::Advice, "rings", fact).advice(
            "messages wait for the polls of all rings: use fewer machines with more workers (docs/SIZING.md)",
        ));
    }
    Some(Finding::new(Level::Ok, "rings", fact))
}
