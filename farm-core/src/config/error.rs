//! The problems of a configuration. Each problem reports the place (file and line, or flag), the
//! key, what was found, what was expected, and advice.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a configuration was rejected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read the configuration {}: {source}; {}", path.display(), advice_for(source))]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The text was read, and contains at least one problem. All problems found are listed.
    #[error("{}", list(name, problems))]
    Invalid {
        /// Name of the file, or of the source of the text.
        name: String,
        /// The problems, in the order of the file; never empty.
        problems: Vec<Problem>,
    },
}

impl ConfigError {
    /// Returns the problems found; empty if the file could not be read.
    pub fn problems(&self) -> &[Problem] {
        match self {
            ConfigError::Read { .. } => &[],
            ConfigError::Invalid { problems, .. } => problems,
        }
    }

    /// Returns `Ok` if `problems` is empty, else the error with the problems in the order of the
    /// file.
    pub(super) fn from_problems(name: &str, mut problems: Vec<Problem>) -> Result<(), ConfigError> {
        if problems.is_empty() {
            return Ok(());
        }
        problems.sort_by(|a, b| a.place.cmp(&b.place));
        Err(ConfigError::Invalid {
            name: name.to_owned(),
            problems,
        })
    }
}

fn advice_for(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "check the path given with --config",
        io::ErrorKind::PermissionDenied => "make the file readable for this user",
        _ => "check that it is a TOML file of less than 1 MiB",
    }
}

/// Maximum number of problems that one message lists.
const MOST_LISTED: usize = 20;

fn list(name: &str, problems: &[Problem]) -> String {
    match problems {
        [only] => only.to_string(),
        many => {
            let mut text = format!("{} problems in {name}:", many.len());
            for problem in many.iter().take(MOST_LISTED) {
                text.push_str("\n  ");
                text.push_str(&problem.to_string());
            }
            if many.len() > MOST_LISTED {
                text.push_str(&format!("\n  and {} more", many.len() - MOST_LISTED));
            }
            text
        }
    }
}

/// One problem of a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Category of the problem, for programs.
    pub kind: ProblemKind,
    /// Where the value was written.
    pub place: Place,
    /// Key with the problem, dotted: `memory.region_bytes`; empty if the text is not TOML.
    pub key: String,
    /// What was found, and why it is invalid.
    pub found: String,
    /// What is valid.
    pub expected: String,
    /// What to do.
    pub advice: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.place)?;
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        write!(
            f,
            "{}; expected {}; {}",
            self.found, self.expected, self.advice
        )
    }
}

/// The categories of problems in a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProblemKind {
    /// The text is not TOML (which includes a key given twice), or not UTF-8.
    Syntax,
    /// An unknown section or key.
    UnknownKey,
    /// A value of another type than the key's.
    WrongType,
    /// A value of the right type that is not among the permitted values, or exceeds a limit.
    OutOfRange,
    /// An invalid size: zero, not a power of two, or not a multiple of the required unit.
    ImpossibleSize,
    /// Two values that exclude each other.
    Inconsistent,
    /// A machine without an id.
    MissingKey,
    /// Two machines with one id.
    DuplicateMachine,
    /// No machine.
    NoMachines,
    /// More machines than a cluster can have.
    TooManyMachines,
}

/// The origin of a value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Place {
    /// A line of a file, counted from 1; 0 means the file as a whole.
    File {
        /// The file's name as given.
        name: String,
        /// Line number.
        line: usize,
    },
    /// A command-line flag, such as `--neighbourhood` or `--set`.
    Flag(String),
    /// No file or flag: a default, or a value that a program assigned.
    Program,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File { name, line: 0 } => f.write_str(name),
            Place::File { name, line } => write!(f, "{name}:{line}"),
            Place::Flag(flag) => f.write_str(flag),
            Place::Program => f.write_str("the configuration"),
        }
    }
}

/// Returns the word of `known` that `word` is probably a misspelling of.
pub(super) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let most = 1 + word.chars().count() / 4;
    known
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(word, candidate), candidate))
        .filter(|&(distance, _)| distance <= most)
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, candidate)| candidate)
}

/// Joins words to a list for messages: `a, b or c`.
pub fn one_of<S: AsRef<str>>(words: &[S]) -> String {
    match words {
        [] => String::new(),
        [only] => only.as_ref().to_owned(),
        [most @ .., last] => {
            let most: Vec<&str> = most.iter().map(AsRef::as_ref).collect();
            format!("{} or {}", most.join(", "), last.as_ref())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_corrects_typos_only() {
        let known = ["region_bytes", "block_bytes", "dir"];
        assert_eq!(nearest("regoin_bytes", known), Some("region_bytes"));
        assert_eq!(nearest("dirs", known), Some("dir"));
        assert_eq!(nearest("banana", known), None);
        assert_eq!(nearest("", known), None);
    }

    #[test]
    fn lists_read_as_sentences() {
        assert_eq!(one_of::<&str>(&[]), "");
        assert_eq!(one_of(&["a"]), "a");
        assert_eq!(one_of(&["a", "b", "c"]), "a, b or c");
    }
}
