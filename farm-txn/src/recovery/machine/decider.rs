//! Recovery at the machine that decides a transaction: that of its coordinator, or one that stands in for it.

use std::collections::{BTreeMap, BTreeSet};

use farm_core::ids::{MachineId, RegionId};
use farm_core::marks;

use super::{Recovery, Unexpected};
use crate::record::TxId;
use crate::recovery::message::{Message, Step, To};
use crate::recovery::{Decision, Vote};

/// A transaction that this machine decides.
#[derive(Clone, Debug, Default)]
pub(super) struct Deciding {
    votes: BTreeMap<RegionId, Vote>,
    decision: Option<Decision>,
    /// Machines that have not answered.
    waiting: BTreeSet<MachineId>,
}

impl Recovery {
    pub(super) fn on_vote(
        &mut self,
        (id, region): (TxId, RegionId),
        vote: Vote,
        regions: &BTreeSet<RegionId>,
        out: &mut Vec<Step>,
    ) -> Result<(), Unexpected> {
        let deciding = self.deciding.entry(id).or_default();
        if !regions.contains(&region) || deciding.votes.contains_key(&region) {
            let what = "vote of a region that has voted, or that the transaction has not written";
            return Err(Unexpected { what, id });
        }
        deciding.votes.insert(region, vote);
        if deciding.votes.len() < regions.len() {
            return Ok(());
        }
        let decision = Decision::of(deciding.votes.values().copied());
        marks::mark(match decision {
            Decision::Commit => "recovery: a transaction is committed",
            Decision::Abort => "recovery: a transaction is aborted",
        });
        deciding.decision = Some(decision);
        self.tell(id, To::Backups, out);
        Ok(())
    }

    /// Sends the decision to the backups or the primaries; if there are no backups, to the primaries.
    fn tell(&mut self, id: TxId, to: To, out: &mut Vec<Step>) {
        let Some(deciding) = self.deciding.get_mut(&id) else {
            return;
        };
        let regions: BTreeSet<RegionId> = deciding.votes.keys().copied().collect();
        deciding.waiting = self.roles.to(to, &regions);
        let decision = deciding
            .decision
            .expect("a transaction is decided before machines are told");
        if deciding.waiting.is_empty() && to == To::Backups {
            return self.tell(id, To::Primaries, out);
        }
        for machine in &deciding.waiting {
            let decide = Message::Decide(id, to, decision, regions.clone());
            out.push(Step::Send(*machine, decide));
        }
    }

    pub(super) fn on_decided(
        &mut self,
        from: MachineId,
        (id, to): (TxId, To),
        out: &mut Vec<Step>,
    ) -> Result<(), Unexpected> {
        let deciding = self.deciding.get_mut(&id);
        let waits = deciding.is_some_and(|deciding| deciding.waiting.remove(&from));
        if !waits {
            let what = "answer to a decision";
            return Err(Unexpected { what, id });
        }
        let deciding = &self.deciding[&id];
        let Some(decision) = deciding.decision.filter(|_| deciding.waiting.is_empty()) else {
            return Ok(());
        };
        match to {
            To::Backups => self.tell(id, To::Primaries, out),
            To::Primaries => {
                if self.own.remove(&id) {
                    out.push(Step::Outcome(id, decision));
                    self.end_if_recovered(out);
                }
            }
        }
        Ok(())
    }
}
