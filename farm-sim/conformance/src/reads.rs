//! What reads return: the content; for object reads also consistent headers and whole lines, while the
//! owner updates the objects continuously.

use farm_core::fabric::{ReadKind, Status};
use farm_core::mem::{LINE_BYTES, LINE_WORDS};
use farm_core::object::header::BEING_WRITTEN;
use farm_core::object::{Image, LockMode, Version, VersionWord};

use super::roles::{Hammered, STOP, content, is_whole_word};
use super::{CLOSED_BYTES, Cluster, Location, PEER, Role, THIRD};

/// Raw and object reads of every shape return the words that the owner stored.
pub(super) fn reads_return_the_content(cluster: &mut dyn Cluster) {
    let words: Vec<u64> = (0..CLOSED_BYTES as u64 / 8)
        .map(|i| i * 0x1_0001 + 1)
        .collect();
    cluster.owner(PEER).store(Location::Closed, 0, &words);
    cluster.owner(THIRD).store(Location::Open, 0, &words);
    let node = cluster.node();
    let (closed, open) = (node.peer(PEER), node.peer(THIRD));
    let largest = node.endpoint.arena().largest();
    let objects = |stride| ReadKind::Objects { stride };
    let shapes = [
        (0, 8, ReadKind::Raw),
        (8, 24, ReadKind::Raw),
        (56, 4096, ReadKind::Raw),
        (8, largest, ReadKind::Raw),
        (CLOSED_BYTES - 8, 8, ReadKind::Raw),
        (0, 64, objects(64)),
        (64, 192, objects(192)),
        (192, 4 * 192, objects(192)),
        (128, 320, objects(192)),
        (64, 64, objects(4096)),
        (0, largest, objects(1024)),
        (CLOSED_BYTES - 128, 128, objects(128)),
    ];
    for (offset, bytes, kind) in shapes {
        for from in [closed.closed(offset), open.open(offset)] {
            let token = node
                .try_read(from, bytes, kind, false)
                .expect("a valid read is accepted");
            let (status, seen) = node.finish_read(token, bytes);
            assert_eq!(status, Status::Ok, "the memory is not written");
            assert_eq!(
                seen,
                words[offset / 8..][..bytes / 8],
                "{bytes} bytes at {offset}, {kind:?}"
            );
        }
    }
    cluster.settle();
}

const OBJECT_BYTES: usize = Hammered::USUAL.object_bytes();

/// Calls of [`Cluster::advance`] per read, so that the writer runs where it has no thread of its own.
const TURNS_PER_READ: u32 = 32;

/// Number of reads that must overlap with an update, and of new versions that must be seen, before a run
/// is significant.
const LEAST_OVERLAPS: u64 = 20;

/// Counts of reads of hammered objects, by result.
#[derive(Debug, Default)]
struct Harvest {
    reads: u64,
    /// Complete images that [`Image::check`] accepts: unlocked, with agreeing line versions.
    accepted: u64,
    /// Complete images that [`Image::check`] refuses.
    refused: u64,
    /// Reads that ended [`Status::Torn`].
    torn: u64,
    /// Accepted images of the first object whose version differs from the accepted image before.
    newer: u64,
    /// Version of the last accepted image of the first object.
    newest: Version,
}

impl Harvest {
    /// Returns whether enough images were accepted and enough reads overlapped with updates.
    fn is_sufficient(&self, accepted: u64, retries: u64) -> bool {
        let overlaps = self.refused + self.torn + retries;
        self.accepted >= accepted && overlaps >= LEAST_OVERLAPS && self.newer >= LEAST_OVERLAPS
    }
}

/// While a writer updates the objects continuously, an object read returns headers that existed at the same
/// time, and whole lines if the fabric promises them. If an object is unlocked and its line versions agree,
/// all of its words are of that version.
pub(super) fn objects_are_whole_under_a_hammering_writer(cluster: &mut dyn Cluster) {
    const IN_FLIGHT: usize = 4;
    let whole_lines = cluster.node().endpoint.capabilities().whole_lines;
    let before = cluster.node().endpoint.counters();
    let hammered = cluster.hammered();
    cluster.start(PEER, Role::Hammer(hammered));
    let enough = cluster.rounds(40_000);
    let deadline = cluster.deadline();
    let (mut harvest, mut in_flight, mut retries) = (Harvest::default(), Vec::new(), 0);
    while !harvest.is_sufficient(enough, retries) {
        deadline.check("enough accepted images of hammered objects and enough reads that overlap with an update");
        let node = cluster.node();
        while in_flight.len() < IN_FLIGHT {
            let from = node.peer(PEER).closed(0);
            let bytes = bytes_of_read(harvest.reads);
            let kind = ReadKind::Objects {
                stride: OBJECT_BYTES as u32,
            };
            let token = node
                .try_read(from, bytes, kind, false)
                .expect("a valid read is accepted");
            in_flight.push((token, bytes));
            harvest.reads += 1;
        }
        let (token, bytes) = in_flight.remove(0);
        let (status, seen) = node.finish_read(token, bytes);
        match status {
            Status::Ok => judge(&seen, whole_lines, &mut harvest),
            Status::Torn => harvest.torn += 1,
            Status::Broken => panic!("a read broke although the peer runs"),
        }
        retries = node.endpoint.counters().read_retries - before.read_retries;
        for _ in 0..TURNS_PER_READ {
            cluster.advance();
        }
    }
    for (token, bytes) in in_flight {
        let (status, _) = cluster.node().finish_read(token, bytes);
        harvest.torn += u64::from(status == Status::Torn);
    }
    let after = cluster.node().endpoint.counters();
    assert_eq!(
        after.reads - before.reads,
        harvest.reads,
        "each read is counted once"
    );
    assert_eq!(after.reads_torn - before.reads_torn, harvest.torn);
    let updates = stop(cluster);
    println!(
        "{harvest:?}, {} retries inside the fabric, {updates} updates",
        after.read_retries
    );
}

/// Returns the length of a read: both objects, the first object, or the first object and a line of the second.
fn bytes_of_read(turn: u64) -> usize {
    [
        Hammered::USUAL.bytes(),
        OBJECT_BYTES,
        OBJECT_BYTES + LINE_BYTES,
    ][turn as usize % 3]
}

/// Checks everything that the fabric guarantees about one read, including images that a reader would refuse.
fn judge(seen: &[u64], whole_lines: bool, harvest: &mut Harvest) {
    let mut headers = Vec::new();
    for (object, words) in seen.chunks(OBJECT_BYTES / 8).enumerate() {
        let header = VersionWord(words[0]);
        headers.push(header);
        if whole_lines {
            for (line, words) in words.chunks(LINE_WORDS).enumerate() {
                line_is_whole(object, line, header, words);
            }
        }
        if words.len() * 8 < OBJECT_BYTES {
            continue;
        }
        match Image::check(words) {
            Ok(image) => {
                harvest.accepted += 1;
                if object == 0 {
                    harvest.newer += u64::from(image.version() != harvest.newest);
                    harvest.newest = image.version();
                }
                object_is_of_one_version(object, image.version(), words);
            }
            Err(_) => harvest.refused += 1,
        }
    }
    if let [first, second] = headers[..] {
        assert!(
            coexisted(first, second),
            "headers {first:?} and {second:?} never existed at the same time"
        );
    }
}

/// Returns whether the two headers existed at the same time. The writer updates the first object, then the
/// second, and never locks both. It locks the first at equal versions, and the second when the first is one
/// version ahead.
fn coexisted(first: VersionWord, second: VersionWord) -> bool {
    let free = LockMode::Unlocked;
    let equal = first.version() == second.version();
    let ahead = first.version() == second.version().next();
    match (first.mode() == free, second.mode() == free) {
        (true, true) => equal || ahead,
        (false, true) => equal,
        (true, false) => ahead,
        (false, false) => false,
    }
}

/// Checks that a line's words are all of the version in the line, unless the line is marked as being written.
fn line_is_whole(object: usize, line: usize, header: VersionWord, words: &[u64]) {
    let version = if line == 0 {
        (header.mode() == LockMode::Unlocked).then_some(header.version())
    } else {
        version_of_line(words[0] as u16, header.version().next())
    };
    let Some(version) = version.filter(|version| *version != Version::ZERO) else {
        return;
    };
    for (place, word) in words.iter().enumerate() {
        let expected = content(object, version, line * LINE_WORDS + place);
        let is_header = line == 0 && place == 0;
        assert!(
            is_header || *word == expected,
            "line {line} is torn at word {place}: {words:x?}"
        );
    }
}

/// Returns the full version of a line from its line version: the newest version, up to `newest`, whose low
/// bits are `bits`. The line may have been read long before the header. `None` if the line is marked as
/// being written.
fn version_of_line(bits: u16, newest: Version) -> Option<Version> {
    if bits == BEING_WRITTEN {
        return None;
    }
    let back = u64::from(newest.line().wrapping_sub(bits));
    let number = newest.get().checked_sub(back);
    let number = number
        .unwrap_or_else(|| panic!("line version {bits} does not exist up to version {newest:?}"));
    Some(Version::new(number))
}

/// Reads hammered objects until `enough(accepted, torn)` returns true, and returns both numbers: the images
/// that a reader would accept, and those of them that mix several versions.
pub fn accepted_and_torn(
    cluster: &mut dyn Cluster,
    what: Hammered,
    mut enough: impl FnMut(u64, u64) -> bool,
) -> (u64, u64) {
    cluster.start(PEER, Role::Hammer(what));
    let (mut accepted, mut torn) = (0, 0);
    while !enough(accepted, torn) {
        let node = cluster.node();
        let from = node.peer(PEER).closed(0);
        let bytes = what.bytes();
        let stride = what.object_bytes() as u32;
        let kind = ReadKind::Objects { stride };
        let token = node.try_read(from, bytes, kind, false);
        let (status, seen) = node.finish_read(token.expect("a valid read is accepted"), bytes);
        if status != Status::Ok {
            continue;
        }
        for (object, words) in seen.chunks(what.object_bytes() / 8).enumerate() {
            let Ok(image) = Image::check(words) else {
                continue;
            };
            let version = image.version();
            let expected = |(place, word): (usize, &u64)| match version {
                Version::ZERO => *word == 0,
                version => *word == content(object, version, place),
            };
            accepted += 1;
            torn += u64::from(!words.iter().enumerate().all(expected));
        }
    }
    stop(cluster);
    (accepted, torn)
}

fn object_is_of_one_version(object: usize, version: Version, words: &[u64]) {
    if version == Version::ZERO {
        assert!(
            words.iter().all(|word| *word == 0),
            "version 0 is all zeros: {words:x?}"
        );
        return;
    }
    for (place, word) in words.iter().enumerate() {
        assert_eq!(
            *word,
            content(object, version, place),
            "word {place} of {version:?}"
        );
    }
}

/// Each word of a raw read is whole, while a writer updates the memory.
pub(super) fn words_are_whole_under_a_hammering_writer(cluster: &mut dyn Cluster) {
    let hammered = cluster.hammered();
    cluster.start(PEER, Role::Hammer(hammered));
    let bytes = Hammered::USUAL.bytes();
    for _ in 0..cluster.rounds(10_000) {
        let node = cluster.node();
        let from = node.peer(PEER).closed(0);
        for (place, word) in node.read(from, bytes / 8).into_iter().enumerate() {
            let place = place % (OBJECT_BYTES / 8);
            assert!(is_whole_word(place, word), "word {place} is torn: {word:x}");
        }
        for _ in 0..TURNS_PER_READ {
            cluster.advance();
        }
    }
    stop(cluster);
}

/// Stops the hammering writer and returns the number of its updates.
fn stop(cluster: &mut dyn Cluster) -> u64 {
    let node = cluster.node();
    let at = node.peer(PEER).open(STOP);
    node.write(at, &[1]);
    let updates = cluster.join(PEER)[0];
    cluster.settle();
    updates
}
