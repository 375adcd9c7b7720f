//! Locking and writing objects in this machine's own memory.
//!
//! A writer locks the header exclusively, fences, marks every further line as being written, fences, writes the data,
//! fences, writes the line versions, and last the header. A reader that sees a new byte in a line therefore also sees
//! the mark or the new version in that line's first word, or the lock in the header (`FaRM'14 §3.5`).

#[cfg(feature = "mutants")]
mod faults;

use std::sync::atomic::Ordering;

use super::header::{BEING_WRITTEN, Incarnation, LockMode, Version, VersionWord};
use super::{Base, FIRST_LINE_PAYLOAD, HEADER_BYTES, LINE_PAYLOAD};
use crate::alloc::SizeClass;
use crate::mem::{LINE_BYTES, LINE_WORDS, Memory, WORD_BYTES};
use crate::mutants;

const WRITING: u64 = BEING_WRITTEN as u64;
const VERSION_BITS: u64 = 0xFFFF;

/// Loads the version word of the object at `at`.
#[inline]
pub fn load_version(memory: &Memory, at: usize) -> VersionWord {
    VersionWord(memory.load(at, Ordering::Acquire))
}

/// Loads the incarnation word of the object at `at`.
#[inline]
pub fn load_incarnation(memory: &Memory, at: usize) -> Incarnation {
    Incarnation(memory.load(at + WORD_BYTES, Ordering::Acquire))
}

/// The header state of a slot that is ready for a new object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Version in the slot's header; the object's first version is the next one.
    pub version: Version,
    /// Second word of the slot's header, not allocated; the object's word is this one with the allocated bit.
    pub incarnation: Incarnation,
    /// Whether the slot was never used since its block was created; then its payload is zero. Its header is zero, too, unless a process that
    /// [began](begin) to use it was killed before it had written the version.
    pub is_new: bool,
}

/// Returns the version and incarnation from which an object in a free slot continues. If the slot was never used since
/// its block was created, they are those of the block's base.
///
/// Only the owner of the slot may call this, while the slot holds no object.
#[inline]
pub fn room(memory: &Memory, at: usize, class: SizeClass, base: Base) -> Room {
    let incarnation = load_incarnation(memory, at);
    let version = match incarnation.0 {
        0 => Version::ZERO,
        _ => load_version(memory, at).version(),
    };
    match version {
        Version::ZERO => Room {
            version: base.version(),
            incarnation: base.incarnation(class),
            is_new: true,
        },
        _ => Room {
            version,
            incarnation,
            is_new: false,
        },
    }
}

/// As [`room`]. If the slot was never used since its block was created, writes its first header.
#[inline]
pub fn begin(memory: &Memory, at: usize, class: SizeClass, base: Base) -> Room {
    let room = room(memory, at, class, base);
    if room.is_new {
        // The class is written first: a reader that sees the version also sees the class.
        memory.store(at + WORD_BYTES, room.incarnation.0, Ordering::Relaxed);
        unlock(memory, at, room.version);
    }
    room
}

/// Locks an unlocked object that still has `version`. Returns false if it is locked or has another version.
#[inline]
pub fn try_lock(memory: &Memory, at: usize, version: Version, mode: LockMode) -> bool {
    let free = VersionWord::of(version, LockMode::Unlocked).0;
    memory
        .compare_exchange(at, free, VersionWord::of(version, mode).0)
        .is_ok()
}

/// Turns the readable lock, which the caller holds, into the exclusive one.
#[inline]
pub fn make_exclusive(memory: &Memory, at: usize, version: Version) {
    memory.store(
        at,
        VersionWord::of(version, LockMode::Exclusive).0,
        Ordering::Relaxed,
    );
}

/// Locks an object exclusively at the version that it has, even if it is locked. Only recovery does so, when no writer that could hold
/// the lock runs any more.
#[inline]
pub fn take_over(memory: &Memory, at: usize) {
    make_exclusive(memory, at, load_version(memory, at).version());
}

/// Releases a lock without having written.
#[inline]
pub fn unlock(memory: &Memory, at: usize, version: Version) {
    memory.store(
        at,
        VersionWord::of(version, LockMode::Unlocked).0,
        Ordering::Release,
    );
}

/// Hooks between the steps of [`install`]. Builds with the feature `mutants` use an implementation with deliberate
/// bugs.
trait BetweenSteps {
    /// Runs before the first step, and checks the lock.
    ///
    /// # Panics
    /// If the object is not locked exclusively.
    #[inline]
    fn before_install(memory: &Memory, at: usize) {
        assert_eq!(
            load_version(memory, at).mode(),
            LockMode::Exclusive,
            "cannot install the object at {at}: it is not locked exclusively"
        );
    }

    /// Runs when all lines are marked, before payload is written.
    #[inline]
    fn before_data(_memory: &Memory, _at: usize, _lines: usize, _version: Version) {}
}

/// The hooks without deliberate bugs.
enum Correct {}

impl BetweenSteps for Correct {}

#[cfg(not(feature = "mutants"))]
type Chosen = Correct;
#[cfg(feature = "mutants")]
type Chosen = faults::Faulty;

/// Installs a new version of an object that the caller has locked exclusively, and unlocks it. If the payload is
/// shorter than the object's capacity, the rest stays as it was.
///
/// # Panics
/// If the object is not locked exclusively, or the payload does not fit.
pub fn install(
    memory: &Memory,
    at: usize,
    bytes: usize,
    version: Version,
    incarnation: Incarnation,
    payload: &[u8],
) {
    Chosen::before_install(memory, at);
    write_locked(memory, at, bytes, version, incarnation, payload);
}

/// Writes the first version of an object whose address no reader can have yet.
pub fn install_new(
    memory: &Memory,
    at: usize,
    bytes: usize,
    version: Version,
    incarnation: Incarnation,
    payload: &[u8],
) {
    memory.store(
        at,
        VersionWord::of(version, LockMode::Exclusive).0,
        Ordering::Relaxed,
    );
    write_locked(memory, at, bytes, version, incarnation, payload);
}

/// Creates `count` adjacent objects of `bytes` with zero payloads, whose addresses no reader can have yet, in slots of the class of
/// `incarnation`. The payload of a slot whose header is zero was never used, and is zero.
pub fn install_zeroed(
    memory: &Memory,
    at: usize,
    (bytes, count): (usize, u32),
    version: Version,
    incarnation: Incarnation,
) {
    let zeros = vec![0; super::payload_capacity(bytes)];
    for index in 0..count as usize {
        let at = at + index * bytes;
        let payload = match load_incarnation(memory, at).0 {
            0 => &[],
            _ => &zeros[..],
        };
        install_new(memory, at, bytes, version, incarnation, payload);
    }
}

fn write_locked(
    memory: &Memory,
    at: usize,
    bytes: usize,
    version: Version,
    incarnation: Incarnation,
    payload: &[u8],
) {
    assert!(
        payload.len() <= super::payload_capacity(bytes),
        "a payload of {} bytes does not fit into an object of {bytes} bytes",
        payload.len()
    );
    let lines = bytes / LINE_BYTES;
    memory.fence(Ordering::Release);
    if !mutants::is_on("marks of lines not written") {
        for line in 1..lines {
            let first = at + line * LINE_BYTES;
            memory.store(
                first,
                memory.load(first, Ordering::Relaxed) | WRITING,
                Ordering::Relaxed,
            );
        }
    }
    memory.fence(Ordering::Release);
    Chosen::before_data(memory, at, lines, version);
    memory.store(at + WORD_BYTES, incarnation.0, Ordering::Relaxed);
    let (first, further) = payload.split_at(payload.len().min(FIRST_LINE_PAYLOAD));
    write_first_line(memory, at + HEADER_BYTES, first);
    for (line, part) in further.chunks(LINE_PAYLOAD).enumerate() {
        write_further_line(memory, at + (line + 1) * LINE_BYTES, part);
    }
    if !mutants::is_on("release fence missing before the line versions") {
        memory.fence(Ordering::Release);
    }
    write_line_versions(memory, at, lines, version);
    memory.store(
        at,
        VersionWord::of(version, LockMode::Unlocked).0,
        Ordering::Release,
    );
}

#[inline]
fn write_line_versions(memory: &Memory, at: usize, lines: usize, version: Version) {
    for line in 1..lines {
        let first = at + line * LINE_BYTES;
        let word =
            memory.load(first, Ordering::Relaxed) & !VERSION_BITS | u64::from(version.line());
        memory.store(first, word, Ordering::Relaxed);
    }
}

fn write_first_line(memory: &Memory, at: usize, part: &[u8]) {
    let mut chunks = part.chunks_exact(WORD_BYTES);
    let mut to = at;
    for chunk in &mut chunks {
        memory.store(to, word(chunk), Ordering::Relaxed);
        to += WORD_BYTES;
    }
    write_rest(memory, to, chunks.remainder());
}

/// Writes a line that begins with a line version: its first word carries six bytes of payload.
fn write_further_line(memory: &Memory, at: usize, part: &[u8]) {
    let (head, rest) = part.split_at(part.len().min(WORD_BYTES - 2));
    let old = memory.load(at, Ordering::Relaxed);
    let keep = if head.len() == WORD_BYTES - 2 {
        0
    } else {
        u64::MAX << (16 + 8 * head.len())
    };
    let mut bytes = [0; WORD_BYTES];
    bytes[2..2 + head.len()].copy_from_slice(head);
    let mark = if mutants::is_on("marks of lines not written") {
        old & VERSION_BITS
    } else {
        WRITING
    };
    memory.store(
        at,
        old & keep | u64::from_le_bytes(bytes) | mark,
        Ordering::Relaxed,
    );
    if rest.len() == LINE_PAYLOAD - 6 {
        for i in 1..LINE_WORDS {
            memory.store(
                at + i * WORD_BYTES,
                word(&rest[(i - 1) * WORD_BYTES..][..WORD_BYTES]),
                Ordering::Relaxed,
            );
        }
    } else {
        write_first_line(memory, at + WORD_BYTES, rest);
    }
}

/// Writes fewer bytes than a word, and keeps the rest of the word.
fn write_rest(memory: &Memory, at: usize, rest: &[u8]) {
    if rest.is_empty() {
        return;
    }
    let mut bytes = memory.load(at, Ordering::Relaxed).to_le_bytes();
    bytes[..rest.len()].copy_from_slice(rest);
    memory.store(at, u64::from_le_bytes(bytes), Ordering::Relaxed);
}

#[inline]
fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(
        bytes
            .try_into()
            .expect("`word` is called only with the eight bytes of a word"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Image;
    use proptest::prelude::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn kept_objects_have_this_format() {
        let memory = Memory::anonymous(192);
        let payload: Vec<u8> = (0..100).collect();
        install_new(
            &memory,
            0,
            192,
            Version::new(5),
            Incarnation(3 << 9 | 1),
            &payload,
        );
        let mut words = [0; 24];
        memory.read_words(0, &mut words);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let sum = xxhash_rust::xxh3::xxh3_64(&bytes);
        assert_eq!(
            (crate::kept::FORMAT, sum),
            (3, 10_823_598_164_918_648_312),
            "objects have changed: raise kept::FORMAT"
        );
    }

    /// A process that was killed between the two stores of a first header once left a slot whose versions began at zero, below those of
    /// earlier objects at its address.
    #[test]
    fn a_slot_with_half_of_its_first_header_is_new() {
        let memory = Memory::anonymous(4096);
        let (class, base) = (SizeClass::new(1), Base::from_bits(1 << 60).unwrap());
        let first = Room {
            version: base.version(),
            incarnation: base.incarnation(class),
            is_new: true,
        };
        assert_eq!(room(&memory, 0, class, base), first);
        memory.store(WORD_BYTES, first.incarnation.0, Ordering::Relaxed);
        assert_eq!(begin(&memory, 0, class, base), first);
        let begun = Room {
            is_new: false,
            ..first
        };
        assert_eq!(begin(&memory, 0, class, base), begun);
    }

    #[test]
    fn a_lock_needs_an_unlocked_object_at_the_version_read() {
        let memory = Memory::anonymous(4096);
        assert!(
            !try_lock(&memory, 0, Version::new(1), LockMode::Readable),
            "the object has another version"
        );
        assert!(try_lock(&memory, 0, Version::ZERO, LockMode::Readable));
        assert!(
            !try_lock(&memory, 0, Version::ZERO, LockMode::Exclusive),
            "the object is locked already"
        );
        make_exclusive(&memory, 0, Version::ZERO);
        install(
            &memory,
            0,
            64,
            Version::ZERO.next(),
            Incarnation(1),
            b"hello",
        );
        assert_eq!(
            load_version(&memory, 0),
            VersionWord::of(Version::new(1), LockMode::Unlocked)
        );
    }

    proptest! {
        #[test]
        fn any_payload_of_any_length_reads_back(
            lines in 1usize..6,
            first in proptest::collection::vec(any::<u8>(), 0..400),
            second in proptest::collection::vec(any::<u8>(), 0..400),
        ) {
            let memory = Memory::anonymous(4096);
            let bytes = lines * LINE_BYTES;
            let capacity = crate::object::payload_capacity(bytes);
            let mut expected = vec![0; capacity];
            for (number, payload) in [first, second].iter().enumerate() {
                let payload = &payload[..payload.len().min(capacity)];
                install_new(&memory, 64, bytes, Version::new(number as u64 + 1), Incarnation(1), payload);
                expected[..payload.len()].copy_from_slice(payload);
                let mut words = vec![0; bytes / 8];
                memory.copy_objects(64, bytes, &mut words).unwrap();
                let image = Image::check(&words).unwrap();
                let mut out = vec![0; capacity];
                image.copy_payload(0, &mut out);
                prop_assert_eq!(&out, &expected);
            }
        }
    }

    /// Every image that passes the checks has one version only, under a writer that never pauses.
    #[test]
    fn accepted_images_are_from_one_write() {
        let memory = Memory::anonymous(4096);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut version = Version::ZERO;
                while !stop.load(Ordering::Relaxed) {
                    assert!(try_lock(&memory, 0, version, LockMode::Exclusive));
                    version = version.next();
                    install(
                        &memory,
                        0,
                        256,
                        version,
                        Incarnation(1),
                        &[version.get() as u8; 234],
                    );
                }
            });
            let (mut accepted, mut refused) = (0, 0);
            while accepted < 20_000 || refused == 0 {
                let mut words = [0; 32];
                match memory
                    .copy_objects(0, 256, &mut words)
                    .ok()
                    .and_then(|_| Image::check(&words).ok())
                {
                    None => refused += 1,
                    Some(image) => {
                        let mut payload = [0; 234];
                        image.copy_payload(0, &mut payload);
                        assert!(
                            payload.iter().all(|b| *b == image.version().get() as u8),
                            "{words:x?}"
                        );
                        accepted += 1;
                    }
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
