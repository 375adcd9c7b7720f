//! Messages of a handshake: one line of JSON each.

use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Result, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Longest accepted line, in bytes.
pub(in crate::fabric) const MAX_LINE_BYTES: usize = 1 << 20;

pub(in crate::fabric) fn send_line(
    socket: &mut impl Write,
    message: &impl Serialize,
) -> Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    socket.write_all(&line)
}

/// Reads exactly one line. The bytes after it belong to the monitor.
pub(in crate::fabric) fn receive_line<T: DeserializeOwned>(socket: impl Read) -> Result<T> {
    let mut line = Vec::new();
    // A buffer of one byte reads no bytes beyond the line.
    BufReader::with_capacity(1, socket)
        .take(MAX_LINE_BYTES as u64)
        .read_until(b'\n', &mut line)?;
    if line.last() != Some(&b'\n') {
        return Err(Error::new(
            ErrorKind::UnexpectedEof,
            "the connection ended before the end of the line",
        ));
    }
    Ok(serde_json::from_slice(&line)?)
}
