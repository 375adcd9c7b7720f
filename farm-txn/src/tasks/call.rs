//! The future of a call.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use farm_core::worker::Worker;

use super::answers::{Answer, Dropped, RunKey, Slot, Waits};
use super::here;
use super::queue::{Stopped, TaskQueue};
use super::reply;
use super::run;
use super::tasks;
use super::tries;

/// A call to a worker: the future of its answer.
///
/// If the calling thread polls a task of that worker, the call starts at once. Otherwise it is queued for the worker.
///
/// If it is dropped before it completes, an answer that arrives later is discarded, and the transaction on which it
/// works ends.
pub struct Call<'q, S, F> {
    queue: &'q Arc<TaskQueue>,
    run: Option<RunKey>,
    state: State,
    /// `None` when the call has begun.
    start: Option<S>,
    /// `None` when the call has completed.
    finish: Option<F>,
}

#[derive(Clone, Copy)]
enum State {
    New,
    /// The entry is with the worker.
    OnWorker(u32),
    /// The entry is in the queue.
    InQueue(u32),
    Ended,
}

// Nothing in a call is pinned.
impl<S, F> Unpin for Call<'_, S, F> {}

impl<'q, S, F> Call<'q, S, F> {
    pub(super) fn new(queue: &'q Arc<TaskQueue>, run: Option<RunKey>, start: S, finish: F) -> Self {
        Self {
            queue,
            run,
            state: State::New,
            start: Some(start),
            finish: Some(finish),
        }
    }
}

impl<S, F, T> Future for Call<'_, S, F>
where
    S: FnOnce(&mut Worker, Slot) + Send + 'static,
    F: FnOnce(&mut Answer) -> T,
{
    type Output = T;

    // The common path is inlined into the caller's future: as calls, the functions would copy the result through memory
    // several times.
    #[inline(always)]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let this = self.get_mut();
        match this.state {
            State::New => this.begin(context),
            State::OnWorker(index) => this.poll_on_worker(index, context),
            State::InQueue(index) => this.poll_in_queue(index, context),
            State::Ended => panic!("a call was polled again after it had completed"),
        }
    }
}

impl<S, F, T> Call<'_, S, F>
where
    S: FnOnce(&mut Worker, Slot) + Send + 'static,
    F: FnOnce(&mut Answer) -> T,
{
    #[inline(always)]
    fn begin(&mut self, context: &Context<'_>) -> Poll<T> {
        let begun = here::with_worker(self.queue.id, |worker| {
            let own = tasks(worker);
            let index = own.answers.open(self.run);
            run::begin_call(&mut own.transactions, self.run);
            let slot = Slot::of_worker(index, own.answers.generation(index));
            self.take_start()(worker, slot);
            self.take_or_wait(worker, index, context)
        });
        begun.unwrap_or_else(|| self.queue_up(context))
    }

    #[inline(always)]
    fn take_start(&mut self) -> S {
        let start = self.start.take();
        start.expect("a call begins once")
    }

    /// Queues the call for the worker.
    #[cold]
    fn queue_up(&mut self, context: &Context<'_>) -> Poll<T> {
        let start = Box::new(self.take_start());
        match self.queue.call(self.run, start, context) {
            Ok(index) => {
                self.state = State::InQueue(index);
                Poll::Pending
            }
            Err(Stopped) => self.complete(&mut self.queue.stopped()),
        }
    }

    #[inline(always)]
    fn take_or_wait(&mut self, worker: &mut Worker, index: u32, context: &Context<'_>) -> Poll<T> {
        let tasks = tasks(worker);
        if tasks.answers.is_answered(index) {
            let taken = self.complete(tasks.answers.answer(index));
            tasks.answers.close(index);
            return taken;
        }
        self.state = State::OnWorker(index);
        match tasks.polled(context.waker()) {
            Some(task) => _ = tasks.answers.wait(index, Waits::Task(task)),
            None => _ = tasks.answers.wait_for(index, context),
        }
        Poll::Pending
    }

    #[inline(always)]
    fn complete(&mut self, answer: &mut Answer) -> Poll<T> {
        self.state = State::Ended;
        let finish = self.finish.take();
        let finish = finish.expect("a call completes once");
        Poll::Ready(finish(answer))
    }

    #[inline(always)]
    fn poll_on_worker(&mut self, index: u32, context: &Context<'_>) -> Poll<T> {
        let polled = here::with_worker(self.queue.id, |worker| {
            self.take_or_wait(worker, index, context)
        });
        polled.unwrap_or_else(|| self.move_away(index, context))
    }

    /// Continues a call that its task has begun on the worker, and that another thread polls now.
    #[cold]
    fn move_away(&mut self, index: u32, context: &Context<'_>) -> Poll<T> {
        let Ok(to) = self.queue.receive(context) else {
            return self.complete(&mut self.queue.stopped());
        };
        self.queue
            .request(move |worker| reply::move_answer(worker, index, to));
        self.state = State::InQueue(to);
        Poll::Pending
    }

    #[cold]
    fn poll_in_queue(&mut self, index: u32, context: &Context<'_>) -> Poll<T> {
        match self.queue.poll(index, context) {
            Poll::Ready(mut answer) => self.complete(&mut answer),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S, F> Drop for Call<'_, S, F> {
    #[inline(always)]
    fn drop(&mut self) {
        if !matches!(self.state, State::Ended) {
            self.drop_unfinished();
        }
    }
}

impl<S, F> Call<'_, S, F> {
    #[cold]
    fn drop_unfinished(&mut self) {
        match self.state {
            State::New | State::Ended => return,
            State::OnWorker(index) => {
                here::on_worker(self.queue, move |worker| reply::drop_call(worker, index));
            }
            State::InQueue(index) => match self.queue.drop_call(index) {
                Dropped::Waiting(waits) => drop(waits),
                Dropped::Answered(answer) => {
                    if let Some((undo, words)) = answer.undo() {
                        here::on_worker(self.queue, move |worker| undo(worker, words));
                    }
                }
            },
        }
        if let Some(run) = self.run {
            tries::spoil_from(self.queue, run);
        }
    }
}
