//! Meeting the peers: every pair of machines holds one Unix socket. The machine with the greater id
//! dials. Both say hello; after that the socket carries nothing but its end, which is how a dead
//! peer is noticed, and one byte by which a living one says that it is leaving.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::callers::Callers;
use super::machine::Shared;
use crate::fabric::{Capability, Departure};
use crate::ids::MachineId;
use crate::time::Clock;

/// Version of the handshake and of all layouts that peers share.
pub(super) const VERSION: u32 = 1;
/// Longest handshake line accepted.
pub(super) const MAX_HELLO_BYTES: usize = 1 << 20;
const GOODBYE: u8 = b'.';
/// How often a machine that is not there yet is dialled again.
const REDIAL: Duration = Duration::from_millis(5);

/// First line of either side.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) version: u32,
    pub(super) cluster: String,
    pub(super) digest: u64,
    pub(super) machine: MachineId,
    pub(super) boot: u64,
    pub(super) doorbells: Capability,
    pub(super) offer: Vec<Capability>,
}

/// The acceptor's answer.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Welcome(Box<Hello>),
    Refused(String),
}

/// How long a machine waits for the others.
#[derive(Clone, Copy, Debug)]
pub struct Patience<'a> {
    /// At most so long.
    pub most: Duration,
    /// Or until somebody sets this.
    pub cancelled: Option<&'a AtomicBool>,
}

impl From<Duration> for Patience<'_> {
    fn from(most: Duration) -> Self {
        Self {
            most,
            cancelled: None,
        }
    }
}

impl Patience<'_> {
    fn is_cancelled(&self) -> bool {
        self.cancelled
            .is_some_and(|cancelled| cancelled.load(Ordering::Acquire))
    }
}

/// Why the machines of a cluster did not meet.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Some machines did not come in time.
    #[error(
        "machine {own} waited {waited:?} for {missing} of cluster \"{cluster}\"; start them with the \
         same configuration"
    )]
    Missing {
        /// This machine.
        own: MachineId,
        /// The cluster.
        cluster: String,
        /// The machines that did not come.
        missing: String,
        /// How long it waited.
        waited: Duration,
    },
    /// The wait was cancelled.
    #[error("told to stop while it waited for other machines")]
    Cancelled,
    /// The other side refused, or is not what it should be.
    #[error("machine {machine} and this one do not fit together: {why}")]
    Refused {
        /// The other machine.
        machine: MachineId,
        /// The reason.
        why: String,
    },
    /// The peer's memory could not be mapped.
    #[error("memory of machine {machine}: {source}")]
    Memory {
        /// The peer.
        machine: MachineId,
        /// Why.
        #[source]
        source: crate::mem::MappingError,
    },
    /// Connecting again on a connected machine.
    #[error("this machine is already connected")]
    Twice,
    /// The operating system refused.
    #[error("the machine's socket failed: {0}")]
    Socket(#[from] std::io::Error),
}

pub(super) type Met = (Hello, Option<UnixStream>);

/// Dials the machines with smaller ids, accepts those with greater ones, until all are met.
pub(super) fn meet(
    shared: &Shared,
    listener: &UnixListener,
    machines: &[MachineId],
    offer: &mut dyn FnMut(MachineId) -> Vec<Capability>,
    patience: Patience<'_>,
) -> Result<Vec<Met>, ConnectError> {
    let own = shared.config.machine;
    let started = Clock::Host.now();
    let mut missing: Vec<MachineId> = machines.iter().copied().filter(|m| *m != own).collect();
    let mut met = Vec::with_capacity(missing.len() + 1);
    listener.set_nonblocking(true)?;
    let mut callers = Callers::new(machines.len());
    while !missing.is_empty() {
        if patience.is_cancelled() {
            return Err(ConnectError::Cancelled);
        }
        let left = patience
            .most
            .saturating_sub(Clock::Host.now().since(started));
        if left.is_zero() {
            let names: Vec<String> = missing.iter().map(ToString::to_string).collect();
            return Err(ConnectError::Missing {
                own,
                cluster: shared.config.cluster.clone(),
                missing: names.join(", "),
                waited: patience.most,
            });
        }
        let mut found = Vec::new();
        for machine in missing.iter().copied().filter(|machine| *machine < own) {
            if let Ok(socket) = UnixStream::connect(shared.socket(machine)) {
                found.push(dial(shared, machine, socket, offer(machine), left)?);
            }
        }
        if found.is_empty() {
            wait_readable(callers.fds().chain([listener.as_raw_fd()]), REDIAL);
        }
        while let Ok((socket, _)) = listener.accept() {
            callers.admit(socket);
        }
        for (hello, socket) in callers.hellos() {
            found.push(accept(shared, &missing, hello, socket, offer, left)?);
        }
        missing.retain(|machine| !found.iter().any(|(hello, _)| hello.machine == *machine));
        met.extend(found);
    }
    Ok(met)
}

fn dial(
    shared: &Shared,
    machine: MachineId,
    mut socket: UnixStream,
    offer: Vec<Capability>,
    timeout: Duration,
) -> Result<Met, ConnectError> {
    let refused = |why: String| ConnectError::Refused { machine, why };
    socket.set_read_timeout(Some(timeout))?;
    send(&mut socket, &shared.hello(offer)).map_err(|error| refused(error.to_string()))?;
    match receive::<Answer>(&socket).map_err(|why| refused(why.to_string()))? {
        Answer::Welcome(hello) if hello.machine == machine => {
            check(shared, &hello).map_err(refused)?;
            Ok((*hello, Some(socket)))
        }
        Answer::Welcome(hello) => Err(refused(format!(
            "it says that it is machine {}",
            hello.machine
        ))),
        Answer::Refused(why) => Err(refused(why)),
    }
}

/// Answers a caller that said hello.
fn accept(
    shared: &Shared,
    missing: &[MachineId],
    hello: Hello,
    mut socket: UnixStream,
    offer: &mut dyn FnMut(MachineId) -> Vec<Capability>,
    timeout: Duration,
) -> Result<Met, ConnectError> {
    socket.set_nonblocking(false)?;
    socket.set_write_timeout(Some(timeout))?;
    let machine = hello.machine;
    let judged = check(shared, &hello).and_then(|()| {
        let awaited = missing.contains(&machine) && machine > shared.config.machine;
        awaited
            .then_some(())
            .ok_or_else(|| format!("machine {machine} is not awaited here"))
    });
    if let Err(why) = judged {
        // The caller hears the reason; if it is gone, nobody is left to tell.
        let _ = send(&mut socket, &Answer::Refused(why.clone()));
        return Err(ConnectError::Refused { machine, why });
    }
    let welcome = Answer::Welcome(Box::new(shared.hello(offer(machine))));
    send(&mut socket, &welcome).map_err(|error| ConnectError::Refused {
        machine,
        why: error.to_string(),
    })?;
    Ok((hello, Some(socket)))
}

fn check(shared: &Shared, hello: &Hello) -> Result<(), String> {
    let own = &shared.config;
    if hello.version != VERSION {
        return Err(format!(
            "protocol version {} here, {} there",
            VERSION, hello.version
        ));
    }
    if hello.cluster != own.cluster {
        return Err(format!(
            "cluster \"{}\" here, \"{}\" there",
            own.cluster, hello.cluster
        ));
    }
    if hello.digest != own.digest {
        return Err(format!(
            "their configurations differ (digest {:#x} here, {:#x} there): start both from the same file",
            own.digest, hello.digest
        ));
    }
    let names_itself = |c: &Capability| c.machine == hello.machine && c.boot == hello.boot;
    if !names_itself(&hello.doorbells) || !hello.offer.iter().all(names_itself) {
        return Err("it offers memory that is not its own".into());
    }
    Ok(())
}

fn send(socket: &mut UnixStream, message: &impl Serialize) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    socket.write_all(&line)
}

/// Reads one line and not a byte more: what follows belongs to the monitor.
fn receive<T: serde::de::DeserializeOwned>(socket: &UnixStream) -> std::io::Result<T> {
    let mut line = Vec::new();
    // A buffer of one byte reads nothing past the line.
    BufReader::with_capacity(1, socket)
        .take(MAX_HELLO_BYTES as u64)
        .read_until(b'\n', &mut line)?;
    if line.last() != Some(&b'\n') {
        return Err(std::io::Error::new(
            std::io::ErrorKind::UnexpectedEof,
            "the line has no end",
        ));
    }
    Ok(serde_json::from_slice(&line)?)
}

/// The thread that waits for the ends of the peers' sockets.
pub(super) struct Monitor {
    stop: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Monitor {
    pub(super) fn start(
        shared: Arc<Shared>,
        sockets: Vec<(MachineId, UnixStream)>,
    ) -> Result<Self, ConnectError> {
        let (stop, stopped) = UnixStream::pair()?;
        let name = format!("{}-monitor", shared.config.machine);
        let thread = std::thread::Builder::new()
            .name(name)
            .spawn(move || watch(&shared, sockets, &stopped))?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // The thread ends when it sees this end closed, whether or not the shutdown call worked.
        let _ = self.stop.shutdown(std::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn watch(shared: &Shared, mut sockets: Vec<(MachineId, UnixStream)>, stopped: &UnixStream) {
    loop {
        let peers = sockets.iter().map(|(_, socket)| socket.as_raw_fd());
        let mut fds = poll_entries(peers.chain([stopped.as_raw_fd()]));
        // SAFETY: the array outlives the call and its length is given.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, -1) };
        if fds.last().is_some_and(|stop| stop.revents != 0) {
            for (_, socket) in &mut sockets {
                // A peer that is gone needs no goodbye.
                let _ = socket.write_all(&[GOODBYE]);
            }
            return;
        }
        let mut at = 0;
        sockets.retain_mut(|(machine, socket)| {
            let readable = fds[at].revents != 0;
            at += 1;
            if !readable {
                return true;
            }
            let mut byte = [0];
            let how = match socket.read(&mut byte) {
                Ok(1) if byte[0] == GOODBYE => Departure::Left,
                _ => Departure::Lost,
            };
            shared.depart(*machine, how);
            false
        });
    }
}

fn wait_readable(fds: impl Iterator<Item = RawFd>, most: Duration) {
    let mut fds = poll_entries(fds);
    let most = most.as_millis() as libc::c_int;
    // SAFETY: the array outlives the call and its length is given. The outcome does not matter, the
    // caller looks for itself.
    unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, most) };
}

fn poll_entries(fds: impl Iterator<Item = RawFd>) -> Vec<libc::pollfd> {
    fds.map(|fd| libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    })
    .collect()
}
