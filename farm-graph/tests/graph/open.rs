//! Opening the graph.
//!
//! After an error of one worker, `open_all` returned while other workers were still opening the graph, and the next
//! call replaced the place for their results: a worker panicked when the second result arrived.

use farm_graph::{GraphError, GraphSpec, open_all};

use crate::common::{cluster, spec};

#[test]
fn a_graph_is_opened_once_and_impossible_ones_are_refused() {
    let cluster = cluster("graph-open", 2, 1024);
    open_all(&cluster.machines, &spec(1024)).unwrap();
    let other = open_all(&cluster.machines, &spec(2048)).unwrap_err();
    assert!(
        other
            .to_string()
            .contains("open on this worker with another specification"),
        "{other}"
    );
    let refused = |spec: GraphSpec, expected: &str| {
        let error = open_all(&cluster.machines, &spec).unwrap_err();
        assert!(matches!(error, GraphError::Spec(_)), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    };
    refused(
        spec(100),
        "page_bytes is 100, but pages have between 1024 and 262144 bytes",
    );
    let cached_heads = usize::MAX;
    let large = GraphSpec {
        cached_heads,
        ..spec(1024)
    };
    refused(large, "a worker caches at most");
    let mut short = spec(1024);
    short.ids.value_bytes = 8;
    refused(short, "values of 8 bytes");
    cluster.stop();
}
