//! Tables of keys and values of fixed sizes.

use std::fmt;
use std::marker::PhantomData;

use bytemuck::Pod;
use farm_kv::TableSpec;
use farm_kv::shard::Changed;
use farm_kv::tasks::ChangeKind;

use crate::access::{Access, Alone, Site as _, change, look_up, look_up_many};
use crate::error::{Error, Kind, Result};
use crate::key::Key;

/// A value of a table: any type of fixed size whose bytes are plain, which `#[derive(Clone, Copy, Pod, Zeroable)]` with
/// `#[repr(C)]` checks. The futures of a call contain several copies of a value: box the futures of values of many KiB, or the
/// stack may be too small.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a value of a table",
    note = "values have a fixed size and plain bytes: use `#[derive(Clone, Copy, Pod, Zeroable)]` and `#[repr(C)]`; values \
            whose size changes, such as strings, are not supported yet"
)]
pub trait Value: Pod + Send + Sync {}

impl<V: Pod + Send + Sync> Value for V {}

/// A table with keys of type `K` and values of type `V`, which all machines of the cluster share. It is a name, which can
/// be copied. It is created by [`Cluster::create_table`](crate::Cluster::create_table), and found by its name.
///
/// All operations run alone, with `&Farm` or `&LocalFarm`, or inside of a transaction, with [`Tx`](crate::Tx). Alone, a
/// lookup takes no lock, and is usually one one-sided read; a change takes effect at one moment.
///
/// ```
/// # use farm::prelude::*;
/// # let cluster = Cluster::local(2).start()?;
/// let table: Table<(u32, u16), [f64; 2]> = cluster.create_table("positions", 1000)?;
/// cluster.block_on(async |farm| {
///     assert!(table.insert(&farm, (7, 1), [0.5, 1.5]).await?);
///     assert!(!table.insert(&farm, (7, 1), [9.0, 9.0]).await?, "the key exists");
///     table.put(&farm, (7, 2), [2.5, 3.5]).await?;
///     let (one, none) = farm.transact(async |tx| {
///         let moved = table.get(tx, (7, 1)).await?;
///         table.remove(tx, (7, 1)).await?;
///         Ok((moved, table.get(tx, (7, 1)).await?))
///     }).await?;
///     assert_eq!((one, none), (Some([0.5, 1.5]), None));
///     assert!(table.contains(&farm, (7, 2)).await?);
///     Ok::<_, Error>(())
/// })?;
/// # cluster.stop()?;
/// # Ok::<_, Error>(())
/// ```
pub struct Table<K, V> {
    spec: TableSpec,
    _of: PhantomData<fn() -> (K, V)>,
}

impl<K, V> Clone for Table<K, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K, V> Copy for Table<K, V> {}

impl<K, V> fmt::Debug for Table<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Table({})", self.spec.id)
    }
}

/// A value as the bytes that a call owns.
#[derive(Clone, Copy)]
struct Encoded<V>(V);

impl<V: Pod> AsRef<[u8]> for Encoded<V> {
    fn as_ref(&self) -> &[u8] {
        bytemuck::bytes_of(&self.0)
    }
}

impl<K: Key, V: Value> Table<K, V> {
    /// Returns the table of this specification.
    ///
    /// # Errors
    /// [`Kind::Invalid`] if its keys or values have other sizes than `K` and `V`.
    pub(crate) fn of(name: &str, spec: TableSpec) -> Result<Self> {
        let (keys, values) = (K::BYTES, size_of::<V>());
        if (spec.key_bytes, spec.value_bytes) != (keys, values) {
            let text = format!(
                "the table {name:?} has keys of {} bytes and values of {} bytes, not of {keys} and {values}",
                spec.key_bytes, spec.value_bytes
            );
            return Err(Error::new(Kind::Invalid, text));
        }
        let _of = PhantomData;
        Ok(Self { spec, _of })
    }

    /// Returns a table that was opened by its specification, without the catalog.
    ///
    /// # Errors
    /// [`Kind::Invalid`] if its keys or values have other sizes than `K` and `V`.
    pub fn of_spec(spec: TableSpec) -> Result<Self> {
        Self::of(&format!("number {}", spec.id), spec)
    }

    /// Returns the specification, for the interfaces below this one.
    pub fn spec(&self) -> &TableSpec {
        &self.spec
    }

    /// Returns the value of a key.
    ///
    /// # Errors
    /// [`Kind::Lost`], [`Kind::Stopped`]; in a transaction also [`Kind::Conflict`], [`Kind::TooLarge`], [`Kind::Ended`]
    /// and [`Kind::OpenTooLong`].
    #[inline]
    pub async fn get(&self, at: impl Access, key: K) -> Result<Option<V>> {
        let mut value = V::zeroed();
        let store = |bytes: &[u8]| value = bytemuck::pod_read_unaligned(bytes);
        let found = look_up(at.site(), &self.spec, key.to_bytes(), store).await?;
        Ok(found.then_some(value))
    }

    /// Returns the value of a key, or zeros if there is none.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub async fn get_or_default(&self, at: impl Access, key: K) -> Result<V> {
        let value = self.get(at, key).await?;
        Ok(value.unwrap_or_else(V::zeroed))
    }

    /// Returns the values of keys, in their order. All of their reads are in flight at the same time. Alone, each value is
    /// of a moment of its own.
    ///
    /// # Errors
    /// As [`Table::get`]: the first error.
    pub async fn get_many(&self, at: impl Access, keys: &[K]) -> Result<Vec<Option<V>>> {
        look_up_many(at.site(), &self.spec, keys).await
    }

    /// Returns the number of pairs. The workers that own the shards read all buckets, each at a moment of its own: the number is exact if
    /// nothing changes the table meanwhile.
    ///
    /// # Errors
    /// [`Kind::Lost`], [`Kind::Stopped`].
    pub async fn len<'f>(&self, at: impl Alone<'f>) -> Result<u64> {
        let worker = at.site();
        loop {
            match farm_kv::tasks::count(worker, self.spec.table()).await {
                Ok(pairs) => return Ok(pairs),
                Err(error) => worker.recover(&self.spec, error).await?,
            }
        }
    }

    /// Returns whether the table has no pairs: see [`Table::len`].
    ///
    /// # Errors
    /// As [`Table::len`].
    pub async fn is_empty<'f>(&self, at: impl Alone<'f>) -> Result<bool> {
        Ok(self.len(at).await? == 0)
    }

    /// Returns whether the table has a key.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub async fn contains(&self, at: impl Access, key: K) -> Result<bool> {
        look_up(at.site(), &self.spec, key.to_bytes(), |_| ()).await
    }

    /// Inserts a pair. Returns `false` if the table has the key: then nothing changes.
    ///
    /// # Errors
    /// As [`Table::get`]; [`Kind::Full`]. Alone also [`Kind::Unknown`]: the machine that was asked for the change is lost, and may have
    /// made it.
    pub async fn insert(&self, at: impl Access, key: K, value: V) -> Result<bool> {
        let changed = self.change(at, key, ChangeKind::Insert, value).await?;
        Ok(changed == Changed::Inserted)
    }

    /// Inserts a pair, or replaces the value of the key. Returns whether the key is new.
    ///
    /// # Errors
    /// As [`Table::insert`].
    pub async fn put(&self, at: impl Access, key: K, value: V) -> Result<bool> {
        let changed = self.change(at, key, ChangeKind::Upsert, value).await?;
        Ok(changed == Changed::Inserted)
    }

    /// Replaces the value of a key. Returns `false` if the table does not have the key: then nothing changes.
    ///
    /// # Errors
    /// As [`Table::insert`].
    pub async fn replace(&self, at: impl Access, key: K, value: V) -> Result<bool> {
        let changed = self.change(at, key, ChangeKind::Update, value).await?;
        Ok(changed == Changed::Updated)
    }

    /// Removes a key. Returns `false` if the table does not have it.
    ///
    /// # Errors
    /// As [`Table::insert`].
    pub async fn remove(&self, at: impl Access, key: K) -> Result<bool> {
        let key = key.to_bytes();
        let changed = change(at.site(), &self.spec, key, ChangeKind::Remove, []).await?;
        Ok(changed == Changed::Removed)
    }

    async fn change(&self, at: impl Access, key: K, kind: ChangeKind, value: V) -> Result<Changed> {
        change(at.site(), &self.spec, key.to_bytes(), kind, Encoded(value)).await
    }
}
