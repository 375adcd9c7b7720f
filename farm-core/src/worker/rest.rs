//! Leak check of a worker while no operation is in flight.

use super::Worker;

/// A resource that a worker still holds although no operation is in flight: a leak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("leak on worker {worker}: {count} {what}, although every operation should have ended")]
pub struct Leftover {
    /// Worker that holds the resource.
    pub worker: crate::ids::WorkerRef,
    /// Kind of the resource.
    pub what: &'static str,
    /// Number of units held.
    pub count: u64,
}

impl Worker {
    /// Checks that everything that operations took has been returned. Call it when no operation is in flight in the
    /// whole cluster.
    ///
    /// # Errors
    /// The first [`Leftover`].
    pub fn check_at_rest(&mut self) -> Result<(), Leftover> {
        let held = [
            ("slots of the arena taken", self.arena().taken() as u64),
            ("operations outstanding", self.endpoint.outstanding() as u64),
            (
                "calls without a reply",
                self.messaging.calls_in_flight() as u64,
            ),
            ("bytes of replies reserved", self.messaging.reserved_bytes()),
            ("bytes of logs reserved", self.logs.reserved_bytes()),
            ("writes not acknowledged", self.logs.unacknowledged() as u64),
            (
                "replies that wait for room",
                u64::from(self.messaging.is_waiting()),
            ),
            ("long messages to be sent", self.long.unsent() as u64),
            ("reads that back off", self.reads.backing_off() as u64),
            ("local reads to be copied", u64::from(!self.reads.is_idle())),
            (
                "failed reads to be reported",
                self.failed_reads.len() as u64,
            ),
            (
                "reads that wait for a region",
                self.region_waits.len() as u64,
            ),
            ("regions being recorded", self.recorder.unfinished() as u64),
            ("replicas being filled", u64::from(self.fill.is_some())),
            ("full replicas not recorded", self.filled as u64),
            (
                "regions of lost machines that are being adopted",
                u64::from(self.store.is_adopting()),
            ),
            (
                "changes of the configuration begun",
                u64::from(self.extending.is_under_way()),
            ),
            (
                "continuations that wait for room",
                self.room.waiting() as u64,
            ),
            (
                "reads that wait for room of the endpoint",
                self.unposted.len() as u64,
            ),
            ("continuations deferred", self.deferred.len() as u64),
            ("operations that have not ended", self.epochs.open()),
            (
                "epoch changes that have not ended",
                self.epochs.unanswered() as u64,
            ),
        ];
        match held.into_iter().find(|(_, count)| *count > 0) {
            None => Ok(()),
            Some((what, count)) => Err(Leftover {
                worker: self.me,
                what,
                count,
            }),
        }
    }

    /// Returns the bytes that this worker sent through its rings and logs, and the bytes that it received and freed.
    /// While no operation is in flight in the cluster, the sums of the two over all workers are equal.
    pub fn ring_bytes_carried(&self) -> (u64, u64) {
        let (messages, logs) = (self.messaging.carried(), self.logs.carried());
        (messages.0 + logs.0, messages.1 + logs.1)
    }
}
