//! A ring over RDMA devices. All records arrive whole and in order, with each way to detect a complete record
//! (last word or checksum).

use std::time::Instant;

use farm_conformance::host::{Variant, VerbsPlace};
use farm_conformance::{OURS, PEER};
use farm_core::fabric::verbs::{VerbsConfig, VerbsMachine};
use farm_core::fabric::{ArenaConfig, Endpoint, Remote, RemoteMemory};
use farm_core::ids::{MachineId, WorkerId};
use farm_core::mem::{LINE_BYTES, Memory};
use farm_core::ring::{
    Capacity, Header, Kind, ReceiverConfig, RecordIntegrity, RingReceiver, RingSender, SendError,
    SenderConfig,
};
use farm_core::time::Nanos;

use super::{PATIENCE, both};

/// Bytes of the ring: small, so that it wraps and fills often.
const RING_BYTES: usize = 1 << 14;
/// Number of records sent through the ring.
const RECORDS: u64 = 4000;

/// Returns the body of a record. Its length and bytes depend on the token.
fn body(token: u64) -> Vec<u8> {
    let bytes = token.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
    let bytes = bytes as usize % (RING_BYTES / 8 - 64);
    (0..bytes as u64)
        .map(|at| {
            (token
                .wrapping_mul(31)
                .wrapping_add(at)
                .wrapping_mul(0x9e37_79b9)
                >> 16) as u8
        })
        .collect()
}

/// One end of a ring: an endpoint, the memory that the peer writes, and the peer's memory.
struct RingEnd {
    endpoint: Endpoint,
    segment: Memory,
    theirs: RemoteMemory,
    _machine: VerbsMachine,
}

impl RingEnd {
    fn start(config: VerbsConfig, other: MachineId) -> Self {
        let mut machine = VerbsMachine::start(config).expect("the machine starts");
        let bytes = RING_BYTES + LINE_BYTES;
        let (segment, offer) = machine.exporter().export(bytes, true).expect("a segment");
        let met = machine.connect(&[OURS, PEER], &mut |_| vec![offer], PATIENCE);
        let met = met.expect("the machines connect");
        let arena = ArenaConfig::for_reads(64, RING_BYTES / 8);
        let endpoint = machine.endpoint(WorkerId::FIRST, &arena, 64);
        let mut endpoint = Endpoint::Verbs(Box::new(endpoint.expect("an endpoint")));
        let offer = met.iter().find(|met| met.machine == other);
        let offer = offer.expect("the other machine is connected").offer[0];
        Self {
            theirs: endpoint.import(&offer).expect("it is connected"),
            endpoint,
            segment,
            _machine: machine,
        }
    }

    fn send_all(&mut self, integrity: RecordIntegrity) {
        let capacity = Capacity::new(RING_BYTES as u64).expect("a ring's size");
        let config = SenderConfig {
            buffer: Remote {
                memory: self.theirs,
                offset: 0,
            },
            capacity,
            head_copy: self.segment.window(RING_BYTES, LINE_BYTES),
            head_copy_offset: 0,
            reply_reserve_bytes: capacity.reply_reserve_bytes(),
            integrity,
            notify: None,
        };
        let mut ring = RingSender::new(config, &mut self.endpoint).expect("the sender is valid");
        let until = Instant::now() + 4 * PATIENCE;
        for token in 0..RECORDS {
            let header = Header {
                kind: Kind::OneWay,
                to_worker: WorkerId::FIRST,
                message_id: 1,
                token,
            };
            loop {
                match ring.try_send(&mut self.endpoint, header, &[&body(token)]) {
                    Ok(()) => break,
                    Err(SendError::Full) => std::thread::yield_now(),
                    Err(error) => panic!("record {token}: {error}"),
                }
                self.endpoint.flush();
                self.endpoint.poll(64, &mut Vec::new());
                assert!(
                    Instant::now() < until,
                    "record {token} could not be sent: the ring stayed full"
                );
            }
        }
        self.endpoint.flush();
        // Records in flight are lost when the connection closes, so poll until half of the ring is free.
        while ring.free_bytes().expect("a sound head") < capacity.report_bytes() {
            self.endpoint.poll(64, &mut Vec::new());
            assert!(
                Instant::now() < until,
                "the receiver did not report its head"
            );
            std::thread::yield_now();
        }
    }

    fn receive_all(&mut self, integrity: RecordIntegrity) {
        let config = ReceiverConfig {
            buffer: self.segment.window(0, RING_BYTES),
            head_copy: Remote {
                memory: self.theirs,
                offset: RING_BYTES as u64,
            },
            integrity,
            notify: None,
            kept: None,
        };
        let mut ring = RingReceiver::new(config, &self.endpoint).expect("the receiver is valid");
        let until = Instant::now() + 4 * PATIENCE;
        for token in 0..RECORDS {
            while ring
                .peek(&mut self.endpoint, Nanos::default())
                .expect("a sound ring")
                .is_none()
            {
                self.endpoint.flush();
                self.endpoint.poll(64, &mut Vec::new());
                assert!(Instant::now() < until, "record {token} did not arrive");
                std::thread::yield_now();
            }
            let record = ring
                .peek(&mut self.endpoint, Nanos::default())
                .expect("a sound ring");
            let record = record.expect("the previous peek found the record");
            assert_eq!(record.token, token);
            assert!(
                record.body == body(token),
                "record {token} has a wrong body"
            );
            ring.consume(&mut self.endpoint);
        }
        self.endpoint.flush();
    }
}

fn records_arrive(integrity: RecordIntegrity) {
    let place = VerbsPlace::fresh(Variant::DEFAULT);
    let barrier = std::sync::Barrier::new(2);
    both(
        || {
            let mut end = RingEnd::start(place.config(OURS), PEER);
            end.send_all(integrity);
            barrier.wait();
        },
        || {
            let mut end = RingEnd::start(place.config(PEER), OURS);
            end.receive_all(integrity);
            barrier.wait();
        },
    );
}

#[test]
fn records_of_a_ring_arrive_whole_and_in_order() {
    records_arrive(RecordIntegrity::LastWord);
}

#[test]
fn records_with_checksums_arrive_whole_and_in_order() {
    records_arrive(RecordIntegrity::Checksum);
}
