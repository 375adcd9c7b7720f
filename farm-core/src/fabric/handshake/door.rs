//! The thread that answers callers of a connected machine.
//!
//! A caller sends a hello and, on a fabric that other hosts reach, a proof that it belongs to the cluster. The thread waits for
//! the lines of all callers together, so callers that send nothing, and those that do not belong to the cluster, delay no other one.
//! Only a caller that has proved itself can make the thread wait for its next message.
//!
//! A caller that is welcome is not connected yet: it may still be refused by another machine, or be stopped. When it has met all
//! machines, it says so by one byte ([`announce_ready`]). If its socket ends before, nothing has happened.

use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::monitor::say_goodbye;
use super::{Callers, PeerOffer, Socket, wait_readable};
use crate::fabric::Capability;
use crate::ids::MachineId;

/// Time between two polls of the callers if nothing becomes readable.
const POLL_INTERVAL: Duration = Duration::from_secs(60);
/// Time until the next poll if the system cannot accept a caller, for lack of descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// What a machine that has met all others sends to those that ran before.
const READY: u8 = b'+';

/// Announces to a machine that ran before that this machine has met all others.
pub(in crate::fabric) fn announce_ready(socket: &mut impl Socket) -> std::io::Result<()> {
    socket.write_all(&[READY])
}

/// Decides which machines may connect to a connected machine, and what it offers them.
pub trait Admission: Send {
    /// Returns the memory that is offered to a machine that calls. The machine is compatible, and no connection to it exists.
    ///
    /// # Errors
    /// The reason why it may not connect.
    fn offer(&mut self, caller: MachineId) -> Result<Vec<Capability>, String>;

    /// Returns whether the machine admits callers. If it does not, because it starts or stops, those that join it try again.
    fn is_open(&self) -> bool {
        true
    }

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

    fn is_open(&self) -> bool {
        false
    }

    fn connected(&mut self, _: PeerOffer) {}
}

/// How a backend accepts and answers callers.
pub(in crate::fabric) trait Accepts: Sized + Send + 'static {
    /// The socket of a caller.
    type Socket: Socket;
    /// The first line of a caller.
    type Hello: DeserializeOwned;
    /// A caller whose hello was answered, and that must prove itself.
    type Greeted;
    /// The line by which a caller proves itself.
    type Proof: DeserializeOwned;
    /// A caller that was welcome, and is not ready yet.
    type Welcomed;

    /// Accepts a caller, without waiting for one.
    fn accept(&self) -> std::io::Result<Self::Socket>;
    /// Returns the listening socket.
    fn listener(&self) -> BorrowedFd<'_>;
    /// Returns the number of machines of the cluster.
    fn machines(&self) -> usize;

    /// Answers the hello of a caller, without waiting for more. Returns what follows, unless the conversation has ended.
    fn greet(
        &self,
        hello: Self::Hello,
        socket: Self::Socket,
        admission: &mut dyn Admission,
    ) -> Option<Greeted<Self>>;
    /// Answers the proof of a caller. Returns the socket of one that was welcome.
    fn answer(
        &self,
        greeted: Self::Greeted,
        proof: Self::Proof,
        socket: Self::Socket,
        admission: &mut dyn Admission,
    ) -> Option<(Self::Welcomed, Self::Socket)>;
    /// Returns the machine that was welcome.
    fn machine_of(welcomed: &Self::Welcomed) -> MachineId;
    /// Connects a caller that was welcome and is ready.
    fn connect(
        &self,
        welcomed: Self::Welcomed,
        socket: Self::Socket,
        admission: &mut dyn Admission,
    );
}

/// What follows the hello of a caller, and its socket.
pub(in crate::fabric) type Greeted<A> = (
    After<<A as Accepts>::Greeted, <A as Accepts>::Welcomed>,
    <A as Accepts>::Socket,
);

/// What follows the hello of a caller.
pub(in crate::fabric) enum After<G, W> {
    /// The caller must prove itself.
    Proof(G),
    /// The caller is welcome.
    Welcome(W),
}

/// The handle of the thread that answers callers. Dropping it ends the thread.
pub(in crate::fabric) struct Door {
    /// This end of the control socket. The thread ends when it reads EOF from the other end.
    open: UnixStream,
    admission: Arc<Mutex<Box<dyn Admission>>>,
    thread: Option<JoinHandle<()>>,
}

impl Door {
    /// Starts the thread with this name. It answers questions, and connects no caller before [`Door::admit`].
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

fn answer<A: Accepts>(accepts: &A, closed: &UnixStream, admission: &Mutex<Box<dyn Admission>>) {
    let mut callers = Callers::new(accepts.machines());
    let mut greeted: Callers<A::Socket, A::Greeted> = Callers::new(accepts.machines());
    let mut welcomed: Vec<(A::Welcomed, A::Socket)> = Vec::new();
    let is_closed = |mut closed: &UnixStream| {
        let ended = closed.read(&mut [0]);
        !ended.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    };
    loop {
        let sockets = welcomed.iter().map(|(_, socket)| socket.as_fd());
        let waiting = callers.fds().chain(greeted.fds()).chain(sockets);
        wait_readable(
            waiting.chain([accepts.listener(), closed.as_fd()]),
            POLL_INTERVAL,
        );
        if is_closed(closed) {
            return dismiss(welcomed);
        }
        let decides = || {
            let decides = admission.lock();
            decides.expect("no thread panics while it answers a caller")
        };
        for index in (0..welcomed.len()).rev() {
            let outcome = is_ready(&mut welcomed[index].1);
            if outcome == Some(false) {
                continue;
            }
            let (caller, socket) = welcomed.swap_remove(index);
            match outcome {
                Some(_) => accepts.connect(caller, socket, &mut **decides()),
                None => {
                    let machine = A::machine_of(&caller);
                    tracing::info!(%machine, "a machine that was about to connect has ended");
                }
            }
        }
        accept_all(accepts, &mut callers, closed);
        let mut arrived = Vec::new();
        for (hello, socket, ()) in callers.lines() {
            match accepts.greet(hello, socket, &mut **decides()) {
                Some((After::Proof(caller), socket)) => greeted.admit(socket, caller),
                Some((After::Welcome(caller), socket)) => arrived.push((caller, socket)),
                None => {}
            }
        }
        for (proof, socket, caller) in greeted.lines() {
            if is_closed(closed) {
                welcomed.append(&mut arrived);
                return dismiss(welcomed);
            }
            arrived.extend(accepts.answer(caller, proof, socket, &mut **decides()));
        }
        for caller in arrived {
            let machine = A::machine_of(&caller.0);
            welcomed.retain(|(earlier, _)| A::machine_of(earlier) != machine);
            welcomed.push(caller);
        }
    }
}

/// Tells callers that were welcome that this machine has left. They may have taken it for connected.
fn dismiss<W, S: Socket>(welcomed: Vec<(W, S)>) {
    for (_, mut socket) in welcomed {
        // What is not read would end the connection before the farewell is read.
        let _ = is_ready(&mut socket);
        say_goodbye(&mut socket);
    }
}

/// Returns whether a caller that was welcome is ready; `None` if it has ended.
fn is_ready(socket: &mut impl Socket) -> Option<bool> {
    let mut byte = [0];
    rustix::io::ioctl_fionbio(&*socket, true).ok()?;
    let read = socket.read(&mut byte);
    rustix::io::ioctl_fionbio(&*socket, false).ok()?;
    match read {
        Ok(1) if byte == [READY] => Some(true),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Some(false),
        _ => None,
    }
}

fn accept_all<A: Accepts>(accepts: &A, callers: &mut Callers<A::Socket>, closed: &UnixStream) {
    loop {
        match accepts.accept() {
            Ok(socket) => callers.accept(socket),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection from another machine; retrying");
                wait_readable([closed.as_fd()].into_iter(), ACCEPT_RETRY);
                return;
            }
        }
    }
}
