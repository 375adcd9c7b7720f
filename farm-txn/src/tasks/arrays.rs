//! Arrays that are too large for one transaction: created and freed by several.

use farm_core::alloc::{ArrayRun, SizeClass};
use farm_core::ids::Address;
use farm_core::worker::{Cont, Worker};

use super::answers::{Answer, Slot};
use super::handle::Handle;
use super::reply::{answer, with_answer};
use crate::arrays;
use crate::error::TxError;
use crate::object_run::ObjectRun;

/// Maximum number of objects that one transaction frees. Their part of a record has less than a kilobyte.
const FREED_AT_ONCE: u32 = 16;

impl Handle {
    /// Creates all objects of an array that the worker has reserved
    /// ([`Worker::reserve_array`]), with zero payloads, by as many transactions as needed.
    ///
    /// If this fails, no object of the array exists afterwards, and its room is released, unless the machine stops meanwhile.
    ///
    /// # Errors
    /// [`TxError::Alloc`] if the array's region cannot be used; those of a commit.
    pub async fn create_array(&self, array: ArrayRun) -> Result<(), TxError> {
        let mut from = 0;
        while from < array.count {
            let run = array.clone();
            let start = move |worker: &mut Worker, slot| {
                let next = arrays::format(worker, &run, from, Cont::new(formatted, slot));
                with_answer(worker, slot, |answer| answer.words[0] = next.into());
            };
            let finish = |answer: &mut Answer| (answer.words[0] as u32, answer.ok().map(drop));
            let (next, outcome) = self.call(start, finish).await;
            if let Err(error) = outcome {
                let (run, rest) = (array.clone(), next..array.count);
                let release = move |worker: &mut _| arrays::release_reserved(worker, &run, rest);
                self.with_worker(release).await?;
                self.free_objects(array.first(), array.class(), from)
                    .await?;
                return Err(error);
            }
            from = next;
        }
        Ok(())
    }

    /// Frees `count` adjacent objects on any machine, by as many transactions as needed. Slots without an object are skipped.
    ///
    /// # Errors
    /// Those of [`Handle::transact`]; then a part of the objects is freed.
    pub async fn free_objects(
        &self,
        first: Address,
        class: SizeClass,
        count: u32,
    ) -> Result<(), TxError> {
        let largest = self.with_worker(|worker| worker.arena().largest()).await?;
        let in_one_read = u32::try_from(largest / class.object_bytes()).unwrap_or(u32::MAX);
        let most = in_one_read.clamp(1, FREED_AT_ONCE);
        let all = ObjectRun {
            first,
            class,
            count,
        };
        for from in (0..count).step_by(most as usize) {
            let Some(address) = all.address(from) else {
                break;
            };
            let some = most.min(count - from);
            self.transact(async |tx| {
                let objects = tx
                    .read_array(address, class.payload_capacity(), some)
                    .await?;
                let objects: Vec<_> = objects.into_iter().flatten().collect();
                tx.free_array(&objects).await
            })
            .await?;
        }
        Ok(())
    }
}

fn formatted(worker: &mut Worker, slot: Slot, outcome: Result<(), TxError>) {
    answer(worker, slot, |answer| answer.set(outcome, |_, ()| ()));
}
