//! A machine as properties and actors use it: the endpoint of its only worker, the memory it exports, and
//! the peers' memory it has imported.

use std::time::Duration;

use farm_core::fabric::{
    ArenaConfig, Atomic, Capability, Completion, Endpoint, Read, ReadKind, Rejected, Remote,
    RemoteMemory, Source, Status, Token, Write,
};
use farm_core::ids::{MachineId, WorkerId};
use farm_core::mem::Memory;

use super::{Deadline, Location, Owner};

/// Bytes that every machine exports for peers to read and write.
pub const OPEN_BYTES: usize = 64 << 10;
/// Bytes that every machine exports for peers to read.
pub const CLOSED_BYTES: usize = 32 << 10;

/// The capabilities of the memory that a machine exports to its peers.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    /// Memory that peers may read and write.
    pub open: Capability,
    /// Memory that peers may only read.
    pub closed: Capability,
}

/// A peer's memory, imported.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// The machine.
    pub machine: MachineId,
    /// The capabilities that it exported.
    pub offer: Offer,
    open: RemoteMemory,
    closed: RemoteMemory,
}

impl Peer {
    /// Returns an address in the memory that peers may write.
    pub fn open(&self, offset: usize) -> Remote {
        Remote {
            memory: self.open,
            offset: offset as u64,
        }
    }

    /// Returns an address in the memory that peers may only read.
    pub fn closed(&self, offset: usize) -> Remote {
        Remote {
            memory: self.closed,
            offset: offset as u64,
        }
    }
}

/// Why a post was refused. `Full` is not a reason: the node polls and posts again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The connection is closed.
    Closed,
    /// The access is outside the memory, misaligned or not allowed.
    BadAccess,
}

/// One machine, with one worker.
pub struct Node {
    /// The machine's id.
    pub machine: MachineId,
    /// Its worker's endpoint.
    pub endpoint: Endpoint,
    /// The memory of this machine that peers may write.
    pub open: Memory,
    /// The memory of this machine that peers may only read.
    pub closed: Memory,
    peers: Vec<Peer>,
    next_token: u64,
    /// Completions that were polled and not yet taken.
    inbox: Vec<Completion>,
    /// Time limit of every wait of this node's methods.
    patience: Duration,
    /// Called after a poll without completions. It yields the core on a host, where there may be fewer cores
    /// than machines. It does nothing in a simulation.
    pause: fn(),
}

impl Node {
    /// Returns the arena configuration of the suite's endpoints.
    pub fn arena() -> ArenaConfig {
        ArenaConfig {
            classes: vec![(64, 8), (512, 48), (4096, 24), (16 << 10, 4)],
        }
    }

    /// Creates a node that imports all offered memory. The offers include its own.
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

    /// Returns a peer's memory.
    ///
    /// # Panics
    /// If the machine does not belong to the cluster.
    pub fn peer(&self, machine: MachineId) -> Peer {
        let found = self.peers.iter().find(|peer| peer.machine == machine);
        *found.unwrap_or_else(|| panic!("machine {machine} has exported no memory to this node"))
    }

    /// Returns a token that no other operation of this node has.
    pub fn token(&mut self) -> Token {
        self.next_token += 1;
        Token(self.next_token)
    }

    fn deadline(&self) -> Deadline {
        Deadline::after(self.patience)
    }

    /// Polls once and keeps the completions in the inbox. Returns their number.
    pub fn poll_once(&mut self) -> usize {
        self.endpoint.poll(16, &mut self.inbox)
    }

    /// Polls once like [`Node::poll_once`], and yields if there was no completion.
    pub fn poll(&mut self) -> usize {
        let count = self.poll_once();
        if count == 0 {
            (self.pause)();
        }
        count
    }

    /// Takes the completions that were polled and not yet taken.
    pub fn take_inbox(&mut self) -> Vec<Completion> {
        std::mem::take(&mut self.inbox)
    }

    /// Returns whether no operation is outstanding and every slot is back in the arena.
    ///
    /// # Panics
    /// If the inbox has a completion.
    pub fn is_at_rest(&mut self) -> bool {
        assert!(
            self.inbox.is_empty(),
            "unexpected completions: {:?}",
            self.inbox
        );
        self.endpoint.outstanding() == 0 && self.endpoint.arena().taken() == 0
    }

    /// Calls `post` until it does not return `Full`, and polls in between. The slot of a refused post goes
    /// back to the arena.
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

    /// Waits until the arena has a free slot for `bytes` bytes.
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

    /// Posts a write: inline if it is short enough, otherwise from a slot.
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

    /// Posts a write from a slot, whatever its length.
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

    /// Posts an unsignalled write that notifies no worker.
    pub fn write_unsignalled(&mut self, to: Remote, words: &[u64]) {
        let write = Write {
            to,
            fence: false,
            notify: None,
            signal: None,
        };
        self.try_write(write, words)
            .expect("a valid write is accepted");
    }

    /// Posts an unsignalled write that notifies a worker at the next flush.
    pub fn write_and_notify(&mut self, to: Remote, words: &[u64], worker: WorkerId) {
        let write = Write {
            to,
            fence: false,
            notify: Some(worker),
            signal: None,
        };
        self.try_write(write, words)
            .expect("a valid write is accepted");
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

    /// Waits for the completion of one operation and returns it.
    ///
    /// # Panics
    /// If the completion does not arrive in time.
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

    /// Waits for a read and returns its words. Its slot goes back to the arena.
    pub fn finish_read(&mut self, token: Token, bytes: usize) -> (Status, Vec<u64>) {
        let completion = self.finish(token);
        let slot = completion.slot.expect("a read's completion has its slot");
        let words = self.endpoint.arena().words(&slot)[..bytes / 8].to_vec();
        self.endpoint.arena().give(slot);
        (completion.status, words)
    }

    /// Posts a write and waits for its completion.
    pub fn write(&mut self, to: Remote, words: &[u64]) {
        let token = self.token();
        let write = Write {
            to,
            fence: false,
            notify: None,
            signal: Some(token),
        };
        self.try_write(write, words)
            .expect("a valid write is accepted");
        let completion = self.finish(token);
        assert_eq!(completion.status, Status::Ok, "a write to a living machine");
        completion
            .slot
            .into_iter()
            .for_each(|slot| self.endpoint.arena().give(slot));
    }

    /// Posts a raw read and waits for its words.
    pub fn read(&mut self, from: Remote, words: usize) -> Vec<u64> {
        let token = self
            .try_read(from, words * 8, ReadKind::Raw, false)
            .expect("a valid read is accepted");
        let (status, words) = self.finish_read(token, words * 8);
        assert_eq!(status, Status::Ok, "a raw read of a living machine");
        words
    }

    /// Posts an atomic and waits for the old value.
    pub fn atomic(&mut self, at: Remote, op: Atomic) -> u64 {
        let token = self
            .try_atomic(at, op, false)
            .expect("a valid atomic is accepted");
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
