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
//! If another machine is lost meanwhile, all begin again in the [next](Recovery::next) configuration, with what they know by then.
//! They do not begin at the same moment.

mod decider;
mod primary;

use std::collections::{BTreeMap, BTreeSet};

use farm_core::ids::{Address, MachineId, RegionId};
use farm_core::region::map::Replicas;
use farm_core::{marks, mutants};

use super::message::{Found, Message, Step, To};
use super::undecided::{Body, InRegion, LowBounds, Told, Undecided};
use super::{Decision, Evidence, Vote};
use crate::record::TxId;
use decider::Deciding;
use primary::{Held, Reported};

/// The members of a configuration and the replicas of all regions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roles {
    /// The configuration. Transactions of earlier ones are recovered.
    pub configuration: u64,
    /// All transactions of configurations below are decided, and applied on all replicas.
    pub recovered: u64,
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

    /// Returns whether the configuration has all of these regions.
    fn has_all(&self, mut regions: impl Iterator<Item = RegionId>) -> bool {
        regions.all(|region| self.regions.contains_key(&region))
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

/// Why recovery cannot go on: no machine sends or keeps this which follows the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("recovery cannot go on, because of what {from} has sent or kept{}: {what}", about(*id))]
pub struct Unexpected {
    from: MachineId,
    what: &'static str,
    id: Option<TxId>,
}

fn about(id: Option<TxId>) -> String {
    id.map_or_else(String::new, |id| {
        let (sequence, coordinator) = (id.sequence, id.coordinator);
        format!(" about transaction {sequence} of {coordinator}")
    })
}

/// What is wrong with a message, if something is. It has had no effect then.
type Checked = Result<(), &'static str>;

/// Returns an error unless the condition holds.
fn check(holds: bool, what: &'static str) -> Checked {
    holds.then_some(()).ok_or(what)
}

/// The recovery of one machine.
#[derive(Clone, Debug)]
pub struct Recovery {
    roles: Roles,
    /// What this machine knows.
    known: Undecided,
    /// Messages of configurations that this machine has not begun.
    early: Vec<(MachineId, u64, Message)>,
    /// Machines that have reported what they have found.
    reported_by: BTreeSet<MachineId>,
    low: LowBounds,
    reported: BTreeMap<TxId, Reported>,
    /// Number of bodies that were asked for, by region.
    fetching: BTreeMap<RegionId, usize>,
    held: BTreeMap<Address, Held>,
    deciding: BTreeMap<TxId, Deciding>,
    /// Number of [`Voting`](primary::Voting)s that are not decided.
    undecided: usize,
    /// Transactions of workers of this machine that it knew when recovery began, and that are not decided.
    own: BTreeSet<TxId>,
    /// Whether [`Step::Recovered`] has come out.
    recovered: bool,
    /// Whether all machines have recovered.
    all_recovered: bool,
}

impl Recovery {
    /// Begins the recovery of a machine, from what it knows of transactions of earlier configurations. The first steps are added to
    /// `out`.
    ///
    /// # Errors
    /// [`Unexpected`] if it knows a transaction that wrote a region which the configuration does not have.
    pub fn begin(
        roles: Roles,
        mut known: Undecided,
        out: &mut Vec<Step>,
    ) -> Result<Self, Unexpected> {
        match mutants::is_on("evidence dropped early") {
            true => known.forget_below(roles.configuration - 1),
            false => known.forget_below(roles.recovered),
        }
        for (id, known) in known.all() {
            let has_all = roles.has_all(known.regions.iter().copied());
            check(has_all, UNKNOWN_REGION).map_err(|what| Unexpected {
                from: roles.me,
                what,
                id: Some(id),
            })?;
        }
        report(&roles, &known, out);
        let all = known.all().filter(|(_, known)| !known.regions.is_empty());
        let own = all.map(|(id, _)| id);
        let own = own
            .filter(|id| id.coordinator.machine == roles.me)
            .collect();
        Ok(Self {
            roles,
            own,
            known,
            early: Vec::new(),
            reported_by: BTreeSet::new(),
            low: LowBounds::default(),
            reported: BTreeMap::new(),
            fetching: BTreeMap::new(),
            held: BTreeMap::new(),
            deciding: BTreeMap::new(),
            undecided: 0,
            recovered: false,
            all_recovered: false,
        })
    }

    /// Begins again in a later configuration. `gather` gets what this machine knows by now, and adds what it has found since: in its
    /// logs, and of its own workers' transactions.
    ///
    /// # Errors
    /// [`Unexpected`], as [`Recovery::begin`] and [`Recovery::on_message`].
    pub fn next(
        self,
        roles: Roles,
        gather: impl FnOnce(Undecided) -> Undecided,
        out: &mut Vec<Step>,
    ) -> Result<Self, Unexpected> {
        let mut next = Self::begin(roles, gather(self.known), out)?;
        for (from, configuration, message) in self.early {
            next.on_message(from, configuration, message, out)?;
        }
        Ok(next)
    }

    /// Returns the configuration that this machine has begun.
    pub fn configuration(&self) -> u64 {
        self.roles.configuration
    }

    /// Returns whether all machines have recovered in it.
    pub fn is_forgotten(&self) -> bool {
        self.all_recovered
    }

    /// Takes what this machine was told since this was called last. It must be kept before the steps are done.
    pub(crate) fn take_told(&mut self) -> Vec<Told> {
        self.known.take_told()
    }

    /// Returns what this machine knows now.
    pub fn known(&self) -> &Undecided {
        &self.known
    }

    /// All machines have recovered in this configuration: what was decided need not be known any more.
    pub fn forget(&mut self) {
        self.all_recovered = true;
        self.known.forget_below(self.roles.configuration);
        self.reported.clear();
        self.deciding.clear();
        self.low = LowBounds::default();
    }

    /// Handles a message of a configuration, and adds the next steps to `out`. Messages of earlier configurations have no effect,
    /// and those of later ones wait until this machine [begins](Recovery::next) the configuration.
    ///
    /// # Errors
    /// [`Unexpected`]: the sender does not follow the protocol. The message has had no effect.
    pub fn on_message(
        &mut self,
        from: MachineId,
        configuration: u64,
        message: Message,
        out: &mut Vec<Step>,
    ) -> Result<(), Unexpected> {
        let is_any = mutants::is_on("messages of other configurations count");
        if configuration > self.roles.configuration && !is_any {
            marks::mark("recovery: a message of a later configuration waits");
            self.early.push((from, configuration, message));
            return Ok(());
        }
        if configuration < self.roles.configuration && !is_any {
            marks::mark("recovery: a message of an earlier configuration");
            return Ok(());
        }
        let id = message.id();
        let handled = self.handle(from, message, out);
        handled.map_err(|what| Unexpected { from, what, id })
    }

    fn handle(&mut self, from: MachineId, message: Message, out: &mut Vec<Step>) -> Checked {
        check(
            self.roles.members.contains(&from),
            "the sender is not a member of the configuration",
        )?;
        match message {
            Message::Found(found, low) => self.on_found(from, found, low, out),
            Message::Fetch(id, region) => self.on_fetch(from, (id, region), out),
            Message::Fetched(id, region, body) => self.on_fetched(from, (id, region), body, out),
            Message::Replicate(id, region, vote, body) => {
                let is_backup = self.roles.backups(region).contains(&self.roles.me);
                let is_of_primary = self.roles.primary(region) == Some(from);
                check(is_backup && is_of_primary, "a vote for another backup")?;
                self.check_body(&body, region)?;
                let told = InRegion {
                    evidence: Evidence::of_vote(carried(vote)),
                    body: Some(body),
                };
                self.known.tell(id, region, told);
                out.push(Step::Send(from, Message::Replicated(id, region)));
                Ok(())
            }
            Message::Replicated(id, region) => self.on_replicated(from, (id, region), out),
            Message::Vote(id, region, vote, regions) => {
                self.on_vote(from, (id, region), vote, regions, out)
            }
            Message::Decide(id, to, decision, regions) => {
                self.on_decide(from, (id, to), decision, &regions, out)
            }
            Message::Decided(id, to) => self.on_decided(from, (id, to), out),
        }
    }

    fn on_decide(
        &mut self,
        from: MachineId,
        (id, to): (TxId, To),
        decision: Decision,
        regions: &BTreeSet<RegionId>,
        out: &mut Vec<Step>,
    ) -> Checked {
        check(
            self.roles.decider(id) == from,
            "a decision of a machine that does not decide it",
        )?;
        check(self.roles.has_all(regions.iter().copied()), UNKNOWN_REGION)?;
        let is_for_us = |region: &&RegionId| match to {
            To::Backups => self.roles.backups(**region).contains(&self.roles.me),
            To::Primaries => self.roles.is_primary(**region),
        };
        let for_us: Vec<RegionId> = regions.iter().filter(is_for_us).copied().collect();
        if to == To::Primaries {
            let waits = |region: &RegionId| self.waits_for_decision((id, *region));
            check(
                for_us.iter().all(waits),
                "a decision about a region that has not voted, or was told",
            )?;
        }
        for region in for_us {
            self.known.add_tx(id, regions.iter().copied());
            let told = InRegion {
                evidence: Evidence::of_decision(decision),
                body: None,
            };
            self.known.tell(id, region, told);
            match to {
                To::Backups => {
                    let known = self.known.in_region(id, region);
                    let body = known.and_then(|known| known.body.clone());
                    if let Some(body) = body.filter(|_| decision == Decision::Commit) {
                        out.push(Step::Apply(region, body));
                    }
                }
                To::Primaries => self.end((id, region), decision, out),
            }
        }
        out.push(Step::Send(from, Message::Decided(id, to)));
        self.end_if_recovered(out);
        Ok(())
    }

    /// Checks that the values of a transaction are some of this region, and that all regions exist.
    fn check_body(&self, body: &Body, region: RegionId) -> Checked {
        let mut regions = body.regions();
        check(
            regions.any(|one| one == region),
            "values that are not of the region",
        )?;
        check(self.roles.has_all(body.regions()), UNKNOWN_REGION)
    }

    fn end_if_recovered(&mut self, out: &mut Vec<Step>) {
        let all_found = self.reported_by.len() == self.roles.members.len();
        let is_done = all_found && self.undecided == 0 && self.own.is_empty();
        if is_done && !std::mem::replace(&mut self.recovered, true) {
            out.push(Step::Recovered);
        }
    }
}

/// Reports to each machine the transactions that wrote regions of which it is the primary.
fn report(roles: &Roles, known: &Undecided, out: &mut Vec<Step>) {
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
}

const UNKNOWN_REGION: &str = "a region that the configuration does not have";

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
