//! What a replica that is being filled takes from the primary of its region (`FaRM'15 §5.4`): the heads of blocks, then the objects.
//!
//! It gets all later changes like every other backup, so an object is installed only where it is newer.

use crate::ids::WorkerId;
use crate::mem::WORD_BYTES;
use crate::mutants;
use crate::object::{Image, LockMode, write};

use super::geometry::Geometry;
use super::{Block, BlockHead, BlockKind, BlockState, BlockTable, TableError};

/// What the value of an object did to a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It is there now, or a newer one was.
    Yes,
    /// The slot has no object that a commit has made.
    Nothing,
    /// Another worker changes the object in the replica now.
    Waits,
}

impl BlockTable {
    /// Returns the runs that the primary has, in ascending order. `words` are those of the primary's region from its start, as many as
    /// the table of this replica has. Nothing is written: a run without a committed object exists on the primary only, and the next
    /// primary may use its blocks for another run.
    ///
    /// # Errors
    /// [`TableError`] if no primary of a region with this geometry has such a table.
    pub(crate) fn primary_runs(&self, words: &[u64]) -> Result<Vec<Block>, TableError> {
        let mut runs = Vec::new();
        for index in self.geometry().first_block()..self.geometry().blocks() {
            let at = Geometry::state_offset(index) / WORD_BYTES;
            let bits = words.get(at).copied().unwrap_or(u64::MAX);
            let state = BlockState::from_bits(bits).ok_or_else(|| self.bad_state(index, bits))?;
            let BlockState::Head(head) = state else {
                continue;
            };
            let head = match head.kind {
                BlockKind::Slab | BlockKind::Array => head,
                BlockKind::Vacant => BlockHead {
                    kind: BlockKind::Slab,
                    owner: WorkerId::FIRST,
                    ..head
                },
            };
            runs.push(self.possible_run(index, head)?);
        }
        Ok(runs)
    }
}

impl Block {
    /// Installs in a slot of a replica what the primary has there, if it is newer, with the head of the run. `image` is consistent.
    ///
    /// # Errors
    /// [`TableError`] if the replica has another run there. Nothing was written.
    pub(crate) fn take(
        &self,
        slot: u32,
        image: &Image<'_>,
        payload: &mut Vec<u8>,
    ) -> Result<Taken, TableError> {
        let (memory, at) = (self.table().memory(), self.offset_of(slot));
        let (version, incarnation) = (image.version(), image.incarnation());
        let is_reserved = !incarnation.is_allocated() && version <= self.base().version();
        if incarnation.0 == 0 || is_reserved {
            return Ok(Taken::Nothing);
        }
        self.table().adopt_head(self.index(), self.head())?;
        let now = write::load_version(memory, at);
        if now.mode() != LockMode::Unlocked {
            return Ok(Taken::Waits);
        }
        if now.version() >= version && !mutants::is_on("pull over newer") {
            return Ok(Taken::Yes);
        }
        if !write::try_lock(memory, at, now.version(), LockMode::Exclusive) {
            return Ok(Taken::Waits);
        }
        let bytes = self.head().class.object_bytes();
        payload.clear();
        // A commit that frees an object leaves its bytes.
        if incarnation.is_allocated() {
            payload.resize(image.payload_len(), 0);
            image.copy_payload(0, payload);
        }
        write::install(memory, at, bytes, version, incarnation, payload);
        Ok(Taken::Yes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alloc::{SizeClass, compare_replicas, table_bases};
    use crate::ids::RegionId;
    use crate::mem::Memory;

    const BLOCK_BYTES: usize = 4096;

    fn table() -> BlockTable {
        let region = RegionId::new(3, 9).unwrap();
        let bases = &mut table_bases(7, region);
        BlockTable::format(
            Memory::anonymous(16 * BLOCK_BYTES),
            region,
            BLOCK_BYTES,
            bases,
        )
        .unwrap()
    }

    fn words(table: &BlockTable) -> Vec<u64> {
        let mut words = vec![0; table.geometry().table_bytes() / WORD_BYTES];
        table.memory().read_words(0, &mut words);
        words
    }

    /// Makes a new version of the object of a slot, or frees it.
    fn write(block: &Block, slot: u32, byte: Option<u8>) {
        let (memory, at) = (block.table().memory(), block.offset_of(slot));
        let class = block.head().class;
        let room = write::begin(memory, at, class, block.base());
        assert!(write::try_lock(
            memory,
            at,
            room.version,
            LockMode::Exclusive
        ));
        let (incarnation, payload) = match byte {
            Some(byte) => (
                room.incarnation.allocated(),
                vec![byte; class.payload_capacity()],
            ),
            None => (room.incarnation.freed(), Vec::new()),
        };
        let bytes = class.object_bytes();
        write::install(
            memory,
            at,
            bytes,
            room.version.next(),
            incarnation,
            &payload,
        );
    }

    fn take_all(from: &[Block], to: &[Block]) -> Vec<Taken> {
        let mut payload = Vec::new();
        let mut taken = Vec::new();
        for (from, to) in from.iter().zip(to) {
            let mut words = vec![0; from.head().class.object_bytes() / WORD_BYTES];
            for slot in 0..from.slots() {
                from.table()
                    .memory()
                    .read_words(from.offset_of(slot), &mut words);
                let image = Image::check(&words).unwrap();
                taken.push(to.take(slot, &image, &mut payload).unwrap());
            }
        }
        taken
    }

    #[test]
    fn a_filled_replica_has_what_the_primary_has() {
        let (primary, copy) = (table(), table());
        let head = |kind, class, run| BlockHead {
            kind,
            class: SizeClass::new(class),
            owner: WorkerId::FIRST,
            run,
        };
        let first = primary.geometry().first_block();
        let runs = [
            primary
                .write_run(first, head(BlockKind::Slab, 1, 1))
                .unwrap(),
            primary
                .write_run(first + 2, head(BlockKind::Array, 29, 3))
                .unwrap(),
            primary
                .write_run(first + 7, head(BlockKind::Vacant, 0, 1))
                .unwrap(),
            primary
                .write_run(first + 10, head(BlockKind::Slab, 5, 2))
                .unwrap(),
        ];
        for (slot, byte) in [(0, Some(3)), (0, Some(4)), (2, Some(5)), (2, None)] {
            write(&runs[0], slot, byte);
            write(&runs[2], slot, byte);
        }
        write(&runs[1], 1, Some(9));
        // Only reserved.
        write::begin(
            primary.memory(),
            runs[0].offset_of(4),
            runs[0].head().class,
            runs[0].base(),
        );
        for _ in 0..2 {
            let copied = copy.primary_runs(&words(&primary)).unwrap();
            let places = copied.iter().map(|run| (run.index(), run.head().run));
            assert!(places.eq([(first, 1), (first + 2, 3), (first + 7, 1), (first + 10, 2)]));
            let taken = take_all(&runs, &copied);
            assert_eq!(taken.iter().filter(|one| **one == Taken::Yes).count(), 5);
            assert!(!taken.contains(&Taken::Waits));
            assert_eq!(compare_replicas(&primary, &copy), Ok(3));
        }
        // A run without objects is not taken.
        assert_eq!(copy.state(first + 10), Ok(BlockState::Free));
        // A change that came before is newer.
        let copied = copy.primary_runs(&words(&primary)).unwrap();
        write(&copied[0], 0, Some(77));
        take_all(&runs, &copied);
        let at = copied[0].offset_of(0);
        let newer = write::load_version(copy.memory(), at).version();
        assert!(newer > write::load_version(primary.memory(), at).version());
        // One that is being made is awaited.
        write(&runs[0], 0, Some(1));
        write(&runs[0], 0, Some(1));
        assert!(write::try_lock(
            copy.memory(),
            at,
            newer,
            LockMode::Exclusive
        ));
        assert_eq!(take_all(&runs, &copied)[0], Taken::Waits);
    }

    #[test]
    fn tables_that_no_primary_has_are_refused() {
        let copy = table();
        let mut words = words(&copy);
        let first = copy.geometry().first_block();
        let head = BlockState::Head(BlockHead {
            kind: BlockKind::Slab,
            class: SizeClass::new(0),
            owner: WorkerId::FIRST,
            run: 1,
        });
        let at = Geometry::state_offset(first) / WORD_BYTES;
        for bits in [7, u64::MAX, head.to_bits() | 99 << 32] {
            words[at] = bits;
            assert!(copy.primary_runs(&words).is_err(), "{bits:#x}");
        }
        assert!(copy.primary_runs(&words[..at]).is_err());
        words[at] = head.to_bits();
        let runs = copy.primary_runs(&words).unwrap();
        assert_eq!(runs.len(), 1);
        // Memory keeps its class while it is replicated.
        let (primary, class) = (table(), |number| SizeClass::new(number));
        let head = |class| BlockHead {
            kind: BlockKind::Slab,
            class,
            owner: WorkerId::FIRST,
            run: 1,
        };
        let run = primary.write_run(first, head(class(1))).unwrap();
        write(&run, 0, Some(1));
        let mut words = vec![0; run.head().class.object_bytes() / WORD_BYTES];
        primary.memory().read_words(run.offset_of(0), &mut words);
        let image = Image::check(&words).unwrap();
        copy.adopt_head(first, head(class(0))).unwrap();
        let other = copy.possible_run(first, head(class(1))).unwrap();
        assert!(other.take(0, &image, &mut Vec::new()).is_err());
    }
}
