//! What recovery keeps beyond its process ([`farm_core::kept`]), so that the next process of the machine knows what this one knew.
//!
//! Everything that was drained is kept before it is freed in the logs, and what recovery tells a machine before anything follows from it.
//! An old log is read once, and nothing of it that landed after its drain by the process before.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use farm_core::ids::{RegionId, WorkerRef};
use farm_core::kept::{GIVE_UP, Kept, KeptError};
use farm_core::ring::KeptRecords;
use farm_core::{marks, mutants};
use serde::{Deserialize, Serialize};

use super::Drain;
use super::drained::{DrainedLogs, DrainedRecord};
use super::undecided::{EndedHere, Told, Undecided};
use crate::record::{RecordError, TxId};

/// An entry of the journal. Those of a machine are in the order in which they were made, but workers drain their logs in any order.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Entry<'a> {
    /// What a worker has found in its logs.
    Drained(Cow<'a, DrainedLogs>),
    /// What was in the logs of earlier processes of this machine, and the numbers of their starts.
    Earlier(Cow<'a, DrainedLogs>, BTreeSet<u64>),
    /// Recovery begins in a configuration, with what was found. Transactions of configurations below `recovered` are forgotten.
    Begun { configuration: u64, recovered: u64 },
    /// What recovery was told.
    Told(Vec<Told>),
}

/// Adds an entry to the journal, if the machine has one.
///
/// # Errors
/// Why it cannot be kept.
pub(crate) fn keep<'a>(
    kept: Option<&Arc<dyn Kept>>,
    configuration: u64,
    entry: impl FnOnce() -> Entry<'a>,
) -> Result<(), String> {
    let Some(kept) = kept else {
        return Ok(());
    };
    let bytes = postcard::to_allocvec(&entry());
    let bytes = bytes.expect("an entry has no part that cannot be encoded");
    let kept = kept.append(configuration, &bytes);
    kept.map_err(|error| format!("what recovery has found cannot be kept: {error}"))
}

/// What earlier processes of a machine have kept.
#[derive(Default)]
pub(crate) struct Resumed {
    /// What they knew when their last recovery had begun, and were told since.
    pub(crate) known: Undecided,
    /// What they have found since.
    pub(crate) drain: Drain,
    pub(crate) suspended: Vec<(TxId, BTreeSet<RegionId>)>,
    /// Transactions that had ended. It is not known what was done of them.
    pub(crate) ended: Vec<EndedHere>,
    /// The starts whose logs were drained.
    drained: BTreeSet<u64>,
    /// The last configuration in which recovery had begun here: all logs were drained for it.
    begun: u64,
}

/// Why the journal of earlier processes cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotResumed {
    #[error(transparent)]
    Kept(#[from] KeptError),
    #[error("an entry of the journal is malformed: {0}; {GIVE_UP}")]
    Entry(#[from] postcard::Error),
    #[error("a log of an earlier process of this machine is damaged: {0}; {GIVE_UP}")]
    Record(#[from] RecordError),
    #[error(
        "the log of {0}, of an earlier process of this machine, cannot be read: {1}; {GIVE_UP}"
    )]
    Log(WorkerRef, String),
}

impl Resumed {
    /// Reads what earlier processes have kept, before a configuration.
    ///
    /// # Errors
    /// [`NotResumed`].
    pub(crate) fn read(kept: &dyn Kept, configuration: u64) -> Result<Self, NotResumed> {
        let mut resumed = Self::default();
        for entry in kept.entries()? {
            match postcard::from_bytes(&entry)? {
                // This process has it.
                Entry::Drained(found) if found.configuration >= configuration => {}
                Entry::Drained(found) => resumed.add(found.into_owned())?,
                Entry::Earlier(found, starts) => {
                    resumed.add(found.into_owned())?;
                    resumed.drained.extend(starts);
                }
                Entry::Begun {
                    configuration,
                    recovered,
                } => {
                    resumed.begin(recovered);
                    resumed.begun = configuration;
                }
                Entry::Told(told) => {
                    marks::mark("kept: an earlier process was told something by recovery");
                    told.into_iter().for_each(|told| resumed.known.apply(told));
                }
            }
        }
        Ok(resumed)
    }

    fn add(&mut self, found: DrainedLogs) -> Result<(), RecordError> {
        found.add_to(&mut self.drain, |_, _| {})?;
        self.suspended.extend(found.suspended);
        Ok(())
    }

    fn begin(&mut self, recovered: u64) {
        let (drain, known) = (
            std::mem::take(&mut self.drain),
            std::mem::take(&mut self.known),
        );
        let (known, ended) = drain.finish(known);
        if !ended.is_empty() {
            marks::mark("kept: transactions that had ended are ended again");
        }
        self.known = known;
        for (id, regions) in self.suspended.drain(..) {
            self.known.add_tx(id, regions);
        }
        self.known.forget_below(recovered);
        // All of it is kept.
        self.known.take_told();
        self.ended.extend(ended);
        self.ended.retain(|one| one.id.configuration >= recovered);
    }

    /// Drains the logs of earlier processes for a configuration, and keeps what is in them. All machines have recovered for the
    /// configuration `recovered`.
    ///
    /// # Errors
    /// [`NotResumed`].
    pub(crate) fn drain_earlier(
        &mut self,
        kept: &Arc<dyn Kept>,
        (configuration, recovered): (u64, u64),
    ) -> Result<(), NotResumed> {
        let since = self.begun.max(recovered);
        let mut found = DrainedLogs::new(configuration);
        let mut starts = BTreeSet::new();
        for log in kept.earlier_logs()? {
            if self.drained.contains(&log.boot) {
                continue;
            }
            starts.insert(log.boot);
            let writer = log.writer;
            let damaged = |why: &dyn std::fmt::Display| NotResumed::Log(writer, why.to_string());
            found.add_note(writer, log.state.note());
            let records = KeptRecords::new(log.log, &log.state, log.integrity);
            let mut records = records.map_err(|error| damaged(&error))?;
            if mutants::is_on("log of an earlier process not read") {
                continue;
            }
            while let Some(record) = records.next().map_err(|error| damaged(&error))? {
                found.add_record(DrainedRecord::of(writer, &record), since);
            }
        }
        if !starts.is_empty() {
            if !found.records.is_empty() {
                marks::mark("kept: records in logs of an earlier process");
            }
            let entry = || Entry::Earlier(Cow::Borrowed(&found), starts);
            keep(Some(kept), configuration, entry).map_err(KeptError)?;
            self.add(found)?;
        }
        kept.forget_earlier_logs();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use farm_core::alloc::SizeClass;
    use farm_core::fabric::Capability;
    use farm_core::ids::{Address, MachineId, WorkerId};
    use farm_core::mem::Memory;
    use farm_core::membership::configuration::{Configuration, Process};
    use farm_core::object::{Incarnation, Version};
    use farm_core::ring::{
        self, Header, KeptLog, KeptState, OwnLog, RecordIntegrity, log_record_bytes,
    };

    use super::*;
    use crate::record::{self, Kind};
    use crate::recovery::undecided::{Body, InRegion};
    use crate::recovery::{Decision, Evidence};

    /// A journal in memory, and logs that are never forgotten, as if each process was killed before.
    #[derive(Default)]
    struct Entries(Mutex<Vec<Vec<u8>>>, Vec<KeptLog>);

    impl Kept for Entries {
        fn keep_region(&self, _: RegionId, _: &Capability) -> Result<(), KeptError> {
            Ok(())
        }
        fn keep_logs(&self, _: MachineId, _: &Capability) -> Result<(), KeptError> {
            Ok(())
        }
        fn connected(&self, _: Process, _: &Capability) {}
        fn left(&self, _: Process) {}
        fn earlier_logs(&self) -> Result<Vec<KeptLog>, KeptError> {
            Ok(self.1.clone())
        }
        fn forget_earlier_logs(&self) {}
        fn append(&self, _: u64, entry: &[u8]) -> Result<(), KeptError> {
            self.0.lock().unwrap().push(entry.to_vec());
            Ok(())
        }
        fn entries(&self) -> Result<Vec<Vec<u8>>, KeptError> {
            Ok(self.0.lock().unwrap().clone())
        }
        fn clear_before(&self, _: &Configuration) -> Result<(), KeptError> {
            Ok(())
        }
    }

    fn id(configuration: u64, sequence: u64) -> TxId {
        let machine = MachineId::new(1).unwrap();
        TxId {
            configuration,
            coordinator: WorkerRef::new(machine, WorkerId::FIRST),
            sequence,
        }
    }

    /// What was told after recovery had begun is known to the next process, and what was found for a configuration in which it had not
    /// begun is still to be drained.
    #[test]
    fn the_next_process_knows_what_this_one_knew() {
        let entries: Arc<dyn Kept> = Arc::new(Entries::default());
        let region = RegionId::new(1, 1).unwrap();
        let mut known = Undecided::default();
        let found = |configuration, suspended| {
            Cow::Owned(DrainedLogs {
                suspended: vec![(suspended, BTreeSet::from([region]))],
                ..DrainedLogs::new(configuration)
            })
        };
        let add = |configuration, entry: Entry| {
            keep(Some(&entries), configuration, || entry).unwrap();
        };
        add(2, Entry::Drained(found(2, id(1, 5))));
        add(
            2,
            Entry::Begun {
                configuration: 2,
                recovered: 1,
            },
        );
        known.add_tx(id(1, 5), [region]);
        let told = InRegion {
            evidence: Evidence::of_decision(Decision::Commit),
            body: None,
        };
        known.tell(id(1, 5), region, told);
        add(2, Entry::Told(known.take_told()));
        add(3, Entry::Drained(found(3, id(2, 9))));
        let resumed = Resumed::read(&*entries, 4).unwrap();
        assert_eq!(resumed.known, known);
        let of = resumed.known.in_region(id(1, 5), region).unwrap();
        assert!(of.evidence.has(Kind::CommitPrimary));
        assert_eq!(resumed.suspended, [(id(2, 9), BTreeSet::from([region]))]);
        // This process has drained the same itself.
        assert!(Resumed::read(&*entries, 3).unwrap().suspended.is_empty());

        // All had recovered.
        add(
            4,
            Entry::Begun {
                configuration: 4,
                recovered: 3,
            },
        );
        assert_eq!(
            Resumed::read(&*entries, 5).unwrap().known,
            Undecided::default()
        );
        entries.append(5, &[200]).unwrap();
        assert!(Resumed::read(&*entries, 5).is_err());
    }

    /// Returns a log of a process with one record.
    fn log_of(id: TxId, boot: u64) -> KeptLog {
        let (log, state) = (Memory::anonymous(1 << 13), Memory::anonymous(64));
        let integrity = RecordIntegrity::Checksum;
        let state = KeptState::new(state);
        let mut own = OwnLog::new(log.clone(), state.clone(), integrity).unwrap();
        let mut body = Vec::new();
        record::encode_head(&mut body, Kind::Abort, id, 0, &[]);
        assert!(own.try_reserve(log_record_bytes(body.len())));
        let header = Header {
            kind: ring::Kind::OneWay,
            to_worker: WorkerId::FIRST,
            message_id: Kind::Abort.code(),
            token: id.sequence,
        };
        own.append(header, &[&body]);
        KeptLog {
            writer: id.coordinator,
            boot,
            log,
            state,
            integrity,
        }
    }

    /// What an earlier version of the program has kept is read as it was meant, or refused.
    #[test]
    fn what_is_kept_has_this_format() {
        let region = RegionId::new(1, 1).unwrap();
        let log = log_of(id(3, 5), 77);
        let mut words = vec![0; log.log.len() / 8];
        log.log.read_words(0, &mut words);
        words.extend([log.state.head(), log.state.note()]);
        let kept: Arc<dyn Kept> = Arc::new(Entries(Mutex::default(), vec![log]));
        let mut resumed = Resumed::read(&*kept, 4).unwrap();
        resumed.drain_earlier(&kept, (4, 3)).unwrap();
        let mut known = Undecided::default();
        known.add_tx(id(1, 5), [region]);
        let mut lock = Vec::new();
        record::encode_lock(&mut lock, 9, &[region.to_bits()], 1);
        record::encode_object(
            &mut lock,
            &record::Object {
                address: Address::new(region, 128),
                class: SizeClass::new(7),
                version: Version::new(6),
                incarnation: Incarnation::new(SizeClass::new(7), 8),
                effect: record::Effect::Allocate,
                block: 4,
                count: 1,
                payload: &[1, 2, 3],
            },
        );
        let mut body = Vec::new();
        record::encode_head(&mut body, Kind::Lock, id(1, 5), 2, &lock);
        body.extend(lock);
        let told = InRegion {
            evidence: Evidence::of_decision(Decision::Commit),
            body: Some(Body::new(&body).unwrap()),
        };
        known.tell(id(1, 5), region, told);
        let mut found = DrainedLogs::new(4);
        found.ended.insert(id(2, 7));
        found.ended_below.raise((2, id(2, 7).coordinator), 6);
        found.holding.insert(id(2, 8));
        found.suspended.push((id(2, 9), BTreeSet::from([region])));
        for entry in [
            Entry::Drained(Cow::Owned(found)),
            Entry::Begun {
                configuration: 4,
                recovered: 3,
            },
            Entry::Told(known.take_told()),
        ] {
            keep(Some(&kept), 4, || entry).unwrap();
        }
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        kept.entries()
            .unwrap()
            .iter()
            .for_each(|entry| bytes.extend(entry));
        let sum = xxhash_rust::xxh3::xxh3_64(&bytes);
        assert_eq!(
            (farm_core::kept::FORMAT, sum),
            (3, 8_405_327_134_810_900_480),
            "logs, records or entries of the journal have changed: raise farm_core::kept::FORMAT"
        );
    }

    /// A process that was evicted writes for a moment more. Once, what it had written was read when all processes had ended, although recovery
    /// had decided without it.
    #[test]
    fn records_that_landed_after_a_drain_have_no_effect() {
        let drained = |begun: Option<u64>, recovered| {
            let kept: Arc<dyn Kept> =
                Arc::new(Entries(Mutex::default(), vec![log_of(id(3, 5), 77)]));
            if let Some(configuration) = begun {
                let begun = || Entry::Begun {
                    configuration,
                    recovered: 1,
                };
                keep(Some(&kept), configuration, begun).unwrap();
            }
            let mut resumed = Resumed::read(&*kept, 6).unwrap();
            resumed.drain_earlier(&kept, (6, recovered)).unwrap();
            let Some(Ok(Entry::Earlier(found, _))) = kept
                .entries()
                .unwrap()
                .last()
                .map(|entry| postcard::from_bytes(entry))
            else {
                panic!("the logs were not drained");
            };
            found.records.len()
        };
        assert_eq!((drained(None, 3), drained(None, 4)), (1, 0));
        assert_eq!((drained(Some(3), 2), drained(Some(4), 2)), (1, 0));
    }

    /// A process that is killed between the drain of an old log and its removal leaves both to the next one.
    #[test]
    fn an_old_log_is_read_once() {
        let kept: Arc<dyn Kept> = Arc::new(Entries(Mutex::default(), vec![log_of(id(1, 5), 77)]));
        for configuration in [2, 3] {
            let mut resumed = Resumed::read(&*kept, configuration).unwrap();
            resumed.drain_earlier(&kept, (configuration, 1)).unwrap();
            let entries = kept.entries().unwrap();
            assert_eq!(entries.len(), 1);
            let Ok(Entry::Earlier(found, starts)) = postcard::from_bytes(&entries[0]) else {
                panic!("{entries:?}");
            };
            assert_eq!((found.records.len(), found.configuration), (1, 2));
            assert_eq!(starts, BTreeSet::from([77]));
        }
    }
}
