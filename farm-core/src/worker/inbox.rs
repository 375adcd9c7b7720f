//! Work that threads outside bring to a worker.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crossbeam_queue::{ArrayQueue, SegQueue};

use super::Worker;

type Item = Box<dyn FnOnce(&mut Worker) + Send>;

/// How long a thread that waits for room sleeps at most before it looks whether the worker still runs.
const LOOK: Duration = Duration::from_millis(20);

/// The queue of a worker is full: the item was dropped without being run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} work items wait for the worker already")]
pub struct InboxFull(pub usize);

/// The queue through which threads outside reach a worker: bounded, without locks where there is room.
pub struct Inbox {
    items: ArrayQueue<Item>,
    /// Items that came while `items` was full, and could not wait.
    more: SegQueue<Item>,
    /// Threads that wait for room in `items`, which `room` notifies.
    waiting: AtomicUsize,
    lock: Mutex<()>,
    room: Condvar,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl Inbox {
    /// A queue of at most `items`; `wake` wakes the worker.
    pub fn new(items: usize, wake: Box<dyn Fn() + Send + Sync>) -> Self {
        Self {
            items: ArrayQueue::new(items),
            more: SegQueue::new(),
            waiting: AtomicUsize::new(0),
            lock: Mutex::new(()),
            room: Condvar::new(),
            wake,
        }
    }

    /// Queues a work item; the worker runs it in one of its next turns.
    ///
    /// # Errors
    /// [`InboxFull`].
    pub fn submit(&self, item: impl FnOnce(&mut Worker) + Send + 'static) -> Result<(), InboxFull> {
        self.push(Box::new(item))
            .map_err(|_| InboxFull(self.items.capacity()))
    }

    /// As [`Inbox::submit`], and blocks the calling thread while the queue is full, as long as `runs` returns
    /// true.
    ///
    /// # Errors
    /// [`InboxFull`] when the queue is full and `runs` returned false.
    pub fn submit_when_room(
        &self,
        item: impl FnOnce(&mut Worker) + Send + 'static,
        runs: impl Fn() -> bool,
    ) -> Result<(), InboxFull> {
        let mut item: Item = Box::new(item);
        while let Err(back) = self.push(item) {
            if !runs() {
                return Err(InboxFull(self.items.capacity()));
            }
            item = back;
            self.waiting.fetch_add(1, Ordering::SeqCst);
            let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
            if self.items.is_full() {
                // The wait is bounded, for the worker may stop without taking another item.
                drop(self.room.wait_timeout(guard, LOOK));
            }
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        }
        Ok(())
    }

    /// As [`Inbox::submit`], full or not: for callers that bring one item at a time, and cannot wait until there
    /// is room.
    pub fn insist(&self, item: impl FnOnce(&mut Worker) + Send + 'static) {
        if let Err(item) = self.push(Box::new(item)) {
            self.more.push(item);
            (self.wake)();
        }
    }

    fn push(&self, item: Item) -> Result<(), Item> {
        self.items.push(item)?;
        (self.wake)();
        Ok(())
    }

    pub(crate) fn take(&self) -> Option<Item> {
        // Those first: threads that wait for room may keep `items` full for ever. That a queue is empty is seen by
        // loads; a pop would cost every turn a fence.
        if !self.more.is_empty()
            && let Some(item) = self.more.pop()
        {
            return Some(item);
        }
        if self.items.is_empty() {
            return None;
        }
        let item = self.items.pop();
        if item.is_some() && self.waiting.load(Ordering::SeqCst) > 0 {
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.room.notify_all();
        }
        item
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Threads that refill the queue whenever the worker has taken from it held up an item that was insisted on for
    /// ever: all tasks of the worker stood still, as a task that another thread had woken was never run.
    #[test]
    fn an_item_that_was_insisted_on_is_not_held_up_by_a_full_queue() {
        let inbox = Inbox::new(64, Box::new(|| ()));
        let fill = || while inbox.submit(|_| ()).is_ok() {};
        fill();
        inbox.insist(|_| ());
        assert!(inbox.take().is_some());
        fill();
        assert!(inbox.more.is_empty(), "it was taken first");
    }
}
