//! loom runs the sender and the receiver in every order that the memory model allows, within a
//! bound on preemptions. The code is the production code, over memory made of loom's atomics.
//!
//! One thread fills a ring of 512 bytes up to the wrap before the two threads start. Then the few
//! operations that loom explores are the relevant ones: a record read while it is written, a
//! filler, space zeroed, reported and written again.

use std::sync::Arc;

use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use super::super::testing::{Target, Wire, receiver_config, sender_config};
use super::{body, header};
use crate::fabric::Endpoint;
use crate::mem::WORD_BYTES;
use crate::ring::{
    Capacity, Kind, ReceiverConfig, RecordIntegrity, RingReceiver, RingSender, SendError,
    SenderConfig, Words,
};
use crate::time::Nanos;

/// Memory for loom. `land` stores as a one-sided write does; the other operations work as those of
/// [`Memory`].
///
/// [`Memory`]: crate::mem::Memory
#[derive(Clone, Debug)]
struct Model {
    words: Arc<Vec<AtomicU64>>,
    /// Ordering of the last store of a write: release, except in tests that show that it must be
    /// release.
    publish: Ordering,
}

impl Model {
    fn new(bytes: usize, publish: Ordering) -> Self {
        let words = (0..bytes / WORD_BYTES).map(|_| AtomicU64::new(0)).collect();
        Self {
            words: Arc::new(words),
            publish,
        }
    }
}

impl Target for Model {
    fn target_bytes(&self) -> usize {
        self.len_bytes()
    }

    fn land(&self, offset: usize, words: &[u64]) {
        for (i, word) in words.iter().enumerate() {
            let last = i + 1 == words.len();
            let order = if last {
                self.publish
            } else {
                Ordering::Relaxed
            };
            self.words[offset / WORD_BYTES + i].store(*word, order);
        }
    }
}

impl Words for Model {
    fn len_bytes(&self) -> usize {
        self.words.len() * WORD_BYTES
    }

    fn load_acquire(&self, offset: usize) -> u64 {
        self.words[offset / WORD_BYTES].load(Ordering::Acquire)
    }

    fn copy_out(&self, offset: usize, out: &mut [u64]) {
        for (i, word) in out.iter_mut().enumerate() {
            *word = self.words[offset / WORD_BYTES + i].load(Ordering::Relaxed);
        }
    }

    fn clear(&self, offset: usize, bytes: usize) {
        for word in &self.words[offset / WORD_BYTES..(offset + bytes) / WORD_BYTES] {
            word.store(0, Ordering::Relaxed);
        }
    }

    fn store_first(&self, offset: usize, word: u64) {
        self.words[offset / WORD_BYTES].store(word, Ordering::Relaxed);
        loom::sync::atomic::fence(Ordering::Release);
    }
}

struct Ends {
    sender: RingSender<Model>,
    forth: Endpoint,
    receiver: RingReceiver<Model>,
    back: Endpoint,
    buffer: Model,
}

impl Ends {
    fn new(publish: Ordering) -> Self {
        Self::with(publish, RecordIntegrity::LastWord)
    }

    fn with(publish: Ordering, integrity: RecordIntegrity) -> Self {
        let bytes = 512;
        let (buffer, head_copy) = (Model::new(bytes, publish), Model::new(WORD_BYTES, publish));
        let ordered = integrity == RecordIntegrity::LastWord;
        let mut forth = Wire::new(vec![buffer.clone()]).endpoint_that(64, ordered);
        let back = Wire::new(vec![head_copy.clone()]).endpoint_that(64, ordered);
        let capacity = Capacity::new(bytes as u64).unwrap();
        let sending = SenderConfig {
            integrity,
            ..sender_config(capacity, head_copy)
        };
        let sender = RingSender::new(sending, &mut forth).unwrap();
        let receiving = ReceiverConfig {
            integrity,
            ..receiver_config(buffer.clone())
        };
        let receiver = RingReceiver::new(receiving, &back).unwrap();
        Self {
            sender,
            forth,
            receiver,
            back,
            buffer,
        }
    }

    fn send(&mut self, token: u64, bytes: usize) -> Result<(), SendError> {
        send(&mut self.sender, &mut self.forth, token, bytes)
    }

    fn receive(&mut self, token: u64, bytes: usize) -> bool {
        receive(&mut self.receiver, &mut self.back, token, bytes)
    }
}

fn send(
    sender: &mut RingSender<Model>,
    endpoint: &mut Endpoint,
    token: u64,
    bytes: usize,
) -> Result<(), SendError> {
    sender.try_send(endpoint, header(Kind::Reply, token), &[&body(token, bytes)])
}

/// Consumes the record at the head and asserts its token and body. Returns false if there is no
/// record.
fn receive(
    receiver: &mut RingReceiver<Model>,
    endpoint: &mut Endpoint,
    token: u64,
    bytes: usize,
) -> bool {
    let Some(record) = receiver
        .peek(endpoint, Nanos::default())
        .expect("a valid ring")
    else {
        return false;
    };
    assert_eq!(
        (record.token, record.body),
        (token, body(token, bytes).as_slice())
    );
    receiver.consume(endpoint);
    true
}

/// The sender sends `records` in its own thread, while the receiver consumes all records.
fn race(mut ends: Ends, first: u64, records: std::ops::Range<u64>, bytes: usize) {
    let Ends {
        mut sender,
        mut forth,
        ..
    } = ends;
    let last = records.end;
    let thread = thread::spawn(move || {
        for token in records {
            while let Err(error) = send(&mut sender, &mut forth, token, bytes) {
                assert_eq!(error, SendError::Full);
                thread::yield_now();
            }
        }
        sender.tail()
    });
    for token in first..last {
        while !receive(&mut ends.receiver, &mut ends.back, token, bytes) {
            thread::yield_now();
        }
    }
    let tail = thread.join().unwrap();
    assert_eq!(ends.receiver.head(), tail);
    for word in ends.buffer.words.iter() {
        assert_eq!(word.load(Ordering::Relaxed), 0);
    }
}

fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// The receiver polls two records while they are written.
#[test]
fn records_are_whole_under_loom() {
    explore(3, || race(Ends::new(Ordering::Release), 0, 0..2, 13));
}

/// Without release, loom finds the reordering that release forbids.
#[test]
#[should_panic(expected = "left == right")]
fn without_release_loom_finds_a_torn_record() {
    explore(3, || race(Ends::new(Ordering::Relaxed), 0, 0..2, 13));
}

/// With checksums, the same reordering is harmless.
#[test]
fn with_checksums_records_are_whole_without_release() {
    explore(3, || {
        race(
            Ends::with(Ordering::Relaxed, RecordIntegrity::Checksum),
            0,
            0..2,
            13,
        )
    });
}

/// A record before the end of the buffer, a filler of two words, and a record at offset 0.
#[test]
fn wrapped_records_are_whole_under_loom() {
    explore(3, || {
        let mut ends = Ends::new(Ordering::Release);
        for token in 0..11 {
            ends.send(token, 16).unwrap();
            assert!(ends.receive(token, 16));
        }
        assert_eq!(ends.sender.tail(), 440);
        race(ends, 11, 11..13, 16);
    });
}

/// A full ring: the sender may write only to space that the receiver has zeroed and reported. The
/// last of the records that the sender waits to send overwrites the record whose consumption makes
/// the receiver report.
#[test]
fn space_is_written_again_only_after_it_is_zero_under_loom() {
    explore(2, || {
        let mut ends = Ends::new(Ordering::Release);
        for token in 0..8 {
            ends.send(token, 40).unwrap();
        }
        assert_eq!(ends.send(8, 40), Err(SendError::Full));
        for token in 0..3 {
            assert!(ends.receive(token, 40));
        }
        race(ends, 3, 8..12, 40);
    });
}
