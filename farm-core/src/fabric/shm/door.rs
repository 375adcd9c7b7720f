//! Answers machines that call when the cluster has met: all of them are refused, at once and with the reason.
//! Without an answer they would wait for as long as a machine waits for others.

use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::connect::{Hello, check, refuse};
use super::machine::Shared;
use crate::fabric::meeting::{Callers, wait_readable};

/// Between two looks at callers while nothing can be read.
const LOOK: Duration = Duration::from_secs(60);
/// The same while the system refuses to accept a caller, for want of descriptors.
const PAUSE: Duration = Duration::from_millis(100);
/// Longest that a caller may take to read the refusal.
const SOON: Duration = Duration::from_secs(1);

/// The thread that answers. Dropping it ends the thread.
pub(super) struct Door {
    /// The thread ends when it sees this end closed.
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
        // Whether or not the call works, the end is closed with this.
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
        wait_readable(waiting, LOOK);
        let ended = closed.read(&mut [0]);
        if !ended.is_err_and(|error| error.kind() == ErrorKind::WouldBlock) {
            return;
        }
        loop {
            match listener.accept() {
                Ok((socket, _)) => callers.admit(socket),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => {
                    tracing::warn!(%error, "a caller cannot be accepted");
                    wait_readable([closed.as_fd()].into_iter(), PAUSE);
                    break;
                }
            }
        }
        for (hello, socket) in callers.hellos() {
            turn_away(shared, &hello, socket);
        }
    }
}

/// Refuses a machine.
fn turn_away(shared: &Shared, hello: &Hello, mut socket: UnixStream) {
    let own = shared.config.machine;
    let why = check(shared, hello).err().unwrap_or_else(|| {
        format!(
            "the machines of the cluster have met already; it is stopped and started as a whole (machine {own} \
             runs since before machine {} called)",
            hello.machine
        )
    });
    let machine = hello.machine;
    tracing::warn!("machine {machine} was refused: {why}");
    let blocking = socket.set_nonblocking(false);
    if blocking.and(socket.set_write_timeout(Some(SOON))).is_ok() {
        refuse(shared, &mut socket, why);
    }
}
