//! A caller of a machine's sockets.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use farm_core::config::Config;
use farm_core::ids::MachineId;
use serde::de::DeserializeOwned;

use super::server::{Topic, address, check_user};
use crate::error::{Error, Kind, Result};

/// Longest time that a caller waits for what a machine knows.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// Sends a request to a machine of this host, and returns its answer within `patience`; `None` if nothing listens.
///
/// # Errors
/// [`Kind::Refused`] if the machine does not answer, belongs to another user, or its answer is not readable.
pub(super) fn ask<T: DeserializeOwned>(
    config: &Config,
    machine: MachineId,
    topic: Topic,
    request: &[u8],
    patience: Duration,
) -> Result<Option<T>> {
    let address = address(config, machine, topic)?;
    let mut socket = match UnixStream::connect_addr(&address) {
        Ok(socket) => socket,
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Ok(None),
        Err(error) => return Err(refused(machine, format!("cannot connect to it: {error}"))),
    };
    check_user(&socket).map_err(|why| refused(machine, why))?;
    let mut text = String::new();
    socket.set_read_timeout(Some(patience))?;
    let sent = match request {
        [] => Ok(()),
        _ => socket
            .write_all(request)
            .and_then(|()| socket.shutdown(Shutdown::Write)),
    };
    sent.and_then(|()| socket.read_to_string(&mut text))
        .map_err(|error| refused(machine, no_answer(&error, patience)))?;
    let answer = serde_json::from_str(&text);
    let answer = answer.map_err(|error| {
        let what = match topic {
            Topic::Status => "status",
            Topic::Replicas => "answer about its replicas",
        };
        refused(machine, format!("its {what} is not readable: {error}"))
    })?;
    Ok(Some(answer))
}

/// Says why a machine that listens has not answered.
fn no_answer(error: &std::io::Error, patience: Duration) -> String {
    match error.kind() {
        // A read that takes longer than its limit ends with either, by platform.
        ErrorKind::WouldBlock | ErrorKind::TimedOut => format!(
            "it has not answered within {} s: its process is stopped (SIGSTOP, a debugger) or very busy",
            patience.as_secs()
        ),
        _ => format!("it does not answer: {error}"),
    }
}

/// Returns the error of a machine that gives no valid answer.
pub(super) fn refused(machine: MachineId, why: String) -> Error {
    Error::new(Kind::Refused, format!("machine {machine}: {why}"))
}
