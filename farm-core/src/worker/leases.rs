//! Machines that give no sign of life, and those that the others go on without: see [`Eviction`](crate::fabric::Eviction).

use super::join::CONFIGURATION_CHANGED;
use super::{Cont, Worker};
use crate::fabric::{Lease, Standing};
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
            |one: &Process| value.is_to_be_evicted(*one) && endpoint.evict(one.machine, one.boot);
        let evicted = driver.may_live.extract_if(.., |one| is_evicted(one));
        for process in evicted.collect::<Vec<_>>() {
            marks::mark("membership: a process that may run is evicted");
            self.drive(|value, out| value.evicted(process, out));
        }
    }

    /// Tells the fabric who takes part in leases by time, if that has changed.
    pub(super) fn renew_lease_terms(&mut self) {
        if !self.endpoint.capabilities().leases_by_time {
            return;
        }
        if let Some(driver) = &mut self.members.driver {
            let terms = driver.value.lease_terms();
            if driver.terms != terms {
                driver.terms = terms.clone();
                self.endpoint.set_lease_terms(terms);
            }
        }
    }

    /// Returns whether no machine that the newest configuration does not have holds a lease by time that this one has granted.
    pub(super) fn have_leases_ended(&self) -> bool {
        let value = self.members.driver.as_ref().map(|driver| &driver.value);
        let mut left = value.into_iter().flat_map(|value| value.expiring());
        let have_ended = left.all(|one| !self.endpoint.may_hold_a_lease(one.machine, one.boot));
        have_ended || mutants::is_on("evicted machine not awaited")
    }

    /// Returns whether this process may report what it has found out. If not, the other machines go on without it, and it stops; or it
    /// must wait until its lease is renewed: see [`Worker::hold`].
    #[inline]
    pub fn may_report(&mut self) -> bool {
        match self.eviction.standing() {
            Standing::Good => true,
            standing => self.reports_in(standing),
        }
    }

    /// As [`Worker::may_report`], for the outcome of what this worker has written.
    #[inline]
    pub fn may_report_after_writes(&mut self) -> bool {
        match self.eviction.standing_after_stores() {
            Standing::Good => true,
            standing => self.reports_in(standing),
        }
    }

    #[cold]
    fn reports_in(&mut self, standing: Standing) -> bool {
        match standing {
            Standing::Good => true,
            Standing::Waits => {
                marks::mark("membership: a result waits for the lease");
                mutants::is_on("end of the lease not looked at")
            }
            Standing::Evicted if mutants::is_on("evicted machine reports") => true,
            Standing::Evicted => {
                self.stop_evicted();
                false
            }
        }
    }

    /// Has a continuation called when this process [may report](Worker::may_report) again.
    pub fn hold(&mut self, cont: Cont<()>) {
        self.held.push(cont);
    }

    /// Calls the continuations that were [held](Worker::hold), if this process may report. Stops the machine if the others go on without it.
    pub(super) fn go_on_reporting(&mut self) {
        match self.eviction.standing() {
            Standing::Good => {}
            Standing::Waits => return,
            Standing::Evicted => {
                if !self.reports_in(Standing::Evicted) {
                    return;
                }
            }
        }
        if !self.held.is_empty() {
            marks::mark("membership: results are reported when the lease is renewed");
            // Each is called from the event loop.
            self.deferred.extend(self.held.drain(..));
        }
    }

    /// Returns whether results wait until this process may report.
    pub(super) fn waits_to_report(&self) -> bool {
        self.eviction.standing() == Standing::Waits
    }

    #[cold]
    fn stop_evicted(&mut self) {
        if !self.store.map().is_complete() {
            // It was joining, and has reported nothing.
            return self.joins_again(CONFIGURATION_CHANGED);
        }
        marks::mark("membership: a machine finds that it is evicted");
        self.control.end_evicted(format!(
            "the other machines went on without machine {}, which they took for lost because it had not answered for the time of its \
             lease (durability.lease_ms): it was stopped, one of its workers hung, or the host is overloaded; start it again",
            self.me.machine
        ));
    }
}
