//! Microbenchmarks of one part of the platform at a time, each compared with the operation that limits it:
//!
//! | module | measures | compared with |
//! |---|---|---|
//! | [`limit`] | random reads of mapped memory, raw and checked | nothing: it is the limit of lookups |
//! | [`ring`] | round trips and messages between two processes | Unix and TCP sockets |
//! | [`fabric`] | one-sided reads and writes | the limit, at the same sizes |
//! | [`verbs`] | one-sided reads and writes over RDMA devices | perftest, on the same devices |
//!
//! Every figure is the median of several time slices. The slices of different variants alternate, so that a busy host
//! disturbs all variants alike. Results also contain the least and the greatest slice. [`Conditions`] contain the share
//! of the time in which other threads had the processor. [`ring`], [`fabric`] and [`verbs`] describe each measurement
//! by its key in JSON, its name and its operation, and return a [`MicroReport`].
//!
//! The peers in [`ring`] are processes: the running program, started again with [`CHILD_VARIABLE`] set. A program that
//! runs [`ring`] must call [`child_main`] if this variable is set.

pub mod fabric;
mod figures;
mod host;
mod initiator;
pub mod limit;
mod machines;
pub mod maps;
mod measure;
mod reads;
mod report;
pub mod ring;
pub mod verbs;

#[cfg(test)]
mod tests;

pub use figures::{Latency, Rate, Spread};
pub use host::Conditions;
pub(crate) use host::processor;
pub use machines::MicroRun;
pub use measure::Progress;
pub use report::{MicroReport, Row};
pub use ring::child::{CHILD_VARIABLE, Launcher, child_main};
