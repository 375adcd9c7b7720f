//! What the workers of a machine have found in their logs, on the way to the first one, which recovers.

use std::collections::BTreeSet;

use farm_core::ids::{RegionId, WorkerRef};
use farm_core::marks;
use farm_core::ring;
use serde::{Deserialize, Serialize};

use super::{Coordinator, Drain, LowBounds};
use crate::note;
use crate::record::{self, Kind, Lock, Record, RecordError, TxId};

/// A record of a log.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DrainedRecord {
    pub(crate) writer: WorkerRef,
    pub(crate) kind: u16,
    /// Number of its transaction.
    pub(crate) sequence: u64,
    pub(crate) body: Vec<u8>,
}

impl DrainedRecord {
    /// Returns a record of the log of a worker.
    pub(crate) fn of(writer: WorkerRef, record: &ring::Record<'_>) -> Self {
        Self {
            writer,
            kind: record.message_id,
            sequence: record.token,
            body: record.body.to_vec(),
        }
    }

    /// Returns whether its transaction is of a configuration before this one.
    pub(crate) fn is_before(&self, configuration: u64) -> bool {
        // A record that is too short for a configuration is found when it is decoded.
        record::configuration(&self.body).is_some_and(|of| of < configuration)
    }

    /// Returns the number of the transaction, and the record.
    ///
    /// # Errors
    /// [`RecordError`] if the record is damaged.
    pub(crate) fn decode(&self) -> Result<(TxId, Record<'_>), RecordError> {
        let id = TxId {
            configuration: record::configuration(&self.body).ok_or(RecordError::Length)?,
            coordinator: self.writer,
            sequence: self.sequence,
        };
        Ok((id, Record::decode(self.kind, id, &self.body)?))
    }
}

/// What a worker has found in its logs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DrainedLogs {
    /// The configuration for which they were drained.
    pub(crate) configuration: u64,
    /// The low bounds that were stored beside the logs.
    pub(crate) notes: Vec<(Coordinator, u64)>,
    /// Records, those of each log in order.
    pub(crate) records: Vec<DrainedRecord>,
    /// Transactions that have ended at the primaries on this machine,
    pub(crate) ended: BTreeSet<TxId>,
    /// and low bounds of coordinators, below which all have.
    pub(crate) ended_below: LowBounds,
    /// Transactions that hold locks at the primaries on this machine.
    pub(crate) holding: BTreeSet<TxId>,
    /// Commits of the worker that it has suspended, with the regions that they write.
    pub(crate) suspended: Vec<(TxId, BTreeSet<RegionId>)>,
}

impl DrainedLogs {
    /// Returns the logs of a worker that has found nothing yet.
    pub(crate) fn new(configuration: u64) -> Self {
        Self {
            configuration,
            notes: Vec::new(),
            records: Vec::new(),
            ended: BTreeSet::new(),
            ended_below: LowBounds::default(),
            holding: BTreeSet::new(),
            suspended: Vec::new(),
        }
    }

    /// Adds the word that was stored beside the log of a worker.
    pub(crate) fn add_note(&mut self, writer: WorkerRef, word: u64) {
        let (configuration, low) = note::decode(word, self.configuration);
        self.notes.push(((configuration, writer), low));
    }

    /// Adds a record, unless its transaction is of a configuration before `since`, for which the logs were drained before. Such a record has
    /// landed after that, and has no effect: recovery may have decided without it.
    pub(crate) fn add_record(&mut self, record: DrainedRecord, since: u64) {
        match record.is_before(since) {
            true => marks::mark("recovery: a record that landed after a drain"),
            false => self.records.push(record),
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let encoded = postcard::to_allocvec(self);
        encoded.expect("records have no part that cannot be encoded")
    }

    /// Returns the logs that another worker of this machine has [encoded](DrainedLogs::encode).
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        postcard::from_bytes(bytes).ok()
    }

    /// Adds the records to a drain. Calls `locks` with each LOCK record.
    ///
    /// # Errors
    /// [`RecordError`] if a record is damaged.
    pub(crate) fn add_to(
        &self,
        drain: &mut Drain,
        mut locks: impl FnMut(TxId, &Lock<'_>),
    ) -> Result<(), RecordError> {
        for (coordinator, low) in &self.notes {
            drain.add_low(*coordinator, *low);
        }
        for record in &self.records {
            let (id, decoded) = record.decode()?;
            if decoded.kind == Kind::Lock {
                locks(id, &decoded.lock()?);
            }
            drain.add(id, &decoded, &record.body)?;
        }
        Ok(())
    }
}
