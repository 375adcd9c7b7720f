//! Deliberate bugs of [`install`](super::install) that take more than one expression.

use super::{BetweenSteps, Correct, load_version, unlock, write_line_versions};
use crate::mem::Memory;
use crate::mutants;
use crate::object::Version;

pub(super) enum Faulty {}

impl BetweenSteps for Faulty {
    fn before_install(memory: &Memory, at: usize) {
        match mutants::is_on("unlock before install") {
            true => unlock(memory, at, load_version(memory, at).version()),
            false => Correct::before_install(memory, at),
        }
    }

    fn before_data(memory: &Memory, at: usize, lines: usize, version: Version) {
        if mutants::is_on("version before data") {
            write_line_versions(memory, at, lines, version);
            unlock(memory, at, version);
        }
    }
}
