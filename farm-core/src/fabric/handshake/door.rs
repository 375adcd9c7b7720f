//! The thread that answers callers of a connected machine.

use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::{Callers, PeerOffer, Socket, wait_readable};
use crate::fabric::Capability;
use crate::ids::MachineId;

/// Time between two polls of the callers if nothing becomes readable.
const POLL_INTERVAL: Duration = Duration::from_secs(60);
/// Time until the next poll if the system cannot accept a caller, for lack of descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Decides which machines may connect to a connected machine, and what it offers them.
pub trait Admission: Send {
    /// Returns the memory that is offered to a machine that calls. The machine is compatible, and no connection to it exists.
    ///
    /// # Errors
    /// The reason why it may not connect.
    fn offer(&mut self, caller: MachineId) -> Result<Vec<Capability>, String>;

    /// Handles that the machine has connected: from now on its memory can be imported.
    fn connected(&mut self, peer: PeerOffer);
}

/// Refuses all callers.
struct RefuseAll;

impl Admission for RefuseAll {
    fn offer(&mut self, caller: MachineId) -> Result<Vec<Capability>, String> {
        Err(format!(
            "the machines of the cluster are connected already; stop and start all of them together (machine {caller} \
             called later)"
        ))
    }

    fn connected(&mut self, _: PeerOffer) {}
}

/// How a backend accepts and answers callers.
pub(in crate::fabric) trait Accepts: Send + 'static {
    /// The socket of a caller.
    type Socket: Socket;
    /// The first line of a caller.
    type Hello: DeserializeOwned;

    /// Accepts a caller, without waiting for one.
    fn accept(&self) -> std::io::Result<Self::Socket>;
    /// Returns the listening socket.
    fn listener(&self) -> BorrowedFd<'_>;
    /// Returns the number of machines of the cluster.
    fn machines(&self) -> usize;
    /// Answers a caller.
    fn answer(&self, hello: Self::Hello, socket: Self::Socket, admission: &mut dyn Admission);
}

/// The handle of the thread that answers callers. Dropping it ends the thread.
pub(in crate::fabric) struct Door {
    /// This end of the control socket. The thread ends when it reads EOF from the other end.
    open: UnixStream,
    admission: Arc<Mutex<Box<dyn Admission>>>,
    thread: Option<JoinHandle<()>>,
}

impl Door {
    /// Starts the thread with this name. It refuses all callers until [`Door::admit`].
    pub(in crate::fabric) fn open(name: String, callers: impl Accepts) -> std::io::Result<Self> {
        let (open, closed) = UnixStream::pair()?;
        closed.set_nonblocking(true)?;
        let admission: Arc<Mutex<Box<dyn Admission>>> = Arc::new(Mutex::new(Box::new(RefuseAll)));
        let decides = Arc::clone(&admission);
        let thread = std::thread::Builder::new()
            .name(name)
            .spawn(move || answer(&callers, &closed, &decides))?;
        Ok(Self {
            open,
            admission,
            thread: Some(thread),
        })
    }

    /// Sets who may connect from now on.
    pub(in crate::fabric) fn admit(&self, admission: Box<dyn Admission>) {
        let decides = self.admission.lock();
        *decides.expect("no thread panics while it answers a caller") = admission;
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        // If the shutdown fails, the thread also ends when the socket is dropped.
        let _ = self.open.shutdown(std::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn answer<A: Accepts>(accepts: &A, mut closed: &UnixStream, admission: &Mutex<Box<dyn Admission>>) {
    let mut callers = Callers::new(accepts.machines());
    loop {
        let waiting = callers.fds().chain([accepts.listener(), closed.as_fd()]);
        wait_readable(waiting, POLL_INTERVAL);
        let ended = closed.read(&mut [0]);
        if !ended.is_err_and(|error| error.kind() == ErrorKind::WouldBlock) {
            return;
        }
        loop {
            match accepts.accept() {
                Ok(socket) => callers.admit(socket),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection from another machine; retrying");
                    wait_readable([closed.as_fd()].into_iter(), ACCEPT_RETRY);
                    break;
                }
            }
        }
        for (hello, socket) in callers.hellos() {
            let decides = admission.lock();
            let mut decides = decides.expect("no thread panics while it answers a caller");
            accepts.answer(hello, socket, &mut **decides);
        }
    }
}
