//! Files of benchmarks: reading them, and what is wrong with them.

use std::path::Path;

/// A file of a benchmark is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DataError(pub(crate) String);

/// Reads a file.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, DataError> {
    std::fs::read(path)
        .map_err(|error| DataError(format!("cannot read {}: {error}", path.display())))
}

/// Returns the bytes of the file `name` as text. `wanted` names the file that the user should give.
pub(crate) fn text<'a>(name: &str, bytes: &'a [u8], wanted: &str) -> Result<&'a str, DataError> {
    std::str::from_utf8(bytes).map_err(|error| {
        let before = &bytes[..error.valid_up_to()];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        DataError(format!(
            "{name}:{line}: the file is not text; give {wanted}"
        ))
    })
}
