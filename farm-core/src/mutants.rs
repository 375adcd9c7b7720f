//! Deliberate bugs, by which tests prove that their checkers find bugs of that kind.
//!
//! Without the feature `mutants`, which nothing that serves is built with, [`is_on`] is the constant
//! `false` and every bug below it is compiled away.

#[cfg(feature = "mutants")]
use std::cell::Cell;

/// Whether this program was built so that bugs can be switched on.
pub const BUILT_IN: bool = cfg!(feature = "mutants");

#[cfg(feature = "mutants")]
thread_local! {
    static ON: Cell<Option<&'static str>> = const { Cell::new(None) };
    static MET: Cell<bool> = const { Cell::new(false) };
    static VERSION_STEP: Cell<u64> = const { Cell::new(1) };
}

/// Whether this thread is to have the bug `name`.
#[cfg(feature = "mutants")]
#[inline]
pub fn is_on(name: &'static str) -> bool {
    let on = ON.get() == Some(name);
    if on {
        MET.set(true);
    }
    on
}

/// Whether this thread is to have the bug `name`: never, in this program.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn is_on(_name: &'static str) -> bool {
    false
}

/// By how much a version grows: more than 1 makes the 16 bits of line versions come round soon.
#[cfg(feature = "mutants")]
pub(crate) fn version_step() -> u64 {
    VERSION_STEP.get()
}

#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub(crate) const fn version_step() -> u64 {
    1
}

/// Switches one bug of this thread on, or all off.
#[cfg(feature = "mutants")]
pub fn switch(name: Option<&'static str>) {
    ON.set(name);
    MET.set(false);
}

/// Whether code that has the bug was run since it was switched on.
#[cfg(feature = "mutants")]
pub fn was_met() -> bool {
    MET.get()
}

/// Makes versions of this thread grow by `step`.
#[cfg(feature = "mutants")]
pub fn set_version_step(step: u64) {
    VERSION_STEP.set(step);
}
