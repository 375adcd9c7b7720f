//! The hashtable on machines of one process: under concurrency, and counted.

mod cluster;
mod counting;
mod fairness;
mod history;
mod linearizable;
mod present;
mod specs;
