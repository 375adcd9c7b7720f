//! The thread that waits for the ends of the peers' sockets.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::fabric::Departure;
use crate::ids::MachineId;

const GOODBYE: u8 = b'.';

/// A connected stream of any family.
pub(in crate::fabric) trait Socket: Read + Write + AsFd + Send + 'static {}

impl<S: Read + Write + AsFd + Send + 'static> Socket for S {}

/// What is called with how a machine ended.
pub(in crate::fabric) type Ended = Box<dyn FnOnce(Departure) + Send>;

/// A socket whose end is waited for.
struct Watched<S> {
    machine: MachineId,
    socket: S,
    ended: Ended,
}

/// The thread, and how it is given sockets. Dropping it says goodbye to everybody.
pub(in crate::fabric) struct Monitor<S> {
    /// A byte tells of a further socket, the end of it that the thread is to end.
    tell: UnixStream,
    further: Sender<Watched<S>>,
    thread: Option<JoinHandle<()>>,
}

impl<S: Socket> Monitor<S> {
    /// Starts the thread, by that name.
    pub(in crate::fabric) fn start(name: String) -> std::io::Result<Self> {
        let (tell, told) = UnixStream::pair()?;
        let (further, more) = channel();
        let thread = std::thread::Builder::new()
            .name(name)
            .spawn(move || watch(&told, &more))?;
        Ok(Self {
            tell,
            further,
            thread: Some(thread),
        })
    }

    /// Watches a machine's socket, in place of an earlier one, and calls `ended` when it ends.
    pub(in crate::fabric) fn add(
        &mut self,
        machine: MachineId,
        socket: S,
        ended: Ended,
    ) -> std::io::Result<()> {
        let watched = Watched {
            machine,
            socket,
            ended,
        };
        // Received for as long as the thread lives, which is as long as this.
        let _ = self.further.send(watched);
        self.tell.write_all(&[0])
    }
}

impl<S> Drop for Monitor<S> {
    fn drop(&mut self) {
        // The thread ends when it sees this end closed, whether or not the shutdown call worked.
        let _ = self.tell.shutdown(std::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn watch<S: Socket>(told: &UnixStream, more: &Receiver<Watched<S>>) {
    let mut all: Vec<Watched<S>> = Vec::new();
    loop {
        let peers = all.iter().map(|watched| watched.socket.as_fd());
        let readable = readable_of(peers.chain([told.as_fd()]), None);
        if readable.last() == Some(&true) && !matches!((&*told).read(&mut [0]), Ok(1)) {
            for watched in &mut all {
                // A peer that is gone needs no goodbye.
                let _ = watched.socket.write_all(&[GOODBYE]);
            }
            return;
        }
        for index in (0..all.len()).rev() {
            if !readable[index] {
                continue;
            }
            let mut watched = all.swap_remove(index);
            let mut byte = [0];
            let how = match watched.socket.read(&mut byte) {
                Ok(1) if byte[0] == GOODBYE => Departure::Left,
                _ => Departure::Lost,
            };
            (watched.ended)(how);
        }
        for watched in more.try_iter() {
            all.retain(|earlier| earlier.machine != watched.machine);
            all.push(watched);
        }
    }
}

/// Waits until one of the descriptors can be read, or has ended, at most so long.
pub(in crate::fabric) fn wait_readable<'a>(
    fds: impl Iterator<Item = BorrowedFd<'a>>,
    most: Duration,
) {
    readable_of(fds, Some(most));
}

/// Which of them can be read, or have ended, after a wait. An interrupted wait finds none.
fn readable_of<'a>(fds: impl Iterator<Item = BorrowedFd<'a>>, most: Option<Duration>) -> Vec<bool> {
    let mut fds: Vec<_> = fds
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    let most = most.map(|most| Timespec::try_from(most).expect("a wait that can be counted"));
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
    fn ends_are_told_once_each_and_goodbyes_are_no_losses() {
        let (told, tell) = channel();
        let mut monitor = Monitor::start("test-monitor".into()).unwrap();
        let mut theirs = Vec::new();
        // The second socket of machine 3 takes the place of the first, whose end is no news.
        for machine in [1, 2, 3, 3] {
            let (their, our) = UnixStream::pair().unwrap();
            theirs.push(their);
            let told = told.clone();
            let ended = move |how| told.send((id(machine), how)).unwrap();
            monitor.add(id(machine), our, Box::new(ended)).unwrap();
        }
        theirs[1].write_all(&[GOODBYE]).unwrap();
        let patience = Duration::from_secs(20);
        assert_eq!(tell.recv_timeout(patience), Ok((id(2), Departure::Left)));
        drop(theirs.remove(0));
        assert_eq!(tell.recv_timeout(patience), Ok((id(1), Departure::Lost)));
        drop(monitor);
        assert!(tell.try_recv().is_err(), "nothing else ended");
        let mut said = Vec::new();
        theirs.pop().unwrap().read_to_end(&mut said).unwrap();
        assert_eq!(said, [GOODBYE], "whoever leaves says so");
    }
}
