//! Sections of the layers above this crate. A layer defines its keys and their checks; this module reads, overrides
//! and writes them together with the sections of this crate.

use std::any::Any;
use std::fmt;

use serde::ser::{Serialize, SerializeMap, Serializer};

use super::check::Check;
use super::keys::{Key, KeyFacts};
use super::value::{Misfit, Value};

/// A section of the configuration that a layer above this crate defines.
///
/// ```
/// use farm_core::config::{Check, Config, Key, Section, Sections};
///
/// #[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
/// struct Cache {
///     entries: u32,
/// }
///
/// impl Section for Cache {
///     const KEYS: &'static [Key<Self>] = &[Key {
///         path: "cache.entries",
///         shared: false,
///         expected: |_| "a whole number".to_owned(),
///         set: |cache, value| value.whole().map(|entries| cache.entries = entries),
///         show: |cache| cache.entries.to_string(),
///     }];
///
///     fn check(&self, check: &mut Check<'_>) {
///         check.whole_between("cache.entries", self.entries, 0, 1000);
///     }
/// }
///
/// let sections = Sections::default().with(Cache::default());
/// let text = "[[machine]]\nid = 1\n[cache]\nentries = 5\n";
/// let config = Config::from_str_with(text, "my.toml", &sections)?;
/// assert_eq!(config.section::<Cache>(), Some(&Cache { entries: 5 }));
/// assert!(Config::from_str(text, "my.toml").is_err());
/// # Ok::<(), farm_core::config::ConfigError>(())
/// ```
pub trait Section: Clone + fmt::Debug + PartialEq + Serialize + Send + Sync + 'static {
    /// The keys, in the order in which they are written. All paths begin with the same section name, which no other
    /// [`Section`] uses.
    const KEYS: &'static [Key<Self>];

    /// Reports problems of the values, alone and in combination with the values of other sections.
    fn check(&self, check: &mut Check<'_>);

    /// Returns the size, in bytes, of the reads that the layer keeps in flight with these values, if workers need slots
    /// of that size. Returns `None` if slots of the common sizes suffice.
    fn read_bytes(&self) -> Option<usize> {
        None
    }
}

/// The sections of the layers above this crate, with their values.
#[derive(Debug, Default)]
pub struct Sections(Vec<Box<dyn AnySection>>);

impl Sections {
    /// Returns the sections with `section` added. If they already contain a section of that type, its values are
    /// replaced.
    #[must_use]
    pub fn with<T: Section>(mut self, section: T) -> Self {
        match self.get_mut::<T>() {
            Some(known) => *known = section,
            None => self.0.push(Box::new(section)),
        }
        self
    }

    pub(super) fn get<T: Section>(&self) -> Option<&T> {
        let mut all = self.0.iter().map(|section| section.as_any());
        all.find_map(|section| section.downcast_ref())
    }

    pub(super) fn get_mut<T: Section>(&mut self) -> Option<&mut T> {
        let mut all = self.0.iter_mut().map(|section| section.as_any_mut());
        all.find_map(|section| section.downcast_mut())
    }

    /// Returns the keys of all sections.
    pub(super) fn keys(&self) -> impl Iterator<Item = KeyFacts> {
        self.0.iter().flat_map(|section| section.keys())
    }

    /// Sets a key, if one of the sections has it.
    pub(super) fn set(&mut self, path: &str, value: &Value) -> Option<Result<(), Misfit>> {
        let mut all = self.0.iter_mut();
        all.find_map(|section| section.set(path, value))
    }

    /// Returns the value of a key in canonical form, if one of the sections has it.
    pub(super) fn show(&self, path: &str) -> Option<String> {
        self.0.iter().find_map(|section| section.show(path))
    }

    pub(super) fn check(&self, check: &mut Check<'_>) {
        for section in &self.0 {
            section.check(check);
        }
    }

    /// Returns the [`Section::read_bytes`] of each section that needs slots of its own.
    pub(super) fn read_bytes(&self) -> impl Iterator<Item = usize> {
        self.0.iter().filter_map(|section| section.read_bytes())
    }
}

impl Clone for Sections {
    fn clone(&self) -> Self {
        Self(self.0.iter().map(|section| section.boxed()).collect())
    }
}

impl PartialEq for Sections {
    fn eq(&self, other: &Self) -> bool {
        let pairs = || self.0.iter().zip(&other.0);
        self.0.len() == other.0.len() && pairs().all(|(one, other)| one.equals(other.as_any()))
    }
}

/// Writes each section under its name.
impl Serialize for Sections {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for section in &self.0 {
            map.serialize_entry(section.name(), &Fields(section.as_ref()))?;
        }
        map.end()
    }
}

/// A section as a map, in the order of its keys.
struct Fields<'a>(&'a dyn AnySection);

impl Serialize for Fields<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let values = self.0.values().map_err(serde::ser::Error::custom)?;
        let keys = self.0.keys();
        let mut map = serializer.serialize_map(Some(keys.len()))?;
        for key in keys {
            map.serialize_entry(key.name(), &values[key.name()])?;
        }
        map.end()
    }
}

/// A [`Section`] of any type.
trait AnySection: fmt::Debug + Send + Sync {
    fn name(&self) -> &'static str;
    fn keys(&self) -> Vec<KeyFacts>;
    fn set(&mut self, path: &str, value: &Value) -> Option<Result<(), Misfit>>;
    fn show(&self, path: &str) -> Option<String>;
    fn check(&self, check: &mut Check<'_>);
    fn read_bytes(&self) -> Option<usize>;
    fn values(&self) -> serde_json::Result<serde_json::Value>;
    fn boxed(&self) -> Box<dyn AnySection>;
    fn equals(&self, other: &dyn Any) -> bool;
    fn as_any(&self) -> &dyn Any;
    fn as_any_mut(&mut self) -> &mut dyn Any;
}

/// Returns the key of a section with this path.
fn key_of<T: Section>(path: &str) -> Option<&'static Key<T>> {
    T::KEYS.iter().find(|key| key.path == path)
}

impl<T: Section> AnySection for T {
    fn name(&self) -> &'static str {
        T::KEYS.first().map_or("", Key::section)
    }

    fn keys(&self) -> Vec<KeyFacts> {
        T::KEYS.iter().map(Key::facts).collect()
    }

    fn set(&mut self, path: &str, value: &Value) -> Option<Result<(), Misfit>> {
        key_of::<T>(path).map(|key| (key.set)(self, value))
    }

    fn show(&self, path: &str) -> Option<String> {
        key_of::<T>(path).map(|key| (key.show)(self))
    }

    fn check(&self, check: &mut Check<'_>) {
        Section::check(self, check);
    }

    fn read_bytes(&self) -> Option<usize> {
        Section::read_bytes(self)
    }

    fn values(&self) -> serde_json::Result<serde_json::Value> {
        serde_json::to_value(self)
    }

    fn boxed(&self) -> Box<dyn AnySection> {
        Box::new(self.clone())
    }

    fn equals(&self, other: &dyn Any) -> bool {
        other.downcast_ref() == Some(self)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}
