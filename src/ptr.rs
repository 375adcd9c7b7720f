//! Pointers to objects of a fixed layout.

use bytemuck::Pod;
use farm_core::mem::Ptr;
use farm_core::object::FatPointer;

use crate::error::{Error, Kind, Result};

/// Returns the fat pointer to an object with a payload of type `T`.
pub(crate) fn fat<T: Pod>(ptr: Ptr<T>) -> Result<FatPointer> {
    let pointer = FatPointer::from_words(ptr.to_words()).filter(|_| !ptr.is_null());
    let pointer = pointer.ok_or_else(|| {
        let text = format!("{ptr:?} points to no object: it is null, or not a pointer");
        Error::new(Kind::NotFound, text)
    })?;
    let (bytes, most) = (size_of::<T>(), pointer.class().payload_capacity());
    if bytes > most {
        let text = format!(
            "{ptr:?} points to an object of at most {most} bytes, not to a value of {bytes} bytes"
        );
        return Err(Error::new(Kind::Invalid, text));
    }
    Ok(pointer)
}

/// Returns the value at the beginning of a payload.
pub(crate) fn decode<T: Pod>(payload: &[u8]) -> T {
    bytemuck::pod_read_unaligned(&payload[..size_of::<T>()])
}
