//! What must hold when nothing is under way: everything that was taken has been given back.

use std::sync::atomic::Ordering;

use farm_core::worker::Worker;

use super::{Cluster, Stepped};

/// Steps that a cluster gets to come to rest.
const MOST_STEPS: u64 = 2_000_000;
/// A cluster is at rest when nothing has happened in so many steps.
const QUIET_STEPS: u32 = 200;

impl Cluster {
    /// Steps until nothing is under way any more, and looks whether everything was given back.
    ///
    /// # Errors
    /// When that does not come to an end, machines have stopped, or something was kept.
    pub fn come_to_rest(&self) -> Result<(), String> {
        self.come_to_rest_with(&|_| None)
    }

    /// As [`Cluster::come_to_rest`], with layers above that tell what they still have of operations.
    ///
    /// # Errors
    /// As [`Cluster::come_to_rest`], and what a layer has.
    pub fn come_to_rest_with(
        &self,
        left_over: &dyn Fn(&mut Worker) -> Option<String>,
    ) -> Result<(), String> {
        let left = |worker| self.inspect(worker, left_over);
        let is_left = || (0..self.workers()).find_map(left);
        let mut quiet = 0;
        for _ in 0..MOST_STEPS {
            let stepped = self.step();
            if stepped == Stepped::Stopped {
                return Err(format!("the cluster stopped: {:?}", self.failures()));
            }
            let at_rest = (0..self.workers())
                .all(|worker| self.inspect(worker, |worker| worker.check_at_rest().is_ok()));
            let (sent, received) = self.carried();
            let at_rest = at_rest && sent == received && is_left().is_none();
            quiet = if at_rest { quiet + 1 } else { 0 };
            let quiet_for_long = quiet > QUIET_STEPS || quiet > 0 && stepped == Stepped::Waited;
            if quiet_for_long && !self.fabric().step() {
                self.fabric().drain();
                return self.check_at_rest();
            }
        }
        self.check_at_rest()?;
        is_left().map_or(Ok(()), Err)?;
        Err("the cluster does not come to rest".into())
    }

    /// Bytes that all rings and logs have carried: sent, and received and given back.
    fn carried(&self) -> (u64, u64) {
        let all = (0..self.workers())
            .map(|worker| self.inspect(worker, |worker| worker.ring_bytes_carried()));
        all.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    /// Whether anything was kept that should have been given back, and whether every ring is empty and
    /// zero.
    ///
    /// # Errors
    /// What is not as it should be.
    pub fn check_at_rest(&self) -> Result<(), String> {
        for worker in 0..self.workers() {
            self.inspect(worker, |worker| worker.check_at_rest())
                .map_err(|leftover| leftover.to_string())?;
        }
        let (sent, received) = self.carried();
        if sent != received {
            return Err(format!(
                "{sent} bytes were sent over rings, and {received} received"
            ));
        }
        for machine in &self.parts.machines {
            for rings in &machine.rings {
                let word = |at: &usize| rings.load(*at, Ordering::Relaxed) != 0;
                if let Some(at) = (0..rings.len()).step_by(8).find(word) {
                    let id = machine.id;
                    return Err(format!(
                        "a ring of machine {id} is not zero at byte {at:#x}"
                    ));
                }
            }
        }
        Ok(())
    }
}
