//! Machines that give no sign of life, and those that the others go on without: see [`Eviction`](crate::fabric::Eviction).

use super::Worker;
use crate::fabric::Lease;
use crate::membership::configuration::Process;
use crate::{marks, mutants};

impl Worker {
    /// Handles what the fabric finds out about leases.
    pub(super) fn notice_leases(&mut self) {
        if self.members.driver.is_none() {
            return;
        }
        while let Some(lease) = self.endpoint.take_lease() {
            let Lease {
                machine,
                boot,
                has_expired,
            } = lease;
            match has_expired {
                true => {
                    tracing::warn!(%machine, "a machine does not answer: its lease has expired")
                }
                false => tracing::info!(%machine, "a machine answers again"),
            }
            let process = Process { machine, boot };
            self.drive(|value, out| value.on_lease(process, has_expired, out));
        }
    }

    /// Evicts the processes that are not in the newest configuration any more, and that may run.
    pub(super) fn evict(&mut self) {
        let Some(driver) = &mut self.members.driver else {
            return;
        };
        let (value, endpoint) = (&driver.value, &self.endpoint);
        let is_evicted =
            |one: &Process| value.has_evicted(*one) && endpoint.evict(one.machine, one.boot);
        let evicted = driver.may_live.extract_if(.., |one| is_evicted(one));
        for process in evicted.collect::<Vec<_>>() {
            marks::mark("membership: a process that may run is evicted");
            self.drive(|value, out| value.evicted(process, out));
        }
    }

    /// Returns whether other machines go on without this process: it must report nothing of what it has found out, and stops.
    #[inline]
    pub fn is_evicted(&mut self) -> bool {
        let has_happened = self.eviction.has_happened();
        self.stops_if(has_happened)
    }

    /// As [`Worker::is_evicted`], before the outcome of what this worker has written is reported.
    #[inline]
    pub fn is_evicted_after_writes(&mut self) -> bool {
        let has_happened = self.eviction.has_happened_after_stores();
        self.stops_if(has_happened)
    }

    #[inline]
    fn stops_if(&mut self, is_evicted: bool) -> bool {
        let stops = is_evicted && !mutants::is_on("evicted machine reports");
        if stops {
            self.stop_evicted();
        }
        stops
    }

    #[cold]
    fn stop_evicted(&mut self) {
        if !self.store.map().is_complete() {
            // It was joining, and has reported nothing.
            return self.joins_again();
        }
        marks::mark("membership: a machine finds that it is evicted");
        self.control.end_evicted(format!(
            "the other machines went on without machine {}, which they took for lost because it had not answered for the time of its \
             lease (durability.lease_ms): it was stopped, one of its workers hung, or the host is overloaded; start it again",
            self.me.machine
        ));
    }
}
