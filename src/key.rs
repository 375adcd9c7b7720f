//! Keys of tables.

use smallvec::SmallVec;

/// Most bytes of a key.
pub use farm_kv::MAX_KEY_BYTES;

/// A key of a table: a value of a fixed size, between 1 and [`MAX_KEY_BYTES`] bytes. The order of the encoded bytes is the
/// order of the values.
///
/// Integers, arrays of bytes, and tuples of up to four keys are keys. A type of a program is one, too, if it encodes
/// itself by one of these:
///
/// ```
/// use farm::Key;
///
/// #[derive(Clone, Copy)]
/// struct Seat { row: u16, place: u8 }
///
/// impl Key for Seat {
///     const BYTES: usize = <(u16, u8)>::BYTES;
///     type Bytes = <(u16, u8) as Key>::Bytes;
///     fn to_bytes(self) -> Self::Bytes {
///         (self.row, self.place).to_bytes()
///     }
///     fn from_bytes(bytes: &[u8]) -> Self {
///         let (row, place) = Key::from_bytes(bytes);
///         Seat { row, place }
///     }
/// }
///
/// assert_eq!(Seat::BYTES, 3);
/// assert!((-3i64, 7u8).to_bytes() < (2i64, 0u8).to_bytes());
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a key of a table",
    note = "keys have a fixed size: integers, arrays of bytes, tuples of these, or a type for which the program implements \
            `farm::Key`; keys whose size changes, such as strings, are not supported yet"
)]
pub trait Key: Copy + Send + Sync + 'static {
    /// Number of bytes of the encoded key.
    const BYTES: usize;
    /// The encoded key.
    type Bytes: AsRef<[u8]> + Clone + Send + Sync + 'static;
    /// Encodes the key in [`Key::BYTES`] bytes. It must not panic: within a task, the worker calls it.
    fn to_bytes(self) -> Self::Bytes;
    /// Decodes a key.
    ///
    /// # Panics
    /// If there are not [`Key::BYTES`] bytes.
    fn from_bytes(bytes: &[u8]) -> Self;
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes
        .try_into()
        .expect("an encoded key has the length of its type")
}

macro_rules! integers {
    ($($int:ty)+) => { $(
        /// Encoded with the most significant byte first. The sign of a signed integer is inverted, so that negative numbers
        /// come first.
        impl Key for $int {
            const BYTES: usize = size_of::<$int>();
            type Bytes = [u8; size_of::<$int>()];
            #[inline]
            fn to_bytes(self) -> Self::Bytes {
                (self ^ Self::MIN).to_be_bytes()
            }
            #[inline]
            fn from_bytes(bytes: &[u8]) -> Self {
                Self::from_be_bytes(array(bytes)) ^ Self::MIN
            }
        }
    )+ };
}

integers!(u8 u16 u32 u64 u128 i8 i16 i32 i64 i128);

/// Encoded as it is.
impl<const N: usize> Key for [u8; N] {
    const BYTES: usize = N;
    type Bytes = Self;
    #[inline]
    fn to_bytes(self) -> Self {
        self
    }
    #[inline]
    fn from_bytes(bytes: &[u8]) -> Self {
        array(bytes)
    }
}

/// Bytes of an encoded tuple up to which it is not allocated.
const INLINE_BYTES: usize = 32;

macro_rules! tuple {
    ($($part:ident)+) => {
        /// Encoded one after another.
        impl<$($part: Key),+> Key for ($($part,)+) {
            const BYTES: usize = 0 $(+ $part::BYTES)+;
            type Bytes = SmallVec<[u8; INLINE_BYTES]>;
            #[inline]
            #[allow(non_snake_case)]
            fn to_bytes(self) -> Self::Bytes {
                let ($($part,)+) = self;
                let mut bytes = SmallVec::new();
                $( bytes.extend_from_slice($part.to_bytes().as_ref()); )+
                bytes
            }
            #[inline]
            fn from_bytes(bytes: &[u8]) -> Self {
                let mut rest = bytes;
                let mut take = |count| {
                    let (part, more) = rest.split_at(count);
                    rest = more;
                    part
                };
                let key = ($($part::from_bytes(take($part::BYTES)),)+);
                assert!(rest.is_empty(), "an encoded key has the length of its type");
                key
            }
        }
    };
}

tuple!(A B);
tuple!(A B C);
tuple!(A B C D);

#[cfg(test)]
mod tests {
    use super::*;

    fn check<K: Key + Ord + std::fmt::Debug>(mut keys: Vec<K>) {
        keys.sort_unstable();
        let encoded: Vec<Vec<u8>> = keys
            .iter()
            .map(|key| key.to_bytes().as_ref().to_vec())
            .collect();
        assert!(encoded.is_sorted(), "{keys:?} are encoded as {encoded:?}");
        for (key, bytes) in keys.iter().zip(&encoded) {
            assert_eq!(bytes.len(), K::BYTES);
            assert_eq!(K::from_bytes(bytes), *key);
        }
    }

    #[test]
    fn the_order_of_the_bytes_is_that_of_the_keys() {
        check(vec![0u64, 1, 255, 256, u64::MAX]);
        check(vec![i64::MIN, -256, -1, 0, 1, i64::MAX]);
        check(vec![i8::MIN, -1, 0, 1, i8::MAX]);
        check(vec![u128::MAX, 7]);
        check(vec![*b"abc", *b"abd", *b"zzz"]);
        check(vec![(-1i32, 5u8), (-1, 6), (0, 0), (3, 0)]);
        check(vec![
            (1u8, [9u8; 40], -3i16),
            (1, [9; 40], 4),
            (2, [0; 40], 0),
        ]);
        check(vec![(1u8, 2u16, 3u32, 4u64), (1, 2, 3, 5), (0, 9, 9, 9)]);
    }
}
