//! What a user would pick instead of a ring: a socket. Round trips through a Unix socket and through
//! TCP on the loopback device, both blocking.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::micro::pair::Helper;
use crate::micro::{MicroError, PATIENCE, os, record};

/// Round trips by which the duration of others is judged.
const TRIAL: u32 = 64;

/// A stream of bytes to the other process.
pub(in crate::micro) trait Stream: Read + Write {}

impl Stream for UnixStream {}
impl Stream for TcpStream {}

/// Waits for a child to connect.
fn accept<S>(
    helper: &mut Helper,
    mut accept: impl FnMut() -> std::io::Result<S>,
) -> Result<S, MicroError> {
    let until = Instant::now() + PATIENCE;
    loop {
        match accept() {
            Ok(stream) => return Ok(stream),
            Err(error) if error.kind() != ErrorKind::WouldBlock => {
                return Err(os("accept a connection")(error));
            }
            Err(_) if helper.has_ended() || Instant::now() > until => {
                return Err(MicroError::broken("the other process did not connect"));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// The connection of a child that runs [`serve_unix`].
pub(in crate::micro) fn accept_unix(
    listener: &UnixListener,
    helper: &mut Helper,
) -> Result<UnixStream, MicroError> {
    listener.set_nonblocking(true).map_err(os("listen"))?;
    let stream = accept(helper, || listener.accept().map(|(stream, _)| stream))?;
    stream
        .set_nonblocking(false)
        .map_err(os("set up a connection"))?;
    Ok(stream)
}

/// The connection of a child that runs [`serve_tcp`].
pub(in crate::micro) fn accept_tcp(
    listener: &TcpListener,
    helper: &mut Helper,
) -> Result<TcpStream, MicroError> {
    listener.set_nonblocking(true).map_err(os("listen"))?;
    let stream = accept(helper, || listener.accept().map(|(stream, _)| stream))?;
    stream
        .set_nonblocking(false)
        .map_err(os("set up a connection"))?;
    stream
        .set_nodelay(true)
        .map_err(os("set up a connection"))?;
    Ok(stream)
}

/// Round trips of `bytes` for about so long.
pub(in crate::micro) fn round_trips(
    stream: &mut dyn Stream,
    bytes: usize,
    slice: Duration,
    latencies: &mut Histogram<u64>,
) -> Result<(), MicroError> {
    let began = Instant::now();
    ping(stream, bytes, TRIAL, |_| {})?;
    let each = began.elapsed() / TRIAL;
    let count = slice.as_nanos() / each.as_nanos().max(1);
    let count = count.clamp(1, 10_000_000) as u32;
    ping(stream, bytes, count, |latency| record(latencies, latency))
}

fn ping(
    stream: &mut dyn Stream,
    bytes: usize,
    count: u32,
    mut timed: impl FnMut(Duration),
) -> Result<(), MicroError> {
    let broken = os("talk to the other process");
    let mut header = [0; 8];
    header[..4].copy_from_slice(&(bytes as u32).to_le_bytes());
    header[4..].copy_from_slice(&count.to_le_bytes());
    stream.write_all(&header).map_err(&broken)?;
    let mut body = vec![7; bytes];
    let mut before = Instant::now();
    for _ in 0..count {
        stream.write_all(&body).map_err(&broken)?;
        stream.read_exact(&mut body).map_err(&broken)?;
        let now = Instant::now();
        timed(now - before);
        before = now;
    }
    Ok(())
}

/// Sends back what comes, until nothing more does.
fn pong(stream: &mut dyn Stream) -> Result<(), MicroError> {
    let broken = os("talk to the bench");
    loop {
        let mut header = [0; 8];
        match stream.read_exact(&mut header) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(broken(error)),
        }
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| header[at + i]));
        let mut body = vec![0; (word(0) as usize).min(1 << 20)];
        for _ in 0..word(4) {
            stream.read_exact(&mut body).map_err(&broken)?;
            stream.write_all(&body).map_err(&broken)?;
        }
    }
}

/// The other process, on a Unix socket.
pub(in crate::micro) fn serve_unix(path: &Path) -> Result<(), MicroError> {
    pong(&mut UnixStream::connect(path).map_err(os("connect to the bench"))?)
}

/// The other process, by TCP.
pub(in crate::micro) fn serve_tcp(port: u16) -> Result<(), MicroError> {
    let mut stream =
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).map_err(os("connect to the bench"))?;
    stream
        .set_nodelay(true)
        .map_err(os("set up a connection"))?;
    pong(&mut stream)
}
