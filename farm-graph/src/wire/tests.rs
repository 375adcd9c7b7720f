//! Operations and results are the same after encoding and decoding, and any bytes are decoded or refused.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn bounds() -> impl Strategy<Value = TimeBounds> {
    (any::<u64>(), 0..=MAX_TIME).prop_map(|(min, max)| TimeBounds { min, max })
}

/// Calls `check` with an operation of each kind.
fn with_ops(
    (words, assoc_type, flags, bytes, bounds): (&[u64; 4], u32, u8, &[u8], TimeBounds),
    mut check: impl FnMut(Op<'_>),
) {
    let [id2, now, offset, limit] = *words;
    let data = NodeData {
        node_type: assoc_type,
        version: id2,
        time: now,
        data: bytes,
    };
    let assoc = Assoc {
        id2,
        time: now & MAX_TIME,
        version: assoc_type,
        visible: flags & 4 != 0,
        target: None,
        data: bytes,
    };
    let (unique, dangling) = (flags & 1 != 0, flags & 2 != 0);
    let ids: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let (from, to, ids) = (assoc_type, assoc_type ^ 1, &ids[..]);
    check(Op::GetNode);
    check(Op::SetNode(data));
    check(Op::RestoreNode(data));
    for new in [Some(data), None] {
        let (id, lists) = (id2, flags);
        check(Op::AddNode { id, lists, new });
    }
    check(Op::DeleteNode);
    check(Op::Put(PutOp {
        assoc_type,
        assoc,
        now,
        unique,
        dangling,
    }));
    check(Op::Delete {
        assoc_type,
        id2,
        now,
        removes: unique,
    });
    check(Op::ChangeType(ChangeOp {
        from,
        to,
        id2,
        now,
        unique,
    }));
    check(Op::Get {
        assoc_type,
        bounds,
        ids,
    });
    check(Op::Count { assoc_type });
    check(Op::Range(RangeOp {
        assoc_type,
        bounds,
        offset,
        limit,
    }));
}

proptest! {
    #[test]
    fn an_operation_is_the_same_after_decoding(
        words: [u64; 4],
        assoc_type: u32,
        flags: u8,
        bytes in vec(any::<u8>(), 0..40),
        bounds in bounds(),
    ) {
        with_ops((&words, assoc_type, flags, &bytes, bounds), |op| {
            let mut encoded = Vec::new();
            op.encode(&mut encoded);
            assert_eq!(Op::decode(&encoded), Some(op));
            assert_eq!(Op::decode(&encoded[..encoded.len() - 1]).filter(|cut| *cut == op), None);
        });
    }

    #[test]
    fn any_bytes_are_an_operation_or_refused(bytes in vec(any::<u8>(), 0..80), code in 0..15u8) {
        let bytes = [&[code], &bytes[..]].concat();
        if let Some(op) = Op::decode(&bytes) {
            let mut encoded = Vec::new();
            op.encode(&mut encoded);
            prop_assert_eq!(Op::decode(&encoded), Some(op));
        }
    }

    #[test]
    fn any_bytes_are_a_result_or_refused(bytes in vec(any::<u8>(), 0..80), code in 0..9u8) {
        let bytes = [&[code], &bytes[..]].concat();
        if let Ok(Outcome::Assocs(assocs)) = Outcome::decode(&bytes) {
            prop_assert_eq!(assocs.iter().count(), assocs.len());
        }
    }
}

#[test]
fn results_are_the_same_after_decoding() {
    let mut reply = Reply::default();
    let node = Node {
        id: 7,
        data: NodeData {
            node_type: 1,
            version: 2,
            time: 3,
            data: b"data",
        },
    };
    reply.node(Some(&node));
    assert!(
        matches!(Outcome::decode(reply.bytes()), Ok(Outcome::Node(Some(found))) if found == node)
    );
    reply.node(None);
    assert!(matches!(
        Outcome::decode(reply.bytes()),
        Ok(Outcome::Node(None))
    ));
    for put in [Put::Added, Put::Shown, Put::Updated] {
        reply.put(put);
        assert!(matches!(Outcome::decode(reply.bytes()), Ok(Outcome::Put(found)) if found == put));
    }
    reply.changed(true);
    assert!(matches!(
        Outcome::decode(reply.bytes()),
        Ok(Outcome::Changed(true))
    ));
    let count = Count {
        count: 1,
        time: 2,
        version: 3,
    };
    reply.count(&count);
    assert!(matches!(Outcome::decode(reply.bytes()), Ok(Outcome::Count(found)) if found == count));
    let all = [1_u64, 2, 3].map(|id2| Assoc {
        id2,
        time: 100 - id2,
        version: 4,
        visible: true,
        target: None,
        data: &b"abc"[..id2 as usize],
    });
    reply.begin_assocs();
    for assoc in &all {
        reply.assoc(assoc);
    }
    let Ok(Outcome::Assocs(found)) = Outcome::decode(reply.bytes()) else {
        panic!("not a list of associations");
    };
    assert!(found.iter().eq(all));
    for error in [
        GraphError::NoNode,
        GraphError::NotUnique(5),
        GraphError::Conflict,
        GraphError::Refused("text".into()),
    ] {
        reply.refused(&error);
        let decoded = Outcome::decode(reply.bytes()).unwrap_err();
        assert_eq!(decoded.to_string(), error.to_string());
    }
}
