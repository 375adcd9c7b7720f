//! Texts about files.

use std::path::Path;

use farm_core::config::rounded_size;

/// Quotes a path for a shell command.
pub(crate) fn quoted(path: &Path) -> String {
    let path = path.display().to_string();
    match shlex::try_quote(&path) {
        Ok(quoted) => quoted.into_owned(),
        // Unreachable: quoting fails only for a zero byte, and no path contains one.
        Err(_) => path,
    }
}

/// Formats a number of files and their bytes: `12 file(s), 808 MiB`.
pub(crate) fn counted(files: u64, bytes: u64) -> String {
    match bytes {
        0 => format!("{files} file(s)"),
        _ => format!("{files} file(s), {}", rounded_size(bytes)),
    }
}
