//! Dependencies between transactions as a directed graph, and the search for cycles in it.
//!
//! Vertices below [`Graph::transactions`] are transactions. The others are moments: they form the chain of real-time
//! order, and add nothing to the length of a path.

use std::collections::VecDeque;

/// Maximum number of steps of a search for a short cycle. The search then returns the shortest cycle found so far.
const MOST_STEPS: u64 = 20_000_000;

/// Stands for no vertex, no version or no edge.
pub(super) const NONE: u32 = u32::MAX;

/// A set of kinds of edges, or a single kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kinds(u8);

impl Kinds {
    /// `to` replaced what `from` wrote.
    pub(super) const WW: Kinds = Kinds(1);
    /// `to` read what `from` wrote.
    pub(super) const WR: Kinds = Kinds(2);
    /// `to` replaced what `from` read.
    pub(super) const RW: Kinds = Kinds(4);
    /// `from` ended before `to` began.
    pub(super) const REAL_TIME: Kinds = Kinds(8);
    /// Every kind.
    pub(super) const ALL: Kinds = Kinds(15);

    pub(super) const fn or(self, other: Kinds) -> Kinds {
        Kinds(self.0 | other.0)
    }

    pub(super) const fn has(self, other: Kinds) -> bool {
        self.0 & other.0 != 0
    }
}

/// An edge: `from` precedes `to` in every order that explains the history.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edge {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) kind: Kinds,
    /// Index of the version that causes the edge: for a ww edge, the version that `to` wrote; for a wr or rw edge, the
    /// version that was read; [`NONE`] for an edge of real-time order.
    pub(super) version: u32,
}

/// A graph whose edges are sorted by their first vertex.
pub(super) struct Graph {
    /// Number of vertices that are transactions.
    pub(super) transactions: u32,
    starts: Vec<u32>,
    edges: Vec<Edge>,
}

/// The strongly connected components of a graph, restricted to some kinds of edges.
pub(super) struct Components {
    of: Vec<u32>,
    /// Whether there is a cycle: a component of more than one vertex.
    pub(super) cyclic: bool,
}

impl Graph {
    /// Creates a graph of `vertices` vertices. The first `transactions` of them are transactions. No edge may lead
    /// from a vertex to itself.
    pub(super) fn new(transactions: u32, vertices: u32, edges: &[Edge]) -> Self {
        let mut starts = vec![0u32; vertices as usize + 1];
        for edge in edges {
            starts[edge.from as usize + 1] += 1;
        }
        for vertex in 1..starts.len() {
            starts[vertex] += starts[vertex - 1];
        }
        let mut next = starts.clone();
        let mut sorted = edges.to_vec();
        for edge in edges {
            let place = &mut next[edge.from as usize];
            sorted[*place as usize] = *edge;
            *place += 1;
        }
        Self {
            transactions,
            starts,
            edges: sorted,
        }
    }

    fn vertices(&self) -> usize {
        self.starts.len() - 1
    }

    /// Computes the strongly connected components for edges of these kinds, by one depth-first search without
    /// recursion.
    pub(super) fn components(&self, kinds: Kinds) -> Components {
        let vertices = self.vertices();
        let mut of = vec![NONE; vertices];
        let mut cyclic = false;
        let mut index = vec![NONE; vertices];
        let mut low = vec![NONE; vertices];
        let mut open: Vec<u32> = Vec::new();
        let mut path: Vec<(u32, u32)> = Vec::new();
        let (mut found, mut components) = (0, 0);
        for root in 0..vertices as u32 {
            if index[root as usize] != NONE {
                continue;
            }
            path.push((root, self.starts[root as usize]));
            while let Some((vertex, at)) = path.last_mut() {
                let here = *vertex as usize;
                if index[here] == NONE {
                    (index[here], low[here]) = (found, found);
                    found += 1;
                    open.push(*vertex);
                }
                if *at < self.starts[here + 1] {
                    let edge = self.edges[*at as usize];
                    *at += 1;
                    let to = edge.to as usize;
                    if !kinds.has(edge.kind) {
                        continue;
                    }
                    if index[to] == NONE {
                        path.push((edge.to, self.starts[to]));
                    } else if of[to] == NONE {
                        low[here] = low[here].min(index[to]);
                    }
                    continue;
                }
                path.pop();
                if let Some((above, _)) = path.last() {
                    let above = *above as usize;
                    low[above] = low[above].min(low[here]);
                }
                if low[here] == index[here] {
                    cyclic |= open.last() != Some(&(here as u32));
                    close(&mut open, here as u32, &mut of, components);
                    components += 1;
                }
            }
        }
        Components { of, cyclic }
    }

    /// Returns a short cycle of one edge of kind `first`, followed by edges of kinds `rest`. It is the shortest one
    /// unless the search runs out of steps.
    pub(super) fn cycle(
        &self,
        components: &Components,
        first: Kinds,
        rest: Kinds,
    ) -> Option<Vec<Edge>> {
        let mut search = Search::new(self.vertices());
        let mut best: Option<(u32, Vec<Edge>)> = None;
        for edge in &self.edges {
            let inside = components.of[edge.from as usize] == components.of[edge.to as usize];
            if !first.has(edge.kind) || !inside || edge.from >= self.transactions {
                continue;
            }
            let most = best.as_ref().map_or(u32::MAX, |(length, _)| length - 1);
            if let Some(length) = search.run(self, components, *edge, rest, most) {
                best = Some((length, search.unwind(self, *edge)));
            }
            // A cycle has at least two transactions.
            if search.steps > MOST_STEPS || best.as_ref().is_some_and(|(length, _)| *length == 2) {
                break;
            }
        }
        best.map(|(_, cycle)| cycle)
    }
}

/// Removes the component of `vertex` from the stack of open vertices.
fn close(open: &mut Vec<u32>, vertex: u32, of: &mut [u32], component: u32) {
    while let Some(closed) = open.pop() {
        of[closed as usize] = component;
        if closed == vertex {
            break;
        }
    }
}

/// Breadth-first searches over one graph. Each search is a round.
struct Search {
    round: u32,
    /// For each vertex: the round that reached it last, the cost of the path, and the path's last edge.
    reached: Vec<(u32, u32, u32)>,
    queue: VecDeque<(u32, u32)>,
    steps: u64,
}

impl Search {
    fn new(vertices: usize) -> Self {
        Self {
            round: 0,
            reached: vec![(0, 0, NONE); vertices],
            queue: VecDeque::new(),
            steps: 0,
        }
    }

    /// Returns the length of the shortest cycle through `edge`, if it is at most `most`. A step from a transaction
    /// costs one, a step from a moment costs nothing.
    fn run(
        &mut self,
        graph: &Graph,
        components: &Components,
        edge: Edge,
        kinds: Kinds,
        most: u32,
    ) -> Option<u32> {
        self.round += 1;
        self.queue.clear();
        self.reached[edge.to as usize] = (self.round, 1, NONE);
        self.queue.push_back((edge.to, 1));
        while let Some((vertex, cost)) = self.queue.pop_front() {
            let here = vertex as usize;
            if cost > self.reached[here].1 {
                continue;
            }
            if vertex == edge.from {
                return (cost <= most).then_some(cost);
            }
            let step = u32::from(vertex < graph.transactions);
            for at in graph.starts[here]..graph.starts[here + 1] {
                self.steps += 1;
                let next = graph.edges[at as usize];
                let to = next.to as usize;
                let (round, before, _) = self.reached[to];
                let known = round == self.round && before <= cost + step;
                if known || !kinds.has(next.kind) || components.of[to] != components.of[here] {
                    continue;
                }
                self.reached[to] = (self.round, cost + step, at);
                if step == 0 {
                    self.queue.push_front((next.to, cost));
                } else if cost < most {
                    self.queue.push_back((next.to, cost + 1));
                }
            }
        }
        None
    }

    /// Returns the cycle that the last search found, beginning with `first`.
    fn unwind(&self, graph: &Graph, first: Edge) -> Vec<Edge> {
        let mut cycle = Vec::new();
        let mut vertex = first.from;
        while vertex != first.to {
            let edge = graph.edges[self.reached[vertex as usize].2 as usize];
            cycle.push(edge);
            vertex = edge.from;
        }
        cycle.push(first);
        cycle.reverse();
        cycle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(transactions: u32, vertices: u32, edges: &[(u32, u32, Kinds)]) -> Graph {
        let edges: Vec<Edge> = edges
            .iter()
            .map(|&(from, to, kind)| Edge {
                from,
                to,
                kind,
                version: NONE,
            })
            .collect();
        Graph::new(transactions, vertices, &edges)
    }

    fn length(graph: &Graph, first: Kinds, rest: Kinds) -> Option<usize> {
        let components = graph.components(first.or(rest));
        let cycle = graph.cycle(&components, first, rest)?;
        for (edge, next) in cycle.iter().zip(cycle.iter().cycle().skip(1)) {
            assert_eq!(edge.to, next.from, "{cycle:?}");
        }
        Some(cycle.len())
    }

    #[test]
    fn the_shortest_cycle_is_found() {
        let (ww, rw) = (Kinds::WW, Kinds::RW);
        let graph = graph(
            6,
            6,
            &[
                (0, 1, ww),
                (1, 2, ww),
                (2, 3, ww),
                (3, 0, ww),
                (3, 1, ww),
                (1, 3, rw),
                (4, 5, ww),
            ],
        );
        assert!(graph.components(ww).cyclic && !graph.components(rw).cyclic);
        assert_eq!(length(&graph, ww, ww), Some(3));
        assert_eq!(length(&graph, rw, ww), Some(2));
        assert_eq!(length(&graph, rw, rw), None);
    }

    #[test]
    fn moments_add_nothing_to_the_length_of_a_cycle() {
        let (ww, time) = (Kinds::WW, Kinds::REAL_TIME);
        // A cycle of three transactions over one moment, and one of two transactions over five moments.
        let mut edges = vec![(0, 5, time), (5, 1, time), (1, 2, ww), (2, 0, ww)];
        edges.extend([(3, 6, time), (10, 4, time), (4, 3, ww)]);
        edges.extend((6..10).map(|moment| (moment, moment + 1, time)));
        let graph = graph(5, 11, &edges);
        assert_eq!(length(&graph, time, Kinds::ALL), Some(7));
        assert_eq!(length(&graph, ww, ww), None);
    }

    #[test]
    fn long_paths_do_not_overflow_the_stack() {
        let count = 200_000;
        let mut edges: Vec<_> = (1..count).map(|to| (to - 1, to, Kinds::WW)).collect();
        assert!(!graph(count, count, &edges).components(Kinds::ALL).cyclic);
        edges.push((count - 1, 0, Kinds::WW));
        assert!(graph(count, count, &edges).components(Kinds::ALL).cyclic);
    }
}
