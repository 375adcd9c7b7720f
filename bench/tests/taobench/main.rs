//! TAOBench on clusters of machines in this process: the rules for new edges, the largest transactions, and runs whose
//! graph is checked.

mod cluster;
mod runs;
mod store;
