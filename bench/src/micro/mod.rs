//! Microbenchmarks of one part of the platform at a time, each beside what it is to be held against:
//!
//! | module | measures | beside it |
//! |---|---|---|
//! | [`limit`] | random reads of mapped memory, raw and checked | is itself the bound of lookups |
//! | [`ring`] | round trips and messages between two processes | Unix and TCP sockets |
//! | [`fabric`] | one-sided reads and writes | the limit, at the same sizes |
//! | [`verbs`] | the same over RDMA devices | perftest, on the same devices |
//!
//! Every figure is the median of several slices, taken in turn with those of the other variants, so
//! that a busy host disturbs all alike; results carry the least and the most too, and how long the
//! processor was taken away by others.
//!
//! The peers of [`ring`] are processes: the running program, started again with
//! [`CHILD_VARIABLE`] set. A program that runs it calls [`child_main`] when it finds that variable.

pub mod fabric;
mod host;
pub mod limit;
mod pair;
mod reads;
pub mod ring;
pub(crate) mod text;
pub mod verbs;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use farm_core::config::{Config, HugePages, host as config_host};
use farm_core::fabric::shm::{ShmConfig, ShmMachine, StartError};
use farm_core::fabric::verbs::VerbsError;
use farm_core::fabric::{
    Capability, Completion, ConnectError, Endpoint, ExportError, FabricMachine, FabricStartError,
    ImportError, Status,
};
use farm_core::ids::{MachineId, WorkerId};
use farm_core::machine::MachineError;
use farm_core::mem::{Mapping, MappingError};
use farm_core::ring::{RecordIntegrity, SetupError};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

pub use host::Conditions;
pub(crate) use host::{allowed_cores, processor};
pub use pair::{CHILD_VARIABLE, Launcher, child_main};

/// Told what is measured next, for whoever shows progress.
pub type Progress<'a> = &'a mut dyn FnMut(&str);

/// How long machines of a bench wait for each other.
const PATIENCE: Duration = Duration::from_secs(10);
/// Latencies above this, ten seconds, count as this.
const MAX_LATENCY_NS: u64 = 10_000_000_000;

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum MicroError {
    /// An option that nothing can be measured with.
    #[error("{option}: {why}")]
    BadOption {
        /// What it is called.
        option: &'static str,
        /// What is wrong, and what would do.
        why: String,
    },
    /// The memory could not be made.
    #[error(transparent)]
    Mapping(#[from] MappingError),
    /// A machine could not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The same, on the fabric of a configuration.
    #[error(transparent)]
    StartFabric(#[from] FabricStartError),
    /// Memory could not be exported.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// An RDMA device refused.
    #[error(transparent)]
    Device(#[from] VerbsError),
    /// The machines did not meet.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A machine's memory could not be reached.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// A ring could not be made.
    #[error(transparent)]
    Ring(#[from] SetupError),
    /// A machine with workers failed.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The operating system refused.
    #[error("cannot {what}: {source}")]
    Os {
        /// The operation.
        what: &'static str,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The fabric, the ring or the peer did what it must not do.
    #[error("the bench broke off: {0}")]
    Broken(String),
}

impl MicroError {
    fn bad(option: &'static str, why: impl Into<String>) -> Self {
        Self::BadOption {
            option,
            why: why.into(),
        }
    }

    fn broken(why: impl std::fmt::Display) -> Self {
        Self::Broken(why.to_string())
    }
}

fn os(what: &'static str) -> impl Fn(std::io::Error) -> MicroError {
    move |source| MicroError::Os { what, source }
}

/// Where a bench has its sockets and its memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Cluster name of its machines. Two benches at a time need two; one that was killed is cleaned
    /// up after by the next of the same name and directories.
    pub cluster: String,
    /// Sockets and locks.
    pub run_dir: PathBuf,
    /// Shared memory.
    pub memory_dir: PathBuf,
    /// Ask for huge pages.
    pub huge_pages: bool,
    /// Records of rings have checksums.
    pub checksums: bool,
}

impl Place {
    /// The place that a configuration names, beside the cluster that it is for.
    pub fn of(config: &Config) -> Self {
        let name: String = config.cluster.name.chars().take(32).collect();
        Self {
            cluster: format!("{name}-bench"),
            run_dir: config_host::run_dir(config),
            memory_dir: config.memory.dir.clone(),
            huge_pages: config.memory.huge_pages != HugePages::Off,
            checksums: config.rings.checksums,
        }
    }

    /// Bytes of the pages that memory in this place has.
    fn page_bytes(&self) -> Result<u64, MicroError> {
        Ok(Mapping::page_bytes_of(&self.memory_dir, self.huge_pages)? as u64)
    }

    fn integrity(&self) -> RecordIntegrity {
        RecordIntegrity::by_checksum(self.checksums)
    }

    /// Starts machine `number` of the bench's cluster on the fabric, with one worker.
    fn machine(&self, number: u16) -> Result<ShmMachine, MicroError> {
        Ok(ShmMachine::start(ShmConfig {
            cluster: self.cluster.clone(),
            run_dir: self.run_dir.clone(),
            memory_dir: self.memory_dir.clone(),
            huge_pages: self.huge_pages,
            machine: machine_id(number),
            workers: 1,
            digest: 0,
        })?)
    }
}

fn machine_id(number: u16) -> MachineId {
    MachineId::new(number).expect("benches number their machines from 1")
}

/// What a machine offers another.
type Offer = Vec<Capability>;

/// Connects two machines, and tells what each was offered by the other.
fn meet(
    machines: &mut [FabricMachine; 2],
    ids: [MachineId; 2],
    offers: [Offer; 2],
) -> Result<[Offer; 2], MicroError> {
    let [one, other] = machines;
    let [of_one, of_other] = offers;
    let (of_other, of_one) = std::thread::scope(|scope| {
        let others = scope.spawn(move || offered(other, ids, of_other, ids[0]));
        let ones = offered(one, ids, of_one, ids[1]);
        (ones, others.join().expect("connecting does not panic"))
    });
    Ok([of_other?, of_one?])
}

/// Connects one machine, and tells what its peer offers.
fn offered(
    machine: &mut FabricMachine,
    ids: [MachineId; 2],
    offer: Offer,
    peer: MachineId,
) -> Result<Offer, MicroError> {
    let met = machine.connect(&ids, &mut |_| offer.clone(), PATIENCE)?;
    let theirs = met.into_iter().find(|met| met.machine == peer);
    Ok(theirs.map(|theirs| theirs.offer).unwrap_or_default())
}

const WORKER: WorkerId = WorkerId::FIRST;

/// Figures that were measured several times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The middle one.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The most.
    pub most: f64,
}

impl Spread {
    /// Of the figures of all times.
    pub(crate) fn of(mut figures: Vec<f64>) -> Self {
        figures.sort_by(f64::total_cmp);
        let (Some(least), Some(most)) = (figures.first(), figures.last()) else {
            return Self::default();
        };
        Self {
            median: median(&figures),
            least: *least,
            most: *most,
        }
    }
}

/// The median of ascending figures, at least one: of an even number, between the two in the middle.
fn median(figures: &[f64]) -> f64 {
    let above = figures.len() / 2;
    match figures.len() % 2 {
        0 => f64::midpoint(figures[above - 1], figures[above]),
        _ => figures[above],
    }
}

/// A rate that was measured several times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// Median of the slices.
    pub per_s: f64,
    /// The slowest slice.
    pub least: f64,
    /// The fastest.
    pub most: f64,
}

impl Rate {
    /// Of the rates of the slices.
    pub(crate) fn of(slices: Vec<f64>) -> Self {
        let Spread {
            median,
            least,
            most,
        } = Spread::of(slices);
        Self {
            per_s: median,
            least,
            most,
        }
    }

    /// Gigabytes (10⁹) a second, at so many bytes each.
    pub fn gb_per_s(&self, bytes: usize) -> f64 {
        self.per_s * bytes as f64 / 1e9
    }
}

/// Latencies, in nanoseconds. The clock is read once for each, which they include.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Median.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// Operations timed.
    pub samples: u64,
}

impl Latency {
    pub(crate) fn of(histogram: &Histogram<u64>) -> Self {
        Self {
            p50_ns: histogram.value_at_quantile(0.5),
            p99_ns: histogram.value_at_quantile(0.99),
            samples: histogram.len(),
        }
    }
}

pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, MAX_LATENCY_NS, 3).expect("constant bounds, three digits")
}

pub(crate) fn record(histogram: &mut Histogram<u64>, latency: Duration) {
    histogram.saturating_record((latency.as_nanos() as u64).max(1));
}

/// Repeats a chunk of operations, which tells how many it did, for a while; operations per second.
fn rate_of<E>(slice: Duration, mut chunk: impl FnMut() -> Result<u64, E>) -> Result<f64, E> {
    let began = Instant::now();
    let mut done = 0;
    loop {
        done += chunk()?;
        let elapsed = began.elapsed();
        if elapsed >= slice {
            return Ok(done as f64 / elapsed.as_secs_f64());
        }
    }
}

/// Ends with the peer that left, if one did; completions of other kinds must not be there.
fn check_peers(
    endpoint: &mut Endpoint,
    unexpected: &mut Vec<Completion>,
) -> Result<(), MicroError> {
    endpoint.poll(1, unexpected);
    check_connected(endpoint)?;
    match unexpected.pop() {
        Some(completion) => check_completion(completion.status),
        None => Ok(()),
    }
}

/// Ends with a peer that has left.
fn check_connected(endpoint: &mut Endpoint) -> Result<(), MicroError> {
    match endpoint.take_broken() {
        Some((machine, how)) => Err(MicroError::broken(format!(
            "machine {machine} departed: {how:?}"
        ))),
        None => Ok(()),
    }
}

fn check_completion(status: Status) -> Result<(), MicroError> {
    match status {
        Status::Ok => Ok(()),
        ended => Err(MicroError::broken(format!("an operation ended {ended:?}"))),
    }
}

#[cfg(test)]
mod tests;
