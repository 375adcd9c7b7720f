//! Property files and `key=value` settings of the command line, each value with its origin.
//!
//! The syntax is that of Java's property files, as YCSB and LinkBench use them: `key=value`, `key: value` or `key
//! value`, `#` and `!` comments, and a backslash to continue a line. Later files replace earlier ones; a setting of the
//! command line replaces that of any file, regardless of the order. Every value keeps the line of its setting, so that
//! later error messages can refer to it.

mod reader;
mod vocabulary;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use java_properties::{LineContent, PropertiesIter};

pub(crate) use reader::Reader;
pub use reader::Remark;
pub(crate) use vocabulary::Vocabulary;

/// The origin of a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// In a property file, on this line (the first line is 1).
    File {
        /// Name of the file, as it was given when it was read.
        name: Arc<str>,
        /// Line on which the setting starts.
        line: usize,
    },
    /// On the command line, by this option.
    CommandLine(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::File { name, line } => write!(out, "{name}:{line}"),
            Origin::CommandLine(option) => out.write_str(option),
        }
    }
}

/// A value and its origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Text after the key, without surrounding blanks.
    pub value: String,
    /// Origin of the setting.
    pub origin: Origin,
}

/// Why settings could not be read.
#[derive(Debug, thiserror::Error)]
pub enum PropertyError {
    /// The file could not be opened or read.
    #[error("cannot read the property file '{path}': {source}")]
    Unreadable {
        /// Path of the file.
        path: String,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// A line of the file is not in the syntax of property files.
    #[error("{file}:{line}: {problem}")]
    Malformed {
        /// Name of the file.
        file: String,
        /// Number of the line.
        line: usize,
        /// Description of the error.
        problem: String,
    },
    /// An argument is not of the form `key=value`.
    #[error(
        "{option} '{argument}' is not of the form key=value, for example {option} recordcount=1000000"
    )]
    BadOverride {
        /// The option.
        option: &'static str,
        /// The argument.
        argument: String,
    },
    /// A setting is missing or invalid. The message names the setting, its origin, and what is accepted.
    #[error("{0}")]
    Invalid(String),
}

impl PropertyError {
    /// Returns the error for a value of the wrong type or out of its range; `wanted` describes the accepted values.
    pub(crate) fn bad_value(key: &str, setting: &Setting, wanted: &str) -> Self {
        let Setting { value, origin } = setting;
        Self::Invalid(format!("{key} = '{value}' ({origin}) is not {wanted}"))
    }
}

/// Settings from property files and from the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Properties {
    /// The option of the command line that sets a property.
    option: &'static str,
    settings: BTreeMap<String, Setting>,
}

impl Properties {
    /// Creates an empty set of settings. `option` is the option of the command line that sets a property, as in `-p`.
    pub fn new(option: &'static str) -> Self {
        Self {
            option,
            settings: BTreeMap::new(),
        }
    }

    /// Adds the settings of a file; they replace those of files that were read before.
    ///
    /// # Errors
    /// [`PropertyError::Unreadable`] and [`PropertyError::Malformed`].
    pub fn load_file(&mut self, path: &Path) -> Result<(), PropertyError> {
        let name = path.display().to_string();
        let bytes = std::fs::read(path).map_err(|source| PropertyError::Unreadable {
            path: name.clone(),
            source,
        })?;
        self.load_bytes(&name, &bytes)
    }

    /// Adds settings from the text of a file; messages refer to it as `name`.
    ///
    /// # Errors
    /// [`PropertyError::Malformed`] for a bad `\uXXXX` escape, for text in UTF-16, and for zero bytes, which show that the
    /// file is binary; any other text is valid in this syntax.
    pub fn load_bytes(&mut self, name: &str, text: &[u8]) -> Result<(), PropertyError> {
        let shared: Arc<str> = Arc::from(name);
        if text.starts_with(&[0xFE, 0xFF]) || text.starts_with(&[0xFF, 0xFE]) {
            return Err(PropertyError::Malformed {
                file: name.to_owned(),
                line: 1,
                problem: "the file is in UTF-16; save it as plain text or UTF-8".to_owned(),
            });
        }
        if let Some(at) = text.iter().position(|byte| *byte == 0) {
            return Err(PropertyError::Malformed {
                file: name.to_owned(),
                line: 1 + text[..at].iter().filter(|byte| **byte == b'\n').count(),
                problem: "the file has a zero byte: it is binary, and not a property file"
                    .to_owned(),
            });
        }
        let text = text.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(text);
        let text = without_comments(text);
        for line in PropertiesIter::new(text.as_slice()) {
            let line = line.map_err(|error| PropertyError::Malformed {
                file: name.to_owned(),
                line: error.line_number().unwrap_or(0),
                problem: problem_of(&error.to_string()),
            })?;
            let origin = Origin::File {
                name: Arc::clone(&shared),
                line: line.line_number(),
            };
            if let LineContent::KVPair(key, value) = line.consume_content() {
                self.set(key, &value, origin);
            }
        }
        Ok(())
    }

    /// Adds a `key=value` argument of the command line.
    ///
    /// # Errors
    /// [`PropertyError::BadOverride`] if there is no `=` or no key.
    pub fn set_override(&mut self, argument: &str) -> Result<(), PropertyError> {
        match argument.split_once('=') {
            Some((key, value)) if !key.trim().is_empty() => {
                self.set(
                    key.trim().to_owned(),
                    value,
                    Origin::CommandLine(self.option),
                );
                Ok(())
            }
            _ => Err(PropertyError::BadOverride {
                option: self.option,
                argument: argument.to_owned(),
            }),
        }
    }

    /// Returns the setting of `key`, if there is one.
    pub fn get(&self, key: &str) -> Option<&Setting> {
        self.settings.get(key)
    }

    /// Returns all settings in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Setting)> {
        self.settings
            .iter()
            .map(|(key, setting)| (key.as_str(), setting))
    }

    fn set(&mut self, key: String, value: &str, origin: Origin) {
        let is_of_file = |origin: &Origin| matches!(origin, Origin::File { .. });
        let from_file = is_of_file(&origin);
        let setting = Setting {
            value: value.trim().to_owned(),
            origin,
        };
        match self.settings.get(&key) {
            Some(before) if from_file && !is_of_file(&before.origin) => {}
            _ => {
                self.settings.insert(key, setting);
            }
        }
    }
}

/// Returns the parser's message without the line number at its end, which the error contains already.
fn problem_of(message: &str) -> String {
    let end = message.find(" (line_number").unwrap_or(message.len());
    message[..end].to_owned()
}

/// Returns the text with every comment line emptied and two line ends added.
///
/// The parser searches for escapes inside comments, too, and would reject a file because of a backslash before a `u`
/// there. It also drops a last line that ends in a continuation. Line numbers do not change.
fn without_comments(text: &[u8]) -> Vec<u8> {
    let mut kept = Vec::with_capacity(text.len() + 3);
    // The parser treats a byte order mark at the start as a change of encoding, and panics on the text after it. After
    // a blank, the mark has no special meaning.
    kept.push(b' ');
    let mut continued = false;
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest
            .iter()
            .position(|byte| matches!(byte, b'\n' | b'\r'))
            .unwrap_or(rest.len());
        let (line, after) = rest.split_at(end);
        let end_of_line = match after {
            [b'\r', b'\n', ..] => 2,
            [] => 0,
            _ => 1,
        };
        let first = line
            .iter()
            .find(|byte| !matches!(byte, b' ' | b'\t' | b'\x0c'));
        if continued || !matches!(first, Some(b'#' | b'!')) {
            kept.extend_from_slice(line);
            let slashes = line.iter().rev().take_while(|byte| **byte == b'\\');
            continued = slashes.count() % 2 == 1;
        }
        kept.extend_from_slice(&after[..end_of_line]);
        rest = &after[end_of_line..];
    }
    kept.extend_from_slice(b"\n\n");
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(name: &str, line: usize) -> Origin {
        Origin::File {
            name: Arc::from(name),
            line,
        }
    }

    #[test]
    fn the_syntax_of_property_files_is_read_with_line_numbers() {
        let mut properties = Properties::new("-p");
        let text = "# comment with C:\\users\n! another\n\nrecordcount=10\r\nfieldcount : 3\n\
                    table user\\\n   table \n#x\\\nlast = 1 \\";
        properties.load_bytes("w", text.as_bytes()).unwrap();
        let seen: Vec<_> = properties
            .iter()
            .map(|(key, setting)| (key, setting.value.as_str(), setting.origin.to_string()))
            .collect();
        assert_eq!(
            seen,
            [
                ("fieldcount", "3", "w:5".to_owned()),
                ("last", "1", "w:9".to_owned()),
                ("recordcount", "10", "w:4".to_owned()),
                ("table", "usertable", "w:6".to_owned()),
            ]
        );
    }

    #[test]
    fn later_files_replace_earlier_ones_and_overrides_replace_all() {
        let mut properties = Properties::new("-p");
        properties.load_bytes("one", b"a=1\nb=1\nc=1").unwrap();
        properties.set_override("c = 3 ").unwrap();
        properties.load_bytes("two", b"\nb=2\nc=2").unwrap();
        let get = |key| properties.get(key).unwrap();
        assert_eq!(get("a").origin, origin("one", 1));
        assert_eq!(
            (get("b").value.as_str(), &get("b").origin),
            ("2", &origin("two", 2))
        );
        assert_eq!(
            (get("c").value.as_str(), &get("c").origin),
            ("3", &Origin::CommandLine("-p"))
        );
    }

    #[test]
    fn errors_contain_their_origin() {
        let mut properties = Properties::new("-p");
        let error = properties.load_bytes("w", b"a=1\nb=\\uzzzz").unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("w:2: ") && !text.contains("line_number"),
            "{text}"
        );
        let error = properties.set_override("recordcount").unwrap_err();
        assert!(error.to_string().contains("'recordcount'"), "{error}");
        assert!(properties.set_override("=1").is_err());
        let error = properties.load_file(Path::new("/no/such")).unwrap_err();
        assert!(error.to_string().contains("/no/such"), "{error}");
    }
}
