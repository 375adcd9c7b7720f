//! The bytes of links and nodes: lengths of a log-normal distribution, and bytes that can be compressed.

use rand::{Rng, RngCore};

use super::spec::Payload;

/// Bytes of the buffer from which chunks are copied.
const BUFFER_BYTES: usize = 512;

/// A generator of payloads: chunks of new random bytes, or copies of parts of a buffer of random bytes.
#[derive(Clone, Debug)]
pub struct Motif {
    payload: Payload,
    /// Logarithm of the median length.
    mean: f64,
    longest: usize,
    buffer: Vec<u8>,
}

impl Motif {
    /// Creates a generator of payloads with at most `longest` bytes.
    pub fn new(payload: Payload, longest: usize, rng: &mut impl RngCore) -> Self {
        let mut motif = Self {
            payload,
            mean: payload.median.ln(),
            longest,
            buffer: Vec::new(),
        };
        let mut buffer = Vec::new();
        motif.extend(rng, &mut buffer, BUFFER_BYTES);
        motif.buffer = buffer;
        motif
    }

    /// Replaces `to` by a payload.
    pub fn fill(&self, rng: &mut impl RngCore, to: &mut Vec<u8>) {
        to.clear();
        let length = self.length(rng);
        let Payload {
            chunk, uniqueness, ..
        } = self.payload;
        while to.len() < length {
            let bytes = chunk.min(length - to.len());
            if rng.random::<f64>() < uniqueness {
                self.extend(rng, to, bytes);
            } else {
                let from = rng.random_range(0..=BUFFER_BYTES - bytes);
                to.extend_from_slice(&self.buffer[from..from + bytes]);
            }
        }
    }

    fn length(&self, rng: &mut impl RngCore) -> usize {
        let length = (normal(rng) + self.mean).exp().round();
        (length as usize).min(self.longest)
    }

    fn extend(&self, rng: &mut impl RngCore, to: &mut Vec<u8>, bytes: usize) {
        let (first, end) = (self.payload.first_byte, self.payload.end_byte);
        let range = u16::from(end - first);
        let scaled = |byte: u8| first + ((u16::from(byte) * range) >> 8) as u8;
        let end = to.len() + bytes;
        while to.len() < end {
            let random = rng.next_u64().to_le_bytes();
            let wanted = (end - to.len()).min(random.len());
            to.extend(random[..wanted].iter().copied().map(scaled));
        }
    }
}

/// Returns a random number of the normal distribution, by the method of Box and Muller.
fn normal(rng: &mut impl RngCore) -> f64 {
    let (u, v): (f64, f64) = (1.0 - rng.random::<f64>(), rng.random());
    (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_xoshiro::Xoshiro256PlusPlus;

    use super::*;
    use crate::linkbench::LinkSpec;
    use crate::linkbench::spec::{MAX_LINK_BYTES, MAX_NODE_BYTES};

    #[test]
    fn lengths_and_bytes_are_those_of_the_workload() {
        let spec = LinkSpec::default();
        for (payload, longest, mean) in [
            (spec.new_link, MAX_LINK_BYTES, 13.16),
            (spec.new_node, MAX_NODE_BYTES, 211.1),
        ] {
            let mut rng = Xoshiro256PlusPlus::seed_from_u64(7);
            let motif = Motif::new(payload, longest, &mut rng);
            let (mut bytes, mut all) = (Vec::new(), 0);
            for _ in 0..200_000 {
                motif.fill(&mut rng, &mut bytes);
                all += bytes.len();
                let range = payload.first_byte..payload.end_byte;
                assert!(bytes.iter().all(|byte| range.contains(byte)));
            }
            let found = all as f64 / 200_000.0;
            assert!((found / mean - 1.0).abs() < 0.02, "{found}, not {mean}");
        }
    }
}
