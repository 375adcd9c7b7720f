//! The limits of the control groups of this process, for both versions of the cgroup interface.
//!
//! A group's limit also applies to its descendants. Therefore every group from this process's own
//! group up to the mounted root is read, and the tightest limit counts.

use std::path::{Path, PathBuf};

use super::CgroupMemory;
use super::files::{Files, Mount};

/// Version 1 represents "no limit" by a number close to the maximum.
const NO_LIMIT: u64 = 1 << 60;

/// The directories of a control group and of its ancestors, and the version of the interface.
struct Groups {
    version: u8,
    /// Directories from this process's own group up to the mounted root.
    paths: Vec<PathBuf>,
}

/// Returns the memory cgroup with the least available memory, if any has a limit.
pub(super) fn memory(files: &Files<'_>, mounts: &[Mount]) -> Option<CgroupMemory> {
    let groups = groups(files, mounts, "memory")?;
    let limit_of = |path: &PathBuf| {
        let (limit, used, cached) = match groups.version {
            1 => (
                files.number(path.join("memory.limit_in_bytes"))?,
                files.number(path.join("memory.usage_in_bytes"))?,
                ["total_inactive_file", "total_active_file"],
            ),
            _ => (
                files.number(path.join("memory.max"))?,
                files.number(path.join("memory.current"))?,
                ["inactive_file", "active_file"],
            ),
        };
        if limit >= NO_LIMIT {
            return None;
        }
        let stat = files.text(path.join("memory.stat"));
        let cached: u64 = cached.iter().filter_map(|name| entry(&stat, name)).sum();
        let version = groups.version;
        let available_bytes = limit.saturating_sub(used.saturating_sub(cached));
        Some(CgroupMemory {
            version,
            path: path.clone(),
            limit_bytes: limit,
            available_bytes,
        })
    };
    groups
        .paths
        .iter()
        .filter_map(limit_of)
        .min_by_key(|cgroup| cgroup.available_bytes)
}

/// Returns the CPU time, in cores, that this process's cgroups grant, if any limits it.
pub(super) fn cpu_quota(files: &Files<'_>, mounts: &[Mount]) -> Option<f64> {
    let groups = groups(files, mounts, "cpu")?;
    let quota_of = |path: &PathBuf| {
        let (quota, period) = match groups.version {
            1 => (
                files.number(path.join("cpu.cfs_quota_us"))?,
                files.number(path.join("cpu.cfs_period_us"))?,
            ),
            _ => {
                let text = files.text(path.join("cpu.max"));
                let (quota, period) = text.trim().split_once(' ')?;
                (quota.parse().ok()?, period.parse().ok()?)
            }
        };
        (period > 0).then(|| quota as f64 / period as f64)
    };
    groups
        .paths
        .iter()
        .filter_map(quota_of)
        .min_by(f64::total_cmp)
}

/// Returns the value of a line `name value` of a statistics file.
fn entry(stat: &str, name: &str) -> Option<u64> {
    let value = stat
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    value.trim().parse().ok()
}

/// Returns the groups of this process for `controller`: version 1 if it has the controller, else
/// version 2.
fn groups(files: &Files<'_>, mounts: &[Mount], controller: &str) -> Option<Groups> {
    let memberships = files.text("/proc/self/cgroup");
    let membership = |wanted: &dyn Fn(&str, &str) -> bool| {
        memberships.lines().find_map(|line| {
            let (hierarchy, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            wanted(hierarchy, controllers).then(|| PathBuf::from(path))
        })
    };
    let version1 = |mount: &&Mount| {
        mount.filesystem == "cgroup" && mount.options.iter().any(|option| option == controller)
    };
    if let Some(mount) = mounts.iter().find(version1) {
        let wanted = |_: &str, names: &str| names.split(',').any(|name| name == controller);
        let path = membership(&wanted).unwrap_or_default();
        return Some(Groups {
            version: 1,
            paths: upwards(files, mount, &path),
        });
    }
    let mount = mounts.iter().find(|mount| mount.filesystem == "cgroup2")?;
    let path = membership(&|hierarchy, _| hierarchy == "0").unwrap_or_default();
    Some(Groups {
        version: 2,
        paths: upwards(files, mount, &path),
    })
}

/// Returns the directories of the group `path` and its ancestors below `mount`. In a container,
/// `path` may be a path on the host, of which only the part below the mount's root is visible.
fn upwards(files: &Files<'_>, mount: &Mount, path: &Path) -> Vec<PathBuf> {
    let below = path
        .strip_prefix(&mount.root)
        .or_else(|_| path.strip_prefix("/"))
        .unwrap_or(path);
    let own = mount.point.join(below);
    let own = if files.is_dir(&own) {
        own
    } else {
        mount.point.clone()
    };
    own.ancestors()
        .take_while(|ancestor| ancestor.starts_with(&mount.point))
        .map(Path::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::files;
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Creates a host from the given files.
    fn host(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("create a temporary directory");
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent directory"))
                .expect("create the directory");
            fs::write(path, text).expect("a file");
        }
        root
    }

    fn memory_of(root: &Path, mounts: &str) -> Option<CgroupMemory> {
        memory(&Files { root }, &files::mounts(mounts))
    }

    const V2: &str = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
    const V1: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

    #[test]
    fn version_2_counts_the_tightest_ancestor_and_not_the_file_cache() {
        let root = host(&[
            ("proc/self/cgroup", "0::/user.slice/job\n"),
            ("sys/fs/cgroup/user.slice/memory.max", "1073741824\n"),
            ("sys/fs/cgroup/user.slice/memory.current", "536870912\n"),
            (
                "sys/fs/cgroup/user.slice/memory.stat",
                "anon 5\ninactive_file 104857600\n",
            ),
            ("sys/fs/cgroup/user.slice/job/memory.max", "max\n"),
            ("sys/fs/cgroup/user.slice/job/memory.current", "1000\n"),
        ]);
        let cgroup = memory_of(root.path(), V2).expect("a limit");
        assert_eq!(cgroup.version, 2);
        assert_eq!(cgroup.path, Path::new("/sys/fs/cgroup/user.slice"));
        assert_eq!(cgroup.limit_bytes, 1024 * MIB);
        assert_eq!(cgroup.available_bytes, (1024 - 512 + 100) * MIB);
    }

    #[test]
    fn version_1_is_used_if_it_has_the_controller() {
        let root = host(&[
            (
                "proc/self/cgroup",
                "4:memory:/job\n1:cpu,cpuacct:/job\n0::/\n",
            ),
            (
                "sys/fs/cgroup/memory/memory.limit_in_bytes",
                "9223372036854771712\n",
            ),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "4096\n"),
            (
                "sys/fs/cgroup/memory/job/memory.limit_in_bytes",
                "1048576\n",
            ),
            (
                "sys/fs/cgroup/memory/job/memory.usage_in_bytes",
                "2097152\n",
            ),
            ("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "150000\n"),
            ("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n"),
        ]);
        let cgroup = memory_of(root.path(), V1).expect("a limit");
        assert_eq!((cgroup.version, cgroup.limit_bytes), (1, MIB));
        assert_eq!(
            cgroup.available_bytes, 0,
            "more used than allowed leaves nothing"
        );
        let files = Files { root: root.path() };
        assert_eq!(cpu_quota(&files, &files::mounts(V1)), Some(1.5));
    }

    #[test]
    fn in_a_container_the_mounted_root_is_the_own_group() {
        let mounts = "35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        for membership in ["4:memory:/docker/abc\n", "4:memory:/elsewhere\n"] {
            let root = host(&[
                ("proc/self/cgroup", membership),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "1048576\n"),
                ("sys/fs/cgroup/memory/memory.usage_in_bytes", "0\n"),
            ]);
            let cgroup = memory_of(root.path(), mounts).expect("a limit");
            assert_eq!(cgroup.available_bytes, MIB);
        }
    }

    #[test]
    fn no_limit_is_none() {
        let root = host(&[
            ("proc/self/cgroup", "0::/\n"),
            ("sys/fs/cgroup/memory.max", "max\n"),
            ("sys/fs/cgroup/memory.current", "1\n"),
            ("sys/fs/cgroup/cpu.max", "max 100000\n"),
        ]);
        assert_eq!(memory_of(root.path(), V2), None);
        assert_eq!(
            cpu_quota(&Files { root: root.path() }, &files::mounts(V2)),
            None
        );
        assert_eq!(memory_of(root.path(), ""), None, "without cgroups at all");
    }
}
