//! `farm clean`: lists and removes the files that killed machines left in `memory.dir` and in the run directory, and the
//! working directories of killed commands.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use farm_core::config::Config;
use farm_core::config::host::run_dir;
use farm_core::fabric::shm::{
    KeptMemory, StaleFiles, StaleKind, find_stale_files, remove_stale_files,
};
use farm_core::machine::named_starts;

use crate::Usage;
use crate::cli::CleanArgs;
use crate::destroy;
use crate::files::{counted, quoted};
use crate::scratch::Abandoned;

/// Runs `farm clean`.
pub(crate) fn run(args: &CleanArgs) -> anyhow::Result<ExitCode> {
    let config = args.config.resolve()?;
    let memory = &config.memory.dir;
    if !memory.is_dir() {
        let why = format!(
            "cannot list the files of killed machines: memory.dir is {}, which is not a directory; \
             set another one with --set memory.dir=DIR",
            memory.display()
        );
        return Err(Usage::error(why));
    }
    let stale_files = find(&config);
    let mut out = crate::Output;
    destroy::report(&config, &args.config.options(), &mut out)?;
    let (mut files, mut bytes) = (0, 0);
    for group in Group::of(&stale_files) {
        let (removed_files, removed_bytes) = match args.dry_run || group.is_unknown {
            true => (group.files(), group.bytes()),
            false => group.remove()?,
        };
        let verb = match (group.is_unknown, args.dry_run) {
            (true, _) => "kept",
            (false, true) => "would remove",
            (false, false) => "removed",
        };
        let what = counted(removed_files, removed_bytes);
        writeln!(
            out,
            "cluster \"{}\": {verb} {what} of {} in {}",
            group.cluster,
            group.machines(),
            group.dir()
        )?;
        if group.is_unknown {
            writeln!(
                out,
                "  farm clean cannot find out whether these machines run, because the file that a running machine \
                 locks is missing; if none of these machines runs, remove the files with:"
            )?;
            group
                .commands()
                .try_for_each(|command| writeln!(out, "  {command}"))?;
        } else {
            files += removed_files;
            bytes += removed_bytes;
        }
    }
    let verb = if args.dry_run {
        "would remove"
    } else {
        "removed"
    };
    for abandoned in find_directories(&config) {
        let what = counted(abandoned.files, abandoned.bytes);
        let dir = abandoned.dir.display().to_string();
        (files, bytes) = (files + abandoned.files, bytes + abandoned.bytes);
        if !args.dry_run {
            abandoned.remove()?;
        }
        writeln!(
            out,
            "a killed command: {verb} its working directory {dir} with {what}"
        )?;
    }
    let kept = destroy::find_kept(&config)?;
    report_without_link(&config, &kept, &mut out)?;
    for kept in kept.into_iter().filter(is_abandoned) {
        let what = counted(kept.files, kept.bytes);
        (files, bytes) = (files + kept.files, bytes + kept.bytes);
        if !args.dry_run {
            destroy::remove_memory(std::slice::from_ref(&kept), &run_dir(&config))?;
        }
        writeln!(
            out,
            "a killed command: {verb} {what} of memory of machine {}",
            kept.machine
        )?;
    }
    let (memory, names) = (config.memory.dir.display(), run_dir(&config));
    let what = counted(files, bytes);
    writeln!(
        out,
        "{verb} {what} in total, in {memory} and {}",
        names.display()
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the files that killed machines of any cluster left in the two directories of `config`.
pub(crate) fn find(config: &Config) -> Vec<StaleFiles> {
    find_stale_files(&config.memory.dir, &run_dir(config))
}

/// Returns the working directories of killed commands.
pub(crate) fn find_directories(config: &Config) -> Vec<Abandoned> {
    let mut parents: Vec<PathBuf> = vec![config.memory.dir.clone(), std::env::temp_dir()];
    parents.dedup();
    let found = parents.iter().flat_map(|parent| Abandoned::find(parent));
    found.collect()
}

/// Returns whether memory that machines have kept was that of a command's cluster which was killed: its working directory is gone.
fn is_abandoned(kept: &KeptMemory) -> bool {
    let store = kept.store.as_deref();
    store.is_some_and(crate::scratch::was_scratch) && !kept.is_used()
}

/// Reports memory that does not say of which configuration it is, unless that of this cluster names it, and how it is removed.
fn report_without_link(
    config: &Config,
    kept: &[KeptMemory],
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let (named, dir) = (named_starts(config), &config.memory.dir);
    for kept in kept.iter().filter(|kept| kept.store.is_none()) {
        // The link is the first file of a start, and the last that is removed. A start that is removed meanwhile has no files any more.
        if kept.files == 0 || kept.is_of_start(&named) || kept.is_used() {
            continue;
        }
        let what = counted(kept.files, kept.bytes);
        let files = kept.prefixes().map(|start| dir.join(start));
        let files: Vec<String> = files.map(|start| format!("{}*", quoted(&start))).collect();
        writeln!(
            out,
            "cluster {:?}: kept {what} of the memory of machine {} in {}, whose link to its configuration (…-place-…) is gone. A start of \
             that cluster may go on with it. If the data of the cluster is not needed, remove it with:\n  rm {}",
            kept.cluster,
            kept.machine,
            dir.display(),
            files.join(" ")
        )?;
    }
    Ok(())
}

/// The leftovers of one cluster in one directory, either all removable or all unknown.
pub(crate) struct Group<'a> {
    pub(crate) cluster: &'a str,
    /// Whether the files are shared memory that a running machine may still use: the file whose lock shows that
    /// the machine runs is missing.
    pub(crate) is_unknown: bool,
    dir: &'a Path,
    stale_files: Vec<&'a StaleFiles>,
}

impl<'a> Group<'a> {
    /// Groups leftovers by cluster, directory and [`Group::is_unknown`].
    pub(crate) fn of(stale_files: &'a [StaleFiles]) -> Vec<Self> {
        let mut groups: Vec<Self> = Vec::new();
        for stale in stale_files {
            let is_unknown = matches!(stale.what, StaleKind::UnknownMemory(_));
            let same = |group: &&mut Self| {
                (group.cluster, group.dir, group.is_unknown)
                    == (&stale.cluster, stale.dir.as_path(), is_unknown)
            };
            match groups.iter_mut().find(same) {
                Some(group) => group.stale_files.push(stale),
                None => groups.push(Self {
                    cluster: &stale.cluster,
                    is_unknown,
                    dir: &stale.dir,
                    stale_files: vec![stale],
                }),
            }
        }
        groups
    }

    pub(crate) fn files(&self) -> u64 {
        self.stale_files.iter().map(|stale| stale.files).sum()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.stale_files.iter().map(|stale| stale.bytes).sum()
    }

    /// Formats the ids of the machines: `machine(s) m1, m2`.
    fn machines(&self) -> String {
        let mut machines: Vec<_> = self.stale_files.iter().map(|stale| stale.machine).collect();
        machines.sort_unstable();
        machines.dedup();
        let names: Vec<String> = machines.iter().map(ToString::to_string).collect();
        format!("machine(s) {}", names.join(", "))
    }

    fn dir(&self) -> std::path::Display<'_> {
        self.dir.display()
    }

    /// Removes the leftovers whose machines have not started again. Returns the numbers of removed files and bytes.
    fn remove(&self) -> anyhow::Result<(u64, u64)> {
        let mut removed = (0, 0);
        for stale in &self.stale_files {
            let (files, bytes) = remove_stale_files(stale).with_context(|| {
                format!(
                    "cannot remove the files that machine {} of cluster \"{}\" left",
                    stale.machine, self.cluster
                )
            })?;
            removed = (removed.0 + files, removed.1 + bytes);
        }
        Ok(removed)
    }

    /// Returns shell commands that remove the files of unknown state.
    fn commands(&self) -> impl Iterator<Item = String> {
        self.stale_files
            .iter()
            .filter_map(|stale| match &stale.what {
                StaleKind::UnknownMemory(start) => {
                    let start = self.dir.join(format!("{start}-"));
                    Some(format!("rm {}*", quoted(&start)))
                }
                _ => None,
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression test: `rm /tmp/mem dir/farm-...`, pasted into a shell, removed `/tmp/mem`.
    #[test]
    fn commands_are_quoted() {
        let dir = Path::new("/tmp/mem dir");
        let stale = StaleFiles {
            cluster: String::new(),
            machine: farm_core::ids::MachineId::new(7).unwrap(),
            dir: dir.into(),
            files: 1,
            bytes: 0,
            what: StaleKind::UnknownMemory("farm-0-m7-l0".into()),
        };
        let stale_files = [stale];
        let commands: Vec<String> = Group::of(&stale_files)[0].commands().collect();
        assert_eq!(commands, ["rm '/tmp/mem dir/farm-0-m7-l0-'*"]);
        assert_eq!(quoted(Path::new("/dev/shm")), "/dev/shm");
    }
}
