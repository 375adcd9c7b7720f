//! Connections whose next line is not complete yet: the hello of an accepted caller, or the proof of a caller whose hello was
//! answered. They are polled together, so that a silent caller does not delay the next one.

use std::collections::VecDeque;
use std::io::{Error, ErrorKind};
use std::os::fd::BorrowedFd;

use serde::de::DeserializeOwned;

use super::{MAX_LINE_BYTES, Socket};

/// Maximum number of pending callers in addition to the machines of the cluster.
const MAX_EXTRA_CALLERS: usize = 64;
/// Maximum number of bytes read from a caller before the next caller is read.
const CHUNK: usize = 1 << 16;

struct Caller<S, C> {
    socket: S,
    /// What is known of the caller.
    known: C,
    line: Vec<u8>,
}

/// Callers whose next line is not complete, each with what is known of it. If there are too many, the caller that was admitted
/// first is dropped. A machine of the cluster sends each line at once, so the dropped caller is probably no such machine.
pub(in crate::fabric) struct Callers<S, C = ()> {
    waiting: VecDeque<Caller<S, C>>,
    most: usize,
}

impl<S: Socket> Callers<S> {
    /// Adds a caller of which nothing is known.
    pub(in crate::fabric) fn accept(&mut self, socket: S) {
        self.admit(socket, ());
    }
}

impl<S: Socket, C> Callers<S, C> {
    pub(in crate::fabric) fn new(machines: usize) -> Self {
        Self {
            waiting: VecDeque::new(),
            most: machines + MAX_EXTRA_CALLERS,
        }
    }

    /// Adds a caller.
    pub(in crate::fabric) fn admit(&mut self, socket: S, known: C) {
        if let Err(error) = rustix::io::ioctl_fionbio(&socket, true) {
            tracing::warn!(%error, "cannot make the socket of a caller nonblocking; dropping the connection");
            return;
        }
        if self.waiting.len() == self.most {
            tracing::warn!(
                "too many connections without a complete hello or proof; dropping the oldest connection"
            );
            self.waiting.pop_front();
        }
        self.waiting.push_back(Caller {
            socket,
            known,
            line: Vec::new(),
        });
    }

    pub(in crate::fabric) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.waiting.iter().map(|caller| caller.socket.as_fd())
    }

    /// Returns what is known of the callers.
    pub(in crate::fabric) fn known(&self) -> impl Iterator<Item = &C> {
        self.waiting.iter().map(|caller| &caller.known)
    }

    /// Returns the callers whose line is complete, with what is known of them. Drops callers that sent something else.
    pub(in crate::fabric) fn lines<L: DeserializeOwned>(&mut self) -> Vec<(L, S, C)> {
        let mut complete = Vec::new();
        for _ in 0..self.waiting.len() {
            let Some(mut caller) = self.waiting.pop_front() else {
                break;
            };
            match caller.read_line() {
                Ok(Some(line)) => complete.push((line, caller.socket, caller.known)),
                Ok(None) => self.waiting.push_back(caller),
                Err(error) => {
                    tracing::warn!(%error, "dropping a connection that sent no valid hello or proof")
                }
            }
        }
        complete
    }
}

impl<S: Socket, C> Caller<S, C> {
    /// Reads the available bytes without waiting for more. A caller sends nothing after a line
    /// until it has an answer, so bytes meant for the monitor are never read here.
    fn read_line<L: DeserializeOwned>(&mut self) -> std::io::Result<Option<L>> {
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
                "the line is too long, or is followed by more data",
            ));
        }
        Ok(None)
    }
}

fn is_transient(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
