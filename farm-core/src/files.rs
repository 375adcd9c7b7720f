//! Removal of files that other processes may remove, too.

use std::io;

/// Returns `Ok` also if there was no file.
pub(crate) fn unless_gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
