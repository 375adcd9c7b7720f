//! What must hold in every state, and what must be reached in some.

use stateright::{Model, Property};

use super::super::*;
use super::world::{Node, Outcome, World};
use super::{Commits, Machines, Move};

/// What must never happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Broken {
    /// A participant rejects a record, a lock is released that is not held, or an outcome is reported twice.
    Protocol,
    InstallsEarly,
    LocksUnlogged,
    InstallsUnlogged,
    UnlocksUnlogged,
    ReportsEarly,
    AbortsLate,
    FreesEarly,
}

pub(super) const PROTOCOL: &str = "participants accept all records";
pub(super) const INSTALLS: &str = "nothing is installed before all copies have their records";
pub(super) const OWN_LOCK: &str = "LOCK is logged before own locks";
pub(super) const OWN_COMMIT: &str = "COMMIT-PRIMARY is logged before own installs";
pub(super) const OWN_ABORT: &str = "ABORT is logged before own objects are unlocked";
pub(super) const REPORTS: &str = "success is reported after the acknowledgements";
pub(super) const ABORTS: &str = "no abort after COMMIT-BACKUP";
pub(super) const FREES: &str = "records of copies are kept until they are applied";
pub(super) const LOW_BOUND: &str = "the low bound passes only finished transactions";
pub(super) const SERIALIZABLE: &str = "serializable";
pub(super) const SETTLES: &str = "settles";
pub(super) const COPIES: &str = "copies are equal at the end";

pub(super) const ALL_COMMIT: &str = "all commit";
pub(super) const LOCK_FAILS: &str = "a commit fails in step 1";
pub(super) const VALIDATION_FAILS: &str = "a commit fails in step 2";
pub(super) const RESERVATION_FAILS: &str = "a commit fails in step 0";
pub(super) const IN_DOUBT: &str = "the outcome is in doubt";
pub(super) const OLDER: &str = "an older change is applied after a newer one";
pub(super) const TWO_RECORDS: &str = "a commit has two records, all in the own log";

/// Returns all properties.
pub(super) fn all() -> Vec<Property<Commits>> {
    let sometimes = Property::<Commits>::sometimes;
    vec![
        Property::always(PROTOCOL, |_, world: &World| world.keeps(Broken::Protocol)),
        Property::always(INSTALLS, |_, world: &World| {
            world.keeps(Broken::InstallsEarly)
        }),
        Property::always(OWN_LOCK, |_, world: &World| {
            world.keeps(Broken::LocksUnlogged)
        }),
        Property::always(OWN_COMMIT, |_, world: &World| {
            world.keeps(Broken::InstallsUnlogged)
        }),
        Property::always(OWN_ABORT, |_, world: &World| {
            world.keeps(Broken::UnlocksUnlogged)
        }),
        Property::always(REPORTS, |_, world: &World| {
            world.keeps(Broken::ReportsEarly)
        }),
        Property::always(ABORTS, |_, world: &World| world.keeps(Broken::AbortsLate)),
        Property::always(FREES, |_, world: &World| world.keeps(Broken::FreesEarly)),
        Property::always(LOW_BOUND, |_, world: &World| world.keeps_the_low_bound()),
        Property::always(SERIALIZABLE, |_, world: &World| world.is_serializable()),
        Property::always(SETTLES, |model: &Commits, world: &World| {
            !world.is_at_rest(model) || world.is_settled(model)
        }),
        Property::always(COPIES, |model: &Commits, world: &World| {
            !world.is_at_rest(model) || world.copies_are_equal(model)
        }),
        sometimes(ALL_COMMIT, |_, world: &World| {
            world.nodes.iter().all(|node| node.has_committed())
        }),
        sometimes(RESERVATION_FAILS, |_, world: &World| {
            world.fails(Step::Reserve)
        }),
        sometimes(LOCK_FAILS, |_, world: &World| world.fails(Step::Lock)),
        sometimes(VALIDATION_FAILS, |_, world: &World| {
            world.fails(Step::Validate)
        }),
        sometimes(IN_DOUBT, |_, world: &World| {
            let mut nodes = world.nodes.iter();
            nodes.any(|node| node.outcome == Some(Outcome::InDoubt))
        }),
        sometimes(OLDER, |model: &Commits, world: &World| {
            world.applies_older(model)
        }),
        sometimes(TWO_RECORDS, |_, world: &World| world.has_two_own_records()),
    ]
}

impl Node {
    fn has_committed(&self) -> bool {
        self.outcome == Some(Outcome::Committed)
    }

    fn is_in_doubt(&self) -> bool {
        self.outcome == Some(Outcome::InDoubt)
    }

    /// Returns whether the transaction comes before the other one in every serial order.
    fn comes_before(&self, other: &Self) -> bool {
        let mut objects = self.objects();
        objects.any(|(object, _)| {
            let (Some(mine), Some(its)) = (self.version_of(object), other.version_of(object))
            else {
                return false;
            };
            self.writes(object) && mine < its || other.writes(object) && mine <= its
        })
    }
}

impl World {
    fn keeps(&self, what: Broken) -> bool {
        self.broken != Some(what)
    }

    fn fails(&self, step: Step) -> bool {
        let mut nodes = self.nodes.iter();
        nodes.any(|node| node.outcome == Some(Outcome::Aborted(step)))
    }

    /// Every participant of a transaction below the low bound has acknowledged its end.
    fn keeps_the_low_bound(&self) -> bool {
        self.nodes.iter().all(|node| {
            let (commit, written) = (&node.commit, &node.written);
            let low = self.workers[node.worker].truncations.low();
            let passed = commit.sequence != 0 && commit.sequence < low;
            let ended = written.locks.are_in(written.ends_acknowledged);
            !passed || commit.step != Step::Backup && ended && commit.has_ended()
        })
    }

    /// The transactions that are committed are serializable: no cycle of "comes before".
    fn is_serializable(&self) -> bool {
        let committed = self.nodes.iter().filter(|node| node.has_committed());
        let mut left: Vec<_> = committed.collect();
        while let Some(last) = left.iter().position(|node| {
            let mut others = left.iter().filter(|other| other.number != node.number);
            !others.any(|other| node.comes_before(other))
        }) {
            left.remove(last);
        }
        left.is_empty()
    }

    /// Nothing can happen, but that a machine is lost.
    fn is_at_rest(&self, model: &Commits) -> bool {
        let mut moves = Vec::new();
        model.actions(self, &mut moves);
        self.broken.is_none() && moves.iter().all(|next| matches!(next, Move::Lose(_)))
    }

    /// At the end every lock is released, every log is empty, and each transaction took effect as it was reported. What
    /// [waits for recovery](Self::waits_for_recovery) stays.
    fn is_settled(&self, model: &Commits) -> bool {
        let objects = self.objects_at_rest(model);
        let settled = |object: usize| {
            let cell = self.cells[object][0];
            let writers = self.nodes.iter().filter(|node| node.writes(object));
            let writers: Vec<_> = writers.collect();
            let committed = writers.iter().filter(|node| node.has_committed()).count();
            let in_doubt = writers.iter().filter(|node| node.is_in_doubt()).count();
            let (least, version) = (1 + committed as u64, cell.version.get());
            cell.locked_by.is_none() && (least..=least + in_doubt as u64).contains(&version)
        };
        let mut workers = (0..).zip(&self.workers).filter(|(worker, _)| {
            let mut nodes = self.nodes.iter();
            !nodes.any(|node| node.worker == *worker && self.waits_for_recovery(node))
        });
        objects.into_iter().all(settled)
            && workers.all(|(_, worker)| {
                let mut logs = worker.logs.iter();
                logs.all(|log| log.state.is_empty() && log.records.is_empty())
            })
            && self
                .nodes
                .iter()
                .all(|node| node.has_begun() && node.commit.has_ended())
    }

    /// Returns whether only recovery can finish a transaction: a participant was lost before it acknowledged the transaction's end.
    fn waits_for_recovery(&self, node: &Node) -> bool {
        node.commit.has_ended() && node.commit.sequence != 0 && !node.commit.is_finished()
    }

    /// Returns the objects whose primary is not lost, and that no transaction which waits for recovery wrote.
    fn objects_at_rest(&self, model: &Commits) -> Vec<usize> {
        let objects = model.scenario.objects.iter().enumerate();
        let known = objects.filter(|(object, replicas)| {
            let mut nodes = self.nodes.iter();
            let waits = nodes.any(|node| self.waits_for_recovery(node) && node.writes(*object));
            self.lost != Some(replicas[0]) && !waits
        });
        known.map(|one| one.0).collect()
    }

    fn copies_are_equal(&self, model: &Commits) -> bool {
        let objects = self.objects_at_rest(model);
        objects.into_iter().all(|object| {
            let primary = self.cells[object][0];
            let copies = self.cells[object]
                .iter()
                .zip(model.scenario.objects[object]);
            let mut here = copies.filter(|one| self.lost != Some(*one.1));
            here.all(|(copy, _)| (copy.version, copy.value) == (primary.version, primary.value))
        })
    }

    /// A record is to be applied whose change is older than a copy.
    fn applies_older(&self, model: &Commits) -> bool {
        let logs = self
            .workers
            .iter()
            .flat_map(|worker| (0..).zip(&worker.logs));
        let due = logs.filter_map(|(machine, log)| {
            let at = log.state.next_to_apply()?;
            let record = log.records.iter().find(|one| one.end == at.end)?;
            Some((machine, record.writes()))
        });
        let mut writes =
            due.flat_map(|(machine, all)| all.into_iter().map(move |one| (machine, one)));
        writes.any(|(machine, write): (u16, _)| {
            let replicas = model.scenario.objects[write.object].iter();
            let mut copies = replicas.zip(&self.cells[write.object]);
            copies.any(|(one, copy)| *one == machine && copy.version > write.version)
        })
    }

    /// A transaction has committed, and LOCK and COMMIT-PRIMARY in its own log are all of its records.
    fn has_two_own_records(&self) -> bool {
        self.nodes.iter().any(|node| {
            let (written, own) = (&node.written, Machines::default().with(node.spec.0));
            let log = &self.workers[node.worker].logs[usize::from(node.spec.0)];
            let only_own = (written.locks, written.ends) == (own, own);
            node.has_committed() && only_own && written.backups.is_empty() && log.end == 2
        })
    }
}
