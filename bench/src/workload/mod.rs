//! Workloads that know what a correct platform answers: each keeps an invariant, writes values that
//! describe themselves, and records a history that checkers judge.
//!
//! The simulator runs them under faults, and `farm workload` on real machines.

pub mod history;
