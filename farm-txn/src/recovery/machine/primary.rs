//! Recovery at the primary of a region: it locks what undecided transactions name, replicates the region's vote, and votes.

use std::collections::{BTreeMap, BTreeSet};

use farm_core::ids::{MachineId, RegionId};
use farm_core::object::Version;
use farm_core::{marks, mutants};

use super::{Checked, Recovery, UNKNOWN_REGION, check};
use crate::record::TxId;
use crate::recovery::message::{Found, Message, Step};
use crate::recovery::undecided::{Body, InRegion, LowBounds};
use crate::recovery::{Decision, Evidence, Vote};

/// A transaction in a region of which this machine is the primary.
#[derive(Clone, Debug, Default)]
pub(super) struct Voting {
    evidence: Evidence,
    body: Option<Body>,
    /// A machine that has the values, if this one does not.
    body_at: Option<MachineId>,
    /// Backups that do not have the vote and the values yet.
    unreplicated: BTreeSet<MachineId>,
    progress: Progress,
}

/// How far a region is with a transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Progress {
    #[default]
    Preparing,
    Voted,
    Decided,
}

/// A transaction that wrote regions of which this machine is the primary.
#[derive(Clone, Debug, Default)]
pub(super) struct Reported {
    regions: BTreeSet<RegionId>,
    here: BTreeMap<RegionId, Voting>,
}

/// An object of transactions that are not decided.
#[derive(Clone, Debug, Default)]
pub(super) struct Held {
    undecided: usize,
    /// The values of those that commit, by their versions.
    committed: BTreeMap<Version, Body>,
}

impl Recovery {
    pub(super) fn on_found(
        &mut self,
        from: MachineId,
        found: Vec<Found>,
        low: LowBounds,
        out: &mut Vec<Step>,
    ) -> Checked {
        check(!self.reported_by.contains(&from), "a second report")?;
        for one in &found {
            check(
                self.roles.has_all(one.regions.iter().copied()),
                UNKNOWN_REGION,
            )?;
            let is_ours =
                |region: &RegionId| one.regions.contains(region) && self.roles.is_primary(*region);
            check(
                one.of.iter().all(|of| is_ours(&of.0)),
                "evidence of a region of another machine, or that the transaction has not written",
            )?;
        }
        self.low.raise_all(low);
        for one in found {
            let reported = self.reported.entry(one.id).or_default();
            reported.regions.extend(one.regions);
            for (region, evidence, has_body) in one.of {
                let voting = reported.here.entry(region).or_default();
                voting.evidence = voting.evidence.and(evidence);
                if has_body && (voting.body_at.is_none() || from == self.roles.me) {
                    voting.body_at = Some(from);
                }
            }
        }
        self.reported_by.insert(from);
        if self.reported_by.len() == self.roles.members.len() {
            self.on_all_found(out);
        }
        Ok(())
    }

    fn on_all_found(&mut self, out: &mut Vec<Step>) {
        let mut votes = Vec::new();
        for (id, reported) in &mut self.reported {
            for region in &reported.regions {
                if !self.roles.is_primary(*region) {
                    continue;
                }
                let voting = reported.here.entry(*region).or_default();
                self.undecided += 1;
                match voting.body_at {
                    None => votes.push((*id, *region)),
                    Some(at) if at == self.roles.me => {
                        let own = self.known.in_region(*id, *region);
                        voting.body = own.and_then(|own| own.body.clone());
                    }
                    Some(_) if mutants::is_on("backups' bodies not fetched") => {
                        votes.push((*id, *region));
                    }
                    Some(at) => {
                        marks::mark("recovery: values fetched from a backup");
                        *self.fetching.entry(*region).or_default() += 1;
                        out.push(Step::Send(at, Message::Fetch(*id, *region)));
                    }
                }
            }
        }
        let own: Vec<RegionId> = self.roles.regions.keys().copied().collect();
        for region in own {
            if self.roles.is_primary(region) && !self.fetching.contains_key(&region) {
                self.lock_all(region, out);
            }
        }
        for (id, region) in votes {
            self.send_vote((id, region), out);
        }
        self.end_if_recovered(out);
    }

    pub(super) fn on_fetch(
        &mut self,
        from: MachineId,
        (id, region): (TxId, RegionId),
        out: &mut Vec<Step>,
    ) -> Checked {
        let is_primary = self.roles.primary(region) == Some(from);
        check(is_primary, "a request of a machine that is not the primary")?;
        let known = self.known.in_region(id, region);
        let body = known.and_then(|known| known.body.clone());
        let body = body.ok_or("a request for values that this machine has not reported")?;
        out.push(Step::Send(from, Message::Fetched(id, region, body)));
        Ok(())
    }

    pub(super) fn on_fetched(
        &mut self,
        from: MachineId,
        (id, region): (TxId, RegionId),
        body: Body,
        out: &mut Vec<Step>,
    ) -> Checked {
        self.check_body(&body, region)?;
        let what = "values that this machine has not asked for";
        let voting = voting_mut(&mut self.reported, (id, region)).ok_or(what)?;
        let fetching = self.fetching.get_mut(&region).ok_or(what)?;
        check(voting.body_at == Some(from) && voting.body.is_none(), what)?;
        // Without a vote the values are no evidence: the next recovery must not find a transaction by them that has ended.
        voting.body = Some(body);
        *fetching -= 1;
        if *fetching == 0 {
            self.fetching.remove(&region);
            self.lock_all(region, out);
        }
        Ok(())
    }

    /// Locks all objects that undecided transactions name in a region, and begins to vote.
    fn lock_all(&mut self, region: RegionId, out: &mut Vec<Step>) {
        let early = mutants::is_on("active before the locks");
        if early {
            out.push(Step::Activate(region));
        }
        let mut votes = Vec::new();
        for (id, reported) in &mut self.reported {
            let Some(voting) = reported.here.get_mut(&region) else {
                continue;
            };
            let Some(body) = &voting.body else {
                continue;
            };
            for address in body.objects_in(region).flat_map(|one| one.addresses()) {
                self.held.entry(address).or_default().undecided += 1;
            }
            out.push(Step::Lock(region, body.clone()));
            votes.push(*id);
        }
        if !early {
            out.push(Step::Activate(region));
        }
        for id in votes {
            self.replicate((id, region), out);
        }
    }

    fn replicate(&mut self, (id, region): (TxId, RegionId), out: &mut Vec<Step>) {
        let vote = self.vote((id, region));
        let backups = self.roles.backups(region);
        let Some(voting) = voting_mut(&mut self.reported, (id, region)) else {
            return;
        };
        if let Some(body) = &voting.body {
            for backup in backups {
                let replicate = Message::Replicate(id, region, vote, body.clone());
                out.push(Step::Send(*backup, replicate));
            }
            voting.unreplicated = backups.iter().copied().collect();
            // This machine, too, keeps the vote: the one whose records it rests on may be lost.
            let told = InRegion {
                evidence: Evidence::of_vote(vote),
                body: Some(body.clone()),
            };
            if !mutants::is_on("a primary does not keep the vote") {
                self.known.tell(id, region, told);
            }
        }
        if voting.unreplicated.is_empty() || mutants::is_on("vote before kind 9") {
            self.send_vote((id, region), out);
        }
    }

    pub(super) fn on_replicated(
        &mut self,
        from: MachineId,
        (id, region): (TxId, RegionId),
        out: &mut Vec<Step>,
    ) -> Checked {
        let what = "an answer of a backup that was not told a vote";
        let voting = voting_mut(&mut self.reported, (id, region)).ok_or(what)?;
        check(voting.unreplicated.remove(&from), what)?;
        if voting.unreplicated.is_empty() && voting.progress == Progress::Preparing {
            self.send_vote((id, region), out);
        }
        Ok(())
    }

    fn vote(&self, (id, region): (TxId, RegionId)) -> Vote {
        let reported = self.reported.get(&id);
        let voting = reported.and_then(|reported| reported.here.get(&region));
        let evidence = voting.map_or(Evidence::NONE, |one| one.evidence);
        Vote::of(evidence, self.low.have_passed(id))
    }

    fn send_vote(&mut self, (id, region): (TxId, RegionId), out: &mut Vec<Step>) {
        let vote = self.vote((id, region));
        marks::mark(match vote {
            Vote::CommitPrimary => "recovery: a region votes commit-primary",
            Vote::Abort => "recovery: a region votes abort",
            Vote::CommitBackup => "recovery: a region votes commit-backup",
            Vote::Lock => "recovery: a region votes lock",
            Vote::Truncated => "recovery: a region votes truncated",
            Vote::Unknown => "recovery: a region votes unknown",
        });
        let Some(reported) = self.reported.get_mut(&id) else {
            return;
        };
        if let Some(voting) = reported.here.get_mut(&region) {
            voting.progress = Progress::Voted;
        }
        let vote = Message::Vote(id, region, vote, reported.regions.clone());
        out.push(Step::Send(self.roles.decider(id), vote));
    }

    /// Returns whether a region of this primary has voted on a transaction and waits for the decision.
    pub(super) fn waits_for_decision(&self, (id, region): (TxId, RegionId)) -> bool {
        let reported = self.reported.get(&id);
        let voting = reported.and_then(|reported| reported.here.get(&region));
        voting.is_some_and(|voting| voting.progress == Progress::Voted)
    }

    /// Ends a transaction in a region of this primary that has voted on it and waits for the decision.
    pub(super) fn end(
        &mut self,
        (id, region): (TxId, RegionId),
        decision: Decision,
        out: &mut Vec<Step>,
    ) {
        let Some(voting) = voting_mut(&mut self.reported, (id, region)) else {
            return;
        };
        voting.progress = Progress::Decided;
        self.undecided -= 1;
        let Some(body) = voting.body.take() else {
            return;
        };
        let at_first = mutants::is_on("unlock at first");
        for object in body.objects_in(region) {
            let version = object.version.next();
            for address in object.addresses() {
                let Some(held) = self.held.get_mut(&address) else {
                    continue;
                };
                held.undecided -= 1;
                if decision == Decision::Commit {
                    if mutants::is_on("only the newest value is released") {
                        held.committed.clear();
                    }
                    held.committed.insert(version, body.clone());
                }
                if held.undecided == 0 || at_first {
                    let held = self.held.remove(&address).unwrap_or_default();
                    let committed = held.committed.into_values().collect();
                    out.push(Step::Release(address, committed));
                } else {
                    marks::mark("recovery: an object of several undecided transactions");
                }
            }
        }
    }
}

fn voting_mut(
    reported: &mut BTreeMap<TxId, Reported>,
    (id, region): (TxId, RegionId),
) -> Option<&mut Voting> {
    reported.get_mut(&id)?.here.get_mut(&region)
}
