//! Checks of RDMA devices and of the limit on locked memory.

use farm_core::config::host::{HostFacts, MemoryNeed};
use farm_core::config::{Config, Fabric, rounded_size};
use farm_core::fabric::verbs::{DeviceReport, LinkLayer, PortReport};

use super::{Finding, Level, as_root};

/// MTU of an Ethernet interface, in bytes, that allows `RoCE` packets with a payload of 4096 bytes and their headers.
const ROCE_MTU: u32 = 4200;

pub(super) fn uses_verbs(config: &Config) -> bool {
    config.cluster.fabric == Fabric::Verbs
}

/// Checks the limit on locked memory: memory that is registered with an RDMA device is locked.
pub(super) fn memlock(facts: &HostFacts, config: &Config) -> Finding {
    let Some(limit) = facts.memlock_bytes else {
        return Finding::new(Level::Ok, "memlock", "no limit on locked memory");
    };
    let need = MemoryNeed::of_cluster(config).total_bytes();
    let (level, fact) = match (uses_verbs(config), facts.rdma_devices.is_empty()) {
        (true, _) if limit < need => {
            let need = rounded_size(need);
            let fact = format!(
                "limit on locked memory {}, but the configuration locks up to {need}",
                rounded_size(limit)
            );
            (Level::Problem, fact)
        }
        (false, false) => {
            let fact = format!(
                "limit on locked memory {}; with the fabric \"verbs\" every region would be locked",
                rounded_size(limit)
            );
            (Level::Advice, fact)
        }
        (true, _) => {
            let fact = format!("limit on locked memory {}", rounded_size(limit));
            (Level::Ok, fact)
        }
        (false, true) => {
            let fact = format!(
                "limit on locked memory {}; the fabric \"shm\" locks no memory",
                rounded_size(limit)
            );
            (Level::Ok, fact)
        }
    };
    let finding = Finding::new(level, "memlock", fact);
    match level {
        Level::Ok => finding,
        _ => finding
            .advice(
                "raise the limit of the shell, or of the service that starts farm (LimitMEMLOCK=infinity)",
            )
            .command(as_root(facts, "prlimit --memlock=unlimited --pid $$")),
    }
}

/// Returns a finding for each device, and one for each device that the configuration names and this host lacks.
pub(super) fn devices(facts: &HostFacts, config: &Config) -> Vec<Finding> {
    let needed = uses_verbs(config);
    let mut findings: Vec<Finding> = facts
        .verbs_devices
        .iter()
        .map(|d| device(d, needed))
        .collect();
    findings.extend(unlisted(facts, needed));
    if needed {
        findings.extend(missing(facts, config));
    }
    findings
}

/// Returns a finding if there is no device, or none that programs can open.
fn unlisted(facts: &HostFacts, needed: bool) -> Option<Finding> {
    if !facts.verbs_devices.is_empty() {
        return None;
    }
    let level = |otherwise| if needed { Level::Problem } else { otherwise };
    if facts.rdma_devices.is_empty() {
        let fact = match needed {
            true => "no RDMA device; the fabric \"verbs\" needs one",
            false => "no RDMA device; the fabric \"shm\" needs none",
        };
        let finding = Finding::new(level(Level::Ok), "rdma", fact);
        return Some(match needed {
            true => finding.advice(
                "load the driver of the device, create a software device (docs/RDMA.md), or use shared memory",
            )
            .command("farm ycsb --set cluster.fabric=shm …"),
            false => finding,
        });
    }
    let devices: Vec<String> = facts
        .rdma_devices
        .iter()
        .map(|device| format!("{} (port {})", device.name, device.ports.join("; port ")))
        .collect();
    let why = facts.verbs_problem.as_deref();
    let why = why.unwrap_or(
        "libibverbs lists none of the devices of the kernel: install the library of their driver",
    );
    let fact = format!(
        "{}: the kernel lists these devices, but libibverbs cannot open them",
        devices.join(", ")
    );
    let install = "apt-get install libibverbs1 ibverbs-providers";
    Some(
        Finding::new(level(Level::Note), "rdma", fact)
            .advice(why)
            .command(as_root(facts, install)),
    )
}

fn device(device: &DeviceReport, needed: bool) -> Finding {
    let ports: Vec<String> = device.ports.iter().map(port).collect();
    let fact = format!(
        "{} ({}, firmware {}): {}",
        device.name,
        device.driver,
        match device.firmware.as_str() {
            "" => "unknown",
            firmware => firmware,
        },
        ports.join("; ")
    );
    if let Some(unfit) = &device.unfit {
        return Finding::new(Level::Note, "rdma", fact).advice(unfit.clone());
    }
    let Some(active) = device.ports.iter().find(|port| port.is_active) else {
        let level = if needed { Level::Advice } else { Level::Note };
        return Finding::new(level, "rdma", fact)
            .advice("no port of the device is active: set its network interface up");
    };
    if active.link_layer == LinkLayer::Ethernet && active.mtu.0 < active.mtu.1 {
        let interface = active.usual_gid().and_then(|gid| gid.interface.as_deref());
        let interface = interface.unwrap_or("INTERFACE");
        let finding = Finding::new(Level::Note, "rdma", fact).advice(format!(
            "for larger packets raise the MTU of the interface, and of all switches on the way, to at least {ROCE_MTU}"
        ));
        return finding.command(format!("ip link set {interface} mtu {ROCE_MTU}"));
    }
    Finding::new(Level::Ok, "rdma", fact)
}

fn port(port: &PortReport) -> String {
    let state = if port.is_active {
        "active"
    } else {
        "not active"
    };
    let layer = match port.link_layer {
        LinkLayer::InfiniBand => format!("InfiniBand, LID {}", port.lid),
        LinkLayer::Ethernet => "Ethernet".to_owned(),
    };
    let (now, most) = port.mtu;
    let mut text = format!("port {} {state}, {layer}, MTU {now} of {most}", port.port);
    if let Some(gid) = port.usual_gid() {
        text.push_str(&format!(
            ", GID {} {} {}",
            gid.index,
            gid.kind,
            gid.address()
        ));
        if let Some(interface) = &gid.interface {
            text.push_str(&format!(" ({interface})"));
        }
        if port.gids.len() > 1 {
            text.push_str(&format!(" and {} more", port.gids.len() - 1));
        }
    } else {
        text.push_str(", no GID");
    }
    text
}

/// Returns a finding for each device that the configuration names and this host lacks. The machine may run on another
/// host.
fn missing(facts: &HostFacts, config: &Config) -> Vec<Finding> {
    let there = |name: &String| {
        facts
            .verbs_devices
            .iter()
            .any(|device| device.name == *name)
    };
    let named = config.machines.iter();
    let named = named.filter_map(|machine| Some((machine.id, machine.rdma.device.as_ref()?)));
    named
        .filter(|(_, name)| !there(name))
        .map(|(machine, name)| {
            let fact = format!(
                "the configuration names the device {name:?} for machine {machine}; this host does not have it"
            );
            Finding::new(Level::Advice, "rdma", fact).advice(
                "change nothing if that machine runs on another host; otherwise name one of the devices above",
            )
        })
        .collect()
}
