//! Answers machines that call a connected machine: connects those that may connect, and refuses the others with the reason.

use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::control::{Answer, Greeting, Hello, Sealed};
use super::meet::{Called, Fault, Greeted, Identity, LONGEST_TALK, Met, answer, greet};
use super::queue_pair::QueuePair;
use super::shared::Shared;
use crate::fabric::handshake::{Accepts, Admission, After, Sockets, TurnedAway};
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

    fn turn_away(&self, caller: MachineId) -> Option<TurnedAway> {
        if !self.admission.is_open() {
            let why = format!("machine {} stops", self.shared.config.machine);
            return Some(TurnedAway::NotYet(why));
        }
        let connected = self.shared.is_connected(caller);
        connected.then(|| {
            TurnedAway::NotYet(format!(
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

    type Greeted = Greeted;
    type Proof = Sealed;
    type Welcomed = Arrival;

    fn greet(
        &self,
        hello: Greeting,
        mut socket: TcpStream,
        admission: &mut dyn Admission,
    ) -> Option<(After<Greeted, Arrival>, TcpStream)> {
        let running = Running {
            shared: &self.shared,
            admission,
        };
        match greet(&Identity::of(&self.shared), &running, hello, &mut socket) {
            Ok(greeted) => Some((After::Proof(greeted?), socket)),
            Err(why) => {
                tracing::warn!("refused a caller: {why}");
                None
            }
        }
    }

    fn answer(
        &self,
        greeted: Greeted,
        proof: Sealed,
        socket: TcpStream,
        admission: &mut dyn Admission,
    ) -> Option<(Arrival, TcpStream)> {
        let (shared, mut running) = (
            &self.shared,
            Running {
                shared: &self.shared,
                admission,
            },
        );
        match answer(shared, &mut running, greeted, proof, socket, LONGEST_TALK) {
            Ok(met) => Some(met.split()),
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

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read};

    use super::super::control::{Conversation, Secret};
    use super::super::meet::open_proof;
    use super::*;
    use crate::fabric::handshake::{Door, receive_line, send_line};
    use crate::time::Clock;

    const SECRET: &[u8] = b"the secret of the cluster";

    fn id(number: u16) -> MachineId {
        MachineId::new(number).unwrap()
    }

    fn identity(number: u16) -> Identity<'static> {
        Identity {
            cluster: "c",
            machine: id(number),
            queues: 1,
        }
    }

    /// The greeting and the proof of production, without queue pairs.
    struct WithoutDevice(TcpListener);

    struct Everybody;

    impl Called for Everybody {
        fn about_itself(&self) -> Answer<Greeting> {
            Answer::Runs(id(1))
        }
        fn turn_away(&self, _: MachineId) -> Option<TurnedAway> {
            None
        }
        fn offer(&mut self, _: MachineId) -> Result<Vec<Capability>, String> {
            Ok(Vec::new())
        }
    }

    impl Accepts for WithoutDevice {
        type Socket = TcpStream;
        type Hello = Greeting;
        type Greeted = Greeted;
        type Proof = Sealed;
        type Welcomed = u16;

        fn accept(&self) -> std::io::Result<TcpStream> {
            self.0.accept().map(|(socket, _)| socket)
        }
        fn listener(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }
        fn machines(&self) -> usize {
            2
        }
        fn greet(
            &self,
            hello: Greeting,
            mut socket: TcpStream,
            _: &mut dyn Admission,
        ) -> Option<(After<Greeted, u16>, TcpStream)> {
            let greeted = greet(&identity(1), &Everybody, hello, &mut socket);
            Some((After::Proof(greeted.ok()??), socket))
        }
        fn answer(
            &self,
            greeted: Greeted,
            proof: Sealed,
            socket: TcpStream,
            _: &mut dyn Admission,
        ) -> Option<(u16, TcpStream)> {
            let opened = open_proof(&Secret::of(SECRET), &greeted, &proof, socket, LONGEST_TALK);
            let (mut talk, number) = opened.ok()?;
            let sealed = talk.seal(&number).unwrap();
            talk.send(&Answer::Welcome(sealed)).unwrap();
            Some((number, talk.into_socket()))
        }
        fn machine_of(number: &u16) -> MachineId {
            id(*number)
        }
        fn connect(&self, _: u16, _: TcpStream, _: &mut dyn Admission) {}
    }

    /// Calls the door, and receives the answer to the greeting.
    fn call(listener: &TcpListener, number: u16) -> (TcpStream, Greeting, Greeting) {
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let ours = identity(number).greeting().unwrap();
        send_line(&mut socket, &ours).unwrap();
        let Answer::Welcome(theirs) = receive_line::<Answer<Greeting>>(&socket).unwrap() else {
            panic!("the door refuses the greeting");
        };
        (socket, ours, theirs)
    }

    /// Calls the door, and proves that it knows a secret. Returns the answer.
    fn prove(listener: &TcpListener, number: u16, secret: &[u8]) -> Answer<Sealed> {
        let (socket, ours, theirs) = call(listener, number);
        let end = Clock::Host.now() + LONGEST_TALK.as_nanos() as u64;
        let secret = Secret::of(secret);
        let mut talk = Conversation::new(socket, &secret, (&ours, &theirs), true, end).unwrap();
        let proof = talk.seal(&number).unwrap();
        talk.send(&proof).unwrap();
        talk.receive().unwrap()
    }

    /// Regression test: a caller that was greeted and then sent nothing delayed all other callers by 5 s.
    #[test]
    fn callers_that_do_not_prove_themselves_delay_no_other_caller() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let accepts = WithoutDevice(listener.try_clone().unwrap());
        let _door = Door::open("test-door".into(), accepts).unwrap();
        let mute = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let greeted = [2, 3, 2].map(|number| call(&listener, number).0);
        let refused = prove(&listener, 2, b"another secret, just as long");
        assert!(
            matches!(&refused, Answer::Refused(why) if why.contains("secret")),
            "{refused:?}"
        );
        let welcome = prove(&listener, 2, SECRET);
        assert!(matches!(welcome, Answer::Welcome(_)), "{welcome:?}");
        // The others were not dropped to get there: each may still prove itself.
        for mut silent in [mute].into_iter().chain(greeted) {
            silent.set_nonblocking(true).unwrap();
            let read = silent.read(&mut [0]).unwrap_err();
            assert_eq!(read.kind(), ErrorKind::WouldBlock);
        }
    }
}
