//! Work items that threads outside of the workers submit to a worker.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crossbeam_queue::{ArrayQueue, SegQueue};

use super::Worker;

type Item = Box<dyn FnOnce(&mut Worker) + Send>;

/// Longest sleep of a thread that waits for room, before it checks again whether the worker still runs.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// The inbox of a worker is full: the item was dropped without being run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the worker's inbox is full: it holds {0} work items; submit again later")]
pub struct InboxFull(pub usize);

/// The queue through which threads outside submit work to a worker: bounded, and lock-free while it has room.
pub struct Inbox {
    items: ArrayQueue<Item>,
    /// Items of callers that could not wait while `items` was full.
    more: SegQueue<Item>,
    /// Items that connect the worker to machines. They do not wait until the own machine has joined the others.
    links: SegQueue<Item>,
    /// Number of threads that wait on `room` for room in `items`.
    waiting: AtomicUsize,
    lock: Mutex<()>,
    room: Condvar,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl Inbox {
    /// Creates a queue of at most `items` work items; `wake` wakes the worker.
    pub fn new(items: usize, wake: Box<dyn Fn() + Send + Sync>) -> Self {
        Self {
            items: ArrayQueue::new(items),
            more: SegQueue::new(),
            links: SegQueue::new(),
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

    /// As [`Inbox::submit`], but blocks the calling thread while the queue is full and `runs` returns true.
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
                // The wait is bounded, because the worker may stop without taking another item.
                drop(self.room.wait_timeout(guard, CHECK_INTERVAL));
            }
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        }
        Ok(())
    }

    /// As [`Inbox::submit`], but never fails: for callers that submit one item at a time and cannot wait for room.
    pub fn insist(&self, item: impl FnOnce(&mut Worker) + Send + 'static) {
        if let Err(item) = self.push(Box::new(item)) {
            self.more.push(item);
            (self.wake)();
        }
    }

    /// As [`Inbox::insist`], for an item that connects the worker to a machine: it runs even if the own machine has not joined the others.
    pub fn connect(&self, item: impl FnOnce(&mut Worker) + Send + 'static) {
        self.links.push(Box::new(item));
        (self.wake)();
    }

    pub(crate) fn take_link(&self) -> Option<Item> {
        match self.links.is_empty() {
            true => None,
            false => self.links.pop(),
        }
    }

    fn push(&self, item: Item) -> Result<(), Item> {
        self.items.push(item)?;
        (self.wake)();
        Ok(())
    }

    pub(crate) fn take(&self) -> Option<Item> {
        // `more` is served first, because threads that wait for room may keep `items` full for ever. The checks for
        // emptiness are plain loads; a pop would cost every turn a fence.
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

    /// Regression test: threads that refilled the queue whenever the worker had taken from it delayed an item submitted
    /// by [`Inbox::insist`] for ever. All tasks of the worker stopped, because the item that ran a task woken by
    /// another thread was never taken.
    #[test]
    fn an_insisted_item_is_taken_although_the_queue_stays_full() {
        let inbox = Inbox::new(64, Box::new(|| ()));
        let fill = || while inbox.submit(|_| ()).is_ok() {};
        fill();
        inbox.insist(|_| ());
        assert!(inbox.take().is_some());
        fill();
        assert!(inbox.more.is_empty(), "the insisted item was taken first");
    }
}
