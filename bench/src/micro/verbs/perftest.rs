//! Runs the tools of perftest, and reads what they print.

use std::fs;
use std::io::Read;
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use farm_core::fabric::verbs::DevicePlace;

use super::{BATCH, Measure, OUTSTANDING};
use crate::micro::host::Pin;
use crate::micro::pair::Helper;
use crate::micro::{MicroError, os};

/// How long a turn may take.
const LONGEST: Duration = Duration::from_secs(120);
/// Between two looks at what a process is doing.
const LOOK: Duration = Duration::from_millis(1);

/// Perftest, between two devices of this host.
pub(super) struct Perftest {
    /// As it tells.
    pub(super) version: String,
    devices: [DevicePlace; 2],
    /// Core of the server; the client inherits that of the measuring thread.
    answering: Option<u32>,
}

impl Perftest {
    /// `None` if it is not installed.
    pub(super) fn find(devices: [DevicePlace; 2], answering: Option<u32>) -> Option<Self> {
        let mut asked = Command::new(tool(Measure::ReadLatency));
        let told = asked.arg("--version").stderr(Stdio::null()).output().ok()?;
        let text = String::from_utf8_lossy(&told.stdout);
        let version = text.split_whitespace().last().unwrap_or("?").to_owned();
        Some(Self {
            version,
            devices,
            answering,
        })
    }

    /// Nanoseconds, or operations a second, as its client prints them.
    pub(super) fn measure(
        &self,
        measure: Measure,
        bytes: usize,
        operations: u32,
    ) -> Result<f64, MicroError> {
        let port = free_port()?;
        let start = |device: &DevicePlace| {
            let mut command = Command::new(tool(measure));
            command
                .args(arguments(device, bytes, operations, port))
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            if !measure.is_latency() {
                command.args(["-t", &OUTSTANDING.to_string()]);
                command.args(["-l", &BATCH.to_string()]);
            }
            command
        };
        let pin = self.answering.map(Pin::to).transpose()?;
        let mut server = Tool::start(&mut start(&self.devices[1]))?;
        drop(pin);
        server.await_that(|| listens(port))?;
        let mut client = start(&self.devices[0]);
        let mut client = Tool::start(client.arg(Ipv4Addr::LOCALHOST.to_string()))?;
        client.await_that(|| false)?;
        server.await_that(|| false)?;
        let printed = client.printed()?;
        figure(measure, bytes, &printed)
            .ok_or_else(|| MicroError::broken(format!("{} printed {printed:?}", tool(measure))))
    }
}

fn tool(measure: Measure) -> &'static str {
    match measure {
        Measure::ReadLatency => "ib_read_lat",
        Measure::WriteLatency => "ib_write_lat",
        Measure::ReadRate => "ib_read_bw",
        Measure::WriteRate => "ib_write_bw",
    }
}

/// Of the client and the server alike.
fn arguments(device: &DevicePlace, bytes: usize, operations: u32, port: u16) -> Vec<String> {
    let values = [
        ("-d", device.name.clone()),
        ("-i", device.port.to_string()),
        ("-x", device.gid_index.to_string()),
        ("-m", device.mtu.to_string()),
        ("-s", bytes.to_string()),
        ("-n", operations.to_string()),
        ("-p", port.to_string()),
    ];
    // It would else not begin where the processor's frequency may change.
    let mut arguments = vec!["-F".to_owned()];
    for (option, value) in values {
        arguments.extend([option.to_owned(), value]);
    }
    arguments
}

/// What is asked for, in the line of figures that begins with the size.
fn figure(measure: Measure, bytes: usize, printed: &str) -> Option<f64> {
    let lines = printed.lines().map(|line| line.split_whitespace());
    let mut lines = lines.map(Iterator::collect::<Vec<_>>);
    let line = lines.find(|line| line.first() == Some(&bytes.to_string().as_str()))?;
    let number = |column: usize| line.get(column)?.parse::<f64>().ok();
    match measure.is_latency() {
        // Size, iterations, least, most, typical: the median.
        true => Some(number(4)? * 1e3),
        // Size, iterations, peak, average, million messages a second.
        false => Some(number(4)? * 1e6),
    }
}

/// A TCP port that nobody uses now.
fn free_port() -> Result<u16, MicroError> {
    let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|bound| bound.local_addr());
    Ok(bound.map_err(os("find a free port"))?.port())
}

/// Whether somebody listens at it. To connect would be taken for the client.
fn listens(port: u16) -> bool {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(fs::read_to_string);
    let ending = format!(":{port:04X}");
    tables.into_iter().flatten().any(|table| {
        table.lines().any(|line| {
            let mut words = line.split_whitespace().skip(1);
            let own = words.next().is_some_and(|own| own.ends_with(&ending));
            // 0A: it listens.
            own && words.nth(1) == Some("0A")
        })
    })
}

/// A running tool.
struct Tool {
    name: String,
    process: Helper,
    until: Instant,
}

impl Tool {
    fn start(command: &mut Command) -> Result<Self, MicroError> {
        let process = command.spawn().map_err(os("start a tool of perftest"))?;
        Ok(Self {
            name: command.get_program().to_string_lossy().into_owned(),
            process: Helper(process),
            until: Instant::now() + LONGEST,
        })
    }

    /// Waits until it has ended, or something is so.
    fn await_that(&mut self, is_so: impl Fn() -> bool) -> Result<(), MicroError> {
        while !is_so() {
            let ended = self.process.0.try_wait();
            match ended.map_err(os("wait for a tool of perftest"))? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => {
                    let said = self.said();
                    return Err(MicroError::broken(format!(
                        "{} ended with {status}: {said}",
                        self.name
                    )));
                }
                None if Instant::now() >= self.until => {
                    let seconds = LONGEST.as_secs();
                    return Err(MicroError::broken(format!(
                        "{} takes more than {seconds} s",
                        self.name
                    )));
                }
                None => std::thread::sleep(LOOK),
            }
        }
        Ok(())
    }

    /// What it complained of.
    fn said(&mut self) -> String {
        let mut said = String::new();
        if let Some(stream) = &mut self.process.0.stderr {
            // What could not be read was not said.
            let _ = stream.read_to_string(&mut said);
        }
        said.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// What it printed, when it has ended.
    fn printed(&mut self) -> Result<String, MicroError> {
        let mut printed = String::new();
        if let Some(stream) = &mut self.process.0.stdout {
            let read = stream.read_to_string(&mut printed);
            read.map_err(os("read what perftest printed"))?;
        }
        Ok(printed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATENCY: &str = "\
---------------------------------------------------------------------------------------
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]
 64      1000          45.10          612.44       54.32              58.01          17.20
---------------------------------------------------------------------------------------
";
    const RATE: &str = "\
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 64         5000             0.80               0.74               0.012123
";

    #[test]
    fn figures_are_taken_from_the_line_of_the_size() {
        assert_eq!(figure(Measure::ReadLatency, 64, LATENCY), Some(54_320.0));
        assert_eq!(figure(Measure::WriteRate, 64, RATE), Some(12_123.0));
        assert_eq!(figure(Measure::WriteRate, 128, RATE), None);
        assert_eq!(figure(Measure::ReadLatency, 64, " 64 1000 45.1"), None);
        assert_eq!(figure(Measure::ReadLatency, 64, ""), None);
    }

    #[test]
    fn a_port_that_is_listened_at_is_seen() {
        let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = bound.local_addr().unwrap().port();
        assert!(listens(port));
        drop(bound);
        assert!(!listens(port));
    }
}
