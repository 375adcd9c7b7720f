//! `farm bench ring`: messages between two processes on two cores, over rings and, for comparison, over sockets.
//!
//! | key of a row | |
//! |---|---|
//! | `ring_rtt` | round trip over a pair of rings, polled by both sides |
//! | `stream_msgs` | messages per second over one ring, one way |
//! | `stream_gb_per_s` | gigabytes (10⁹ bytes) per second of `stream_msgs` |
//! | `ring_calls` | calls per second over a pair of rings, 64 in flight |
//! | `call_rtt` | from a worker's call to its continuation, one at a time |
//! | `calls` | calls per second between workers, 64 in flight |
//! | `unix_rtt` | round trip through a Unix socket (a stream, blocking) |
//! | `tcp_rtt` | round trip through TCP on the loopback device, with `TCP_NODELAY`, blocking |

pub(super) mod calls;
pub(super) mod child;
pub(super) mod raw;
pub(super) mod sockets;

use std::process::Stdio;

use anyhow::Result;
use farm_core::config::{Config, rounded_size};
use serde_json::json;

use self::calls::Caller;
use self::child::{Launcher, Task};
use self::raw::Side;
use self::sockets::Socket;
use super::host::{Pin, Watch, two_cores};
use super::machines::{MicroRun, check_sizes};
use super::measure::{Measurement, Progress, Sample, Slice, in_turns};
use super::report::{Cell, MicroReport, Row};

/// Bytes of a ring.
const RING_BYTES: u64 = 1 << 20;
/// Maximum number of bytes of a message. A record, which includes overhead, may take up to an eighth of the ring.
const MOST_BYTES: u64 = RING_BYTES / 16;
/// Number of calls in flight, if a rate is measured.
const IN_FLIGHT: usize = 64;

/// Measures an operation between two processes for one time slice.
type Operation<S> = fn(&mut S, Slice) -> Result<Sample>;

/// Creates a pair of connected sockets. The second is the standard input of the other process.
type Connect = fn() -> Result<(Socket, Stdio)>;

/// The state that all parts of the bench use.
struct Bench<'a> {
    run: &'a MicroRun,
    launcher: &'a Launcher,
    /// The configuration of the two machines.
    config: Config,
    /// The cores of the two processes.
    cores: Option<[u32; 2]>,
    progress: Progress<'a>,
    rows: Vec<Row>,
}

/// Measures round trips and rates at every size. The launcher starts the other process.
///
/// # Errors
/// If a size is not valid for rings, or if the other process cannot be started or fails.
pub fn run(run: &MicroRun, launcher: &Launcher, progress: Progress<'_>) -> Result<MicroReport> {
    check_sizes(&run.sizes, 1, MOST_BYTES as usize)?;
    let cores = two_cores(&run.cores);
    let mut conditions = run.conditions()?;
    conditions.pinned = cores.iter().flatten().copied().collect();
    conditions.not_pinned = cores.as_ref().err().cloned();
    let cores = cores.ok();
    let watch = Watch::begin();
    let mut bench = Bench {
        run,
        launcher,
        config: configure(run, cores),
        cores,
        progress,
        rows: run.sizes.iter().copied().map(Row::new).collect(),
    };
    bench.rings()?;
    bench.workers()?;
    bench.sockets()?;
    watch.end(&mut conditions);
    let checksums = bench.config.rings.checksums;
    let with = if checksums {
        ", records with checksums"
    } else {
        ""
    };
    let rings = rounded_size(RING_BYTES);
    Ok(MicroReport {
        what: "ring",
        heading: format!(
            "ring: messages between two processes over rings of {rings}{with}; calls/s with {IN_FLIGHT} in \
             flight\n{conditions}"
        ),
        setup: json!({
            "conditions": conditions,
            "ring_bytes": RING_BYTES,
            "checksums": checksums,
            "in_flight": IN_FLIGHT,
        }),
        rows: bench.rows,
    })
}

/// Returns the configuration of both machines.
fn configure(run: &MicroRun, cores: Option<[u32; 2]>) -> Config {
    let mut config = run.machines();
    config.rings.ring_bytes = RING_BYTES;
    config.rings.max_message_bytes = MOST_BYTES;
    config.worker.pin = cores.is_some();
    for (machine, core) in config.machines.iter_mut().zip(cores.into_iter().flatten()) {
        machine.cores = vec![core];
    }
    config
}

impl Bench<'_> {
    fn own_core(&self) -> Option<u32> {
        self.cores.map(|[core, _]| core)
    }

    fn peers_core(&self) -> Option<u32> {
        self.cores.map(|[_, core]| core)
    }

    /// Takes the measurements of a subject at the size of a row, and adds their results to the row.
    fn measure<S>(
        &mut self,
        row: usize,
        measurements: &[Measurement<Operation<S>>],
        subject: &mut S,
    ) -> Result<()> {
        let slice = Slice {
            bytes: self.rows[row].bytes,
            in_flight: IN_FLIGHT,
            duration: self.run.slice,
        };
        let names: Vec<&str> = measurements.iter().map(|it| it.name.as_str()).collect();
        let size = rounded_size(slice.bytes as u64);
        (self.progress)(&format!("{}, messages of {size}", names.join(", ")));
        let samples = in_turns(measurements, self.run.repeats, |measurement| {
            (measurement.operation)(subject, slice)
        })?;
        self.rows[row].add(measurements, samples);
        Ok(())
    }

    fn rings(&mut self) -> Result<()> {
        let _pin = Pin::to_any(self.own_core())?;
        let task = Task::Ring {
            config: self.config.to_toml(),
            core: self.peers_core(),
        };
        let child = self.launcher.start(&task, Stdio::null())?;
        let mut side = Side::asking(&self.config)?;
        let round_trips: Operation<Side> = Side::round_trips;
        let measurements = [
            Measurement::new("ring_rtt", "ring round trip", round_trips),
            Measurement::new("stream_msgs", "one-way messages/s", Side::stream),
            Measurement::new("ring_calls", "ring calls/s", Side::calls),
        ];
        for row in 0..self.rows.len() {
            self.measure(row, &measurements, &mut side)?;
            let row = &mut self.rows[row];
            let per_s = row.figure("stream_msgs").unwrap_or_default();
            let gb_per_s = per_s * row.bytes as f64 / 1e9;
            row.cells.push(Cell::gb_per_s(
                "stream_gb_per_s",
                "one-way messages",
                gb_per_s,
            ));
        }
        drop(side);
        child.join()
    }

    fn workers(&mut self) -> Result<()> {
        let task = Task::Calls {
            config: self.config.to_toml(),
        };
        let child = self.launcher.start(&task, Stdio::null())?;
        let mut caller = Caller::start(&self.config)?;
        let round_trips: Operation<Caller> = Caller::round_trips;
        let measurements = [
            Measurement::new("call_rtt", "worker's call", round_trips),
            Measurement::new("calls", "worker's calls/s", Caller::calls),
        ];
        for row in 0..self.rows.len() {
            self.measure(row, &measurements, &mut caller)?;
        }
        caller.stop()?;
        child.join()
    }

    fn sockets(&mut self) -> Result<()> {
        let _pin = Pin::to_any(self.own_core())?;
        let kinds: [(_, _, Connect); 2] = [
            ("unix_rtt", "Unix socket", Socket::unix),
            ("tcp_rtt", "loopback TCP", Socket::tcp),
        ];
        let operation: Operation<Socket> = Socket::round_trips;
        for row in 0..self.rows.len() {
            for (key, name, connect) in kinds {
                let (mut socket, others) = connect()?;
                let task = Task::Echo {
                    bytes: self.rows[row].bytes,
                    core: self.peers_core(),
                };
                let child = self.launcher.start(&task, others)?;
                self.measure(row, &[Measurement::new(key, name, operation)], &mut socket)?;
                drop(socket);
                child.join()?;
            }
        }
        Ok(())
    }
}
