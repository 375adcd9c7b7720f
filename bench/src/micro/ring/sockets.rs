//! Round trips through sockets, for comparison with rings: a Unix socket, and TCP on the loopback device, both
//! blocking. The standard input of the other process is its socket.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use anyhow::{Context, Error, Result, anyhow};

use crate::micro::measure::{Sample, Slice, latencies};

/// A connected stream socket. Unix sockets and TCP sockets receive and send by the same system calls, so that both are
/// stored as a Unix socket.
pub(in crate::micro) struct Socket(UnixStream);

impl Socket {
    /// Connects two Unix sockets. The second is for the other process.
    pub(in crate::micro) fn unix() -> Result<(Self, Stdio)> {
        let (own, other) = UnixStream::pair().context("cannot connect Unix sockets")?;
        Ok((Self(own), OwnedFd::from(other).into()))
    }

    /// Connects two sockets by TCP with `TCP_NODELAY`, on the loopback device. The second is for the other process.
    pub(in crate::micro) fn tcp() -> Result<(Self, Stdio)> {
        let pair = || -> io::Result<_> {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            let own = TcpStream::connect(listener.local_addr()?)?;
            let (other, _) = listener.accept()?;
            own.set_nodelay(true)?;
            other.set_nodelay(true)?;
            Ok((own, other))
        };
        let (own, other) = pair().context("cannot connect sockets by TCP")?;
        let own = UnixStream::from(OwnedFd::from(own));
        Ok((Self(own), OwnedFd::from(other).into()))
    }

    pub(in crate::micro) fn round_trips(&mut self, slice: Slice) -> Result<Sample> {
        let mut body = vec![7; slice.bytes];
        latencies(slice.duration, || {
            self.0.write_all(&body).map_err(failed)?;
            self.0.read_exact(&mut body).map_err(failed)
        })
    }
}

/// Returns an error with the text of a socket's error.
fn failed(error: io::Error) -> Error {
    anyhow!("the other process of the bench does not answer: {error}")
}

/// Echoes messages of `bytes` bytes in the other process, until the connection ends.
pub(in crate::micro) fn serve(bytes: usize) -> Result<()> {
    let input = io::stdin().as_fd().try_clone_to_owned()?;
    let mut stream = UnixStream::from(input);
    let mut body = vec![0; bytes];
    loop {
        match stream.read_exact(&mut body) {
            Ok(()) => stream.write_all(&body)?,
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}
