//! Checks the directory of the configuration of a cluster with copies of its data.

use std::path::Path;

use farm_core::config::host::store_dir;
use farm_core::config::{Config, Fabric, rounded_size};
use farm_core::membership::directory::{Space, check_usable, space};
use farm_core::membership::earlier::{Found, find};
use farm_core::membership::encoding::{MOST_BYTES, most_bytes};
use farm_core::membership::files::KEPT;
use farm_core::membership::store::StoreError;

use super::{Finding, Level};
use crate::destroy::memory_of;

/// Topic of the findings.
const ABOUT: &str = "store";
/// Free space below which the disk is reported as nearly full.
const LITTLE_BYTES: u64 = 64 << 20;
/// Bytes that a small file takes at least.
const FILE_BYTES: u64 = 4096;

/// Checks the directory of the store, if the cluster has one. `options` are those of the command line that select the
/// configuration.
pub(super) fn findings(config: &Config, options: &str) -> Vec<Finding> {
    if !config.is_logged() {
        return Vec::new();
    }
    let dir = store_dir(config);
    let most = most_bytes_of(config);
    let found = content(&dir, (&config.cluster.name, config.keeps_memory()), options);
    let mut findings = vec![found];
    findings.extend(memory(config, &dir, options));
    if findings[0].level != Level::Problem {
        findings.extend(free(&dir, space(&dir).ok(), most));
    }
    findings.extend(regions(most));
    findings.extend(place(config));
    findings
}

/// Reports memory that machines have kept for a configuration that is not there.
fn memory(config: &Config, dir: &Path, options: &str) -> Option<Finding> {
    let is_gone = matches!(find(dir, &config.cluster.name), Ok(Found::Nothing));
    let kept = memory_of(config).ok().filter(|_| is_gone)?;
    // What a start has left that was no member, the next one removes.
    let first = kept.iter().find(|kept| kept.was_member())?;
    let fact = format!(
        "machine {} has kept memory for the configuration in {}, which is not there: the next start refuses",
        first.machine,
        dir.display()
    );
    let finding = Finding::new(Level::Problem, ABOUT, fact);
    let finding =
        finding.advice("bring the directory back; or, if the data is not needed, remove it");
    Some(finding.command(format!("farm destroy{options}")))
}

/// Reports on which host the directory is needed, if the machines can be on several ones.
fn place(config: &Config) -> Option<Finding> {
    let manager = config.storing_machines().map(|machine| machine.id).min()?;
    let fact = match config.survives_losses() {
        true => "all hosts need this directory: it must be on a file system that they share".into(),
        false => format!("only the host of machine {manager} needs this directory"),
    };
    let several = config.cluster.fabric == Fabric::Verbs;
    several.then(|| Finding::new(Level::Note, ABOUT, fact))
}

/// Returns the greatest number of bytes of a configuration of this cluster.
fn most_bytes_of(config: &Config) -> usize {
    let regions = config.total_memory() / config.memory.region_bytes.max(1);
    most_bytes(config.machines.len(), regions as usize, config.replicas())
}

/// Reports what is in the directory, and whether this user can use the directory. `resumes` says whether a start goes on with the data of an
/// earlier cluster.
fn content(dir: &Path, (cluster, resumes): (&str, bool), options: &str) -> Finding {
    let path = dir.display();
    let finding = |level, fact| Finding::new(level, ABOUT, fact);
    let unusable = |error: StoreError| {
        let fact = format!("the configuration of the cluster cannot be kept in {path}");
        finding(Level::Problem, fact).advice(error.to_string())
    };
    let found = match find(dir, cluster) {
        Ok(found) => found,
        Err(error) => return unusable(error),
    };
    if let Err((path, source)) = check_usable(dir) {
        let what = "create or use the directory of the configuration in";
        return unusable(StoreError::Io { what, path, source });
    }
    match found {
        Found::Nothing if dir.is_dir() => finding(Level::Ok, format!("{path} has no configuration; a start can use it")),
        Found::Nothing => finding(Level::Ok, format!("{path} does not exist; a start creates it")),
        Found::InUse => finding(Level::Note, format!("a running cluster keeps its configuration in {path}")),
        Found::Earlier(earlier) if resumes => finding(
            Level::Note,
            format!(
                "{path} has the configuration of cluster {cluster:?}, which has ended (change {}): the next start goes on with its data",
                earlier.change()
            ),
        )
        .advice("if the data is not needed, remove it")
        .command(format!("farm destroy{options}")),
        Found::Earlier(earlier) => finding(
            Level::Problem,
            format!(
                "{path} has the configuration of a cluster {cluster:?} that ran before (change {}): the next start refuses",
                earlier.change()
            ),
        )
        .advice(
            "its data was in the memory of its processes, which have ended: remove the configuration",
        )
        .command(format!("farm destroy{options}")),
    }
}

/// Reports a disk that is full, or nearly.
fn free(dir: &Path, space: Option<Space>, most: usize) -> Option<Finding> {
    let Space { bytes, files } = space?;
    let needed = (KEPT + 1) * (most.min(MOST_BYTES) as u64).next_multiple_of(FILE_BYTES);
    let path = dir.display();
    let level = match () {
        () if bytes < needed || files == Some(0) => Level::Problem,
        () if bytes < LITTLE_BYTES => Level::Advice,
        () => return None,
    };
    let fact = match files {
        Some(0) => format!("the disk of {path} has room for no further file"),
        _ => format!(
            "the disk of {path} has {} free; the configuration takes up to {}",
            rounded_size(bytes),
            rounded_size(needed)
        ),
    };
    let finding = Finding::new(level, ABOUT, fact);
    Some(finding.advice(
        "on a full disk new regions cannot be recorded, so that tables cannot grow: free some space there; a new \
         cluster can have durability.dir on another disk",
    ))
}

/// Reports a cluster whose configuration becomes too large if it uses all memory.
fn regions(most: usize) -> Option<Finding> {
    if most <= MOST_BYTES {
        return None;
    }
    let fact = format!(
        "the configuration can grow to {}, and may have at most {}",
        rounded_size(most as u64),
        rounded_size(MOST_BYTES as u64)
    );
    let advice = "the last regions could not be used: raise memory.region_bytes";
    Some(Finding::new(Level::Advice, ABOUT, fact).advice(advice))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn a_disk_that_is_full_or_nearly_is_reported() {
        let dir = PathBuf::from("/store");
        let level =
            |bytes, files| free(&dir, Some(Space { bytes, files }), 3000).map(|found| found.level);
        let needed = 17 * 4096;
        assert_eq!(level(needed - 1, None), Some(Level::Problem));
        assert_eq!(level(needed, None), Some(Level::Advice));
        assert_eq!(level(LITTLE_BYTES, None), None);
        assert_eq!(level(LITTLE_BYTES, Some(0)), Some(Level::Problem));
        assert_eq!(level(LITTLE_BYTES, Some(1)), None);
        let found = free(
            &dir,
            Some(Space {
                bytes: 0,
                files: None,
            }),
            3000,
        )
        .unwrap();
        assert!(
            found.fact.contains("0 B free") && found.fact.contains("68 KiB"),
            "{found:?}"
        );
        assert!(free(&dir, None, 3000).is_none());
    }

    #[test]
    fn too_many_regions_are_reported() {
        assert_eq!(regions(MOST_BYTES), None);
        let found = regions(MOST_BYTES + 1).unwrap();
        assert!(found.advice.unwrap().contains("memory.region_bytes"));
        let config = farm_kv::config::default_for(3, 1);
        assert!(most_bytes_of(&config) < 10_000);
    }
}
