//! What a worker shares with other threads: their requests and calls, and the tasks that they have woken.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Wake};

use farm_core::control::Control;
use farm_core::ids::WorkerRef;
use farm_core::worker::{Inbox, Worker};

use super::answers::{Answer, Answers, Dropped, Follows, RunKey, Slot, Waits};

/// Starts a call on the worker.
pub(super) type Start = Box<dyn FnOnce(&mut Worker, Slot) + Send>;

/// A request of another thread to the worker.
pub(super) enum Request {
    /// A call, with the index of its entry.
    Call(u32, Start),
    Do(Box<dyn FnOnce(&mut Worker) + Send>),
}

#[derive(Default)]
struct State {
    requests: VecDeque<Request>,
    woken: Vec<usize>,
    answers: Answers,
    /// Whether the executor runs or is about to run.
    runs: bool,
    stopped: bool,
}

/// The state that a worker shares with other threads; see the [module](self).
pub(crate) struct TaskQueue {
    /// A number that no other worker of the process has.
    pub(super) id: u64,
    pub(super) me: WorkerRef,
    state: Mutex<State>,
    inbox: Arc<Inbox>,
    control: Arc<Control>,
    /// Runs the executor.
    run: fn(&mut Worker),
    /// How often the lock was taken.
    #[cfg(debug_assertions)]
    pub(super) locks: AtomicU64,
}

/// The worker has stopped.
pub(super) struct Stopped;

impl State {
    /// Makes the entry of a call, for which the context waits.
    fn open(&mut self, run: Option<RunKey>, context: &Context<'_>) -> Result<u32, Stopped> {
        if self.stopped {
            return Err(Stopped);
        }
        let index = self.answers.open(run);
        // A new entry has no other waker.
        drop(self.answers.wait_for(index, context));
        Ok(index)
    }
}

impl TaskQueue {
    pub(super) fn new(worker: &Worker, run: fn(&mut Worker)) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            me: worker.me(),
            state: Mutex::default(),
            inbox: Arc::clone(worker.inbox()),
            control: Arc::clone(worker.control()),
            run,
            #[cfg(debug_assertions)]
            locks: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        #[cfg(debug_assertions)]
        self.locks.fetch_add(1, Ordering::Relaxed);
        self.state
            .lock()
            .expect("no thread panics while it holds the lock of the task queue")
    }

    /// Returns the answer of calls whose worker has stopped.
    #[cold]
    pub(super) fn stopped(&self) -> Answer {
        Answer::stopped(self.why_stopped())
    }

    /// Returns why the machine has stopped, if it was not asked to.
    pub(super) fn why_stopped(&self) -> Option<String> {
        self.control.why_stopped()
    }

    /// Returns the number of calls and requests.
    pub(super) fn open(&self) -> usize {
        let state = self.lock();
        state.answers.len() + state.requests.len()
    }

    /// Closes the queue when the worker stops: no call is answered any more.
    pub(super) fn close(&self) {
        let (requests, waits) = {
            let mut state = self.lock();
            state.stopped = true;
            state.woken.clear();
            (
                std::mem::take(&mut state.requests),
                state.answers.take_waits(),
            )
        };
        drop(requests);
        for waits in waits {
            if let Waits::Waker(waker) = waits {
                waker.wake();
            }
        }
    }

    /// Queues a request for the worker. It is dropped if the worker has stopped.
    pub(super) fn request(&self, work: impl FnOnce(&mut Worker) + Send + 'static) {
        let mut state = self.lock();
        if state.stopped {
            return;
        }
        state.requests.push_back(Request::Do(Box::new(work)));
        self.make_run(state);
    }

    /// Begins a call. Returns the index of its entry.
    pub(super) fn call(
        &self,
        run: Option<RunKey>,
        start: Start,
        context: &Context<'_>,
    ) -> Result<u32, Stopped> {
        let mut state = self.lock();
        let index = state.open(run, context)?;
        state.requests.push_back(Request::Call(index, start));
        self.make_run(state);
        Ok(index)
    }

    /// Makes an entry to which the answer of a call of a task of the worker will be passed on.
    pub(super) fn receive(&self, context: &Context<'_>) -> Result<u32, Stopped> {
        self.lock().open(None, context)
    }

    /// Takes the answer of a call, if it has arrived; otherwise its task is woken when it does.
    pub(super) fn poll(&self, index: u32, context: &Context<'_>) -> Poll<Answer> {
        let mut state = self.lock();
        if state.answers.is_answered(index) {
            let answer = std::mem::take(state.answers.answer(index));
            state.answers.close(index);
            return Poll::Ready(answer);
        }
        if state.stopped {
            return Poll::Ready(self.stopped());
        }
        let replaced = state.answers.wait_for(index, context);
        drop(state);
        drop(replaced);
        Poll::Pending
    }

    /// Handles that a call is dropped.
    pub(super) fn drop_call(&self, index: u32) -> Dropped {
        self.lock().answers.drop_call(index)
    }

    /// Returns the slot of a call that is about to start, and the transaction that it works on. If the call was dropped, its
    /// entry is removed.
    pub(super) fn start(&self, index: u32) -> Option<(Slot, Option<RunKey>)> {
        let mut state = self.lock();
        if state.answers.is_dropped(index) {
            state.answers.close(index);
            return None;
        }
        let slot = Slot::of_queue(index, state.answers.generation(index));
        Some((slot, state.answers.run(index)))
    }

    /// Returns whether a call of this generation has the entry, and is not answered.
    pub(super) fn is_open(&self, index: u32, generation: u32) -> bool {
        self.lock().answers.is_open(index, generation)
    }

    /// Changes the answer of a call.
    pub(super) fn fill<R>(
        &self,
        index: u32,
        fill: impl FnOnce(&mut Answer, Option<RunKey>) -> R,
    ) -> R {
        let mut state = self.lock();
        let run = state.answers.run(index);
        fill(state.answers.answer(index), run)
    }

    /// Marks the answer of a call as complete.
    pub(super) fn answered(&self, index: u32) -> Follows {
        self.lock().answers.answered(index)
    }

    fn wake(&self, task: usize) {
        let mut state = self.lock();
        if !state.stopped {
            state.woken.push(task);
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

    /// Returns the next request, and moves woken tasks to `ready`. If there is no request, the executor counts as
    /// stopped.
    pub(super) fn next(&self, ready: &mut VecDeque<usize>) -> Option<Request> {
        let mut state = self.lock();
        ready.extend(state.woken.drain(..));
        let next = state.requests.pop_front();
        state.runs = next.is_some();
        next
    }
}

/// The waker of a task, for all that is not a call to its worker.
pub(super) struct TaskWaker {
    queue: Arc<TaskQueue>,
    task: usize,
    woken: AtomicBool,
}

impl TaskWaker {
    /// Creates the waker of a task.
    pub(super) fn new(queue: Arc<TaskQueue>, task: usize) -> Arc<Self> {
        let woken = AtomicBool::new(false);
        Arc::new(Self { queue, task, woken })
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
            self.queue.wake(self.task);
        }
    }
}
