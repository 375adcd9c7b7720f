//! Work that threads outside bring to a worker.

use crossbeam_queue::{ArrayQueue, SegQueue};

use super::Worker;

type Item = Box<dyn FnOnce(&mut Worker) + Send>;

/// The queue through which threads outside reach a worker: bounded, without locks.
pub struct Inbox {
    items: ArrayQueue<Item>,
    /// What came while that was full, and could not wait.
    more: SegQueue<Item>,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl Inbox {
    /// A queue of at most `items`; `wake` wakes the worker.
    pub fn new(items: usize, wake: Box<dyn Fn() + Send + Sync>) -> Self {
        Self {
            items: ArrayQueue::new(items),
            more: SegQueue::new(),
            wake,
        }
    }

    /// Brings a work item; the worker runs it in one of its next turns. False if the queue is full.
    pub fn submit(&self, item: impl FnOnce(&mut Worker) + Send + 'static) -> bool {
        let taken = self.items.push(Box::new(item)).is_ok();
        (self.wake)();
        taken
    }

    /// As [`Inbox::submit`], full or not: for who brings one item at a time, and cannot wait until there is
    /// room.
    pub fn insist(&self, item: impl FnOnce(&mut Worker) + Send + 'static) {
        if let Err(item) = self.items.push(Box::new(item)) {
            self.more.push(item);
        }
        (self.wake)();
    }

    pub(crate) fn take(&self) -> Option<Item> {
        let item = self.items.pop();
        // Seldom: to find it empty by a pop would cost every idle turn a fence.
        if item.is_none() && !self.more.is_empty() {
            return self.more.pop();
        }
        item
    }
}
