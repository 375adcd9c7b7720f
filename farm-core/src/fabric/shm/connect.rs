//! Connecting to the peers: every pair of machines is connected by one Unix socket. The machine with
//! the greater id dials. Both send a hello.
//!
//! A machine also asks every machine with a greater id, once that machine listens, whether the two
//! are compatible. Otherwise a machine would wait in vain for a machine that never dials, because
//! its configuration does not list the waiting machine. A machine that runs already answers so, and
//! is then dialled: see [`door`](super::door).

use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::shared::{PeerState, Shared, map_capability};
use super::signs::SIGNS_BYTES;
use crate::fabric::Capability;
use crate::fabric::handshake::{
    Awaited, Begins, Callers, ConnectError, LONGEST_ANSWER_OF_OUTSIDER, Patience, REDIAL, Roster,
    Sockets, TurnedAway, offers_its_own, receive_line, same_cluster, same_configuration,
    same_machines, same_version, send_line, wait_readable,
};
use crate::ids::MachineId;
use crate::time::{Clock, Nanos};

/// Version of the handshake and of all layouts that peers share.
pub(super) const VERSION: u32 = 7;

/// The description of a machine: the first line that the calling machine sends, and the content of [`Answer::Welcome`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) version: u32,
    pub(super) cluster: String,
    pub(super) digest: u64,
    /// The machines that the sender's configuration lists.
    pub(super) machines: Vec<MachineId>,
    /// Whether the sender does not connect, and only asks whether the two machines are compatible.
    pub(super) asks_only: bool,
    pub(super) machine: MachineId,
    pub(super) boot: u64,
    /// Whether the sender ran before the two machines connected.
    pub(super) runs: bool,
    /// With what the sender begins, unless it runs.
    pub(super) begins: Begins,
    pub(super) doorbells: Capability,
    pub(super) offer: Vec<Capability>,
}

impl Hello {
    /// Returns the hello of this machine.
    pub(super) fn of(shared: &Shared, offer: Vec<Capability>) -> Self {
        Self {
            machines: shared.machines().to_vec(),
            asks_only: false,
            version: VERSION,
            cluster: shared.config.cluster.clone(),
            digest: shared.config.digest,
            machine: shared.config.machine,
            boot: shared.boot,
            runs: false,
            begins: shared.begins(),
            doorbells: shared.doorbell_capability,
            offer,
        }
    }
}

/// The answer of the accepting machine.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Welcome(Box<Hello>),
    /// The configurations are compatible, and the answering machine waits for machines itself. Answer to a hello with
    /// `asks_only`.
    Fits,
    /// The configurations are compatible, and the answering machine runs already: call it.
    Runs(MachineId),
    /// The connection may be possible later.
    NotYet(String),
    Refused {
        /// The refusing machine.
        machine: MachineId,
        why: String,
    },
}

pub(super) type Met = (Hello, Option<UnixStream>);

/// Dials the machines with smaller ids and accepts those with greater ids, until all are connected.
pub(super) fn meet(
    shared: &Shared,
    listener: &UnixListener,
    roster: Roster<'_>,
    offer: &mut dyn FnMut(MachineId) -> Vec<Capability>,
    patience: Patience<'_>,
) -> Result<Vec<Met>, ConnectError> {
    let own = &shared.config;
    let mut awaited = Awaited::new(own.machine, &own.cluster, roster, patience);
    let machines = roster.machines.len();
    let mut met = Vec::with_capacity(machines);
    listener.set_nonblocking(true)?;
    let mut callers = Callers::new(machines);
    let mut answers: Callers<UnixStream, (MachineId, Nanos)> = Callers::new(machines);
    while !awaited.is_complete() {
        let left = awaited.left()?;
        let sockets = met.iter_mut().filter_map(|(hello, socket): &mut Met| {
            let socket = socket.as_mut()?;
            Some((hello.machine, socket))
        });
        let left_again = awaited.check_met(sockets)?;
        met.retain(|(hello, _)| !left_again.contains(&hello.machine));
        let mut found = Vec::new();
        for machine in awaited.to_dial() {
            match UnixStream::connect(shared.socket(machine)) {
                Ok(socket) => {
                    match dial(shared, &awaited, machine, socket, offer(machine), left)? {
                        Dialled::Met(met) => found.push(*met),
                        Dialled::NotYet(why) => awaited.not_connected(machine, why),
                        Dialled::Silent(why) => awaited.is_silent(machine, why),
                    }
                }
                Err(error) if is_not_there(&error) => awaited.is_absent(machine),
                Err(error) => awaited.not_reached(machine, error.to_string()),
            }
        }
        for machine in awaited.to_ask() {
            let asked = answers.known().find(|known| known.0 == machine).copied();
            if let Some((_, since)) = asked {
                let waited = Clock::Host.now().since(since);
                if awaited.is_outsider(machine) && waited >= LONGEST_ANSWER_OF_OUTSIDER {
                    let why = "the machine did not answer whether it runs";
                    awaited.is_silent(machine, why.into());
                }
                continue;
            }
            match ask(shared, machine) {
                Some(socket) => {
                    awaited.is_present(machine);
                    answers.admit(socket, (machine, Clock::Host.now()));
                }
                None => awaited.is_absent(machine),
            }
        }
        if found.is_empty() {
            let talking = callers.fds().chain(answers.fds());
            wait_readable(talking.chain([listener.as_fd()]), REDIAL);
        }
        for (answer, _, (machine, _)) in answers.lines() {
            awaited.answered(machine);
            match answer {
                Answer::Refused { machine, why } => {
                    return Err(ConnectError::Refused { machine, why });
                }
                Answer::Runs(machine) => awaited.runs(machine),
                _ => awaited.waits(machine),
            }
        }
        while let Ok((socket, _)) = listener.accept() {
            callers.accept(socket);
        }
        for (hello, socket, ()) in callers.lines() {
            found.extend(accept(shared, &mut awaited, hello, socket, offer, left)?);
        }
        for (hello, _) in &found {
            awaited.met(hello.machine);
        }
        met.extend(found);
    }
    Ok(met)
}

/// Returns whether a call failed because no process listens.
fn is_not_there(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NotFound | ErrorKind::ConnectionRefused
    )
}

/// Asks `machine`, if it listens, whether it is compatible with this machine. Does not wait for the
/// answer: `machine` may be dialling this machine at the same time, and would have to wait.
fn ask(shared: &Shared, machine: MachineId) -> Option<UnixStream> {
    let mut socket = UnixStream::connect(shared.socket(machine)).ok()?;
    let hello = Hello {
        asks_only: true,
        ..Hello::of(shared, Vec::new())
    };
    send_line(&mut socket, &hello).ok()?;
    Some(socket)
}

/// The outcome of a call.
enum Dialled {
    Met(Box<Met>),
    NotYet(String),
    /// The machine is no member, and does not answer.
    Silent(String),
}

fn dial(
    shared: &Shared,
    awaited: &Awaited<'_>,
    machine: MachineId,
    mut socket: UnixStream,
    offer: Vec<Capability>,
    timeout: Duration,
) -> Result<Dialled, ConnectError> {
    let refused = |why: String| ConnectError::Refused { machine, why };
    let timeout = timeout.min(awaited.longest_answer(machine).unwrap_or(timeout));
    socket.set_read_timeout(Some(timeout))?;
    // A machine that begins to run drops the callers that it has not answered.
    let ended = |error: &std::io::Error| {
        let why = || format!("the machine did not answer ({error})");
        match error.kind() {
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
                awaited.joins().then(|| Dialled::NotYet(why()))
            }
            ErrorKind::WouldBlock | ErrorKind::TimedOut if awaited.may_be_absent(machine) => {
                Some(match awaited.is_outsider(machine) {
                    true => Dialled::Silent(why()),
                    false => Dialled::NotYet(why()),
                })
            }
            _ => None,
        }
    };
    let answer = send_line(&mut socket, &Hello::of(shared, offer))
        .and_then(|()| receive_line::<Answer>(&socket));
    if let Some(again) = answer.as_ref().err().and_then(ended) {
        return Ok(again);
    }
    let answer = answer.map_err(|error| ConnectError::Unanswered {
        machine,
        why: match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                format!("the called machine did not answer the hello within {timeout:.1?}")
            }
            _ => format!("the answer of the called machine could not be read ({error})"),
        },
    })?;
    match answer {
        Answer::Welcome(hello) if hello.machine == machine => {
            check(shared, &hello).map_err(refused)?;
            Ok(Dialled::Met(Box::new((*hello, Some(socket)))))
        }
        Answer::Welcome(hello) => Err(refused(format!(
            "the hello of the called machine names another machine, {}",
            hello.machine
        ))),
        Answer::NotYet(why) => Ok(Dialled::NotYet(why)),
        Answer::Fits | Answer::Runs(_) => Err(refused(
            "the hello asked for a connection, but the called machine answered only that it is compatible".into(),
        )),
        Answer::Refused { why, .. } => Err(refused(why)),
    }
}

/// Answers a caller after its hello. Returns `None` if the caller only asked whether the two machines
/// are compatible.
fn accept(
    shared: &Shared,
    awaited: &mut Awaited<'_>,
    hello: Hello,
    mut socket: UnixStream,
    offer: &mut dyn FnMut(MachineId) -> Vec<Capability>,
    timeout: Duration,
) -> Result<Option<Met>, ConnectError> {
    socket.set_nonblocking(false)?;
    socket.set_write_timeout(Some(timeout))?;
    let machine = hello.machine;
    let judged = check(shared, &hello).map_err(TurnedAway::Refused);
    let judged = judged.and_then(|()| match hello.asks_only {
        true => Ok(()),
        // First: one that begins otherwise may call although it has the smaller id, and looks again at what runs.
        false => begins_alike(shared, &hello).and_then(|()| awaited.check_call_of(machine)),
    });
    match judged {
        Ok(()) => {}
        Err(TurnedAway::Refused(why)) => {
            refuse(shared, &mut socket, why.clone());
            if awaited.is_joiner(machine) {
                tracing::warn!("machine {machine} was refused: {why}");
                return Ok(None);
            }
            return Err(ConnectError::Refused { machine, why });
        }
        Err(TurnedAway::NotYet(why)) => {
            // The caller tries again, also if this answer does not reach it.
            let _ = send_line(&mut socket, &Answer::NotYet(why));
            return Ok(None);
        }
    }
    if hello.asks_only {
        if machine < shared.config.machine {
            awaited.is_present(machine);
        }
        // The answer is informational, so a failure to send it is ignored.
        let _ = send_line(&mut socket, &Answer::Fits);
        return Ok(None);
    }
    let welcome = Answer::Welcome(Box::new(Hello::of(shared, offer(machine))));
    send_line(&mut socket, &welcome).map_err(|error| ConnectError::Unanswered {
        machine,
        why: error.to_string(),
    })?;
    Ok(Some((hello, Some(socket))))
}

/// Checks that a caller begins with the same as this machine.
fn begins_alike(shared: &Shared, hello: &Hello) -> Result<(), TurnedAway> {
    match hello.begins == shared.begins() {
        true => Ok(()),
        false => Err(TurnedAway::NotYet(format!(
            "machine {} waits for others that begin as it does",
            shared.config.machine
        ))),
    }
}

/// Maps what the workers need to wake a peer.
pub(super) fn connected(shared: &Shared, hello: &Hello) -> Result<Arc<PeerState>, ConnectError> {
    let machine = hello.machine;
    let memory = map_capability(&shared.names, &hello.doorbells)
        .map_err(|source| ConnectError::Memory { machine, source })?;
    let first = shared.names.memory(machine, hello.boot, 0);
    let first = File::open(first)?;
    Ok(Arc::new(PeerState::connected(
        machine, hello.boot, &memory, first,
    )))
}

/// Has the monitor notice the end of a peer's socket.
pub(super) fn watch(
    shared: &Arc<Shared>,
    sockets: &Sockets<UnixStream>,
    peer: Arc<PeerState>,
    socket: UnixStream,
) -> std::io::Result<()> {
    let (machine, shared) = (peer.machine, Arc::clone(shared));
    let ended = move |how, why| shared.depart(&peer, how, why);
    sockets.add(machine, socket, Box::new(ended))
}

/// Sends a refusal to a caller.
pub(super) fn refuse(shared: &Shared, socket: &mut UnixStream, why: String) {
    let machine = shared.config.machine;
    // If the caller is gone, the failure to send is ignored.
    let _ = send_line(socket, &Answer::Refused { machine, why });
}

/// Checks whether the machine of this hello and this machine can work together.
pub(super) fn check(shared: &Shared, hello: &Hello) -> Result<(), String> {
    let own = &shared.config;
    same_version(VERSION, hello.version)?;
    same_cluster(&own.cluster, &hello.cluster)?;
    same_machines(
        (own.machine, shared.machines()),
        (hello.machine, &hello.machines),
    )?;
    same_configuration(own.digest, hello.digest)?;
    let theirs = hello.offer.iter().chain([&hello.doorbells]);
    if hello.doorbells.bytes <= SIGNS_BYTES as u64 {
        let (machine, bytes) = (hello.machine, hello.doorbells.bytes);
        return Err(format!(
            "the first file of machine {machine} has {bytes} bytes, which is too short"
        ));
    }
    offers_its_own(hello.machine, hello.boot, theirs)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::fabric::shm::{ShmConfig, ShmMachine};

    /// A clean-up of any cluster on the host holds the lock of an ended process for a moment, and a machine that starts takes that for a process
    /// that runs, which it is to join. It calls others that begin again with all, also one with a greater id, which must not refuse it for
    /// good: once both ended.
    #[test]
    fn a_call_of_a_machine_that_begins_otherwise_is_answered_with_not_yet() {
        let dir = tempfile::tempdir().unwrap();
        let machines = [1, 2, 3].map(|id| MachineId::new(id).unwrap());
        let start = |machine| {
            ShmMachine::start(ShmConfig {
                cluster: "otherwise".into(),
                run_dir: dir.path().into(),
                memory_dir: dir.path().into(),
                huge_pages: false,
                machine,
                workers: 1,
                digest: 1,
                lease: None,
            })
            .unwrap()
        };
        let hello = Hello {
            machines: machines.to_vec(),
            begins: Begins::Joining,
            ..start(machines[1]).hello()
        };
        let mut third = start(machines[2]);
        let socket = dir.path().join("otherwise/m3.sock");
        let cancelled = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let meeting = scope.spawn(|| {
                let roster = Roster {
                    begins: Begins::After(5),
                    ..Roster::from(&machines[..])
                };
                let patience = Patience {
                    most: Duration::from_secs(60),
                    cancelled: Some(&cancelled),
                };
                third.connect(roster, &mut |_| Vec::new(), patience)
            });
            let mut socket = UnixStream::connect(&socket).unwrap();
            send_line(&mut socket, &hello).unwrap();
            let answer = receive_line::<Answer>(&socket).unwrap();
            cancelled.store(true, Ordering::Release);
            let ended = meeting.join().unwrap();
            assert!(matches!(answer, Answer::NotYet(_)), "{answer:?}");
            assert!(matches!(ended, Err(ConnectError::Cancelled)), "{ended:?}");
        });
    }
}
