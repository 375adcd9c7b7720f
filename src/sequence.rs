//! Sequences of numbers.

use std::ops::Range;

use farm_core::object::FatPointer;

use crate::access::{Access, Site as _};
use crate::error::Result;

/// A sequence of numbers, each of which is given once, to one caller of all machines. It is a name, which can be copied. It
/// is created by [`Cluster::create_sequence`](crate::Cluster::create_sequence).
///
/// All callers write the same object, so that they conflict. A program that needs many numbers takes some hundred at a time,
/// and gives them away itself.
///
/// ```
/// # use farm::prelude::*;
/// # let cluster = Cluster::local(2).start()?;
/// let ids = cluster.create_sequence("order ids", 1000)?;
/// let orders: Table<u64, u64> = cluster.create_table("orders", 100)?;
/// cluster.block_on(async |farm| {
///     assert_eq!(ids.next(&farm).await?, 1000);
///     assert_eq!(ids.take(&farm, 100).await?, 1001..1101);
///     // If a transaction does not commit, it has taken no number.
///     let id = farm.transact(async |tx| {
///         let id = ids.next(tx).await?;
///         orders.insert(tx, id, 1).await?;
///         Ok(id)
///     }).await?;
///     assert_eq!(id, 1101);
///     Ok::<_, Error>(())
/// })?;
/// # cluster.stop()?;
/// # Ok::<_, Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence {
    object: FatPointer,
}

impl Sequence {
    pub(crate) fn new(object: FatPointer) -> Self {
        Self { object }
    }

    /// Returns the next number. Inside of a transaction, the number is taken when the transaction commits.
    ///
    /// # Errors
    /// As [`Table::get`](crate::Table::get); [`Kind::TooLarge`](crate::Kind::TooLarge) after the last number of 64 bits.
    pub async fn next(&self, at: impl Access) -> Result<u64> {
        at.site().add(self.object, 1).await
    }

    /// Returns the next `count` numbers.
    ///
    /// # Errors
    /// As [`Sequence::next`].
    pub async fn take(&self, at: impl Access, count: u64) -> Result<Range<u64>> {
        let first = at.site().add(self.object, count).await?;
        Ok(first..first + count)
    }
}
