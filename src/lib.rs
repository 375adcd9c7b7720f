//! farm
