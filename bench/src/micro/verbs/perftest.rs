//! Turns of perftest, which a script runs.

use std::net::{Ipv4Addr, TcpListener};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use farm_core::fabric::verbs::DevicePlace;

/// Runs a tool's server and client, and prints the figure. Its first lines document its arguments.
const SCRIPT: &str = include_str!("../../../../scripts/perftest");

/// Perftest, between two devices of this host.
pub(super) struct Perftest {
    /// Version that it reports.
    pub(super) version: String,
    /// Options of the client and of the server.
    devices: [String; 2],
    /// Core of the server, if it is pinned. The client inherits the core of the measuring thread.
    answering: Option<u32>,
}

impl Perftest {
    /// Returns perftest for these devices; `None` if it is not installed.
    pub(super) fn find(devices: &[DevicePlace; 2], answering: Option<u32>) -> Option<Self> {
        let mut command = Command::new("ib_read_lat");
        let ended = command
            .arg("--version")
            .stderr(Stdio::null())
            .output()
            .ok()?;
        let text = String::from_utf8_lossy(&ended.stdout);
        let version = text.split_whitespace().last().unwrap_or("?").to_owned();
        let options = |device: &DevicePlace| {
            let DevicePlace {
                name,
                port,
                gid_index,
                mtu,
            } = device;
            format!("-d {name} -i {port} -x {gid_index} -m {mtu}")
        };
        Some(Self {
            version,
            devices: devices.each_ref().map(options),
            answering,
        })
    }

    /// Runs a tool, and returns the figure that its client prints: microseconds, or millions of operations per second.
    pub(super) fn measure(&self, tool: &str, bytes: usize, options: &[String]) -> Result<f64> {
        let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|it| it.local_addr());
        let port = bound.context("cannot find a free port")?.port();
        self.measure_at(port, tool, bytes, options)
    }

    fn measure_at(&self, port: u16, tool: &str, bytes: usize, options: &[String]) -> Result<f64> {
        let [of_client, of_server] = &self.devices;
        let core = self.answering.map(|core| core.to_string());
        let ended = Command::new("sh")
            .args(["-c", SCRIPT, "perftest", tool])
            .args([bytes.to_string(), port.to_string()])
            .args([core.as_deref().unwrap_or(""), of_server, of_client])
            .args(options)
            .stdin(Stdio::null())
            .output()
            .context("cannot run the script of perftest")?;
        let [printed, errors] =
            [ended.stdout, ended.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        let errors = errors.split_whitespace().collect::<Vec<_>>().join(" ");
        ensure!(
            ended.status.success(),
            "{tool} ended with {}: {errors}",
            ended.status
        );
        let figure = printed.trim().parse();
        figure.with_context(|| format!("{tool} reported {printed:?}"))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const TABLES: &str = "\
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]
 64      1000          45.10          612.44       54.32              58.01          17.20
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 128        5000             0.80               0.74               0.012123";

    /// Runs a tool whose client executes the shell command `client`, with a port on which this process already listens.
    fn measured(client: &str, bytes: usize) -> Result<f64> {
        let dir = tempfile::tempdir().unwrap();
        let tool = dir.path().join("tool");
        let text = format!("#!/bin/sh\ncase \"$*\" in *127.0.0.1) {client} ;; esac\n");
        std::fs::write(&tool, text).unwrap();
        std::fs::set_permissions(&tool, Permissions::from_mode(0o755)).unwrap();
        let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = bound.local_addr().unwrap().port();
        let perftest = Perftest {
            version: String::new(),
            devices: ["-d a", "-d b"].map(String::from),
            answering: None,
        };
        perftest.measure_at(port, tool.to_str().unwrap(), bytes, &["-n100".to_owned()])
    }

    #[test]
    fn figures_are_taken_from_the_line_of_the_size() {
        let print = format!("echo '{TABLES}'");
        assert_eq!(measured(&print, 64).unwrap(), 54.32);
        assert_eq!(measured(&print, 128).unwrap(), 0.012_123);
        for (client, bytes, words) in [
            (&*print, 256, "t_typical"),
            ("echo no such device >&2; exit 3", 64, "3: no such device"),
        ] {
            let error = measured(client, bytes).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
