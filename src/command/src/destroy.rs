//! `farm destroy`: removes the data of a cluster with copies that has ended: its configuration, the memory of its machines, and their
//! journals. It lists them first.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use farm::status::machine_status;
use farm_core::config::Config;
use farm_core::config::host::{run_dir, store_dir};
use farm_core::fabric::shm::{KeptMemory, StaleFiles, find_kept_memory, remove_stale_files};
use farm_core::ids::MachineId;
use farm_core::machine::{find_journals, named_starts, stale_files, without_memory};
use farm_core::membership::earlier::{Earlier, Found, find};
use farm_core::membership::store::StoreError;

use crate::Usage;
use crate::cli::DestroyArgs;
use crate::files::{counted, quoted};

/// What a cluster has left.
struct Left {
    store: Option<Earlier>,
    memory: Vec<KeptMemory>,
    journals: Vec<PathBuf>,
    /// Of processes that were killed. Some have the same memory.
    stale: Vec<StaleFiles>,
    /// The machines whose memory the configuration names, and which is not here.
    gone: BTreeSet<MachineId>,
}

/// Runs `farm destroy`.
///
/// # Errors
/// If a machine of the cluster may run, the directory of its configuration has something else, or memory is elsewhere.
pub(crate) fn run(args: &DestroyArgs) -> anyhow::Result<ExitCode> {
    let config = args.config.resolve()?;
    let mut out = crate::Output;
    if !config.is_logged() {
        return Err(Usage::error(
            "with durability.mode = \"none\" a cluster leaves nothing that could be destroyed; name the file of the cluster with --config",
        ));
    }
    let left = Left::of(&config)?;
    let cluster = &config.cluster.name;
    if left.is_empty() {
        writeln!(out, "cluster {cluster:?} has left nothing")?;
        for dir in stores_of_others(&config)? {
            writeln!(
                out,
                "in {} is memory of a cluster of this name with its configuration in {dir}: it is named with --set durability.dir={dir}",
                config.memory.dir.display(),
                dir = quoted(&dir)
            )?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    if args.yes && !args.memory_is_gone {
        left.check_complete(&config)?;
    }
    left.say(&config, args.yes, &mut out)?;
    if !args.yes {
        let options = args.config.options();
        writeln!(out, "nothing was removed")?;
        if let Some(missing) = left.missing(&config) {
            writeln!(out, "{missing}")?;
        } else {
            writeln!(out, "remove it with:\n  farm destroy --yes{options}")?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    left.remove(&config)?;
    Ok(ExitCode::SUCCESS)
}

impl Left {
    fn of(config: &Config) -> anyhow::Result<Self> {
        let (dir, cluster) = (store_dir(config), &config.cluster.name);
        let store = match find(&dir, cluster) {
            Ok(Found::Nothing) => None,
            Ok(Found::InUse) => bail!(
                "cannot remove the configuration of cluster {cluster:?} in {}: a running process uses it; stop all machines of the \
                 cluster first",
                dir.display()
            ),
            Ok(Found::Earlier(earlier)) => Some(earlier),
            Err(error) => return Err(refusal(&dir, error)),
        };
        check_stopped(config)?;
        if let Some(earlier) = &store
            && let Some(owner) = earlier.other_owner()?
        {
            bail!(
                "cannot remove the configuration of cluster {cluster:?} in {}: it belongs to the user with id {owner}; \
                 run the command as its owner",
                dir.display()
            );
        }
        let journals = find_journals(config);
        let memory = memory_of(config)?;
        if let Some((kept, other)) = memory.iter().find_map(|kept| elsewhere(kept, &dir)) {
            bail!(
                "cannot remove what cluster {cluster:?} has: machine {} has kept memory for the configuration in {}, which is there, and {} \
                 has a copy of it: name the other one with --set durability.dir={}",
                kept.machine,
                other.display(),
                dir.display(),
                quoted(other)
            );
        }
        if let Some(used) = memory.iter().find(|kept| kept.is_used()) {
            bail!(
                "cannot remove what cluster {cluster:?} has: a process of machine {} uses its memory; stop all machines of the cluster first",
                used.machine
            );
        }
        Ok(Self {
            store,
            memory,
            journals: journals.context("cannot list the journals of the cluster")?,
            stale: stale_files(config),
            gone: without_memory(config)?,
        })
    }

    fn is_empty(&self) -> bool {
        let kept = self.memory.is_empty() && self.journals.is_empty();
        kept && self.store.is_none() && self.stale.is_empty()
    }

    /// Returns where the memory of machines is not, that the configuration names, and what a user does; `None` if all of it is there.
    fn missing(&self, config: &Config) -> Option<String> {
        let machines: Vec<String> = self.gone.iter().map(ToString::to_string).collect();
        (!machines.is_empty()).then(|| {
            format!(
                "the configuration names memory of machine(s) {}, which is not complete in {} with its journals in {}. If the cluster had \
                 other directories (memory.dir, cluster.run_dir, or XDG_RUNTIME_DIR), name those; if that memory is lost, because this host \
                 was switched off, or a part was removed before, add --memory-is-gone",
                machines.join(", "),
                config.memory.dir.display(),
                run_dir(config).join(&config.cluster.name).display()
            )
        })
    }

    /// Checks that all memory which the configuration names is here: without the configuration, nothing would find it elsewhere.
    fn check_complete(&self, config: &Config) -> anyhow::Result<()> {
        let Some(missing) = self.missing(config) else {
            return Ok(());
        };
        bail!(
            "cannot remove what cluster {:?} has: {missing}",
            config.cluster.name
        )
    }

    /// Says what will be, or would be, removed.
    fn say(&self, config: &Config, removes: bool, out: &mut impl Write) -> anyhow::Result<()> {
        let cluster = &config.cluster.name;
        let verb = match removes {
            true => "removes",
            false => "would remove",
        };
        if let Some(earlier) = &self.store {
            let (path, what) = (
                earlier.dir().display(),
                counted(earlier.files(), earlier.bytes()),
            );
            let change = earlier.change();
            writeln!(
                out,
                "cluster {cluster:?}: {verb} {what} of its configuration in {path} (change {change})"
            )?;
        }
        for kept in &self.memory {
            let (machine, what) = (kept.machine, counted(kept.files, kept.bytes));
            let dir = config.memory.dir.display();
            writeln!(
                out,
                "cluster {cluster:?}: {verb} {what} of the memory of machine {machine} in {dir}"
            )?;
        }
        if !self.journals.is_empty() {
            let (files, dir) = (self.journals.len() as u64, run_dir(config).join(cluster));
            let what = counted(files, 0);
            writeln!(
                out,
                "cluster {cluster:?}: {verb} {what} of journals in {}",
                dir.display()
            )?;
        }
        if !self.stale.is_empty() {
            let sum = |one: fn(&StaleFiles) -> u64| self.stale.iter().map(one).sum();
            let what = counted(sum(|stale| stale.files), sum(|stale| stale.bytes));
            writeln!(
                out,
                "cluster {cluster:?}: {verb} {what} of processes that were killed"
            )?;
        }
        Ok(())
    }

    /// Removes everything, the configuration last: while it is there, a start says what is missing.
    fn remove(self, config: &Config) -> anyhow::Result<()> {
        let cluster = &config.cluster.name;
        // First: if this is interrupted, the next start sees that something is gone.
        for journal in &self.journals {
            std::fs::remove_file(journal)
                .with_context(|| format!("cannot remove {}", journal.display()))?;
        }
        remove_memory(&self.memory, &run_dir(config))?;
        for stale in &self.stale {
            remove_stale_files(stale).with_context(|| {
                format!(
                    "cannot remove the files that machine {} left",
                    stale.machine
                )
            })?;
        }
        // Fails while there is something else.
        let _ = std::fs::remove_dir(run_dir(config).join(cluster));
        if let Some(earlier) = self.store {
            let dir = earlier.dir().to_owned();
            let context = || format!("cannot remove the configuration of cluster {cluster:?}");
            earlier.remove().with_context(context)?;
            // A directory that the user has named may be older than the cluster. The other one is gone unless it has other files.
            if config.durability.dir.is_none() {
                let _ = std::fs::remove_dir(&dir);
            }
        }
        Ok(())
    }
}

/// Removes memory that machines have kept, and their journals in this directory of sockets and locks.
pub(crate) fn remove_memory(memory: &[KeptMemory], run_dir: &Path) -> anyhow::Result<()> {
    for kept in memory {
        kept.remove(run_dir).map_err(|(path, error)| {
            anyhow::anyhow!("cannot remove {}: {error}", path.display())
        })?;
    }
    Ok(())
}

/// Returns the directories of the configurations for which machines of clusters of this name have kept memory.
fn stores_of_others(config: &Config) -> anyhow::Result<BTreeSet<PathBuf>> {
    let same = find_kept(config)?.into_iter().filter(is_of(config));
    Ok(same.filter_map(|kept| kept.store).collect())
}

/// Returns memory with the directory of its configuration, if that is there, and another one than this.
fn elsewhere<'k>(kept: &'k KeptMemory, dir: &Path) -> Option<(&'k KeptMemory, &'k Path)> {
    let theirs = kept.store.as_deref()?;
    let (one, other) = (theirs.canonicalize().ok()?, dir.canonicalize().ok()?);
    (one != other).then_some((kept, theirs))
}

/// Returns what machines of all clusters have kept in shared memory.
pub(crate) fn find_kept(config: &Config) -> anyhow::Result<Vec<KeptMemory>> {
    let dir = &config.memory.dir;
    find_kept_memory(dir)
        .with_context(|| format!("cannot list the shared memory in {}", dir.display()))
}

/// Returns what the machines of a cluster have kept in shared memory.
pub(crate) fn memory_of(config: &Config) -> anyhow::Result<Vec<KeptMemory>> {
    let mut memory = find_kept(config)?;
    let (store, named) = (store_dir(config), named_starts(config));
    memory.retain(|kept| {
        // Its link may name the directory by another path, or be gone.
        let is_of_store = kept.store.as_deref() == Some(&store) || kept.is_of_start(&named);
        kept.cluster == config.cluster.name && is_of_store
    });
    Ok(memory)
}

/// Returns whether processes of a cluster of this name and these directories have kept memory, whatever its store is.
pub(crate) fn has_kept_memory(config: &Config) -> bool {
    let kept = find_kept(config).unwrap_or_default();
    kept.iter().any(is_of(config))
}

/// Returns whether memory is of a cluster of this name and these directories, whatever its store is.
fn is_of(config: &Config) -> impl Fn(&KeptMemory) -> bool {
    |kept| kept.is_of(&run_dir(config), &config.cluster.name)
}

/// Returns whether the newest configuration names memory that the ended process of a machine has kept.
pub(crate) fn has_named_memory(config: &Config, machine: MachineId) -> bool {
    let named = named_starts(config);
    let kept = memory_of(config).unwrap_or_default();
    let mut kept = kept.iter().filter(|kept| kept.machine == machine);
    config.keeps_memory() && kept.any(|kept| kept.is_of_start(&named) && !kept.is_used())
}

/// Returns the bytes that ended processes of machines of a cluster, or of one, have kept. The next processes go on with that memory, or remove it.
pub(crate) fn idle_kept_bytes(config: &Config, machine: Option<MachineId>) -> u64 {
    if !config.keeps_memory() {
        return 0;
    }
    let is_of = |kept: &KeptMemory| machine.is_none_or(|machine| machine == kept.machine);
    // A directory that cannot be listed is reported when it is checked.
    let kept = memory_of(config).unwrap_or_default().into_iter();
    let idle = kept.filter(|kept| is_of(kept) && !kept.is_used());
    idle.map(|kept| kept.bytes).sum()
}

/// Reports what a cluster has left, for `farm clean`, which keeps it.
pub(crate) fn report(config: &Config, options: &str, out: &mut impl Write) -> anyhow::Result<()> {
    if !config.is_logged() {
        return Ok(());
    }
    let (dir, cluster) = (store_dir(config), &config.cluster.name);
    let path = dir.display();
    match find(&dir, cluster) {
        Ok(Found::Nothing) => {}
        Ok(Found::InUse) => {
            writeln!(
                out,
                "cluster {cluster:?}: kept its configuration in {path}, which a running process uses"
            )?;
        }
        Ok(Found::Earlier(earlier)) => {
            writeln!(
                out,
                "cluster {cluster:?}: kept {} of its configuration in {path} (change {}), and the memory of its machines. If the data \
                 is not needed, remove it with:\n  farm destroy{options}",
                counted(earlier.files(), earlier.bytes()),
                earlier.change(),
            )?;
        }
        Err(error) => {
            writeln!(out, "cluster {cluster:?}: kept what is in {path}: {error}")?;
        }
    }
    Ok(())
}

/// Checks that no machine of the cluster runs on this host, also one that does not use the store itself.
fn check_stopped(config: &Config) -> anyhow::Result<()> {
    let mut running = Vec::new();
    for machine in config.machines.iter().map(|machine| machine.id) {
        match machine_status(config, machine) {
            Ok(None) => {}
            Ok(Some(status)) => running.push(format!("{machine} (process {})", status.pid)),
            // It does not answer, or belongs to another user.
            Err(error) => running.push(format!("{machine} ({error})")),
        }
    }
    if running.is_empty() {
        return Ok(());
    }
    bail!(
        "cannot remove what cluster {:?} has: machine(s) {} run; stop all machines of the cluster first",
        config.cluster.name,
        running.join(", ")
    )
}

/// Returns why the content of the directory is kept, and how a user removes it who does not need it.
fn refusal(dir: &Path, error: StoreError) -> anyhow::Error {
    let by_hand = match error {
        StoreError::Damaged { .. } | StoreError::Misplaced { .. } | StoreError::Newer { .. } => {
            format!(
                "; if its data is not needed, and no machine of the cluster runs, remove its files with: rm {}/config-*",
                quoted(dir)
            )
        }
        _ => String::new(),
    };
    anyhow::anyhow!("kept the configuration: {error}{by_hand}")
}
