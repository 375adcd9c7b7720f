//! The configuration that an earlier run of a cluster with copies left in the directory of its store.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, bail};
use farm::status::machine_status;
use farm_core::config::Config;
use farm_core::config::host::store_dir;
use farm_core::membership::earlier::{Earlier, Found, find};
use farm_core::membership::store::StoreError;

use super::{counted, quoted};
use crate::Usage;
use crate::cli::CleanArgs;

/// Reports the configuration of an earlier cluster. Removes it if `args` ask for that.
///
/// # Errors
/// With `--store`, if a machine of the cluster may run, or the directory has something else.
pub(super) fn clean(config: &Config, args: &CleanArgs, out: &mut impl Write) -> anyhow::Result<()> {
    if !config.is_logged() {
        return match args.store {
            false => Ok(()),
            true => Err(Usage::error(
                "--store: with durability.mode = \"none\" a cluster keeps no configuration; name the file of the cluster with --config",
            )),
        };
    }
    let (dir, cluster) = (store_dir(config), &config.cluster.name);
    let path = dir.display();
    match (find(&dir, cluster), args.store) {
        (Ok(Found::Nothing), false) => {}
        (Ok(Found::Nothing), true) => {
            writeln!(
                out,
                "cluster {cluster:?}: no configuration of an earlier run in {path}"
            )?;
        }
        (Ok(Found::InUse), false) => {
            writeln!(
                out,
                "cluster {cluster:?}: kept its configuration in {path}, which a running process uses"
            )?;
        }
        (Ok(Found::InUse), true) => bail!(
            "cannot remove the configuration of cluster {cluster:?} in {path}: a running process uses it; stop all machines of the cluster \
             first"
        ),
        (Ok(Found::Earlier(earlier)), false) => {
            writeln!(
                out,
                "cluster {cluster:?}: kept {} of the configuration of an earlier run in {path} (change {}); the next start refuses \
                 while it is there. If the data of that run is not needed, remove it with:\n  farm clean --store{}",
                counted(earlier.files(), earlier.bytes()),
                earlier.change(),
                args.config.options()
            )?;
        }
        (Ok(Found::Earlier(earlier)), true) => remove(config, args, earlier, out)?,
        (Err(error), false) => {
            writeln!(out, "cluster {cluster:?}: kept what is in {path}: {error}")?;
        }
        (Err(error), true) => return Err(refusal(&dir, error)),
    }
    Ok(())
}

fn remove(
    config: &Config,
    args: &CleanArgs,
    earlier: Earlier,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let cluster = &config.cluster.name;
    check_stopped(config)?;
    if let Some(owner) = earlier.other_owner()? {
        bail!(
            "cannot remove the configuration of cluster {cluster:?} in {}: it belongs to the user with id {owner}; \
             run the command as its owner",
            earlier.dir().display()
        );
    }
    let verb = match args.dry_run {
        true => "would remove",
        false => "removes",
    };
    let dir = earlier.dir().to_owned();
    let path = dir.display();
    let what = counted(earlier.files(), earlier.bytes());
    let change = earlier.change();
    writeln!(
        out,
        "cluster {cluster:?}: {verb} {what} of the configuration of an earlier run in {path} (change {change})"
    )?;
    if args.dry_run {
        return Ok(());
    }
    let context = || format!("cannot remove the configuration of cluster {cluster:?}");
    earlier.remove().with_context(context)?;
    // A directory that the user has named may be older than the cluster. The other one is gone unless it has other files.
    if config.durability.dir.is_none() {
        let _ = std::fs::remove_dir(&dir);
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
        "cannot remove the configuration of cluster {:?}: machine(s) {} run; stop all machines of the cluster first",
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
