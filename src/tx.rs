//! Transactions, and objects of a fixed layout in them.

use bytemuck::Pod;
use farm_core::ids::Address;
use farm_core::mem::Ptr;
use farm_txn::{ObjectId, Transaction};

use crate::error::Result;
use crate::ptr::{decode, fat};

/// A transaction: a name that can be copied, of state that lies with the worker. After its body has ended, its calls
/// return [`Kind::Ended`](crate::Kind::Ended).
///
/// If a call is dropped before it completes, the transaction ends.
#[derive(Clone, Copy, Debug)]
pub struct Tx<'f>(pub(crate) Transaction<'f>);

impl<'f> Tx<'f> {
    /// Returns the transaction of the interface below this one, for raw bytes, arrays and fat pointers.
    pub fn raw(self) -> Transaction<'f> {
        self.0
    }
}

/// Operations on objects, by pointers that know the type of the object.
///
/// ```
/// use farm::prelude::*;
///
/// // A list, whose nodes are objects on any machine.
/// #[derive(Clone, Copy, Pod, Zeroable)]
/// #[repr(C)]
/// struct Node { value: u64, next: Ptr<Node> }
///
/// # let cluster = Cluster::local(2).start()?;
/// # cluster.block_on(async |farm| {
/// let list = farm.transact(async |tx| {
///     let last = tx.alloc(Node { value: 2, next: Ptr::null() }).await?;
///     tx.alloc(Node { value: 1, next: last }).await
/// }).await?;
/// farm.transact(async |tx| tx.update(list, |node: &mut Node| node.value += 10).await).await?;
/// let first = farm.get(list).await?;
/// assert_eq!((first.value, farm.get(first.next).await?.value), (11, 2));
/// # Ok::<_, Error>(())
/// # })?;
/// # cluster.stop()?;
/// # Ok::<_, Error>(())
/// ```
impl Tx<'_> {
    /// Allocates an object with this value. The futures of a call contain several copies of the value: for values of many
    /// KiB, use [`Tx::raw`], whose calls take slices.
    ///
    /// # Errors
    /// [`Kind::Full`](crate::Kind::Full), [`Kind::TooLarge`](crate::Kind::TooLarge).
    pub async fn alloc<T: Pod + Send>(self, value: T) -> Result<Ptr<T>> {
        self.alloc_at(None, value).await
    }

    /// Allocates an object with this value on the machine of another object, and near it if possible.
    ///
    /// # Errors
    /// As [`Tx::alloc`].
    pub async fn alloc_near<T: Pod + Send, U: Pod>(self, near: Ptr<U>, value: T) -> Result<Ptr<T>> {
        self.alloc_at(Some(fat(near)?.address), value).await
    }

    async fn alloc_at<T: Pod + Send>(self, near: Option<Address>, value: T) -> Result<Ptr<T>> {
        let object = self.0.alloc(size_of::<T>(), near).await?;
        self.write(object, value).await?;
        Ok(self.0.pointer(object).await?.into())
    }

    async fn write<T: Pod + Send>(self, object: ObjectId, value: T) -> Result<()> {
        let write = move |payload: &mut [u8]| {
            payload[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&value));
        };
        Ok(self.0.change(object, write).await?)
    }

    /// Returns the value of an object, as this transaction sees it.
    ///
    /// # Errors
    /// [`Kind::NotFound`](crate::Kind::NotFound) if the object was freed; [`Kind::Lost`](crate::Kind::Lost).
    pub async fn get<T: Pod + Send>(self, ptr: Ptr<T>) -> Result<T> {
        let object = self.0.read_pointer(fat(ptr)?).await?;
        Ok(self.0.look(object, decode).await?)
    }

    /// Sets the value of an object.
    ///
    /// # Errors
    /// As [`Tx::get`].
    pub async fn set<T: Pod + Send>(self, ptr: Ptr<T>, value: T) -> Result<()> {
        let object = self.0.read_pointer(fat(ptr)?).await?;
        self.write(object, value).await
    }

    /// Changes the value of an object. Returns what `change` returns.
    ///
    /// # Errors
    /// As [`Tx::get`].
    pub async fn update<T: Pod + Send, R>(
        self,
        ptr: Ptr<T>,
        change: impl FnOnce(&mut T) -> R,
    ) -> Result<R> {
        let object = self.0.read_pointer(fat(ptr)?).await?;
        let mut value: T = self.0.look(object, decode).await?;
        let result = change(&mut value);
        self.write(object, value).await?;
        Ok(result)
    }

    /// Frees an object when the transaction commits. Pointers to it are invalid from then on, also when its memory is used
    /// again.
    ///
    /// # Errors
    /// As [`Tx::get`].
    pub async fn free<T: Pod>(self, ptr: Ptr<T>) -> Result<()> {
        let object = self.0.read_pointer(fat(ptr)?).await?;
        Ok(self.0.free(object).await?)
    }
}
