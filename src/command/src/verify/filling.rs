//! Copies that do not have everything yet.

use farm_core::config::Config;
use farm_core::machine::newest_configuration;
use farm_core::membership::configuration::RegionReplicas;

/// Describes the copies that are being filled, because their machine came back or replaces one that was lost; `None` if there are none.
pub(super) fn text(config: &Config) -> Option<String> {
    let newest = newest_configuration(config).ok()??;
    let is_filling = |region: &&RegionReplicas| region.replicas.iter().any(|one| !one.is_full());
    let count = newest.regions.iter().filter(is_filling).count();
    (count > 0).then(|| format!("copies of {count} region(s) are being filled"))
}
