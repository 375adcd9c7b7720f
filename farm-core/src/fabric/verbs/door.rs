//! Answers machines that call a connected machine: connects those that may connect, and refuses the others with the reason.

use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::control::{Answer, Greeting, Hello};
use super::meet::{Called, Fault, LONGEST_TALK, Met, answer};
use super::queue_pair::QueuePair;
use super::shared::Shared;
use crate::fabric::handshake::{Accepts, Admission, Sockets};
use crate::fabric::{Capability, PeerOffer};
use crate::ids::MachineId;

/// The callers of a connected machine.
pub(super) struct VerbsCallers {
    pub(super) shared: Arc<Shared>,
    pub(super) listener: TcpListener,
    pub(super) sockets: Sockets<TcpStream>,
}

/// A machine that runs.
struct Running<'a> {
    shared: &'a Shared,
    admission: &'a mut dyn Admission,
}

impl Called for Running<'_> {
    fn about_itself(&self) -> Answer<Greeting> {
        Answer::Runs(self.shared.config.machine)
    }

    fn turn_away(&self, caller: MachineId) -> Option<Answer<Greeting>> {
        let connected = self.shared.is_connected(caller);
        connected.then(|| {
            Answer::NotYet(format!(
                "the connection to an earlier start of machine {caller} has not ended yet"
            ))
        })
    }

    fn offer(&mut self, caller: MachineId) -> Result<Vec<Capability>, String> {
        self.admission.offer(caller)
    }
}

impl Accepts for VerbsCallers {
    type Socket = TcpStream;
    type Hello = Greeting;

    fn accept(&self) -> std::io::Result<TcpStream> {
        self.listener.accept().map(|(socket, _)| socket)
    }

    fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    fn machines(&self) -> usize {
        self.shared.config.addresses.len()
    }

    type Welcomed = Arrival;

    fn answer(
        &self,
        hello: Greeting,
        socket: TcpStream,
        admission: &mut dyn Admission,
    ) -> Option<(Arrival, TcpStream)> {
        let mut running = Running {
            shared: &self.shared,
            admission,
        };
        match answer(&self.shared, &mut running, hello, socket, LONGEST_TALK) {
            Ok(Some(met)) => Some(met.split()),
            Ok(None) => None,
            Err(Fault::NotMet(why)) => {
                tracing::warn!("refused a caller: {why}");
                None
            }
            Err(Fault::Final(error)) => {
                tracing::warn!("refused a caller: {error}");
                None
            }
        }
    }

    fn machine_of(welcomed: &Arrival) -> MachineId {
        welcomed.machine
    }

    fn connect(&self, arrival: Arrival, socket: TcpStream, admission: &mut dyn Admission) {
        let machine = arrival.machine;
        match arrival.arrive(socket, &self.shared, &self.sockets) {
            Ok(offer) => admission.connected(offer),
            Err(error) => {
                tracing::warn!(%machine, %error, "the monitor has ended; a machine that has connected is not watched");
            }
        }
    }
}

/// A peer to which all queue pairs are connected, without its socket.
pub(super) struct Arrival {
    machine: MachineId,
    hello: Hello,
    pairs: Vec<QueuePair>,
}

impl Met {
    /// Separates the socket.
    pub(super) fn split(self) -> (Arrival, TcpStream) {
        let Met {
            machine,
            hello,
            pairs,
            socket,
        } = self;
        let arrival = Arrival {
            machine,
            hello,
            pairs,
        };
        (arrival, socket)
    }
}

impl Arrival {
    /// Returns whether the peer ran before.
    pub(super) fn runs(&self) -> bool {
        self.hello.runs
    }

    /// Makes the peer's memory available to the workers, and has the monitor notice the end of its socket.
    pub(super) fn arrive(
        self,
        socket: TcpStream,
        shared: &Arc<Shared>,
        sockets: &Sockets<TcpStream>,
    ) -> std::io::Result<PeerOffer> {
        let machine = self.machine;
        let generation = shared.arrive(machine, &self.hello, self.pairs);
        let of_peer = Arc::clone(shared);
        let ended = move |how, why| of_peer.depart(machine, generation, how, why);
        sockets.add(machine, socket, Box::new(ended))?;
        Ok(PeerOffer {
            machine,
            runs: self.hello.runs,
            offer: self.hello.offer,
        })
    }
}
