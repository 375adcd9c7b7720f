//! Typed access to settings, and remarks on those without an effect.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::str::FromStr;

use super::{Properties, PropertyError, Setting, Vocabulary};

/// A remark for the author of the settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remark {
    /// Whether it is a warning, such as for a misspelt key, and not a note on a harmless setting.
    pub is_warning: bool,
    /// The text, which names the setting and its origin.
    pub text: String,
}

/// Typed access to settings, with errors that name the setting.
pub(crate) struct Reader<'a> {
    properties: &'a Properties,
    /// Keys that were read, whether they are set or not.
    used: RefCell<BTreeSet<&'static str>>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(properties: &'a Properties) -> Self {
        Self {
            properties,
            used: RefCell::default(),
        }
    }

    /// Returns remarks on unknown keys and on settings without an effect. `reason` returns why a key that was read has no
    /// effect with its value.
    pub(crate) fn remarks(
        &self,
        vocabulary: Vocabulary,
        reason: impl Fn(&str, &str) -> Option<String>,
    ) -> Vec<Remark> {
        let mut remarks = Vec::new();
        let used = self.used.borrow();
        for (key, Setting { value, origin }) in self.properties.iter() {
            let idle = vocabulary.idle(key);
            let reason = match &idle {
                _ if used.contains(key) => reason(key, value),
                Some(idle) => {
                    let is = |harmless: &str| value.eq_ignore_ascii_case(harmless);
                    (!idle.harmless.is_some_and(is)).then(|| idle.reason.to_owned())
                }
                None => {
                    let mut text = format!("unknown property '{key}' ({origin})");
                    if let Some(known) = vocabulary.suggestion(key, &used) {
                        text += &format!("; did you mean '{known}'?");
                    }
                    remarks.push(Remark {
                        is_warning: true,
                        text,
                    });
                    None
                }
            };
            remarks.extend(reason.map(|reason| Remark {
                is_warning: false,
                text: format!("{key}={value} ({origin}) has no effect: {reason}"),
            }));
        }
        remarks
    }

    /// Returns a setting, and records that its key has an effect.
    pub(crate) fn get(&self, key: &'static str) -> Option<&'a Setting> {
        self.used.borrow_mut().insert(key);
        self.properties.get(key)
    }

    /// Returns a number that `accepts` accepts; `wanted` describes the accepted range.
    pub(crate) fn number<T: FromStr>(
        &self,
        key: &'static str,
        wanted: &str,
        accepts: impl Fn(&T) -> bool,
    ) -> Result<Option<T>, PropertyError> {
        let Some(setting) = self.get(key) else {
            return Ok(None);
        };
        match setting.value.parse::<T>().ok().filter(accepts) {
            Some(number) => Ok(Some(number)),
            None => Err(PropertyError::bad_value(key, setting, wanted)),
        }
    }

    pub(crate) fn count(&self, key: &'static str) -> Result<Option<u64>, PropertyError> {
        self.number(key, "a whole number from 0 on", |_: &u64| true)
    }

    pub(crate) fn fraction(&self, key: &'static str) -> Result<Option<f64>, PropertyError> {
        self.number(key, "a number from 0 to 1, such as 0.5", |part: &f64| {
            (0.0..=1.0).contains(part)
        })
    }

    pub(crate) fn positive(&self, key: &'static str) -> Result<Option<u64>, PropertyError> {
        self.number(key, "a whole number from 1 on", |count: &u64| *count > 0)
    }

    /// Returns the index in `words` of the setting, if it is set.
    pub(crate) fn one_of(
        &self,
        key: &'static str,
        words: &[&str],
    ) -> Result<Option<usize>, PropertyError> {
        let Some(setting) = self.get(key) else {
            return Ok(None);
        };
        let place = words
            .iter()
            .position(|word| setting.value.eq_ignore_ascii_case(word));
        match place {
            Some(place) => Ok(Some(place)),
            None => Err(PropertyError::bad_value(key, setting, &words.join(" or "))),
        }
    }
}
