//! What reads bring: the content, and of objects whole lines and steady headers, however hard their
//! owner writes.

use farm_core::fabric::{ReadKind, Status};
use farm_core::mem::{LINE_BYTES, LINE_WORDS};
use farm_core::object::header::BEING_WRITTEN;
use farm_core::object::{Image, LockMode, Version, VersionWord};

use super::roles::{Hammered, STOP, content, is_whole_word};
use super::{CLOSED_BYTES, Cluster, Location, PEER, Role, THIRD};

/// Raw and object reads of every shape bring what the owner stored.
pub(super) fn reads_give_the_content(cluster: &mut dyn Cluster) {
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
                .expect("a good read is taken");
            let (status, seen) = node.finish_read(token, bytes);
            assert_eq!(status, Status::Ok, "nobody writes there");
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

/// Turns that the writer gets per read, where it does not run by itself.
const TURNS_PER_READ: u32 = 32;

/// Versions seen, and reads that were disturbed, before a run counts.
const LEAST_MEETINGS: u64 = 20;

/// What became of the reads of a hammered object.
#[derive(Debug, Default)]
struct Harvest {
    reads: u64,
    accepted: u64,
    refused: u64,
    torn: u64,
    /// Times that an accepted image of the first object was of another version than the one before.
    newer: u64,
    newest: Version,
}

impl Harvest {
    /// Whether reads and updates met often enough to have tried anything.
    fn is_rich(&self, accepted: u64, retries: u64) -> bool {
        let met = self.refused + self.torn + retries;
        self.accepted >= accepted && met >= LEAST_MEETINGS && self.newer >= LEAST_MEETINGS
    }
}

/// A read of objects that a writer updates all the time brings headers of one moment, and whole lines where
/// the fabric says so; an object that is unlocked and whose line versions agree is of one version
/// throughout.
pub(super) fn objects_are_whole_under_a_hammering_writer(cluster: &mut dyn Cluster) {
    const IN_FLIGHT: usize = 4;
    let whole_lines = cluster.node().endpoint.capabilities().whole_lines;
    let before = cluster.node().endpoint.counters();
    cluster.start(PEER, Role::Hammer(Hammered::USUAL));
    let enough = cluster.rounds(40_000);
    let deadline = cluster.deadline();
    let (mut harvest, mut in_flight, mut retries) = (Harvest::default(), Vec::new(), 0);
    while !harvest.is_rich(enough, retries) {
        deadline.check("enough good reads of a hammered object, and some that were not");
        let node = cluster.node();
        while in_flight.len() < IN_FLIGHT {
            let from = node.peer(PEER).closed(0);
            let bytes = bytes_of_read(harvest.reads);
            let kind = ReadKind::Objects {
                stride: OBJECT_BYTES as u32,
            };
            let token = node
                .try_read(from, bytes, kind, false)
                .expect("a good read is taken");
            in_flight.push((token, bytes));
            harvest.reads += 1;
        }
        let (token, bytes) = in_flight.remove(0);
        let (status, seen) = node.finish_read(token, bytes);
        match status {
            Status::Ok => judge(&seen, whole_lines, &mut harvest),
            Status::Torn => harvest.torn += 1,
            Status::Broken => panic!("the writer is alive"),
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
        "reads are counted once each"
    );
    assert_eq!(after.reads_torn - before.reads_torn, harvest.torn);
    let updates = stop(cluster);
    println!(
        "{harvest:?}, {} retries inside the fabric, {updates} updates",
        after.read_retries
    );
}

/// Both objects, one, or one and a half.
fn bytes_of_read(turn: u64) -> usize {
    [
        Hammered::USUAL.bytes(),
        OBJECT_BYTES,
        OBJECT_BYTES + LINE_BYTES,
    ][turn as usize % 3]
}

/// Checks all that can be said about one read, also where its reader would try again.
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
        let steady = were_there_at_one_moment(first, second);
        assert!(
            steady,
            "headers {first:?} and {second:?} were never there at one moment"
        );
    }
}

/// The writer updates the first object, then the second, and never holds both: a lock on the first
/// is taken at equal versions, one on the second when the first is one ahead.
fn were_there_at_one_moment(first: VersionWord, second: VersionWord) -> bool {
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

/// A line is of the version it says, unless it says that it is being written.
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
        let steady = line == 0 && place == 0;
        assert!(
            steady || *word == expected,
            "line {line} is torn at {place}: {words:x?}"
        );
    }
}

/// The version that a line says it is of: the newest one, up to `newest`, that ends in those bits.
/// The line may have been read long before the header.
fn version_of_line(says: u16, newest: Version) -> Option<Version> {
    if says == BEING_WRITTEN {
        return None;
    }
    let back = u64::from(newest.line().wrapping_sub(says));
    let number = newest.get().checked_sub(back);
    let number =
        number.unwrap_or_else(|| panic!("line version {says} before there was {newest:?}"));
    Some(Version::new(number))
}

/// How many images of hammered objects a reader would accept, and of how many versions they are mixtures.
///
/// Reads until `enough` says so of these two numbers.
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
        let (status, seen) = node.finish_read(token.expect("a good read is taken"), bytes);
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
            "nothing was written yet: {words:x?}"
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

/// Raw reads promise only words, and those are whole.
pub(super) fn words_are_whole_under_a_hammering_writer(cluster: &mut dyn Cluster) {
    cluster.start(PEER, Role::Hammer(Hammered::USUAL));
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

/// Ends the hammering; how many updates there were.
fn stop(cluster: &mut dyn Cluster) -> u64 {
    let node = cluster.node();
    let at = node.peer(PEER).open(STOP);
    node.write(at, &[1]);
    let updates = cluster.join(PEER)[0];
    cluster.settle();
    updates
}
