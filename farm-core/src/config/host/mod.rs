//! What the host offers, and whether that is enough for a configuration.
//!
//! [`probe`] looks at the host; everything else judges [`HostFacts`], which are plain data, so that
//! the judgement on hosts that are not at hand can be tested.

mod cgroup;
mod probe;

use std::path::PathBuf;

use serde::Serialize;

use super::{Config, Fabric, HugePages, exact_size, rounded_size};
use crate::fabric::verbs::DeviceReport;
use crate::ids::MachineId;
use crate::limits::{GIB, MIB};
use crate::mem::HUGE_PAGE_BYTES;

pub use probe::{probe, probe_with_devices, run_dir};

/// What a host offers a cluster.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct HostFacts {
    /// Name and release of the kernel.
    pub kernel: String,
    /// Cores that are online.
    pub cores_online: usize,
    /// Cores that this process may run on, by number.
    pub cores_allowed: Vec<u32>,
    /// Cores' worth of time that the cgroup grants, where it limits that.
    pub cpu_quota_cores: Option<f64>,
    /// Memory of the host.
    pub memory_total_bytes: u64,
    /// Memory that could be had without swapping.
    pub memory_available_bytes: u64,
    /// The memory cgroup that leaves least, where any has a limit.
    pub cgroup: Option<CgroupMemory>,
    /// The directory that regions are to be files in.
    pub memory_dir: DirFacts,
    /// Pools of huge pages set aside at boot or later.
    pub huge_page_pools: Vec<HugePagePool>,
    /// Mounts that give huge pages: hugetlbfs, and tmpfs with `huge=`.
    pub huge_mounts: Vec<HugeMount>,
    /// The setting of transparent huge pages for private memory, such as `madvise`.
    pub thp: Option<String>,
    /// The setting of transparent huge pages for shared memory, such as `never`.
    pub thp_shmem: Option<String>,
    /// Most bytes this process may lock in memory, where that is limited.
    pub memlock_bytes: Option<u64>,
    /// Devices that can do RDMA, as the kernel lists them.
    pub rdma_devices: Vec<RdmaDevice>,
    /// The same, as libibverbs does, where it was asked.
    pub verbs_devices: Vec<DeviceReport>,
    /// Why libibverbs lists none, if there is a reason.
    pub verbs_problem: Option<String>,
    /// The user's number; 0 is root.
    pub user_id: u32,
}

/// The limit of a memory cgroup, and what is left of it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct CgroupMemory {
    /// 1 or 2.
    pub version: u8,
    /// The directory of the cgroup.
    pub path: PathBuf,
    /// Its limit.
    pub limit_bytes: u64,
    /// What could still be had: the limit less what is used, cached files not counted.
    pub available_bytes: u64,
}

/// A directory in which regions are to be files.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct DirFacts {
    /// Its path.
    pub path: PathBuf,
    /// Whether there is such a directory.
    pub exists: bool,
    /// Whether this user may make files in it.
    pub writable: bool,
    /// The type of its file system: `tmpfs`, `hugetlbfs`, `ext4` …
    pub filesystem: String,
    /// The value of the mount's option `huge=`.
    pub huge: Option<String>,
    /// Whether the kernel makes huge pages of a file here when it is asked to, whatever the mount
    /// says: one was made.
    pub huge_on_request: bool,
    /// The bytes of its pages where it is a hugetlbfs.
    pub huge_page_bytes: Option<u64>,
    /// Bytes it holds at most, where that is limited.
    pub total_bytes: Option<u64>,
    /// Bytes that are free, where they are limited.
    pub free_bytes: Option<u64>,
}

impl DirFacts {
    /// Whether files here are in memory and not on a disk.
    pub fn in_memory(&self) -> bool {
        matches!(
            self.filesystem.as_str(),
            "tmpfs" | "hugetlbfs" | "ramfs" | "devtmpfs"
        )
    }

    /// Whether the file system is hugetlbfs, whose pages come from a pool.
    pub fn is_hugetlbfs(&self) -> bool {
        self.filesystem == "hugetlbfs"
    }
}

impl HostFacts {
    /// Whether files in the directory of regions can be mapped by huge pages, transparent ones
    /// included.
    pub fn offers_huge_pages(&self) -> bool {
        let dir = &self.memory_dir;
        if dir.is_hugetlbfs() || dir.huge_on_request {
            return true;
        }
        // `force` and `deny` overrule the mounts; everything else is about memory without a mount.
        dir.filesystem == "tmpfs"
            && match self.thp_shmem.as_deref() {
                Some("force") => true,
                None | Some("deny") => false,
                Some(_) => dir.huge.as_deref().is_some_and(|huge| huge != "never"),
            }
    }

    /// Whether memory that is in no file, as RDMA devices use it, can have huge pages, transparent ones
    /// included.
    pub fn offers_private_huge_pages(&self) -> bool {
        let on_request = self.thp.as_deref();
        self.huge_pool_bytes() > 0 || on_request.is_some_and(|thp| thp != "never")
    }

    /// Bytes of the pool that private huge pages come from, as far as they are free.
    pub fn huge_pool_bytes(&self) -> u64 {
        let size = HUGE_PAGE_BYTES as u64;
        let pools = self.huge_page_pools.iter();
        let pool = pools.filter(|pool| pool.page_bytes == size);
        pool.map(|pool| pool.free.saturating_mul(size)).sum()
    }

    /// Cores that workers can really use: those allowed, or fewer where time is limited.
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
    /// Pages that are neither used nor promised.
    pub free: u64,
}

/// A mount that gives huge pages.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct HugeMount {
    /// Where it is mounted.
    pub path: PathBuf,
    /// `tmpfs` or `hugetlbfs`.
    pub filesystem: String,
    /// `huge=always` and the like, or the size of its pages.
    pub option: String,
    /// Whether this user may make files in it.
    pub writable: bool,
}

/// A device that can do RDMA.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct RdmaDevice {
    /// Its name, such as `mlx5_0`.
    pub name: String,
    /// Its ports, each as number, state and link layer: `1 ACTIVE Ethernet`.
    pub ports: Vec<String>,
}

/// Memory that machines take from their host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct MemoryNeed {
    /// Machines.
    pub machines: u64,
    /// Bytes of regions, at most.
    pub regions_bytes: u64,
    /// Bytes of rings and logs: one of each per sending worker and receiving machine.
    pub rings_bytes: u64,
    /// Bytes that the processes take beside, about.
    pub process_bytes: u64,
}

/// What a process takes before it has workers.
const MACHINE_PROCESS_BYTES: u64 = 16 * MIB;
/// What each worker adds: stack, arena, slabs.
const WORKER_PROCESS_BYTES: u64 = 8 * MIB;

impl MemoryNeed {
    /// What all machines take together.
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

    /// What the machine `id` takes.
    pub fn of_machine(config: &Config, id: MachineId) -> MemoryNeed {
        let Some(machine) = config.machine(id) else {
            return MemoryNeed::default();
        };
        let workers = u64::from(machine.workers);
        // Its own workers count too: a ring to oneself is as good as any other.
        let senders = config.total_workers() as u64;
        let rings = senders.saturating_mul(config.rings.ring_bytes);
        let logs = senders
            .saturating_sub(workers)
            .saturating_mul(config.rings.log_bytes);
        let rings = rings.saturating_add(logs);
        MemoryNeed {
            machines: 1,
            regions_bytes: config.memory.per_machine_bytes,
            rings_bytes: rings,
            process_bytes: MACHINE_PROCESS_BYTES + workers * WORKER_PROCESS_BYTES,
        }
    }

    /// Bytes that other machines reach: files in the directory of regions, or what is registered with RDMA
    /// devices.
    pub fn exported_bytes(&self) -> u64 {
        self.regions_bytes.saturating_add(self.rings_bytes)
    }

    /// All bytes.
    pub fn total_bytes(&self) -> u64 {
        self.exported_bytes().saturating_add(self.process_bytes)
    }
}

/// Why a host cannot carry a configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// There is no directory for regions, or no writing to it.
    #[error(
        "memory.dir = {:?}: {why}; make it, or set memory.dir to a directory in memory such as \
         \"/dev/shm\"",
        path.display().to_string()
    )]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Huge pages are required and the directory gives none.
    #[error(
        "memory.huge_pages = \"require\", but memory.dir = {:?} gives no huge pages; set memory.dir \
         to a hugetlbfs or a tmpfs mounted with huge=always (`farm doctor` prints the command), or \
         memory.huge_pages to \"try\"",
        path.display().to_string()
    )]
    NoHugePages {
        /// The directory.
        path: PathBuf,
    },
    /// Huge pages are required, and there are none for memory that is in no file.
    #[error(
        "memory.huge_pages = \"require\", but this host has none for the memory that RDMA devices use: set \
         some aside (sysctl -w vm.nr_hugepages=N, each of 2 MiB), allow transparent ones (echo madvise > \
         /sys/kernel/mm/transparent_hugepage/enabled), or set memory.huge_pages to \"try\""
    )]
    NoPrivateHugePages,
    /// The machines may take more memory than there is.
    #[error(
        "{machines} machine(s) may take {} of memory ({} of regions, {} of rings, about {} for the \
         processes), but {limit}; {advice}",
        rounded_size(*needed_bytes), rounded_size(need.regions_bytes),
        rounded_size(need.rings_bytes), rounded_size(need.process_bytes),
        machines = need.machines
    )]
    TooMuchMemory {
        /// What the machines take.
        need: MemoryNeed,
        /// The part of it that is counted against the limit.
        needed_bytes: u64,
        /// What it exceeds.
        limit: MemoryLimit,
        /// What to lower, and to what.
        advice: String,
    },
}

/// Something that bounds the memory of machines.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryLimit {
    /// The free space of the directory of regions.
    #[error("{} has only {} free", path.display(), rounded_size(*free_bytes))]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Its free space.
        free_bytes: u64,
    },
    /// The host's memory.
    #[error(
        "the host has only {} available of {}",
        rounded_size(*available_bytes), rounded_size(*total_bytes)
    )]
    Host {
        /// Memory that could be had without swapping.
        available_bytes: u64,
        /// Memory of the host.
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

/// Checks that the host can carry all machines of `config`, before any is started.
///
/// # Errors
///
/// What the host lacks, in numbers, and what to lower.
pub fn check_memory(config: &Config, facts: &HostFacts) -> Result<(), HostError> {
    check_need(config, facts, MemoryNeed::of_cluster(config))
}

/// Checks that the host can carry the machine `id` of `config` beside what runs already.
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
            why: "there is no such directory",
        });
    }
    if !dir.writable {
        return Err(HostError::Directory {
            path,
            why: "this user may not make files there",
        });
    }
    if config.memory.huge_pages == HugePages::Require && !facts.offers_huge_pages() {
        return Err(HostError::NoHugePages { path });
    }
    Ok(())
}

/// What of the need must fit the directory of regions, and what the memory that the host and its cgroups
/// count as available. They have counted the pools of huge pages already.
fn shares(config: &Config, facts: &HostFacts, need: &MemoryNeed) -> (Option<u64>, u64) {
    let exported = need.exported_bytes();
    if config.cluster.fabric == Fabric::Verbs {
        let from_pool = match config.memory.huge_pages {
            HugePages::Off => 0,
            _ => facts.huge_pool_bytes().min(exported),
        };
        return (None, need.total_bytes() - from_pool);
    }
    // Files of a hugetlbfs come from its pool; files on a disk are only cached in memory.
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
    // The tightest limit is the one to report: whoever meets it meets the others.
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

/// What to lower so that the limit is met.
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
    let lower = if regions > 0 {
        let most = exact_size(regions * memory.region_bytes);
        format!("lower memory.per_machine_bytes to at most \"{most}\"")
    } else if per_machine >= memory.block_bytes && memory.block_bytes > 0 {
        let most = exact_size(per_machine - per_machine % memory.block_bytes);
        format!("lower memory.region_bytes and memory.per_machine_bytes to at most \"{most}\"")
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
                "{lower}, or enlarge its pool by {pages} pages (farm doctor prints the command)"
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
