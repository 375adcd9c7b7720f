//! Checked reads: reads of objects from devices that do not return consistent lines (decision
//! 0012).
//!
//! A line that a device reads while the processor writes it may be torn in the middle, where the
//! versions at the starts of lines cannot detect it. But a writer locks an object's header before
//! it modifies a line, and stores a new version after the last line. So the objects are read first,
//! and then their headers again: if a header is unchanged and not locked exclusively, no writer
//! wrote the object in between. (An object that is locked both times is returned as it is, because
//! the caller rejects locked objects.)
//!
//! This is correct for a device that performs reads in the order posted, and reads the bytes of one
//! read in increasing order ([`ObjectReads::HeaderAfter`]). If requests, or the parts of one
//! request, may pass each other on their way to memory, as on PCIe, the headers are also read
//! before the objects, and each step waits for the previous one ([`ObjectReads::HeadersAround`]).

use std::sync::Arc;

use super::error::VerbsError;
use super::registration::{ProtectionDomain, Reach, Registration};
use crate::fabric::{Slot, Token};
use crate::mem::WORD_BYTES;
use crate::object::{HEADER_BYTES, LockMode, VersionWord};

/// How a read of objects is made consistent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ObjectReads {
    /// By one read: the device returns whole lines, and lines have versions.
    WholeLines,
    /// By a second read of the headers, posted together with the first.
    HeaderAfter,
    /// By reads of the headers before and after the objects, each posted when the previous read is
    /// complete.
    HeadersAround,
}

/// Number of headers that are read again at a time.
pub(super) const HEADERS_AT_ONCE: usize = 16;
const HEADER_WORDS: usize = HEADER_BYTES / WORD_BYTES;
const CELL_WORDS: usize = HEADERS_AT_ONCE * HEADER_WORDS;
/// Number of attempts before a read counts as torn. The caller may retry later.
const MOST_TRIES: u32 = 8;

/// Index of a checked read among those in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CheckedId(pub(super) u32);

/// What a checked read currently reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Headers, before the objects.
    Before,
    /// The objects, without headers.
    Objects,
    /// Headers, after the objects or together with them.
    After,
}

/// A checked read and its progress.
pub(super) struct CheckedRead {
    pub(super) member: u16,
    pub(super) token: Token,
    pub(super) slot: Slot,
    /// Address of the slot, and the key of its registration.
    pub(super) into: (u64, u32),
    /// Index of the connection.
    pub(super) link: usize,
    /// Offset of the objects in the other machine's memory, and the key of its registration.
    pub(super) from: (u64, u32),
    pub(super) bytes: u32,
    pub(super) stride: u32,
    pub(super) fence: bool,
    /// Cell to which headers are read.
    pub(super) cell: u32,
    pub(super) phase: Phase,
    /// Number of objects, from the first, whose headers have been read in this phase.
    pub(super) seen: usize,
    /// Headers read before the objects; empty if headers are not read before.
    pub(super) before: Vec<[u64; HEADER_WORDS]>,
    pub(super) tries: u32,
}

/// The next step of a checked read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// All objects are consistent: the read is done.
    Done,
    /// Read further headers.
    Headers,
    /// Read the objects.
    Objects,
    /// A writer interfered: start again.
    Again,
    /// A writer interfered at every attempt.
    Torn,
}

impl CheckedRead {
    fn objects(&self) -> usize {
        self.bytes.div_ceil(self.stride) as usize
    }

    /// Returns the number of requests for the objects and the first headers.
    pub(super) fn requests(&self) -> usize {
        1 + self.objects().min(HEADERS_AT_ONCE)
    }

    /// Returns the remote addresses of the headers to read next.
    pub(super) fn next_headers(&self) -> impl Iterator<Item = u64> + use<> {
        let (at, stride) = (self.from.0, u64::from(self.stride));
        let until = self.objects().min(self.seen + HEADERS_AT_ONCE);
        (self.seen as u64..until as u64).map(move |object| at + object * stride)
    }

    /// Handles the completed read of the objects without headers.
    pub(super) fn handle_objects(&mut self) {
        (self.phase, self.seen) = (Phase::After, 0);
    }

    /// Handles the completed read of the next headers.
    pub(super) fn handle_headers(&mut self, headers: &[u64]) -> Next {
        let until = self.objects().min(self.seen + HEADERS_AT_ONCE);
        let objects = self.seen..until;
        let headers = headers.chunks_exact(HEADER_WORDS);
        let mut headers = objects.zip(headers.map(|header| [header[0], header[1]]));
        self.seen = until;
        let all = until == self.objects();
        if self.phase == Phase::Before {
            self.before.extend(headers.map(|(_, header)| header));
            if all {
                self.phase = Phase::Objects;
            }
            return if all { Next::Objects } else { Next::Headers };
        }
        if !headers.all(|(object, again)| is_unchanged(self.first_header(object), again)) {
            return self.try_again();
        }
        if all { Next::Done } else { Next::Headers }
    }

    /// Returns an object's header as read before the object, or with the object.
    fn first_header(&self, object: usize) -> [u64; HEADER_WORDS] {
        if let Some(header) = self.before.get(object) {
            return *header;
        }
        let at = self.into.0 + object as u64 * u64::from(self.stride);
        // SAFETY: this read owns the slot, which contains the objects up to `bytes`: whole lines,
        // which include the headers. The device has completed the request that wrote them.
        unsafe { (at as *const [u64; HEADER_WORDS]).read_volatile() }
    }

    fn try_again(&mut self) -> Next {
        self.tries += 1;
        self.seen = 0;
        if !self.before.is_empty() {
            self.before.clear();
            self.phase = Phase::Before;
        }
        match self.tries < MOST_TRIES {
            true => Next::Again,
            false => Next::Torn,
        }
    }
}

/// Returns whether no writer wrote an object between two reads of its header. Also returns true if
/// the object was locked exclusively both times, because the caller detects the lock. A lock that
/// permits readers may appear or disappear in between: its holder has not written yet.
fn is_unchanged(first: [u64; HEADER_WORDS], again: [u64; HEADER_WORDS]) -> bool {
    let words = (VersionWord(first[0]), VersionWord(again[0]));
    let locked = |word: VersionWord| word.mode() == LockMode::Exclusive;
    locked(words.0) == locked(words.1)
        && words.0.version() == words.1.version()
        && first[1] == again[1]
}

/// Registered memory for headers and for the old values of atomics.
pub(super) struct Cells {
    // Declared before the words, so that it is dropped first.
    registration: Registration,
    words: Box<[u64]>,
    free: Vec<u32>,
}

impl Cells {
    pub(super) fn new(domain: Arc<ProtectionDomain>, cells: usize) -> Result<Self, VerbsError> {
        let mut words = vec![0; cells * CELL_WORDS].into_boxed_slice();
        let (start, bytes) = (words.as_mut_ptr().cast(), size_of_val(&*words));
        // SAFETY: the words are freed after the registration. They are read only after the request
        // that writes them has ended.
        let registration = unsafe { Registration::new(domain, start, bytes, Reach::Own) }?;
        Ok(Self {
            registration,
            words,
            free: (0..cells as u32).rev().collect(),
        })
    }

    pub(super) fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    pub(super) fn give(&mut self, cell: u32) {
        self.free.push(cell);
    }

    /// Returns the address of a header in a cell, and the key of the registration.
    pub(super) fn place(&self, cell: u32, header: usize) -> (u64, u32) {
        let word = cell as usize * CELL_WORDS + header * HEADER_WORDS;
        let address = &raw const self.words[word] as u64;
        (address, self.registration.local_key())
    }

    pub(super) fn words(&self, cell: u32) -> &[u64] {
        &self.words[cell as usize * CELL_WORDS..][..CELL_WORDS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::{Arena, ArenaConfig};
    use crate::object::Version;

    fn header(version: u64, mode: LockMode) -> [u64; 2] {
        [VersionWord::of(Version::new(version), mode).0, 1]
    }

    /// Returns a read of adjacent objects of one line each.
    fn of_objects(slot: Slot, address: u64, objects: usize) -> CheckedRead {
        CheckedRead {
            member: 0,
            token: Token(1),
            slot,
            into: (address, 0),
            link: 0,
            from: (4096, 0),
            bytes: 64 * objects as u32,
            stride: 64,
            fence: false,
            cell: 0,
            phase: Phase::After,
            seen: 0,
            before: Vec::new(),
            tries: 0,
        }
    }

    #[test]
    fn headers_detect_writes() {
        use LockMode::{Exclusive, Readable, Unlocked};
        let quiet = [
            (Unlocked, Unlocked),
            (Unlocked, Readable),
            (Readable, Unlocked),
        ];
        for (first, again) in quiet {
            assert!(is_unchanged(header(7, first), header(7, again)));
            assert!(!is_unchanged(header(7, first), header(8, again)));
        }
        assert!(!is_unchanged(header(7, Unlocked), header(7, Exclusive)));
        assert!(!is_unchanged(header(7, Exclusive), header(7, Unlocked)));
        assert!(is_unchanged(header(7, Exclusive), header(7, Exclusive)));
        let mut freed = header(7, Unlocked);
        freed[1] = 2;
        assert!(!is_unchanged(header(7, Unlocked), freed));
    }

    /// Twenty objects take two rounds of headers. A changed header restarts the read.
    #[test]
    fn a_read_is_done_when_all_headers_are_unchanged() {
        const OBJECTS: usize = 20;
        let mut arena = Arena::new(&ArenaConfig {
            classes: vec![(64 * OBJECTS, 1)],
        });
        let mut slot = arena.take(64 * OBJECTS).unwrap();
        let words = arena.words_mut(&mut slot);
        for object in words.chunks_mut(8) {
            object[..2].copy_from_slice(&header(3, LockMode::Unlocked));
        }
        let address = words.as_ptr() as u64;
        let mut read = of_objects(slot, address, OBJECTS);
        assert_eq!(read.requests(), 17);
        let same: Vec<u64> = header(3, LockMode::Unlocked).repeat(HEADERS_AT_ONCE);
        let mut changed = same.clone();
        changed[6] = header(4, LockMode::Unlocked)[0];
        for tries in 1..MOST_TRIES {
            assert_eq!(read.next_headers().count(), HEADERS_AT_ONCE);
            assert_eq!(read.handle_headers(&same), Next::Headers);
            let next: Vec<u64> = read.next_headers().collect();
            assert_eq!(next, [16, 17, 18, 19].map(|object| 4096 + object * 64));
            assert_eq!(
                (read.handle_headers(&changed), read.tries),
                (Next::Again, tries)
            );
        }
        assert_eq!(read.handle_headers(&same), Next::Headers);
        // Headers beyond the last object are ignored.
        let mut last = same.clone();
        last[9] = 77;
        assert_eq!(read.handle_headers(&last), Next::Done);
        read.seen = 0;
        assert_eq!(read.handle_headers(&changed), Next::Torn);
    }

    /// With headers around the objects, the headers after are compared with the headers before.
    #[test]
    fn headers_are_compared_with_those_read_before() {
        let mut arena = Arena::new(&ArenaConfig {
            classes: vec![(128, 1)],
        });
        let mut slot = arena.take(128).unwrap();
        let address = arena.words_mut(&mut slot).as_ptr() as u64;
        let mut read = CheckedRead {
            phase: Phase::Before,
            ..of_objects(slot, address, 2)
        };
        let same = header(3, LockMode::Unlocked).repeat(2);
        let changed = [header(3, LockMode::Unlocked), header(4, LockMode::Unlocked)].concat();
        for _ in 0..2 {
            assert_eq!(read.handle_headers(&same), Next::Objects);
            read.handle_objects();
            assert_eq!(read.handle_headers(&changed), Next::Again);
            assert_eq!((read.phase, read.before.len()), (Phase::Before, 0));
        }
        assert_eq!(read.handle_headers(&changed), Next::Objects);
        read.handle_objects();
        assert_eq!(read.handle_headers(&changed), Next::Done);
    }
}
