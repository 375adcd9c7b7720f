//! The edges that are loaded.

use std::sync::Arc;

use rand::{RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::edges::{Edge, Keys};
use super::workload::Workload;

/// The edges that are loaded. Each is a function of its number.
#[derive(Clone, Debug)]
pub struct Loaded {
    workload: Arc<Workload>,
    keys: Keys,
    seed: u64,
    count: u64,
}

impl Loaded {
    /// Returns the edges of a workload.
    pub fn new(workload: Arc<Workload>, seed: u64, count: u64) -> Self {
        Self {
            workload,
            keys: Keys::new(seed, 0),
            seed,
            count,
        }
    }

    /// Returns the number of edges.
    pub fn len(&self) -> u64 {
        self.count
    }

    /// Returns whether there is no edge.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns edge number `number`.
    pub fn get(&self, number: u64) -> Edge {
        let mixed = (self.seed ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(mixed);
        let primary = rng.next_u64() % self.workload.primary_shards.len() as u64;
        let remote = self.workload.remote_shards.draw(&mut rng);
        Edge {
            id1: self.keys.get(primary, 2 * number),
            id2: self.keys.get(remote, 2 * number + 1),
            edge_type: self.workload.edge_types.draw(&mut rng),
        }
    }

    /// Returns the time of edge number `number` and its objects. It is greater than 0, and smaller than those of requests.
    pub fn time(&self, number: u64) -> u64 {
        number + 1
    }
}

#[cfg(test)]
mod tests {
    use super::super::edges::{EdgeType, shard_of};
    use super::super::workload::Published;
    use super::*;

    #[test]
    fn loaded_edges_have_the_shares_of_the_file() {
        let text = Published::Applications.text();
        let workload = Arc::new(Workload::parse("a.json", text.as_bytes()).unwrap());
        let loaded = Loaded::new(workload, 1, 100_000);
        let edges: Vec<Edge> = (0..loaded.len()).map(|number| loaded.get(number)).collect();
        assert_eq!(edges[17], loaded.get(17));
        let share = |test: fn(&Edge) -> bool| {
            edges.iter().filter(|edge| test(edge)).count() as f64 / edges.len() as f64
        };
        let near = |share: f64, wanted: f64| assert!((share - wanted).abs() < 0.01, "{share}");
        // All primary shards have the same share; the most popular remote shard has 69.3 %.
        near(share(|edge| shard_of(edge.id1) == 0), 0.02);
        near(share(|edge| shard_of(edge.id1) == 49), 0.02);
        near(share(|edge| shard_of(edge.id2) == 0), 0.693);
        near(share(|edge| edge.edge_type == EdgeType::Unique), 0.052);
        near(share(|edge| edge.edge_type == EdgeType::Bidirectional), 0.2);
        near(share(|edge| edge.edge_type == EdgeType::Other), 0.728);
    }
}
