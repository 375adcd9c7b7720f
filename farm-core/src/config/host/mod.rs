//! The resources of the host, and whether they suffice for a configuration.
//!
//! [`probe`] examines the host. Everything else evaluates [`HostFacts`], which are plain data, so
//! the evaluation can be tested for hosts that are not available.

mod cgroup;
mod files;
mod probe;

use std::path::PathBuf;

use serde::Serialize;

use super::{Config, Fabric, HugePages, MachineConfig, exact_size, rounded_size};
use crate::fabric::verbs::DeviceReport;
use crate::ids::MachineId;
use crate::limits::{GIB, MIB};
use crate::mem::HUGE_PAGE_BYTES;

pub use probe::{cores_allowed, probe, probe_with_devices, run_dir, store_dir};

/// The resources that a host offers a cluster.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct HostFacts {
    /// Name and release of the kernel.
    pub kernel: String,
    /// Number of cores that are online.
    pub cores_online: usize,
    /// Numbers of the cores on which this process may run.
    pub cores_allowed: Vec<u32>,
    /// CPU time in cores that the cgroup grants, if it limits the time.
    pub cpu_quota_cores: Option<f64>,
    /// Memory of the host, in bytes.
    pub memory_total_bytes: u64,
    /// Memory available without swapping, in bytes.
    pub memory_available_bytes: u64,
    /// The memory cgroup with the least available memory, if any has a limit.
    pub cgroup: Option<CgroupMemory>,
    /// The directory in which regions are stored as files.
    pub memory_dir: DirFacts,
    /// Pools of huge pages reserved at boot or later.
    pub huge_page_pools: Vec<HugePagePool>,
    /// Mounts that provide huge pages: hugetlbfs, and tmpfs with `huge=`.
    pub huge_mounts: Vec<HugeMount>,
    /// The setting of transparent huge pages for private memory, such as `madvise`.
    pub thp: Option<String>,
    /// The setting of transparent huge pages for shared memory, such as `never`.
    pub thp_shmem: Option<String>,
    /// Maximum number of bytes that this process may lock in memory; `None` if unlimited.
    pub memlock_bytes: Option<u64>,
    /// RDMA devices listed by the kernel.
    pub rdma_devices: Vec<RdmaDevice>,
    /// RDMA devices listed by libibverbs, if it was queried.
    pub verbs_devices: Vec<DeviceReport>,
    /// Why libibverbs lists no devices, if there is a reason.
    pub verbs_problem: Option<String>,
    /// User id; 0 is root.
    pub user_id: u32,
}

/// The limit of a memory cgroup, and the remaining memory.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct CgroupMemory {
    /// Version of the cgroup interface: 1 or 2.
    pub version: u8,
    /// Directory of the cgroup.
    pub path: PathBuf,
    /// Limit in bytes.
    pub limit_bytes: u64,
    /// Available bytes: the limit minus the used bytes, where cached files do not count as used.
    pub available_bytes: u64,
}

impl HostFacts {
    /// Counts these bytes of files in the directory of regions as free: a machine that starts takes them over.
    pub fn take_over(&mut self, bytes: u64) {
        let directory = self.memory_dir.free_bytes.iter_mut();
        let host = std::iter::once(&mut self.memory_available_bytes);
        let cgroup = self.cgroup.iter_mut();
        let cgroup = cgroup.map(|cgroup| &mut cgroup.available_bytes);
        for free in directory.chain(host).chain(cgroup) {
            *free = free.saturating_add(bytes);
        }
    }
}

/// A directory in which regions are stored as files.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct DirFacts {
    /// Path of the directory.
    pub path: PathBuf,
    /// Whether the directory exists.
    pub exists: bool,
    /// Whether this user may create files in the directory.
    pub writable: bool,
    /// Type of the directory's file system: `tmpfs`, `hugetlbfs`, `ext4` …
    pub filesystem: String,
    /// Value of the mount option `huge=`.
    pub huge: Option<String>,
    /// Whether the kernel provides huge pages for a file here on request (madvise), independent of
    /// the mount's option. Determined by a test file.
    pub huge_on_request: bool,
    /// Page size in bytes, if the file system is hugetlbfs.
    pub huge_page_bytes: Option<u64>,
    /// Capacity in bytes; `None` if unlimited.
    pub total_bytes: Option<u64>,
    /// Free bytes; `None` if unlimited.
    pub free_bytes: Option<u64>,
}

impl DirFacts {
    /// Returns whether files here are in memory and not on a disk.
    pub fn in_memory(&self) -> bool {
        matches!(
            self.filesystem.as_str(),
            "tmpfs" | "hugetlbfs" | "ramfs" | "devtmpfs"
        )
    }

    /// Returns whether the file system is hugetlbfs, whose pages come from a pool.
    pub fn is_hugetlbfs(&self) -> bool {
        self.filesystem == "hugetlbfs"
    }
}

impl HostFacts {
    /// Returns whether files in the directory of regions can be mapped with huge pages, including
    /// transparent huge pages.
    pub fn offers_huge_pages(&self) -> bool {
        let dir = &self.memory_dir;
        if dir.is_hugetlbfs() || dir.huge_on_request {
            return true;
        }
        // `force` and `deny` override the mounts. Every other setting applies only to shared memory
        // without a mount.
        dir.filesystem == "tmpfs"
            && match self.thp_shmem.as_deref() {
                Some("force") => true,
                None | Some("deny") => false,
                Some(_) => dir.huge.as_deref().is_some_and(|huge| huge != "never"),
            }
    }

    /// Returns whether memory outside files, as RDMA devices use it, can have huge pages, including
    /// transparent huge pages.
    pub fn offers_private_huge_pages(&self) -> bool {
        let on_request = self.thp.as_deref();
        self.huge_pool_bytes() > 0 || on_request.is_some_and(|thp| thp != "never")
    }

    /// Returns the free bytes of the pool from which private huge pages come.
    pub fn huge_pool_bytes(&self) -> u64 {
        let size = HUGE_PAGE_BYTES as u64;
        let pools = self.huge_page_pools.iter();
        let pool = pools.filter(|pool| pool.page_bytes == size);
        pool.map(|pool| pool.free.saturating_mul(size)).sum()
    }

    /// Returns the number of cores that workers can use: the allowed cores, or fewer if CPU time is
    /// limited.
    pub fn usable_cores(&self) -> usize {
        let allowed = self.cores_allowed.len().max(1);
        match self.cpu_quota_cores {
            Some(quota) => allowed.min((quota.floor() as usize).max(1)),
            None => allowed,
        }
    }
}

/// A pool of huge pages of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct HugePagePool {
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Pages in the pool.
    pub total: u64,
    /// Pages that are neither used nor reserved.
    pub free: u64,
}

/// A mount that provides huge pages.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct HugeMount {
    /// Mount point.
    pub path: PathBuf,
    /// `tmpfs` or `hugetlbfs`.
    pub filesystem: String,
    /// Option such as `huge=always`, or the page size.
    pub option: String,
    /// Whether this user may create files in it.
    pub writable: bool,
}

/// An RDMA device.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct RdmaDevice {
    /// Device name, such as `mlx5_0`.
    pub name: String,
    /// Ports, each as number, state and link layer: `1 ACTIVE Ethernet`.
    pub ports: Vec<String>,
}

/// The memory that machines take from their host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct MemoryNeed {
    /// Number of machines.
    pub machines: u64,
    /// Maximum number of bytes of regions.
    pub regions_bytes: u64,
    /// Bytes of rings and logs: one of each per sending worker and receiving machine, without logs
    /// within a machine.
    pub rings_bytes: u64,
    /// Approximate bytes that the processes take in addition.
    pub process_bytes: u64,
}

/// Bytes of a process without workers.
const MACHINE_PROCESS_BYTES: u64 = 16 * MIB;
/// Bytes that each worker adds: stack, arena, slabs.
const WORKER_PROCESS_BYTES: u64 = 8 * MIB;

impl MemoryNeed {
    /// Returns the need of all machines together.
    pub fn of_cluster(config: &Config) -> MemoryNeed {
        config
            .machines
            .iter()
            .fold(MemoryNeed::default(), |sum, machine| {
                let one = MemoryNeed::of_machine(config, machine.id);
                MemoryNeed {
                    machines: sum.machines + one.machines,
                    regions_bytes: sum.regions_bytes.saturating_add(one.regions_bytes),
                    rings_bytes: sum.rings_bytes.saturating_add(one.rings_bytes),
                    process_bytes: sum.process_bytes.saturating_add(one.process_bytes),
                }
            })
    }

    /// Returns the need of machine `id`.
    pub fn of_machine(config: &Config, id: MachineId) -> MemoryNeed {
        let Some(machine) = config.machine(id) else {
            return MemoryNeed::default();
        };
        let workers = u64::from(machine.workers);
        // A machine's own workers count as senders too, because a ring within a machine takes the
        // same memory.
        let senders = config.total_workers() as u64;
        let rings = senders.saturating_mul(config.rings.ring_bytes);
        let logs = senders
            .saturating_sub(workers)
            .saturating_mul(config.rings.log_bytes);
        let rings = rings.saturating_add(logs);
        MemoryNeed {
            machines: 1,
            regions_bytes: config.memory_of(id),
            rings_bytes: rings,
            process_bytes: MACHINE_PROCESS_BYTES + workers * WORKER_PROCESS_BYTES,
        }
    }

    /// Returns the bytes that other machines access: files in the directory of regions, or memory
    /// registered with RDMA devices.
    pub fn exported_bytes(&self) -> u64 {
        self.regions_bytes.saturating_add(self.rings_bytes)
    }

    /// Returns all bytes.
    pub fn total_bytes(&self) -> u64 {
        self.exported_bytes().saturating_add(self.process_bytes)
    }
}

/// Why a host cannot run a configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// The directory of regions is missing or not writable.
    #[error(
        "memory.dir = {:?}: {why}; create it, or set memory.dir to a directory in memory such as \
         \"/dev/shm\"",
        path.display().to_string()
    )]
    Directory {
        /// Path of the directory.
        path: PathBuf,
        /// The problem with the directory.
        why: &'static str,
    },
    /// Huge pages are required, but the directory provides none.
    #[error(
        "memory.huge_pages = \"require\", but memory.dir = {:?} provides no huge pages; set memory.dir \
         to a hugetlbfs or a tmpfs mounted with huge=always (`farm doctor` prints the command), or \
         memory.huge_pages to \"try\"",
        path.display().to_string()
    )]
    NoHugePages {
        /// Path of the directory.
        path: PathBuf,
    },
    /// Huge pages are required, but the host provides none for memory outside files.
    #[error(
        "memory.huge_pages = \"require\", but this host has none for the memory that RDMA devices use: reserve \
         some (sysctl -w vm.nr_hugepages=N, each of 2 MiB), allow transparent ones (echo madvise > \
         /sys/kernel/mm/transparent_hugepage/enabled), or set memory.huge_pages to \"try\""
    )]
    NoPrivateHugePages,
    /// The machines may take more memory than is available.
    #[error(
        "{machines} machine(s) may take {} of memory ({} of regions, {} of rings, about {} for the \
         processes), but {limit}; {advice}",
        rounded_size(*needed_bytes), rounded_size(need.regions_bytes),
        rounded_size(need.rings_bytes), rounded_size(need.process_bytes),
        machines = need.machines
    )]
    TooMuchMemory {
        /// The need of the machines.
        need: MemoryNeed,
        /// The part of the need that counts against the limit, in bytes.
        needed_bytes: u64,
        /// The exceeded limit.
        limit: MemoryLimit,
        /// Which keys to lower, and to what.
        advice: String,
    },
}

/// A limit on the memory of machines.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryLimit {
    /// The free space of the directory of regions.
    #[error("{} has only {} of free space", path.display(), rounded_size(*free_bytes))]
    Directory {
        /// Path of the directory.
        path: PathBuf,
        /// Free bytes of the directory.
        free_bytes: u64,
    },
    /// The host's memory.
    #[error(
        "the host has only {} of memory available, of {} in total",
        rounded_size(*available_bytes), rounded_size(*total_bytes)
    )]
    Host {
        /// Memory available without swapping, in bytes.
        available_bytes: u64,
        /// Memory of the host, in bytes.
        total_bytes: u64,
    },
    /// The limit of a cgroup.
    #[error(
        "the memory cgroup (v{}) {} leaves only {} of its {}", cgroup.version,
        cgroup.path.display(), rounded_size(cgroup.available_bytes), rounded_size(cgroup.limit_bytes)
    )]
    Cgroup {
        /// The cgroup.
        cgroup: CgroupMemory,
    },
}

impl MemoryLimit {
    fn available_bytes(&self) -> u64 {
        match self {
            MemoryLimit::Directory { free_bytes, .. } => *free_bytes,
            MemoryLimit::Host {
                available_bytes, ..
            } => *available_bytes,
            MemoryLimit::Cgroup { cgroup } => cgroup.available_bytes,
        }
    }
}

/// Checks that the host can run all machines of `config`, before any is started.
///
/// # Errors
///
/// The missing resources, in numbers, and which keys to lower.
pub fn check_memory(config: &Config, facts: &HostFacts) -> Result<(), HostError> {
    check_need(config, facts, MemoryNeed::of_cluster(config))
}

/// Checks that the host can run machine `id` of `config` in addition to the processes that already
/// run.
///
/// # Errors
///
/// As [`check_memory`].
pub fn check_machine_memory(
    config: &Config,
    id: MachineId,
    facts: &HostFacts,
) -> Result<(), HostError> {
    check_need(config, facts, MemoryNeed::of_machine(config, id))
}

fn check_directory(config: &Config, facts: &HostFacts) -> Result<(), HostError> {
    let dir = &facts.memory_dir;
    let path = dir.path.clone();
    if !dir.exists {
        return Err(HostError::Directory {
            path,
            why: "the directory does not exist",
        });
    }
    if !dir.writable {
        return Err(HostError::Directory {
            path,
            why: "this user may not create files in the directory",
        });
    }
    if config.memory.huge_pages == HugePages::Require && !facts.offers_huge_pages() {
        return Err(HostError::NoHugePages { path });
    }
    Ok(())
}

/// Returns the part of the need that must fit the directory of regions, and the part that must fit
/// the memory that the host and its cgroups report as available. The reported available memory
/// already excludes the pools of huge pages.
fn shares(config: &Config, facts: &HostFacts, need: &MemoryNeed) -> (Option<u64>, u64) {
    let exported = need.exported_bytes();
    if config.cluster.fabric == Fabric::Verbs {
        let from_pool = match config.memory.huge_pages {
            HugePages::Off => 0,
            _ => facts.huge_pool_bytes().min(exported),
        };
        return (None, need.total_bytes() - from_pool);
    }
    // Files of a hugetlbfs use its pool. Files on a disk are only cached in memory.
    let in_memory = match facts.memory_dir.filesystem.as_str() {
        "tmpfs" | "ramfs" | "devtmpfs" => need.total_bytes(),
        _ => need.process_bytes,
    };
    (Some(exported), in_memory)
}

fn check_need(config: &Config, facts: &HostFacts, need: MemoryNeed) -> Result<(), HostError> {
    match config.cluster.fabric {
        Fabric::Shm => check_directory(config, facts)?,
        Fabric::Verbs => {
            let required = config.memory.huge_pages == HugePages::Require;
            if required && !facts.offers_private_huge_pages() {
                return Err(HostError::NoPrivateHugePages);
            }
        }
    }
    let dir = &facts.memory_dir;
    let (in_files, in_memory) = shares(config, facts, &need);
    let in_directory = in_files.zip(dir.free_bytes).map(|(needed, free_bytes)| {
        let path = dir.path.clone();
        (needed, MemoryLimit::Directory { path, free_bytes })
    });
    let limits = [
        in_directory,
        facts
            .cgroup
            .clone()
            .map(|cgroup| (in_memory, MemoryLimit::Cgroup { cgroup })),
        Some((
            in_memory,
            MemoryLimit::Host {
                available_bytes: facts.memory_available_bytes,
                total_bytes: facts.memory_total_bytes,
            },
        )),
    ];
    // Report the tightest exceeded limit: a configuration that meets it usually meets the others.
    let exceeded = limits
        .into_iter()
        .flatten()
        .filter(|(needed, limit)| *needed > limit.available_bytes())
        .min_by_key(|(_, limit)| limit.available_bytes());
    match exceeded {
        None => Ok(()),
        Some((needed_bytes, limit)) => {
            let advice = advice(config, dir, &need, needed_bytes, &limit);
            Err(HostError::TooMuchMemory {
                need,
                needed_bytes,
                limit,
                advice,
            })
        }
    }
}

/// Returns advice on which keys to lower to meet the limit.
fn advice(
    config: &Config,
    dir: &DirFacts,
    need: &MemoryNeed,
    needed: u64,
    limit: &MemoryLimit,
) -> String {
    let memory = &config.memory;
    let beside_regions = needed.saturating_sub(need.regions_bytes);
    let for_regions = limit.available_bytes().saturating_sub(beside_regions);
    let per_machine = for_regions / need.machines.max(1);
    let regions = per_machine / memory.region_bytes.max(1);
    // A size of a machine's own is in effect for it in place of the common one.
    let own = |machine: &MachineConfig| machine.memory_bytes.is_some_and(|own| own > 0);
    let key = match config.machines.iter().any(own) {
        true => "memory.per_machine_bytes, and memory_bytes of each [[machine]],",
        false => "memory.per_machine_bytes",
    };
    let lower = if regions > 0 {
        let most = exact_size(regions * memory.region_bytes);
        format!("lower {key} to at most \"{most}\"")
    } else if per_machine >= memory.block_bytes && memory.block_bytes > 0 {
        let most = exact_size(per_machine - per_machine % memory.block_bytes);
        format!("lower memory.region_bytes and {key} to at most \"{most}\"")
    } else if need.rings_bytes > need.regions_bytes {
        "lower rings.log_bytes and rings.ring_bytes, or use fewer machines or workers".to_owned()
    } else {
        "use fewer machines or workers".to_owned()
    };
    match limit {
        MemoryLimit::Directory { free_bytes, .. } if dir.is_hugetlbfs() => {
            let page_bytes = dir.huge_page_bytes.unwrap_or(2 * MIB).max(1);
            let pages = (needed - free_bytes).div_ceil(page_bytes);
            format!(
                "{lower}, or enlarge the pool of huge pages by {pages} pages (farm doctor prints the command)"
            )
        }
        MemoryLimit::Directory { path, free_bytes } if dir.filesystem == "tmpfs" => {
            let used = dir.total_bytes.unwrap_or(0).saturating_sub(*free_bytes);
            let gib = needed.saturating_add(used).div_ceil(GIB);
            format!(
                "{lower}, or enlarge it: mount -o remount,size={gib}g {}",
                path.display()
            )
        }
        MemoryLimit::Directory { .. } => lower,
        MemoryLimit::Host { .. } if lower.contains("use fewer machines") => lower,
        MemoryLimit::Host { .. } => format!("{lower}, or use fewer machines"),
        MemoryLimit::Cgroup { .. } => format!("{lower}, or raise the limit of the cgroup"),
    }
}

#[cfg(test)]
mod tests;
