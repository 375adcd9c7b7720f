//! The 256 size classes of objects (`FaRM'14 §3.3`), from one line to 1 MiB.
//!
//! Up to 28 lines (1,792 bytes) every whole number of lines is a class: an object starts at a line, so finer steps
//! would save nothing. Above that, each class is at most 1/28 = 3.6 % larger than the next smaller class, which bounds
//! the waste per object. The paper states 1.8 % on average and 3.6 % at most; [`super::fragmentation`] computes the
//! values for these classes, and its tests check them against the paper's.

use crate::limits::{MAX_OBJECT_BYTES, MAX_VALUE_BYTES};
use crate::mem::LINE_BYTES;
use crate::object::{object_bytes_for, payload_capacity};

/// Number of size classes (`FaRM'14 §3.3`).
pub const CLASSES: usize = 256;

/// Up to this many lines, every number of lines is a class.
pub const FINE_LINES: usize = 28;

/// Growth from class to class above [`FINE_LINES`], in 65,536ths: the least growth with which the last class reaches
/// the largest object. Each step is rounded down to whole lines, and is at least one line.
const GROWTH: u32 = 2022;

/// Lines in an object of each class.
const LINE_COUNTS: [u16; CLASSES] = lines();
static LINES: [u16; CLASSES] = LINE_COUNTS;

const fn lines() -> [u16; CLASSES] {
    const MOST: u32 = (MAX_OBJECT_BYTES as usize / LINE_BYTES) as u32;
    let mut lines = [0; CLASSES];
    let (mut class, mut last) = (0, 0);
    while class < CLASSES {
        let step = (last * GROWTH) >> 16;
        last += if class < FINE_LINES || step == 0 {
            1
        } else {
            step
        };
        if last > MOST {
            assert!(
                class == CLASSES - 1,
                "only the last class may be as large as the largest object"
            );
            last = MOST;
        }
        lines[class] = last as u16;
        class += 1;
    }
    assert!(
        last == MOST,
        "the last class must be as large as the largest object"
    );
    lines
}

// No step above the fine classes exceeds 1/28, which is the paper's 3.6 %.
const _: () = {
    let mut class = FINE_LINES;
    while class < CLASSES {
        let (last, next) = (LINE_COUNTS[class - 1] as u32, LINE_COUNTS[class] as u32);
        assert!(next > last && (next - last) * FINE_LINES as u32 <= last);
        class += 1;
    }
};

/// The requested size exceeds the largest object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes do not fit into one object: the limit is {limit} bytes")]
pub struct TooLarge {
    /// Bytes requested.
    pub bytes: usize,
    /// Maximum number of bytes that fit.
    pub limit: usize,
}

/// One of the 256 sizes of objects (`FaRM'14 §3.3`). Every `u8` is a class; a larger number is a larger object.
///
/// ```
/// use farm_core::alloc::{SizeClass, class_for_payload};
/// let class = class_for_payload(100).unwrap();
/// assert_eq!((class.object_bytes(), class.payload_capacity()), (128, 110));
/// assert_eq!(SizeClass::LARGEST.object_bytes(), 1 << 20);
/// ```
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub struct SizeClass(u8);

impl SizeClass {
    /// One line.
    pub const SMALLEST: SizeClass = SizeClass(0);
    /// 1 MiB.
    pub const LARGEST: SizeClass = SizeClass(u8::MAX);

    /// Returns the class with this number, which is 8 bits of a fat pointer (`FaRM'14 §3.5`).
    pub const fn new(number: u8) -> Self {
        Self(number)
    }

    /// Returns the class's number.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// Returns the class's index in a table of [`CLASSES`].
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Returns every class, the smallest first.
    pub fn all() -> impl ExactSizeIterator<Item = SizeClass> {
        (0..CLASSES).map(|number| SizeClass(number as u8))
    }

    /// Returns the number of lines in an object.
    #[inline]
    pub fn lines(self) -> usize {
        LINES[self.index()] as usize
    }

    /// Returns the bytes of an object, header and line versions included.
    #[inline]
    pub fn object_bytes(self) -> usize {
        self.lines() * LINE_BYTES
    }

    /// Returns the bytes of data that fit into an object: 48 in its first line and 62 in each further one. The rest is
    /// the header and the line versions (`FaRM'14 §3.5`).
    #[inline]
    pub fn payload_capacity(self) -> usize {
        payload_capacity(self.object_bytes())
    }

    /// Returns the smallest class whose objects have at least `bytes` bytes, header and line versions included.
    ///
    /// # Errors
    /// [`TooLarge`] above 1 MiB.
    pub fn for_object_bytes(bytes: usize) -> Result<SizeClass, TooLarge> {
        if bytes > MAX_OBJECT_BYTES as usize {
            return Err(TooLarge {
                bytes,
                limit: MAX_OBJECT_BYTES as usize,
            });
        }
        let lines = bytes.div_ceil(LINE_BYTES).max(1);
        let class = if lines <= FINE_LINES {
            lines - 1
        } else {
            LINES.partition_point(|class| (*class as usize) < lines)
        };
        Ok(SizeClass(class as u8))
    }
}

/// Returns the smallest class whose objects have room for `bytes` bytes of data.
///
/// # Errors
/// [`TooLarge`] above [`MAX_VALUE_BYTES`], 960 KiB.
pub fn class_for_payload(bytes: usize) -> Result<SizeClass, TooLarge> {
    if bytes > MAX_VALUE_BYTES as usize {
        return Err(TooLarge {
            bytes,
            limit: MAX_VALUE_BYTES as usize,
        });
    }
    SizeClass::for_object_bytes(object_bytes_for(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn classes_range_from_one_line_to_one_mebibyte() {
        assert_eq!(SizeClass::SMALLEST.object_bytes(), 64);
        assert_eq!(SizeClass::LARGEST.object_bytes(), 1 << 20);
        assert_eq!(SizeClass::all().len(), 256);
        for class in SizeClass::all() {
            assert_eq!(class.object_bytes() % 64, 0);
            assert_eq!(class.payload_capacity(), 48 + 62 * (class.lines() - 1));
        }
    }

    #[test]
    fn small_classes_grow_by_one_line_and_larger_ones_by_at_most_3_6_percent() {
        let bytes: Vec<usize> = SizeClass::all().map(SizeClass::object_bytes).collect();
        for (class, pair) in bytes.windows(2).enumerate() {
            let step = pair[1] - pair[0];
            if class + 1 < FINE_LINES {
                assert_eq!(step, 64);
            } else {
                assert!(
                    step > 0 && step as f64 / pair[0] as f64 <= 0.036,
                    "{pair:?}"
                );
            }
        }
        assert_eq!(bytes[FINE_LINES - 1], 1792);
    }

    #[test]
    fn every_payload_up_to_the_limit_has_a_class() {
        let limit = MAX_VALUE_BYTES as usize;
        let mut class = SizeClass::SMALLEST;
        for bytes in 0..=limit {
            if bytes > class.payload_capacity() {
                class = SizeClass::new(class.get() + 1);
            }
            assert_eq!(class_for_payload(bytes), Ok(class), "{bytes} bytes");
        }
        let refused = class_for_payload(limit + 1).unwrap_err();
        assert_eq!(
            refused,
            TooLarge {
                bytes: limit + 1,
                limit
            }
        );
        assert_eq!(
            refused.to_string(),
            "983041 bytes do not fit into one object: the limit is 983040 bytes"
        );
        assert!(class_for_payload(usize::MAX).is_err());
        assert_eq!(SizeClass::for_object_bytes(0), Ok(SizeClass::SMALLEST));
        assert_eq!(SizeClass::for_object_bytes(1 << 20), Ok(SizeClass::LARGEST));
        assert!(SizeClass::for_object_bytes((1 << 20) + 1).is_err());
    }

    proptest! {
        #[test]
        fn the_class_for_some_object_bytes_is_the_smallest_that_holds_them(bytes in 1usize..=1 << 20) {
            let class = SizeClass::for_object_bytes(bytes).unwrap();
            prop_assert!(class.object_bytes() >= bytes);
            if class > SizeClass::SMALLEST {
                prop_assert!(SizeClass::new(class.get() - 1).object_bytes() < bytes);
            }
        }
    }
}
