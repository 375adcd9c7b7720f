//! State shared by the tasks and the executor of a worker: requests to the worker, slots for answers, and woken tasks.
//!
//! A slot exists from its request until the answer is taken. If the call is dropped, the slot exists until the answer
//! arrives, which is discarded then. Every continuation therefore finds its slot.

use std::any::Any;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use farm_core::alloc::SizeClass;
use farm_core::ids::{Address, WorkerRef};
use farm_core::object::{FatPointer, Incarnation};
use farm_core::time::Nanos;
use farm_core::worker::{Inbox, Worker};

use crate::api::TxHandle;
use crate::error::TxError;
use crate::object_run::ObjectRun;
use crate::retry::Left;
use crate::tx::{ObjectId, Tx};

/// The context of a transaction while no call works on it.
pub(super) type Lent = (TxHandle, Box<Tx>);

/// A request of a task to its worker.
pub(super) enum Request {
    /// A call, with the slot for its answer.
    Call(usize, Option<Lent>, Op),
    /// The abort of a transaction. If there is no context, the worker has it.
    Abort(TxHandle, Option<Box<Tx>>),
    Leave(Left),
    Do(Box<dyn FnOnce(&mut Worker) + Send>),
}

/// Work to execute with access to the worker.
pub(super) type Work = Box<dyn FnOnce(&mut Worker) -> Box<dyn Any + Send> + Send>;

/// Starts an operation of a layer above.
pub(super) type Operation = Box<dyn FnOnce(&mut Worker, TxHandle, u64) + Send>;

/// Starts an operation of a layer above that is not part of a transaction.
pub(super) type Alone = Box<dyn FnOnce(&mut Worker, u64) + Send>;

/// The result of a lock-free read of one object: its incarnation and its payload.
pub(super) type Found = (Incarnation, Vec<u8>);

/// The operation of a call.
pub(super) enum Op {
    Read(Address, SizeClass),
    ReadPointer(FatPointer),
    Alloc(usize, Option<Address>),
    Commit,
    /// An operation of a layer above on the transaction; its continuation receives the result.
    Operation(Operation),
    /// An operation of a layer above by itself.
    Alone(Alone),
    /// A commit of the reads alone.
    Validate,
    /// A lock-free read, by a fat pointer if there is one.
    Look(ObjectRun, Option<FatPointer>),
    Enter,
    Conflict(u32),
    Room,
    Sleep(Duration),
    Work(Work),
}

/// The answer to a call.
pub(super) enum Answer {
    Object(Result<ObjectId, TxError>),
    Looked(Result<Vec<Option<Found>>, TxError>),
    Done(Result<(), TxError>),
    /// The transaction may run; [`Request::Leave`] must follow.
    Entered,
    Value(Box<dyn Any + Send>),
    /// The worker has stopped.
    Stopped,
}

/// The state of a call.
#[derive(Default)]
pub(super) struct Slot {
    waker: Option<Waker>,
    answer: Option<(Option<Lent>, Answer)>,
    /// Whether the call was dropped, so that no task waits for the answer.
    dropped: bool,
    /// Transaction whose context the worker has for this call.
    tx: Option<TxHandle>,
    /// Objects of a lock-free read.
    pub(super) look: Option<(ObjectRun, Option<FatPointer>)>,
}

#[derive(Default)]
struct State {
    requests: VecDeque<Request>,
    ready: VecDeque<usize>,
    slots: slab::Slab<Slot>,
    /// Whether the executor runs or is about to run.
    runs: bool,
    stopped: bool,
}

/// The state that the tasks and the executor of a worker share; see the [module](self).
pub(crate) struct TaskQueue {
    state: Mutex<State>,
    inbox: Arc<Inbox>,
    /// Runs the executor.
    run: fn(&mut Worker),
    pub(super) me: WorkerRef,
    /// The worker's time at its last answer, in nanoseconds.
    now: AtomicU64,
    /// Time for which the worker retries reads that time out, in nanoseconds.
    patience: AtomicU64,
}

/// The next step of the executor.
pub(super) enum Next {
    Request(Request),
    Poll(usize),
}

impl TaskQueue {
    pub(super) fn new(inbox: Arc<Inbox>, me: WorkerRef, run: fn(&mut Worker)) -> Self {
        Self {
            state: Mutex::default(),
            inbox,
            run,
            me,
            now: AtomicU64::new(0),
            patience: AtomicU64::new(0),
        }
    }

    /// Returns the worker's time at its last answer.
    pub(super) fn now(&self) -> Nanos {
        Nanos(self.now.load(Ordering::Relaxed))
    }

    pub(super) fn set_now(&self, now: Nanos) {
        self.now.store(now.0, Ordering::Relaxed);
    }

    /// See [`crate::retry::set_patience`].
    pub(super) fn patience(&self) -> Duration {
        Duration::from_nanos(self.patience.load(Ordering::Relaxed))
    }

    pub(super) fn set_patience(&self, patience: Duration) {
        let nanos = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        self.patience.store(nanos, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .expect("no thread panics while it holds the lock of the task queue")
    }

    /// Returns the number of calls that have a slot, plus the number of requests.
    pub(super) fn open(&self) -> usize {
        let state = self.lock();
        state.slots.len() + state.requests.len()
    }

    /// Closes the state when the worker stops: no call is answered any more.
    pub(super) fn close(&self) {
        let (requests, wakers) = {
            let mut state = self.lock();
            state.stopped = true;
            state.ready.clear();
            let wakers: Vec<_> = state
                .slots
                .iter_mut()
                .filter_map(|(_, slot)| slot.waker.take())
                .collect();
            (std::mem::take(&mut state.requests), wakers)
        };
        drop(requests);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Queues a request for the worker.
    pub(super) fn request(&self, request: Request) {
        let mut state = self.lock();
        if !state.stopped {
            state.requests.push_back(request);
            self.make_run(state);
        }
    }

    /// Starts a call.
    pub(super) fn call(self: &Arc<Self>, tx: Option<Lent>, op: Op) -> Call {
        let mut state = self.lock();
        let mut slot = None;
        if !state.stopped {
            let inserted = state.slots.insert(Slot::default());
            slot = Some(inserted);
            state.requests.push_back(Request::Call(inserted, tx, op));
            self.make_run(state);
        }
        Call {
            shared: Arc::clone(self),
            slot,
        }
    }

    fn wake(&self, task: usize) {
        let mut state = self.lock();
        if !state.stopped {
            state.ready.push_back(task);
            self.make_run(state);
        }
    }

    /// Ensures that the executor runs.
    fn make_run(&self, mut state: MutexGuard<'_, State>) {
        if std::mem::replace(&mut state.runs, true) {
            return;
        }
        drop(state);
        self.inbox.insist(self.run);
    }

    /// Returns whether the caller, which runs on the worker, must run the executor.
    pub(super) fn take_run(&self) -> bool {
        !std::mem::replace(&mut self.lock().runs, true)
    }

    /// Returns the next step. If there is none, the executor counts as stopped.
    pub(super) fn next(&self) -> Option<Next> {
        let mut state = self.lock();
        if let Some(request) = state.requests.pop_front() {
            return Some(Next::Request(request));
        }
        let task = state.ready.pop_front().map(Next::Poll);
        state.runs = task.is_some();
        task
    }

    /// Returns whether a task waits for a call that is about to start. If not, removes its slot.
    pub(super) fn is_wanted(&self, slot: usize) -> bool {
        let mut state = self.lock();
        let wanted = !state.slots[slot].dropped;
        if !wanted {
            state.slots.remove(slot);
        }
        wanted
    }

    /// Changes a slot.
    pub(super) fn note(&self, slot: usize, change: impl FnOnce(&mut Slot)) {
        change(&mut self.lock().slots[slot]);
    }

    /// Records the transaction whose context the worker has for a call.
    pub(super) fn set_tx(&self, slot: usize, tx: TxHandle) {
        self.note(slot, |slot| slot.tx = Some(tx));
    }

    pub(super) fn tx_of(&self, slot: usize) -> Option<TxHandle> {
        self.lock().slots[slot].tx
    }

    pub(super) fn look_of(&self, slot: usize) -> Option<(ObjectRun, Option<FatPointer>)> {
        self.lock().slots[slot].look
    }

    /// Stores an answer in its slot and wakes the task. If the call was dropped, returns the answer.
    pub(super) fn answer(
        &self,
        slot: usize,
        tx: Option<Lent>,
        answer: Answer,
    ) -> Option<(Option<Lent>, Answer)> {
        let mut state = self.lock();
        if state.slots[slot].dropped {
            state.slots.remove(slot);
            return Some((tx, answer));
        }
        let waits = &mut state.slots[slot];
        waits.answer = Some((tx, answer));
        let waker = waits.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        None
    }

    /// Returns the request that must follow an answer that no task takes.
    pub(super) fn unwanted(tx: Option<Lent>, answer: &Answer) -> Option<Request> {
        match (tx, answer) {
            (Some((handle, tx)), _) => Some(Request::Abort(handle, Some(tx))),
            (None, Answer::Entered) => Some(Request::Leave(Left::Failed)),
            (None, _) => None,
        }
    }
}

/// The future of a call's answer.
pub(super) struct Call {
    shared: Arc<TaskQueue>,
    slot: Option<usize>,
}

impl Future for Call {
    type Output = (Option<Lent>, Answer);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let shared = Arc::clone(&self.shared);
        // Dropped after the lock is released, because a waker may own other calls.
        let _replaced;
        let mut state = shared.lock();
        let Some(slot) = self.slot else {
            return Poll::Ready((None, Answer::Stopped));
        };
        let stopped = state.stopped;
        let waits = &mut state.slots[slot];
        let answer = match waits.answer.take() {
            Some(answer) => answer,
            None if stopped => (None, Answer::Stopped),
            None => {
                _replaced = waits.waker.replace(context.waker().clone());
                return Poll::Pending;
            }
        };
        state.slots.remove(slot);
        self.slot = None;
        Poll::Ready(answer)
    }
}

/// If the call is dropped before it completes, its transaction aborts, and an answer that arrives later is discarded.
impl Drop for Call {
    fn drop(&mut self) {
        let Some(slot) = self.slot else {
            return;
        };
        let mut state = self.shared.lock();
        let waits = &mut state.slots[slot];
        let (waker, answer) = (waits.waker.take(), waits.answer.take());
        let aborts = match answer {
            Some(_) => {
                state.slots.remove(slot);
                None
            }
            None => {
                waits.dropped = true;
                waits.tx.map(|tx| Request::Abort(tx, None))
            }
        };
        drop(state);
        // After the lock is released, because a waker or a value may own other calls.
        drop(waker);
        let follows = match answer {
            Some((tx, answer)) => TaskQueue::unwanted(tx, &answer),
            None => aborts,
        };
        if let Some(request) = follows {
            self.shared.request(request);
        }
    }
}

/// The waker of a task.
pub(super) struct TaskWaker {
    shared: Arc<TaskQueue>,
    task: usize,
    woken: AtomicBool,
}

impl TaskWaker {
    /// Creates the waker of a task.
    pub(super) fn new(shared: Arc<TaskQueue>, task: usize) -> Arc<Self> {
        let waker = Self {
            shared,
            task,
            woken: AtomicBool::new(false),
        };
        Arc::new(waker)
    }

    /// Resets the waker when the task is polled: later events wake the task again.
    pub(super) fn rest(&self) {
        self.woken.store(false, Ordering::Release);
    }
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.woken.swap(true, Ordering::AcqRel) {
            self.shared.wake(self.task);
        }
    }
}
