//! Connections that have been accepted and whose hello is not complete yet. They are polled
//! together, so that a silent caller does not delay the next one.

use std::collections::VecDeque;
use std::io::{Error, ErrorKind};
use std::os::fd::BorrowedFd;

use serde::de::DeserializeOwned;

use super::{MAX_LINE_BYTES, Socket};

/// Maximum number of pending callers in addition to the machines of the cluster.
const MAX_EXTRA_CALLERS: usize = 64;
/// Maximum number of bytes read from a caller before the next caller is read.
const CHUNK: usize = 1 << 16;

struct Caller<S> {
    socket: S,
    line: Vec<u8>,
}

/// Callers whose hello is not complete. If there are too many, the caller that was accepted first is
/// dropped. A machine of the cluster sends its hello at once, so the dropped caller is probably no
/// such machine.
pub(in crate::fabric) struct Callers<S> {
    waiting: VecDeque<Caller<S>>,
    most: usize,
}

impl<S: Socket> Callers<S> {
    pub(in crate::fabric) fn new(machines: usize) -> Self {
        Self {
            waiting: VecDeque::new(),
            most: machines + MAX_EXTRA_CALLERS,
        }
    }

    pub(in crate::fabric) fn admit(&mut self, socket: S) {
        if let Err(error) = rustix::io::ioctl_fionbio(&socket, true) {
            tracing::warn!(%error, "cannot make the socket of a caller nonblocking; dropping the connection");
            return;
        }
        if self.waiting.len() == self.most {
            tracing::warn!(
                "too many connections without a complete hello; dropping the oldest connection"
            );
            self.waiting.pop_front();
        }
        self.waiting.push_back(Caller {
            socket,
            line: Vec::new(),
        });
    }

    pub(in crate::fabric) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.waiting.iter().map(|caller| caller.socket.as_fd())
    }

    /// Returns the callers whose hello is complete. Drops callers that sent something else.
    pub(in crate::fabric) fn hellos<H: DeserializeOwned>(&mut self) -> Vec<(H, S)> {
        let mut complete = Vec::new();
        for _ in 0..self.waiting.len() {
            let Some(mut caller) = self.waiting.pop_front() else {
                break;
            };
            match caller.read_hello() {
                Ok(Some(hello)) => complete.push((hello, caller.socket)),
                Ok(None) => self.waiting.push_back(caller),
                Err(error) => {
                    tracing::warn!(%error, "dropping a connection that sent no valid hello")
                }
            }
        }
        complete
    }
}

impl<S: Socket> Caller<S> {
    /// Reads the available bytes without waiting for more. A caller sends nothing after its hello
    /// until it has an answer, so bytes meant for the monitor are never read here.
    fn read_hello<H: DeserializeOwned>(&mut self) -> std::io::Result<Option<H>> {
        let mut chunk = [0; CHUNK];
        let read = match self.socket.read(&mut chunk) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => read,
            Err(error) if is_transient(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        self.line.extend_from_slice(&chunk[..read]);
        if self.line.last() == Some(&b'\n') {
            return Ok(Some(serde_json::from_slice(&self.line)?));
        }
        if self.line.len() > MAX_LINE_BYTES || chunk[..read].contains(&b'\n') {
            return Err(Error::new(
                ErrorKind::InvalidData,
                "the hello is too long, or is followed by more data",
            ));
        }
        Ok(None)
    }
}

fn is_transient(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
