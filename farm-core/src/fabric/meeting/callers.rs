//! Who has dialled and not said hello yet. None of them is waited for by itself: a caller that says
//! nothing must not keep the next one from being heard.

use std::collections::VecDeque;
use std::io::{Error, ErrorKind};
use std::os::fd::BorrowedFd;

use serde::de::DeserializeOwned;

use super::{MAX_LINE_BYTES, Socket};

/// Callers kept waiting beyond the machines of the cluster.
const STRANGERS: usize = 64;
/// Bytes read from a caller before the next one's turn.
const CHUNK: usize = 1 << 16;

struct Caller<S> {
    socket: S,
    line: Vec<u8>,
}

/// Callers whose hello is not complete. They wait until the cluster has met, or until there are too
/// many: machines say hello at once, so it is the longest silence that is broken off.
pub(in crate::fabric) struct Callers<S> {
    waiting: VecDeque<Caller<S>>,
    most: usize,
}

impl<S: Socket> Callers<S> {
    pub(in crate::fabric) fn new(machines: usize) -> Self {
        Self {
            waiting: VecDeque::new(),
            most: machines + STRANGERS,
        }
    }

    pub(in crate::fabric) fn admit(&mut self, socket: S) {
        if let Err(error) = rustix::io::ioctl_fionbio(&socket, true) {
            tracing::warn!(%error, "a caller cannot be listened to");
            return;
        }
        if self.waiting.len() == self.most {
            tracing::warn!("too many callers: the one that was silent longest is dropped");
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

    /// Those who have said hello by now. Those who said something else are forgotten.
    pub(in crate::fabric) fn hellos<H: DeserializeOwned>(&mut self) -> Vec<(H, S)> {
        let mut said = Vec::new();
        for _ in 0..self.waiting.len() {
            let Some(mut caller) = self.waiting.pop_front() else {
                break;
            };
            match caller.listen() {
                Ok(Some(hello)) => said.push((hello, caller.socket)),
                Ok(None) => self.waiting.push_back(caller),
                Err(error) => {
                    tracing::warn!(%error, "a connection ended before its first line was whole")
                }
            }
        }
        said
    }
}

impl<S: Socket> Caller<S> {
    /// Takes what is there and does not wait for more. A caller says nothing after its hello until
    /// it is answered, so that no byte of the monitor's is taken here.
    fn listen<H: DeserializeOwned>(&mut self) -> std::io::Result<Option<H>> {
        let mut chunk = [0; CHUNK];
        let read = match self.socket.read(&mut chunk) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => read,
            Err(error) if is_nothing_yet(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        self.line.extend_from_slice(&chunk[..read]);
        if self.line.last() == Some(&b'\n') {
            return Ok(Some(serde_json::from_slice(&self.line)?));
        }
        if self.line.len() > MAX_LINE_BYTES || chunk[..read].contains(&b'\n') {
            return Err(Error::new(ErrorKind::InvalidData, "not one line"));
        }
        Ok(None)
    }
}

fn is_nothing_yet(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
