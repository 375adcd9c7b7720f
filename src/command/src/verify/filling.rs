//! Copies that do not have everything yet.

use farm_core::config::Config;
use farm_core::config::host::store_dir;
use farm_core::membership::configuration::{RegionReplicas, ReplicaState};
use farm_core::membership::files::FileStore;
use farm_core::membership::store::ConfigStore;

/// Describes the copies that are being filled, because their machine came back or replaces one that was lost; `None` if there are none.
pub(super) fn text(config: &Config) -> Option<String> {
    let mut store = FileStore::at(&store_dir(config), &config.cluster.name);
    let newest = store.read().ok()??;
    let is_filling = |region: &&RegionReplicas| {
        let mut replicas = region.replicas.iter();
        replicas.any(|replica| replica.state == ReplicaState::Filling)
    };
    let count = newest.regions.iter().filter(is_filling).count();
    (count > 0).then(|| format!("copies of {count} region(s) are being filled"))
}
