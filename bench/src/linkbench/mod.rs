//! LinkBench (Armstrong et al., SIGMOD 2013): a graph like Facebook's, and requests like those of its applications. The
//! mix of Tao (Bronson et al., ATC 2013) runs on the same graph.
//!
//! In reading order: [`spec`] has the properties; [`java`], [`shuffle`], [`zipf`] and [`degree`] are the distributions,
//! which are those of the reference program; [`payload`] and [`requests`] draw data and requests, of which [`client`]
//! makes those of one client, and [`loaded`] the graph. All of this depends on its arguments only, and not on a store.
//! [`load`] writes the graph, [`driver`] performs the requests, and [`report`] has the results. [`store`] has the
//! operations by id, as the interface of the reference's stores defines them.

pub mod audit;
pub mod client;
pub mod degree;
pub mod driver;
pub mod java;
pub mod load;
pub mod loaded;
pub mod payload;
pub mod report;
pub mod requests;
pub mod shuffle;
pub mod spec;
pub mod store;
pub mod zipf;

pub use spec::LinkSpec;
