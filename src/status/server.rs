//! The threads that answer callers.

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use farm_core::config::Config;
use farm_core::config::host::run_dir;
use farm_core::ids::MachineId;
use farm_core::machine::Machine;
use xxhash_rust::xxh3::xxh3_64;

use super::collect::Collector;
use super::replicas::Inspector;
use crate::error::{Error, Kind, Result};

/// Longest time that a caller may take to send a request, or to receive the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest request.
const MAX_REQUEST_BYTES: u64 = 1024;

/// Shortest time between two warnings about requests that were not answered.
const WARN_EVERY: Duration = Duration::from_secs(10);
/// Time until the next caller is accepted if the system refuses one, for lack of descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// What a socket of a machine answers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Topic {
    /// The status, to each caller that connects.
    Status,
    /// A request about the replicas.
    Replicas,
}

impl Topic {
    fn name(self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Replicas => "verify",
        }
    }
}

/// Answers `farm status` and `farm verify` until it is dropped. Each has a socket and a thread, because digests of replicas
/// take longer than callers wait for a status.
#[derive(Debug)]
pub struct StatusServer {
    _listening: [Listening; 2],
}

#[derive(Debug)]
struct Listening {
    address: SocketAddr,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Returns a socket of a machine. Its name contains a hash of the run directory, which distinguishes clusters of the same
/// name.
pub(super) fn address(config: &Config, machine: MachineId, topic: Topic) -> Result<SocketAddr> {
    let dir = run_dir(config).join(&config.cluster.name);
    let identity = xxh3_64(dir.as_os_str().as_bytes());
    let name = format!("farm-{identity:016x}-m{}-{}", machine.get(), topic.name());
    Ok(SocketAddr::from_abstract_name(name)?)
}

/// Checks that the process at the other end belongs to this user.
pub(super) fn check_user(socket: &UnixStream) -> Result<(), String> {
    let peer = rustix::net::sockopt::socket_peercred(socket);
    let peer = peer.map_err(|error| format!("cannot find out whose process it is: {error}"))?;
    match peer.uid == rustix::process::geteuid() {
        true => Ok(()),
        false => Err("the process belongs to another user".to_owned()),
    }
}

impl StatusServer {
    /// Starts to answer for a machine of this process. If that fails, logs a warning: a machine without it is better than
    /// none.
    pub fn start_or_warn(config: &Config, machine: &Machine) -> Option<Self> {
        let warn =
            |error: &Error| tracing::warn!(%error, "farm status and farm verify will not work");
        Self::start(config, machine).inspect_err(warn).ok()
    }

    /// Starts to answer for a machine of this process.
    ///
    /// # Errors
    /// [`Kind::Start`] if a socket is in use, or the system refuses it.
    pub fn start(config: &Config, machine: &Machine) -> Result<Self> {
        let collector = Collector::new(config, machine)?;
        let inspector = Inspector::new(config, machine)?;
        let status = move |caller, _: &AtomicBool| {
            let status = collector.collect()?;
            send(
                caller,
                &serde_json::to_vec(&status).map_err(std::io::Error::from)?,
            )
        };
        let replicas = move |mut caller: UnixStream, ends: &AtomicBool| {
            let mut request = Vec::new();
            caller.set_read_timeout(Some(PATIENCE))?;
            let mut bounded = Read::by_ref(&mut caller).take(MAX_REQUEST_BYTES);
            bounded.read_to_end(&mut request)?;
            send(caller, &inspector.answer(&request, ends)?)
        };
        let id = machine.id();
        let start = [
            Listening::start(config, id, Topic::Status, status)?,
            Listening::start(config, id, Topic::Replicas, replicas)?,
        ];
        Ok(Self { _listening: start })
    }
}

impl Listening {
    fn start(
        config: &Config,
        machine: MachineId,
        topic: Topic,
        answer: impl Fn(UnixStream, &AtomicBool) -> Result<()> + Send + 'static,
    ) -> Result<Self> {
        let name = topic.name();
        let failed = |error: std::io::Error| {
            let text = format!("machine {machine} cannot answer `farm {name}`: {error}");
            Error::new(Kind::Start, text)
        };
        let address = address(config, machine, topic)?;
        let listener = UnixListener::bind_addr(&address).map_err(failed)?;
        let ends = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&ends);
        let thread = std::thread::Builder::new()
            .name(format!("{machine}-{name}"))
            .spawn(move || serve(&listener, &answer, &ended))
            .map_err(failed)?;
        Ok(Self {
            address,
            ends,
            thread: Some(thread),
        })
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        // Ends the wait for a caller.
        let connected = UnixStream::connect_addr(&self.address);
        if let (Some(thread), Ok(_)) = (self.thread.take(), connected) {
            let _ = thread.join();
        }
    }
}

fn serve(
    listener: &UnixListener,
    answer: &impl Fn(UnixStream, &AtomicBool) -> Result<()>,
    ended: &AtomicBool,
) {
    // Callers of other users must not fill the log.
    let mut warned: Option<Instant> = None;
    for caller in listener.incoming() {
        if ended.load(Ordering::Acquire) {
            return;
        }
        let caller = match caller {
            Ok(caller) => caller,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a request for the status; retrying");
                std::thread::park_timeout(ACCEPT_RETRY);
                continue;
            }
        };
        let checked = check_user(&caller).map_err(|why| Error::new(Kind::Refused, why));
        match checked.and_then(|()| answer(caller, ended)) {
            Ok(()) => {}
            // The machine has stopped; no later call has an answer.
            Err(error) if error.kind() == Kind::Stopped => return,
            Err(error) if warned.is_none_or(|last| last.elapsed() >= WARN_EVERY) => {
                warned = Some(Instant::now());
                tracing::warn!(%error, "cannot answer a request for the status or the replicas");
            }
            Err(_) => {}
        }
    }
}

fn send(mut caller: UnixStream, text: &[u8]) -> Result<()> {
    caller.set_write_timeout(Some(PATIENCE))?;
    caller.write_all(text)?;
    Ok(())
}
