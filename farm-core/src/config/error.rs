//! What is wrong with a configuration, said so that its writer can mend it: where it stands (file
//! and line, or the flag), which key, what was found, what was expected, and what to do.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read the configuration {}: {source}; {}", path.display(), advice_for(source))]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The text was read, and at least one thing in it is wrong. All that could be found is here.
    #[error("{}", list(name, problems))]
    Invalid {
        /// The name of the file, or of the source of the text.
        name: String,
        /// What is wrong, in the order of the file; never empty.
        problems: Vec<Problem>,
    },
}

impl ConfigError {
    /// The problems found; none when the file could not be read at all.
    pub fn problems(&self) -> &[Problem] {
        match self {
            ConfigError::Read { .. } => &[],
            ConfigError::Invalid { problems, .. } => problems,
        }
    }

    /// `Ok` when nothing was found, else the error that carries it, in the order of the file.
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

/// Most problems that one message lists: more help nobody.
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

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The sort of mistake, for programs.
    pub kind: ProblemKind,
    /// Where it stands.
    pub place: Place,
    /// The key in question, dotted: `memory.region_bytes`; empty when the text is not TOML at all.
    pub key: String,
    /// What was found and why it cannot be.
    pub found: String,
    /// What would have been right.
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

/// The sorts of mistakes in a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProblemKind {
    /// The text is not TOML (which includes a key given twice), or not even UTF-8.
    Syntax,
    /// There is no such section or key.
    UnknownKey,
    /// A value of another type than the key takes.
    WrongType,
    /// A value of the right type that is none of those allowed, or beyond a limit.
    OutOfRange,
    /// A size that cannot be: zero, not a power of two, not a multiple of what it must be.
    ImpossibleSize,
    /// Two values that exclude each other.
    Inconsistent,
    /// A machine without an id.
    MissingKey,
    /// Two machines with one id.
    DuplicateMachine,
    /// No machine at all.
    NoMachines,
    /// More machines than a cluster can have.
    TooManyMachines,
}

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Place {
    /// A line of a file, counted from 1; 0 stands for the file as a whole.
    File {
        /// The file's name as given.
        name: String,
        /// The line.
        line: usize,
    },
    /// A flag of the command line, such as `--neighbourhood` or `--set`.
    Flag(String),
    /// Neither: a default, or a value that a program assigned.
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

/// The one of `known` that `word` was probably meant to be.
pub(super) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let most = 1 + word.chars().count() / 4;
    known
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(word, candidate), candidate))
        .filter(|&(distance, _)| distance <= most)
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, candidate)| candidate)
}

/// Several words as people list them: `a, b or c`.
pub(super) fn one_of<S: AsRef<str>>(words: &[S]) -> String {
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
    fn nearest_corrects_slips_and_not_other_words() {
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
