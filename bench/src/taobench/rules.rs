//! Which edges contradict each other: the rules of the reference for inserts, as facts about other edges.

use super::edges::{Edge, EdgeType};

/// Edges that contradict a new edge: if one exists, the new edge is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forbidden {
    /// Edges of a type from the first object to any other.
    Any(EdgeType),
    /// The edge of a type from the first object to the second.
    Same(EdgeType),
    /// The edge of a type from the second object to the first.
    Inverse(EdgeType),
}

/// Returns the edges that contradict a new edge of a type. They include the edge itself: an edge exists at most once.
pub fn forbidden(edge_type: EdgeType) -> &'static [Forbidden] {
    use EdgeType::*;
    use Forbidden::*;
    match edge_type {
        Other => &[
            Any(EdgeType::Unique),
            Any(UniqueBidirectional),
            Same(Bidirectional),
            Inverse(EdgeType::Unique),
            Inverse(Bidirectional),
            Inverse(UniqueBidirectional),
            Inverse(Other),
            Same(Other),
        ],
        Bidirectional => &[
            Any(EdgeType::Unique),
            Any(UniqueBidirectional),
            Same(Other),
            Inverse(Other),
            Inverse(EdgeType::Unique),
            Same(Bidirectional),
        ],
        EdgeType::Unique => &[
            Any(EdgeType::Unique),
            Any(Bidirectional),
            Any(UniqueBidirectional),
            Any(Other),
            Inverse(EdgeType::Unique),
            Inverse(Bidirectional),
            Inverse(UniqueBidirectional),
            Inverse(Other),
        ],
        UniqueBidirectional => &[
            Any(EdgeType::Unique),
            Any(Bidirectional),
            Any(UniqueBidirectional),
            Any(Other),
            Inverse(Other),
            Inverse(EdgeType::Unique),
        ],
    }
}

/// Returns whether any of the edges may not exist together with a new edge. The inverse edge, if the type has one, is
/// inserted with it, so the same rules apply to it.
pub fn is_refused<'a>(new: Edge, edges: impl IntoIterator<Item = &'a Edge> + Clone) -> bool {
    let contradicts = |new: Edge| {
        forbidden(new.edge_type).iter().any(|rule| {
            edges.clone().into_iter().any(|edge| match *rule {
                Forbidden::Any(it) => edge.id1 == new.id1 && edge.edge_type == it,
                Forbidden::Same(it) => {
                    (edge.id1, edge.id2) == (new.id1, new.id2) && edge.edge_type == it
                }
                Forbidden::Inverse(it) => {
                    (edge.id1, edge.id2) == (new.id2, new.id1) && edge.edge_type == it
                }
            })
        })
    };
    contradicts(new) || new.edge_type.has_inverse() && contradicts(new.inverse())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An edge that refuses the edge from 1 to 2. It goes from 1 to any other object, if it goes to 9.
    type Refusing = (u64, u64, &'static str);

    /// The table of the rules: the type that is inserted, and what refuses it.
    const TABLE: [(EdgeType, &[Refusing]); 4] = [
        (
            EdgeType::Other,
            &[
                (1, 9, "unique"),
                (1, 9, "unique_and_bidirectional"),
                (1, 2, "bidirectional"),
                (2, 1, "unique"),
                (2, 1, "bidirectional"),
                (2, 1, "unique_and_bidirectional"),
                (2, 1, "other"),
            ],
        ),
        (
            EdgeType::Bidirectional,
            &[
                (1, 9, "unique"),
                (1, 9, "unique_and_bidirectional"),
                (1, 2, "other"),
                (2, 1, "other"),
                (2, 1, "unique"),
            ],
        ),
        (
            EdgeType::Unique,
            &[
                (1, 9, "unique"),
                (1, 9, "bidirectional"),
                (1, 9, "unique_and_bidirectional"),
                (1, 9, "other"),
                (2, 1, "unique"),
                (2, 1, "bidirectional"),
                (2, 1, "unique_and_bidirectional"),
                (2, 1, "other"),
            ],
        ),
        (
            EdgeType::UniqueBidirectional,
            &[
                (1, 9, "unique"),
                (1, 9, "bidirectional"),
                (1, 9, "unique_and_bidirectional"),
                (1, 9, "other"),
                (2, 1, "other"),
                (2, 1, "unique"),
            ],
        ),
    ];

    #[test]
    fn each_edge_is_refused_by_what_the_table_says() {
        for (edge_type, refusing) in TABLE {
            let new = Edge {
                id1: 1,
                id2: 2,
                edge_type,
            };
            for other in EdgeType::ALL {
                for (id1, id2) in [(1, 9), (1, 2), (2, 1), (2, 9), (9, 1), (3, 4)] {
                    let existing = Edge {
                        id1,
                        id2,
                        edge_type: other,
                    };
                    if [new, new.inverse()].contains(&existing) {
                        continue;
                    }
                    let any = refusing.contains(&(1, 9, other.name()));
                    let listed = refusing.contains(&(id1, id2, other.name())) && id1 != 9
                        || id1 == 1 && any
                        // The inverse edge is refused by the edges of the second object.
                        || edge_type.has_inverse()
                            && (id1 == 2 && any
                                || id1 < 3
                                    && id2 < 3
                                    && refusing.contains(&(id2, id1, other.name())));
                    assert_eq!(
                        is_refused(new, &[existing]),
                        listed,
                        "{new:?}, {existing:?}"
                    );
                }
            }
            assert!(is_refused(new, &[new]), "an edge exists at most once");
        }
    }
}
