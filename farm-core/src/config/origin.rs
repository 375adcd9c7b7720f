//! The names under which the origins of values are stored.

use crate::ids::MachineId;

/// Name under which the origin of the file as a whole is stored. It is not the name of a key.
pub(super) const WHOLE: &str = "";

/// Returns the name under which the origin of a machine's key is stored.
pub(super) fn origin_of(machine: MachineId, name: &str) -> String {
    format!("machine.{}.{name}", machine.get())
}
