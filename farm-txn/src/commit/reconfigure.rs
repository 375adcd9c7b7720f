//! What a worker does with its commits and logs when the configuration changes (`FaRM'15 §5.2`, `§5.3`).
//!
//! When it applies the next configuration, it suspends each commit that has written a record: recovery decides it. The others begin
//! again. When the configuration is in effect, it drains its logs for the first worker of its machine, which recovers
//! ([`serve`](crate::recovery::serve)).

use std::borrow::Cow;
use std::sync::Arc;

use farm_core::ids::{RegionId, WorkerId, WorkerRef};
use farm_core::kept::Kept;
use farm_core::membership::configuration::Configuration;
use farm_core::worker::{Cont, Drained, Drainer, Handled, LogId, Worker};
use farm_core::{marks, mutants};

use super::coordinator::Coordinator;
use super::drive::resume;
use super::id::CommitId;
use super::primary::LogState;
use super::reserve::{leave_queues, release_reserved, wake};
use super::serve::refuse;
use crate::layer::transactions;
use crate::record::{self, Kind, TxId};
use crate::recovery::Decision;
use crate::recovery::drained::{DrainedLogs, DrainedRecord};
use crate::recovery::journal::{self, Entry};
use crate::slots;

/// Suspends or aborts the commits of this worker, because it applies another configuration.
pub(crate) fn apply(worker: &mut Worker, configuration: &Configuration) {
    if worker.me().worker == WorkerId::FIRST
        && configuration.recovered + 1 == configuration.version.id
        && let Some(kept) = worker.kept()
        && let Err(error) = kept.clear_before(configuration)
    {
        // What is not needed stays there.
        tracing::warn!(%error, "cannot remove what recovery has kept");
    }
    let state = transactions(worker);
    state.recovers = true;
    state.configuration = configuration.version.id;
    let all: Vec<CommitId> = state
        .commits
        .iter()
        .map(|(key, _)| CommitId(key as u32))
        .collect();
    for id in all {
        let mut commit = transactions(worker).take(id);
        end_or_suspend(worker, &mut commit);
        transactions(worker).commits[id.index()] = Some(commit);
    }
    // Those that slept behind others, in queues that are empty now.
    let commits = transactions(worker).commits.iter();
    let sleeping = commits.filter(|(_, commit)| commit.as_ref().is_some_and(|one| one.sleeps));
    let sleeping: Vec<CommitId> = sleeping.map(|(key, _)| CommitId(key as u32)).collect();
    for id in sleeping {
        wake(worker, id, |id| Cont::new(resume, id));
    }
    transactions(worker).truncations.reset();
}

fn end_or_suspend(worker: &mut Worker, commit: &mut Coordinator) {
    if commit.is_suspended() {
        return;
    }
    if commit.has_record() {
        for at in 0..commit.plan.participants.len() {
            let participant = &mut commit.plan.participants[at];
            // The others reply, or are lost.
            if !participant.asked
                && let Some(reply) = participant.reply.take()
            {
                worker.forget_reply(reply);
            }
        }
        return commit.suspend();
    }
    marks::mark("commit: aborted because the configuration changes");
    leave_queues(worker, commit, |id| Cont::new(resume, id));
    if commit.holds_room() {
        for at in 0..commit.plan.participants.len() {
            release_reserved(worker, &mut commit.plan.participants[at]);
        }
    }
    commit.on_reconfigured();
}

/// Drains the logs of this worker. Returns what is in them, and the commits that recovery decides.
///
/// # Errors
/// Why a log cannot be read.
pub(crate) fn drain(worker: &mut Worker, configuration: u64) -> Result<DrainedLogs, String> {
    let since = transactions(worker).logs_since;
    let mut found = DrainedLogs::new(configuration);
    note_ended(worker, since, &mut found);
    note_suspended(worker, &mut found);
    let mut taken = Taken {
        since,
        found,
        unread: Vec::new(),
        kept: worker.kept().cloned(),
    };
    // A record that is too short for a configuration is found when it is decoded.
    let is_old = |body: &[u8]| record::configuration(body).is_none_or(|of| of < configuration);
    worker.drain_logs(&is_old, &mut taken)?;
    let Taken {
        mut found, unread, ..
    } = taken;
    if mutants::is_on("logs not drained") {
        found.records.clear();
    }
    for (handled, drained) in unread {
        if let Ok((_, record)) = drained.decode() {
            if let (Kind::Lock, Ok(lock)) = (record.kind, record.lock())
                && !drained.is_before(since)
            {
                transactions(worker).lent.on_lock(&lock);
            }
            if let Handled::No(at) = handled {
                refuse(worker, at, &record);
            }
        }
    }
    slots::release_earlier(worker, configuration);
    let state = transactions(worker);
    state.primary.clear();
    state.own = LogState::default();
    state.logs_since = configuration;
    Ok(found)
}

/// Takes what a drain finds, and keeps it.
struct Taken {
    /// The configuration for which the logs were drained before.
    since: u64,
    found: DrainedLogs,
    /// Records that this worker has not handled.
    unread: Vec<(Handled, DrainedRecord)>,
    kept: Option<Arc<dyn Kept>>,
}

impl Drainer for Taken {
    fn take(&mut self, writer: WorkerRef, drained: Drained<'_>) {
        match drained {
            Drained::Note(note) => self.found.add_note(writer, note),
            Drained::Record(record, handled) => {
                let drained = DrainedRecord::of(writer, record);
                if handled != Handled::Yes {
                    self.unread.push((handled, drained.clone()));
                }
                self.found.add_record(drained, self.since);
            }
        }
    }

    fn end(&mut self) -> Result<(), String> {
        if mutants::is_on("what was drained is not kept") {
            return Ok(());
        }
        let configuration = self.found.configuration;
        journal::keep(self.kept.as_ref(), configuration, || {
            Entry::Drained(Cow::Borrowed(&self.found))
        })
    }
}

/// Notes the commits of this worker that it has suspended.
fn note_suspended(worker: &mut Worker, found: &mut DrainedLogs) {
    let me = worker.me();
    let commits = transactions(worker).commits.iter();
    let suspended = commits.filter_map(|(_, commit)| commit.as_ref());
    for commit in suspended.filter(|commit| commit.is_suspended()) {
        let regions = commit.plan.regions.iter();
        let regions = regions.filter_map(|bits| RegionId::from_bits(*bits));
        let id = TxId {
            configuration: commit.configuration,
            coordinator: me,
            sequence: commit.sequence,
        };
        found.suspended.push((id, regions.collect()));
    }
}

/// Notes how far transactions are at this worker's primaries.
fn note_ended(worker: &mut Worker, configuration: u64, found: &mut DrainedLogs) {
    let me = worker.me();
    let mut note = |coordinator: WorkerRef, log: &LogState| {
        let id = |sequence| TxId {
            configuration,
            coordinator,
            sequence,
        };
        found
            .ended_below
            .raise((configuration, coordinator), log.low());
        found.ended.extend(log.ended().map(id));
        found.holding.extend(log.holding().map(id));
    };
    note(me, &transactions(worker).own);
    let logs = transactions(worker).primary.logs().map(|(at, _)| at);
    for at in logs.collect::<Vec<_>>() {
        let id = LogId::new(at);
        if let Some(writer) = worker.find_log_writer(id) {
            note(writer, transactions(worker).primary.log(id));
        }
    }
}

/// Ends a suspended commit of this worker, if it has not ended.
pub(crate) fn decide(worker: &mut Worker, id: TxId, decision: Decision) {
    let is_it = |commit: &Coordinator| {
        commit.is_suspended()
            && (commit.configuration, commit.sequence) == (id.configuration, id.sequence)
    };
    let mut commits = transactions(worker).commits.iter();
    let found = commits.find(|(_, commit)| commit.as_deref().is_some_and(is_it));
    let Some((key, _)) = found else {
        return;
    };
    let at = CommitId(key as u32);
    let mut commit = transactions(worker).take(at);
    let decision = match mutants::is_on("suspended commit aborted") {
        true => Decision::Abort,
        false => decision,
    };
    if decision == Decision::Abort {
        marks::mark("commit: a suspended one was aborted");
        commit.keep_logged();
        commit.tx.abort(worker);
    } else {
        marks::mark("commit: a suspended one was committed");
    }
    commit.on_decided(decision);
    super::drive::go_on(worker, at, commit);
}

#[cfg(test)]
mod tests {
    use farm_core::ids::MachineId;
    use farm_core::ring;

    use super::*;

    /// A write can land after its log was drained, and before the next drain. Once, what it said replaced what was known from the first one:
    /// the values of a transaction that had committed.
    #[test]
    fn a_record_that_landed_after_a_drain_is_not_taken() {
        let writer = WorkerRef::new(MachineId::new(1).unwrap(), WorkerId::FIRST);
        let mut taken = Taken {
            since: 4,
            found: DrainedLogs::new(5),
            unread: Vec::new(),
            kept: None,
        };
        for configuration in [3, 4] {
            let id = TxId {
                configuration,
                coordinator: writer,
                sequence: 7,
            };
            let mut body = Vec::new();
            record::encode_head(&mut body, Kind::CommitPrimary, id, 0, &[]);
            let record = ring::Record {
                kind: ring::Kind::OneWay,
                to_worker: WorkerId::FIRST,
                message_id: Kind::CommitPrimary.code(),
                token: id.sequence,
                body: &body,
            };
            taken.take(writer, Drained::Record(&record, Handled::Never));
        }
        let found = taken.found.records.iter();
        let found: Vec<u64> = found
            .map(|one| one.decode().unwrap().0.configuration)
            .collect();
        assert_eq!(found, [4]);
        assert_eq!(taken.unread.len(), 2, "the writer may wait for a reply");
    }
}
