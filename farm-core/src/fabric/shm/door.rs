//! Answers machines that call after the cluster is connected: refuses each caller immediately, with
//! the reason. Without an answer, a caller would wait as long as a starting machine waits for others.

use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::connect::{Hello, check, refuse};
use super::shared::Shared;
use crate::fabric::handshake::{Callers, wait_readable};

/// Time between two polls of the callers if nothing becomes readable.
const POLL_INTERVAL: Duration = Duration::from_secs(60);
/// Time until the next poll if the system cannot accept a caller, for lack of descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Timeout of sending a refusal to a caller.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);

/// The handle of the thread that answers callers. Dropping it ends the thread.
pub(super) struct Door {
    /// This end of the control socket. The thread ends when it reads EOF from the other end.
    open: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Door {
    /// Starts the thread.
    pub(super) fn open(shared: Arc<Shared>, listener: UnixListener) -> std::io::Result<Self> {
        listener.set_nonblocking(true)?;
        let (open, closed) = UnixStream::pair()?;
        closed.set_nonblocking(true)?;
        let name = format!("{}-door", shared.config.machine);
        let thread = std::thread::Builder::new()
            .name(name)
            .spawn(move || answer(&shared, &listener, &closed))?;
        Ok(Self {
            open,
            thread: Some(thread),
        })
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

fn answer(shared: &Shared, listener: &UnixListener, mut closed: &UnixStream) {
    let mut callers = Callers::new(shared.machines().len());
    loop {
        let waiting = callers.fds().chain([listener.as_fd(), closed.as_fd()]);
        wait_readable(waiting, POLL_INTERVAL);
        let ended = closed.read(&mut [0]);
        if !ended.is_err_and(|error| error.kind() == ErrorKind::WouldBlock) {
            return;
        }
        loop {
            match listener.accept() {
                Ok((socket, _)) => callers.admit(socket),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection from another machine; retrying");
                    wait_readable([closed.as_fd()].into_iter(), ACCEPT_RETRY);
                    break;
                }
            }
        }
        for (hello, socket) in callers.hellos() {
            refuse_with_reason(shared, &hello, socket);
        }
    }
}

/// Refuses a machine: because it is incompatible, or because the cluster is connected already.
fn refuse_with_reason(shared: &Shared, hello: &Hello, mut socket: UnixStream) {
    let own = shared.config.machine;
    let why = check(shared, hello).err().unwrap_or_else(|| {
        format!(
            "the machines of the cluster are connected already; stop and start all of them together (machine {own} \
             was running before machine {} called)",
            hello.machine
        )
    });
    let machine = hello.machine;
    tracing::warn!("machine {machine} was refused: {why}");
    let blocking = socket.set_nonblocking(false);
    if blocking
        .and(socket.set_write_timeout(Some(REFUSAL_TIMEOUT)))
        .is_ok()
    {
        refuse(shared, &mut socket, why);
    }
}
