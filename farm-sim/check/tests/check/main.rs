//! Tests of the checkers: known good and bad histories, and agreement with independent checkers.

mod against;
mod exact;
mod hashtable;
mod histories;
mod known;
mod robust;
