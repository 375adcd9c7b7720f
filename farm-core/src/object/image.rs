//! An image of an object, as a one-sided read brought it: checked, and its payload taken out.

use super::header::{Incarnation, LockMode, Version, VersionWord};
use super::{FIRST_LINE_PAYLOAD, HEADER_BYTES, LINE_PAYLOAD, LINE_VERSION_BYTES};
use crate::mem::{LINE_BYTES, LINE_WORDS};
use crate::mutants;

/// Why an image cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inconsistent {
    /// A writer held the object exclusively.
    Locked,
    /// Lines of different versions.
    Torn,
}

/// Whether images of adjacent objects of `stride` words each, the last possibly cut short at a line,
/// would all pass [`Image::check`].
#[inline]
pub fn all_consistent(words: &[u64], stride: usize) -> bool {
    let (mut at, mut locked, mut differ) = (0, false, 0);
    while at < words.len() {
        let end = words.len().min(at + stride);
        let header = VersionWord(words[at]);
        locked |= header.mode() == LockMode::Exclusive;
        let line = header.version().line();
        at += LINE_WORDS;
        while at < end {
            differ |= words[at] as u16 ^ line;
            at += LINE_WORDS;
        }
    }
    (!locked || mutants::is_on("reader trusts an exclusive lock"))
        && (differ == 0 || mutants::is_on("skip the line check"))
}

/// A consistent image of one object, borrowed from the slot it was read into.
#[derive(Clone, Copy, Debug)]
pub struct Image<'a> {
    words: &'a [u64],
}

impl<'a> Image<'a> {
    /// Checks an image whose lines are each whole: not locked exclusively, and every line of the
    /// header's version (`FaRM'14 §3.5`).
    ///
    /// # Errors
    /// [`Inconsistent`]: read it again.
    ///
    /// # Panics
    /// If `words` is not whole lines.
    #[inline]
    pub fn check(words: &'a [u64]) -> Result<Self, Inconsistent> {
        assert!(
            !words.is_empty() && words.len().is_multiple_of(LINE_WORDS),
            "an image of {} words",
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

    /// The version word.
    pub fn version_word(&self) -> VersionWord {
        VersionWord(self.words[0])
    }

    /// The version.
    pub fn version(&self) -> Version {
        self.version_word().version()
    }

    /// The incarnation word.
    pub fn incarnation(&self) -> Incarnation {
        Incarnation(self.words[1])
    }

    /// The object's bytes with header and line versions in them.
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        bytemuck::cast_slice(self.words)
    }

    /// Payload bytes of the image.
    pub fn payload_len(&self) -> usize {
        super::payload_capacity(self.words.len() * 8)
    }

    /// Copies the payload from byte `from` on, without the versions.
    ///
    /// # Panics
    /// If the image has fewer payload bytes.
    #[inline]
    pub fn copy_payload(&self, from: usize, out: &mut [u8]) {
        copy_payload(self.bytes(), from, out);
    }
}

/// Copies payload bytes out of the bytes of an object.
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
    fn payload_comes_out_as_it_went_in_at_any_offset() {
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

    #[test]
    fn a_line_of_another_version_is_torn_and_an_exclusive_lock_is_seen() {
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
            "a readable lock lets lock-free reads pass"
        );
    }
}
