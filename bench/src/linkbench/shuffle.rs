//! A permutation of ids that can be inverted without a table.

use super::java::JavaRandom;

/// Number of groups of all permutations of LinkBench.
pub const GROUPS: u64 = 1024;

/// A permutation of `0..n`: every number stays in its group, modulo the number of groups, and is rotated within it by a
/// random number of places.
#[derive(Clone, Debug)]
pub struct Shuffler {
    n: u64,
    /// Places by which the numbers of each group are rotated.
    places: Vec<u64>,
}

impl Shuffler {
    /// Creates the permutation of `0..n` by a seed.
    ///
    /// # Panics
    /// If `n` is 0, or so large that a group has more than `i32::MAX` numbers.
    pub fn new(seed: i64, n: u64) -> Self {
        assert!(n > 0, "there is no permutation of no numbers");
        let groups = GROUPS.min(n);
        let in_group = u32::try_from(n / groups).expect("a group has less than 2^31 numbers");
        let mut random = JavaRandom::new(seed);
        let places = (0..groups).map(|_| u64::from(random.next_int(in_group)));
        Self {
            n,
            places: places.collect(),
        }
    }

    /// Returns the number to which `i` is mapped.
    pub fn permute(&self, i: u64) -> u64 {
        let group = self.group(i);
        self.rotate(i, group, self.places[group as usize])
    }

    /// Returns the number that is mapped to `i`.
    pub fn invert(&self, i: u64) -> u64 {
        let group = self.group(i);
        let (groups, places) = (self.places.len() as u64, self.places[group as usize]);
        let in_group = self.n / groups + u64::from(group < self.n % groups);
        self.rotate(i, group, in_group - places)
    }

    fn group(&self, i: u64) -> u64 {
        debug_assert!(i < self.n, "{i} is not below {}", self.n);
        i % self.places.len() as u64
    }

    fn rotate(&self, i: u64, group: u64, places: u64) -> u64 {
        let groups = self.places.len() as u64;
        let rotated = i + groups * places;
        if rotated < self.n {
            return rotated;
        }
        // The first groups have one number more if the numbers cannot be divided equally.
        let longer = group < self.n % groups;
        let whole = self.n / groups * groups;
        let rotated = rotated % (whole + if longer { groups } else { 0 });
        if rotated >= self.n { group } else { rotated }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn permutations_are_those_of_the_reference() {
        let n = 1_000_000;
        for (seed, permuted, inverted) in [
            (
                20_343_988_438_726_021,
                [389_120, 512_001, 686_082, 348_163, 596_543],
                [611_328, 403_007],
            ),
            (
                53_238_253_823_453,
                [692_224, 477_185, 946_178, 159_747, 361_023],
                [308_224, 638_527],
            ),
            (
                4_766_565_305_853_767_165,
                [963_584, 648_193, 712_706, 159_747, 152_127],
                [36_864, 847_423],
            ),
        ] {
            let shuffler = Shuffler::new(seed, n);
            assert_eq!([0, 1, 2, 3, n - 1].map(|i| shuffler.permute(i)), permuted);
            assert_eq!([0, n - 1].map(|i| shuffler.invert(i)), inverted);
        }
    }

    proptest! {
        #[test]
        fn every_permutation_is_inverted(seed: i64, n in 1..5000u64) {
            let shuffler = Shuffler::new(seed, n);
            let mut seen = vec![false; n as usize];
            for i in 0..n {
                let permuted = shuffler.permute(i);
                prop_assert!(!std::mem::replace(&mut seen[permuted as usize], true));
                prop_assert_eq!(shuffler.invert(permuted), i);
            }
        }
    }
}
