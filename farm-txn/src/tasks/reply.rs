//! Answers calls, and wakes the tasks that wait for them.

use farm_core::worker::Worker;

use super::answers::{Answer, Dropped, Follows, Place, Slot, Waits};
use super::{executor, run, tasks};

/// Answers a call: `fill` stores the answer, and the task that waits for it is woken. Each call is answered once.
#[inline]
pub fn answer(worker: &mut Worker, slot: Slot, fill: impl FnOnce(&mut Answer)) {
    let now = worker.now();
    let own = tasks(worker);
    let follows = match slot.place() {
        Place::Worker(index) => {
            let run = own.answers.run(index);
            let answer = own.answers.answer(index);
            fill(answer);
            if let Some(key) = run {
                run::end_call(&mut own.transactions, now, key, &mut answer.error);
            }
            if let Some(task) = own.answers.answered_task(index) {
                return executor::poll_or_wake(worker, task);
            }
            own.answers.answered(index)
        }
        Place::Queue(index) => {
            let transactions = &mut own.transactions;
            own.queue.fill(index, |answer, run| {
                fill(answer);
                if let Some(key) = run {
                    run::end_call(transactions, now, key, &mut answer.error);
                }
            });
            own.queue.answered(index)
        }
    };
    follow(worker, slot.place(), follows);
}

/// Returns whether a call has not been answered.
pub fn is_open(worker: &mut Worker, slot: Slot) -> bool {
    let own = tasks(worker);
    match slot.place() {
        Place::Worker(index) => own.answers.is_open(index, slot.generation()),
        Place::Queue(index) => own.queue.is_open(index, slot.generation()),
    }
}

/// Accesses the answer of a call that is not complete.
pub fn with_answer<R>(worker: &mut Worker, slot: Slot, work: impl FnOnce(&mut Answer) -> R) -> R {
    let own = tasks(worker);
    match slot.place() {
        Place::Worker(index) => work(own.answers.answer(index)),
        Place::Queue(index) => own.queue.fill(index, |answer, _| work(answer)),
    }
}

/// Does what follows after an answer is complete.
#[cold]
fn follow(worker: &mut Worker, place: Place, follows: Follows) {
    match follows {
        Follows::Wake(Waits::Task(task)) => executor::wake(worker, task),
        Follows::Wake(Waits::Nobody) => {}
        Follows::Wake(Waits::Waker(waker)) => waker.wake(),
        Follows::Wake(Waits::Other(to)) => {
            if let Place::Worker(index) = place {
                pass_on(worker, index, to);
            }
        }
        Follows::Undo(answer) => undo(worker, &answer),
    }
}

/// Passes the answer of a call on to an entry of the queue, when it has arrived.
#[cold]
pub(super) fn move_answer(worker: &mut Worker, from: u32, to: u32) {
    let own = tasks(worker);
    match own.answers.is_answered(from) {
        true => pass_on(worker, from, to),
        false => drop(own.answers.wait(from, Waits::Other(to))),
    }
}

fn pass_on(worker: &mut Worker, from: u32, to: u32) {
    let own = tasks(worker);
    let answer = std::mem::take(own.answers.answer(from));
    own.answers.close(from);
    own.queue.fill(to, |place, _| *place = answer);
    let follows = own.queue.answered(to);
    follow(worker, Place::Queue(to), follows);
}

/// Handles that a call of a task of this worker is dropped.
pub(super) fn drop_call(worker: &mut Worker, index: u32) {
    if let Dropped::Answered(answer) = tasks(worker).answers.drop_call(index) {
        undo(worker, &answer);
    }
}

/// Undoes a call whose answer nobody takes.
fn undo(worker: &mut Worker, answer: &Answer) {
    if let Some((undo, words)) = answer.undo() {
        undo(worker, words);
    }
}
