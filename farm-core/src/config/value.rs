//! Values as written in a file or on a command line, and their conversion for keys.

use std::fmt;
use std::path::PathBuf;

use toml::de::DeValue;

use super::error::{ProblemKind, nearest};
use super::size::parse_size;

/// A value from a file or a command line.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A text.
    Text(String),
    /// A whole number.
    Integer(i128),
    /// Any other number.
    Float(f64),
    /// A boolean.
    Flag(bool),
    /// A list.
    List(Vec<Value>),
    /// A value that no key accepts: a table or a date, by name.
    Other(&'static str),
    /// A value from a command line, with its text. A key that accepts text uses the text, even if
    /// the text is also a valid value of another type.
    Typed(String, Box<Value>),
}

/// Why a key does not accept a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misfit {
    /// Category of the problem.
    pub kind: ProblemKind,
    /// What was found, as the beginning of a message.
    pub found: String,
    /// Specific advice, if it is better than the general advice.
    pub advice: Option<String>,
}

impl Value {
    /// Converts the value of a flag, written without quotes: parses it as TOML if possible, else as
    /// text.
    pub(super) fn from_flag(text: &str) -> Value {
        let value = match DeValue::parse(text) {
            Ok(value) => Value::from(value.get_ref()),
            Err(_) => Value::Text(text.to_owned()),
        };
        match value {
            Value::Text(text) => Value::Text(text),
            other => Value::Typed(text.to_owned(), Box::new(other)),
        }
    }

    /// Returns the parsed value, without the text of a command-line value.
    fn untyped(&self) -> &Value {
        match self {
            Value::Typed(_, value) => value,
            value => value,
        }
    }

    fn wrong_type(&self) -> Misfit {
        Misfit {
            kind: ProblemKind::WrongType,
            found: self.to_string(),
            advice: None,
        }
    }

    pub(super) fn out_of_range(&self) -> Misfit {
        Misfit {
            kind: ProblemKind::OutOfRange,
            found: self.to_string(),
            advice: None,
        }
    }

    /// Returns the value as text.
    pub(super) fn text(&self) -> Result<String, Misfit> {
        match self {
            Value::Text(text) | Value::Typed(text, _) => Ok(text.clone()),
            _ => Err(self.wrong_type()),
        }
    }

    /// Returns the value as a path.
    pub(super) fn path(&self) -> Result<PathBuf, Misfit> {
        self.text().map(PathBuf::from)
    }

    /// Returns the value as a boolean.
    pub(super) fn flag(&self) -> Result<bool, Misfit> {
        match self.untyped() {
            Value::Flag(flag) => Ok(*flag),
            _ => Err(self.wrong_type()),
        }
    }

    /// Returns the value as a number, whole or not.
    ///
    /// # Errors
    ///
    /// [`Misfit`] if it is another value.
    pub fn number(&self) -> Result<f64, Misfit> {
        match self.untyped() {
            Value::Float(number) => Ok(*number),
            Value::Integer(number) => Ok(*number as f64),
            _ => Err(self.wrong_type()),
        }
    }

    /// Returns the value as a whole number within the range of `T`.
    ///
    /// # Errors
    ///
    /// [`Misfit`] if it is another value.
    pub fn whole<T: TryFrom<i128>>(&self) -> Result<T, Misfit> {
        match self.untyped() {
            Value::Integer(number) => T::try_from(*number).map_err(|_| self.out_of_range()),
            _ => Err(self.wrong_type()),
        }
    }

    /// Returns the value as a list of whole numbers.
    pub(super) fn wholes(&self) -> Result<Vec<u32>, Misfit> {
        match self.untyped() {
            Value::List(values) => values.iter().map(Value::whole).collect(),
            _ => Err(self.wrong_type()),
        }
    }

    /// Returns the value as a size in bytes: `"256MiB"`, or a whole number.
    ///
    /// # Errors
    ///
    /// [`Misfit`] if it is another value.
    pub fn size(&self) -> Result<u64, Misfit> {
        match self.untyped() {
            Value::Text(text) => parse_size(text).map_err(|why| Misfit {
                kind: ProblemKind::WrongType,
                found: format!("{text:?} {why}"),
                advice: Some("write it like \"256MiB\"".to_owned()),
            }),
            _ => self.whole(),
        }
    }

    /// Returns the meaning of the value, one of the words of `table`.
    pub(super) fn choice<T: Copy>(&self, table: &[(&str, T)]) -> Result<T, Misfit> {
        let word = self.text()?;
        if let Some((_, meant)) = table.iter().find(|(name, _)| *name == word) {
            return Ok(*meant);
        }
        let near = nearest(&word, table.iter().map(|(name, _)| *name));
        Err(Misfit {
            kind: ProblemKind::OutOfRange,
            found: self.to_string(),
            advice: near.map(|near| format!("did you mean \"{near}\"?")),
        })
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Text(text) => write!(f, "the text {text:?}"),
            Value::Integer(number) => write!(f, "the whole number {number}"),
            Value::Float(number) => write!(f, "the number {number}"),
            Value::Flag(flag) => write!(f, "{flag}"),
            Value::List(_) => f.write_str("a list"),
            Value::Other(what) => f.write_str(what),
            Value::Typed(_, value) => value.fmt(f),
        }
    }
}

impl From<&DeValue<'_>> for Value {
    fn from(value: &DeValue<'_>) -> Value {
        match value {
            DeValue::String(text) => Value::Text(text.to_string()),
            DeValue::Integer(number) => Value::Integer(
                // A number too large for i128 exceeds every range, in the direction of its sign.
                i128::from_str_radix(number.as_str(), number.radix()).unwrap_or_else(|_| {
                    if number.as_str().starts_with('-') {
                        i128::MIN
                    } else {
                        i128::MAX
                    }
                }),
            ),
            DeValue::Float(number) => Value::Float(number.as_str().parse().unwrap_or(f64::NAN)),
            DeValue::Boolean(flag) => Value::Flag(*flag),
            DeValue::Datetime(_) => Value::Other("a date or time"),
            DeValue::Array(values) => Value::List(
                values
                    .iter()
                    .map(|value| Value::from(value.get_ref()))
                    .collect(),
            ),
            DeValue::Table(_) => Value::Other("a table"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_need_no_quotes() {
        assert_eq!(Value::from_flag("256MiB").size(), Ok(256 << 20));
        assert_eq!(Value::from_flag("\"256MiB\"").size(), Ok(256 << 20));
        assert_eq!(Value::from_flag("0x1000").size(), Ok(4096));
        assert_eq!(Value::from_flag("6").whole::<u32>(), Ok(6));
        assert_eq!(Value::from_flag("0.75").number(), Ok(0.75));
        assert_eq!(Value::from_flag("[0, 1]").wholes(), Ok(vec![0, 1]));
        assert_eq!(Value::from_flag("false").flag(), Ok(false));
        assert_eq!(
            Value::from_flag("/dev/shm").path(),
            Ok(PathBuf::from("/dev/shm"))
        );
    }

    #[test]
    fn a_flag_for_a_text_key_is_its_text() {
        for text in ["123", "true", "1e3", "2024-01-01"] {
            assert_eq!(Value::from_flag(text).text(), Ok(text.to_owned()));
        }
    }

    #[test]
    fn numbers_too_large_for_every_type_are_out_of_range() {
        let huge = "9".repeat(60);
        let found = Value::from_flag(&huge)
            .whole::<u64>()
            .expect_err("too large");
        assert_eq!(found.kind, ProblemKind::OutOfRange);
        let found = Value::from_flag("-1").size().expect_err("negative");
        assert_eq!(found.kind, ProblemKind::OutOfRange);
    }

    #[test]
    fn a_mistyped_choice_gets_a_suggestion() {
        let table = [("spin", 1), ("park", 2)];
        assert_eq!(Value::from_flag("park").choice(&table), Ok(2));
        let misfit = Value::from_flag("prak")
            .choice(&table)
            .expect_err("unknown word");
        assert_eq!(misfit.advice.as_deref(), Some("did you mean \"park\"?"));
    }
}
