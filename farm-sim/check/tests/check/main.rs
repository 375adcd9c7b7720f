//! The judges of histories: known good and bad ones, and agreement with checkers of others.

mod against;
mod exact;
mod hashtable;
mod histories;
mod known;
mod robust;
