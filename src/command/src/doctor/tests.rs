//! Findings about invented hosts.

use std::path::PathBuf;

use farm_core::config::host::{CgroupMemory, DirFacts, HugeMount, HugePagePool, RdmaDevice};
use farm_core::fabric::verbs::{DeviceReport, GidReport, LinkLayer, PortReport};

use super::*;

const GIB: u64 = 1 << 30;

/// Returns a host without findings to act on, for three machines with one worker each.
fn host() -> HostFacts {
    HostFacts {
        kernel: "Linux 6.1".to_owned(),
        cores_online: 8,
        cores_allowed: (0..8).collect(),
        memory_total_bytes: 64 * GIB,
        memory_available_bytes: 60 * GIB,
        memory_dir: DirFacts {
            path: PathBuf::from("/mnt/farm-huge"),
            exists: true,
            writable: true,
            filesystem: "tmpfs".to_owned(),
            huge: Some("always".to_owned()),
            total_bytes: Some(32 * GIB),
            free_bytes: Some(32 * GIB),
            huge_on_request: false,
            huge_page_bytes: None,
        },
        thp_shmem: Some("never".to_owned()),
        user_id: 1000,
        ..HostFacts::default()
    }
}

fn config() -> Config {
    farm_kv::config::default_for(3, 1)
}

/// Returns the first finding with the topic `about`.
#[track_caller]
fn about(facts: &HostFacts, config: &Config, about: &str) -> Finding {
    let found = judge(facts, config)
        .into_iter()
        .find(|finding| finding.about == about);
    found.unwrap_or_else(|| panic!("there is no finding about {about}"))
}

#[test]
fn a_good_host_has_only_ok_findings() {
    for finding in judge(&host(), &config()) {
        assert_eq!(
            (finding.level, &finding.advice),
            (Level::Ok, &None),
            "{finding:?}"
        );
    }
}

#[test]
fn more_workers_than_cores_are_reported() {
    let facts = HostFacts {
        cores_online: 2,
        cores_allowed: vec![0, 1],
        ..host()
    };
    let finding = about(&facts, &config(), "workers");
    assert_eq!(finding.level, Level::Note);
    assert_eq!(
        finding.fact,
        "3 worker(s) on 3 machine(s), for 2 core(s): workers share cores, and park when idle"
    );
    assert!(finding.advice.expect("advice").contains("fewer machines"));

    let mut spinning = config();
    spinning.set("worker.idle", "spin").expect("a key");
    let finding = about(&facts, &spinning, "workers");
    assert_eq!(finding.level, Level::Advice);
    assert_eq!(finding.commands, ["farm ycsb --set worker.idle=auto …"]);
}

#[test]
fn unusable_cores_and_cpu_quotas_are_reported() {
    let facts = HostFacts {
        cores_allowed: vec![0, 1, 2, 5],
        ..host()
    };
    let finding = about(&facts, &config(), "cores");
    assert_eq!(finding.level, Level::Note);
    let fact = "8 cores online, 4 usable by this process (0-2,5)";
    assert_eq!(finding.fact, fact);
    let facts = HostFacts {
        cpu_quota_cores: Some(1.5),
        ..host()
    };
    let finding = about(&facts, &config(), "cores");
    assert_eq!(finding.level, Level::Advice);
    assert!(
        finding
            .fact
            .ends_with("limits CPU time to that of 1.5 cores"),
        "{}",
        finding.fact
    );
}

#[test]
fn pinning_to_an_unusable_core_is_a_problem() {
    let mut config = config();
    config.set("machine.2.cores", "[9]").expect("a key");
    let finding = about(&host(), &config, "pinning");
    assert_eq!(finding.level, Level::Problem);
    assert!(
        finding.fact.contains("pins machine 2 to core 9"),
        "{}",
        finding.fact
    );
    assert!(finding.advice.expect("advice").contains("the cores 0-7"));
    config.set("worker.pin", "false").expect("a key");
    assert!(
        judge(&host(), &config)
            .iter()
            .all(|finding| finding.about != "pinning")
    );
}

#[test]
fn pinning_two_machines_to_one_core_is_reported() {
    let mut config = config();
    config.set("machine.*.cores", "[3]").expect("a key");
    let finding = about(&host(), &config, "pinning");
    assert_eq!(finding.level, Level::Advice);
    let fact = "the configuration pins machines 1 and 2 to the same core 3";
    assert_eq!(finding.fact, fact);
}

#[test]
fn too_little_memory_is_a_problem_with_numbers() {
    let facts = HostFacts {
        memory_available_bytes: 4 * GIB,
        ..host()
    };
    let finding = about(&facts, &config(), "memory");
    assert_eq!(finding.level, Level::Problem);
    assert!(
        finding
            .fact
            .starts_with("4 GiB of 64 GiB of memory are available; the 3 machine(s) of the configuration can take up to 12.1 GiB")
    );
    assert!(
        finding
            .advice
            .expect("advice")
            .contains("lower memory.region_bytes")
    );
}

#[test]
fn the_memory_limit_of_a_cgroup_is_reported_and_applies() {
    let cgroup = CgroupMemory {
        version: 1,
        path: PathBuf::from("/sys/fs/cgroup/memory/job"),
        limit_bytes: 8 * GIB,
        available_bytes: 6 * GIB,
    };
    let facts = HostFacts {
        cgroup: Some(cgroup),
        ..host()
    };
    let finding = about(&facts, &config(), "cgroup");
    assert_eq!(finding.level, Level::Note);
    assert!(
        finding
            .fact
            .starts_with("cgroup v1 limits memory to 8 GiB, of which 6 GiB are available")
    );
    assert_eq!(about(&facts, &config(), "memory").level, Level::Problem);
}

#[test]
fn a_missing_or_read_only_directory_or_one_on_a_disk_is_reported() {
    let mut facts = host();
    facts.memory_dir.filesystem = "ext4".to_owned();
    let finding = about(&facts, &config(), "memory.dir");
    assert_eq!(finding.level, Level::Advice);
    assert!(
        finding.fact.ends_with("this file system is not in memory"),
        "{}",
        finding.fact
    );
    facts.memory_dir.writable = false;
    let finding = about(&facts, &config(), "memory.dir");
    assert_eq!(finding.level, Level::Problem);
    assert_eq!(finding.commands, ["sudo chmod 1777 /mnt/farm-huge"]);
    facts.memory_dir.exists = false;
    assert_eq!(
        about(&facts, &config(), "memory.dir").fact,
        "/mnt/farm-huge does not exist"
    );
}

#[test]
fn huge_pages_on_request_are_enough() {
    let mut facts = host();
    facts.memory_dir.huge = None;
    facts.memory_dir.huge_on_request = true;
    let finding = about(&facts, &config(), "huge pages");
    assert_eq!(finding.level, Level::Ok);
    assert!(finding.fact.contains("on request"), "{}", finding.fact);
}

#[test]
fn without_huge_pages_the_commands_mount_a_directory() {
    let mut facts = host();
    facts.memory_dir.path = PathBuf::from("/dev/shm");
    facts.memory_dir.huge = None;
    let finding = about(&facts, &config(), "huge pages");
    assert_eq!(finding.level, Level::Advice);
    assert_eq!(
        finding.fact,
        "/dev/shm offers no huge pages; no pool of huge pages; shmem_enabled never"
    );
    assert_eq!(
        finding.commands,
        [
            "sudo mkdir -p /mnt/farm-huge",
            "sudo mount -t tmpfs -o huge=always,size=13g,mode=1777 farm /mnt/farm-huge",
            "farm ycsb --set memory.dir=/mnt/farm-huge …",
        ]
    );
    facts.user_id = 0;
    facts.thp_shmem = Some("deny".to_owned());
    let commands = about(&facts, &config(), "huge pages").commands;
    assert_eq!(commands[0], "mkdir -p /mnt/farm-huge");
    assert!(
        commands[1].starts_with("sh -c 'echo never > /sys/kernel/mm/"),
        "{commands:?}"
    );
}

#[test]
fn an_existing_mount_with_huge_pages_is_suggested() {
    let mut facts = host();
    facts.memory_dir.huge = None;
    facts.huge_mounts = vec![
        HugeMount {
            path: PathBuf::from("/mnt/closed"),
            filesystem: "tmpfs".to_owned(),
            option: "huge=always".to_owned(),
            writable: false,
        },
        HugeMount {
            path: PathBuf::from("/mnt/open"),
            filesystem: "tmpfs".to_owned(),
            option: "huge=within_size".to_owned(),
            writable: true,
        },
    ];
    let finding = about(&facts, &config(), "huge pages");
    assert_eq!(finding.commands, ["farm ycsb --set memory.dir=/mnt/open …"]);
}

#[test]
fn a_kernel_without_transparent_huge_pages_gets_the_commands_for_a_pool() {
    let mut facts = HostFacts {
        thp_shmem: None,
        ..host()
    };
    facts.huge_page_pools = vec![HugePagePool {
        page_bytes: 2 << 20,
        total: 0,
        free: 0,
    }];
    let commands = about(&facts, &config(), "huge pages").commands;
    assert_eq!(commands[1], "sudo sysctl -w vm.nr_hugepages=6173");
    assert_eq!(
        commands[2],
        "sudo mount -t hugetlbfs -o mode=1777 farm /mnt/farm-huge"
    );
}

#[test]
fn huge_pages_are_a_problem_only_where_required() {
    let mut facts = host();
    facts.memory_dir.huge = None;
    let mut config = config();
    config.set("memory.huge_pages", "require").expect("a key");
    assert_eq!(about(&facts, &config, "huge pages").level, Level::Problem);
    config.set("memory.huge_pages", "off").expect("a key");
    assert_eq!(about(&facts, &config, "huge pages").level, Level::Note);
}

#[test]
fn regions_must_be_whole_pages_of_a_hugetlbfs() {
    let mut facts = host();
    facts.memory_dir.filesystem = "hugetlbfs".to_owned();
    facts.memory_dir.huge_page_bytes = Some(GIB);
    assert!(
        judge(&facts, &config())
            .iter()
            .all(|finding| finding.level == Level::Ok)
    );
    let mut config = config();
    config.set("memory.region_bytes", "256MiB").expect("a key");
    let findings = judge(&facts, &config);
    let finding = findings
        .iter()
        .find(|finding| finding.level == Level::Problem)
        .expect("one");
    assert_eq!(
        finding.fact,
        "memory.region_bytes = 256MiB is not a multiple of the huge page size 1GiB"
    );
    assert_eq!(
        finding.commands,
        ["farm ycsb --set memory.region_bytes=1GiB …"]
    );
}

#[test]
fn locked_memory_matters_only_with_rdma() {
    let mut facts = HostFacts {
        memlock_bytes: Some(8 << 20),
        ..host()
    };
    assert_eq!(about(&facts, &config(), "memlock").level, Level::Ok);
    facts.rdma_devices = vec![RdmaDevice {
        name: "mlx5_0".to_owned(),
        ports: vec!["1 ACTIVE Ethernet".to_owned()],
    }];
    assert_eq!(about(&facts, &config(), "memlock").level, Level::Advice);
    let finding = about(&facts, &config(), "rdma");
    assert_eq!(finding.level, Level::Note);
    assert!(
        finding.fact.starts_with("mlx5_0 (port 1 ACTIVE Ethernet)"),
        "{}",
        finding.fact
    );
    let verbs = with_verbs(&[]);
    assert_eq!(about(&facts, &verbs, "memlock").level, Level::Problem);
    assert_eq!(about(&facts, &verbs, "rdma").level, Level::Problem);
}

fn with_verbs(more: &[(&str, &str)]) -> Config {
    let mut config = config();
    for (key, value) in [("cluster.fabric", "verbs")].iter().chain(more) {
        config.set(key, value).expect("a key");
    }
    config
}

fn device(name: &str, mtu: (u32, u32)) -> DeviceReport {
    let gid = |index, kind: &str, last| GidReport {
        index,
        gid: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last],
        kind: kind.to_owned(),
        interface: Some("eth0".to_owned()),
    };
    DeviceReport {
        name: name.to_owned(),
        driver: "mlx5_core".to_owned(),
        firmware: "20.31.1014".to_owned(),
        unfit: None,
        ports: vec![PortReport {
            port: 1,
            is_active: true,
            link_layer: LinkLayer::Ethernet,
            mtu,
            lid: 0,
            gids: vec![gid(0, "IB/RoCE v1", 1), gid(1, "RoCE v2", 1)],
        }],
    }
}

#[test]
fn devices_are_listed_with_ports_and_addresses() {
    let mut facts = HostFacts {
        verbs_devices: vec![device("mlx5_0", (4096, 4096))],
        ..host()
    };
    let finding = about(&facts, &with_verbs(&[]), "rdma");
    assert_eq!(
        (finding.level, finding.fact.as_str()),
        (
            Level::Ok,
            "mlx5_0 (mlx5_core, firmware 20.31.1014): port 1 active, Ethernet, MTU 4096 of 4096, GID 1 \
             RoCE v2 ::ffff:10.0.0.1 (eth0) and 1 more"
        )
    );
    facts.verbs_devices = vec![device("mlx5_0", (1024, 4096))];
    let finding = about(&facts, &with_verbs(&[]), "rdma");
    assert_eq!(finding.commands, ["ip link set eth0 mtu 4200"]);
    facts.verbs_devices[0].ports[0].is_active = false;
    assert_eq!(about(&facts, &with_verbs(&[]), "rdma").level, Level::Advice);
    facts.verbs_devices[0].unfit = Some("it has no reads".to_owned());
    let finding = about(&facts, &with_verbs(&[]), "rdma");
    assert_eq!(finding.advice.as_deref(), Some("it has no reads"));
}

#[test]
fn a_configured_device_that_this_host_lacks_is_reported() {
    let facts = HostFacts {
        verbs_devices: vec![device("mlx5_0", (4096, 4096))],
        ..host()
    };
    let config = with_verbs(&[
        ("machine.2.device", "mlx5_7"),
        ("machine.1.device", "mlx5_0"),
    ]);
    let findings = judge(&facts, &config);
    let named: Vec<&str> = findings
        .iter()
        .filter(|finding| finding.fact.contains("names the device"))
        .map(|finding| finding.fact.as_str())
        .collect();
    assert_eq!(
        named,
        [
            "the configuration names the device \"mlx5_7\" for machine m2; this host does not have it"
        ]
    );
}

/// Regression test: 808 MB stayed in memory after `kill -9` of a run, and `farm doctor` had no finding about them.
#[test]
fn files_of_killed_machines_are_reported_with_the_command_that_removes_them() {
    use farm_core::fabric::shm::{StaleFiles, StaleKind};
    use farm_core::ids::MachineId;

    let left = |machine, what, bytes| StaleFiles {
        cluster: "local".to_owned(),
        machine: MachineId::new(machine).unwrap(),
        dir: PathBuf::from("/mnt/huge"),
        files: 4,
        bytes,
        what,
    };
    let mut config = config();
    let finding = stale_files::finding(&[], &[], &config);
    assert_eq!(finding.level, Level::Ok);
    let unknown = left(3, StaleKind::UnknownMemory("farm-0-m3-l0".to_owned()), 5);
    let finding = stale_files::finding(std::slice::from_ref(&unknown), &[], &config);
    assert_eq!(finding.level, Level::Note);
    assert_eq!(finding.commands, ["farm clean --dry-run"]);
    config.memory.dir = PathBuf::from("/mnt/huge");
    config.cluster.run_dir = PathBuf::from("/run/mine").into();
    let memory = |machine| {
        left(
            machine,
            StaleKind::Memory("farm-0-m1-l0".to_owned()),
            400 << 20,
        )
    };
    let all = [memory(1), memory(2), left(1, StaleKind::Names, 0), unknown];
    let finding = stale_files::finding(&all, &[], &config);
    assert_eq!(
        (finding.level, finding.fact.as_str()),
        (
            Level::Advice,
            "killed machines of cluster(s) local left 12 file(s), 800 MiB"
        )
    );
    assert_eq!(
        finding.commands,
        ["farm clean --set memory.dir=/mnt/huge --set cluster.run_dir=/run/mine"]
    );
}

#[test]
fn the_table_has_every_finding_and_their_numbers() {
    let facts = HostFacts {
        memory_available_bytes: 4 * GIB,
        ..host()
    };
    let findings = judge(&facts, &config());
    let text = describe(&findings, &facts, &config(), "my.toml");
    assert!(text.starts_with("This host (Linux 6.1), checked against my.toml:\n"));
    for finding in &findings {
        assert!(text.contains(&finding.fact), "{} is missing", finding.about);
    }
    assert!(
        text.ends_with("1 problem(s), 0 possible improvement(s).\n"),
        "{text}"
    );
}

/// Memory that is registered with RDMA devices is not in files: there is no finding about `memory.dir`, and huge pages
/// come from the pool.
#[test]
fn with_rdma_devices_the_directory_is_not_checked() {
    let mut config = config();
    config.set("cluster.fabric", "verbs").expect("a key");
    let mut facts = host();
    facts.memory_dir = DirFacts::default();
    let about_dir = judge(&facts, &config)
        .into_iter()
        .find(|finding| finding.about == "memory.dir");
    assert_eq!(about_dir, None);
    assert_eq!(about(&facts, &config, "memory").level, Level::Ok);
    let finding = about(&facts, &config, "huge pages");
    assert_eq!(finding.level, Level::Advice);
    assert_eq!(finding.commands, ["sudo sysctl -w vm.nr_hugepages=6173"]);
    facts.huge_page_pools = vec![HugePagePool {
        page_bytes: 2 << 20,
        total: 6173,
        free: 6173,
    }];
    assert_eq!(about(&facts, &config, "huge pages").level, Level::Ok);
    facts.huge_page_pools.clear();
    config.set("memory.huge_pages", "require").expect("a key");
    assert_eq!(about(&facts, &config, "huge pages").level, Level::Problem);
}
