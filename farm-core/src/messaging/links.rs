//! Where the rings between two machines lie, and the wiring of one worker.
//!
//! For every machine of the cluster (itself included) a machine exports one segment. It holds the
//! rings that the peer's workers write, and after them a line for each of its own workers, where
//! the peer reports how far that worker's ring has been read:
//!
//! ```text
//! segment of A for B:  | ring of B.w0 | ring of B.w1 | … | head for A.w0 (64 B) | head for A.w1 | … |
//! segment of A for A:  | w0→w0 | w0→w1 | … | w1→w0 | … | head w0→w0 | head w0→w1 | … |
//! ```

use crate::fabric::{Capability, Endpoint, ImportError, Remote, RemoteMemory};
use crate::ids::{MachineId, WorkerId};
use crate::mem::{LINE_BYTES, Memory};
use crate::ring::{
    Capacity, InvalidCapacity, NoShare, ReceiverConfig, ReplyCredits, RingReceiver, RingSender,
    SenderConfig, SetupError,
};

/// Why the rings of a worker could not be wired.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// A peer's segment cannot be reached.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// An end of a ring cannot be made.
    #[error(transparent)]
    Ring(#[from] SetupError),
    /// The rings are not of a size that rings have.
    #[error(transparent)]
    Capacity(#[from] InvalidCapacity),
    /// The rings are too small for so many workers.
    #[error(transparent)]
    Credits(#[from] NoShare),
}

/// Offsets within the segment that one machine exports for another.
#[derive(Clone, Copy, Debug)]
pub struct SegmentLayout {
    /// Bytes of a ring.
    pub ring_bytes: usize,
    /// Rings in the segment.
    rings: usize,
    /// Head lines in the segment.
    heads: usize,
}

impl SegmentLayout {
    /// The segment of a machine with `own` workers for a peer with `theirs`.
    pub fn between(ring_bytes: usize, own: usize, theirs: usize) -> Self {
        Self {
            ring_bytes,
            rings: theirs,
            heads: own,
        }
    }

    /// The segment of a machine with `own` workers for itself: a ring for every ordered pair.
    pub fn within(ring_bytes: usize, own: usize) -> Self {
        Self {
            ring_bytes,
            rings: own * own,
            heads: own * own,
        }
    }

    /// Bytes of the segment.
    pub fn bytes(&self) -> usize {
        self.ring(self.rings) + self.heads * LINE_BYTES
    }

    /// Offset of a ring.
    pub fn ring(&self, index: usize) -> usize {
        index * self.ring_bytes
    }

    /// Offset of a head line.
    pub fn head(&self, index: usize) -> usize {
        debug_assert!(index < self.heads, "head {index} of {}", self.heads);
        self.ring(self.rings) + index * LINE_BYTES
    }
}

/// A machine of the cluster, as the wiring sees it.
#[derive(Clone, Debug)]
pub struct LinkPeer {
    /// The machine.
    pub machine: MachineId,
    /// How many workers it has.
    pub workers: usize,
    /// The segment that this machine exports for it.
    pub ours: Memory,
    /// The segment that it exports for this machine.
    pub theirs: Capability,
}

/// A ring that this worker polls.
pub(crate) struct Incoming {
    pub(crate) machine: MachineId,
    pub(crate) sender: WorkerId,
    pub(crate) ring: RingReceiver,
}

/// All rings of one worker.
pub struct Links {
    /// Machines in ascending order with their numbers of workers.
    pub(crate) machines: Vec<(MachineId, usize)>,
    /// To other machines, in the order of `machines`; none for the own.
    pub(crate) out: Vec<Option<RingSender>>,
    /// To the workers of this machine.
    pub(crate) within: Vec<RingSender>,
    pub(crate) incoming: Vec<Incoming>,
    /// Reply space that this worker may reserve with each worker of each machine.
    pub(crate) credits: Vec<Vec<ReplyCredits>>,
}

/// Wires one worker.
struct Wiring<'a> {
    endpoint: &'a mut Endpoint,
    worker: WorkerId,
    /// Workers of this machine.
    workers: usize,
    ring: Capacity,
}

impl Links {
    /// Wires worker `worker` of machine `own`.
    ///
    /// # Errors
    /// [`LinkError`] when a peer's segment cannot be reached or the rings are of no use.
    ///
    /// # Panics
    /// If `own` is not among the peers.
    pub fn wire(
        endpoint: &mut Endpoint,
        own: MachineId,
        worker: WorkerId,
        peers: &[LinkPeer],
        ring_bytes: usize,
    ) -> Result<Self, LinkError> {
        let me = peers
            .iter()
            .find(|peer| peer.machine == own)
            .expect("a machine is its own peer");
        let ring = Capacity::new(ring_bytes as u64)?;
        let mut wiring = Wiring {
            endpoint,
            worker,
            workers: me.workers,
            ring,
        };
        let mut links = Links {
            machines: peers
                .iter()
                .map(|peer| (peer.machine, peer.workers))
                .collect(),
            out: Vec::new(),
            within: Vec::new(),
            incoming: Vec::new(),
            credits: Vec::new(),
        };
        for peer in peers {
            let theirs = wiring.endpoint.import(&peer.theirs)?;
            // A ring between two workers of one machine carries replies to one of them alone.
            let sharers = if peer.machine == own { 1 } else { me.workers };
            let credits = (0..peer.workers).map(|_| ReplyCredits::new(ring, sharers));
            links.credits.push(credits.collect::<Result<_, _>>()?);
            if peer.machine == own {
                links.out.push(None);
                wiring.within(&mut links, peer, theirs)?;
            } else {
                wiring.peer(&mut links, peer, theirs)?;
            }
        }
        Ok(links)
    }
}

impl Wiring<'_> {
    fn sender(
        &mut self,
        segment: RemoteMemory,
        at: usize,
        head: Memory,
        poller: usize,
    ) -> Result<RingSender, LinkError> {
        let config = SenderConfig {
            buffer: Remote {
                memory: segment,
                offset: at as u64,
            },
            capacity: self.ring,
            head_copy: head,
            head_copy_offset: 0,
            reply_reserve_bytes: self.ring.reply_reserve_bytes(),
            notify: Some(worker_id(poller)),
        };
        Ok(RingSender::new(config, self.endpoint)?)
    }

    fn receiver(
        &mut self,
        buffer: Memory,
        segment: RemoteMemory,
        at: usize,
        sender: usize,
    ) -> Result<RingReceiver, LinkError> {
        let head_copy = Remote {
            memory: segment,
            offset: at as u64,
        };
        let config = ReceiverConfig {
            buffer,
            head_copy,
            notify: Some(worker_id(sender)),
        };
        Ok(RingReceiver::new(config, self.endpoint)?)
    }

    fn within(
        &mut self,
        links: &mut Links,
        me: &LinkPeer,
        segment: RemoteMemory,
    ) -> Result<(), LinkError> {
        let (n, own, bytes) = (
            self.workers,
            self.worker.index(),
            self.ring.bytes() as usize,
        );
        let layout = SegmentLayout::within(bytes, n);
        for other in 0..n {
            let (to, from) = (own * n + other, other * n + own);
            let head = me.ours.window(layout.head(to), LINE_BYTES);
            links
                .within
                .push(self.sender(segment, layout.ring(to), head, other)?);
            let buffer = me.ours.window(layout.ring(from), bytes);
            let ring = self.receiver(buffer, segment, layout.head(from), other)?;
            links.incoming.push(Incoming {
                machine: me.machine,
                sender: worker_id(other),
                ring,
            });
        }
        Ok(())
    }

    fn peer(
        &mut self,
        links: &mut Links,
        peer: &LinkPeer,
        segment: RemoteMemory,
    ) -> Result<(), LinkError> {
        let (n, own, bytes) = (
            self.workers,
            self.worker.index(),
            self.ring.bytes() as usize,
        );
        let ours = SegmentLayout::between(bytes, n, peer.workers);
        let theirs = SegmentLayout::between(bytes, peer.workers, n);
        let head = peer.ours.window(ours.head(own), LINE_BYTES);
        links.out.push(Some(self.sender(
            segment,
            theirs.ring(own),
            head,
            own % peer.workers,
        )?));
        for sender in (0..peer.workers).filter(|sender| sender % n == own) {
            let buffer = peer.ours.window(ours.ring(sender), bytes);
            let ring = self.receiver(buffer, segment, theirs.head(sender), sender)?;
            links.incoming.push(Incoming {
                machine: peer.machine,
                sender: worker_id(sender),
                ring,
            });
        }
        Ok(())
    }
}

fn worker_id(index: usize) -> WorkerId {
    WorkerId::new(index as u16).expect("the configuration bounds the number of workers")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_segment_do_not_overlap() {
        for layout in [
            SegmentLayout::between(4096, 3, 2),
            SegmentLayout::within(4096, 3),
        ] {
            let mut parts: Vec<(usize, usize)> =
                (0..layout.rings).map(|i| (layout.ring(i), 4096)).collect();
            parts.extend((0..layout.heads).map(|i| (layout.head(i), LINE_BYTES)));
            parts.sort_unstable();
            for pair in parts.windows(2) {
                assert_eq!(pair[0].0 + pair[0].1, pair[1].0);
            }
            let (at, len) = *parts.last().unwrap();
            assert_eq!(at + len, layout.bytes());
        }
    }
}
