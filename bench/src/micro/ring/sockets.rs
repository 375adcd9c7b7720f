//! What a user would pick instead of a ring: a socket. Round trips through a Unix socket and through
//! TCP on the loopback device, both blocking. The other process has its end as its standard input.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use anyhow::{Context, Error, Result, anyhow};

use crate::micro::measure::{Sample, Slice, latencies};

/// A connected stream of bytes. It receives and sends by the same system calls over Unix sockets and
/// over TCP, so it has the type of the former.
pub(in crate::micro) struct Socket(UnixStream);

impl Socket {
    /// Connects two Unix sockets. The second is for the other process.
    pub(in crate::micro) fn unix() -> Result<(Self, Stdio)> {
        let (own, other) = UnixStream::pair().context("cannot connect Unix sockets")?;
        Ok((Self(own), OwnedFd::from(other).into()))
    }

    /// Connects two sockets by TCP without delay, on the loopback device. The second is for the other
    /// process.
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

/// Returns an error with the text of a socket's error. If the socket's error were its cause, the command would take a
/// broken pipe for a closed standard output.
fn failed(error: io::Error) -> Error {
    anyhow!("the other process of the bench does not answer: {error}")
}

/// The other process: echoes messages of `bytes` bytes until the connection ends.
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
