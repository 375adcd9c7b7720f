//! What one machine knows of the transactions of earlier configurations: its evidence.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use farm_core::ids::{Address, RegionId, WorkerRef};
use serde::{Deserialize, Serialize};

use super::Evidence;
use crate::record::{Kind, Object, Record, RecordError, TxId};

/// A configuration, and a coordinator of transactions in it.
pub type Coordinator = (u64, WorkerRef);

/// Low bounds of coordinators: all of their transactions below have ended on all machines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LowBounds(BTreeMap<Coordinator, u64>);

impl LowBounds {
    /// Adds a low bound. The greatest one of each coordinator counts.
    pub fn raise(&mut self, coordinator: Coordinator, low: u64) {
        let known = self.0.entry(coordinator).or_default();
        *known = low.max(*known);
    }

    /// Adds all low bounds of others.
    pub fn raise_all(&mut self, others: Self) {
        for (coordinator, low) in others.0 {
            self.raise(coordinator, low);
        }
    }

    /// Removes the low bounds of earlier configurations than this one.
    fn forget_below(&mut self, configuration: u64) {
        self.0.retain(|(of, _), _| *of >= configuration);
    }

    /// Returns whether a transaction is below the low bound of its coordinator.
    pub fn have_passed(&self, id: TxId) -> bool {
        let low = self.0.get(&(id.configuration, id.coordinator));
        low.is_some_and(|low| id.sequence < *low)
    }
}

/// The body of a LOCK or COMMIT-BACKUP record: the values that a transaction writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<u8>", into = "Vec<u8>")]
pub struct Body(Arc<[u8]>);

impl From<Body> for Vec<u8> {
    fn from(body: Body) -> Self {
        body.0.to_vec()
    }
}

impl TryFrom<Vec<u8>> for Body {
    type Error = RecordError;

    fn try_from(bytes: Vec<u8>) -> Result<Self, RecordError> {
        Self::new(&bytes)
    }
}

impl Body {
    /// Checks the body of a LOCK or COMMIT-BACKUP record, and keeps a copy.
    ///
    /// # Errors
    /// [`RecordError`] if it is not one.
    pub fn new(body: &[u8]) -> Result<Self, RecordError> {
        let new = Self(body.into());
        for region in new.lock()?.regions() {
            region?;
        }
        for object in new.lock()?.objects() {
            object?;
        }
        Ok(new)
    }

    fn lock(&self) -> Result<crate::record::Lock<'_>, RecordError> {
        Record::decode_unchecked(Kind::Lock, &self.0)?.lock()
    }

    /// Returns all regions that the transaction wrote.
    pub fn regions(&self) -> impl Iterator<Item = RegionId> + '_ {
        let lock = self.lock().ok();
        let regions = lock.into_iter().flat_map(|lock| lock.regions());
        regions.map_while(Result::ok)
    }

    /// Returns the written objects of the record's machine.
    pub fn objects(&self) -> impl Iterator<Item = Object<'_>> {
        let lock = self.lock().ok();
        let objects = lock.into_iter().flat_map(|lock| lock.objects());
        objects.map_while(Result::ok)
    }

    /// Returns the objects in a region.
    pub fn objects_in(&self, region: RegionId) -> impl Iterator<Item = Object<'_>> {
        self.objects()
            .filter(move |object| object.address.region() == region)
    }

    /// Returns the object at this address, as one of its own if it is one of several adjacent ones.
    pub fn object(&self, address: Address) -> Option<Object<'_>> {
        let mut objects = self.objects().flat_map(Object::each);
        objects.find(|object| object.address == address)
    }
}

/// What a machine knows of a transaction in a region of which it was a replica.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InRegion {
    /// The kinds of records, and what the machine was told by recovery.
    pub evidence: Evidence,
    /// The values, if it has them.
    pub body: Option<Body>,
}

/// What a machine knows of a transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// All regions that the transaction wrote.
    pub regions: BTreeSet<RegionId>,
    /// What it knows of those of which it was a replica.
    pub of: BTreeMap<RegionId, InRegion>,
}

/// A transaction below its coordinator's low bound: it has ended on all machines, and what it did has to be done on this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedHere {
    /// Its number.
    pub id: TxId,
    /// Whether it has committed.
    pub committed: bool,
    /// The values for the regions of which this machine was a replica.
    pub of: Vec<(RegionId, Body)>,
}

/// The evidence of one machine: what it knows of transactions that only recovery can decide.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Undecided {
    txs: BTreeMap<TxId, Known>,
    low: LowBounds,
    /// What was told since it was taken last.
    told: Vec<Told>,
}

/// Something that a machine learns of a transaction after its logs were drained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Told {
    /// All regions that it wrote.
    Regions(TxId, BTreeSet<RegionId>),
    /// What is known of one of them.
    InRegion(TxId, RegionId, InRegion),
}

/// Gathers what the logs of a machine say, when nobody writes or reads them any more.
#[derive(Clone, Debug, Default)]
pub struct Drain(Undecided);

impl Drain {
    /// Adds a record of transaction `id` from a log of this machine, after all earlier records of that log.
    ///
    /// # Errors
    /// [`RecordError`] if the body is damaged.
    pub fn add(&mut self, id: TxId, record: &Record<'_>, body: &[u8]) -> Result<(), RecordError> {
        self.add_low((id.configuration, id.coordinator), record.low);
        let evidence = Evidence::of(record.kind);
        if evidence == Evidence::NONE {
            return Ok(());
        }
        let known = self.0.txs.entry(id).or_default();
        if !evidence.has_body() {
            // The end of a transaction follows its LOCK in the same log.
            let locked = known.of.values_mut();
            for one in locked.filter(|one| one.evidence.has(Kind::Lock)) {
                one.evidence = one.evidence.and(evidence);
            }
            return Ok(());
        }
        let body = Body::new(body)?;
        known.regions.extend(body.regions());
        for object in body.objects() {
            let one = known.of.entry(object.address.region()).or_default();
            one.evidence = one.evidence.and(evidence);
            one.body = Some(body.clone());
        }
        Ok(())
    }

    /// Adds a low bound that this machine knows.
    pub fn add_low(&mut self, coordinator: Coordinator, low: u64) {
        self.0.low.raise(coordinator, low);
    }

    /// Adds what other logs of this machine say, of other transactions.
    pub(crate) fn absorb(&mut self, other: Self) {
        let Undecided { txs, low, .. } = other.0;
        self.0.txs.extend(txs);
        self.0.low.raise_all(low);
    }

    /// Ends the drain. Returns what this machine knows of undecided transactions, also from `earlier` drains and recoveries; and those
    /// from these logs that are below the low bound of their coordinator, with what the machine must do for them.
    ///
    /// Only records of logs can be ended in this way. What recovery tells of a transaction says nothing of how it ended, until it is
    /// decided.
    pub fn finish(self, earlier: Undecided) -> (Undecided, Vec<EndedHere>) {
        let Undecided { txs, low, .. } = self.0;
        let (ended, open): (BTreeMap<_, _>, BTreeMap<_, _>) =
            txs.into_iter().partition(|(id, _)| low.have_passed(*id));
        let mut all = earlier;
        all.txs.extend(open);
        all.low.raise_all(low);
        let ended = ended.into_iter().map(|(id, known)| EndedHere {
            id,
            committed: !known.of.values().any(|one| one.evidence.has(Kind::Abort)),
            of: known
                .of
                .into_iter()
                .filter_map(|(region, one)| Some((region, one.body?)))
                .collect(),
        });
        (all, ended.collect())
    }
}

impl Undecided {
    /// Adds a transaction with all regions that it wrote, for example one that a worker of this machine has begun to commit: all
    /// machines must come to know how it ends.
    pub fn add_tx(&mut self, id: TxId, regions: impl IntoIterator<Item = RegionId>) {
        let regions: BTreeSet<RegionId> = regions.into_iter().collect();
        self.learn(Told::Regions(id, regions));
    }

    fn learn(&mut self, told: Told) {
        self.told.push(told.clone());
        self.apply(told);
    }

    /// Takes what was told since this was called last.
    pub(crate) fn take_told(&mut self) -> Vec<Told> {
        std::mem::take(&mut self.told)
    }

    /// Adds what was told before.
    pub(crate) fn apply(&mut self, told: Told) {
        match told {
            Told::Regions(id, regions) => {
                self.txs.entry(id).or_default().regions.extend(regions);
            }
            Told::InRegion(id, region, told) => {
                let known = self.txs.entry(id).or_default();
                if let Some(body) = &told.body {
                    known.regions.extend(body.regions());
                }
                let one = known.of.entry(region).or_default();
                one.evidence = one.evidence.and(told.evidence);
                one.body = one.body.take().or(told.body);
            }
        }
    }

    /// Removes the transactions and low bounds of earlier configurations than this one: all of these transactions are decided, and
    /// applied on all replicas.
    pub fn forget_below(&mut self, configuration: u64) {
        self.txs.retain(|id, _| id.configuration >= configuration);
        self.low.forget_below(configuration);
    }

    /// Returns all transactions.
    pub fn all(&self) -> impl Iterator<Item = (TxId, &Known)> {
        self.txs.iter().map(|(id, known)| (*id, known))
    }

    /// Returns the objects of all values that this machine has: transactions that are not decided may have locked them.
    pub fn objects(&self) -> BTreeSet<Address> {
        let known = self.txs.values().flat_map(|known| known.of.values());
        let bodies = known.filter_map(|one| one.body.as_ref());
        let objects = bodies.flat_map(Body::objects);
        objects.flat_map(|object| object.addresses()).collect()
    }

    /// Returns the low bounds that this machine knows.
    pub fn low(&self) -> &LowBounds {
        &self.low
    }

    /// Returns what this machine knows of a transaction in a region.
    pub fn in_region(&self, id: TxId, region: RegionId) -> Option<&InRegion> {
        self.txs.get(&id)?.of.get(&region)
    }

    /// Adds what recovery has told this machine of a transaction in a region. If the machine knew nothing of the transaction,
    /// [`Undecided::add_tx`] was called before, or there is a body: a machine that knows a part of the regions would let recovery
    /// decide by the votes of that part.
    pub(super) fn tell(&mut self, id: TxId, region: RegionId, told: InRegion) {
        self.learn(Told::InRegion(id, region, told));
    }
}
