//! Checks of cores, memory, directories and huge pages.

use farm_core::config::host::{HostFacts, HugeMount, MemoryNeed, check_memory};
use farm_core::config::{Config, HugePages, Idle, IdlePolicy, exact_size, rounded_size};
use farm_core::mem::HUGE_PAGE_BYTES;

use super::{Finding, Level, as_root, rdma};

/// Compares the facts about a host with the needs of a configuration. Returns all findings in the order of the table.
pub(super) fn judge(facts: &HostFacts, config: &Config) -> Vec<Finding> {
    let mut findings = vec![cores(facts), workers(facts, config)];
    findings.extend(pinning(facts, config));
    findings.extend(super::sizing::sizing(config));
    findings.push(memory(facts, config));
    findings.push(cgroup(facts));
    if rdma::uses_verbs(config) {
        // RDMA devices use private memory of the processes, not files in `memory.dir`.
        findings.push(private_huge_pages(facts, config));
    } else {
        findings.push(directory(facts));
        findings.push(huge_pages(facts, config));
        findings.extend(page_size(facts, config));
    }
    findings.push(rdma::memlock(facts, config));
    findings.extend(rdma::devices(facts, config));
    findings
}

fn cores(facts: &HostFacts) -> Finding {
    let (online, allowed) = (facts.cores_online, facts.cores_allowed.len());
    let mut fact = format!("{online} cores online, {allowed} usable by this process");
    if allowed < online {
        fact.push_str(&format!(" ({})", ranges(&facts.cores_allowed)));
    }
    match facts.cpu_quota_cores {
        Some(quota) if quota < allowed as f64 => {
            let fact = format!("{fact}; the cgroup limits CPU time to that of {quota:.1} cores");
            Finding::new(Level::Advice, "cores", fact)
                .advice("the kernel stops workers that spin when the CPU quota is used up: let workers park")
                .command("farm ycsb --set worker.idle=park …")
        }
        _ if allowed < online => Finding::new(Level::Note, "cores", fact),
        _ => Finding::new(Level::Ok, "cores", fact),
    }
}

/// Formats a sorted list of cores as ranges: `0-3,8`.
fn ranges(cores: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &core in cores {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == core => *last = core,
            _ => runs.push((core, core)),
        }
    }
    let run = |&(first, last): &(u32, u32)| match last - first {
        0 => first.to_string(),
        _ => format!("{first}-{last}"),
    };
    runs.iter().map(run).collect::<Vec<_>>().join(",")
}

fn workers(facts: &HostFacts, config: &Config) -> Finding {
    let (workers, usable) = (config.total_workers(), facts.usable_cores());
    let machines = config.machines.len();
    let fact = format!("{workers} worker(s) on {machines} machine(s), for {usable} core(s)");
    if workers <= usable {
        return Finding::new(Level::Ok, "workers", fact);
    }
    if config.worker.idle.resolve(workers, usable) != Idle::Park {
        return Finding::new(
            Level::Advice,
            "workers",
            format!("{fact}; idle workers spin, as worker.idle requests"),
        )
        .advice(
            "a spinning worker occupies the core on which the worker that it waits for has to run: let workers park",
        )
        .command("farm ycsb --set worker.idle=auto …");
    }
    let finding = Finding::new(
        Level::Note,
        "workers",
        format!("{fact}: workers share cores, and park when idle"),
    );
    let how = match config.worker.idle {
        IdlePolicy::Auto => "worker.idle = \"auto\" selected parking; ",
        _ => "",
    };
    let fewer = if usable < machines {
        "machines"
    } else {
        "workers"
    };
    finding.advice(format!(
        "{how}a worker waits for its core, which adds latency: use fewer {fewer}"
    ))
}

/// Reports machines that are pinned to a core that this process may not use, or to the same core as another machine.
fn pinning(facts: &HostFacts, config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !config.worker.pin {
        return findings;
    }
    let mut taken: Vec<(u32, u16)> = Vec::new();
    for machine in &config.machines {
        let id = machine.id.get();
        let used = machine.cores.iter().take(usize::from(machine.workers));
        for &core in used {
            if !facts.cores_allowed.contains(&core) {
                let fact = format!(
                    "the configuration pins machine {id} to core {core}, which this process cannot use"
                );
                let have = ranges(&facts.cores_allowed);
                findings.push(
                    Finding::new(Level::Problem, "pinning", fact)
                        .advice(format!(
                            "pin to some of the cores {have}, or set cores = [] so that farm chooses"
                        ))
                        .command(format!("farm ycsb --set machine.{id}.cores=[] …")),
                );
            } else if let Some((_, other)) = taken.iter().find(|(used, _)| *used == core) {
                let fact = format!(
                    "the configuration pins machines {other} and {id} to the same core {core}"
                );
                let advice = "pin each worker to a core of its own, if there are enough cores";
                findings.push(Finding::new(Level::Advice, "pinning", fact).advice(advice));
            }
            taken.push((core, id));
        }
    }
    findings
}

fn memory(facts: &HostFacts, config: &Config) -> Finding {
    let need = MemoryNeed::of_cluster(config);
    let fact = format!(
        "{} of {} of memory are available; the {} machine(s) of the configuration can take up to {} in total",
        rounded_size(facts.memory_available_bytes),
        rounded_size(facts.memory_total_bytes),
        need.machines,
        rounded_size(need.total_bytes())
    );
    match check_memory(config, facts) {
        Ok(()) => Finding::new(Level::Ok, "memory", fact),
        Err(error) => Finding::new(Level::Problem, "memory", fact).advice(error.to_string()),
    }
}

fn cgroup(facts: &HostFacts) -> Finding {
    match &facts.cgroup {
        None => Finding::new(Level::Ok, "cgroup", "no cgroup limits the memory"),
        Some(cgroup) => {
            let fact = format!(
                "cgroup v{} limits memory to {}, of which {} are available ({})",
                cgroup.version,
                rounded_size(cgroup.limit_bytes),
                rounded_size(cgroup.available_bytes),
                cgroup.path.display()
            );
            Finding::new(Level::Note, "cgroup", fact)
        }
    }
}

fn directory(facts: &HostFacts) -> Finding {
    let dir = &facts.memory_dir;
    let path = dir.path.display();
    if !dir.exists {
        return Finding::new(
            Level::Problem,
            "memory.dir",
            format!("{path} does not exist"),
        )
        .advice("create the directory, or set memory.dir to a directory in memory")
        .command("farm ycsb --set memory.dir=/dev/shm …");
    }
    let mut fact = format!("{path} ({})", dir.filesystem);
    if let (Some(free), Some(total)) = (dir.free_bytes, dir.total_bytes) {
        fact.push_str(&format!(
            ": {} free of {}",
            rounded_size(free),
            rounded_size(total)
        ));
    } else if let Some(free) = dir.free_bytes {
        fact.push_str(&format!(": {} free", rounded_size(free)));
    }
    if !dir.writable {
        return Finding::new(
            Level::Problem,
            "memory.dir",
            format!("{fact}, not writable for this user"),
        )
        .advice("make the directory writable for this user")
        .command(as_root(facts, &format!("chmod 1777 {path}")));
    }
    if !dir.in_memory() {
        return Finding::new(
            Level::Advice,
            "memory.dir",
            format!("{fact}; this file system is not in memory"),
        )
        .advice(
            "the kernel writes the files of this directory to a disk: use a directory in memory",
        )
        .command("farm ycsb --set memory.dir=/dev/shm …");
    }
    Finding::new(Level::Ok, "memory.dir", fact)
}

/// Directory of the suggested mounts.
const HUGE_DIR: &str = "/mnt/farm-huge";

/// Formats the pools of huge pages.
fn pools(facts: &HostFacts) -> String {
    let pools: Vec<String> = facts
        .huge_page_pools
        .iter()
        .filter(|pool| pool.total > 0)
        .map(|p| {
            format!(
                "{} of {} pages of {} free",
                p.free,
                p.total,
                exact_size(p.page_bytes)
            )
        })
        .collect();
    match pools.is_empty() {
        true => "no pool of huge pages".to_owned(),
        false => format!("pool of huge pages: {}", pools.join(", ")),
    }
}

/// Checks the huge pages for memory that is registered with RDMA devices.
fn private_huge_pages(facts: &HostFacts, config: &Config) -> Finding {
    let thp = facts.thp.as_deref().unwrap_or("not in this kernel");
    let state = format!("{}; transparent huge pages: {thp}", pools(facts));
    let finding = |level, fact| Finding::new(level, "huge pages", fact);
    if config.memory.huge_pages == HugePages::Off {
        return finding(
            Level::Note,
            format!("memory.huge_pages is \"off\"; {state}"),
        );
    }
    let bytes = MemoryNeed::of_cluster(config).exported_bytes();
    if facts.huge_pool_bytes() >= bytes {
        return finding(Level::Ok, state);
    }
    let level = match (config.memory.huge_pages, facts.offers_private_huge_pages()) {
        (HugePages::Require, false) => Level::Problem,
        _ => Level::Advice,
    };
    let pages = bytes.div_ceil(HUGE_PAGE_BYTES as u64);
    finding(level, state)
        .advice(
            "with huge pages a device's translation cache covers more memory, and reads miss the TLB less: \
             reserve huge pages",
        )
        .command(as_root(facts, &format!("sysctl -w vm.nr_hugepages={pages}")))
}

/// Checks the huge pages for memory in files of `memory.dir`.
fn huge_pages(facts: &HostFacts, config: &Config) -> Finding {
    let dir = &facts.memory_dir;
    let shmem = facts.thp_shmem.as_deref().unwrap_or("not in this kernel");
    let state = format!("{}; shmem_enabled {shmem}", pools(facts));
    if config.memory.huge_pages == HugePages::Off {
        return Finding::new(
            Level::Note,
            "huge pages",
            format!("memory.huge_pages is \"off\"; {state}"),
        );
    }
    if facts.offers_huge_pages() {
        let by = match (dir.is_hugetlbfs(), &dir.huge) {
            (true, _) => "hugetlbfs".to_owned(),
            (false, _) if dir.huge_on_request => "on request".to_owned(),
            (false, Some(huge)) => format!("huge={huge}"),
            (false, None) => "shmem_enabled".to_owned(),
        };
        let fact = format!("{} offers huge pages ({by}); {state}", dir.path.display());
        return Finding::new(Level::Ok, "huge pages", fact);
    }
    let required = config.memory.huge_pages == HugePages::Require;
    let level = if required {
        Level::Problem
    } else {
        Level::Advice
    };
    let fact = format!("{} offers no huge pages; {state}", dir.path.display());
    let why = "with huge pages random reads miss the TLB less, and are much faster";
    let finding = Finding::new(level, "huge pages", fact);
    let ready = facts
        .huge_mounts
        .iter()
        .find(|mount| mount.writable && usable(facts, mount));
    if let Some(mount) = ready {
        let path = mount.path.display();
        return finding
            .advice(format!(
                "{why}: use {path}, which offers huge pages ({} {})",
                mount.filesystem, mount.option
            ))
            .command(format!("farm ycsb --set memory.dir={path} …"));
    }
    with_commands(
        finding.advice(format!("{why}: mount a directory that offers huge pages")),
        facts,
        config,
    )
}

/// Returns whether files of a mount get huge pages with the current settings of the kernel.
fn usable(facts: &HostFacts, mount: &HugeMount) -> bool {
    match mount.filesystem.as_str() {
        "tmpfs" => facts
            .thp_shmem
            .as_deref()
            .is_some_and(|shmem| shmem != "deny"),
        _ => facts.huge_page_pools.iter().any(|pool| pool.free > 0),
    }
}

/// Adds the commands that mount a directory with enough huge pages for the configuration.
fn with_commands(mut finding: Finding, facts: &HostFacts, config: &Config) -> Finding {
    let need = MemoryNeed::of_cluster(config).exported_bytes();
    finding = finding.command(as_root(facts, &format!("mkdir -p {HUGE_DIR}")));
    let mount = match facts.thp_shmem.as_deref() {
        None => {
            let smallest = facts
                .huge_page_pools
                .first()
                .map_or(2 << 20, |pool| pool.page_bytes);
            let pages = need.div_ceil(smallest.max(1));
            finding = finding.command(as_root(
                facts,
                &format!("sysctl -w vm.nr_hugepages={pages}"),
            ));
            format!("mount -t hugetlbfs -o mode=1777 farm {HUGE_DIR}")
        }
        Some(shmem) => {
            if shmem == "deny" {
                let setting = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
                let command = format!("sh -c 'echo never > {setting}'");
                finding = finding.command(as_root(facts, &command));
            }
            let gib = need.div_ceil(1 << 30).max(1);
            format!("mount -t tmpfs -o huge=always,size={gib}g,mode=1777 farm {HUGE_DIR}")
        }
    };
    finding
        .command(as_root(facts, &mount))
        .command(format!("farm ycsb --set memory.dir={HUGE_DIR} …"))
}

/// Reports a region size that is not a multiple of the huge page size of a hugetlbfs.
fn page_size(facts: &HostFacts, config: &Config) -> Option<Finding> {
    let page_bytes = facts.memory_dir.huge_page_bytes?;
    let region_bytes = config.memory.region_bytes;
    if page_bytes == 0 || region_bytes.is_multiple_of(page_bytes) {
        return None;
    }
    let (region, page) = (exact_size(region_bytes), exact_size(page_bytes));
    let fact =
        format!("memory.region_bytes = {region} is not a multiple of the huge page size {page}");
    let whole = exact_size(region_bytes.next_multiple_of(page_bytes));
    let finding = Finding::new(Level::Problem, "huge pages", fact)
        .advice("change memory.region_bytes to a multiple of the huge page size, or mount a hugetlbfs with smaller \
             pages")
        .command(format!("farm ycsb --set memory.region_bytes={whole} …"));
    Some(finding)
}
