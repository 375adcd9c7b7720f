//! The payloads of a transaction, one after the other in one buffer.

use std::ops::Range;

/// Offset that marks a payload that is not held.
pub(super) const NOT_HELD: u32 = u32::MAX;

/// From this number of bytes on, the buffer grows by an eighth at a time instead of doubling.
const GROWS_SLOWLY: usize = 1 << 20;

/// The buffer of payloads of a transaction.
#[derive(Debug, Default)]
pub(super) struct Payloads {
    bytes: Vec<u8>,
    /// Number of bytes that are held; the others are vacant.
    held: usize,
    /// Offsets of forgotten payloads, by length; a new payload of the same length reuses the room.
    vacant: Vec<(usize, Vec<u32>)>,
}

impl Payloads {
    pub(super) fn with_capacity(bytes: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(bytes),
            ..Self::default()
        }
    }

    /// Returns the number of bytes that are held.
    #[inline]
    pub(super) fn held(&self) -> usize {
        self.held
    }

    pub(super) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Returns whether payloads of `bytes` bytes in total can be added: their offsets must be less than [`NOT_HELD`].
    /// Vacant room counts as used, because only payloads of the same length reuse it.
    #[inline]
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.bytes.len() + bytes < NOT_HELD as usize
    }

    /// Adds a payload of zeroes, and returns its offset. [`Payloads::has_room`] must have returned true.
    #[inline]
    pub(super) fn add(&mut self, bytes: usize) -> u32 {
        self.held += bytes;
        if let Some(place) = self.take_vacant(bytes) {
            return place;
        }
        let start = self.bytes.len();
        if start + bytes > self.bytes.capacity() && start >= GROWS_SLOWLY {
            self.bytes.reserve_exact(bytes.max(start / 8));
        }
        self.bytes.resize(start + bytes, 0);
        u32::try_from(start).expect("the caller has checked that there is room")
    }

    #[inline]
    fn take_vacant(&mut self, bytes: usize) -> Option<u32> {
        if self.vacant.is_empty() {
            return None;
        }
        let as_long = self.vacant.iter_mut().find(|vacant| vacant.0 == bytes);
        let place = as_long?.1.pop()?;
        self.bytes[place as usize..][..bytes].fill(0);
        Some(place)
    }

    /// Forgets a payload; its room becomes vacant.
    pub(super) fn forget(&mut self, payload: Range<usize>) {
        self.held -= payload.len();
        if self.held == 0 {
            return self.clear();
        }
        let (bytes, place) = (payload.len(), payload.start as u32);
        match self.vacant.iter_mut().find(|vacant| vacant.0 == bytes) {
            Some((_, places)) => places.push(place),
            None => self.vacant.push((bytes, vec![place])),
        }
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.vacant.clear();
        self.held = 0;
    }

    #[inline]
    pub(super) fn get(&self, payload: Range<usize>) -> &[u8] {
        &self.bytes[payload]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, payload: Range<usize>) -> &mut [u8] {
        &mut self.bytes[payload]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_payload_reuses_the_room_of_a_forgotten_one_of_its_length() {
        let mut payloads = Payloads::with_capacity(0);
        let places = [0; 3].map(|_| payloads.add(48));
        assert_eq!((places, payloads.held()), ([0, 48, 96], 144));
        payloads.get_mut(48..96).fill(7);
        payloads.forget(48..96);
        assert_eq!(payloads.held(), 96);
        assert_eq!(payloads.add(112), 144, "no vacant room has this length");
        assert_eq!(payloads.add(48), 48);
        assert_eq!(payloads.get(48..96), [0; 48], "a new payload is zeroed");
        for payload in [0..48, 48..96, 96..144, 144..256] {
            payloads.forget(payload);
        }
        assert_eq!((payloads.held(), payloads.add(8)), (0, 0), "all is vacant");
    }

    /// Regression: an offset beyond 32 bits was truncated, so that a new payload overwrote one that was held.
    #[test]
    fn offsets_fit_into_32_bits() {
        let mut payloads = Payloads::with_capacity(0);
        payloads.add(100);
        assert!(payloads.has_room(NOT_HELD as usize - 101));
        assert!(!payloads.has_room(NOT_HELD as usize - 100));
    }
}
