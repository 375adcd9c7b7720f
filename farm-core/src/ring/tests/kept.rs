//! What survives of a log whose processes are killed: after every single store of the receiver, and with any part of the
//! sender's words landed, the records that are not freed can be read, and what is known of the others is stored.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use super::super::testing::{Target, Wire, receiver_config, sender_config};
use super::{body, header};
use crate::fabric::Endpoint;
use crate::mem::WORD_BYTES;
use crate::ring::{
    Capacity, KEPT_STATE_BYTES, KeptRecords, KeptState, Kind, LogSender, OwnLog, OwnWords,
    ReceiverConfig, RecordIntegrity, RingReceiver, SenderConfig, Words, log_record_bytes,
};
use crate::time::Nanos;

const BYTES: usize = 512;

/// The memory of a log and its state, and what it was after each store of the receiver since the last check.
#[derive(Debug, Default)]
struct Stored {
    words: Vec<u64>,
    moments: Vec<Vec<u64>>,
}

/// A part of the memory, from the word `base` on.
#[derive(Clone, Debug)]
struct Watched {
    stored: Arc<Mutex<Stored>>,
    base: usize,
    len: usize,
}

impl Watched {
    fn log(words: Vec<u64>) -> (Self, Self) {
        let moments = Vec::new();
        let stored = Arc::new(Mutex::new(Stored { words, moments }));
        let part = |base, bytes: usize| Self {
            stored: stored.clone(),
            base,
            len: bytes / WORD_BYTES,
        };
        (part(0, BYTES), part(BYTES / WORD_BYTES, KEPT_STATE_BYTES))
    }

    fn new_log() -> (Self, Self) {
        Self::log(vec![0; (BYTES + KEPT_STATE_BYTES) / WORD_BYTES])
    }

    fn store(&self, offset: usize, word: u64) {
        let stored = &mut *self.stored.lock().unwrap();
        stored.words[self.base + offset / WORD_BYTES] = word;
        stored.moments.push(stored.words.clone());
    }
}

impl Target for Watched {
    fn target_bytes(&self) -> usize {
        self.len * WORD_BYTES
    }

    fn land(&self, offset: usize, words: &[u64]) {
        let at = self.base + offset / WORD_BYTES;
        self.stored.lock().unwrap().words[at..at + words.len()].copy_from_slice(words);
    }
}

impl Words for Watched {
    fn len_bytes(&self) -> usize {
        self.len * WORD_BYTES
    }

    fn load_acquire(&self, offset: usize) -> u64 {
        self.stored.lock().unwrap().words[self.base + offset / WORD_BYTES]
    }

    fn copy_out(&self, offset: usize, out: &mut [u64]) {
        let at = self.base + offset / WORD_BYTES;
        out.copy_from_slice(&self.stored.lock().unwrap().words[at..at + out.len()]);
    }

    fn clear(&self, offset: usize, bytes: usize) {
        for offset in (offset..offset + bytes).step_by(WORD_BYTES) {
            self.store(offset, 0);
        }
    }

    fn store_first(&self, offset: usize, word: u64) {
        self.store(offset, word);
    }
}

impl OwnWords for Watched {
    fn store_words(&self, offset: usize, words: &[u64]) {
        for (at, word) in words.iter().enumerate() {
            self.store(offset + at * WORD_BYTES, *word);
        }
    }
}

/// Reads the log in `words`: the note, and the tokens of the records that are left, with their bodies.
fn left(words: Vec<u64>, integrity: RecordIntegrity) -> (u64, Vec<(u64, Vec<u8>)>) {
    let (buffer, state) = Watched::log(words);
    let state = KeptState::new(state);
    let mut log = KeptRecords::new(buffer, &state, integrity).expect("a valid log");
    let mut records = Vec::new();
    while let Some(record) = log.next().expect("a valid record") {
        records.push((record.token, record.body.to_vec()));
    }
    (state.note(), records)
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Append(usize),
    Land(usize),
    Keep,
    /// Frees this many of the kept records.
    Free(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0usize..=40).prop_map(Step::Append),
        5 => any::<usize>().prop_map(Step::Land),
        4 => Just(Step::Keep),
        2 => (1usize..4).prop_map(Step::Free),
    ]
}

struct Log {
    sender: LogSender<Watched>,
    forth: Endpoint,
    wire: Wire<Watched>,
    receiver: RingReceiver<Watched>,
    back: Endpoint,
    buffer: Watched,
    integrity: RecordIntegrity,
    /// For each record, the number of words sent up to its trailer, and its body.
    sent: Vec<(usize, Vec<u8>)>,
    words_sent: usize,
    /// Ends of the kept records.
    kept: VecDeque<u64>,
    freed: u64,
}

impl Log {
    fn new(integrity: RecordIntegrity) -> Self {
        let ordered = integrity == RecordIntegrity::LastWord;
        let (buffer, state) = Watched::new_log();
        let (head_copy, _) = Watched::new_log();
        let wire = Wire::new(vec![buffer.clone()]);
        let mut forth = wire.endpoint_that(64, ordered);
        let back = Wire::new(vec![head_copy.clone()]).endpoint_that(64, ordered);
        let config = SenderConfig {
            integrity,
            reply_reserve_bytes: 0,
            ..sender_config(Capacity::new(BYTES as u64).unwrap(), head_copy)
        };
        let sender = LogSender::new(config, &mut forth).unwrap();
        let config = ReceiverConfig {
            integrity,
            kept: Some(KeptState::new(state)),
            ..receiver_config(buffer.clone())
        };
        let receiver = RingReceiver::new(config, &back).unwrap();
        wire.hold();
        Self {
            sender,
            forth,
            wire,
            receiver,
            back,
            buffer,
            integrity,
            sent: Vec::new(),
            words_sent: 0,
            kept: VecDeque::new(),
            freed: 0,
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Append(bytes) => {
                let token = self.sent.len() as u64 + 1;
                let (reserved, body) = (log_record_bytes(bytes), body(token, bytes));
                if !self.sender.try_reserve(reserved).unwrap() {
                    return;
                }
                let (header, flying) = (header(Kind::OneWay, token), self.wire.flying());
                let sent =
                    self.sender
                        .try_append(&mut self.forth, header, &[&body], reserved, None);
                sent.expect("room was reserved");
                self.words_sent += self.wire.flying() - flying;
                self.sent.push((self.words_sent, body));
            }
            Step::Land(_) if self.integrity == RecordIntegrity::LastWord => _ = self.wire.land(3),
            Step::Land(pick) => (0..4).for_each(|_| _ = self.wire.land_any(pick)),
            Step::Keep => {
                let record = self.receiver.peek(&mut self.back, Nanos::default());
                if record.expect("a valid log").is_some() {
                    self.kept.push_back(self.receiver.keep());
                }
            }
            Step::Free(most) => {
                let count = most.min(self.kept.len());
                if let Some(end) = self.kept.drain(..count).next_back() {
                    self.freed += count as u64;
                    self.receiver
                        .free_noting(end, Some(self.freed), &mut self.back);
                }
            }
        }
    }

    /// Reads the log as it was after every store of the last step.
    fn check(&self, freed_before: u64) -> Result<(), TestCaseError> {
        let landed = self.wire.landed();
        let whole = self.sent.iter().take_while(|(at, _)| *at <= landed);
        let whole: Vec<_> = (1u64..).zip(whole.map(|(_, body)| body.clone())).collect();
        let mut stored = self.buffer.stored.lock().unwrap();
        let mut moments = std::mem::take(&mut stored.moments);
        moments.push(stored.words.clone());
        let mut last = freed_before;
        for words in moments {
            let (note, records) = left(words, self.integrity);
            prop_assert!(note == freed_before || note == self.freed);
            prop_assert!(note >= last, "the note went back");
            last = note;
            // Between the stores of note and head, records that are known to be freed are still there.
            let first = whole.len() - records.len();
            prop_assert!(
                first as u64 == note || first as u64 == freed_before,
                "{} of {} at {}",
                first,
                whole.len(),
                note
            );
            prop_assert_eq!(&records, &whole[first..]);
        }
        prop_assert_eq!(last, self.freed);
        Ok(())
    }
}

fn run(integrity: RecordIntegrity, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut log = Log::new(integrity);
    for step in steps {
        let freed = log.freed;
        log.step(*step);
        log.check(freed)?;
    }
    Ok(())
}

proptest! {
    #[test]
    fn what_is_not_freed_can_be_read_after_every_store(steps in prop::collection::vec(step(), 1..200)) {
        run(RecordIntegrity::LastWord, &steps)?;
    }

    #[test]
    fn the_same_with_words_that_land_in_any_order(steps in prop::collection::vec(step(), 1..200)) {
        run(RecordIntegrity::Checksum, &steps)?;
    }
}

/// A worker's own log: after every store, what is not freed can be read.
fn run_own(integrity: RecordIntegrity, steps: &[Step]) -> Result<(), TestCaseError> {
    let (buffer, state) = Watched::new_log();
    let memory = buffer.stored.clone();
    let mut log = OwnLog::new(buffer, KeptState::new(state), integrity).unwrap();
    let mut bodies: Vec<Vec<u8>> = Vec::new();
    let mut ends: VecDeque<u64> = VecDeque::new();
    let (mut freed, mut out) = (0u64, Vec::new());
    for step in steps {
        let freed_before = freed;
        match *step {
            Step::Append(bytes) => {
                let token = bodies.len() as u64 + 1;
                if log.try_reserve(log_record_bytes(bytes)) {
                    let body = body(token, bytes);
                    let (front, back) = body.split_at(bytes / 3);
                    ends.push_back(log.append(header(Kind::OneWay, token), &[front, back]));
                    bodies.push(body);
                }
            }
            Step::Free(most) => {
                let count = most.min(ends.len());
                if let Some(end) = ends.drain(..count).next_back() {
                    freed += count as u64;
                    log.free(end, freed);
                }
            }
            Step::Land(_) | Step::Keep => {}
        }
        for (end, body) in ends.iter().zip(&bodies[freed as usize..]) {
            log.read(*end, body.len(), &mut out);
            let bytes: &[u8] = bytemuck::cast_slice(&out);
            prop_assert_eq!(&bytes[..body.len()], &body[..]);
        }
        let all: Vec<_> = (1u64..).zip(bodies.iter().cloned()).collect();
        let moments = std::mem::take(&mut memory.lock().unwrap().moments);
        let last = memory.lock().unwrap().words.clone();
        for words in moments.into_iter().chain([last]) {
            let (note, records) = left(words, integrity);
            prop_assert!(note == freed_before || note == freed);
            let first = records.first().map_or(all.len(), |one| one.0 as usize - 1);
            // Without records, all are freed, but the one that is being appended.
            let none = records.is_empty() && freed as usize + 1 >= all.len();
            prop_assert!(first as u64 == freed_before || first as u64 == freed || none);
            let end = first + records.len();
            prop_assert_eq!(&records[..], &all[first..end]);
            // The record that is being appended may be missing.
            prop_assert!(end + 1 >= all.len());
        }
    }
    log.free(log.carried().0, 0);
    let words = &memory.lock().unwrap().words;
    prop_assert!(words[..BYTES / WORD_BYTES].iter().all(|word| *word == 0));
    Ok(())
}

proptest! {
    #[test]
    fn an_own_log_can_be_read_after_every_store(
        steps in prop::collection::vec(step(), 1..200), checksums in any::<bool>()
    ) {
        run_own(RecordIntegrity::by_checksum(checksums), &steps)?;
    }
}

/// Appends records and frees them, so that at most two are kept and fillers lie between them.
fn run_over_fillers() -> Result<(), TestCaseError> {
    let mut log = Log::new(RecordIntegrity::LastWord);
    let mut freed = 0;
    for at in 0..30 {
        for step in [
            Step::Append(32),
            Step::Land(0),
            Step::Land(0),
            Step::Land(0),
            Step::Keep,
        ] {
            log.step(step);
            log.check(freed)?;
        }
        if at >= 2 {
            log.step(Step::Free(1));
            log.check(freed)?;
            freed = log.freed;
        }
        let kept = 2.min(at + 1);
        prop_assert_eq!(log.kept.len(), kept, "the receiver keeps two records");
    }
    Ok(())
}

/// A log in which a filler lies between kept records. Its word was zeroed when the receiver read it, and the records after it
/// were lost with the receiver's process.
#[test]
fn records_after_a_filler_that_was_read_are_found() {
    run_over_fillers().unwrap();
}

/// The deliberate bugs that lose records only if the processes are killed.
#[cfg(feature = "mutants")]
#[test]
fn deliberate_bugs_of_kept_logs_are_found() {
    let own = || {
        let steps = [
            Step::Append(32),
            Step::Append(32),
            Step::Append(32),
            Step::Free(1),
        ];
        run_own(RecordIntegrity::LastWord, &steps)
    };
    type Run<'a> = &'a dyn Fn() -> Result<(), TestCaseError>;
    let late = "log head stored after its space is zeroed";
    let runs: [(&str, Run<'_>); 3] = [
        ("filler zeroed when it is read", &run_over_fillers),
        (late, &run_over_fillers),
        (late, &own),
    ];
    for (mutant, run) in runs {
        run().unwrap();
        crate::mutants::switch(Some(mutant));
        let found = run().is_err();
        crate::mutants::switch(None);
        assert!(found, "{mutant}");
    }
}

#[test]
fn a_state_that_no_receiver_stores_is_refused() {
    let mut words = vec![0; (BYTES + KEPT_STATE_BYTES) / WORD_BYTES];
    words[BYTES / WORD_BYTES] = 12;
    let (buffer, state) = Watched::log(words);
    let refused = KeptRecords::new(buffer, &KeptState::new(state), RecordIntegrity::LastWord);
    assert!(refused.unwrap_err().to_string().contains("position 0xc"));
}

proptest! {
    /// Whatever the memory holds, reading ends.
    #[test]
    fn any_words_are_read_to_an_end(
        words in prop::collection::vec(prop_oneof![Just(0u64), any::<u64>(), (0u64..64).prop_map(|len| (len * 8) | (1 << 32))],
            (BYTES + KEPT_STATE_BYTES) / WORD_BYTES),
        checksums in any::<bool>(),
    ) {
        let (buffer, state) = Watched::log(words);
        let integrity = RecordIntegrity::by_checksum(checksums);
        if let Ok(mut log) = KeptRecords::new(buffer, &KeptState::new(state), integrity) {
            let mut count = 0;
            while let Ok(Some(_)) = log.next() {
                count += 1;
            }
            prop_assert!(count <= BYTES / 24);
        }
    }
}
