//! Deliberate bugs of transaction contexts that take more than one expression.

use farm_core::mutants;
use farm_core::worker::Worker;

use super::reservation::AbortSteps;
use super::{Entries, Intent};
use crate::slots;

pub(super) enum Faulty {}

impl AbortSteps for Faulty {
    fn before_abort(worker: &mut Worker, entries: &Entries) {
        if !mutants::is_on("free takes effect on abort") {
            return;
        }
        for entry in entries.iter() {
            if entry.machine.is_none() && entry.intent == Intent::Free {
                slots::release_local(worker, entry.address, entry.class);
            }
        }
    }
}
