//! Leases by time between machines on RDMA devices ([`LeaseBook`]): a thread of each machine asks for them and grants them, by datagrams
//! over UDP, at the address at which the machine listens for the handshake. It does nothing else, waits for no lock, and has priority over
//! other threads of the host where the system allows it.
//!
//! A datagram has a code (HMAC-SHA-256) over all of it, with a key that only machines of the cluster know. Somebody else who sends a datagram
//! again does no harm: the time of a lease is counted from the request, which the answer names.

use std::collections::{BTreeMap, VecDeque};
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use hmac::Mac;

use super::address::resolve;
use super::control::{Code, Secret};
use super::parking::Parking;
use crate::fabric::lease_book::REQUESTS;
use crate::fabric::shm::go_first;
use crate::fabric::turns::{Turns, Watch};
use crate::fabric::{Eviction, Lease, LeaseBook, LeaseMessage, LeaseTerms, Start};
use crate::ids::MachineId;
use crate::time::{Clock, Nanos};

/// First bytes of each datagram, with the version of its format.
const MAGIC: [u8; 8] = *b"farmls\0\x01";
const START_BYTES: usize = 2 + 8;
/// Bytes of a datagram without its code: sender, receiver, kind, two numbers.
const TEXT_BYTES: usize = MAGIC.len() + 2 * START_BYTES + 1 + 2 * 8;
const CODE_BYTES: usize = 32;
const DATAGRAM_BYTES: usize = TEXT_BYTES + CODE_BYTES;

const REQUEST: u8 = 1;
const GRANT: u8 = 2;
const EVICTED: u8 = 3;

/// A message, with its sender and receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Datagram {
    from: Start,
    to: Start,
    message: LeaseMessage,
}

impl Datagram {
    /// Returns the bytes, with their code.
    fn encode(self, key: &Code) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(DATAGRAM_BYTES);
        bytes.extend(MAGIC);
        for (machine, boot) in [self.from, self.to] {
            bytes.extend(machine.get().to_le_bytes());
            bytes.extend(boot.to_le_bytes());
        }
        let (kind, numbers) = match self.message {
            LeaseMessage::Request { sent, knows } => (REQUEST, [sent.0, knows]),
            LeaseMessage::Grant { sent } => (GRANT, [sent.0, 0]),
            LeaseMessage::Evicted { by } => (EVICTED, [by, 0]),
        };
        bytes.push(kind);
        numbers
            .iter()
            .for_each(|one| bytes.extend(one.to_le_bytes()));
        let code = key.clone().chain_update(&bytes).finalize().into_bytes();
        bytes.extend(code);
        bytes
    }

    /// Returns the datagram; `None` if the bytes are none, or were written by somebody without the key.
    fn decode(bytes: &[u8], key: &Code) -> Option<Self> {
        let (text, code) = bytes.split_at_checked(TEXT_BYTES)?;
        key.clone().chain_update(text).verify_slice(code).ok()?;
        let text = text.strip_prefix(&MAGIC)?;
        let (from, text) = take_start(text)?;
        let (to, text) = take_start(text)?;
        let (kind, text) = text.split_first()?;
        let (first, text) = take_u64(text)?;
        let (second, _) = take_u64(text)?;
        let message = match (*kind, second) {
            (REQUEST, knows) => LeaseMessage::Request {
                sent: Nanos(first),
                knows,
            },
            (GRANT, 0) => LeaseMessage::Grant { sent: Nanos(first) },
            (EVICTED, 0) => LeaseMessage::Evicted { by: first },
            _ => return None,
        };
        Some(Self { from, to, message })
    }
}

fn take_u64(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u64::from_le_bytes(*number), rest))
}

fn take_start(bytes: &[u8]) -> Option<(Start, &[u8])> {
    let (machine, rest) = bytes.split_first_chunk()?;
    let (boot, rest) = take_u64(rest)?;
    Some(((MachineId::new(u16::from_le_bytes(*machine))?, boot), rest))
}

/// What the thread has told the workers of the leases that it has granted.
#[derive(Debug, Default)]
struct Granted {
    /// Number of the terms that it knows.
    terms: u64,
    until: Vec<(Start, Nanos)>,
}

/// What the thread and the workers of a machine share.
pub(super) struct Desk {
    eviction: Eviction,
    /// The newest terms, and their number.
    terms: Mutex<(u64, LeaseTerms)>,
    granted: Mutex<Granted>,
    changes: Mutex<VecDeque<Lease>>,
    has_changes: AtomicBool,
    ends: AtomicBool,
    /// The socket, to wake the thread.
    socket: UdpSocket,
    /// Its address.
    own: SocketAddr,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .expect("no thread panics while it holds a lock of the leases")
}

impl Desk {
    /// Returns the handle that says whether this process may report what it finds out.
    pub(super) fn eviction(&self) -> Eviction {
        self.eviction.clone()
    }

    /// Sets who takes part from now on.
    pub(super) fn set_terms(&self, terms: LeaseTerms) {
        let mut newest = lock(&self.terms);
        *newest = (newest.0 + 1, terms);
        drop(newest);
        self.wake();
    }

    /// Returns whether a process may hold a lease that this one has granted, or the thread does not know the newest terms yet.
    pub(super) fn may_hold(&self, process: Start) -> bool {
        let newest = lock(&self.terms).0;
        let now = Clock::Host.now();
        let granted = lock(&self.granted);
        let mut until = granted.until.iter();
        granted.terms != newest || until.any(|one| one.0 == process && now <= one.1)
    }

    /// Returns a change of the lease of a peer.
    pub(super) fn take_change(&self) -> Option<Lease> {
        if !self.has_changes.load(Ordering::Acquire) {
            return None;
        }
        let mut changes = lock(&self.changes);
        let change = changes.pop_front();
        self.has_changes
            .store(!changes.is_empty(), Ordering::Release);
        change
    }

    fn wake(&self) {
        // If the buffer of the socket is full, the thread is awake.
        let _ = self.socket.send_to(&[], self.own);
    }
}

/// What a machine needs for its leases.
pub(super) struct LeaseParts<'a> {
    pub(super) me: Start,
    pub(super) cluster: &'a str,
    pub(super) lease: Duration,
    /// The addresses of all machines.
    pub(super) addresses: &'a BTreeMap<MachineId, String>,
    pub(super) secret: &'a Secret,
    pub(super) parking: Arc<Parking>,
    pub(super) turns: Arc<Turns>,
}

/// The thread. Dropping it ends it.
pub(super) struct LeaseThread {
    desk: Arc<Desk>,
    thread: Option<JoinHandle<()>>,
}

impl LeaseThread {
    /// Starts the thread, with a socket at the address of the machine.
    pub(super) fn start(parts: LeaseParts<'_>) -> std::io::Result<Self> {
        let unknown = || std::io::Error::other("the machine has no address");
        let address = parts.addresses.get(&parts.me.0).ok_or_else(unknown)?;
        let socket = UdpSocket::bind(address.as_str())?;
        let own = socket.local_addr()?;
        let desk = Arc::new(Desk {
            eviction: Eviction::by_time(Clock::Host),
            terms: Mutex::default(),
            granted: Mutex::default(),
            changes: Mutex::default(),
            has_changes: AtomicBool::new(false),
            ends: AtomicBool::new(false),
            socket: socket.try_clone()?,
            own,
        });
        let mut agent = Agent {
            book: LeaseBook::new(parts.me, parts.lease),
            key: parts.secret.key(&["leases", parts.cluster]),
            me: parts.me,
            addresses: parts.addresses.clone(),
            known: BTreeMap::new(),
            terms: 0,
            desk: Arc::clone(&desk),
            parking: parts.parking,
            turns: parts.turns,
            watch: Watch::new(REQUESTS),
            socket,
        };
        let thread = std::thread::Builder::new().name(format!("{}-lease", parts.me.0));
        let thread = thread.spawn(move || {
            go_first();
            agent.run();
        })?;
        Ok(Self {
            desk,
            thread: Some(thread),
        })
    }

    pub(super) fn desk(&self) -> &Arc<Desk> {
        &self.desk
    }
}

impl Drop for LeaseThread {
    fn drop(&mut self) {
        self.desk.ends.store(true, Ordering::Release);
        self.desk.wake();
        if let Some(thread) = self.thread.take() {
            // It does not panic; if it did, the machine ends all the same.
            let _ = thread.join();
        }
    }
}

/// What the thread has for itself.
struct Agent {
    book: LeaseBook,
    key: Code,
    me: Start,
    addresses: BTreeMap<MachineId, String>,
    /// The addresses that were resolved.
    known: BTreeMap<MachineId, SocketAddr>,
    /// Number of the terms of the book.
    terms: u64,
    desk: Arc<Desk>,
    parking: Arc<Parking>,
    turns: Arc<Turns>,
    watch: Watch,
    socket: UdpSocket,
}

impl Agent {
    fn run(&mut self) {
        let period = self.book.period();
        let mut next = Clock::Host.now();
        while !self.desk.ends.load(Ordering::Acquire) {
            if self.take_terms() {
                next = Clock::Host.now();
            }
            let now = Clock::Host.now();
            if now >= next {
                self.ask(now);
                next = now.after(period);
            }
            self.tell();
            self.receive(next.since(now));
        }
    }

    /// Takes over the newest terms, unless a worker is about to change them. Returns whether they are new.
    fn take_terms(&mut self) -> bool {
        let Ok(newest) = self.desk.terms.try_lock() else {
            return false;
        };
        if newest.0 == self.terms {
            return false;
        }
        self.terms = newest.0;
        self.book.set_terms(newest.1.clone());
        drop(newest);
        for (machine, address) in &self.addresses {
            if !self.known.contains_key(machine)
                && let Ok(found) = resolve(address)
            {
                self.known.insert(*machine, found);
            }
        }
        true
    }

    /// Asks all others for a lease, unless a worker hangs, and looks at theirs.
    fn ask(&mut self, now: Nanos) {
        let changes = self.book.look(now);
        if !changes.is_empty() {
            lock(&self.desk.changes).extend(changes);
            self.desk.has_changes.store(true, Ordering::Release);
            self.parking.ring_all();
        }
        let is_parked = |worker| self.parking.is_parked(worker);
        let (me, _) = self.me;
        if self.watch.look(me, &self.turns, is_parked).is_some() {
            // The others go on without this machine when its lease has ended.
            return;
        }
        let (message, peers) = self.book.requests(now);
        for to in peers {
            if let Some(address) = self.known.get(&to.0) {
                self.send(to, message, *address);
            }
        }
    }

    fn send(&self, to: Start, message: LeaseMessage, address: SocketAddr) {
        let from = self.me;
        let datagram = Datagram { from, to, message };
        // What is lost is sent again.
        let _ = self.socket.send_to(&datagram.encode(&self.key), address);
    }

    /// Waits for a datagram, for at most some time, and answers it.
    fn receive(&mut self, most: Duration) {
        let most = most.max(Duration::from_micros(1));
        let mut bytes = [0; DATAGRAM_BYTES + 1];
        if self.socket.set_read_timeout(Some(most)).is_err() {
            return std::thread::park_timeout(most);
        }
        // It fails when the time is over, and when an earlier datagram was refused by the host of its receiver.
        let Ok((length, address)) = self.socket.recv_from(&mut bytes) else {
            return;
        };
        let datagram = Datagram::decode(&bytes[..length], &self.key);
        let Some(datagram) = datagram.filter(|one| one.to == self.me) else {
            return;
        };
        let now = Clock::Host.now();
        let answer = self.book.on_message(datagram.from, datagram.message, now);
        if let Some(message) = answer {
            self.send(datagram.from, message, address);
        }
    }

    /// Tells the workers what this machine has granted, and how long its own lease lasts.
    fn tell(&mut self) {
        if let Ok(mut granted) = self.desk.granted.try_lock() {
            granted.terms = self.terms;
            granted.until.clear();
            granted.until.extend(self.book.granted());
        }
        let is_evicted = self.book.evicted_by().is_some();
        if self.desk.eviction.renew(self.book.end(), is_evicted) {
            self.parking.ring_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn start(id: u16) -> Start {
        (MachineId::new(id).unwrap(), u64::from(id) * 100)
    }

    fn key(secret: &str) -> Code {
        Secret::of(secret.as_bytes()).key(&["leases", "c"])
    }

    proptest! {
        #[test]
        fn a_datagram_is_read_by_who_has_the_key_and_none_other_is(
            kind in 0..3u8, first: u64, second: u64, flip in 0..DATAGRAM_BYTES * 8,
            other: Vec<u8>,
        ) {
            let message = match kind {
                0 => LeaseMessage::Request { sent: Nanos(first), knows: second },
                1 => LeaseMessage::Grant { sent: Nanos(first) },
                _ => LeaseMessage::Evicted { by: first },
            };
            let (from, to) = (start(1), start(2));
            let datagram = Datagram { from, to, message };
            let mut bytes = datagram.encode(&key("known"));
            prop_assert_eq!(bytes.len(), DATAGRAM_BYTES);
            prop_assert_eq!(Datagram::decode(&bytes, &key("known")), Some(datagram));
            prop_assert_eq!(Datagram::decode(&bytes, &key("other")), None);
            prop_assert_eq!(Datagram::decode(&bytes[1..], &key("known")), None);
            bytes[flip / 8] ^= 1 << (flip % 8);
            prop_assert_eq!(Datagram::decode(&bytes, &key("known")), None);
            prop_assert_eq!(Datagram::decode(&other, &key("known")), None);
        }
    }
}
