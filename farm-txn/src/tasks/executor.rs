//! The executor: executes the calls of tasks on their worker, and polls the tasks when an answer has arrived. It runs
//! from the event loop.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Poll;

use farm_core::alloc::SizeClass;
use farm_core::object::Image;
use farm_core::worker::{Cont, ReadResult, Worker};

use super::queue::{Answer, Found, Lent, Next, Op, Request, TaskQueue, TaskWaker};
use super::{Task, TaskFuture, here, tasks};
use crate::api::{self, TxHandle};
use crate::error::TxError;
use crate::open;
use crate::remote::error_of_read;
use crate::retry;
use crate::tx::ObjectId;

/// Maximum number of requests served and tasks polled in one run; other work of the worker follows.
const MOST_STEPS: usize = 64;

/// Starts a task.
pub(super) fn spawn(worker: &mut Worker, future: TaskFuture) {
    let (id, shared) = of(worker);
    let waker = here(id, |all| {
        let entry = all.vacant_entry();
        let waker = TaskWaker::new(Arc::clone(&shared), entry.key());
        entry.insert(Task {
            future: Some(future),
            waker: Arc::clone(&waker),
        });
        waker
    });
    if shared.take_run() {
        worker.defer(Cont::new(run_again, 0));
    }
    std::task::Wake::wake(waker);
}

fn of(worker: &mut Worker) -> (u64, Arc<TaskQueue>) {
    let tasks = tasks(worker);
    (tasks.id, Arc::clone(&tasks.shared))
}

fn run_again(worker: &mut Worker, _: u64, (): ()) {
    run(worker);
}

/// Serves requests and polls tasks, at most [`MOST_STEPS`] of them; if more may be left, it continues in a deferred
/// call.
pub(super) fn run(worker: &mut Worker) {
    let (id, shared) = of(worker);
    for _ in 0..MOST_STEPS {
        match shared.next() {
            Some(Next::Request(request)) => serve(worker, &shared, request),
            Some(Next::Poll(task)) => poll(id, task),
            None => return,
        }
    }
    worker.defer(Cont::new(run_again, 0));
}

/// Polls a task, if it exists: a task that has ended may have been woken before.
fn poll(id: u64, key: usize) {
    let taken = here(id, |all| {
        let task = all.get_mut(key)?;
        Some((task.future.take()?, Arc::clone(&task.waker)))
    });
    let Some((mut future, waker)) = taken else {
        return;
    };
    waker.rest();
    let waker = waker.into();
    let mut context = std::task::Context::from_waker(&waker);
    let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut context)));
    if let Ok(Poll::Pending) = polled {
        here(id, |all| all[key].future = Some(future));
        return;
    }
    here(id, |all| all.remove(key));
    if let Err(panic) = polled {
        report_panic(&*panic);
    }
    // Values of the task may panic when they are dropped.
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(future))) {
        report_panic(&*panic);
    }
}

/// Reports that a task panicked. The task ends, its transactions abort, and the worker continues: the task had borrowed
/// nothing from the worker when it panicked, because a task accesses its worker only by requests.
#[cold]
pub(super) fn report_panic(panic: &(dyn Any + Send)) {
    tracing::error!(
        "a task panicked; ending the task and aborting its transaction: {}",
        panic_message(panic)
    );
}

/// Returns the message of a panic.
pub(super) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a message")
}

fn serve(worker: &mut Worker, shared: &Arc<TaskQueue>, request: Request) {
    match request {
        Request::Abort(tx, context) => abort(worker, tx, context),
        Request::Leave(left) => retry::leave(worker, left),
        Request::Do(work) => work(worker),
        Request::Call(slot, context, op) => {
            if shared.is_wanted(slot) {
                call(worker, shared, slot, context, op);
            } else if let Some((tx, context)) = context {
                abort(worker, tx, Some(context));
            }
        }
    }
}

fn abort(worker: &mut Worker, tx: TxHandle, context: Option<Box<crate::tx::Tx>>) {
    if let Some(context) = context {
        open::put_back(worker, tx, context);
    }
    api::abort(worker, tx);
}

fn call(worker: &mut Worker, shared: &Arc<TaskQueue>, slot: usize, context: Option<Lent>, op: Op) {
    let key = slot as u64;
    let waited = Cont::new(waited, key);
    match op {
        Op::Read(address, class) => {
            let tx = lend(worker, shared, slot, context);
            api::read_class(worker, tx, address, class, Cont::new(object_came, key));
        }
        Op::ReadPointer(pointer) => {
            let tx = lend(worker, shared, slot, context);
            api::read_pointer(worker, tx, pointer, Cont::new(object_came, key));
        }
        Op::Alloc(bytes, hint) => {
            let tx = lend(worker, shared, slot, context);
            api::alloc(worker, tx, bytes, hint, Cont::new(object_came, key));
        }
        Op::Operation(begin) => {
            let tx = lend(worker, shared, slot, context);
            begin(worker, tx, key);
        }
        Op::Alone(begin) => begin(worker, key),
        Op::Commit => {
            let tx = lend(worker, shared, slot, context);
            api::commit(worker, tx, Cont::new(committed, key));
        }
        Op::Validate => {
            let tx = lend(worker, shared, slot, context);
            api::validate(worker, tx, Cont::new(committed, key));
        }
        Op::Look(wanted, pointer) => match wanted.check(worker) {
            Ok(()) => {
                shared.note(slot, |slot| slot.look = Some((wanted, pointer)));
                look(worker, key, ());
            }
            Err(error) => answer(worker, slot, None, Answer::Looked(Err(error))),
        },
        Op::Enter => retry::enter(worker, Cont::new(entered, key)),
        Op::Conflict(before) => {
            let wait = retry::conflict(worker, before);
            worker.set_timer(wait, waited);
        }
        Op::Room => {
            retry::waits_for_room(worker);
            worker.when_room(waited);
        }
        Op::Sleep(time) => worker.set_timer(time, waited),
        Op::Work(work) => {
            let value = work(worker);
            answer(worker, slot, None, Answer::Value(value));
        }
    }
}

/// Returns the context of a transaction to the worker for a call, or begins the transaction.
fn lend(
    worker: &mut Worker,
    shared: &Arc<TaskQueue>,
    slot: usize,
    context: Option<Lent>,
) -> TxHandle {
    let tx = match context {
        Some((tx, context)) => {
            open::put_back(worker, tx, context);
            tx
        }
        None => api::begin(worker),
    };
    shared.set_tx(slot, tx);
    tx
}

/// Stores the answer of a call in its slot. If the call was dropped, discards the answer instead: aborts its
/// transaction, or leaves the gate.
fn answer(worker: &mut Worker, slot: usize, context: Option<Lent>, answer: Answer) {
    let shared = Arc::clone(&tasks(worker).shared);
    shared.set_now(worker.now());
    let mine = shared.take_run();
    if let Some((context, answer)) = shared.answer(slot, context, answer)
        && let Some(follows) = TaskQueue::unwanted(context, &answer)
    {
        serve(worker, &shared, follows);
    }
    if mine {
        run(worker);
    }
}

fn object_came(worker: &mut Worker, key: u64, result: Result<ObjectId, TxError>) {
    let context = take_back(worker, key as usize);
    answer(worker, key as usize, context, Answer::Object(result));
}

/// Handles the end of an operation of a layer above.
pub(super) fn operated<T: Send + 'static>(
    worker: &mut Worker,
    key: u64,
    result: Result<T, TxError>,
) {
    let context = take_back(worker, key as usize);
    answer(
        worker,
        key as usize,
        context,
        Answer::Value(Box::new(result)),
    );
}

/// Takes the context of the transaction that a call worked on, unless the transaction was aborted since.
fn take_back(worker: &mut Worker, slot: usize) -> Option<Lent> {
    let tx = tasks(worker).shared.tx_of(slot)?;
    Some((tx, open::take_out(worker, tx)?))
}

fn committed(worker: &mut Worker, key: u64, result: Result<(), TxError>) {
    answer(worker, key as usize, None, Answer::Done(result));
}

fn waited(worker: &mut Worker, key: u64, (): ()) {
    answer(worker, key as usize, None, Answer::Done(Ok(())));
}

fn entered(worker: &mut Worker, key: u64, (): ()) {
    answer(worker, key as usize, None, Answer::Entered);
}

/// Posts a lock-free read, or waits for a slot of the arena to do so.
fn look(worker: &mut Worker, key: u64, (): ()) {
    let Some((wanted, pointer)) = tasks(worker).shared.look_of(key as usize) else {
        return;
    };
    let cont = Cont::new(looked, key);
    let posted = match pointer {
        Some(pointer) => worker.read_pointer_lock_free(pointer, cont),
        None => worker.read_lock_free(wanted.request(), cont),
    };
    if posted.is_err() {
        worker.when_slot(wanted.request().bytes(), Cont::new(look, key));
    }
}

fn looked(worker: &mut Worker, key: u64, result: ReadResult) {
    let Some((wanted, _)) = tasks(worker).shared.look_of(key as usize) else {
        return;
    };
    let read = match result {
        Ok(slot) => {
            let words = worker.arena().words(&slot);
            let objects = wanted.images(words);
            let found = objects.map(|words| found_in(words, wanted.class)).collect();
            worker.arena().give(slot);
            Ok(found)
        }
        Err(error) => Err(error_of_read(error, wanted.first)),
    };
    answer(worker, key as usize, None, Answer::Looked(read));
}

/// Returns the incarnation and the payload of the object in these words, if it is allocated.
fn found_in(words: &[u64], class: SizeClass) -> Option<Found> {
    let image = Image::check(words).expect("a lock-free read returns consistent objects");
    let incarnation = image.incarnation();
    let mut payload = vec![0; class.payload_capacity()];
    image.copy_payload(0, &mut payload);
    incarnation.is_allocated().then_some((incarnation, payload))
}
