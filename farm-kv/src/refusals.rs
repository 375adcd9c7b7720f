//! How often a request is repeated that only the owner of a shard handles, when another worker has got it, and how long to wait before.

use std::time::Duration;

use farm_core::worker::Worker;

use crate::KvError;

/// Interval between tries, while another machine knows another configuration.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_micros(100);
/// Maximum number of workers that may refuse what only the owner of a shard does, before it fails. They take a second or more: as
/// long as a machine may take to change to a configuration that another one has.
const MOST_REFUSALS: u32 = 10_000;

/// The workers that did not do what only the owner of a shard does.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Refusals(u32);

impl Refusals {
    /// Returns how long to wait before the owner is looked up again and asked; `None` if `error` is final.
    ///
    /// A machine that is lost before it was asked is not the owner in the next configuration.
    pub(crate) fn next_wait(&mut self, worker: &Worker, error: &KvError) -> Option<Duration> {
        self.0 = match error {
            KvError::PeerLost(_) if worker.survives() => 0,
            KvError::Moved(_) if self.0 < MOST_REFUSALS => self.0 + 1,
            _ => return None,
        };
        Some(LOOK_AGAIN)
    }
}
