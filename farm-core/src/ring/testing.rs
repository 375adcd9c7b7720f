//! A fake fabric for tests of rings: writes land at once, or word by word under the test's control.
//!
//! Also included by external tests and by the fuzz target. A file that includes this one must name
//! the crate `api`.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::api::fabric::{
    Arena, ArenaConfig, Atomic, AtomicScope, Backend, Capabilities, Capability, Completion,
    Counters, Departure, Endpoint, ImportError, Read, Rejected, Remote, RemoteMemory, Slot, Source,
    Token, Wake, Write,
};
use super::api::ids::{MachineId, WorkerId};
use super::api::mem::{Memory, WORD_BYTES};
use super::api::ring::{
    Capacity, ReceiverConfig, RecordIntegrity, RingReceiver, RingSender, SenderConfig,
};
use super::api::time::Nanos;

/// Memory in which writes land.
pub trait Target: Send + 'static {
    /// Returns the length in bytes.
    fn target_bytes(&self) -> usize;
    /// Stores words in increasing address order, the last one with release.
    fn land(&self, offset: usize, words: &[u64]);
}

impl Target for Memory {
    fn target_bytes(&self) -> usize {
        self.len()
    }
    fn land(&self, offset: usize, words: &[u64]) {
        self.write_words(offset, words);
    }
}

/// A word in flight.
struct Flying {
    memory: usize,
    offset: usize,
    word: u64,
    /// Index of the word among all words that were held.
    number: usize,
}

struct State<M> {
    memories: Vec<M>,
    /// Words in flight.
    flying: VecDeque<Flying>,
    held: bool,
    /// Number of words that were held.
    number: usize,
    /// Number of posts that are still accepted before the queue is full.
    admitted: usize,
    closed: bool,
    posts: usize,
}

/// One connection, controlled by the test.
pub struct Wire<M = Memory>(Arc<Mutex<State<M>>>);

impl<M: Target> Wire<M> {
    /// Creates a connection to a machine with these memories, in the order of their index.
    pub fn new(memories: Vec<M>) -> Self {
        Self(Arc::new(Mutex::new(State {
            memories,
            flying: VecDeque::new(),
            held: false,
            number: 0,
            admitted: usize::MAX,
            closed: false,
            posts: 0,
        })))
    }

    /// Returns the endpoint of the connection. Writes of at most `max_inline_bytes` are inline,
    /// larger writes take one of four slots per size.
    pub fn endpoint(&self, max_inline_bytes: usize) -> Endpoint {
        self.endpoint_that(max_inline_bytes, true)
    }

    /// As [`Wire::endpoint`], with the given capability `ordered_placement`.
    pub fn endpoint_that(&self, max_inline_bytes: usize, ordered_placement: bool) -> Endpoint {
        let classes = vec![(512, 4), (4096, 4), (65536, 4), (1 << 20, 1)];
        Endpoint::Other(Box::new(Fake {
            wire: Self(Arc::clone(&self.0)),
            arena: Arena::new(&ArenaConfig { classes }),
            capabilities: Capabilities {
                whole_lines: true,
                imports_are_checked: true,
                ordered_placement,
                atomics: AtomicScope::Device,
                leases_by_time: false,
                max_inline_bytes,
                max_outstanding_reads: 0,
                max_outstanding_writes: 0,
                reads_begin_at_poll: true,
                reads_of_any_age: false,
            },
        }))
    }

    fn state(&self) -> MutexGuard<'_, State<M>> {
        self.0.lock().expect("another thread of the test panicked")
    }

    /// From now on, words stay in flight until the test lands them.
    pub fn hold(&self) {
        self.state().held = true;
    }

    /// Lands all words in flight. From now on, words land at once.
    pub fn release(&self) {
        self.land(usize::MAX);
        self.state().held = false;
    }

    /// Lands the next `most` words in flight. Returns how many landed.
    pub fn land(&self, most: usize) -> usize {
        let mut state = self.state();
        let count = most.min(state.flying.len());
        for _ in 0..count {
            state.land(0);
        }
        count
    }

    /// Lands the word in flight that `pick` selects. Returns false if no word is in flight.
    pub fn land_any(&self, pick: usize) -> bool {
        let mut state = self.state();
        let count = state.flying.len();
        if count > 0 {
            state.land(pick % count);
        }
        count > 0
    }

    /// Returns how many of the held words have landed before the first held word that has not.
    /// Words of zero count as landed, because the buffer is zero already.
    pub fn landed(&self) -> usize {
        let state = self.state();
        let missing = state.flying.iter().find(|flying| flying.word != 0);
        missing.map_or(state.number, |missing| missing.number)
    }

    /// Returns the number of words in flight.
    pub fn flying(&self) -> usize {
        self.state().flying.len()
    }

    /// Accepts only this many further posts, then rejects posts as full.
    pub fn admit(&self, posts: usize) {
        self.state().admitted = posts;
    }

    /// Breaks the connection.
    pub fn close(&self) {
        self.state().closed = true;
    }

    /// Returns the number of accepted posts.
    pub fn posts(&self) -> usize {
        self.state().posts
    }
}

impl<M: Target> State<M> {
    fn land(&mut self, index: usize) {
        let flying = self
            .flying
            .remove(index)
            .expect("index of a word in flight");
        self.memories[flying.memory].land(flying.offset, &[flying.word]);
    }
}

struct Fake<M> {
    wire: Wire<M>,
    arena: Arena,
    capabilities: Capabilities,
}

impl<M: Target> Fake<M> {
    fn write(&mut self, to: Remote, words: &[u64], slot: Option<Slot>) -> Result<(), Rejected> {
        let mut state = self.wire.state();
        if state.closed {
            return Err(Rejected::Closed(slot));
        }
        if state.admitted == 0 {
            return Err(Rejected::Full(slot));
        }
        let memory = to.memory.index() as usize;
        let (offset, bytes) = (to.offset as usize, words.len() * WORD_BYTES);
        let room = state.memories.get(memory).map_or(0, Target::target_bytes);
        if !offset.is_multiple_of(WORD_BYTES) || offset + bytes > room {
            return Err(Rejected::BadAccess(slot));
        }
        state.admitted -= usize::from(state.admitted != usize::MAX);
        state.posts += 1;
        if state.held {
            for (i, word) in words.iter().enumerate() {
                let number = state.number;
                state.number += 1;
                state.flying.push_back(Flying {
                    memory,
                    offset: offset + i * WORD_BYTES,
                    word: *word,
                    number,
                });
            }
        } else {
            state.memories[memory].land(offset, words);
        }
        drop(state);
        if let Some(slot) = slot {
            self.arena.give(slot);
        }
        Ok(())
    }
}

impl<M: Target> Backend for Fake<M> {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }
    fn arena(&mut self) -> &mut Arena {
        &mut self.arena
    }
    fn post_write(&mut self, write: Write, source: Source<'_>) -> Result<(), Rejected> {
        match source {
            Source::Inline(words) => {
                assert!(words.len() * WORD_BYTES <= self.capabilities.max_inline_bytes);
                self.write(write.to, words, None)
            }
            Source::Slot { slot, bytes } => {
                let words = self.arena.words(&slot)[..bytes as usize / WORD_BYTES].to_vec();
                self.write(write.to, &words, Some(slot))
            }
        }
    }
    fn counters(&self) -> Counters {
        Counters::default()
    }
    fn import(&mut self, _: &Capability) -> Result<RemoteMemory, ImportError> {
        unreachable!("rings do not import memory")
    }
    fn post_read(&mut self, _: Read, _: Slot) -> Result<(), Rejected> {
        unreachable!("rings post no reads")
    }
    fn post_atomic(&mut self, _: Remote, _: Atomic, _: bool, _: Token) -> Result<(), Rejected> {
        unreachable!("rings use no remote atomics")
    }
    fn poll(&mut self, _: usize, _: &mut Vec<Completion>) -> usize {
        0
    }
    fn flush(&mut self) {}
    fn outstanding(&self) -> usize {
        0
    }
    fn take_broken(&mut self) -> Option<(MachineId, Departure)> {
        None
    }
    fn close(&mut self, _: MachineId) {}
    fn arm(&mut self) {}
    fn disarm(&mut self) {}
    fn wait(&mut self, _: Duration) -> Wake {
        Wake::TimedOut
    }
}

/// A ring with both ends and their connections.
pub struct Pair {
    pub sender: RingSender,
    pub receiver: RingReceiver,
    /// Connection from the sender to the receiver's memory.
    pub forth: Wire,
    pub sender_endpoint: Endpoint,
    /// Connection from the receiver to the sender's memory.
    pub back: Wire,
    pub receiver_endpoint: Endpoint,
    pub buffer: Memory,
    pub head_copy: Memory,
}

/// Largest inline write of a pair's endpoints, in bytes: small, so that arena slots are used too.
pub const PAIR_INLINE_BYTES: usize = 64;

impl Pair {
    /// Creates a ring of `bytes` that starts at `position` and has the default reserve.
    pub fn at(bytes: u64, position: u64) -> Self {
        let capacity = Capacity::new(bytes).expect("a valid ring size");
        Self::with_reserve(capacity, position, capacity.reply_reserve_bytes())
    }

    /// As [`Pair::at`], over fabrics that land words in any order.
    pub fn unordered(bytes: u64, position: u64) -> Self {
        let capacity = Capacity::new(bytes).expect("a valid ring size");
        let reserve = capacity.reply_reserve_bytes();
        Self::with(capacity, position, reserve, RecordIntegrity::Checksum)
    }

    /// Creates a ring that starts at `position` and reserves `reply_reserve_bytes` for replies.
    pub fn with_reserve(capacity: Capacity, position: u64, reply_reserve_bytes: u32) -> Self {
        Self::with(
            capacity,
            position,
            reply_reserve_bytes,
            RecordIntegrity::LastWord,
        )
    }

    fn with(
        capacity: Capacity,
        position: u64,
        reply_reserve_bytes: u32,
        integrity: RecordIntegrity,
    ) -> Self {
        let bytes = capacity.bytes();
        let buffer = Memory::anonymous(bytes as usize).window(0, bytes as usize);
        let head_copy = Memory::anonymous(WORD_BYTES).window(0, WORD_BYTES);
        head_copy.write_words(0, &[position]);
        let (forth, back) = (
            Wire::new(vec![buffer.clone()]),
            Wire::new(vec![head_copy.clone()]),
        );
        let ordered = integrity == RecordIntegrity::LastWord;
        let mut sender_endpoint = forth.endpoint_that(PAIR_INLINE_BYTES, ordered);
        let receiver_endpoint = back.endpoint_that(PAIR_INLINE_BYTES, ordered);
        let usual = sender_config(capacity, head_copy.clone());
        let config = SenderConfig {
            reply_reserve_bytes,
            integrity,
            ..usual
        };
        let sender = RingSender::resume(config, &mut sender_endpoint, position, 1);
        let config = ReceiverConfig {
            integrity,
            ..receiver_config(buffer.clone())
        };
        let receiver = RingReceiver::resume(config, &receiver_endpoint, position, 1);
        Self {
            sender: sender.expect("create the sender"),
            receiver: receiver.expect("create the receiver"),
            forth,
            sender_endpoint,
            back,
            receiver_endpoint,
            buffer,
            head_copy,
        }
    }

    /// Returns the words of the buffer.
    pub fn words(&self) -> Vec<u64> {
        let mut words = vec![0; self.buffer.len() / WORD_BYTES];
        self.buffer.read_words(0, &mut words);
        words
    }
}

/// Returns the configuration of a sender to memory 0 of its connection, with the default reserve.
pub fn sender_config<W>(capacity: Capacity, head_copy: W) -> SenderConfig<W> {
    SenderConfig {
        buffer: Remote {
            memory: RemoteMemory::from_index(0),
            offset: 0,
        },
        capacity,
        head_copy,
        head_copy_offset: 0,
        reply_reserve_bytes: capacity.reply_reserve_bytes(),
        integrity: RecordIntegrity::LastWord,
        notify: None,
    }
}

/// Returns the configuration of a receiver whose sender stores its head copy at the start of memory
/// 0 of the connection.
pub fn receiver_config<W>(buffer: W) -> ReceiverConfig<W> {
    let head_copy = Remote {
        memory: RemoteMemory::from_index(0),
        offset: 0,
    };
    ReceiverConfig {
        buffer,
        head_copy,
        integrity: RecordIntegrity::LastWord,
        notify: Some(WorkerId::FIRST),
        kept: None,
    }
}

/// Creates a receiver of a ring with the content `bytes`, for the fuzz target and its corpus.
///
/// Bit 0 of the first byte selects the size (1 KiB or 4 KiB), bit 1 selects records with checksums.
/// The second byte is the receiver's start position, in words from the start of the last eighth of
/// the buffer (so that it soon wraps). The remaining bytes are stored in the buffer from that
/// position on, in the order in which the receiver reads them.
pub fn ring_from_bytes(bytes: &[u8]) -> Option<(RingReceiver, Endpoint, Memory)> {
    let (&[size, start], content) = bytes.split_first_chunk::<2>()?;
    let ring_bytes = if size & 1 == 0 { 1024 } else { 4096 };
    let ring_words = ring_bytes / WORD_BYTES;
    let first = (ring_words - ring_words / 8 + usize::from(start)) % ring_words;
    let buffer = Memory::anonymous(ring_bytes).window(0, ring_bytes);
    for (i, chunk) in content.chunks(WORD_BYTES).take(ring_words).enumerate() {
        let mut word = [0; WORD_BYTES];
        word[..chunk.len()].copy_from_slice(chunk);
        let offset = (first + i) % ring_words * WORD_BYTES;
        buffer.write_words(offset, &[u64::from_le_bytes(word)]);
    }
    let back = Wire::new(vec![Memory::anonymous(WORD_BYTES)]);
    let endpoint = back.endpoint_that(PAIR_INLINE_BYTES, size & 2 == 0);
    let position = (first * WORD_BYTES) as u64;
    let config = ReceiverConfig {
        integrity: match size & 2 {
            0 => RecordIntegrity::LastWord,
            _ => RecordIntegrity::Checksum,
        },
        ..receiver_config(buffer.clone())
    };
    let receiver =
        RingReceiver::resume(config, &endpoint, position, 1).expect("create the receiver");
    Some((receiver, endpoint, buffer))
}

/// Nanoseconds between polls of an incomplete record.
pub const BETWEEN_POLLS: u64 = 100_000_000;
/// Number of polls after which an incomplete record has become an error.
pub const MOST_POLLS: u64 = 110;

/// Reads all records and checks what must hold for any content of the ring. Returns the number of
/// records.
pub fn drain_untrusted(bytes: &[u8]) -> usize {
    let Some((mut receiver, mut endpoint, buffer)) = ring_from_bytes(bytes) else {
        return 0;
    };
    let most = buffer.len() / (3 * WORD_BYTES);
    let start = receiver.head();
    let (mut records, mut polls) = (0, 0);
    loop {
        let now = Nanos(polls * BETWEEN_POLLS);
        match receiver.peek(&mut endpoint, now) {
            Ok(Some(record)) => assert!(record.body.len() <= buffer.len() / 8 - 3 * WORD_BYTES),
            // An incomplete record becomes an error.
            Ok(None) if polls < MOST_POLLS => {
                polls += 1;
                continue;
            }
            Ok(None) => break,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                assert_eq!(
                    receiver.peek(&mut endpoint, now),
                    Err(error),
                    "a later peek did not return the same error"
                );
                break;
            }
        }
        receiver.consume(&mut endpoint);
        records += 1;
        assert!(
            records <= most,
            "the ring returned more records than the buffer has room for"
        );
    }
    assert!(receiver.head() - start <= buffer.len() as u64);
    for position in (start..receiver.head()).step_by(WORD_BYTES) {
        // A filler's gap is free space, which the receiver neither reads nor zeroes; the space of
        // records is zero.
        let offset = position as usize % buffer.len();
        let gap = offset >= buffer.len() - buffer.len() / 8;
        let mut word = [0];
        buffer.read_words(offset, &mut word);
        assert!(
            gap || word == [0],
            "consumed space at {offset:#x} holds {word:x?}"
        );
    }
    records
}
