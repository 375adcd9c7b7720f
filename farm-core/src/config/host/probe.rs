//! Examining the host: `/proc`, `/sys`, and a few system calls.
//!
//! A value that cannot be read counts as missing. A probe never fails, because its findings help to
//! explain why another operation failed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access, statvfs};
use rustix::process::{Resource, getrlimit, getuid};
use rustix::thread::{CpuSet, sched_getaffinity};

use super::super::{Config, RunDir};
use super::cgroup;
use super::files::{Files, Mount, mounts};
use super::{DirFacts, HostFacts, HugeMount, HugePagePool, RdmaDevice};
use crate::limits::{KIB, MAX_SOCKET_PATH_BYTES, SOCKET_NAME_BYTES};
use crate::mem::{HUGE_PAGE_BYTES, Mapping};

/// Examines this host. Regions will be files in `memory_dir`.
pub fn probe(memory_dir: &Path) -> HostFacts {
    probe_under(Path::new("/"), memory_dir)
}

/// Examines this host as [`probe`] does, and also opens every RDMA device to query its
/// capabilities.
pub fn probe_with_devices(memory_dir: &Path) -> HostFacts {
    let mut facts = probe(memory_dir);
    match crate::fabric::verbs::devices() {
        Ok(devices) => facts.verbs_devices = devices,
        Err(error) => facts.verbs_problem = Some(error.to_string()),
    }
    facts
}

/// Returns the directory of sockets and locks of `config`, on this host and for this user.
///
/// If the configuration does not name a directory, this is `$XDG_RUNTIME_DIR/farm`, or
/// `/tmp/farm-<uid>` if that variable is not set to an absolute path or the path would be too long
/// for a socket. The caller must create it with access for this user only.
pub fn run_dir(config: &Config) -> PathBuf {
    if let RunDir::Path(path) = &config.cluster.run_dir {
        return path.clone();
    }
    #[expect(
        clippy::disallowed_methods,
        reason = "the default directory depends on the environment variable XDG_RUNTIME_DIR"
    )]
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    automatic_run_dir(runtime, getuid().as_raw())
}

/// Returns the directory of the configuration of a replicated cluster: `durability.dir`, or by default one beside the sockets of
/// the cluster.
pub fn store_dir(config: &Config) -> PathBuf {
    match &config.durability.dir {
        Some(dir) => dir.clone(),
        None => run_dir(config).join(format!("{}.config", config.cluster.name)),
    }
}

fn automatic_run_dir(runtime: Option<PathBuf>, user_id: u32) -> PathBuf {
    let fits = |dir: &PathBuf| {
        dir.is_absolute() && dir.as_os_str().len() + SOCKET_NAME_BYTES <= MAX_SOCKET_PATH_BYTES
    };
    runtime
        .map(|dir| dir.join("farm"))
        .filter(fits)
        .unwrap_or_else(|| PathBuf::from(format!("/tmp/farm-{user_id}")))
}

/// Examines the host whose files are below `root`.
fn probe_under(root: &Path, memory_dir: &Path) -> HostFacts {
    let files = Files { root };
    let meminfo = meminfo(&files.text("/proc/meminfo"));
    let memory = |name: &str| meminfo.get(name).copied().unwrap_or(0);
    let mounts = mounts(&files.text("/proc/self/mountinfo"));
    let cores_allowed = cores_allowed();
    let online = core_list(&files.text("/sys/devices/system/cpu/online")).len();
    let huge_page_pools = huge_page_pools(&files);
    HostFacts {
        kernel: format!("Linux {}", files.text("/proc/sys/kernel/osrelease").trim()),
        cores_online: online.max(cores_allowed.len()),
        cores_allowed,
        cpu_quota_cores: cgroup::cpu_quota(&files, &mounts),
        memory_total_bytes: memory("MemTotal"),
        memory_available_bytes: memory("MemAvailable"),
        cgroup: cgroup::memory(&files, &mounts),
        memory_dir: dir_facts(memory_dir, &mounts, &huge_page_pools),
        huge_mounts: huge_mounts(&mounts),
        huge_page_pools,
        thp: chosen(&files.text("/sys/kernel/mm/transparent_hugepage/enabled")),
        thp_shmem: chosen(&files.text("/sys/kernel/mm/transparent_hugepage/shmem_enabled")),
        memlock_bytes: getrlimit(Resource::Memlock).current,
        rdma_devices: rdma_devices(&files),
        verbs_devices: Vec::new(),
        verbs_problem: None,
        user_id: getuid().as_raw(),
    }
}

/// Parses the lines in kB of `/proc/meminfo`, into bytes.
fn meminfo(text: &str) -> BTreeMap<String, u64> {
    let entry = |line: &str| {
        let (name, value) = line.split_once(':')?;
        let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some((name.to_owned(), kib * KIB))
    };
    text.lines().filter_map(entry).collect()
}

/// Parses a list of cores such as `0-3,8`.
fn core_list(text: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse::<u32>().ok()?..=last.trim().parse::<u32>().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

/// Returns the word in brackets: `madvise` of `always [madvise] never`.
fn chosen(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word.to_owned())
}

/// Returns the cores on which the calling thread may run, in ascending order; none if the system does not report them.
pub fn cores_allowed() -> Vec<u32> {
    let Ok(set) = sched_getaffinity(None) else {
        return Vec::new();
    };
    let is_set = |core: &usize| set.is_set(*core);
    (0..CpuSet::MAX_CPU)
        .filter(is_set)
        .map(|core| core as u32)
        .collect()
}

fn huge_page_pools(files: &Files<'_>) -> Vec<HugePagePool> {
    let dir = Path::new("/sys/kernel/mm/hugepages");
    let pool = |name: String| {
        let kib: u64 = name
            .strip_prefix("hugepages-")?
            .strip_suffix("kB")?
            .parse()
            .ok()?;
        let number = |file: &str| files.number(dir.join(&name).join(file)).unwrap_or(0);
        let promised = number("resv_hugepages");
        Some(HugePagePool {
            page_bytes: kib * KIB,
            total: number("nr_hugepages"),
            free: number("free_hugepages").saturating_sub(promised),
        })
    };
    let mut pools: Vec<HugePagePool> = files.names(dir).into_iter().filter_map(pool).collect();
    pools.sort_by_key(|pool| pool.page_bytes);
    pools
}

fn may_write(path: &Path) -> bool {
    access(path, Access::WRITE_OK).is_ok()
}

fn huge_mounts(mounts: &[Mount]) -> Vec<HugeMount> {
    let huge = |mount: &Mount| {
        let option = match mount.filesystem.as_str() {
            "hugetlbfs" => format!("pagesize={}", mount.option("pagesize").unwrap_or("default")),
            "tmpfs" => match mount.option("huge") {
                None | Some("never") => return None,
                Some(huge) => format!("huge={huge}"),
            },
            _ => return None,
        };
        Some(HugeMount {
            path: mount.point.clone(),
            filesystem: mount.filesystem.clone(),
            option,
            writable: may_write(&mount.point),
        })
    };
    mounts.iter().filter_map(huge).collect()
}

/// Returns the mount of `path`: the last of those with the longest mount point.
fn mount_of<'a>(path: &Path, mounts: &'a [Mount]) -> Option<&'a Mount> {
    mounts
        .iter()
        .filter(|mount| path.starts_with(&mount.point))
        .max_by_key(|mount| mount.point.components().count())
}

fn dir_facts(path: &Path, mounts: &[Mount], pools: &[HugePagePool]) -> DirFacts {
    let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mount = mount_of(&real, mounts);
    let mut facts = DirFacts {
        path: path.to_owned(),
        exists: real.is_dir(),
        writable: may_write(&real),
        filesystem: mount.map_or_else(String::new, |mount| mount.filesystem.clone()),
        huge: mount
            .and_then(|mount| mount.option("huge"))
            .map(str::to_owned),
        ..DirFacts::default()
    };
    facts.huge_on_request = facts.filesystem == "tmpfs"
        && facts.writable
        && Mapping::page_bytes_of(&real, true).is_ok_and(|bytes| bytes >= HUGE_PAGE_BYTES);
    let Ok(stat) = statvfs(&real) else {
        return facts;
    };
    // A tmpfs or hugetlbfs without a limit reports 0 blocks.
    if stat.f_blocks > 0 {
        facts.total_bytes = Some(stat.f_blocks.saturating_mul(stat.f_frsize));
        facts.free_bytes = Some(stat.f_bavail.saturating_mul(stat.f_frsize));
    }
    if facts.is_hugetlbfs() {
        facts.huge_page_bytes = Some(stat.f_bsize);
        let pool = pools.iter().find(|pool| pool.page_bytes == stat.f_bsize);
        let free = pool.map_or(0, |pool| pool.free * pool.page_bytes);
        facts.free_bytes = Some(facts.free_bytes.map_or(free, |bytes| bytes.min(free)));
    }
    facts
}

fn rdma_devices(files: &Files<'_>) -> Vec<RdmaDevice> {
    let devices = Path::new("/sys/class/infiniband");
    let device = |name: String| {
        let ports = devices.join(&name).join("ports");
        let port = |number: String| {
            let state = files.text(ports.join(&number).join("state"));
            let state = state
                .trim()
                .split_once(": ")
                .map_or("unknown", |(_, state)| state);
            let layer = files.text(ports.join(&number).join("link_layer"));
            format!("{number} {state} {}", layer.trim())
                .trim_end()
                .to_owned()
        };
        RdmaDevice {
            ports: files.names(&ports).into_iter().map(port).collect(),
            name,
        }
    };
    files.names(devices).into_iter().map(device).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_has_cores_memory_and_a_directory_for_regions() {
        let facts = probe(Path::new("/dev/shm"));
        assert!(!facts.cores_allowed.is_empty());
        assert!(facts.cores_online >= facts.cores_allowed.len());
        assert!(facts.memory_total_bytes >= facts.memory_available_bytes);
        assert!(facts.memory_available_bytes > 0);
        assert!(facts.memory_dir.exists && !facts.memory_dir.filesystem.is_empty());
        assert!(facts.kernel.len() > "Linux ".len());
    }

    #[test]
    fn a_missing_directory_is_reported_as_a_fact() {
        let facts = probe(Path::new("/nowhere/at/all"));
        assert!(!facts.memory_dir.exists && !facts.memory_dir.writable);
        assert_eq!(facts.memory_dir.free_bytes, None);
    }

    #[test]
    fn a_host_without_files_has_empty_facts() {
        let empty = tempfile::tempdir().expect("a directory");
        let facts = probe_under(empty.path(), Path::new("/dev/shm"));
        assert_eq!(facts.memory_total_bytes, 0);
        assert_eq!((facts.cgroup, facts.thp_shmem), (None, None));
        assert!(facts.rdma_devices.is_empty() && facts.huge_page_pools.is_empty());
    }

    #[test]
    fn devices_pools_and_settings_are_read() {
        let root = tempfile::tempdir().expect("a directory");
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
            fs::write(path, text).expect("a file");
        };
        write("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
        write(
            "sys/class/infiniband/mlx5_0/ports/1/link_layer",
            "Ethernet\n",
        );
        write(
            "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
            "512\n",
        );
        write(
            "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages",
            "500\n",
        );
        write(
            "sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages",
            "100\n",
        );
        write(
            "sys/kernel/mm/transparent_hugepage/shmem_enabled",
            "always [never] deny\n",
        );
        write(
            "proc/meminfo",
            "MemTotal: 1024 kB\nMemAvailable:  512 kB\nHugePages_Total: 0\n",
        );
        write("sys/devices/system/cpu/online", "0-2047,4000\n");
        let facts = probe_under(root.path(), Path::new("/dev/shm"));
        assert_eq!(facts.rdma_devices[0].name, "mlx5_0");
        assert_eq!(facts.rdma_devices[0].ports, ["1 ACTIVE Ethernet"]);
        let pool = HugePagePool {
            page_bytes: 2 << 20,
            total: 512,
            free: 400,
        };
        assert_eq!(facts.huge_page_pools, [pool]);
        assert_eq!(facts.thp_shmem.as_deref(), Some("never"));
        assert_eq!(
            (facts.memory_total_bytes, facts.memory_available_bytes),
            (1 << 20, 512 << 10)
        );
        assert_eq!(facts.cores_online, 2049);
    }

    #[test]
    fn mounts_are_read_with_their_options_and_odd_paths() {
        let mounts = mounts(
            "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard\n\
             25 24 0:23 / /dev/shm rw shared:7 - tmpfs tmpfs rw,size=24684084k\n\
             42 27 0:39 / /mnt/huge\\040pages rw - tmpfs farm rw,size=1k,huge=always\n\
             nonsense\n",
        );
        assert_eq!(mounts.len(), 3);
        assert_eq!(mounts[2].point, Path::new("/mnt/huge pages"));
        assert_eq!(mounts[2].option("huge"), Some("always"));
        assert_eq!(mount_of(Path::new("/dev/shm/x"), &mounts), Some(&mounts[1]));
        assert_eq!(
            mount_of(Path::new("/dev/shmother"), &mounts),
            Some(&mounts[0])
        );
        let huge = huge_mounts(&mounts);
        assert_eq!(huge.len(), 1);
        assert_eq!(huge[0].option, "huge=always");
    }

    #[test]
    fn lists_of_cores_are_ranges() {
        assert_eq!(core_list("0-2,5\n"), [0, 1, 2, 5]);
        assert_eq!(core_list(""), [0u32; 0]);
    }

    #[test]
    fn sockets_go_to_the_users_runtime_directory_or_tmp() {
        let automatic = |dir: Option<&str>| automatic_run_dir(dir.map(PathBuf::from), 1000);
        assert_eq!(
            automatic(Some("/run/user/1000")),
            Path::new("/run/user/1000/farm")
        );
        assert_eq!(automatic(None), Path::new("/tmp/farm-1000"));
        assert_eq!(automatic(Some("relative")), Path::new("/tmp/farm-1000"));
        let long = format!("/{}", "x".repeat(100));
        assert_eq!(automatic(Some(&long)), Path::new("/tmp/farm-1000"));
    }
}
