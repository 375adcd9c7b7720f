use super::*;
use crate::history::graph::{GraphRequest, GraphResult, NewAssoc, SeenAssoc};

const ALL: (u64, u64) = (0, u64::MAX);
/// Types: plain, its own inverse, unique, with an inverse and dangling.
const PLAIN: u32 = 1;
const FRIEND: u32 = 2;
const UNIQUE: u32 = 5;
const DANGLING: u32 = 3;
const INVERSE_OF_DANGLING: u32 = 4;

type Steps = Vec<(GraphRequest, GraphResult)>;

fn operation(client: u32, (begun, ended): (u64, u64), steps: Steps) -> GraphOperation {
    GraphOperation {
        client,
        begun,
        ended: Some(ended),
        steps: steps
            .into_iter()
            .map(|(request, result)| (request, Some(result)))
            .collect(),
    }
}

fn put(id: u64, assoc_type: u32, id2: u64, value: u64) -> GraphRequest {
    let new = NewAssoc {
        time: value,
        value,
        target: true,
    };
    GraphRequest::Put(id, assoc_type, id2, new)
}

fn seen(id2: u64, value: u64) -> SeenAssoc {
    SeenAssoc {
        id2,
        time: value,
        value,
        visible: true,
        target: true,
    }
}

fn range(id: u64, assoc_type: u32, values: &[(u64, u64)]) -> (GraphRequest, GraphResult) {
    let found = values.iter().map(|(id2, value)| seen(*id2, *value));
    (
        GraphRequest::Range(id, assoc_type, ALL, 0, 100),
        GraphResult::Assocs(found.collect()),
    )
}

/// Two nodes, and operations that follow.
fn with_nodes(operations: Vec<GraphOperation>) -> Vec<GraphOperation> {
    let add = |id| (GraphRequest::AddNode(id, id), GraphResult::Added);
    let mut all = vec![operation(0, (1, 2), vec![add(1), add(2)])];
    all.extend(operations);
    all
}

fn is_right(operations: Vec<GraphOperation>) -> bool {
    check(&with_nodes(operations)).is_ok()
}

#[test]
fn concurrent_writes_take_effect_in_any_order_and_others_in_order_of_time() {
    let first = |times| operation(1, times, vec![(put(1, PLAIN, 7, 10), GraphResult::PutNew)]);
    let second = |times| {
        operation(
            2,
            times,
            vec![(put(1, PLAIN, 7, 20), GraphResult::PutUpdated)],
        )
    };
    let read = |value| operation(3, (8, 9), vec![range(1, PLAIN, &[(7, value)])]);
    assert!(is_right(vec![first((3, 6)), second((4, 5)), read(20)]));
    assert!(is_right(vec![first((3, 4)), second((5, 6)), read(20)]));
    assert!(!is_right(vec![second((3, 4)), first((5, 6)), read(20)]));
    assert!(!is_right(vec![first((3, 6)), second((4, 5)), read(10)]));
}

#[test]
fn the_steps_of_a_transaction_take_effect_together() {
    let both = vec![
        (put(1, PLAIN, 7, 10), GraphResult::PutNew),
        (put(2, PLAIN, 7, 11), GraphResult::PutNew),
    ];
    let both = operation(1, (3, 9), both);
    let reads = |of_two: &[(u64, u64)]| {
        let steps = vec![range(1, PLAIN, &[(7, 10)]), range(2, PLAIN, of_two)];
        operation(2, (4, 8), steps)
    };
    assert!(is_right(vec![both.clone(), reads(&[(7, 11)])]));
    assert!(!is_right(vec![both, reads(&[])]));
}

#[test]
fn inverse_associations_and_counts_change_with_the_association() {
    let add = operation(
        1,
        (3, 4),
        vec![(put(1, FRIEND, 2, 10), GraphResult::PutNew)],
    );
    let count = |at, count, changes| {
        let request = GraphRequest::Count(2, FRIEND);
        operation(2, at, vec![(request, GraphResult::Count(count, changes))])
    };
    let hide = GraphRequest::Hide(2, FRIEND, 1);
    let hide = operation(3, (7, 8), vec![(hide, GraphResult::Changed(true))]);
    let last = operation(4, (11, 12), vec![range(1, FRIEND, &[])]);
    let all = |first, second| {
        vec![
            add.clone(),
            count((5, 6), first, 1),
            hide.clone(),
            count((9, 10), second, 2),
            last.clone(),
        ]
    };
    assert!(is_right(all(1, 0)));
    assert!(!is_right(all(0, 0)));
    assert!(!is_right(all(1, 1)));
}

#[test]
fn a_unique_type_and_deleted_nodes_refuse_associations() {
    let steps = |second, third| {
        vec![
            operation(
                1,
                (3, 4),
                vec![(put(1, UNIQUE, 7, 10), GraphResult::PutNew)],
            ),
            operation(1, (5, 6), vec![(put(1, UNIQUE, 8, 11), second)]),
            operation(
                1,
                (7, 8),
                vec![(GraphRequest::DeleteNode(1), GraphResult::Changed(true))],
            ),
            operation(1, (9, 10), vec![(put(1, UNIQUE, 7, 12), third)]),
        ]
    };
    assert!(is_right(steps(GraphResult::NotUnique, GraphResult::NoNode)));
    assert!(!is_right(steps(GraphResult::PutNew, GraphResult::NoNode)));
    assert!(!is_right(steps(
        GraphResult::NotUnique,
        GraphResult::PutUpdated
    )));
}

#[test]
fn a_reserved_node_has_dangling_associations_and_keeps_them_when_it_is_restored() {
    let reserve = (GraphRequest::ReserveNode(3, 1), GraphResult::Added);
    let restore = |result| {
        (
            GraphRequest::RestoreNode(3, 50),
            GraphResult::Changed(result),
        )
    };
    let node = |value| (GraphRequest::GetNode(3), GraphResult::Node(value));
    let steps = |dangling, friend, restored| {
        vec![
            operation(1, (3, 4), vec![reserve.clone(), node(None)]),
            operation(1, (5, 6), vec![(put(1, DANGLING, 3, 10), dangling)]),
            operation(1, (7, 8), vec![(put(1, FRIEND, 3, 11), friend)]),
            operation(1, (9, 10), vec![restore(restored)]),
            operation(1, (11, 12), vec![restore(false), node(Some(50))]),
            operation(1, (13, 14), vec![range(3, INVERSE_OF_DANGLING, &[(1, 10)])]),
        ]
    };
    use GraphResult::{NoNode, PutNew};
    assert!(is_right(steps(PutNew, NoNode, true)));
    assert!(!is_right(steps(NoNode, NoNode, true)));
    assert!(!is_right(steps(PutNew, PutNew, true)));
    assert!(!is_right(steps(PutNew, NoNode, false)));
}

#[test]
fn several_reads_are_of_one_moment() {
    let write = |at, value, result| operation(1, at, vec![(put(1, PLAIN, 7, value), result)]);
    let read = |of_count: u64, value| {
        let count = GraphRequest::Count(1, PLAIN);
        let (request, found) = range(1, PLAIN, &[(7, value)]);
        let results = vec![GraphResult::Count(of_count, of_count), found];
        let all = GraphRequest::All(vec![count, request]);
        operation(2, (4, 8), vec![(all, GraphResult::All(results))])
    };
    let all = |read| {
        let first = write((3, 5), 10, GraphResult::PutNew);
        is_right(vec![
            first,
            write((6, 7), 20, GraphResult::PutUpdated),
            read,
        ])
    };
    assert!(all(read(1, 10)));
    assert!(all(read(1, 20)));
    assert!(!all(read(0, 10)));
}

#[test]
fn an_operation_without_an_outcome_may_take_effect_late_or_never() {
    let unknown = GraphOperation {
        client: 1,
        begun: 3,
        ended: None,
        steps: vec![(put(1, PLAIN, 7, 10), None)],
    };
    let read = |at, values: &[(u64, u64)]| operation(2, at, vec![range(1, PLAIN, values)]);
    let late = vec![unknown.clone(), read((4, 5), &[]), read((6, 7), &[(7, 10)])];
    assert!(is_right(late));
    assert!(is_right(vec![unknown.clone(), read((4, 5), &[])]));
    let back = vec![unknown, read((4, 5), &[(7, 10)]), read((6, 7), &[])];
    assert!(!is_right(back));
}
