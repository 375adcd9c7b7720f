//! Reads of objects from devices that do not give whole lines (decision 0012).
//!
//! A line that a device reads while the processor writes it may come torn in the middle, where the
//! versions that lines begin with show nothing. But a writer locks an object's header before it touches a
//! line, and gives it a new version after the last. So the objects are read first, and then their headers
//! again: where a header is the same, and not locked exclusively, nobody wrote the object in between. (One
//! that is locked both times is handed out as it is: nobody uses a locked object.)
//!
//! That holds of a device that reads in the order posted, and the bytes of one read in increasing order
//! ([`ObjectReads::HeaderAfter`]). Where requests, or the parts of one, may pass each other on their way to
//! memory, as they may on PCIe, the headers are read before too, and each step waits for the one before it
//! ([`ObjectReads::HeadersAround`]).

use std::sync::Arc;

use super::error::VerbsError;
use super::registration::{ProtectionDomain, Reach, Registration};
use crate::fabric::{Slot, Token};
use crate::mem::WORD_BYTES;
use crate::object::{HEADER_BYTES, LockMode, VersionWord};

/// How a read of objects is made whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ObjectReads {
    /// By one read: the device gives whole lines, and lines have versions.
    WholeLines,
    /// By a second read of the headers, posted with the first.
    HeaderAfter,
    /// By a read of the headers before and another after, each posted when what was before it has come.
    HeadersAround,
}

/// Headers that are read again at one time.
pub(super) const HEADERS_AT_ONCE: usize = 16;
const HEADER_WORDS: usize = HEADER_BYTES / WORD_BYTES;
const CELL_WORDS: usize = HEADERS_AT_ONCE * HEADER_WORDS;
/// Tries before such a read is torn, for whoever wants it to try later.
const MOST_TRIES: u32 = 8;

/// A checked read, by its number among those that are going on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CheckedId(pub(super) u32);

/// What a checked read is waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Headers, before the objects.
    Before,
    /// The objects, and no headers with them.
    Objects,
    /// Headers, after the objects or with them.
    After,
}

/// A read of objects and where it stands.
pub(super) struct CheckedRead {
    pub(super) member: u16,
    pub(super) token: Token,
    pub(super) slot: Slot,
    /// Where the slot is, and the key of its registration.
    pub(super) into: (u64, u32),
    /// Which connection.
    pub(super) link: usize,
    /// Where the objects are at the other machine, and the key of its registration.
    pub(super) from: (u64, u32),
    pub(super) bytes: u32,
    pub(super) stride: u32,
    pub(super) fence: bool,
    /// Where headers come to.
    pub(super) cell: u32,
    pub(super) phase: Phase,
    /// Objects whose headers have been read in this phase, from the first.
    pub(super) seen: usize,
    /// Headers as they were before the objects were read, where they were.
    pub(super) before: Vec<[u64; HEADER_WORDS]>,
    pub(super) tries: u32,
}

/// What is next for a checked read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// All objects are whole.
    Done,
    /// Headers are to be read.
    Headers,
    /// The objects are to be read.
    Objects,
    /// A writer was there: from the start.
    Again,
    /// A writer was there at every try.
    Torn,
}

impl CheckedRead {
    fn objects(&self) -> usize {
        self.bytes.div_ceil(self.stride) as usize
    }

    /// Requests that the objects and the first headers take.
    pub(super) fn requests(&self) -> usize {
        1 + self.objects().min(HEADERS_AT_ONCE)
    }

    /// The headers to be read next: where each is at the other machine.
    pub(super) fn next_headers(&self) -> impl Iterator<Item = u64> + use<> {
        let (at, stride) = (self.from.0, u64::from(self.stride));
        let until = self.objects().min(self.seen + HEADERS_AT_ONCE);
        (self.seen as u64..until as u64).map(move |object| at + object * stride)
    }

    /// The objects have come, without headers.
    pub(super) fn objects_came(&mut self) {
        (self.phase, self.seen) = (Phase::After, 0);
    }

    /// Headers have come.
    pub(super) fn headers_came(&mut self, headers: &[u64]) -> Next {
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

    /// An object's header as it was before the object was read, or at the start of that.
    fn first_header(&self, object: usize) -> [u64; HEADER_WORDS] {
        if let Some(header) = self.before.get(object) {
            return *header;
        }
        let at = self.into.0 + object as u64 * u64::from(self.stride);
        // SAFETY: the slot is this read's, and has the objects up to `bytes`: whole lines, of which a header
        // is a part. The device has ended the request that wrote them.
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

/// Whether nobody wrote an object between two looks at its header, or it was locked all the time, which
/// whoever asked for it will see. A lock that lets readers pass may come and go: its holder has not written
/// yet.
fn is_unchanged(first: [u64; HEADER_WORDS], again: [u64; HEADER_WORDS]) -> bool {
    let words = (VersionWord(first[0]), VersionWord(again[0]));
    let locked = |word: VersionWord| word.mode() == LockMode::Exclusive;
    locked(words.0) == locked(words.1)
        && words.0.version() == words.1.version()
        && first[1] == again[1]
}

/// Registered memory for headers and for what atomics found.
pub(super) struct Cells {
    // Before the words, which must be there for as long as it.
    registration: Registration,
    words: Box<[u64]>,
    free: Vec<u32>,
}

impl Cells {
    pub(super) fn new(domain: Arc<ProtectionDomain>, cells: usize) -> Result<Self, VerbsError> {
        let mut words = vec![0; cells * CELL_WORDS].into_boxed_slice();
        let (start, bytes) = (words.as_mut_ptr().cast(), size_of_val(&*words));
        // SAFETY: the words are freed after the registration. They are read when the request that writes
        // them has ended.
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

    /// The address of a header's place in a cell, and the key.
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

    /// A read of adjacent objects of a line each.
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
    fn a_header_says_whether_somebody_wrote() {
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

    /// Twenty objects take two rounds of headers; a changed one sends the read back to the start.
    #[test]
    fn a_read_is_done_when_every_header_was_the_same() {
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
            assert_eq!(read.headers_came(&same), Next::Headers);
            let next: Vec<u64> = read.next_headers().collect();
            assert_eq!(next, [16, 17, 18, 19].map(|object| 4096 + object * 64));
            assert_eq!(
                (read.headers_came(&changed), read.tries),
                (Next::Again, tries)
            );
        }
        assert_eq!(read.headers_came(&same), Next::Headers);
        // What is beyond the last object does not matter.
        let mut last = same.clone();
        last[9] = 77;
        assert_eq!(read.headers_came(&last), Next::Done);
        read.seen = 0;
        assert_eq!(read.headers_came(&changed), Next::Torn);
    }

    /// Headers around the objects: those before are what those after are compared with.
    #[test]
    fn headers_before_are_what_counts_where_there_are_some() {
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
            assert_eq!(read.headers_came(&same), Next::Objects);
            read.objects_came();
            assert_eq!(read.headers_came(&changed), Next::Again);
            assert_eq!((read.phase, read.before.len()), (Phase::Before, 0));
        }
        assert_eq!(read.headers_came(&changed), Next::Objects);
        read.objects_came();
        assert_eq!(read.headers_came(&changed), Next::Done);
    }
}
