//! The answers of calls: one entry for each call that a task has made and whose answer it has not taken.
//!
//! An entry exists from the start of its call until the answer is taken. If the call is dropped, the entry exists until
//! the answer arrives, which is discarded then. Every continuation therefore finds its entry. Entries are used again, with
//! the memory of their bytes, so that calls allocate nothing once there are as many entries as calls at one time.

use std::any::Any;
use std::task::{Context, Waker};

use farm_core::worker;

use crate::error::TxError;
use crate::handle::TxHandle;

/// Capacity of the bytes of a free entry above which its memory is freed.
const MOST_KEPT_BYTES: usize = 16 << 10;

/// Identifies a call, as the context of the continuations that answer it: the index of its entry (32 bits), whether another
/// thread has made the call (1 bit), and the generation of the entry (31 bits).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(u64);

/// Marks the slots of calls that were made by other threads.
const SHARED: u64 = 1 << 32;

/// Position of the generation.
const GENERATION: u32 = 33;

/// Where the entry of a call is.
#[derive(Clone, Copy)]
pub(super) enum Place {
    /// With the worker: the call was made by a task that the worker polls.
    Worker(u32),
    /// In the queue that the worker shares with other threads.
    Queue(u32),
}

impl Slot {
    pub(super) fn of_worker(index: u32, generation: u32) -> Self {
        Self(u64::from(index) | u64::from(generation) << GENERATION)
    }

    pub(super) fn of_queue(index: u32, generation: u32) -> Self {
        Self(Self::of_worker(index, generation).0 | SHARED)
    }

    pub(super) fn place(self) -> Place {
        match self.0 & SHARED {
            0 => Place::Worker(self.0 as u32),
            _ => Place::Queue(self.0 as u32),
        }
    }

    pub(super) fn generation(self) -> u32 {
        (self.0 >> GENERATION) as u32
    }
}

impl worker::Context for Slot {
    #[inline(always)]
    fn to_word(self) -> u64 {
        self.0
    }

    #[inline(always)]
    fn from_word(word: u64) -> Self {
        Self(word)
    }
}

/// Names one try of a transaction of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RunKey {
    pub(super) index: u32,
    pub(super) tx: TxHandle,
}

/// Undoes on the worker what a call has done, if nobody takes its answer. It receives the words of the answer.
pub(super) type Undo = fn(&mut worker::Worker, [u64; 3]);

/// The answer to a call. The code that begins a call and the code that takes its answer agree on the parts that it uses.
#[derive(Default)]
pub struct Answer {
    pub(super) error: Option<TxError>,
    /// Small values.
    pub words: [u64; 3],
    /// A payload, a value or a list.
    pub bytes: Vec<u8>,
    /// Any other value.
    pub value: Option<Box<dyn Any + Send>>,
    pub(super) undo: Option<Undo>,
}

impl Answer {
    /// Makes this the answer of a call that has failed.
    pub fn fail(&mut self, error: TxError) {
        self.error = Some(error);
    }

    /// Stores the outcome of a call in the answer: `store` stores the value, if there is one.
    #[inline]
    pub fn set<T>(&mut self, outcome: Result<T, TxError>, store: impl FnOnce(&mut Self, T)) {
        match outcome {
            Ok(value) => store(self, value),
            Err(error) => self.error = Some(error),
        }
    }

    /// Returns the answer of a call that has succeeded.
    ///
    /// # Errors
    /// The error of the call.
    #[inline]
    pub fn ok(&mut self) -> Result<&mut Self, TxError> {
        match self.error.take() {
            None => Ok(self),
            Some(error) => Err(error),
        }
    }

    /// Takes the value that was stored as `value`.
    ///
    /// # Errors
    /// The error of the call.
    ///
    /// # Panics
    /// If the answer has no value of this type.
    pub fn take_value<T: 'static>(&mut self) -> Result<T, TxError> {
        let value = self
            .ok()?
            .value
            .take()
            .and_then(|value| value.downcast().ok());
        Ok(*value.expect("the call has stored a value of the type that is taken"))
    }

    /// Returns what undoes the call, if anything does, and its argument.
    pub(super) fn undo(&self) -> Option<(Undo, [u64; 3])> {
        Some((self.undo?, self.words))
    }

    /// The answer of a worker that has stopped, with the reason, if there is one.
    pub(super) fn stopped(why: Option<String>) -> Self {
        Self {
            error: Some(TxError::Stopped(why.map(Into::into))),
            ..Self::default()
        }
    }

    #[inline(always)]
    fn clear(&mut self) {
        let small = self.bytes.capacity() <= MOST_KEPT_BYTES;
        match small && self.error.is_none() && self.value.is_none() && self.undo.is_none() {
            true => self.bytes.clear(),
            false => self.clear_all(),
        }
    }

    #[cold]
    fn clear_all(&mut self) {
        self.error = None;
        self.value = None;
        self.undo = None;
        self.bytes.clear();
        self.bytes.shrink_to(MOST_KEPT_BYTES);
    }
}

/// Who waits for an answer.
#[derive(Default)]
pub(super) enum Waits {
    #[default]
    Nobody,
    /// A task of the worker.
    Task(usize),
    /// Any other future.
    Waker(Waker),
    /// A call that moved to another thread. The answer is passed on to its entry in the queue, which has this index.
    Other(u32),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    Open,
    Answered,
    /// The call was dropped before it was answered.
    Dropped,
}

struct Entry {
    state: State,
    /// Counts the calls that have had this entry, so that a slot of an earlier call is recognized.
    generation: u32,
    waits: Waits,
    /// The transaction that the call works on.
    run: Option<RunKey>,
    answer: Answer,
}

/// The entries of calls, by index.
#[derive(Default)]
pub(super) struct Answers {
    entries: Vec<Entry>,
    free: Vec<u32>,
}

/// What follows after an answer was stored.
pub(super) enum Follows {
    Wake(Waits),
    /// The call was dropped. The answer is to be undone, and dropped outside of any lock, because its value may own other
    /// calls.
    Undo(Answer),
}

impl Answers {
    /// Returns the number of calls.
    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Makes the entry of a call.
    #[inline]
    pub(super) fn open(&mut self, run: Option<RunKey>) -> u32 {
        let index = match self.free.pop() {
            Some(index) => index,
            None => self.add(),
        };
        let entry = &mut self.entries[index as usize];
        entry.state = State::Open;
        entry.run = run;
        index
    }

    #[cold]
    fn add(&mut self) -> u32 {
        self.entries.push(Entry {
            state: State::Free,
            generation: 0,
            waits: Waits::Nobody,
            run: None,
            answer: Answer::default(),
        });
        // Freeing an entry must not allocate.
        self.free.reserve(self.entries.len());
        (self.entries.len() - 1) as u32
    }

    #[inline]
    pub(super) fn close(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        entry.state = State::Free;
        entry.generation = (entry.generation + 1) & (u32::MAX >> 1);
        entry.answer.clear();
        entry.waits = Waits::Nobody;
        self.free.push(index);
    }

    #[inline]
    pub(super) fn answer(&mut self, index: u32) -> &mut Answer {
        &mut self.entries[index as usize].answer
    }

    #[inline]
    pub(super) fn run(&self, index: u32) -> Option<RunKey> {
        self.entries[index as usize].run
    }

    #[inline]
    pub(super) fn generation(&self, index: u32) -> u32 {
        self.entries[index as usize].generation
    }

    /// Returns whether a call of this generation has the entry, and is not answered.
    pub(super) fn is_open(&self, index: u32, generation: u32) -> bool {
        let entry = &self.entries[index as usize];
        let open = matches!(entry.state, State::Open | State::Dropped);
        open && entry.generation == generation
    }

    /// Marks the answer of a call as complete.
    #[inline]
    pub(super) fn answered(&mut self, index: u32) -> Follows {
        let entry = &mut self.entries[index as usize];
        if entry.state == State::Dropped {
            let answer = std::mem::take(&mut entry.answer);
            self.close(index);
            return Follows::Undo(answer);
        }
        entry.state = State::Answered;
        Follows::Wake(std::mem::take(&mut entry.waits))
    }

    /// As [`Answers::answered`], if a task of the worker waits for the answer; otherwise does nothing.
    #[inline(always)]
    pub(super) fn answered_task(&mut self, index: u32) -> Option<usize> {
        let entry = &mut self.entries[index as usize];
        match (entry.state, &entry.waits) {
            (State::Open, Waits::Task(task)) => {
                entry.state = State::Answered;
                Some(*task)
            }
            _ => None,
        }
    }

    #[inline]
    pub(super) fn is_answered(&self, index: u32) -> bool {
        self.entries[index as usize].state == State::Answered
    }

    #[inline]
    pub(super) fn is_dropped(&self, index: u32) -> bool {
        self.entries[index as usize].state == State::Dropped
    }

    /// Sets who waits for a call. A waker that the new one replaces is returned, to be dropped outside of any lock.
    #[inline]
    pub(super) fn wait(&mut self, index: u32, waits: Waits) -> Waits {
        std::mem::replace(&mut self.entries[index as usize].waits, waits)
    }

    /// Waits with the waker of a context. Returns a waker that is no longer needed.
    pub(super) fn wait_for(&mut self, index: u32, context: &Context<'_>) -> Waits {
        let entry = &mut self.entries[index as usize];
        match &entry.waits {
            Waits::Waker(waker) if waker.will_wake(context.waker()) => Waits::Nobody,
            _ => std::mem::replace(&mut entry.waits, Waits::Waker(context.waker().clone())),
        }
    }

    /// Handles that a call is dropped. Returns the state that it leaves behind: the entry, if its answer has arrived.
    pub(super) fn drop_call(&mut self, index: u32) -> Dropped {
        let entry = &mut self.entries[index as usize];
        let waits = std::mem::take(&mut entry.waits);
        if entry.state == State::Answered {
            let answer = std::mem::take(&mut entry.answer);
            self.close(index);
            return Dropped::Answered(answer);
        }
        entry.state = State::Dropped;
        Dropped::Waiting(waits)
    }

    /// Takes all that waits.
    pub(super) fn take_waits(&mut self) -> Vec<Waits> {
        let waits = |entry: &mut Entry| std::mem::take(&mut entry.waits);
        self.entries.iter_mut().map(waits).collect()
    }
}

/// What a call leaves behind when it is dropped. To be dropped itself outside of any lock, because wakers and values may
/// own other calls.
pub(super) enum Dropped {
    Answered(Answer),
    #[allow(dead_code, reason = "kept until it can be dropped")]
    Waiting(Waits),
}
