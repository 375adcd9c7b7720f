//! Checks after a run, when no operation is in flight any more: a worker checks the items of its share by tasks, some of them at a time.

use std::fmt::Debug;
use std::ops::AddAssign;

use farm_core::worker::Worker;
use farm_graph::GraphError;
use farm_txn::{Handle, TxError};

use crate::closed_loop::{self, Clients, ClosedLoop, Ran};
use crate::recorder::Outcome;

/// What was found. The results of all items and workers are added up.
pub trait Found: AddAssign + Default + Send + 'static {
    /// Returns the first error, if any.
    fn wrong(&mut self) -> &mut Option<String>;
}

/// The function that receives what a worker has found, on its thread.
pub type Done<R> = Box<dyn FnOnce(R) + Send>;

struct Auditor<I, C, R> {
    items: Box<dyn Iterator<Item = I> + Send>,
    check: C,
    found: R,
    done: Done<R>,
}

/// Checks all items, `in_flight` of them at a time. A check that fails ends it.
pub(crate) fn run<I, C, R>(
    worker: &mut Worker,
    items: impl Iterator<Item = I> + Send + 'static,
    in_flight: usize,
    check: C,
    done: Done<R>,
) where
    I: Copy + Debug + Send + 'static,
    C: AsyncFn(&Handle, I) -> Result<R, TxError> + Copy + Send + 'static,
    R: Found,
{
    let auditor = Auditor {
        items: Box::new(items),
        check,
        found: R::default(),
        done,
    };
    closed_loop::start_untimed(worker, auditor, in_flight, None);
}

impl<I, C, R> Clients for Auditor<I, C, R>
where
    I: Copy + Debug + Send + 'static,
    C: AsyncFn(&Handle, I) -> Result<R, TxError> + Copy + Send + 'static,
    R: Found,
{
    type Operation = I;
    type Costs = ();

    fn draw(&mut self, _: &mut Worker) -> Option<I> {
        self.items.next()
    }

    fn begin(own: &mut ClosedLoop<Self>, worker: &mut Worker, seat: usize) {
        let (item, check) = (*own.operation(seat), own.clients.check);
        let task = async move |farm: Handle| check(&farm, item).await;
        closed_loop::spawn(
            worker,
            task,
            move |own: &mut ClosedLoop<Self>, worker, checked| match checked {
                Ok(found) => {
                    own.clients.found += found;
                    own.finish(worker, seat, 0, Outcome::Committed);
                }
                Err(error) => {
                    let error = GraphError::from(error);
                    own.stop(seat, format!("cannot check {item:?}: {error}"));
                }
            },
        );
    }

    fn end(mut self, _: &mut Worker, ran: Ran) {
        if let Some(why) = ran.failure {
            self.found.wrong().get_or_insert(why);
        }
        (self.done)(self.found);
    }
}
