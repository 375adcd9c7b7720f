//! Recovery at the machine that decides a transaction: that of its coordinator, or one that stands in for it.

use std::collections::{BTreeMap, BTreeSet};

use farm_core::ids::{MachineId, RegionId};
use farm_core::marks;

use super::{Checked, Recovery, check};
use crate::record::TxId;
use crate::recovery::message::{Message, Step, To};
use crate::recovery::{Decision, Vote};

/// A transaction that this machine decides.
#[derive(Clone, Debug)]
pub(super) struct Deciding {
    regions: BTreeSet<RegionId>,
    votes: BTreeMap<RegionId, Vote>,
    /// The decision, whom it is being told to, and the machines that have not answered.
    decided: Option<(Decision, To, BTreeSet<MachineId>)>,
}

impl Recovery {
    pub(super) fn on_vote(
        &mut self,
        from: MachineId,
        (id, region): (TxId, RegionId),
        vote: Vote,
        regions: BTreeSet<RegionId>,
        out: &mut Vec<Step>,
    ) -> Checked {
        let is_its = regions.contains(&region) && self.roles.primary(region) == Some(from);
        check(is_its, "a vote of a machine that has none")?;
        check(
            self.roles.decider(id) == self.roles.me,
            "a vote on a transaction that another machine decides",
        )?;
        let before = self.deciding.get(&id);
        check(
            before.is_none_or(|one| one.regions == regions && !one.votes.contains_key(&region)),
            "a second vote of a region, or regions that another vote does not name",
        )?;
        let deciding = self.deciding.entry(id).or_insert_with(|| Deciding {
            regions,
            votes: BTreeMap::new(),
            decided: None,
        });
        deciding.votes.insert(region, vote);
        if deciding.votes.len() < deciding.regions.len() {
            return Ok(());
        }
        let decision = Decision::of(deciding.votes.values().copied());
        marks::mark(match decision {
            Decision::Commit => "recovery: a transaction is committed",
            Decision::Abort => "recovery: a transaction is aborted",
        });
        self.tell(id, decision, To::Backups, out);
        Ok(())
    }

    /// Sends the decision to the backups or the primaries; if there are no backups, to the primaries.
    fn tell(&mut self, id: TxId, decision: Decision, to: To, out: &mut Vec<Step>) {
        let Some(deciding) = self.deciding.get_mut(&id) else {
            return;
        };
        let machines = self.roles.to(to, &deciding.regions);
        if machines.is_empty() && to == To::Backups {
            return self.tell(id, decision, To::Primaries, out);
        }
        for machine in &machines {
            let decide = Message::Decide(id, to, decision, deciding.regions.clone());
            out.push(Step::Send(*machine, decide));
        }
        deciding.decided = Some((decision, to, machines));
    }

    pub(super) fn on_decided(
        &mut self,
        from: MachineId,
        (id, to): (TxId, To),
        out: &mut Vec<Step>,
    ) -> Checked {
        // The machine that answers may have recovered by what it was told, and its answer is the last to arrive.
        if self.all_recovered {
            return Ok(());
        }
        let deciding = self.deciding.get_mut(&id);
        let decided = deciding.and_then(|one| one.decided.as_mut());
        let told =
            decided.filter(|(_, telling, waiting)| *telling == to && waiting.contains(&from));
        let (decision, _, waiting) = told.ok_or("an answer to a decision that was not told")?;
        waiting.remove(&from);
        if !waiting.is_empty() {
            return Ok(());
        }
        let decision = *decision;
        match to {
            To::Backups => self.tell(id, decision, To::Primaries, out),
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
