//! Adjacent objects of one size class.

use farm_core::alloc::SizeClass;
use farm_core::ids::{Address, WorkerRef};
use farm_core::worker::{AddressError, ReadRequest, Worker};

use crate::error::TxError;

/// Bytes of a run in a message: class, count and first address.
const RUN_BYTES: usize = 13;

/// Adjacent objects of one class, or their slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ObjectRun {
    /// The address of the first object.
    pub(crate) first: Address,
    pub(crate) class: SizeClass,
    pub(crate) count: u32,
}

/// Slots that are to be sent to the worker that releases them.
#[derive(Clone, Copy)]
pub(crate) struct Release {
    pub(crate) to: WorkerRef,
    pub(crate) slots: ObjectRun,
    /// The configuration in which they were reserved, or in which their objects were freed.
    pub(crate) since: u64,
}

impl ObjectRun {
    /// Returns the run of one object.
    pub(crate) fn one(address: Address, class: SizeClass) -> Self {
        Self {
            first: address,
            class,
            count: 1,
        }
    }

    /// Returns the address of the object at `index`. If `index` is `count`, this is the address just after the last
    /// object.
    pub(crate) fn address(&self, index: u32) -> Option<Address> {
        let offset = self.class.object_bytes() as u64 * u64::from(index);
        self.first.checked_add(u32::try_from(offset).ok()?)
    }

    /// Returns whether an address, from that of the first object to that of the last one, is that of an object.
    pub(crate) fn has(&self, address: Address) -> bool {
        let offset = address.offset() - self.first.offset();
        (offset as usize).is_multiple_of(self.class.object_bytes())
    }

    /// Returns the addresses of all objects.
    pub(crate) fn addresses(self) -> impl Iterator<Item = Address> {
        (0..self.count).map_while(move |index| self.address(index))
    }

    /// Extends the run by an object, if the object has the same class and its address is just after the last object.
    /// Returns whether the run was extended.
    pub(crate) fn extend(&mut self, address: Address, class: SizeClass) -> bool {
        let adjacent = self.class == class && self.address(self.count) == Some(address);
        self.count += u32::from(adjacent);
        adjacent
    }

    /// Returns the one-sided read of the whole run.
    pub(crate) fn request(&self) -> ReadRequest {
        ReadRequest::objects(self.first, self.class, self.count)
    }

    /// Returns the image of each object in the words that were read.
    pub(crate) fn images<'a>(&self, words: &'a [u64]) -> impl Iterator<Item = &'a [u64]> + use<'a> {
        let words = words.chunks_exact(self.class.object_bytes() / 8);
        words.take(self.count as usize)
    }

    /// Checks that such a run can exist, and that one read can fetch it.
    ///
    /// # Errors
    /// [`TxError::EmptyArray`], [`TxError::Address`], [`TxError::ArrayTooLong`].
    pub(crate) fn check(&self, worker: &mut Worker) -> Result<(), TxError> {
        let last = self.count.checked_sub(1).ok_or(TxError::EmptyArray)?;
        let last = self.address(last);
        if self.first.is_null() || !self.first.is_line_aligned() || last.is_none() {
            return Err(AddressError::Nowhere(self.first).into());
        }
        self.check_length(worker)
    }

    /// Checks that one read can fetch the run.
    ///
    /// # Errors
    /// [`TxError::ArrayTooLong`].
    pub(crate) fn check_length(&self, worker: &mut Worker) -> Result<(), TxError> {
        let bytes = self.class.object_bytes() * self.count as usize;
        let most = worker.arena().largest();
        if bytes > most {
            return Err(TxError::ArrayTooLong { bytes, most });
        }
        Ok(())
    }

    /// Decodes the bytes of [`ObjectRun::encode`] and a configuration after them, as for [`ObjectRun::decode`].
    pub(crate) fn decode_with_configuration(body: &[u8]) -> Option<(Self, u64)> {
        let (run, configuration) = body.split_last_chunk()?;
        Some((Self::decode(run)?, u64::from_le_bytes(*configuration)))
    }

    /// Returns the run as bytes of a message.
    pub(crate) fn encode(&self) -> [u8; RUN_BYTES] {
        let mut body = [0; RUN_BYTES];
        body[0] = self.class.get();
        body[1..5].copy_from_slice(&self.count.to_le_bytes());
        body[5..].copy_from_slice(&self.first.to_bits().to_le_bytes());
        body
    }

    /// Decodes the bytes of [`ObjectRun::encode`]. Returns `None` if they are not valid. The first address may be null, which
    /// is the place of a new array without a hint.
    pub(crate) fn decode(body: &[u8]) -> Option<Self> {
        let body: &[u8; RUN_BYTES] = body.try_into().ok()?;
        let first = u64::from_le_bytes(body[5..].try_into().ok()?);
        let run = Self {
            first: Address::from_bits(first)?,
            class: SizeClass::new(body[0]),
            count: u32::from_le_bytes(body[1..5].try_into().ok()?),
        };
        (run.count > 0).then_some(run)
    }
}
