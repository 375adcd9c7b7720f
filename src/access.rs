//! Where operations on tables run.

use std::future::Future;

use farm_kv::shard::Changed;
use farm_kv::tasks::{self as kv, Bytes, ChangeKind};
use farm_kv::{TableId, TableSpec};
use farm_txn::{Handle, Transaction, TxError};

use crate::error::Result;
use crate::farm::{Farm, LocalFarm};
use crate::tx::Tx;

/// Where an operation on a table runs: alone (`&Farm`, `&LocalFarm`), or inside of a transaction ([`Tx`]).
pub trait Access: sealed::Access {}

impl Access for &Farm {}
impl Access for &LocalFarm {}
impl Access for Tx<'_> {}

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

/// A worker, or a transaction: each makes one try of an operation on a table.
#[doc(hidden)]
pub trait Site: Copy {
    /// Looks up a key. Returns what `finish` makes of the result.
    fn look_up<T>(
        self,
        table: TableId,
        key: impl Bytes,
        finish: impl FnOnce(Result<Option<&[u8]>, TxError>) -> T,
    ) -> impl Future<Output = T>;

    /// Changes the pair of a key.
    fn change(
        self,
        table: TableId,
        key: impl Bytes,
        kind: ChangeKind,
        value: impl Bytes,
    ) -> impl Future<Output = Result<Changed, TxError>>;

    /// Does what an operation needs that failed with this error, so that it can be tried again. Returns the error if there
    /// is no such thing.
    fn recover(
        self,
        table: &TableSpec,
        error: TxError,
    ) -> impl Future<Output = Result<(), TxError>>;
}

impl Site for &Handle {
    #[inline]
    fn look_up<T>(
        self,
        table: TableId,
        key: impl Bytes,
        finish: impl FnOnce(Result<Option<&[u8]>, TxError>) -> T,
    ) -> impl Future<Output = T> {
        kv::look_up(self, table, key, finish)
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
    #[inline]
    fn look_up<T>(
        self,
        table: TableId,
        key: impl Bytes,
        finish: impl FnOnce(Result<Option<&[u8]>, TxError>) -> T,
    ) -> impl Future<Output = T> {
        kv::read(self, table, key, finish)
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

    async fn recover(self, table: &TableSpec, error: TxError) -> Result<(), TxError> {
        match kv::is_not_open(&error) {
            true => kv::open_within(self, *table).await.map(drop),
            false => Err(error),
        }
    }
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
