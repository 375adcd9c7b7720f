//! The thread that detects the end of the peers' sockets.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::fabric::Departure;
use crate::ids::MachineId;

/// First byte of the farewell of a machine that leaves.
const GOODBYE: u8 = b'.';
/// First byte of the farewell of a machine that stops because of a failure. The reason follows.
const FAILURE: u8 = b'!';
/// Maximum number of bytes of a reason.
const MAX_REASON_BYTES: usize = 512;

/// A connected stream of any family.
pub(in crate::fabric) trait Socket: Read + Write + AsFd + Send + 'static {}

impl<S: Read + Write + AsFd + Send + 'static> Socket for S {}

/// Callback for the end of a machine: how it ended, and the failure that it reported, if any.
pub(in crate::fabric) type Ended = Box<dyn FnOnce(Departure, Option<String>) + Send>;

/// A socket whose end the thread waits for.
struct Watched<S> {
    machine: MachineId,
    socket: S,
    ended: Ended,
}

/// A handle to report this machine's failure to the peers, from any thread of the machine.
#[derive(Clone)]
pub(crate) struct Reporter {
    /// The farewell that is sent to the peers when the monitor ends.
    farewell: Arc<Mutex<Vec<u8>>>,
    /// The writing end of the thread's control socket: a byte announces a new socket, EOF ends the
    /// thread.
    wake: Arc<UnixStream>,
}

impl Reporter {
    /// Reports to the peers immediately that this machine has failed, and why. The peers then treat
    /// this machine as lost. Later calls, and calls after the monitor was dropped, have no effect.
    pub(crate) fn fail(&self, why: &str) {
        let why = why.lines().next().unwrap_or_default();
        let mut end = why.len().min(MAX_REASON_BYTES);
        while !why.is_char_boundary(end) {
            end -= 1;
        }
        let mut farewell = self
            .farewell
            .lock()
            .expect("no thread panics while it holds the farewell's lock");
        if *farewell == [GOODBYE] {
            farewell.clear();
            farewell.push(FAILURE);
            farewell.extend_from_slice(&why.as_bytes()[..end]);
        }
        drop(farewell);
        self.end();
    }

    /// Ends the thread, which stops at EOF or at an error of its control socket.
    fn end(&self) {
        let _ = self.wake.shutdown(std::net::Shutdown::Both);
    }
}

/// A handle to have the monitor watch further sockets.
pub(in crate::fabric) struct Sockets<S> {
    further: Sender<Watched<S>>,
    wake: Arc<UnixStream>,
}

impl<S> Clone for Sockets<S> {
    fn clone(&self) -> Self {
        Self {
            further: self.further.clone(),
            wake: Arc::clone(&self.wake),
        }
    }
}

impl<S> Sockets<S> {
    /// Watches a machine's socket, instead of an earlier socket of the machine, and calls `ended` when
    /// the socket ends.
    pub(in crate::fabric) fn add(
        &self,
        machine: MachineId,
        socket: S,
        ended: Ended,
    ) -> std::io::Result<()> {
        let watched = Watched {
            machine,
            socket,
            ended,
        };
        // If the thread has ended, so has the machine: the peer reads the end of the socket, which is dropped.
        let _ = self.further.send(watched);
        (&*self.wake).write_all(&[0])
    }
}

/// The monitor thread. Dropping it sends the farewell to all peers.
pub(in crate::fabric) struct Monitor<S> {
    reporter: Reporter,
    sockets: Sockets<S>,
    thread: Option<JoinHandle<()>>,
}

impl<S: Socket> Monitor<S> {
    /// Starts the thread with this name.
    pub(in crate::fabric) fn start(name: String) -> std::io::Result<Self> {
        let (wake, woken) = UnixStream::pair()?;
        let (further, more) = channel();
        let farewell = Arc::new(Mutex::new(vec![GOODBYE]));
        let last = Arc::clone(&farewell);
        let thread = std::thread::Builder::new()
            .name(name)
            .spawn(move || watch(&woken, &more, &last))?;
        let wake = Arc::new(wake);
        Ok(Self {
            sockets: Sockets {
                further,
                wake: Arc::clone(&wake),
            },
            reporter: Reporter { farewell, wake },
            thread: Some(thread),
        })
    }

    /// Returns the handle with which other threads report a failure to the peers.
    pub(in crate::fabric) fn reporter(&self) -> Reporter {
        self.reporter.clone()
    }

    /// Returns the handle with which sockets are added.
    pub(in crate::fabric) fn sockets(&self) -> &Sockets<S> {
        &self.sockets
    }
}

impl<S> Drop for Monitor<S> {
    fn drop(&mut self) {
        self.reporter.end();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn watch<S: Socket>(woken: &UnixStream, more: &Receiver<Watched<S>>, farewell: &Mutex<Vec<u8>>) {
    let mut all: Vec<Watched<S>> = Vec::new();
    loop {
        let peers = all.iter().map(|watched| watched.socket.as_fd());
        let readable = readable_of(peers.chain([woken.as_fd()]), None);
        if readable.last() == Some(&true) && !matches!((&*woken).read(&mut [0]), Ok(1)) {
            let farewell = farewell
                .lock()
                .expect("no thread panics while it holds the farewell's lock");
            all.extend(more.try_iter());
            for watched in &mut all {
                // A peer that is gone needs no farewell.
                let _ = watched.socket.write_all(&farewell);
            }
            return;
        }
        let mut ends = Vec::new();
        for index in (0..all.len()).rev().filter(|index| readable[*index]) {
            let mut watched = all.swap_remove(index);
            let (how, why) = farewell_of(&mut watched.socket);
            ends.push((watched.ended, how, why));
        }
        // A machine that ended without a farewell may have caused the reported failures, so its end
        // is passed on first.
        ends.sort_by_key(|(_, _, why)| why.is_some());
        for (ended, how, why) in ends {
            ended(how, why);
        }
        for watched in more.try_iter() {
            all.retain(|earlier| earlier.machine != watched.machine);
            all.push(watched);
        }
    }
}

/// Tells the peer of a socket that this machine leaves.
pub(super) fn say_goodbye(socket: &mut impl Socket) {
    // A peer that is gone needs no farewell.
    let _ = socket.write_all(&[GOODBYE]);
}

/// Returns how the peer of a readable socket ended, from the farewell that the socket contains, if
/// any.
pub(super) fn farewell_of(socket: &mut impl Socket) -> (Departure, Option<String>) {
    let mut bytes = [0; 1 + MAX_REASON_BYTES];
    match socket.read(&mut bytes) {
        Ok(read) if read > 0 && bytes[0] == GOODBYE => (Departure::Left, None),
        Ok(read) if read > 0 && bytes[0] == FAILURE => {
            let why = String::from_utf8_lossy(&bytes[1..read]).into_owned();
            (Departure::Lost, Some(why))
        }
        _ => (Departure::Lost, None),
    }
}

/// Waits until one of the descriptors is readable or has ended, for at most `most`.
pub(in crate::fabric) fn wait_readable<'a>(
    fds: impl Iterator<Item = BorrowedFd<'a>>,
    most: Duration,
) {
    readable_of(fds, Some(most));
}

/// Waits, and returns for each descriptor whether it is readable or has ended. If the wait is
/// interrupted, returns false for every descriptor.
pub(super) fn readable_of<'a>(
    fds: impl Iterator<Item = BorrowedFd<'a>>,
    most: Option<Duration>,
) -> Vec<bool> {
    let mut fds: Vec<_> = fds
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    let most = most.map(|most| {
        Timespec::try_from(most).expect("the duration of the wait fits into a timespec")
    });
    match poll(&mut fds, most.as_ref()) {
        Ok(_) => fds.iter().map(|fd| !fd.revents().is_empty()).collect(),
        Err(_) => vec![false; fds.len()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u16) -> MachineId {
        MachineId::new(number).unwrap()
    }

    #[test]
    fn each_end_is_reported_once_and_a_goodbye_is_not_a_loss() {
        let (ends_sender, ends) = channel();
        let monitor = Monitor::start("test-monitor".into()).unwrap();
        let mut theirs = Vec::new();
        // The second socket of machine 3 replaces the first, whose end is not reported.
        for machine in [1, 2, 3, 3] {
            let (their, our) = UnixStream::pair().unwrap();
            theirs.push(their);
            let ends_sender = ends_sender.clone();
            let ended = move |how, why| {
                assert_eq!(why, None);
                ends_sender.send((id(machine), how)).unwrap();
            };
            monitor
                .sockets()
                .add(id(machine), our, Box::new(ended))
                .unwrap();
        }
        theirs[1].write_all(&[GOODBYE]).unwrap();
        let patience = Duration::from_secs(20);
        assert_eq!(ends.recv_timeout(patience), Ok((id(2), Departure::Left)));
        drop(theirs.remove(0));
        assert_eq!(ends.recv_timeout(patience), Ok((id(1), Departure::Lost)));
        drop(monitor);
        assert!(ends.try_recv().is_err(), "no other end is reported");
        let mut farewell = Vec::new();
        theirs.pop().unwrap().read_to_end(&mut farewell).unwrap();
        assert_eq!(
            farewell,
            [GOODBYE],
            "a monitor that is dropped sends a goodbye"
        );
    }

    /// Regression test: a machine that stopped because of a failure sent a goodbye like one that
    /// leaves. Its peers then ended without an error, and with status 0.
    #[test]
    fn a_failure_is_distinguished_from_a_goodbye() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let failing = Monitor::start("failing-monitor".into()).unwrap();
        let unused = Box::new(|_, _| panic!("the peer did not end"));
        failing.sockets().add(id(2), theirs, unused).unwrap();
        let (ends_sender, ends) = channel();
        let peer = Monitor::start("peer-monitor".into()).unwrap();
        let ended = move |how, why| ends_sender.send((how, why)).unwrap();
        peer.sockets().add(id(1), ours, Box::new(ended)).unwrap();
        let long = "ü".repeat(MAX_REASON_BYTES);
        let reporter = failing.reporter();
        reporter.fail(&format!("first line of {long}\nsecond line"));
        // The peer receives the report although the monitor still exists, as in a process with
        // several machines.
        let (how, why) = ends.recv_timeout(Duration::from_secs(20)).unwrap();
        assert_eq!(how, Departure::Lost);
        let why = why.expect("a reason");
        assert!(
            why.starts_with("first line of üü") && !why.contains("second"),
            "{why}"
        );
        assert!(why.len() > MAX_REASON_BYTES - 4 && why.len() <= MAX_REASON_BYTES);
    }

    /// Among ends noticed at the same time, the end of a killed machine comes before the failures
    /// that it causes elsewhere.
    #[test]
    fn ends_without_a_farewell_come_before_reported_failures() {
        let (ends_sender, ends) = channel();
        let monitor = Monitor::start("test-monitor".into()).unwrap();
        // The monitor's thread waits in this callback until all other ends are pending.
        let (hold, held) = channel::<()>();
        let mut sockets = Vec::new();
        for machine in 1..=4 {
            let (their, our) = UnixStream::pair().unwrap();
            sockets.push(their);
            let ends_sender = ends_sender.clone();
            let ended = move |_, _| ends_sender.send(machine).unwrap();
            monitor
                .sockets()
                .add(id(machine), our, Box::new(ended))
                .unwrap();
        }
        let (first, our) = UnixStream::pair().unwrap();
        let (holds_sender, holds) = channel();
        let wait = move |_, _| {
            holds_sender.send(()).unwrap();
            held.recv().unwrap();
        };
        monitor.sockets().add(id(5), our, Box::new(wait)).unwrap();
        drop(first);
        // Before that, the monitor could notice some of the other ends together with this one.
        holds.recv().unwrap();
        for reporting in [0, 1, 3] {
            sockets[reporting]
                .write_all(b"!machine m3 is lost")
                .unwrap();
        }
        drop(sockets.remove(2));
        hold.send(()).unwrap();
        let patience = Duration::from_secs(20);
        let order: Vec<u16> = (0..4)
            .map(|_| ends.recv_timeout(patience).unwrap())
            .collect();
        assert_eq!(order[0], 3, "{order:?}");
    }
}
