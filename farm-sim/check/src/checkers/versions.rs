//! The versions of objects, in the order in which they replaced each other, as derived from a history.
//!
//! Every write replaced another write. Every value records the write that produced it, and the write that was replaced.
//! So the versions of an object form a chain that begins with the initial value. A violation of this is a finding.
//! Accesses of transactions without effect are ignored, except to explain a finding.

use crate::history::{Access, ObjectId, Outcome, Transaction, WriteId};

use super::explain::{self, Names};
use super::finding::{Anomaly, Finding};
use super::graph::NONE;
use super::version::Version;

/// A read of a version by a transaction that took effect.
#[derive(Clone, Copy)]
pub(super) struct Read {
    pub(super) version: u32,
    pub(super) reader: u32,
}

/// All versions that effective transactions read or wrote, sorted by object and write.
pub(super) struct Versions {
    pub(super) versions: Vec<Version>,
    pub(super) reads: Vec<Read>,
    /// Number of writes.
    pub(super) writes: usize,
    /// Number of transactions: the listed ones, followed by one for each version whose writer is not listed.
    pub(super) transactions: u32,
}

/// Returns the object, the write, and the write that it replaced.
fn parts(access: &Access) -> (ObjectId, WriteId, WriteId) {
    match *access {
        Access::Read {
            object, id, parent, ..
        }
        | Access::Write { object, id, parent } => (object, id, parent),
    }
}

/// Returns for each transaction whether it took effect: true for a committed transaction, and for a transaction of
/// unknown outcome if an access of an effective transaction names one of its writes, as the value or as the parent of
/// the value.
pub(super) fn effective(transactions: &[Transaction]) -> Vec<bool> {
    let mut effective: Vec<bool> = transactions
        .iter()
        .map(|transaction| transaction.outcome == Outcome::Committed)
        .collect();
    let mut unsure: Vec<(ObjectId, WriteId, usize)> = Vec::new();
    for (index, transaction) in transactions.iter().enumerate() {
        if transaction.outcome == Outcome::Unknown {
            unsure.extend(transaction.accesses.iter().filter_map(|access| {
                let (object, id, _) = parts(access);
                matches!(access, Access::Write { .. }).then_some((object, id, index))
            }));
        }
    }
    if unsure.is_empty() {
        return effective;
    }
    unsure.sort_unstable();
    let mut left: Vec<usize> = (0..transactions.len()).filter(|t| effective[*t]).collect();
    while let Some(transaction) = left.pop() {
        for access in &transactions[transaction].accesses {
            let (object, id, parent) = parts(access);
            for seen in [id, parent] {
                let from = unsure.partition_point(|write| (write.0, write.1) < (object, seen));
                for &(its, write, writer) in &unsure[from..] {
                    if (its, write) != (object, seen) {
                        break;
                    }
                    if !effective[writer] {
                        effective[writer] = true;
                        left.push(writer);
                    }
                }
            }
        }
    }
    effective
}

/// An access of an effective transaction, with the version that was read or written and the parent of that version.
struct Named<'h> {
    transaction: u32,
    access: &'h Access,
    version: u32,
    parent: u32,
}

/// Collects the versions that the accesses name, sorted by object and write.
fn number<'h>(
    transactions: &'h [Transaction],
    effective: &[bool],
) -> (Vec<Version>, Vec<Named<'h>>) {
    let mut named = Vec::new();
    let mut keys: Vec<u128> = Vec::new();
    for (index, transaction) in transactions.iter().enumerate() {
        for access in transaction.accesses.iter().filter(|_| effective[index]) {
            let (object, id, parent) = parts(access);
            let slot = named.len() as u128 * 2;
            let key = |id: WriteId| u128::from(object.0) << 96 | u128::from(id.0) << 32;
            keys.push(key(id) | slot);
            if id != WriteId::INITIAL {
                keys.push(key(parent) | slot | 1);
            }
            named.push(Named {
                transaction: index as u32,
                access,
                version: NONE,
                parent: NONE,
            });
        }
    }
    let slots = u32::try_from(named.len() * 2);
    slots.expect("a history in memory has fewer accesses than 2^31");
    keys.sort_unstable();
    let mut versions: Vec<Version> = Vec::new();
    let mut last = None;
    for key in keys {
        if last != Some(key >> 32) {
            last = Some(key >> 32);
            versions.push(Version {
                object: ObjectId((key >> 96) as u32),
                id: WriteId((key >> 32) as u64),
                number: None,
                parent: NONE,
                child: NONE,
                writer: NONE,
            });
        }
        let version = versions.len() as u32 - 1;
        let slot = key as u32;
        let names = &mut named[slot as usize / 2];
        if slot.is_multiple_of(2) {
            names.version = version;
        } else {
            names.parent = version;
        }
    }
    (versions, named)
}

impl Versions {
    /// Derives the versions from these transactions, and checks them.
    pub(super) fn of(transactions: &[Transaction], effective: &[bool]) -> Result<Self, Finding> {
        let (versions, named) = number(transactions, effective);
        let reads = named.iter().filter_map(|name| {
            matches!(name.access, Access::Read { .. }).then_some(Read {
                version: name.version,
                reader: name.transaction,
            })
        });
        let reads: Vec<Read> = reads.collect();
        let mut this = Self {
            versions,
            writes: named.len() - reads.len(),
            reads,
            transactions: transactions.len() as u32,
        };
        let names = Names(transactions);
        this.find_writers(&names, &named)?;
        this.find_parents(&names, &named)?;
        this.find_children(&names)?;
        this.find_numbers(&names, &named)?;
        this.find_chains(&names)?;
        this.check_reads(&names)?;
        Ok(this)
    }

    /// Finds the writer of each version. A version without a writer is a finding, unless a transaction of unknown
    /// outcome may have written it.
    fn find_writers(&mut self, names: &Names, named: &[Named]) -> Result<(), Finding> {
        for name in named {
            let Access::Write { .. } = name.access else {
                continue;
            };
            let version = &mut self.versions[name.version as usize];
            if version.id == WriteId::INITIAL || version.writer != NONE {
                let text = format!(
                    "{version} was written twice\n{}",
                    names.describe(&[version.writer, name.transaction])
                );
                return Err(Finding::new(Anomaly::DuplicateVersion, text));
            }
            version.writer = name.transaction;
        }
        for version in 0..self.versions.len() {
            let seen = &mut self.versions[version];
            if seen.writer == NONE && seen.id != WriteId::INITIAL {
                if let Some((kind, text)) = explain::missing_writer(names, seen) {
                    let by = named
                        .iter()
                        .find(|name| [name.version, name.parent].contains(&(version as u32)));
                    let by = by.map_or(NONE, |name| name.transaction);
                    return Err(Finding::new(
                        kind,
                        format!("{text}\n{}", names.describe(&[by])),
                    ));
                }
                seen.writer = self.transactions;
                self.transactions += 1;
            }
        }
        Ok(())
    }

    /// Finds the version that each version replaced. All accesses must agree on it.
    fn find_parents(&mut self, names: &Names, named: &[Named]) -> Result<(), Finding> {
        for name in named {
            let (_, id, parent) = parts(name.access);
            if id == WriteId::INITIAL {
                if parent != WriteId::INITIAL {
                    let what = &self.versions[name.version as usize];
                    let text = format!("{what} is recorded as replacing write {}", parent.0);
                    return Err(order(text, names, &[name.transaction]));
                }
                continue;
            }
            let before = self.versions[name.version as usize].parent;
            if before != NONE && before != name.parent {
                let [what, one, other] = [name.version, before, name.parent]
                    .map(|version| &self.versions[version as usize]);
                let text = format!("{what} is recorded as replacing {one} and also {other}");
                return Err(order(text, names, &[what.writer, name.transaction]));
            }
            self.versions[name.version as usize].parent = name.parent;
        }
        Ok(())
    }

    /// Finds the version that replaced each version. There may be at most one.
    fn find_children(&mut self, names: &Names) -> Result<(), Finding> {
        for child in 0..self.versions.len() {
            let parent = self.versions[child].parent as usize;
            if parent == NONE as usize {
                continue;
            }
            let other = self.versions[parent].child;
            if other != NONE {
                let [what, one, other] =
                    [parent, other as usize, child].map(|version| &self.versions[version]);
                let text = format!(
                    "{what} was replaced by {one} and by {other}\n{}",
                    names.describe(&[one.writer, other.writer])
                );
                return Err(Finding::new(Anomaly::LostUpdate, text));
            }
            self.versions[parent].child = child as u32;
        }
        Ok(())
    }

    /// Finds the number of each version that was read. All reads must agree on it.
    fn find_numbers(&mut self, names: &Names, named: &[Named]) -> Result<(), Finding> {
        for name in named {
            let Access::Read { version, .. } = *name.access else {
                continue;
            };
            let known = &mut self.versions[name.version as usize];
            if known.number.is_some_and(|number| number != version) {
                let text = format!("{known} was also read as version {version}");
                return Err(duplicate(text, names, &[known.writer, name.transaction]));
            }
            known.number = Some(version);
        }
        Ok(())
    }

    /// Checks that every version is in a chain, and that version numbers increase along each chain.
    fn find_chains(&self, names: &Names) -> Result<(), Finding> {
        let mut chained = vec![false; self.versions.len()];
        for first in 0..self.versions.len() {
            if self.versions[first].parent != NONE {
                continue;
            }
            let mut last: Option<(u64, &Version)> = None;
            let mut at = first as u32;
            while at != NONE {
                let version = &self.versions[at as usize];
                chained[at as usize] = true;
                at = version.child;
                let Some(number) = version.number else {
                    continue;
                };
                if let Some((before, earlier)) = last.filter(|(before, _)| *before >= number) {
                    let text = format!(
                        "{version} replaced {earlier}, directly or not, but has no higher version number"
                    );
                    let who = [earlier.writer, version.writer];
                    return Err(if before == number {
                        duplicate(text, names, &who)
                    } else {
                        order(text, names, &who)
                    });
                }
                last = Some((number, version));
            }
        }
        if let Some(at) = chained.iter().position(|chained| !chained) {
            let version = &self.versions[at];
            let text = format!("{version} replaced itself, through other writes");
            return Err(order(text, names, &[version.writer]));
        }
        self.compare_chains(names)
    }

    /// Checks that all versions of an object have different version numbers. If some writers are not listed, the chain
    /// of an object may consist of several parts, which [`Versions::find_chains`] checks one by one.
    fn compare_chains(&self, names: &Names) -> Result<(), Finding> {
        if self.transactions as usize == names.0.len() {
            return Ok(());
        }
        let mut numbers: Vec<(ObjectId, u64, u32)> = Vec::new();
        for (index, version) in self.versions.iter().enumerate() {
            numbers.extend(version.number.map(|n| (version.object, n, index as u32)));
        }
        numbers.sort_unstable();
        for pair in numbers.windows(2) {
            if (pair[0].0, pair[0].1) == (pair[1].0, pair[1].1) {
                let [one, other] = [pair[0].2, pair[1].2].map(|at| &self.versions[at as usize]);
                let text = format!("{one} and {other} have the same version number");
                return Err(duplicate(text, names, &[one.writer, other.writer]));
            }
        }
        Ok(())
    }

    /// If the writer of a version also replaced the version, checks that no other transaction read the version.
    fn check_reads(&self, names: &Names) -> Result<(), Finding> {
        for read in &self.reads {
            let version = &self.versions[read.version as usize];
            let next = self.versions.get(version.child as usize);
            let replaced = next.is_some_and(|next| next.writer == version.writer);
            if version.writer != NONE && replaced && read.reader != version.writer {
                let text = format!(
                    "{version} was read by another transaction, but its own writer replaced it\n{}",
                    names.describe(&[version.writer, read.reader])
                );
                return Err(Finding::new(Anomaly::IntermediateRead, text));
            }
        }
        Ok(())
    }
}

fn order(text: String, names: &Names, who: &[u32]) -> Finding {
    let text = format!("{text}\n{}", names.describe(who));
    Finding::new(Anomaly::IncompatibleOrder, text)
}

fn duplicate(text: String, names: &Names, who: &[u32]) -> Finding {
    let text = format!("{text}\n{}", names.describe(who));
    Finding::new(Anomaly::DuplicateVersion, text)
}
