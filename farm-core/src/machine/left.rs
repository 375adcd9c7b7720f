//! What the machines of a cluster have left in files when all of them have ended, for tools that list or remove it.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use super::MachineError;
use super::kept::{gone_in, kept_starts};
use super::manager::newest_configuration;
use crate::config::Config;
use crate::config::host::{run_dir, store_dir};
use crate::fabric::shm::kept::{journal_of, journals, of_cluster};
use crate::fabric::shm::{StaleFiles, StaleKind, find_stale_files};
use crate::files::unless_gone;
use crate::ids::MachineId;
use crate::membership::configuration::{Configuration, Process};

/// Returns the machines whose kept memory the newest configuration names, and which is not in the directories of this configuration file; none
/// if there is no configuration, or nothing is kept. No machine of the cluster runs.
///
/// # Errors
/// [`MachineError`] if the store or a directory cannot be read.
pub fn without_memory(config: &Config) -> Result<BTreeSet<MachineId>, MachineError> {
    let newest = newest_configuration(config)?.filter(|_| config.keeps_memory());
    let Some(newest) = newest else {
        return Ok(BTreeSet::new());
    };
    let starts = kept_starts(config)?;
    let is_here = |member: Process| starts.iter().any(|start| start.boot == member.boot);
    Ok(match newest.storing().any(is_here) {
        true => gone_in(config, &newest, &starts),
        // Also what machines without regions have kept is elsewhere.
        false => newest.storing().map(|member| member.machine).collect(),
    })
}

/// Returns the starts that the newest configuration names as members which store regions; none if it cannot be read.
pub fn named_starts(config: &Config) -> BTreeSet<u64> {
    let newest = newest_configuration(config).ok().flatten();
    let storing = newest.iter().flat_map(Configuration::storing);
    storing.map(|member| member.boot).collect()
}

/// Returns the files that killed processes of a cluster left. Those of processes that may run stay: `farm clean` says how they are removed.
pub fn stale_files(config: &Config) -> Vec<StaleFiles> {
    let (run_dir, cluster) = (run_dir(config), &config.cluster.name);
    let mut stale = find_stale_files(&config.memory.dir, &run_dir);
    stale.retain(|stale| {
        let may_be_used = matches!(stale.what, StaleKind::UnknownMemory(_));
        stale.is_of(&run_dir, cluster) && !may_be_used
    });
    stale
}

/// Returns the journals of starts whose memory was kept for the store of a configuration, or that this store names. Others can be of a cluster
/// of the same name with its memory or its store elsewhere.
///
/// # Errors
/// If a directory cannot be read.
pub fn find_journals(config: &Config) -> io::Result<Vec<PathBuf>> {
    let (run_dir, cluster, store) = (run_dir(config), &config.cluster.name, store_dir(config));
    let starts = of_cluster(&run_dir, &config.memory.dir, cluster)?.into_iter();
    let starts = starts.filter(|start| start.is_of(&store));
    let mut known: BTreeSet<u64> = starts.map(|start| start.boot).collect();
    known.extend(named_starts(config));
    let journals = journals(&run_dir, cluster)?.into_iter();
    let of_store = journals.filter(|(boot, _)| known.contains(boot));
    Ok(of_store.map(|(_, path)| path).collect())
}

/// Removes what the machines of a cluster have kept in shared memory for its store, and their journals. The configuration stays. To be
/// called when none of them runs, and the data is not needed.
///
/// # Errors
/// The error of the first file that could not be removed.
pub fn forget_kept(config: &Config) -> io::Result<()> {
    let (run_dir, cluster) = (run_dir(config), &config.cluster.name);
    let (memory_dir, store) = (&config.memory.dir, store_dir(config));
    let starts = of_cluster(&run_dir, memory_dir, cluster)?.into_iter();
    for start in starts.filter(|start| start.is_of(&store)) {
        let journal = journal_of(&run_dir, cluster, start.files[0].machine, start.boot);
        start.remove(&journal).map_err(|(_, error)| error)?;
    }
    // Those that the configuration names, and whose files are gone.
    for journal in find_journals(config)? {
        unless_gone(std::fs::remove_file(journal))?;
    }
    // Fails while there is something else.
    let _ = std::fs::remove_dir(run_dir.join(cluster));
    Ok(())
}
