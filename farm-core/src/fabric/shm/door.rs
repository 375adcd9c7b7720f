//! Answers machines that call a connected machine: connects those that may connect, and refuses the others with the reason.
//! Without an answer, a caller would wait as long as a starting machine waits for others.

use std::convert::Infallible;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use super::connect::{Answer, Hello, check, connected, refuse, watch};
use super::shared::{PeerState, Shared};
use crate::fabric::PeerOffer;
use crate::fabric::handshake::{Accepts, Admission, After, Sockets, send_line};
use crate::ids::MachineId;

/// Timeout of sending an answer to a caller.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// The callers of a connected machine.
pub(super) struct ShmCallers {
    pub(super) shared: Arc<Shared>,
    pub(super) listener: UnixListener,
    pub(super) sockets: Sockets<UnixStream>,
}

impl Accepts for ShmCallers {
    type Socket = UnixStream;
    type Hello = Hello;

    fn accept(&self) -> std::io::Result<UnixStream> {
        self.listener.accept().map(|(socket, _)| socket)
    }

    fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    fn machines(&self) -> usize {
        self.shared.machines().len()
    }

    // Only processes of this user reach the socket.
    type Greeted = Infallible;
    type Proof = ();
    type Welcomed = (Arc<PeerState>, PeerOffer);

    fn greet(
        &self,
        hello: Hello,
        mut socket: UnixStream,
        admission: &mut dyn Admission,
    ) -> Option<(After<Infallible, Self::Welcomed>, UnixStream)> {
        socket.set_nonblocking(false).ok()?;
        socket.set_write_timeout(Some(ANSWER_TIMEOUT)).ok()?;
        let machine = hello.machine;
        if let Err(why) = check(&self.shared, &hello) {
            self.refuse(&hello, &mut socket, why);
            return None;
        }
        // If the caller is gone, a failure to send is ignored.
        if hello.asks_only {
            let _ = send_line(&mut socket, &Answer::Runs(self.shared.config.machine));
            return None;
        }
        if self.shared.is_connected(machine) {
            let why = format!(
                "the connection to an earlier start of machine {machine} has not ended yet"
            );
            let _ = send_line(&mut socket, &Answer::NotYet(why));
            return None;
        }
        if !admission.is_open() && self.shared.joins(machine) {
            let why = format!("machine {} starts or stops", self.shared.config.machine);
            let _ = send_line(&mut socket, &Answer::NotYet(why));
            return None;
        }
        let offered = admission.offer(machine).and_then(|offer| {
            let peer = connected(&self.shared, &hello).map_err(|error| error.to_string());
            peer.map(|peer| (offer, peer))
        });
        let (offer, peer) = match offered {
            Ok(offered) => offered,
            Err(why) => {
                self.refuse(&hello, &mut socket, why);
                return None;
            }
        };
        let ours = Hello {
            runs: true,
            ..Hello::of(&self.shared, offer)
        };
        send_line(&mut socket, &Answer::Welcome(Box::new(ours))).ok()?;
        let offer = PeerOffer {
            machine,
            runs: false,
            offer: hello.offer,
        };
        Some((After::Welcome((peer, offer)), socket))
    }

    fn answer(
        &self,
        greeted: Infallible,
        (): (),
        _: UnixStream,
        _: &mut dyn Admission,
    ) -> Option<(Self::Welcomed, UnixStream)> {
        match greeted {}
    }

    fn machine_of(welcomed: &Self::Welcomed) -> MachineId {
        welcomed.1.machine
    }

    fn connect(
        &self,
        (peer, offer): Self::Welcomed,
        socket: UnixStream,
        admission: &mut dyn Admission,
    ) {
        let machine = offer.machine;
        self.shared.arrive(Arc::clone(&peer));
        if let Err(error) = watch(&self.shared, &self.sockets, peer, socket) {
            tracing::warn!(%machine, %error, "the monitor has ended; a machine that has connected is not watched");
        }
        admission.connected(offer);
    }
}

impl ShmCallers {
    fn refuse(&self, hello: &Hello, socket: &mut UnixStream, why: String) {
        let machine = hello.machine;
        tracing::warn!("machine {machine} was refused: {why}");
        refuse(&self.shared, socket, why);
    }
}
