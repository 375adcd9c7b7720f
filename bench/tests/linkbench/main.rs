//! LinkBench on clusters of machines in this process: the cases of the reference's tests of stores, random operations
//! against a model, and the requests of a run.

mod cluster;
mod requests;
mod store;
