//! The machine that makes the next configuration.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Action, Blocked, Halted, Message, Probed, Reconfiguration, Stored};
use crate::ids::MachineId;
use crate::membership::configuration::{Configuration, Process};
use crate::{marks, mutants};

/// How far a machine is that makes the next configuration.
#[derive(Clone, Debug)]
pub(super) enum Leading {
    /// It reads the newest configuration.
    Reading,
    /// It probes the members of the newest configuration.
    Probing {
        base: Arc<Configuration>,
        unanswered: BTreeSet<MachineId>,
        answered: BTreeSet<MachineId>,
    },
    /// It stores the next configuration.
    Storing(Arc<Configuration>),
    /// The members apply it.
    Applying {
        next: Arc<Configuration>,
        applied: BTreeSet<MachineId>,
    },
    /// It cannot go on, and tries again after a time.
    Waiting,
}

impl Reconfiguration {
    /// Begins to make the next configuration.
    pub(super) fn lead(&mut self, out: &mut Vec<Action>) {
        self.leading = Some(Leading::Reading);
        out.push(Action::Read);
    }

    /// Does what follows from a new suspicion.
    pub(super) fn lead_on(&mut self, out: &mut Vec<Action>) {
        match &mut self.leading {
            // They look at what is suspected when they end.
            None | Some(Leading::Reading | Leading::Storing(_)) => {}
            Some(Leading::Waiting) => self.lead(out),
            Some(Leading::Probing { .. }) => self.store_next(out),
            Some(Leading::Applying { next, .. }) => {
                let next = next.clone();
                match self.lost_in(&next).is_empty() {
                    true => self.commit_if_applied(out),
                    false => self.probe(next, out),
                }
            }
        }
    }

    /// Handles that nothing has come for a time.
    pub(super) fn leader_timeout(&mut self, out: &mut Vec<Action>) {
        match self.leading.take() {
            // An answer of the store may be lost. The newest configuration shows what it did.
            Some(Leading::Reading | Leading::Storing(_)) => self.lead(out),
            Some(Leading::Probing {
                base,
                unanswered,
                answered,
            }) => {
                self.silent.extend(&unanswered);
                self.leading = Some(Leading::Probing {
                    base,
                    unanswered: BTreeSet::new(),
                    answered,
                });
            }
            Some(Leading::Applying { next, applied }) => {
                let members = next.running().map(|member| member.machine);
                let silent = members.filter(|machine| !applied.contains(machine));
                self.silent
                    .extend(silent.filter(|machine| *machine != self.me.machine));
                self.leading = Some(Leading::Applying { next, applied });
            }
            other => self.leading = other,
        }
    }

    /// Handles the newest configuration of the store, or why it cannot be read.
    pub fn on_read(&mut self, read: Result<Configuration, String>, out: &mut Vec<Action>) {
        if self.ended {
            return;
        }
        let leads = matches!(self.leading, Some(Leading::Reading));
        let base = match read {
            Ok(base) => Arc::new(base),
            Err(why) if leads => return self.block(Blocked::Store(why), out),
            Err(_) => return,
        };
        if !base.has(self.me) {
            // One that joins is no member yet. It cannot join a later configuration than the one that it has begun with.
            let known = self.known();
            if known.has(self.me) || known.version.id < base.version.id {
                self.stop(base.version, out);
            }
            return;
        }
        self.catch_up(&base);
        if !leads {
            return self.go_on(out);
        }
        if !self.has_suspects_in(&base) {
            if base.manager != self.me.machine {
                // Another machine has made it, and tells this one.
                marks::mark("membership: another machine has made the configuration");
                return self.stop_leading();
            }
            if base.version.id > self.known().version.id {
                return self.tell_all(base, out);
            }
        }
        self.probe(base, out);
    }

    /// Ends the attempt to make the next configuration.
    fn stop_leading(&mut self) {
        self.extension = None;
        self.silent.clear();
        self.leading = None;
    }

    fn probe(&mut self, base: Arc<Configuration>, out: &mut Vec<Action>) {
        let members = base.running().map(|member| member.machine);
        let lost = self.lost_in(&base);
        let others = members.filter(|one| *one != self.me.machine && !lost.contains(one));
        let unanswered: BTreeSet<MachineId> = others.collect();
        out.extend(unanswered.iter().map(|one| Action::Probe(*one)));
        self.leading = Some(Leading::Probing {
            base,
            unanswered,
            answered: BTreeSet::from([self.me.machine]),
        });
        self.store_next(out);
    }

    /// Handles what a probe has found.
    pub fn on_probed(&mut self, machine: MachineId, probed: Probed, out: &mut Vec<Action>) {
        let Some(Leading::Probing {
            base,
            unanswered,
            answered,
        }) = &mut self.leading
        else {
            return;
        };
        if self.ended || !unanswered.remove(&machine) {
            return;
        }
        match probed {
            Probed::Runs { boot } if base.has(Process { machine, boot }) => {
                answered.insert(machine);
            }
            Probed::Runs { .. } | Probed::Nothing => _ = self.silent.insert(machine),
        }
        self.store_next(out);
    }

    /// Stores the next configuration, if all probes have ended and a majority has answered.
    fn store_next(&mut self, out: &mut Vec<Action>) {
        let Some(Leading::Probing {
            base,
            unanswered,
            answered,
        }) = &self.leading
        else {
            return;
        };
        let lost = self.lost_in(base);
        if !unanswered.is_subset(&lost) {
            return;
        }
        let base = base.clone();
        let is_in_effect = base.version.id == self.current.version.id;
        let is_intact = !self.has_suspects_in(&base) && is_in_effect;
        let extension = self.extension.as_ref().filter(|_| is_intact);
        if is_intact && extension.is_none() {
            return self.stop_leading();
        }
        let quorums = self.quorums_of(&base);
        let is_reached = |one: &&Process| {
            answered.contains(&one.machine) && !lost.contains(&one.machine) && base.has(**one)
        };
        for quorum in &quorums {
            let may_live = quorum.iter().filter(|one| !self.gone.contains(one));
            let (reached, of) = (
                may_live.clone().filter(is_reached).count(),
                may_live.count(),
            );
            if 2 * reached <= of && !mutants::is_on("minority goes on") {
                marks::mark("membership: a minority waits");
                return self.block(Blocked::Minority { reached, of }, out);
            }
        }
        if !is_in_effect {
            marks::mark("membership: a configuration follows one that was not in effect");
        }
        // Those that were evicted, and have not ended, are named as long as they may run: a start after the end of all machines waits for
        // their end, because they can still write to logs.
        let may_run = |one: &&Process| !is_in_effect || !self.gone.contains(one);
        let before = base.expiring.iter().filter(may_run).copied();
        let before: Vec<Process> = match mutants::is_on("expiring forgotten") {
            true => Vec::new(),
            false => before.collect(),
        };
        if is_in_effect && !before.is_empty() {
            marks::mark("membership: an evicted process stays named");
        }
        match base.without(&lost, self.me.machine, before) {
            Ok(mut next) => {
                next.quorums = match self.by_time {
                    true => quorums,
                    false => Vec::new(),
                };
                if let Some(extension) = extension {
                    marks::mark("membership: machines or replicas are added");
                    next.extend(extension);
                }
                let next = Arc::new(next);
                self.leading = Some(Leading::Storing(next.clone()));
                out.push(Action::Store(next));
            }
            Err(halted) => {
                let is_gone = |one: &(_, Vec<MachineId>)| {
                    let mut members = one.1.iter().filter_map(|one| base.member(*one));
                    members.all(|member| self.gone.contains(&member.process()))
                };
                let (gone, silent): (Vec<_>, _) = halted.regions.into_iter().partition(is_gone);
                if gone.is_empty() {
                    marks::mark("membership: a region waits for its last copy");
                    return self.block(Blocked::LastCopies(Halted { regions: silent }), out);
                }
                // A later read may show a configuration with other copies, or the machine may come back.
                marks::mark("membership: the cluster halts");
                self.silent.clear();
                self.leading = Some(Leading::Waiting);
                out.push(Action::Halt(Halted { regions: gone }));
            }
        }
    }

    /// Returns the sets of members that store regions of which a majority each has to take part in the configuration after `base`.
    fn quorums_of(&self, base: &Configuration) -> Vec<Vec<Process>> {
        let is_in_effect = base.version.id == self.current.version.id;
        let forgets = is_in_effect || mutants::is_on("majority of the newest configuration alone");
        let mut quorums = match self.by_time && !forgets {
            true => base.quorums.clone(),
            false => Vec::new(),
        };
        let newest: Vec<Process> = base.storing().collect();
        if !quorums.contains(&newest) {
            quorums.push(newest);
        }
        quorums
    }

    /// Handles the outcome of storing a configuration.
    pub fn on_stored(&mut self, next: &Configuration, stored: Stored, out: &mut Vec<Action>) {
        if self.ended {
            return;
        }
        let storing = match &self.leading {
            Some(Leading::Storing(storing)) if **storing == *next => storing.clone(),
            _ => return self.on_stored_late(next, &stored, out),
        };
        match stored {
            Stored::Lost if !mutants::is_on("blind store write") => {
                marks::mark("membership: another change came first");
                self.lead(out);
            }
            Stored::Won | Stored::Lost => self.tell_all(storing, out),
            Stored::Failed(why) => self.block(Blocked::Store(why), out),
        }
    }

    /// Handles the outcome of storing a configuration for which this machine had given up the attempt. If the store has it now, no other
    /// machine tells the members.
    fn on_stored_late(&mut self, next: &Configuration, stored: &Stored, out: &mut Vec<Action>) {
        let is_unknown = next.version.id > self.known().version.id;
        if self.leading.is_none() && *stored == Stored::Won && is_unknown {
            marks::mark("membership: a configuration is stored by a machine that had given way");
            self.lead(out);
        }
    }

    /// Tells all members of the next configuration, and all machines that were suspected before.
    fn tell_all(&mut self, next: Arc<Configuration>, out: &mut Vec<Action>) {
        for left in next.expiring.iter().filter(|one| !self.gone.contains(one)) {
            let evicted = Message::Evicted(*left, next.version);
            out.push(Action::Send(left.machine, evicted));
        }
        if !self.lost_in(&next).is_empty() {
            return self.probe(next, out);
        }
        // This machine knows it at once, so that an older one, which another machine has made, does not take its place.
        self.adopt(next.clone(), out);
        let members = next.running().map(|member| member.machine);
        for machine in members.filter(|one| *one != self.me.machine) {
            out.push(Action::Send(machine, Message::NewConfig(next.clone())));
        }
        self.leading = Some(Leading::Applying {
            next,
            applied: BTreeSet::new(),
        });
    }

    pub(super) fn on_member_applied(&mut self, from: MachineId, id: u64, out: &mut Vec<Action>) {
        if let Some(Leading::Applying { next, applied }) = &mut self.leading
            && next.version.id == id
        {
            applied.insert(from);
            self.commit_if_applied(out);
        }
    }

    fn commit_if_applied(&mut self, out: &mut Vec<Action>) {
        let Some(Leading::Applying { next, applied }) = &self.leading else {
            return;
        };
        if !next
            .running()
            .all(|member| applied.contains(&member.machine))
        {
            return;
        }
        let mut expiring = next.expiring.iter();
        if !expiring.all(|left| self.gone.contains(left) || self.evicted.contains(left)) {
            marks::mark("membership: a machine that has left may not be gone");
            if !mutants::is_on("evicted machine not awaited") {
                return;
            }
        }
        for member in next.running() {
            let commit = Message::Commit(next.version.id);
            out.push(Action::Send(member.machine, commit));
        }
        self.stop_leading();
    }

    fn block(&mut self, why: Blocked, out: &mut Vec<Action>) {
        self.silent.clear();
        self.leading = Some(Leading::Waiting);
        out.push(Action::Block(why));
    }
}
