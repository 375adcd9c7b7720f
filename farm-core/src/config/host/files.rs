//! The files of a host from which its properties are read, and its mounted file systems.

use std::fs;
use std::path::{Path, PathBuf};

/// The files of a host, below `root`. `root` is `/` except in tests.
pub(super) struct Files<'a> {
    pub(super) root: &'a Path,
}

impl Files<'_> {
    pub(super) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Returns the text of a file; empty if the file cannot be read.
    pub(super) fn text(&self, path: impl AsRef<Path>) -> String {
        let bytes = fs::read(self.path(path)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns the number in a file.
    pub(super) fn number(&self, path: impl AsRef<Path>) -> Option<u64> {
        self.text(path).trim().parse().ok()
    }

    pub(super) fn is_dir(&self, path: impl AsRef<Path>) -> bool {
        self.path(path).is_dir()
    }

    /// Returns the names in a directory, sorted.
    pub(super) fn names(&self, path: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.path(path))
            .into_iter()
            .flatten()
            .flatten();
        let mut names: Vec<String> = entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}

/// A mounted file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mount {
    /// Part of the file system that is mounted.
    pub(super) root: PathBuf,
    pub(super) point: PathBuf,
    pub(super) filesystem: String,
    /// Options of the file system itself.
    pub(super) options: Vec<String>,
}

impl Mount {
    pub(super) fn option(&self, name: &str) -> Option<&str> {
        self.options
            .iter()
            .find_map(|option| option.strip_prefix(name)?.strip_prefix('='))
    }
}

/// Parses `/proc/self/mountinfo`, whose format proc(5) describes.
pub(super) fn mounts(text: &str) -> Vec<Mount> {
    let mount = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let (root, point) = (before.next()?, before.next()?);
        let mut after = after.split(' ');
        let (filesystem, _device, options) = (after.next()?, after.next()?, after.next()?);
        Some(Mount {
            root: unescaped(root),
            point: unescaped(point),
            filesystem: filesystem.to_owned(),
            options: options.split(',').map(str::to_owned).collect(),
        })
    };
    text.lines().filter_map(mount).collect()
}

/// Decodes a path of mountinfo, in which `\040` represents a space, and so on.
fn unescaped(path: &str) -> PathBuf {
    let mut text = String::new();
    let mut rest = path;
    while let Some((before, after)) = rest.split_once('\\') {
        text.push_str(before);
        match after
            .get(..3)
            .and_then(|code| u8::from_str_radix(code, 8).ok())
        {
            Some(code) => {
                text.push(char::from(code));
                rest = &after[3..];
            }
            None => {
                text.push('\\');
                rest = after;
            }
        }
    }
    text.push_str(rest);
    PathBuf::from(text)
}
