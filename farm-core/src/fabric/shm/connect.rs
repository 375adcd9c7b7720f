//! Meeting the peers: every pair of machines holds one Unix socket. The machine with the greater id
//! dials. Both say hello.

use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::machine::Shared;
use crate::fabric::Capability;
use crate::fabric::meeting::{
    Awaited, Callers, ConnectError, Patience, REDIAL, offers_its_own, receive_line, same_cluster,
    same_configuration, same_version, send_line, wait_readable,
};
use crate::ids::MachineId;

/// Version of the handshake and of all layouts that peers share.
pub(super) const VERSION: u32 = 1;

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

pub(super) type Met = (Hello, Option<UnixStream>);

/// Dials the machines with smaller ids, accepts those with greater ones, until all are met.
pub(super) fn meet(
    shared: &Shared,
    listener: &UnixListener,
    machines: &[MachineId],
    offer: &mut dyn FnMut(MachineId) -> Vec<Capability>,
    patience: Patience<'_>,
) -> Result<Vec<Met>, ConnectError> {
    let own = &shared.config;
    let mut awaited = Awaited::new(own.machine, &own.cluster, machines, patience);
    let mut met = Vec::with_capacity(machines.len());
    listener.set_nonblocking(true)?;
    let mut callers = Callers::new(machines.len());
    while !awaited.is_complete() {
        let left = awaited.left()?;
        let mut found = Vec::new();
        for machine in awaited.to_dial() {
            if let Ok(socket) = UnixStream::connect(shared.socket(machine)) {
                found.push(dial(shared, machine, socket, offer(machine), left)?);
            }
        }
        if found.is_empty() {
            wait_readable(callers.fds().chain([listener.as_fd()]), REDIAL);
        }
        while let Ok((socket, _)) = listener.accept() {
            callers.admit(socket);
        }
        for (hello, socket) in callers.hellos() {
            found.push(accept(shared, &awaited, hello, socket, offer, left)?);
        }
        for (hello, _) in &found {
            awaited.met(hello.machine);
        }
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
    send_line(&mut socket, &shared.hello(offer)).map_err(|error| refused(error.to_string()))?;
    match receive_line::<Answer>(&socket).map_err(|why| refused(why.to_string()))? {
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
    awaited: &Awaited<'_>,
    hello: Hello,
    mut socket: UnixStream,
    offer: &mut dyn FnMut(MachineId) -> Vec<Capability>,
    timeout: Duration,
) -> Result<Met, ConnectError> {
    socket.set_nonblocking(false)?;
    socket.set_write_timeout(Some(timeout))?;
    let machine = hello.machine;
    let judged = check(shared, &hello).and_then(|()| {
        awaited
            .awaits_call_of(machine)
            .then_some(())
            .ok_or_else(|| format!("machine {machine} is not awaited here"))
    });
    if let Err(why) = judged {
        // The caller hears the reason; if it is gone, nobody is left to tell.
        let _ = send_line(&mut socket, &Answer::Refused(why.clone()));
        return Err(ConnectError::Refused { machine, why });
    }
    let welcome = Answer::Welcome(Box::new(shared.hello(offer(machine))));
    send_line(&mut socket, &welcome).map_err(|error| ConnectError::Refused {
        machine,
        why: error.to_string(),
    })?;
    Ok((hello, Some(socket)))
}

fn check(shared: &Shared, hello: &Hello) -> Result<(), String> {
    let own = &shared.config;
    same_version(VERSION, hello.version)?;
    same_cluster(&own.cluster, &hello.cluster)?;
    same_configuration(own.digest, hello.digest)?;
    let theirs = hello.offer.iter().chain([&hello.doorbells]);
    offers_its_own(hello.machine, hello.boot, theirs)
}
