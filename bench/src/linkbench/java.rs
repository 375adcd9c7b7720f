//! The generator of pseudorandom numbers of Java's `java.util.Random`, which fixes the constants of LinkBench.

const MULTIPLIER: u64 = 0x5_DEEC_E66D;
const MASK: u64 = (1 << 48) - 1;

/// A linear congruential generator of 48 bits, as `java.util.Random` is documented.
#[derive(Clone, Debug)]
pub struct JavaRandom(u64);

impl JavaRandom {
    /// Creates the generator of a seed.
    pub fn new(seed: i64) -> Self {
        Self((seed as u64 ^ MULTIPLIER) & MASK)
    }

    /// Returns the next `bits` bits, at most 32.
    fn next(&mut self, bits: u32) -> u64 {
        self.0 = self.0.wrapping_mul(MULTIPLIER).wrapping_add(0xB) & MASK;
        self.0 >> (48 - bits)
    }

    /// Returns a number below `bound`.
    ///
    /// # Panics
    /// If `bound` is 0 or above `i32::MAX`.
    pub fn next_int(&mut self, bound: u32) -> u32 {
        assert!(
            0 < bound && bound <= i32::MAX as u32,
            "invalid bound {bound}"
        );
        let bound = u64::from(bound);
        if bound.is_power_of_two() {
            return ((bound * self.next(31)) >> 31) as u32;
        }
        loop {
            let drawn = self.next(31);
            let value = drawn % bound;
            if drawn - value + (bound - 1) < 1 << 31 {
                return value as u32;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_java() {
        let mut random = JavaRandom::new(42);
        let drawn: Vec<u32> = (0..5).map(|_| random.next_int(10)).collect();
        assert_eq!(drawn, [0, 3, 8, 4, 0]);
        let mut random = JavaRandom::new(0);
        assert_eq!(random.next_int(1 << 20), 0xBB20B);
        // The largest bound that is not a power of two rejects about half of all numbers.
        let bound = (1 << 30) + 1;
        assert!((0..1000).all(|_| random.next_int(bound) < bound));
    }
}
