//! `farm bench ring`: messages between two processes on two cores, over rings and, beside them, over
//! the sockets that a user would pick instead.

pub(super) mod calls;
pub(super) mod raw;
pub(super) mod sockets;

use std::fmt;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::host::{Conditions, Pin, Watch, two_cores};
use super::pair::{Helper, Launcher, Task};
use super::{Latency, MicroError, Place, Progress, Rate, histogram, os, text};
use calls::Caller;
use raw::Side;

/// What [`run`] measures.
#[derive(Clone, Debug)]
pub struct RingRun {
    /// Where the machines meet.
    pub place: Place,
    /// The program that is the other process.
    pub launcher: Launcher,
    /// Bytes of a message, without the ring's overhead.
    pub sizes: Vec<usize>,
    /// Calls at a time.
    pub in_flight: usize,
    /// Bytes of a ring.
    pub ring_bytes: u64,
    /// The cores of the two processes; `None` takes two where there are two.
    pub cores: Option<[u32; 2]>,
    /// Slices of each measurement.
    pub repeats: usize,
    /// Time of one slice.
    pub slice: Duration,
}

impl RingRun {
    /// Messages of 16 B to 4 KiB over rings of 1 MiB.
    ///
    /// # Errors
    /// As [`Launcher::this_program`].
    pub fn new(place: Place) -> Result<Self, MicroError> {
        Ok(Self {
            place,
            launcher: Launcher::this_program()?,
            sizes: (4..=12).map(|shift| 1 << shift).collect(),
            in_flight: 64,
            ring_bytes: 1 << 20,
            cores: None,
            repeats: 5,
            slice: Duration::from_millis(100),
        })
    }

    fn check(&self) -> Result<(), MicroError> {
        // The greatest record is an eighth of the ring, overhead included.
        let most = (self.ring_bytes / 16) as usize;
        match () {
            () if self.sizes.iter().any(|bytes| *bytes == 0 || *bytes > most) => {
                let why = format!("messages over these rings have between 1 and {most} bytes");
                Err(MicroError::bad("sizes", why))
            }
            () if !(1..=256).contains(&self.in_flight) => {
                Err(MicroError::bad("calls in flight", "between 1 and 256"))
            }
            () if self.repeats == 0 => Err(MicroError::bad("repeats", "at least one is needed")),
            () => Ok(()),
        }
    }
}

/// Messages of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RingRow {
    /// Bytes of the message, and of its answer.
    pub bytes: usize,
    /// Round trip over a pair of rings, polled by both sides.
    pub ring_rtt: Latency,
    /// Messages a second over one ring, one way.
    pub stream_msgs: Rate,
    /// The same in gigabytes (10⁹) a second.
    pub stream_gb_per_s: f64,
    /// Calls a second over a pair of rings, with [`RingReport::in_flight`] at a time.
    pub ring_calls: Rate,
    /// From a worker's call to its continuation, one at a time.
    pub call_rtt: Latency,
    /// Calls a second between workers, with so many at a time.
    pub calls: Rate,
    /// Round trip through a Unix socket (a stream, blocking).
    pub unix_rtt: Latency,
    /// Round trip through TCP on the loopback device, without delay, blocking.
    pub tcp_rtt: Latency,
}

/// What [`run`] found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RingReport {
    /// What it was measured on.
    pub conditions: Conditions,
    /// Bytes of a ring.
    pub ring_bytes: u64,
    /// Records have checksums.
    pub checksums: bool,
    /// Calls at a time.
    pub in_flight: usize,
    /// A row for each size.
    pub rows: Vec<RingRow>,
}

/// The two processes' cores.
#[derive(Clone, Copy)]
struct Cores(Option<[u32; 2]>);

impl Cores {
    fn own(self) -> Result<Option<Pin>, MicroError> {
        self.0.map(|[core, _]| Pin::to(core)).transpose()
    }

    fn peers(self) -> Option<u32> {
        self.0.map(|[_, core]| core)
    }
}

/// Measures round trips and rates at every size.
///
/// # Errors
/// [`MicroError`]: the other process cannot be started, or broke off.
pub fn run(run: &RingRun, progress: Progress<'_>) -> Result<RingReport, MicroError> {
    run.check()?;
    let RingRun {
        place,
        repeats,
        slice,
        ..
    } = run;
    let cores = two_cores(run.cores);
    let mut conditions =
        Conditions::before(&place.memory_dir, place.page_bytes()?, *repeats, *slice);
    conditions.pinned = cores.iter().flatten().copied().collect();
    conditions.not_pinned = cores.as_ref().err().cloned();
    let cores = Cores(cores.ok());
    let watch = Watch::begin();
    let mut rows: Vec<RingRow> = run
        .sizes
        .iter()
        .map(|bytes| RingRow {
            bytes: *bytes,
            ..RingRow::default()
        })
        .collect();
    rings(run, cores, &mut rows, progress)?;
    workers(run, cores, &mut rows, progress)?;
    unix(run, cores, &mut rows, progress)?;
    tcp(run, cores, &mut rows, progress)?;
    watch.end(&mut conditions);
    let RingRun {
        ring_bytes,
        in_flight,
        ..
    } = *run;
    Ok(RingReport {
        conditions,
        ring_bytes,
        checksums: run.place.checksums,
        in_flight,
        rows,
    })
}

fn rings(
    run: &RingRun,
    cores: Cores,
    rows: &mut [RingRow],
    progress: Progress<'_>,
) -> Result<(), MicroError> {
    let RingRun {
        place,
        ring_bytes,
        slice,
        ..
    } = run;
    let _pin = cores.own()?;
    let task = Task::Ring {
        place: place.clone(),
        ring_bytes: *ring_bytes,
        core: cores.peers(),
    };
    let helper = run.launcher.start(&task)?;
    let mut side = Side::asking(place, *ring_bytes)?;
    for row in rows {
        progress(&format!(
            "rings, messages of {}",
            text::bytes(row.bytes as u64)
        ));
        let body = vec![7; row.bytes];
        let mut latencies = histogram();
        let (mut streams, mut calls) = (Vec::new(), Vec::new());
        for _ in 0..run.repeats {
            side.round_trips(&body, *slice, &mut latencies)?;
            streams.push(side.stream(&body, *slice)?);
            calls.push(side.calls(&body, run.in_flight as u64, *slice)?);
        }
        row.ring_rtt = Latency::of(&latencies);
        row.stream_msgs = Rate::of(streams);
        row.stream_gb_per_s = row.stream_msgs.gb_per_s(row.bytes);
        row.ring_calls = Rate::of(calls);
    }
    drop(side);
    helper.join()
}

fn workers(
    run: &RingRun,
    cores: Cores,
    rows: &mut [RingRow],
    progress: Progress<'_>,
) -> Result<(), MicroError> {
    let RingRun {
        place,
        ring_bytes,
        slice,
        in_flight,
        ..
    } = run;
    let task = Task::Calls {
        place: place.clone(),
        ring_bytes: *ring_bytes,
        cores: cores.0,
    };
    let helper = run.launcher.start(&task)?;
    let caller = Caller::start(place, *ring_bytes, cores.0)?;
    for row in rows {
        progress(&format!("calls of {}", text::bytes(row.bytes as u64)));
        let mut latencies = histogram();
        let mut rates = Vec::new();
        for _ in 0..run.repeats {
            let one = caller.calls(row.bytes, 1, *slice)?;
            latencies.add(&one.latencies).map_err(MicroError::broken)?;
            rates.push(caller.calls(row.bytes, *in_flight, *slice)?.per_s);
        }
        row.call_rtt = Latency::of(&latencies);
        row.calls = Rate::of(rates);
    }
    caller.stop()?;
    helper.join()
}

fn unix(
    run: &RingRun,
    cores: Cores,
    rows: &mut [RingRow],
    progress: Progress<'_>,
) -> Result<(), MicroError> {
    let _pin = cores.own()?;
    let name = format!("{}-{}.sock", run.place.cluster, std::process::id());
    let path = Removed(run.place.run_dir.join(name));
    let listener = UnixListener::bind(&path.0).map_err(os("listen on a Unix socket"))?;
    let mut helper = run.launcher.start(&Task::Unix {
        path: path.0.clone(),
        core: cores.peers(),
    })?;
    let mut stream = sockets::accept_unix(&listener, &mut helper)?;
    through(
        run,
        rows,
        "Unix socket",
        progress,
        |row| &mut row.unix_rtt,
        &mut stream,
    )?;
    drop(stream);
    helper.join()
}

fn tcp(
    run: &RingRun,
    cores: Cores,
    rows: &mut [RingRow],
    progress: Progress<'_>,
) -> Result<(), MicroError> {
    let _pin = cores.own()?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(os("listen for TCP"))?;
    let port = listener.local_addr().map_err(os("listen for TCP"))?.port();
    let mut helper: Helper = run.launcher.start(&Task::Tcp {
        port,
        core: cores.peers(),
    })?;
    let mut stream = sockets::accept_tcp(&listener, &mut helper)?;
    through(
        run,
        rows,
        "loopback TCP",
        progress,
        |row| &mut row.tcp_rtt,
        &mut stream,
    )?;
    drop(stream);
    helper.join()
}

fn through(
    run: &RingRun,
    rows: &mut [RingRow],
    name: &str,
    progress: Progress<'_>,
    field: impl Fn(&mut RingRow) -> &mut Latency,
    stream: &mut dyn sockets::Stream,
) -> Result<(), MicroError> {
    for row in rows {
        progress(&format!(
            "{name}, messages of {}",
            text::bytes(row.bytes as u64)
        ));
        let mut latencies: Histogram<u64> = histogram();
        for _ in 0..run.repeats {
            sockets::round_trips(stream, row.bytes, run.slice, &mut latencies)?;
        }
        *field(row) = Latency::of(&latencies);
    }
    Ok(())
}

/// A file that is removed with this.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        // It may not have come into being.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl fmt::Display for RingReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rings = text::bytes(self.ring_bytes);
        writeln!(
            out,
            "ring: messages between two processes over rings of {rings}{}",
            if self.checksums {
                ", records with checksums"
            } else {
                ""
            }
        )?;
        write!(out, "{}", self.conditions)?;
        writeln!(out, "\n  round trips, us: median / 99th percentile")?;
        let columns = [
            "bytes",
            "ring",
            "worker's call",
            "Unix socket",
            "loopback TCP",
        ];
        write_row(out, columns.map(String::from))?;
        for row in &self.rows {
            let of =
                |it: &Latency| format!("{} / {}", text::micros(it.p50_ns), text::micros(it.p99_ns));
            let bytes = row.bytes.to_string();
            write_row(
                out,
                [
                    bytes,
                    of(&row.ring_rtt),
                    of(&row.call_rtt),
                    of(&row.unix_rtt),
                    of(&row.tcp_rtt),
                ],
            )?;
        }
        writeln!(
            out,
            "\n  rates, million/s; calls with {} in flight",
            self.in_flight
        )?;
        let columns = [
            "bytes",
            "one-way messages",
            "GB/s",
            "ring calls",
            "worker's calls",
        ];
        write_row(out, columns.map(String::from))?;
        for row in &self.rows {
            let rates =
                [&row.stream_msgs, &row.ring_calls, &row.calls].map(|it| text::millions(it.per_s));
            let [stream, ring, calls] = rates;
            let gb = text::significant(row.stream_gb_per_s);
            write_row(out, [row.bytes.to_string(), stream, gb, ring, calls])?;
        }
        Ok(())
    }
}

fn write_row(out: &mut fmt::Formatter<'_>, [first, rest @ ..]: [String; 5]) -> fmt::Result {
    write!(out, "  {first:>6}")?;
    rest.iter()
        .try_for_each(|cell| write!(out, " {cell:>18}"))?;
    writeln!(out)
}
