//! The image of an object that a one-sided read returned: consistency checks, and access to the payload.

use super::Base;
use super::header::{CLASS_SHIFT, Incarnation, LockMode, Version, VersionWord};
use super::{FIRST_LINE_PAYLOAD, HEADER_BYTES, LINE_PAYLOAD, LINE_VERSION_BYTES};
use crate::alloc::SizeClass;
use crate::mem::{LINE_BYTES, LINE_WORDS};
use crate::mutants;

/// Why an image cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inconsistent {
    /// A writer held the object exclusively.
    Locked,
    /// Lines have different versions.
    Torn,
}

/// Returns whether images of adjacent objects of `class`, `stride` words each, would all pass [`Image::check`], and all
/// headers have that class. If not, [`misread`] finds the reason.
#[inline]
pub fn all_consistent(words: &[u64], stride: usize, class: SizeClass) -> bool {
    let mut seen = Seen::of(class);
    // The most common lengths, each with a loop that the compiler unrolls.
    match stride / LINE_WORDS {
        1 => seen.objects_of::<LINE_WORDS>(words),
        2 => seen.objects_of::<{ 2 * LINE_WORDS }>(words),
        3 => seen.objects_of::<{ 3 * LINE_WORDS }>(words),
        4 => seen.objects_of::<{ 4 * LINE_WORDS }>(words),
        _ => words.chunks(stride).for_each(|object| seen.object(object)),
    }
    (!seen.is_locked() || mutants::is_on("reader trusts an exclusive lock"))
        && (seen.differ == 0 || mutants::is_on("skip the line check"))
        && (seen.other >> CLASS_SHIFT == 0 || mutants::is_on("a read does not look at the class"))
}

/// The state of headers and lines of several objects, accumulated without a branch for each.
struct Seen {
    /// Second word, without count and allocated bit, of a header of the expected class.
    expected: u64,
    /// Bits that are set in any version word.
    versions: u64,
    /// Bits in which any line differs from the version of its object.
    differ: u16,
    /// Bits in which any second word differs from the expected one.
    other: u64,
}

impl Seen {
    #[inline]
    fn of(class: SizeClass) -> Self {
        let expected = Incarnation::new(class, 0).0;
        Self {
            expected,
            versions: 0,
            differ: 0,
            other: 0,
        }
    }

    #[inline]
    fn objects_of<const WORDS: usize>(&mut self, words: &[u64]) {
        let (objects, rest) = words.as_chunks::<WORDS>();
        objects.iter().for_each(|object| self.object(object));
        if !rest.is_empty() {
            self.object(rest);
        }
    }

    #[inline(always)]
    fn object(&mut self, object: &[u64]) {
        let (lines, _) = object.as_chunks::<LINE_WORDS>();
        let Some((first, further)) = lines.split_first() else {
            return;
        };
        self.versions |= first[0];
        self.other |= first[1] ^ self.expected;
        let version = VersionWord(first[0]).version().line();
        for line in further {
            self.differ |= line[0] as u16 ^ version;
        }
    }

    /// Returns whether any object was locked exclusively: see [`VersionWord::mode`].
    #[inline]
    fn is_locked(&self) -> bool {
        self.versions & 2 != 0
    }
}

/// Why images failed [`all_consistent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misread {
    /// A writer is active at one of the objects: the read must be retried.
    Busy,
    /// A header has another size class. A retry would not help: as long as an operation holds a valid address, the
    /// header at that address has the expected class.
    OtherClass {
        /// Index of the object in the read.
        index: usize,
        /// Size class in its header.
        is: SizeClass,
    },
    /// The words at the position of a header are not a header.
    NoHeader {
        /// Index of the object in the read.
        index: usize,
    },
}

/// Returns whether a header without an incarnation is one of a slot that was never used, or of a new object in a copy: recovery has
/// locked it, or, if `in_copies`, is writing it, or its writer was killed between the version and the incarnation.
fn is_unwritten(word: u64, in_copies: bool) -> bool {
    let version = match in_copies {
        true => VersionWord(word).version(),
        false => Version::ZERO,
    };
    word == 0 || word == VersionWord::of(version, LockMode::Exclusive).0
}

/// Returns why images of adjacent objects of `class`, `stride` words each, failed [`all_consistent`]. Returns `None` if
/// the only reason is slots that were never used, whose headers are zero: the other objects are consistent.
///
/// A header keeps its class while a writer holds its lock. The class is therefore checked before the lock and the line
/// versions, which may be payload of an object of another class.
///
/// `in_copies` says that the words may be of a copy that has become a primary. Memory of copies keeps its class, so words that look like
/// the header of a new object are one; in other memory they may be payload.
#[cold]
pub fn misread(words: &[u64], stride: usize, class: SizeClass, in_copies: bool) -> Option<Misread> {
    let mut busy = false;
    for (index, object) in words.chunks(stride).enumerate() {
        let incarnation = Incarnation(object[1]);
        if incarnation.0 == 0 && is_unwritten(object[0], in_copies) {
            // The lines are zero, too, unless an object is being written there, or recovery decides whether it was.
            busy |= Image::check(object).is_err();
        } else if incarnation.count() < Base::LEAST_INCARNATION {
            return Some(Misread::NoHeader { index });
        } else if incarnation.class() != class {
            let is = incarnation.class();
            return Some(Misread::OtherClass { index, is });
        } else {
            busy |= Image::check(object).is_err();
        }
    }
    busy.then_some(Misread::Busy)
}

/// A consistent image of one object, borrowed from the slot it was read into.
#[derive(Clone, Copy, Debug)]
pub struct Image<'a> {
    words: &'a [u64],
}

impl<'a> Image<'a> {
    /// Checks an image whose lines are each untorn: it must not be locked exclusively, and every line must have the
    /// header's version (`FaRM'14 §3.5`).
    ///
    /// # Errors
    /// [`Inconsistent`]: the read must be retried.
    ///
    /// # Panics
    /// If `words` is not whole lines.
    #[inline]
    pub fn check(words: &'a [u64]) -> Result<Self, Inconsistent> {
        assert!(
            !words.is_empty() && words.len().is_multiple_of(LINE_WORDS),
            "an image has {} words, which are not whole lines",
            words.len()
        );
        let header = VersionWord(words[0]);
        let locked = header.mode() == LockMode::Exclusive;
        if locked && !mutants::is_on("reader trusts an exclusive lock") {
            return Err(Inconsistent::Locked);
        }
        let line = header.version().line();
        let mut differ = 0;
        for further in words.chunks_exact(LINE_WORDS).skip(1) {
            differ |= further[0] as u16 ^ line;
        }
        if differ == 0 || mutants::is_on("skip the line check") {
            Ok(Self { words })
        } else {
            Err(Inconsistent::Torn)
        }
    }

    /// Returns the version word.
    pub fn version_word(&self) -> VersionWord {
        VersionWord(self.words[0])
    }

    /// Returns the version.
    pub fn version(&self) -> Version {
        self.version_word().version()
    }

    /// Returns the incarnation word.
    pub fn incarnation(&self) -> Incarnation {
        Incarnation(self.words[1])
    }

    /// Returns the object's bytes, header and line versions included.
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        bytemuck::cast_slice(self.words)
    }

    /// Returns the number of payload bytes in the image.
    pub fn payload_len(&self) -> usize {
        super::payload_capacity(self.words.len() * 8)
    }

    /// Copies the payload from byte `from` on, without the line versions.
    ///
    /// # Panics
    /// If the image has fewer payload bytes.
    #[inline]
    pub fn copy_payload(&self, from: usize, out: &mut [u8]) {
        copy_payload(self.bytes(), from, out);
    }
}

/// Copies payload bytes out of the bytes of an object, from byte `from` of the payload on.
#[inline]
fn copy_payload(object: &[u8], from: usize, out: &mut [u8]) {
    let mut rest = out;
    let mut from = from;
    if from < FIRST_LINE_PAYLOAD {
        let n = rest.len().min(FIRST_LINE_PAYLOAD - from);
        let (now, later) = rest.split_at_mut(n);
        now.copy_from_slice(&object[HEADER_BYTES + from..][..n]);
        rest = later;
        from = FIRST_LINE_PAYLOAD;
    }
    let mut line = 1 + (from - FIRST_LINE_PAYLOAD) / LINE_PAYLOAD;
    let mut within = (from - FIRST_LINE_PAYLOAD) % LINE_PAYLOAD;
    while !rest.is_empty() {
        let n = rest.len().min(LINE_PAYLOAD - within);
        let (now, later) = rest.split_at_mut(n);
        now.copy_from_slice(&object[line * LINE_BYTES + LINE_VERSION_BYTES + within..][..n]);
        rest = later;
        within = 0;
        line += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::{position, write};

    #[test]
    fn payload_reads_back_from_any_offset() {
        let memory = crate::mem::Memory::anonymous(4096);
        let payload: Vec<u8> = (0..234u32).map(|i| (i * 7) as u8).collect();
        write::install_new(&memory, 0, 256, Version::new(5), Incarnation(3), &payload);
        let mut words = [0; 32];
        memory.copy_objects(0, 256, &mut words).unwrap();
        let image = Image::check(&words).unwrap();
        assert_eq!(
            (image.version(), image.incarnation()),
            (Version::new(5), Incarnation(3))
        );
        for from in 0..payload.len() {
            let mut out = vec![0; payload.len() - from];
            image.copy_payload(from, &mut out);
            assert_eq!(out, payload[from..]);
            assert_eq!(image.bytes()[position(from)], payload[from]);
        }
    }

    /// Returns two objects of two lines each in freshly started slots, with different versions.
    fn two_objects(class: SizeClass) -> [u64; 32] {
        let memory = crate::mem::Memory::anonymous(4096);
        let base = Base::from_bits(1 << 60).unwrap();
        for at in [0, 128] {
            let new = write::begin(&memory, at, class, base);
            let version = Version::new(new.version.get() + at as u64);
            let incarnation = new.incarnation.allocated();
            write::install_new(&memory, at, 128, version, incarnation, b"payload");
        }
        let mut words = [0; 32];
        memory.copy_objects(0, 128, &mut words).unwrap();
        words
    }

    /// Returns what [`all_consistent`] and [`misread`] report for two objects of 128 bytes, after `change` changed the
    /// second one.
    fn shown(change: impl FnOnce(&mut [u64])) -> (bool, Option<Misread>) {
        let class = SizeClass::new(1);
        let mut words = two_objects(class);
        change(&mut words[16..]);
        let consistent = all_consistent(&words, 16, class);
        (consistent, misread(&words, 16, class, false))
    }

    #[test]
    fn another_class_is_reported_before_locks_and_torn_lines() {
        assert_eq!(shown(|_| ()), (true, None));
        let locked: fn(&mut [u64]) = |words| words[0] |= 2;
        let torn: fn(&mut [u64]) = |words| words[8] ^= 1;
        for busy in [locked, torn] {
            assert_eq!(shown(busy), (false, Some(Misread::Busy)));
        }
        let (index, is) = (1, SizeClass::new(7));
        for also in [locked, torn, |_| ()] {
            let (consistent, why) = shown(|words| {
                also(words);
                words[1] = Incarnation::new(is, words[1]).allocated().0;
            });
            assert!(!consistent);
            assert_eq!(why, Some(Misread::OtherClass { index, is }));
        }
    }

    #[test]
    fn words_that_are_not_a_header_are_reported() {
        let unused = shown(|words| words.fill(0));
        assert_eq!(unused, (false, None), "the slot was never used");
        for version in [0, 5, 1 << 60] {
            let class = SizeClass::new(1);
            let mut words = two_objects(class);
            words[16..].fill(0);
            words[16] = VersionWord::of(Version::new(version), LockMode::Exclusive).0;
            let why = |in_copies| misread(&words, 16, class, in_copies);
            assert_eq!(why(true), Some(Misread::Busy), "a new object in a copy");
            let other = match version {
                0 => Misread::Busy,
                _ => Misread::NoHeader { index: 1 },
            };
            assert_eq!(why(false), Some(other));
        }
        // Zero payload behind a line version; small numbers; the address of a pointer.
        for (first, second) in [
            (0x1237, 0),
            (0, 5),
            (2, 0x1234_5678),
            (0x1236, 1 << 56 | 77),
        ] {
            let (consistent, why) = shown(|words| (words[0], words[1]) = (first, second));
            assert!(!consistent, "{first:#x} {second:#x}");
            assert_eq!(why, Some(Misread::NoHeader { index: 1 }));
        }
    }

    #[test]
    fn a_line_of_another_version_is_torn_and_an_exclusive_lock_is_reported() {
        let mut words = [0u64; 24];
        for line in 0..3 {
            words[line * 8] = if line == 0 { 9 << 2 } else { 9 };
        }
        assert!(Image::check(&words).is_ok());
        words[16] = 8;
        assert_eq!(Image::check(&words).unwrap_err(), Inconsistent::Torn);
        words[16] = 9;
        words[0] |= 2;
        assert_eq!(Image::check(&words).unwrap_err(), Inconsistent::Locked);
        words[0] = words[0] & !3 | 1;
        assert!(
            Image::check(&words).is_ok(),
            "a readable lock admits lock-free reads"
        );
    }
}
