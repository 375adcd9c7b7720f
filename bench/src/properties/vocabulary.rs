//! The property names of a benchmark, to distinguish a misspelt name from one without an effect here.

use std::collections::BTreeSet;

/// A key without an effect here.
pub(super) struct Idle {
    key: &'static str,
    /// Value that requests the existing behaviour.
    pub(super) harmless: Option<&'static str>,
    /// Why the key has no effect.
    pub(super) reason: &'static str,
}

/// The keys that have no effect here, because they concern features that this program does not have, or the reference
/// program itself. They are grouped by the reason. `key=value` contains the value that requests the existing behaviour;
/// `prefix.*` stands for all keys with this prefix.
#[derive(Clone, Copy)]
pub(crate) struct Vocabulary(pub(crate) &'static [(&'static str, &'static str)]);

impl Vocabulary {
    fn all(self) -> impl Iterator<Item = Idle> {
        self.0.iter().flat_map(|(reason, keys)| {
            keys.split_whitespace().map(move |entry| {
                let (key, harmless) = match entry.split_once('=') {
                    Some((key, harmless)) => (key, Some(harmless)),
                    None => (entry, None),
                };
                Idle {
                    key,
                    harmless,
                    reason,
                }
            })
        })
    }

    /// Returns why a key has no effect here; `None` if the benchmark does not have the key.
    pub(super) fn idle(self, key: &str) -> Option<Idle> {
        self.all().find(|idle| match idle.key.strip_suffix('*') {
            Some(prefix) => key.starts_with(prefix),
            None => key == idle.key,
        })
    }

    /// Returns the known key that is most similar to `key`, if it is similar enough. `used` are the keys that have an
    /// effect.
    pub(super) fn suggestion(
        self,
        key: &str,
        used: &BTreeSet<&'static str>,
    ) -> Option<&'static str> {
        let key = key.to_ascii_lowercase();
        // A longer key is not a typing error, and the distance table grows with it.
        if key.len() > 64 {
            return None;
        }
        let allowed = 1 + key.len() / 6;
        let known = used.iter().copied().chain(self.all().map(|idle| idle.key));
        let distances = known.map(|known| {
            // If several keys have the same distance, prefer one with the same first letter.
            let differs = key.as_bytes().first() != known.as_bytes().first();
            (strsim::osa_distance(&key, known), differs, known)
        });
        let (distance, _, known) = distances.min()?;
        (distance <= allowed).then_some(known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_errors_get_a_suggestion_and_foreign_keys_do_not() {
        let used = BTreeSet::from(["readproportion", "recordcount"]);
        for (written, meant) in [
            ("recordcuont", Some("recordcount")),
            ("recordCount", Some("recordcount")),
            ("record_count", Some("recordcount")),
            ("readpropotion", Some("readproportion")),
            ("tabel", Some("table")),
            ("redis.host", None),
            ("x", None),
            ("", None),
        ] {
            let found = Vocabulary(&[("", "table")]).suggestion(written, &used);
            assert_eq!(found, meant, "for '{written}'");
        }
    }
}
