//! The location of the rings between two machines, and the wiring of one worker.
//!
//! Every machine exports one segment for each machine of the cluster, itself included. The segment
//! stores the rings and logs that the peer's workers write. After them it stores one line for each
//! ring and log of its own workers, to which the peer reports the head, and one line for each log of the
//! peer's workers, in which the own workers store what is freed ([`KeptState`]):
//!
//! ```text
//! segment of A for B:  | ring of B.w0 | … | log of B.w0 | … | head for A.w0 (64 B) | … | log head for A.w0 | … |
//!                      | state of the log of B.w0 (64 B) | … |
//! segment of A for A:  | w0→w0 | w0→w1 | … | w1→w0 | … | head w0→w0 | head w0→w1 | … |
//! ```
//!
//! If commits are logged, each worker also has a log in the memory of its own machine ([`OwnLog`]); otherwise a coordinator
//! changes that memory without records.

use crate::fabric::{Capability, Endpoint, ImportError, Remote, RemoteMemory};
use crate::ids::{MachineId, WorkerId, WorkerRef};
use crate::mem::{LINE_BYTES, Memory};
use crate::ring::{
    Capacity, InvalidCapacity, KeptLog, KeptState, LogSender, NoShare, OwnLog, ReceiverConfig,
    RecordIntegrity, ReplyCredits, RingReceiver, RingSender, SenderConfig, SetupError,
};

/// Why wiring the rings of a worker failed.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// A peer's segment cannot be imported.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// An end of a ring cannot be created.
    #[error(transparent)]
    Ring(#[from] SetupError),
    /// A ring or log has an invalid size.
    #[error(transparent)]
    Capacity(#[from] InvalidCapacity),
    /// The rings are too small for the number of workers.
    #[error(transparent)]
    Credits(#[from] NoShare),
}

/// The format of the rings of a cluster; equal on all of its machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingFormat {
    /// Bytes of a message ring.
    pub ring_bytes: usize,
    /// Bytes of a log.
    pub log_bytes: usize,
    /// How receivers determine that a record is complete.
    pub integrity: RecordIntegrity,
    /// Whether workers have logs in the memory of their own machine.
    pub own_logs: bool,
}

/// Offsets within the segment that one machine exports for another.
#[derive(Clone, Copy, Debug)]
pub struct SegmentLayout {
    format: RingFormat,
    /// Number of rings in the segment.
    rings: usize,
    /// Number of logs in the segment.
    logs: usize,
    /// Number of head lines of rings.
    heads: usize,
    /// Number of head lines of logs.
    log_heads: usize,
}

impl SegmentLayout {
    /// Returns the layout of the segment of a machine with `own` workers for a peer with `theirs`
    /// workers.
    pub fn between(format: RingFormat, own: usize, theirs: usize) -> Self {
        Self {
            format,
            rings: theirs,
            logs: theirs,
            heads: own,
            log_heads: own,
        }
    }

    /// Returns the layout of the segment of a machine with `own` workers for itself: a ring for
    /// every ordered pair of its workers.
    pub fn within(format: RingFormat, own: usize) -> Self {
        Self {
            format,
            rings: own * own,
            logs: if format.own_logs { own } else { 0 },
            heads: own * own,
            log_heads: 0,
        }
    }

    /// Returns the layout of the segment of a machine for a peer, which may be the machine itself, each with its number of workers.
    pub fn of(format: RingFormat, own: (MachineId, usize), peer: (MachineId, usize)) -> Self {
        match own.0 == peer.0 {
            true => Self::within(format, own.1),
            false => Self::between(format, own.1, peer.1),
        }
    }

    /// Returns the bytes of the segment.
    pub fn bytes(&self) -> usize {
        self.log_state(self.logs)
    }

    /// Returns the offset of a ring.
    pub fn ring(&self, index: usize) -> usize {
        index * self.format.ring_bytes
    }

    /// Returns the number of logs.
    pub fn logs(&self) -> usize {
        self.logs
    }

    /// Returns the offset of a log.
    pub fn log(&self, index: usize) -> usize {
        self.ring(self.rings) + index * self.format.log_bytes
    }

    /// Returns the offset of the head line of a ring. The first head line starts where rings and
    /// logs end.
    pub fn head(&self, index: usize) -> usize {
        self.log(self.logs) + index * LINE_BYTES
    }

    /// Returns the offset of the head line of a log.
    pub fn log_head(&self, index: usize) -> usize {
        self.head(self.heads + index)
    }

    /// Returns the offset of the line with the state of a log.
    pub fn log_state(&self, index: usize) -> usize {
        self.log_head(self.log_heads + index)
    }

    /// Returns the logs in the memory of a segment, which the start `boot` of a machine has exported for `peer`.
    pub fn kept_logs(
        self,
        memory: &Memory,
        peer: MachineId,
        boot: u64,
    ) -> impl Iterator<Item = KeptLog> + '_ {
        (0..self.logs).map(move |index| KeptLog {
            writer: WorkerRef::new(peer, worker_id(index)),
            boot,
            log: memory.window(self.log(index), self.format.log_bytes),
            state: KeptState::new(memory.window(self.log_state(index), LINE_BYTES)),
            integrity: self.format.integrity,
        })
    }
}

/// A machine of the cluster, with the data that wiring needs.
#[derive(Clone, Debug)]
pub struct LinkPeer {
    /// The machine.
    pub machine: MachineId,
    /// Number of workers of the machine.
    pub workers: usize,
    /// The segment that this machine exports for the peer.
    pub ours: Memory,
    /// The segment that the peer exports for this machine.
    pub theirs: Capability,
}

/// A ring that this worker polls.
pub(crate) struct Incoming {
    pub(crate) machine: MachineId,
    pub(crate) sender: WorkerId,
    pub(crate) ring: RingReceiver,
}

/// A log that this worker polls.
pub(crate) struct IncomingLog {
    pub(crate) from: WorkerRef,
    pub(crate) ring: RingReceiver,
    /// Whether the connection to the sender's machine has ended.
    pub(crate) lost: bool,
    /// Whether the log is then still to be drained.
    pub(crate) drains: bool,
}

/// The rings and logs between a worker and the workers of another machine.
pub(crate) struct PeerLinks {
    pub(crate) out: RingSender,
    pub(crate) credits: Vec<ReplyCredits>,
    pub(crate) incoming: Vec<Incoming>,
    pub(crate) log_out: LogSender,
    pub(crate) logs_in: Vec<IncomingLog>,
}

/// All rings of one worker.
pub struct Links {
    worker: WorkerId,
    /// Number of workers of this machine.
    workers: usize,
    format: RingFormat,
    /// The machines in ascending order, with their numbers of workers.
    pub(crate) machines: Vec<(MachineId, usize)>,
    /// Numbers of the starts to which there is, or was last, a connection, in the order of `machines`; 0 for machines without one.
    pub(crate) boots: Vec<u64>,
    /// Numbers of the connections, in the order of `machines`, which count from 0 at the start of this machine. A connection has the same
    /// number on all workers of this machine.
    pub(crate) numbers: Vec<u32>,
    /// Rings to other machines, in the order of `machines`; `None` for the own machine, and for machines without a
    /// connection.
    pub(crate) out: Vec<Option<RingSender>>,
    /// Rings to the workers of this machine.
    pub(crate) within: Vec<RingSender>,
    pub(crate) incoming: Vec<Incoming>,
    /// Credits for reply space, by machine in the order of `machines`, then worker. None for machines without a connection.
    pub(crate) credits: Vec<Vec<ReplyCredits>>,
    /// Logs in other machines, in the order of `machines`; `None` for the own machine.
    pub(crate) logs_out: Vec<Option<LogSender>>,
    pub(crate) logs_in: Vec<IncomingLog>,
    /// The worker's log in the memory of its own machine, if it has one.
    pub(crate) own_log: Option<OwnLog>,
}

/// The state of wiring one worker.
struct Wiring<'a> {
    endpoint: &'a mut Endpoint,
    worker: WorkerId,
    /// Number of workers of this machine.
    workers: usize,
    format: RingFormat,
    ring: Capacity,
    log: Capacity,
}

impl Links {
    /// Returns the index of a machine in the order of `machines`.
    pub(crate) fn index_of(machines: &[(MachineId, usize)], machine: MachineId) -> Option<usize> {
        let index = machines.binary_search_by_key(&machine, |one| one.0);
        index.ok()
    }

    /// Wires worker `worker` of machine `own` to those of the `machines`, which are ascending and have their numbers of workers, that
    /// are among the peers. The others can be [linked](crate::worker::Worker::link) later.
    ///
    /// # Errors
    /// [`LinkError`] when a peer's segment cannot be imported or a ring cannot be created.
    ///
    /// # Panics
    /// If `own` is not among the peers.
    pub fn wire(
        endpoint: &mut Endpoint,
        own: MachineId,
        worker: WorkerId,
        (machines, peers): (&[(MachineId, usize)], &[LinkPeer]),
        format: RingFormat,
    ) -> Result<Self, LinkError> {
        let me = peers
            .iter()
            .find(|peer| peer.machine == own)
            .expect("the list of peers must include this machine itself");
        let mut links = Links {
            worker,
            workers: me.workers,
            format,
            machines: machines.to_vec(),
            boots: vec![0; machines.len()],
            numbers: vec![0; machines.len()],
            out: Vec::new(),
            within: Vec::new(),
            incoming: Vec::new(),
            credits: Vec::new(),
            logs_out: Vec::new(),
            logs_in: Vec::new(),
            own_log: None,
        };
        for (place, (machine, _)) in machines.iter().enumerate() {
            let Some(peer) = peers.iter().find(|peer| peer.machine == *machine) else {
                links.out.push(None);
                links.credits.push(Vec::new());
                links.logs_out.push(None);
                continue;
            };
            links.boots[place] = peer.theirs.boot;
            if peer.machine == own {
                links.out.push(None);
                links.logs_out.push(None);
                let theirs = endpoint.import(&peer.theirs)?;
                let mut wiring = links.wiring(endpoint)?;
                // A ring between two workers of one machine carries replies to only one worker.
                links.credits.push(wiring.credits(peer.workers, 1)?);
                wiring.within(&mut links, peer, theirs)?;
            } else {
                let made = links.peer(endpoint, peer)?;
                links.out.push(Some(made.out));
                links.credits.push(made.credits);
                links.incoming.extend(made.incoming);
                links.logs_out.push(Some(made.log_out));
                links.logs_in.extend(made.logs_in);
            }
        }
        Ok(links)
    }

    /// Returns the own machine and those with a connection, with their numbers of workers.
    pub(crate) fn connected(&self) -> Vec<(MachineId, usize)> {
        let machines = self.machines.iter().zip(&self.credits);
        let connected = machines.filter(|(_, credits)| !credits.is_empty());
        connected.map(|(machine, _)| *machine).collect()
    }

    /// Wires the rings and logs between this worker and a machine that has connected.
    ///
    /// # Errors
    /// [`LinkError`] when the peer's segment cannot be imported or a ring cannot be created.
    pub(crate) fn peer(
        &self,
        endpoint: &mut Endpoint,
        peer: &LinkPeer,
    ) -> Result<PeerLinks, LinkError> {
        let theirs = endpoint.import(&peer.theirs)?;
        self.wiring(endpoint)?.peer(peer, theirs)
    }

    fn wiring<'a>(&self, endpoint: &'a mut Endpoint) -> Result<Wiring<'a>, LinkError> {
        Ok(Wiring {
            endpoint,
            worker: self.worker,
            workers: self.workers,
            format: self.format,
            ring: Capacity::new(self.format.ring_bytes as u64)?,
            log: Capacity::new(self.format.log_bytes as u64)?,
        })
    }
}

/// The location of a ring or log that this worker writes, and its head line in this machine's
/// memory.
struct Outgoing {
    segment: RemoteMemory,
    at: usize,
    capacity: Capacity,
    head: Memory,
    poller: usize,
}

impl Outgoing {
    fn config(self, reply_reserve_bytes: u32, integrity: RecordIntegrity) -> SenderConfig {
        SenderConfig {
            buffer: Remote {
                memory: self.segment,
                offset: self.at as u64,
            },
            capacity: self.capacity,
            head_copy: self.head,
            head_copy_offset: 0,
            reply_reserve_bytes,
            integrity,
            notify: Some(worker_id(self.poller)),
        }
    }
}

impl Wiring<'_> {
    fn sender(&mut self, out: Outgoing) -> Result<RingSender, LinkError> {
        let reserve = out.capacity.reply_reserve_bytes();
        Ok(RingSender::new(
            out.config(reserve, self.format.integrity),
            self.endpoint,
        )?)
    }

    fn receiver(
        &mut self,
        buffer: Memory,
        segment: RemoteMemory,
        at: usize,
        sender: usize,
        kept: Option<KeptState>,
    ) -> Result<RingReceiver, LinkError> {
        let head_copy = Remote {
            memory: segment,
            offset: at as u64,
        };
        let config = ReceiverConfig {
            buffer,
            head_copy,
            integrity: self.format.integrity,
            notify: Some(worker_id(sender)),
            kept,
        };
        Ok(RingReceiver::new(config, self.endpoint)?)
    }

    fn within(
        &mut self,
        links: &mut Links,
        me: &LinkPeer,
        segment: RemoteMemory,
    ) -> Result<(), LinkError> {
        let (n, own) = (self.workers, self.worker.index());
        let layout = SegmentLayout::within(self.format, n);
        if self.format.own_logs {
            let log = me.ours.window(layout.log(own), self.format.log_bytes);
            let state = me.ours.window(layout.log_state(own), LINE_BYTES);
            let log = OwnLog::new(log, KeptState::new(state), self.format.integrity)?;
            links.own_log = Some(log);
        }
        for other in 0..n {
            let (to, from) = (own * n + other, other * n + own);
            links.within.push(self.sender(Outgoing {
                segment,
                at: layout.ring(to),
                capacity: self.ring,
                head: me.ours.window(layout.head(to), LINE_BYTES),
                poller: other,
            })?);
            let buffer = me.ours.window(layout.ring(from), self.format.ring_bytes);
            let ring = self.receiver(buffer, segment, layout.head(from), other, None)?;
            links.incoming.push(Incoming {
                machine: me.machine,
                sender: worker_id(other),
                ring,
            });
        }
        Ok(())
    }

    fn credits(&self, workers: usize, sharers: usize) -> Result<Vec<ReplyCredits>, LinkError> {
        let credits = (0..workers).map(|_| ReplyCredits::new(self.ring, sharers));
        Ok(credits.collect::<Result<_, _>>()?)
    }

    fn peer(&mut self, peer: &LinkPeer, segment: RemoteMemory) -> Result<PeerLinks, LinkError> {
        let (n, own) = (self.workers, self.worker.index());
        let ours = SegmentLayout::between(self.format, n, peer.workers);
        let theirs = SegmentLayout::between(self.format, peer.workers, n);
        let poller = own % peer.workers;
        let out = self.sender(Outgoing {
            segment,
            at: theirs.ring(own),
            capacity: self.ring,
            head: peer.ours.window(ours.head(own), LINE_BYTES),
            poller,
        })?;
        let log = Outgoing {
            segment,
            at: theirs.log(own),
            capacity: self.log,
            head: peer.ours.window(ours.log_head(own), LINE_BYTES),
            poller,
        };
        let log_out = LogSender::new(log.config(0, self.format.integrity), self.endpoint)?;
        let (mut incoming, mut logs_in) = (Vec::new(), Vec::new());
        for sender in (0..peer.workers).filter(|sender| sender % n == own) {
            let buffer = peer.ours.window(ours.ring(sender), self.format.ring_bytes);
            let ring = self.receiver(buffer, segment, theirs.head(sender), sender, None)?;
            incoming.push(Incoming {
                machine: peer.machine,
                sender: worker_id(sender),
                ring,
            });
            let buffer = peer.ours.window(ours.log(sender), self.format.log_bytes);
            let kept = KeptState::new(peer.ours.window(ours.log_state(sender), LINE_BYTES));
            let at = theirs.log_head(sender);
            logs_in.push(IncomingLog {
                from: WorkerRef::new(peer.machine, worker_id(sender)),
                ring: self.receiver(buffer, segment, at, sender, Some(kept))?,
                lost: false,
                drains: false,
            });
        }
        Ok(PeerLinks {
            out,
            credits: self.credits(peer.workers, n)?,
            incoming,
            log_out,
            logs_in,
        })
    }
}

fn worker_id(index: usize) -> WorkerId {
    WorkerId::new(index as u16).expect("a machine has no more workers than there are worker ids")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_segment_do_not_overlap() {
        let format = RingFormat {
            ring_bytes: 4096,
            log_bytes: 16384,
            integrity: RecordIntegrity::LastWord,
            own_logs: true,
        };
        for layout in [
            SegmentLayout::between(format, 3, 2),
            SegmentLayout::within(format, 3),
        ] {
            let rings = (0..layout.rings).map(|i| (layout.ring(i), 4096));
            let logs = (0..layout.logs).map(|i| (layout.log(i), 16384));
            let heads = (0..layout.heads).map(|i| (layout.head(i), LINE_BYTES));
            let log_heads = (0..layout.log_heads).map(|i| (layout.log_head(i), LINE_BYTES));
            let states = (0..layout.logs).map(|i| (layout.log_state(i), LINE_BYTES));
            let parts = rings
                .chain(logs)
                .chain(heads)
                .chain(log_heads)
                .chain(states);
            let mut parts: Vec<(usize, usize)> = parts.collect();
            parts.sort_unstable();
            for pair in parts.windows(2) {
                assert_eq!(pair[0].0 + pair[0].1, pair[1].0);
            }
            let (at, len) = *parts.last().unwrap();
            assert_eq!(at + len, layout.bytes());
        }
    }
}
