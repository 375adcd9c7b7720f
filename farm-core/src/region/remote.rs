//! Capabilities of other machines' regions, fetched once for all workers of a machine (`FaRM'14 §3.3`).
//!
//! The first worker that needs a capability calls the region's primary; other workers that need it meanwhile wait until
//! that worker notifies them. Otherwise a cluster of 100 machines of 30 workers would make 30 times as many calls, all
//! of them to the first worker of each machine.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::fabric::Capability;
use crate::ids::{RegionId, WorkerId};

/// What a worker that needs a capability must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Use this capability.
    Use(Capability),
    /// Call the primary, and report the end of the call to [`RemoteRegions::fetched`].
    Call,
    /// Wait for the worker that calls.
    Wait,
}

enum State {
    Known(Capability),
    Called { waiting: Vec<WorkerId> },
}

/// The capabilities that a machine knows, shared by its workers.
#[derive(Default)]
pub(crate) struct RemoteRegions(Mutex<BTreeMap<RegionId, State>>);

impl RemoteRegions {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<RegionId, State>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what `worker`, which needs the capability of a region, must do.
    pub(crate) fn need(&self, region: RegionId, worker: WorkerId) -> Need {
        let mut regions = self.lock();
        match regions.get_mut(&region) {
            Some(State::Known(capability)) => Need::Use(*capability),
            Some(State::Called { waiting }) => {
                waiting.push(worker);
                Need::Wait
            }
            None => {
                let waiting = Vec::new();
                regions.insert(region, State::Called { waiting });
                Need::Call
            }
        }
    }

    /// Records the end of a call, without a capability if it failed. Returns the workers to notify, each of which must
    /// call [`RemoteRegions::need`] again.
    pub(crate) fn fetched(
        &self,
        region: RegionId,
        capability: Option<Capability>,
    ) -> Vec<WorkerId> {
        let mut regions = self.lock();
        let before = match capability {
            Some(capability) => regions.insert(region, State::Known(capability)),
            None => regions.remove(&region),
        };
        match before {
            Some(State::Called { waiting }) => waiting,
            _ => Vec::new(),
        }
    }

    /// Removes the capabilities of machines that are not members any more.
    pub(crate) fn keep(&self, is_member: impl Fn(crate::ids::MachineId) -> bool) {
        let is_kept = |state: &State| match state {
            State::Known(capability) => is_member(capability.machine),
            State::Called { .. } => true,
        };
        self.lock().retain(|_, state| is_kept(state));
    }

    /// Removes a capability that is no longer valid, because its machine has restarted.
    pub(crate) fn forget(&self, region: RegionId) {
        let mut regions = self.lock();
        if let Some(State::Known(_)) = regions.get(&region) {
            regions.remove(&region);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::MachineId;

    #[test]
    fn one_worker_calls_and_the_others_wait() {
        let regions = RemoteRegions::default();
        let region = RegionId::from_bits(7).unwrap();
        let [a, b, c] = [0, 1, 2].map(|index| WorkerId::new(index).unwrap());
        let capability = Capability {
            machine: MachineId::new(2).unwrap(),
            boot: 1,
            key: 2,
            bytes: 3,
            writable: false,
        };
        assert_eq!(regions.need(region, a), Need::Call);
        assert_eq!([b, c].map(|w| regions.need(region, w)), [Need::Wait; 2]);
        // The call fails: each worker asks again, and the first of them calls.
        assert_eq!(regions.fetched(region, None), [b, c]);
        assert_eq!(regions.need(region, c), Need::Call);
        assert_eq!(regions.need(region, b), Need::Wait);
        assert_eq!(regions.fetched(region, Some(capability)), [b]);
        assert_eq!(regions.need(region, b), Need::Use(capability));
        regions.forget(region);
        assert_eq!(regions.need(region, a), Need::Call);
    }
}
