//! The event loop, as one function.

use super::Worker;
use super::reads::Polled;
use crate::messaging::{Garbage, Taken};
use crate::messaging::{MessageId, Request};
use crate::time::Nanos;

/// Maximum number of reads whose completions are taken in one turn: enough to overlap their cache misses, few enough that
/// messages wait for microseconds only.
const MOST_READS: usize = 32;
/// Maximum number of all completions taken in one turn. Those of writes are acknowledgements without a cache miss.
const MOST_COMPLETIONS: usize = 256;
/// Maximum number of completions taken from the fabric in one poll.
const CHUNK: usize = 16;
/// Maximum number of work items taken from the inbox in one turn.
const MOST_ITEMS: usize = 16;

impl Worker {
    /// Executes one turn of the event loop, at time `now`. Returns whether the turn did any work; if so, the next turn
    /// should follow at once.
    ///
    /// The steps follow the path of a request: timers, work items, rings, completions, then the reads and continuations
    /// that wait for the room that these steps made, and last the doorbells for everything that was posted. Each step
    /// is bounded: the work that it starts is handled by a later turn. After records that were handed over have filled the
    /// ring of another worker, the continuations that wait for room come before the rings, until they have sent as many.
    pub fn turn(&mut self, now: Nanos) -> bool {
        self.now = now;
        let mut busy = self.run_timers();
        busy |= self.run_items();
        busy |= self.messaging.is_waiting() && self.messaging.send_deferred(&mut self.endpoint);
        let waiters_go_first = self.waiters_go_first();
        if waiters_go_first {
            self.retry_for_room(true);
        }
        let rings = self.poll_rings() | self.poll_logs();
        let completed = self.poll_completions();
        busy |= rings | completed;
        busy |= self.poll_local_reads(MOST_READS) > 0;
        if !waiters_go_first {
            self.retry_for_room(rings | completed);
        }
        busy |= self.serve_writers();
        busy |= self.post_unposted();
        busy |= self.serve_slot_waiters();
        busy |= self.end_failed_reads();
        busy |= self.run_deferred();
        self.endpoint.flush();
        self.notice_departures();
        self.notice_leases();
        self.go_on_reporting();
        // A departure may have failed reads. The next turn calls their continuations.
        busy || !self.deferred.is_empty() || self.has_failed_reads()
    }

    /// Returns when the next timer is due, or `None` if no timer is set.
    pub fn next_timer(&self) -> Option<Nanos> {
        self.timers.next()
    }

    /// Returns whether the worker must keep polling: a request that is in flight, or that waits for room, may be able
    /// to proceed although the worker gets no notification.
    pub fn must_poll(&self) -> bool {
        self.endpoint.outstanding() > 0
            || !self.reads.is_idle()
            || !self.deferred.is_empty()
            || self.has_failed_reads()
            || self.messaging.must_poll()
            || self.logs.must_poll()
            || self.room.waiting() > 0
            || self.unposted.len() > 0
    }

    /// Takes completions from the fabric, a chunk at a time. Their continuations run and post before the next chunk is
    /// taken, so that cache misses overlap with the work on earlier completions.
    #[inline]
    fn poll_completions(&mut self) -> bool {
        if self.endpoint.outstanding() == 0 {
            // Only the report of a broken connection can have arrived.
            return self.poll_fabric(CHUNK, &mut Nanos::default()).all > 0;
        }
        let mut looked = self.clock.now();
        let mut taken = Polled::default();
        while taken.reads < MOST_READS && taken.all < MOST_COMPLETIONS {
            let polled = self.poll_fabric(CHUNK, &mut looked);
            taken.all += polled.all;
            taken.reads += polled.reads;
            if polled.all < CHUNK {
                break;
            }
        }
        taken.all > 0
    }

    fn run_timers(&mut self) -> bool {
        let mut ran = false;
        // A timer that is set from now on does not run in this turn, even if it is due: otherwise a task that sleeps
        // for zero time would keep the turn from ending.
        let until = self.timers.last_set();
        while let Some(cont) = self.timers.take_due(self.now, until) {
            cont.resume(self, ());
            ran = true;
        }
        ran
    }

    fn run_items(&mut self) -> bool {
        let mut connected = false;
        while let Some(item) = self.inbox.take_link() {
            item(self);
            connected = true;
        }
        // Until the machine has joined the cluster, what programs ask for waits.
        if !self.store.map().is_complete() {
            return connected;
        }
        for taken in 0..MOST_ITEMS {
            let Some(item) = self.inbox.take() else {
                return connected || taken > 0;
            };
            item(self);
        }
        true
    }

    fn run_deferred(&mut self) -> bool {
        let count = self.deferred.len();
        for _ in 0..count {
            let Some(cont) = self.deferred.pop_front() else {
                break;
            };
            cont.resume(self, ());
        }
        count > 0
    }

    fn poll_rings(&mut self) -> bool {
        let mut busy = false;
        let mut body = std::mem::take(&mut self.message_body);
        for ring in self.messaging.begin_poll(self.now) {
            for _ in 0..self.messaging.burst() {
                match self.messaging.take(ring, &mut self.endpoint, &mut body) {
                    Ok(Taken::Nothing) => break,
                    Ok(Taken::HandedOver | Taken::Stale) => {}
                    Ok(Taken::Message(id, request)) => self.handle(id, request, &body),
                    Ok(Taken::Reply(cont)) => cont.resume(self, Ok(&body)),
                    Err(Garbage { machine, why }) => {
                        self.cut_off(machine, why);
                        break;
                    }
                }
                busy = true;
            }
        }
        self.message_body = body;
        self.owe_waiters();
        busy
    }

    fn handle(&mut self, id: MessageId, request: Request, body: &[u8]) {
        match self.handlers.get(id.0 as usize).copied().flatten() {
            Some(handler) => handler(self, request, body),
            None => self.cut_off(
                request.from.machine,
                format!(
                    "{} sent a message with the id {}, for which no handler is registered",
                    request.from, id.0
                ),
            ),
        }
    }
}
