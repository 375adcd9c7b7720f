//! Keys, types and values of objects and edges.

use farm_graph::{AssocType, NodeType, Schema};
use rand::RngCore;
use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::recorder::kinds;

/// The greatest number of shards: a key has 6 bits for its shard, so that it is below 2^63.
pub const MAX_SHARDS: usize = 64;

/// Bytes of the value of an object or an edge.
pub const VALUE_BYTES: usize = 150;

/// The type of all objects.
pub const OBJECT_TYPE: u32 = 1;

/// Bits of a key below the shard.
const SHARD_BIT: u32 = 57;
/// Bits of a key below the sequence number.
const SEQUENCE_BIT: u32 = 40;
/// Bits of a sequence number.
const SEQUENCE_BITS: u32 = SHARD_BIT - SEQUENCE_BIT;

kinds! {
    /// A type of edges. The numbers are those of the reference.
    pub enum EdgeType {
        /// An object has at most one, and no other edges.
        Unique = "unique",
        /// The inverse edge has the same type.
        Bidirectional = "bidirectional",
        /// Both.
        UniqueBidirectional = "unique_and_bidirectional",
        /// Neither.
        Other = "other",
    }
}

impl EdgeType {
    /// Returns the number of the type in the schema.
    pub fn number(self) -> u32 {
        self.index() as u32
    }

    /// Returns whether an edge has an inverse edge of the same type.
    pub fn has_inverse(self) -> bool {
        matches!(
            self,
            EdgeType::Bidirectional | EdgeType::UniqueBidirectional
        )
    }
}

/// Returns the types of the graph. Edges need no object at either end.
pub fn schema() -> Schema {
    let object = NodeType {
        id: OBJECT_TYPE,
        name: "object".to_owned(),
        lists: 1,
    };
    let edge = |it: EdgeType| AssocType {
        id: it.number(),
        name: it.name().to_owned(),
        inverse: it.has_inverse().then_some(it.number()),
        unique: matches!(it, EdgeType::Unique | EdgeType::UniqueBidirectional),
        dangling: true,
    };
    let edges = EdgeType::ALL.into_iter().map(edge).collect();
    Schema::new(vec![object], edges).expect("the types have different numbers")
}

/// An edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Edge {
    /// Key of the first object.
    pub id1: u64,
    /// Key of the second object.
    pub id2: u64,
    /// Type.
    pub edge_type: EdgeType,
}

impl Edge {
    /// Returns the edge in the other direction, of the same type.
    pub fn inverse(self) -> Self {
        Self {
            id1: self.id2,
            id2: self.id1,
            ..self
        }
    }
}

/// Returns the shard of a key.
pub fn shard_of(key: u64) -> u64 {
    key >> SHARD_BIT
}

/// New keys of one client. The reference has a clock in the last 40 bits; here they contain the number of the client, so
/// that the keys of a run are the same in every run with the same seed.
#[derive(Clone, Copy, Debug)]
pub struct Keys {
    last_bits: u64,
}

impl Keys {
    /// Returns the keys of a client. The number is below 2^16.
    pub fn new(seed: u64, client: u64) -> Self {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mask = (1 << SEQUENCE_BIT) - 1;
        Self {
            last_bits: (rng.next_u64() & mask) ^ (client << 24),
        }
    }

    /// Returns key number `number`, which is below 2^41, in a shard.
    pub fn get(self, shard: u64, number: u64) -> u64 {
        let sequence = number & ((1 << SEQUENCE_BITS) - 1);
        let last = self.last_bits ^ (number >> SEQUENCE_BITS);
        shard << SHARD_BIT | sequence << SEQUENCE_BIT | last
    }
}

/// What has a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// An object.
    Object(u64),
    /// An edge. The inverse edge has the same value.
    Edge(Edge),
}

/// Returns the value that an object or an edge has since a write at this time: letters from a to z.
pub fn value(owner: Owner, time: u64) -> [u8; VALUE_BYTES] {
    let seed = match owner {
        Owner::Object(key) => key,
        Owner::Edge(Edge {
            id1,
            id2,
            edge_type,
        }) => {
            let numbers = id1.rotate_left(32).wrapping_add(id2);
            numbers ^ (1 + u64::from(edge_type.number())) << 61
        }
    };
    let mut state = seed ^ time.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut value = [0; VALUE_BYTES];
    for chunk in value.chunks_mut(8) {
        // A step of SplitMix64. Each byte of the result gives a letter, nearly uniformly.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        for (byte, random) in chunk.iter_mut().zip(mixed.to_le_bytes()) {
            *byte = b'a' + ((u16::from(random) * 26) >> 8) as u8;
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn keys_are_distinct_and_below_two_to_the_63() {
        let mut all = HashSet::new();
        for client in [0, 1, 7, 65_535] {
            let keys = Keys::new(5, client);
            for number in (0..2000).chain((1 << 40)..(1 << 40) + 2000) {
                let key = keys.get(number % 64, number);
                assert_eq!(shard_of(key), number % 64);
                assert!(key < 1 << 63 && all.insert(key), "{client}, {number}");
            }
        }
    }

    #[test]
    fn values_are_letters_that_depend_on_all_of_key_type_and_time() {
        let edge = Edge {
            id1: 7,
            id2: 9,
            edge_type: EdgeType::Other,
        };
        let unique = Edge {
            edge_type: EdgeType::Unique,
            ..edge
        };
        let all = [
            value(Owner::Object(7), 1),
            value(Owner::Object(7), 2),
            value(Owner::Object(8), 1),
            value(Owner::Edge(edge), 1),
            value(Owner::Edge(edge.inverse()), 1),
            value(Owner::Edge(unique), 1),
        ];
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
        let letters = all.as_flattened();
        assert!(letters.iter().all(u8::is_ascii_lowercase));
        assert_eq!(letters.iter().collect::<HashSet<_>>().len(), 26);
    }
}
