//! The rare branches that a sweep must reach.

use farm_core::marks::Reached;

/// Marks that a sweep over all scenarios reaches: one that it does not reach is a branch that nothing
/// tests, and one that is not here is a branch that nobody demands.
pub const ALL: &[&str] = &[];

/// Those of [`ALL`] that were not reached.
pub fn missing(reached: &Reached) -> Vec<&'static str> {
    ALL.iter()
        .copied()
        .filter(|mark| !reached.contains_key(mark))
        .collect()
}

/// Those that were reached and are not in [`ALL`].
pub fn unknown(reached: &Reached) -> Vec<&'static str> {
    reached
        .keys()
        .copied()
        .filter(|mark| !ALL.contains(mark))
        .collect()
}
