//! Values that describe themselves: every byte of a payload is a function of its first words. So a payload that mixes
//! two writes is detected as torn, wherever the boundary between their bytes is.

use crate::history::WriteId;

/// Bytes of the words before the fill, which is the least length of a payload.
pub const LEAST_BYTES: usize = 40;

/// The contents of a payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Value {
    /// The write that wrote the payload.
    pub id: WriteId,
    /// The write that it replaced.
    pub parent: WriteId,
    /// The workload's own data.
    pub data: [u64; 3],
}

/// The fill of a payload, word by word.
struct Fill(u64);

impl Iterator for Fill {
    type Item = [u8; 8];

    fn next(&mut self) -> Option<[u8; 8]> {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        Some((mixed ^ mixed >> 29).to_le_bytes())
    }
}

impl Value {
    fn words(&self) -> [u64; 5] {
        let [one, two, three] = self.data;
        [self.id.0, self.parent.0, one, two, three]
    }

    fn fill(&self) -> Fill {
        let fold = |hash: u64, word: u64| {
            (hash ^ word)
                .wrapping_mul(0x2545_F491_4F6C_DD1D)
                .rotate_left(29)
        };
        Fill(self.words().into_iter().fold(0x1234_5678_9ABC_DEF1, fold))
    }

    /// Writes the value to a payload, and fills the rest.
    ///
    /// # Panics
    /// If the payload is shorter than [`LEAST_BYTES`].
    pub fn write(&self, payload: &mut [u8]) {
        let (head, fill) = payload.split_at_mut(LEAST_BYTES);
        for (bytes, word) in head.chunks_exact_mut(8).zip(self.words()) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        for (bytes, word) in fill.chunks_mut(8).zip(self.fill()) {
            bytes.copy_from_slice(&word[..bytes.len()]);
        }
    }

    /// Reads a payload and checks all of its bytes.
    ///
    /// # Errors
    /// The first byte that does not follow from the first words.
    ///
    /// # Panics
    /// If the payload is shorter than [`LEAST_BYTES`].
    pub fn read(payload: &[u8]) -> Result<Self, Torn> {
        let (head, fill) = payload.split_at(LEAST_BYTES);
        let word = |at: usize| {
            u64::from_le_bytes(head[8 * at..8 * at + 8].try_into().expect("eight bytes"))
        };
        let value = Self {
            id: WriteId(word(0)),
            parent: WriteId(word(1)),
            data: [word(2), word(3), word(4)],
        };
        for (place, (bytes, word)) in fill.chunks(8).zip(value.fill()).enumerate() {
            if bytes != &word[..bytes.len()] {
                let wrong = bytes
                    .iter()
                    .zip(word)
                    .position(|(found, want)| *found != want);
                return Err(Torn {
                    id: value.id,
                    byte: LEAST_BYTES + 8 * place + wrong.unwrap_or(0),
                });
            }
        }
        Ok(value)
    }
}

/// The error for a payload that no single write wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("torn value: its first words name write {}, but byte {byte} does not belong to that write", id.0)]
pub struct Torn {
    /// The write that the first words name.
    pub id: WriteId,
    /// Offset of the first wrong byte.
    pub byte: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(id: u64) -> Value {
        Value {
            id: WriteId(id),
            parent: WriteId(id - 1),
            data: [3, 4, 5],
        }
    }

    #[test]
    fn a_value_is_read_back_and_every_seam_is_detected() {
        for bytes in [40, 41, 47, 48, 110, 300] {
            let (mut one, mut other) = (vec![0; bytes], vec![0; bytes]);
            value(1).write(&mut one);
            value(2).write(&mut other);
            assert_eq!(Value::read(&one), Ok(value(1)));
            // Seams leave at least eight bytes: one byte of fill is equal in 1 of 256 cases, eight bytes in practice
            // never.
            for seam in (LEAST_BYTES + 8..bytes.saturating_sub(7)).step_by(8) {
                let mut torn = one.clone();
                torn[seam..].copy_from_slice(&other[seam..]);
                assert!(Value::read(&torn).is_err(), "{bytes} bytes, seam at {seam}");
            }
            for head in [8, 16, 24] {
                let mut torn = one.clone();
                torn[..head].copy_from_slice(&other[..head]);
                assert_eq!(
                    Value::read(&torn).is_err(),
                    bytes > LEAST_BYTES,
                    "{bytes}, {head}"
                );
            }
        }
    }
}
