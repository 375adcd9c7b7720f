//! A machine as a property or an actor holds it: one worker's endpoint, the memory it exports, and
//! the peers' memory it has imported.

use std::time::Duration;

use farm_core::fabric::{
    ArenaConfig, Atomic, Capability, Completion, Endpoint, Read, ReadKind, Rejected, Remote,
    RemoteMemory, Source, Status, Token, Write,
};
use farm_core::ids::{MachineId, WorkerId};
use farm_core::mem::Memory;

use super::{Deadline, Location, Owner};

/// Bytes that every machine exports for peers to write.
pub const OPEN_BYTES: usize = 64 << 10;
/// Bytes that every machine exports for peers to read only.
pub const CLOSED_BYTES: usize = 32 << 10;

/// What a machine offers its peers.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    /// Memory that they may write.
    pub open: Capability,
    /// Memory that they may only read.
    pub closed: Capability,
}

/// A peer's memory, imported.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// The machine.
    pub machine: MachineId,
    /// What it offered.
    pub offer: Offer,
    open: RemoteMemory,
    closed: RemoteMemory,
}

impl Peer {
    /// A place in the memory that we may write.
    pub fn open(&self, offset: usize) -> Remote {
        Remote {
            memory: self.open,
            offset: offset as u64,
        }
    }

    /// A place in the memory that we may only read.
    pub fn closed(&self, offset: usize) -> Remote {
        Remote {
            memory: self.closed,
            offset: offset as u64,
        }
    }
}

/// Why a post was refused for good (`Full` is waited out).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The connection is closed.
    Closed,
    /// The access is bad.
    BadAccess,
}

/// One machine, with one worker.
pub struct Node {
    /// Which machine.
    pub machine: MachineId,
    /// Its worker's endpoint.
    pub endpoint: Endpoint,
    /// Its own memory that peers may write.
    pub open: Memory,
    /// Its own memory that peers may only read.
    pub closed: Memory,
    peers: Vec<Peer>,
    next_token: u64,
    /// Completions polled and not yet asked for.
    inbox: Vec<Completion>,
    /// How long a helper waits before something counts as lost.
    patience: Duration,
    /// Lets others run after a poll that brought nothing: on a host with fewer cores than machines
    /// somebody else has to, in a simulation nobody can.
    pause: fn(),
}

impl Node {
    /// The arena that the suite's endpoints have.
    pub fn arena() -> ArenaConfig {
        ArenaConfig {
            classes: vec![(64, 8), (512, 48), (4096, 24), (16 << 10, 4)],
        }
    }

    /// A machine with what its peers, itself among them, have offered.
    ///
    /// # Panics
    /// If an offer cannot be imported.
    pub fn new(
        machine: MachineId,
        mut endpoint: Endpoint,
        (open, closed): (Memory, Memory),
        offers: &[Offer],
        patience: Duration,
        pause: fn(),
    ) -> Self {
        let mut import =
            |capability: &Capability| endpoint.import(capability).expect("an offer is imported");
        let peer = |offer: &Offer| Peer {
            machine: offer.open.machine,
            offer: *offer,
            open: import(&offer.open),
            closed: import(&offer.closed),
        };
        let peers = offers.iter().map(peer).collect();
        Self {
            machine,
            endpoint,
            open,
            closed,
            peers,
            next_token: 1,
            inbox: Vec::new(),
            patience,
            pause,
        }
    }

    /// A peer's memory.
    ///
    /// # Panics
    /// If the machine is not of the cluster.
    pub fn peer(&self, machine: MachineId) -> Peer {
        let found = self.peers.iter().find(|peer| peer.machine == machine);
        *found.unwrap_or_else(|| panic!("{machine} offered nothing"))
    }

    /// A token that no other operation of this node has.
    pub fn token(&mut self) -> Token {
        self.next_token += 1;
        Token(self.next_token)
    }

    fn deadline(&self) -> Deadline {
        Deadline::after(self.patience)
    }

    /// Polls once, keeping what comes for [`Node::finish`].
    pub fn poll_once(&mut self) -> usize {
        self.endpoint.poll(16, &mut self.inbox)
    }

    /// Polls once, and lets others run if nothing came.
    pub fn poll(&mut self) -> usize {
        let count = self.poll_once();
        if count == 0 {
            (self.pause)();
        }
        count
    }

    /// Completions polled and not yet asked for.
    pub fn take_inbox(&mut self) -> Vec<Completion> {
        std::mem::take(&mut self.inbox)
    }

    /// Whether nothing is outstanding and every slot is back.
    ///
    /// # Panics
    /// If something completed that nobody waits for.
    pub fn is_at_rest(&mut self) -> bool {
        assert!(
            self.inbox.is_empty(),
            "completions that nobody waits for: {:?}",
            self.inbox
        );
        self.endpoint.outstanding() == 0 && self.endpoint.arena().taken() == 0
    }

    /// Posts until the answer is not `Full`, polling in between; a slot that comes back is given
    /// back.
    ///
    /// # Errors
    /// [`Refusal`].
    ///
    /// # Panics
    /// If the queue stays full.
    pub fn post(
        &mut self,
        mut post: impl FnMut(&mut Endpoint) -> Result<(), Rejected>,
    ) -> Result<(), Refusal> {
        let deadline = self.deadline();
        loop {
            let (slot, refusal) = match post(&mut self.endpoint) {
                Ok(()) => return Ok(()),
                Err(Rejected::Full(slot)) => (slot, None),
                Err(Rejected::Closed(slot)) => (slot, Some(Refusal::Closed)),
                Err(Rejected::BadAccess(slot)) => (slot, Some(Refusal::BadAccess)),
            };
            slot.into_iter()
                .for_each(|slot| self.endpoint.arena().give(slot));
            if let Some(refusal) = refusal {
                return Err(refusal);
            }
            self.poll();
            deadline.check("room in the endpoint's queue");
        }
    }

    /// Waits until a slot can be had, so that a post may take one.
    fn await_slot(&mut self, bytes: usize) {
        let deadline = self.deadline();
        loop {
            if let Some(slot) = self.endpoint.arena().take(bytes) {
                self.endpoint.arena().give(slot);
                return;
            }
            self.poll();
            deadline.check("a free slot");
        }
    }

    /// Posts a read.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn try_read(
        &mut self,
        from: Remote,
        bytes: usize,
        kind: ReadKind,
        fence: bool,
    ) -> Result<Token, Refusal> {
        let token = self.token();
        self.await_slot(bytes);
        self.post(|endpoint| {
            let slot = endpoint.arena().take(bytes).expect("a slot was free");
            endpoint.post_read(
                Read {
                    from,
                    bytes: bytes as u32,
                    kind,
                    fence,
                    token,
                },
                slot,
            )
        })?;
        Ok(token)
    }

    /// Posts a write: inline if it is short enough, else from a slot; signalled if `signal` is a
    /// token.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn try_write(&mut self, write: Write, words: &[u64]) -> Result<(), Refusal> {
        let bytes = words.len() * 8;
        if bytes <= self.endpoint.capabilities().max_inline_bytes {
            return self.post(|endpoint| endpoint.post_write(write, Source::Inline(words)));
        }
        self.write_from_slot(write, words)
    }

    /// Posts a write from a slot, however short.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn write_from_slot(&mut self, write: Write, words: &[u64]) -> Result<(), Refusal> {
        let bytes = words.len() * 8;
        self.await_slot(bytes);
        self.post(|endpoint| {
            let mut slot = endpoint.arena().take(bytes).expect("a slot was free");
            endpoint.arena().words_mut(&mut slot)[..words.len()].copy_from_slice(words);
            endpoint.post_write(
                write,
                Source::Slot {
                    slot,
                    bytes: bytes as u32,
                },
            )
        })
    }

    /// Posts an unsignalled write that notifies nobody.
    pub fn write_silently(&mut self, to: Remote, words: &[u64]) {
        let write = Write {
            to,
            fence: false,
            notify: None,
            signal: None,
        };
        self.try_write(write, words).expect("a good write is taken");
    }

    /// Posts an unsignalled inline write that wakes a worker, without flushing.
    pub fn write_and_notify(&mut self, to: Remote, words: &[u64], worker: WorkerId) {
        let write = Write {
            to,
            fence: false,
            notify: Some(worker),
            signal: None,
        };
        self.try_write(write, words).expect("a good write is taken");
    }

    /// Posts an atomic.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn try_atomic(&mut self, at: Remote, op: Atomic, fence: bool) -> Result<Token, Refusal> {
        let token = self.token();
        self.post(|endpoint| endpoint.post_atomic(at, op, fence, token))?;
        Ok(token)
    }

    /// Waits for the completion of one operation.
    ///
    /// # Panics
    /// If it does not come.
    pub fn finish(&mut self, token: Token) -> Completion {
        let deadline = self.deadline();
        loop {
            if let Some(place) = self.inbox.iter().position(|c| c.token == token) {
                return self.inbox.swap_remove(place);
            }
            self.poll();
            deadline.check("a completion");
        }
    }

    /// Waits for a read and takes its words out of the slot, which is given back.
    pub fn finish_read(&mut self, token: Token, bytes: usize) -> (Status, Vec<u64>) {
        let completion = self.finish(token);
        let slot = completion.slot.expect("a read gives its slot back");
        let words = self.endpoint.arena().words(&slot)[..bytes / 8].to_vec();
        self.endpoint.arena().give(slot);
        (completion.status, words)
    }

    /// Writes and waits for the completion.
    pub fn write(&mut self, to: Remote, words: &[u64]) {
        let token = self.token();
        let write = Write {
            to,
            fence: false,
            notify: None,
            signal: Some(token),
        };
        self.try_write(write, words).expect("a good write is taken");
        let completion = self.finish(token);
        assert_eq!(completion.status, Status::Ok, "a write to a living machine");
        completion
            .slot
            .into_iter()
            .for_each(|slot| self.endpoint.arena().give(slot));
    }

    /// Reads words, raw, and waits for them.
    pub fn read(&mut self, from: Remote, words: usize) -> Vec<u64> {
        let token = self
            .try_read(from, words * 8, ReadKind::Raw, false)
            .expect("a good read is taken");
        let (status, words) = self.finish_read(token, words * 8);
        assert_eq!(status, Status::Ok, "a raw read of a living machine");
        words
    }

    /// Runs an atomic and waits for the old value.
    pub fn atomic(&mut self, at: Remote, op: Atomic) -> u64 {
        let token = self
            .try_atomic(at, op, false)
            .expect("a good atomic is taken");
        let completion = self.finish(token);
        assert_eq!(
            completion.status,
            Status::Ok,
            "an atomic on a living machine"
        );
        completion.value
    }
}

impl Owner for Node {
    fn load(&mut self, location: Location, offset: usize, words: usize) -> Vec<u64> {
        let mut out = vec![0; words];
        self.memory(location).read_words(offset, &mut out);
        out
    }

    fn store(&mut self, location: Location, offset: usize, words: &[u64]) {
        self.memory(location).write_words(offset, words);
    }
}

impl Node {
    fn memory(&self, location: Location) -> &Memory {
        match location {
            Location::Open => &self.open,
            Location::Closed => &self.closed,
        }
    }
}
