//! Hosts with too few resources, each refused with its numbers.

use super::*;
use crate::limits::GIB;

/// A host with sufficient resources: 64 GiB, half of it in `/dev/shm`.
fn host() -> HostFacts {
    HostFacts {
        cores_online: 8,
        cores_allowed: (0..8).collect(),
        memory_total_bytes: 64 * GIB,
        memory_available_bytes: 60 * GIB,
        memory_dir: DirFacts {
            path: PathBuf::from("/dev/shm"),
            exists: true,
            writable: true,
            filesystem: "tmpfs".to_owned(),
            total_bytes: Some(32 * GIB),
            free_bytes: Some(32 * GIB),
            ..DirFacts::default()
        },
        thp_shmem: Some("never".to_owned()),
        ..HostFacts::default()
    }
}

/// Three machines with one worker each: 4 GiB of regions and three rings of 1 MiB per machine.
fn config() -> Config {
    Config::default_for(3, 1)
}

fn refusal(config: &Config, facts: &HostFacts) -> HostError {
    check_memory(config, facts).expect_err("too few resources")
}

#[test]
fn a_large_host_carries_three_machines() {
    assert_eq!(check_memory(&config(), &host()), Ok(()));
}

#[test]
fn the_need_counts_regions_rings_and_processes() {
    let need = MemoryNeed::of_cluster(&config());
    assert_eq!(need.machines, 3);
    assert_eq!(need.regions_bytes, 12 * GIB);
    assert_eq!(
        need.rings_bytes,
        57 * MIB,
        "three sending workers, three receiving machines, two of which have a log"
    );
    assert_eq!(need.process_bytes, 3 * 24 * MIB);
    let one = MemoryNeed::of_machine(&config(), MachineId::new(2).expect("an id"));
    assert_eq!((one.regions_bytes, one.rings_bytes), (4 * GIB, 19 * MIB));
}

#[test]
fn more_than_the_host_has_is_refused_with_numbers_and_advice() {
    let facts = HostFacts {
        memory_total_bytes: 16 * GIB,
        memory_available_bytes: 8 * GIB,
        ..host()
    };
    let error = refusal(&config(), &facts);
    assert!(matches!(
        &error,
        HostError::TooMuchMemory {
            limit: MemoryLimit::Host { .. },
            ..
        }
    ));
    assert_eq!(
        error.to_string(),
        "3 machine(s) may take 12.1 GiB of memory (12 GiB of regions, 57 MiB of rings, about 72 MiB \
         for the processes), but the host has only 8 GiB of memory available, of 16 GiB in total; lower \
         memory.per_machine_bytes to at most \"2GiB\", or use fewer machines"
    );
    let mut uneven = config();
    uneven.machines[0].memory_bytes = Some(4 * GIB);
    let text = refusal(&uneven, &facts).to_string();
    let advice =
        "lower memory.per_machine_bytes, and memory_bytes of each [[machine]], to at most \"2GiB\"";
    assert!(text.contains(advice), "{text}");
}

#[test]
fn more_than_the_cgroup_leaves_is_refused() {
    let cgroup = CgroupMemory {
        version: 2,
        path: PathBuf::from("/sys/fs/cgroup/job"),
        limit_bytes: 8 * GIB,
        available_bytes: 5 * GIB,
    };
    let error = refusal(
        &config(),
        &HostFacts {
            cgroup: Some(cgroup),
            ..host()
        },
    );
    let text = error.to_string();
    assert!(
        text.contains("cgroup (v2) /sys/fs/cgroup/job leaves only 5 GiB of its 8 GiB"),
        "{text}"
    );
    assert!(
        text.contains(
            "lower memory.region_bytes and memory.per_machine_bytes to at most \"1663MiB\""
        ),
        "not even one region fits: {text}"
    );
}

#[test]
fn more_than_the_directory_holds_is_refused_with_the_command_to_enlarge_it() {
    let mut facts = host();
    facts.memory_dir.free_bytes = Some(64 * MIB);
    let text = refusal(&config(), &facts).to_string();
    assert!(
        text.contains("/dev/shm has only 64 MiB of free space"),
        "{text}"
    );
    assert!(
        text.ends_with("mount -o remount,size=44g /dev/shm"),
        "{text}"
    );
}

#[test]
fn the_tightest_of_several_limits_is_reported() {
    let mut facts = host();
    facts.memory_dir.free_bytes = Some(8 * GIB);
    facts.memory_available_bytes = 4 * GIB;
    let error = refusal(&config(), &facts);
    assert!(matches!(
        error,
        HostError::TooMuchMemory {
            limit: MemoryLimit::Host { .. },
            ..
        }
    ));
}

#[test]
fn a_single_machine_needs_only_its_own_memory() {
    let mut facts = HostFacts {
        memory_available_bytes: 5 * GIB,
        ..host()
    };
    let id = MachineId::new(1).expect("an id");
    assert!(check_memory(&config(), &facts).is_err());
    assert_eq!(check_machine_memory(&config(), id, &facts), Ok(()));
    // A machine that goes on with the memory of its earlier process needs no more. It once refused to start.
    let bytes = 1 << 40;
    facts.memory_available_bytes = 0;
    facts.memory_dir.free_bytes = Some(0);
    assert!(check_machine_memory(&config(), id, &facts).is_err());
    facts.take_over(bytes);
    assert_eq!(check_machine_memory(&config(), id, &facts), Ok(()));
}

#[test]
fn too_many_rings_get_their_own_advice() {
    let mut config = Config::default_for(64, 64);
    config.memory.region_bytes = MIB;
    config.memory.per_machine_bytes = MIB;
    let text = refusal(&config, &host()).to_string();
    assert!(
        text.contains(
            "lower rings.log_bytes and rings.ring_bytes, or use fewer machines or workers"
        ),
        "{text}"
    );
}

#[test]
fn an_unusable_directory_is_named() {
    let mut facts = host();
    facts.memory_dir.writable = false;
    let text = refusal(&config(), &facts).to_string();
    assert!(
        text.starts_with("memory.dir = \"/dev/shm\": this user may not"),
        "{text}"
    );
    facts.memory_dir.exists = false;
    let text = refusal(&config(), &facts).to_string();
    assert!(text.contains("the directory does not exist"), "{text}");
}

#[test]
fn required_huge_pages_must_be_offered() {
    let mut config = config();
    config.memory.huge_pages = HugePages::Require;
    let mut facts = host();
    let error = refusal(&config, &facts);
    assert_eq!(
        error,
        HostError::NoHugePages {
            path: PathBuf::from("/dev/shm")
        }
    );
    facts.memory_dir.huge = Some("always".to_owned());
    assert_eq!(check_memory(&config, &facts), Ok(()));
}

/// Memory of RDMA devices is not in files: the directory neither limits nor refuses it.
#[test]
fn registered_memory_is_limited_by_the_host_only() {
    let mut config = config();
    config.cluster.fabric = Fabric::Verbs;
    let mut facts = host();
    facts.memory_dir = DirFacts::default();
    assert_eq!(check_memory(&config, &facts), Ok(()));
    facts.memory_available_bytes = 4 * GIB;
    let text = refusal(&config, &facts).to_string();
    assert!(text.contains("the host has only"), "{text}");
    // The host's available memory does not include the pool.
    facts.huge_page_pools = vec![HugePagePool {
        page_bytes: 2 * MIB,
        total: 8192,
        free: 8192,
    }];
    assert_eq!(check_memory(&config, &facts), Ok(()));
    config.memory.huge_pages = HugePages::Off;
    assert!(check_memory(&config, &facts).is_err());
}

#[test]
fn required_huge_pages_of_registered_memory_come_from_the_host() {
    let mut config = config();
    config.cluster.fabric = Fabric::Verbs;
    config.memory.huge_pages = HugePages::Require;
    let mut facts = host();
    facts.thp = Some("never".to_owned());
    let error = refusal(&config, &facts);
    assert_eq!(error, HostError::NoPrivateHugePages);
    assert!(!error.to_string().contains("memory.dir"), "{error}");
    facts.thp = Some("madvise".to_owned());
    assert_eq!(check_memory(&config, &facts), Ok(()));
}

#[test]
fn huge_pages_come_from_the_mount_unless_the_kernel_overrules_it() {
    let offers = |filesystem: &str, huge: Option<&str>, shmem: Option<&str>| {
        let mut facts = host();
        facts.memory_dir.filesystem = filesystem.to_owned();
        facts.memory_dir.huge = huge.map(str::to_owned);
        facts.thp_shmem = shmem.map(str::to_owned);
        facts.offers_huge_pages()
    };
    assert!(offers("hugetlbfs", None, None));
    assert!(offers("tmpfs", Some("always"), Some("never")));
    assert!(!offers("tmpfs", Some("always"), Some("deny")));
    assert!(
        !offers("tmpfs", Some("always"), None),
        "a kernel without transparent huge pages"
    );
    assert!(!offers("tmpfs", Some("never"), Some("advise")));
    assert!(
        !offers("tmpfs", None, Some("always")),
        "the setting applies to memory without a mount"
    );
    assert!(offers("tmpfs", None, Some("force")));
    assert!(!offers("ext4", Some("always"), Some("force")));
}

#[test]
fn hugetlbfs_memory_does_not_count_against_the_host() {
    let mut facts = HostFacts {
        memory_available_bytes: GIB,
        ..host()
    };
    facts.memory_dir.filesystem = "hugetlbfs".to_owned();
    facts.memory_dir.free_bytes = Some(13 * GIB);
    assert_eq!(check_memory(&config(), &facts), Ok(()));
    facts.memory_dir.free_bytes = Some(11 * GIB);
    facts.memory_dir.huge_page_bytes = Some(2 * MIB);
    let text = refusal(&config(), &facts).to_string();
    assert!(text.contains("has only 11 GiB of free space"), "{text}");
    assert!(
        text.ends_with(
            "or enlarge the pool of huge pages by 541 pages (farm doctor prints the command)"
        ),
        "{text}"
    );
}

#[test]
fn usable_cores_are_limited_by_affinity_and_quota() {
    let cores = |allowed: u32, quota| {
        let cores_allowed = (0..allowed).collect();
        HostFacts {
            cores_allowed,
            cpu_quota_cores: quota,
            ..host()
        }
        .usable_cores()
    };
    assert_eq!(cores(8, None), 8);
    assert_eq!(cores(8, Some(2.5)), 2);
    assert_eq!(cores(8, Some(0.2)), 1);
    assert_eq!(cores(2, Some(16.0)), 2);
}
