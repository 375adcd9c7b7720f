//! Values that describe themselves: every byte of a payload follows from what its first words say, so
//! one that was put together from two writes is seen as torn wherever the seam is.

use crate::history::WriteId;

/// Bytes before the fill.
pub const LEAST_BYTES: usize = 40;

/// What a payload says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Value {
    /// The write.
    pub id: WriteId,
    /// The write that it replaced.
    pub parent: WriteId,
    /// What the workload keeps.
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

    /// Fills a payload.
    ///
    /// # Panics
    /// If it is shorter than [`LEAST_BYTES`].
    pub fn write(&self, payload: &mut [u8]) {
        let (head, fill) = payload.split_at_mut(LEAST_BYTES);
        for (bytes, word) in head.chunks_exact_mut(8).zip(self.words()) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        for (bytes, word) in fill.chunks_mut(8).zip(self.fill()) {
            bytes.copy_from_slice(&word[..bytes.len()]);
        }
    }

    /// Reads a payload, all of it.
    ///
    /// # Errors
    /// The first byte that is not what it should be.
    ///
    /// # Panics
    /// If it is shorter than [`LEAST_BYTES`].
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

/// A payload that no write wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a torn value: it says that write {} wrote it, but byte {byte} is another's", id.0)]
pub struct Torn {
    /// Who it says wrote it.
    pub id: WriteId,
    /// The first byte that is wrong.
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
    fn a_value_comes_back_and_every_seam_is_seen() {
        for bytes in [40, 41, 47, 48, 110, 300] {
            let (mut one, mut other) = (vec![0; bytes], vec![0; bytes]);
            value(1).write(&mut one);
            value(2).write(&mut other);
            assert_eq!(Value::read(&one), Ok(value(1)));
            // What differs by one byte of fill agrees with it once in 256 times; eight never do.
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
