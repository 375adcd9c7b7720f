//! The initiator of one-sided operations: posts and polls, as a worker does.

use std::hint::black_box;

use anyhow::{Result, bail};
use farm_core::fabric::{
    ArenaConfig, Completion, Endpoint, FabricMachine, Read, ReadKind, Rejected, Remote, Source,
    Status, Token, Write,
};
use farm_core::mem::{LINE_BYTES, WORD_BYTES};

use super::machines::WORKER;

/// Bytes of a small slot. Small operations have their own slots, so that their data stays in the processor's caches.
const SMALL_SLOT: usize = 512;

/// A worker's endpoint, and the data of its writes.
pub(super) struct Initiator {
    pub(super) endpoint: Endpoint,
    /// Data of inline writes. The data of other writes is in slots, of which only the last word is set.
    words: Vec<u64>,
    done: Vec<Completion>,
    /// Token of the last completion.
    pub(super) last_token: u64,
}

impl Initiator {
    /// Creates the endpoint of a machine's worker.
    pub(super) fn new(
        machine: &mut FabricMachine,
        most_bytes: usize,
        most_outstanding: usize,
    ) -> Result<Self> {
        let mut arena = ArenaConfig {
            classes: vec![(SMALL_SLOT, most_outstanding)],
        };
        if most_bytes > SMALL_SLOT {
            arena = arena.with(most_bytes.next_multiple_of(LINE_BYTES), most_outstanding);
        }
        Ok(Self {
            endpoint: machine.endpoint(WORKER, &arena, most_outstanding)?,
            words: vec![7; most_bytes / WORD_BYTES],
            done: Vec::with_capacity(most_outstanding),
            last_token: 0,
        })
    }

    /// Posts a read. Returns false if there is no free slot or no room in the queue.
    #[inline]
    pub(super) fn post_read(
        &mut self,
        from: Remote,
        bytes: usize,
        kind: ReadKind,
        token: Token,
    ) -> Result<bool> {
        let Some(slot) = self.endpoint.arena().take(bytes) else {
            return Ok(false);
        };
        let read = Read {
            from,
            bytes: bytes as u32,
            kind,
            fence: false,
            token,
        };
        let posted = self.endpoint.post_read(read, slot);
        self.is_taken(posted)
    }

    /// Posts a write of words of which the last one is `last`. Returns false if there is no free slot or no room in the
    /// queue.
    #[inline]
    pub(super) fn post_write(
        &mut self,
        to: Remote,
        bytes: usize,
        last: u64,
        signal: Option<Token>,
    ) -> Result<bool> {
        let write = Write {
            to,
            fence: false,
            notify: None,
            signal,
        };
        let words = bytes / WORD_BYTES;
        let posted = if bytes <= self.endpoint.capabilities().max_inline_bytes {
            self.words[words - 1] = last;
            self.endpoint
                .post_write(write, Source::Inline(&self.words[..words]))
        } else {
            let arena = self.endpoint.arena();
            let Some(mut slot) = arena.take(bytes) else {
                return Ok(false);
            };
            arena.words_mut(&mut slot)[words - 1] = last;
            let bytes = bytes as u32;
            self.endpoint
                .post_write(write, Source::Slot { slot, bytes })
        };
        self.is_taken(posted)
    }

    #[inline]
    fn is_taken(&mut self, posted: Result<(), Rejected>) -> Result<bool> {
        match posted {
            Ok(()) => Ok(true),
            Err(Rejected::Full(slot)) => {
                let arena = self.endpoint.arena();
                slot.into_iter().for_each(|slot| arena.give(slot));
                Ok(false)
            }
            Err(refused) => Err(refused.into()),
        }
    }

    /// Polls for at most `most` completions, and returns their number. Fails if an operation did not succeed.
    #[inline]
    pub(super) fn poll(&mut self, most: usize) -> Result<u64> {
        let count = self.endpoint.poll(most, &mut self.done);
        for completion in self.done.drain(..) {
            check_completion(completion.status)?;
            self.last_token = completion.token.0;
            if let Some(slot) = completion.slot {
                let arena = self.endpoint.arena();
                black_box(arena.words(&slot));
                arena.give(slot);
            }
        }
        Ok(count as u64)
    }
}

/// Fails if an operation did not succeed.
#[inline]
pub(super) fn check_completion(status: Status) -> Result<()> {
    match status {
        Status::Ok => Ok(()),
        ended => bail!("a one-sided operation ended with status {ended:?}"),
    }
}

/// Fails if a peer has left.
pub(super) fn check_connected(endpoint: &mut Endpoint) -> Result<()> {
    match endpoint.take_broken() {
        Some((machine, how)) => bail!("machine {machine} departed: {how:?}"),
        None => Ok(()),
    }
}
