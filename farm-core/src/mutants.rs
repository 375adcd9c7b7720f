//! Deliberate bugs, with which tests prove that their checkers find bugs of that kind.
//!
//! Without the feature `mutants`, which no production build has, [`is_on`] is the constant `false`, and the compiler
//! removes every deliberate bug.

#[cfg(feature = "mutants")]
use std::cell::Cell;

/// Whether this program was built with the feature `mutants`.
pub const BUILT_IN: bool = cfg!(feature = "mutants");

#[cfg(feature = "mutants")]
thread_local! {
    static ON: Cell<Option<&'static str>> = const { Cell::new(None) };
    static MET: Cell<bool> = const { Cell::new(false) };
    static VERSION_STEP: Cell<u64> = const { Cell::new(1) };
}

/// Returns whether the bug `name` is switched on in this thread.
#[cfg(feature = "mutants")]
#[inline]
pub fn is_on(name: &'static str) -> bool {
    let on = ON.get() == Some(name);
    if on {
        MET.set(true);
    }
    on
}

/// Returns whether the bug `name` is switched on in this thread: never, without the feature `mutants`.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn is_on(_name: &'static str) -> bool {
    false
}

/// Returns the increment of a version. With more than 1, the 16 bits of line versions wrap sooner.
#[cfg(feature = "mutants")]
pub(crate) fn version_step() -> u64 {
    VERSION_STEP.get()
}

#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub(crate) const fn version_step() -> u64 {
    1
}

/// Switches one bug on in this thread, or all bugs off.
#[cfg(feature = "mutants")]
pub fn switch(name: Option<&'static str>) {
    ON.set(name);
    MET.set(false);
}

/// Returns whether code with the bug has run since the bug was switched on.
#[cfg(feature = "mutants")]
pub fn was_met() -> bool {
    MET.get()
}

/// Sets the increment of versions in this thread.
#[cfg(feature = "mutants")]
pub fn set_version_step(step: u64) {
    VERSION_STEP.set(step);
}
