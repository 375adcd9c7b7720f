//! Releases the payloads of objects that a transaction over many objects only needs to validate.

use farm_core::marks;
use farm_core::object::Image;

use super::{Entry, Intent, NOT_HELD, ObjectId, Tx};
use crate::error::{Abort, TxError};

impl Tx {
    /// Forgets the payload of an object that was only read, and keeps its version, which the commit validates. So a
    /// transaction over many objects needs little memory. The object can be read again; if it has changed in the
    /// meantime, that read fails with a conflict.
    ///
    /// No-op for an object that the transaction writes, allocates or frees.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use farm_core::{config::Config, machine::start_all};
    /// # let mut config = Config::tiny_for(1, 1);
    /// # config.cluster.name = "doc-forget".into();
    /// # let machine = start_all(&config, &(Arc::new(farm_txn::attach) as _))?.remove(0);
    /// # let sum = farm_txn::block_on(&machine, 0, async |farm| {
    /// # let mut accounts = vec![];
    /// # let tx = farm.begin().await?;
    /// # for _ in 0..10 {
    /// #     let object = tx.alloc(8, None).await?;
    /// #     tx.change(object, |payload| payload[0] = 7).await?;
    /// #     accounts.push(tx.address(object).await?);
    /// # }
    /// # tx.commit().await?;
    /// // The sum over all accounts at one moment, with one payload in memory at a time.
    /// let tx = farm.begin().await?;
    /// let mut sum = 0;
    /// for address in accounts {
    ///     let account = tx.read(address, 8).await?;
    ///     sum += u64::from(tx.payload(account).await?[0]);
    ///     tx.forget_payload(account).await?;
    /// }
    /// tx.commit().await?;
    /// # Ok::<_, farm_txn::TxError>(sum)
    /// # })?;
    /// # assert_eq!(sum.unwrap(), 70);
    /// # machine.stop()?;
    /// # Ok::<_, farm_core::machine::MachineError>(())
    /// ```
    ///
    /// # Panics
    /// If the object is not of this transaction: see [`Tx::check`].
    pub fn forget_payload(&mut self, object: ObjectId) {
        let entry = self.entry(object);
        if entry.intent != Intent::Read || !entry.is_held() {
            return;
        }
        let payload = entry.payload();
        self.payloads.forget(payload);
        self.entries[object.index as usize].at = NOT_HELD;
        self.forgotten += 1;
    }

    /// Restores the payload of an object that this transaction has forgotten and has read again.
    #[cold]
    pub(super) fn recall(&mut self, known: usize, image: &Image<'_>) -> Result<ObjectId, TxError> {
        marks::mark("tx: forgotten object read again");
        let Entry {
            address,
            class,
            version,
            ..
        } = self.entries[known];
        if image.version() != version {
            return Err(Abort::Changed(address).into());
        }
        self.entries[known].at = self.payloads.add(class.payload_capacity());
        self.forgotten -= 1;
        let payload = self.entries[known].payload();
        image.copy_payload(0, self.payloads.get_mut(payload));
        Ok(self.id(known))
    }
}
