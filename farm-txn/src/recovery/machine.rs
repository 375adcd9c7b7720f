//! The recovery of one machine, as a value: messages go in, [`Step`]s come out.
//!
//! Each machine has three parts in it, and the transactions pass through them in this order:
//!
//! 1. As the owner of [evidence](Undecided) it reports every transaction to the primaries of all regions that the transaction wrote.
//! 2. As the primary of regions it waits for the reports of all machines. It fetches the values that it lacks, locks all objects that
//!    the transactions name, and lets the region be used. It gives the vote of the region and the values to all backups; when they
//!    have them, it votes. So such a vote never changes, whichever of them is lost next. Without values nothing is replicated: all
//!    replicas know alike that the transaction has ended, or that it cannot have been reported.
//! 3. The machine of a transaction's coordinator, or one that stands in for it, decides by the votes of all regions. It tells all
//!    backups, and when they know, all primaries. A primary unlocks an object when all transactions with it are decided.
//!
//! If another machine is lost meanwhile, all begin again in the next configuration, with what they [know](Recovery::into_undecided) by
//! then.

mod decider;
mod primary;

use std::collections::{BTreeMap, BTreeSet};

use farm_core::ids::{Address, MachineId, RegionId};
use farm_core::mutants;
use farm_core::region::map::Replicas;

use super::message::{Found, Message, Step, To};
use super::undecided::{InRegion, LowBounds, Undecided};
use super::{Decision, Evidence, Vote};
use crate::record::TxId;
use decider::Deciding;
use primary::{Held, Reported};

/// The members of a configuration and the replicas of all regions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roles {
    /// This machine.
    pub me: MachineId,
    /// All machines, in ascending order.
    pub members: Vec<MachineId>,
    /// The replicas of every region, which are all members.
    pub regions: BTreeMap<RegionId, Replicas>,
}

impl Roles {
    fn is_primary(&self, region: RegionId) -> bool {
        self.primary(region) == Some(self.me)
    }

    fn primary(&self, region: RegionId) -> Option<MachineId> {
        self.regions.get(&region).map(Replicas::primary)
    }

    fn backups(&self, region: RegionId) -> &[MachineId] {
        self.regions.get(&region).map_or(&[], Replicas::backups)
    }

    /// Returns the machine that decides a transaction: that of its coordinator, or one that all machines choose alike.
    fn decider(&self, id: TxId) -> MachineId {
        let own = id.coordinator.machine;
        if self.members.contains(&own) {
            return own;
        }
        let bits = u64::from(id.coordinator.to_bits()) ^ id.sequence ^ id.configuration << 32;
        let place = xxhash_rust::xxh3::xxh3_64(&bits.to_le_bytes()) % self.members.len() as u64;
        self.members[place as usize]
    }

    /// Returns the machines that a decision is for.
    fn to(&self, to: To, regions: &BTreeSet<RegionId>) -> BTreeSet<MachineId> {
        let regions = regions.iter();
        match to {
            To::Backups => regions
                .flat_map(|region| self.backups(*region))
                .copied()
                .collect(),
            To::Primaries => regions.filter_map(|region| self.primary(*region)).collect(),
        }
    }
}

/// A message that no machine sends which follows the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message of recovery is not expected: {what} of transaction {} of {}", id.sequence, id.coordinator)]
pub struct Unexpected {
    what: &'static str,
    id: TxId,
}

/// The recovery of one machine.
#[derive(Clone, Debug)]
pub struct Recovery {
    roles: Roles,
    /// What this machine knows.
    known: Undecided,
    /// Machines that have reported what they have found.
    reported_by: BTreeSet<MachineId>,
    low: LowBounds,
    reported: BTreeMap<TxId, Reported>,
    /// Number of bodies that were asked for, by region.
    fetching: BTreeMap<RegionId, usize>,
    held: BTreeMap<Address, Held>,
    deciding: BTreeMap<TxId, Deciding>,
    /// Number of [`Voting`]s that are not decided.
    undecided: usize,
    /// Transactions of workers of this machine that it knew when recovery began, and that are not decided.
    own: BTreeSet<TxId>,
    /// Whether [`Step::Recovered`] has come out.
    recovered: bool,
}

impl Recovery {
    /// Begins the recovery of a machine, from what it knows of all transactions of earlier configurations. The first steps are added to
    /// `out`.
    pub fn begin(roles: Roles, known: Undecided, out: &mut Vec<Step>) -> Self {
        for to in &roles.members {
            let is_its = |region: &RegionId| roles.primary(*region) == Some(*to);
            let all = known.all();
            let its = all.filter(|(_, known)| known.regions.iter().any(is_its));
            let found = its.map(|(id, known)| {
                let of = known.of.iter().filter(|(region, _)| is_its(region));
                let of = of.map(|(region, one)| (*region, one.evidence, one.body.is_some()));
                Found {
                    id,
                    regions: known.regions.clone(),
                    of: of.collect(),
                }
            });
            let found = Message::Found(found.collect(), known.low().clone());
            out.push(Step::Send(*to, found));
        }
        let all = known.all().filter(|(_, known)| !known.regions.is_empty());
        let own = all.map(|(id, _)| id);
        let own = own
            .filter(|id| id.coordinator.machine == roles.me)
            .collect();
        Self {
            roles,
            own,
            known,
            reported_by: BTreeSet::new(),
            low: LowBounds::default(),
            reported: BTreeMap::new(),
            fetching: BTreeMap::new(),
            held: BTreeMap::new(),
            deciding: BTreeMap::new(),
            undecided: 0,
            recovered: false,
        }
    }

    /// Returns what this machine knows now, for the recovery in the next configuration.
    pub fn into_undecided(self) -> Undecided {
        self.known
    }

    /// Handles a message from a machine of the same configuration, and adds the next steps to `out`.
    ///
    /// # Errors
    /// [`Unexpected`]: the sender does not follow the protocol. What this machine knows may now be wrong: it must stop. The caller must
    /// not pass messages of other configurations, or of machines that are no members.
    pub fn on_message(
        &mut self,
        from: MachineId,
        message: Message,
        out: &mut Vec<Step>,
    ) -> Result<(), Unexpected> {
        match message {
            Message::Found(found, low) => self.on_found(from, found, low, out),
            Message::Fetch(id, region) => self.on_fetch(from, (id, region), out)?,
            Message::Fetched(id, region, body) => self.on_fetched((id, region), body, out)?,
            Message::Replicate(id, region, vote, body) => {
                let told = InRegion {
                    evidence: Evidence::of_vote(carried(vote)),
                    body: Some(body),
                };
                self.known.tell(id, region, told);
                out.push(Step::Send(from, Message::Replicated(id, region)));
            }
            Message::Replicated(id, region) => self.on_replicated((id, region), out)?,
            Message::Vote(id, region, vote, regions) => {
                self.on_vote((id, region), vote, &regions, out)?;
            }
            Message::Decide(id, to, decision, regions) => {
                self.on_decide(id, to, decision, &regions, out)?;
                out.push(Step::Send(from, Message::Decided(id, to)));
            }
            Message::Decided(id, to) => self.on_decided(from, (id, to), out)?,
        }
        Ok(())
    }

    fn on_decide(
        &mut self,
        id: TxId,
        to: To,
        decision: Decision,
        regions: &BTreeSet<RegionId>,
        out: &mut Vec<Step>,
    ) -> Result<(), Unexpected> {
        for region in regions {
            let is_for_us = match to {
                To::Backups => self.roles.backups(*region).contains(&self.roles.me),
                To::Primaries => self.roles.is_primary(*region),
            };
            if !is_for_us {
                continue;
            }
            self.known.add_tx(id, regions.iter().copied());
            let told = InRegion {
                evidence: Evidence::of_decision(decision),
                body: None,
            };
            self.known.tell(id, *region, told);
            match to {
                To::Backups => {
                    let known = self.known.in_region(id, *region);
                    let body = known.and_then(|known| known.body.clone());
                    if let Some(body) = body.filter(|_| decision == Decision::Commit) {
                        out.push(Step::Apply(*region, body));
                    }
                }
                To::Primaries => self.end((id, *region), decision, out)?,
            }
        }
        self.end_if_recovered(out);
        Ok(())
    }

    fn end_if_recovered(&mut self, out: &mut Vec<Step>) {
        let all_found = self.reported_by.len() == self.roles.members.len();
        let is_done = all_found && self.undecided == 0 && self.own.is_empty();
        if is_done && !std::mem::replace(&mut self.recovered, true) {
            out.push(Step::Recovered);
        }
    }
}

/// Returns the vote that a backup stores. Only deliberate bugs make it another one than that which the primary sent.
fn carried(vote: Vote) -> Vote {
    match vote {
        _ if mutants::is_on("kind 9 votes lock") => Vote::Lock,
        Vote::CommitPrimary | Vote::Abort
            if mutants::is_on("kind 9 votes at most commit-backup") =>
        {
            Vote::CommitBackup
        }
        vote => vote,
    }
}
