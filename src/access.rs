//! Where operations on tables run.

use std::future::Future;

use farm_core::object::FatPointer;
use farm_core::worker::Worker;
use farm_kv::shard::Changed;
use farm_kv::tasks::{self as kv, Bytes, ChangeKind};
use farm_kv::{TableId, TableSpec};
use farm_txn::{Handle, Transaction, TxError};

use crate::error::{Error, Kind, Result};
use crate::farm::{Farm, LocalFarm};
use crate::key::Key;
use crate::table::Value;
use crate::tx::Tx;

/// Number of keys that are looked up at a time.
const MOST_AT_ONCE: usize = 512;

/// Where an operation on a table runs: alone (`&Farm`, `&LocalFarm`), or inside of a transaction ([`Tx`]).
pub trait Access: sealed::Access {}

impl Access for &Farm {}
impl Access for &LocalFarm {}
impl Access for Tx<'_> {}

/// Where an operation runs that cannot be part of a transaction: `&Farm`, `&LocalFarm`.
pub trait Alone<'f>: Access + sealed::Access<Site = &'f Handle> {}

impl<'f> Alone<'f> for &'f Farm {}
impl<'f> Alone<'f> for &'f LocalFarm {}

/// Implemented and used only in this crate.
mod sealed {
    /// See [`Access`](super::Access).
    pub trait Access: Copy {
        /// Where the operation runs.
        type Site: super::Site;
        /// Returns the worker, or the transaction, of one operation.
        fn site(self) -> Self::Site;
    }

    impl<'f> Access for &'f super::Farm {
        type Site = &'f super::Handle;
        #[inline]
        fn site(self) -> Self::Site {
            self.worker()
        }
    }

    impl<'f> Access for &'f super::LocalFarm {
        type Site = &'f super::Handle;
        #[inline]
        fn site(self) -> Self::Site {
            self.handle()
        }
    }

    impl<'f> Access for super::Tx<'f> {
        type Site = super::Transaction<'f>;
        #[inline]
        fn site(self) -> Self::Site {
            self.0
        }
    }
}

/// A worker, or a transaction.
#[doc(hidden)]
pub enum Where<'f> {
    Alone(&'f Handle),
    Within(Transaction<'f>),
}

/// A worker, or a transaction: each makes one try of an operation on a table.
#[doc(hidden)]
pub trait Site: Copy {
    /// Returns which of both it is.
    fn place<'f>(self) -> Where<'f>
    where
        Self: 'f;

    /// Looks up a key. Returns what `finish` makes of the result.
    fn look_up<T>(
        self,
        table: TableId,
        key: impl Bytes,
        finish: impl FnOnce(Result<Option<&[u8]>, TxError>) -> T,
    ) -> impl Future<Output = T>;

    /// Looks up keys as far as that is possible without waiting, and stores their values. Returns the indexes of the
    /// others.
    fn look_up_many<K: Key, V: Value>(
        self,
        table: TableId,
        keys: &[K],
        values: &mut [Option<V>],
    ) -> impl Future<Output = Result<Vec<usize>, TxError>>;

    /// Changes the pair of a key.
    fn change(
        self,
        table: TableId,
        key: impl Bytes,
        kind: ChangeKind,
        value: impl Bytes,
    ) -> impl Future<Output = Result<Changed, TxError>>;

    /// Adds to the number in an object. Returns the number before.
    fn add(self, object: FatPointer, count: u64) -> impl Future<Output = Result<u64>>;

    /// Does what an operation needs that failed with this error, so that it can be tried again. Returns the error if there
    /// is no such thing.
    fn recover(
        self,
        table: &TableSpec,
        error: TxError,
    ) -> impl Future<Output = Result<(), TxError>>;
}

impl Site for &Handle {
    fn place<'f>(self) -> Where<'f>
    where
        Self: 'f,
    {
        Where::Alone(self)
    }

    #[inline]
    fn look_up<T>(
        self,
        table: TableId,
        key: impl Bytes,
        finish: impl FnOnce(Result<Option<&[u8]>, TxError>) -> T,
    ) -> impl Future<Output = T> {
        kv::look_up(self, table, key, finish)
    }

    #[inline]
    async fn look_up_many<K: Key, V: Value>(
        self,
        table: TableId,
        keys: &[K],
        values: &mut [Option<V>],
    ) -> Result<Vec<usize>, TxError> {
        let key = |index: usize| keys[index].to_bytes();
        let here = self.at_once(|worker| get_many(worker, table, keys.len(), key, values));
        if let Some(done) = here {
            let (left, enough) = done?;
            if enough {
                self.let_others_run().await;
            }
            return Ok(left);
        }
        // Another thread: the worker cannot borrow its keys and values.
        let keys: Vec<K::Bytes> = keys.iter().map(|key| key.to_bytes()).collect();
        let mut found = vec![None; keys.len()];
        let work = move |worker: &mut Worker| {
            let key = |index: usize| &keys[index];
            let (left, _) = get_many(worker, table, keys.len(), key, &mut found)?;
            Ok::<_, TxError>((found, left))
        };
        let (found, left) = self.with_worker(work).await??;
        values.copy_from_slice(&found);
        Ok(left)
    }

    fn change(
        self,
        table: TableId,
        key: impl Bytes,
        kind: ChangeKind,
        value: impl Bytes,
    ) -> impl Future<Output = Result<Changed, TxError>> {
        kv::change_alone(self, table, key, kind, value)
    }

    async fn add(self, object: FatPointer, count: u64) -> Result<u64> {
        self.try_transact(async |tx| add(tx, object, count).await)
            .await
    }

    async fn recover(self, table: &TableSpec, error: TxError) -> Result<(), TxError> {
        match error {
            TxError::Busy => kv::when_slot(self, table.table()).await,
            error if kv::is_not_open(&error) => _ = kv::open(self, *table).await?,
            error => return Err(error),
        }
        Ok(())
    }
}

impl Site for Transaction<'_> {
    fn place<'f>(self) -> Where<'f>
    where
        Self: 'f,
    {
        Where::Within(self)
    }

    #[inline]
    fn look_up<T>(
        self,
        table: TableId,
        key: impl Bytes,
        finish: impl FnOnce(Result<Option<&[u8]>, TxError>) -> T,
    ) -> impl Future<Output = T> {
        kv::read(self, table, key, finish)
    }

    /// The transaction records each read.
    async fn look_up_many<K: Key, V: Value>(
        self,
        _: TableId,
        keys: &[K],
        _: &mut [Option<V>],
    ) -> Result<Vec<usize>, TxError> {
        Ok((0..keys.len()).collect())
    }

    fn change(
        self,
        table: TableId,
        key: impl Bytes,
        kind: ChangeKind,
        value: impl Bytes,
    ) -> impl Future<Output = Result<Changed, TxError>> {
        kv::write(self, table, key, kind, value)
    }

    async fn add(self, object: FatPointer, count: u64) -> Result<u64> {
        add(self, object, count).await
    }

    async fn recover(self, table: &TableSpec, error: TxError) -> Result<(), TxError> {
        match kv::is_not_open(&error) {
            true => kv::open_within(self, *table).await.map(drop),
            false => Err(error),
        }
    }
}

/// Adds to the number at the beginning of an object. Returns the number before.
async fn add(tx: Transaction<'_>, object: FatPointer, count: u64) -> Result<u64> {
    let object = tx.read_pointer(object).await?;
    let added = tx.change(object, move |payload| {
        let number = u64::from_le_bytes(*payload.first_chunk()?);
        let after = number.checked_add(count)?;
        payload[..8].copy_from_slice(&after.to_le_bytes());
        Some(number)
    });
    let exhausted = || Error::new(Kind::TooLarge, "the sequence has no more numbers");
    added.await?.ok_or_else(exhausted)
}

/// Looks up a key. Calls `store` with the value, if there is one. Opens the table if it is not open, and waits if too many
/// reads are in flight.
///
/// Returns whether the table has the key. The value is not part of the output, nor is any output of the call used, because
/// each future that passes on an output of more than two words copies it, and its parts are stored in other sizes than
/// the copy loads.
#[inline]
pub(crate) async fn look_up(
    site: impl Site,
    table: &TableSpec,
    key: impl Bytes + Clone,
    mut store: impl FnMut(&[u8]),
) -> Result<bool> {
    let (mut is_found, mut failed) = (false, None);
    let keep = |found: Result<Option<&[u8]>, TxError>| match found {
        Ok(Some(value)) => {
            store(value);
            is_found = true;
        }
        Ok(None) => {}
        Err(error) => failed = Some(error),
    };
    site.look_up(table.table(), key.clone(), keep).await;
    match failed {
        None => Ok(is_found),
        Some(error) => Box::pin(look_up_again(site, table, key, store, error)).await,
    }
}

/// Looks up a key after a failure.
#[cold]
async fn look_up_again(
    site: impl Site,
    table: &TableSpec,
    key: impl Bytes + Clone,
    mut store: impl FnMut(&[u8]),
    mut error: TxError,
) -> Result<bool> {
    loop {
        site.recover(table, error).await?;
        let keep = |found: Result<Option<&[u8]>, TxError>| Ok(found?.map(&mut store).is_some());
        match site.look_up(table.table(), key.clone(), keep).await {
            Ok(found) => return Ok(found),
            Err(again) => error = again,
        }
    }
}

/// Looks up keys on their worker as far as that is possible without waiting. Returns the indexes of the others, and whether
/// other work should run.
#[inline]
fn get_many<B: AsRef<[u8]>, V: Value>(
    worker: &mut Worker,
    table: TableId,
    count: usize,
    key: impl Fn(usize) -> B,
    values: &mut [Option<V>],
) -> Result<(Vec<usize>, bool), TxError> {
    let mut left = Vec::new();
    let found = |index: usize, value: Option<&[u8]>| {
        values[index] = value.map(bytemuck::pod_read_unaligned);
    };
    let enough = farm_kv::get_many(worker, table, count, key, found, &mut left)?;
    Ok((left, enough))
}

/// Looks up keys, and returns their values in the order of the keys. Opens the table if it is not open.
pub(crate) async fn look_up_many<K: Key, V: Value>(
    site: impl Site,
    table: &TableSpec,
    keys: &[K],
) -> Result<Vec<Option<V>>> {
    let mut values = vec![None; keys.len()];
    let chunks = keys
        .chunks(MOST_AT_ONCE)
        .zip(values.chunks_mut(MOST_AT_ONCE));
    for (keys, values) in chunks {
        let left = loop {
            match site.look_up_many(table.table(), keys, values).await {
                Ok(left) => break left,
                Err(error) => site.recover(table, error).await?,
            }
        };
        if !left.is_empty() {
            let single = |index: usize| async move {
                let mut value = V::zeroed();
                let store = |bytes: &[u8]| value = bytemuck::pod_read_unaligned(bytes);
                let found = look_up(site, table, keys[index].to_bytes(), store).await?;
                Ok::<_, Error>((index, found.then_some(value)))
            };
            // All are awaited: a transaction ends if one of its calls is dropped.
            let all = futures_util::future::join_all(left.into_iter().map(single));
            for found in all.await {
                let (index, value) = found?;
                values[index] = value;
            }
        }
    }
    Ok(values)
}

/// Changes the pair of a key. Opens the table if it is not open.
pub(crate) async fn change(
    site: impl Site,
    table: &TableSpec,
    key: impl Bytes + Clone,
    kind: ChangeKind,
    value: impl Bytes + Clone,
) -> Result<Changed> {
    let id = table.table();
    loop {
        match site.change(id, key.clone(), kind, value.clone()).await {
            Ok(changed) => return Ok(changed),
            Err(error) => site.recover(table, error).await?,
        }
    }
}
