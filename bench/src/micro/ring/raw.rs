//! Both ends of a pair of rings, without a worker around them.

use std::hint::spin_loop;
use std::time::{Duration, Instant};

use farm_core::fabric::PeerOffer;
use farm_core::fabric::shm::ShmMachine;
use farm_core::fabric::{ArenaConfig, Capability, Completion, Endpoint, Remote};
use farm_core::ids::MachineId;
use farm_core::mem::LINE_BYTES;
use farm_core::ring::{
    Capacity, Header, Kind, ReceiverConfig, Record, RingReceiver, RingSender, SendError,
    SenderConfig,
};
use farm_core::time::Nanos;
use hdrhistogram::Histogram;

use crate::micro::{MicroError, PATIENCE, Place, WORKER, check_peers, machine_id, rate_of, record};

/// The machine that asks, and the one that answers.
const ASKING: u16 = 1;
const ANSWERING: u16 = 2;
/// Asks for a reply with the same body.
const ECHO: u16 = 1;
/// Asks for an empty reply.
const FLUSH: u16 = 2;
/// Looks at an empty ring before the core is given up for a moment and the connection looked at.
const SPINS: u32 = 2000;
/// Operations between two looks at the clock.
const CHUNK: u64 = 64;

/// One side of the pair. Its segment holds the ring that the peer writes, and then the line where
/// the peer reports how far it has read the ring of this side.
pub(in crate::micro) struct Side {
    // Before the machine, so that nothing uses its memory when that goes.
    sender: RingSender,
    receiver: RingReceiver,
    endpoint: Endpoint,
    spins: u32,
    unexpected: Vec<Completion>,
    _machine: ShmMachine,
}

impl Side {
    /// The asking side. Meets the other one, which somebody has started or soon will.
    pub(in crate::micro) fn asking(place: &Place, ring_bytes: u64) -> Result<Self, MicroError> {
        Self::meet(place, ring_bytes, ASKING, ANSWERING)
    }

    fn meet(place: &Place, ring_bytes: u64, own: u16, peer: u16) -> Result<Self, MicroError> {
        let capacity = Capacity::new(ring_bytes)
            .map_err(|error| MicroError::bad("ring bytes", error.to_string()))?;
        let ring_bytes = ring_bytes as usize;
        let peer = machine_id(peer);
        let mut machine = place.machine(own)?;
        let (segment, ours) = machine.export(ring_bytes + LINE_BYTES, true)?;
        let machines = [machine_id(own), peer];
        let met = machine.connect(&machines, &mut |_| vec![ours], PATIENCE)?;
        let arena = ArenaConfig::for_reads(64, ring_bytes / 8);
        let mut endpoint = Endpoint::Shm(Box::new(machine.endpoint(WORKER, &arena, 64)));
        let theirs = endpoint.import(&offered(&met, peer)?)?;
        let sending = SenderConfig {
            buffer: Remote {
                memory: theirs,
                offset: 0,
            },
            capacity,
            head_copy: segment.window(ring_bytes, LINE_BYTES),
            head_copy_offset: 0,
            reply_reserve_bytes: capacity.reply_reserve_bytes(),
            integrity: place.integrity(),
            notify: None,
        };
        let receiving = ReceiverConfig {
            buffer: segment.window(0, ring_bytes),
            head_copy: Remote {
                memory: theirs,
                offset: ring_bytes as u64,
            },
            integrity: place.integrity(),
            notify: None,
        };
        Ok(Self {
            sender: RingSender::new(sending, &mut endpoint)?,
            receiver: RingReceiver::new(receiving, &endpoint)?,
            endpoint,
            spins: 0,
            unexpected: Vec::new(),
            _machine: machine,
        })
    }

    /// Round trips for a while, the next after the one before has come back.
    pub(in crate::micro) fn round_trips(
        &mut self,
        body: &[u8],
        slice: Duration,
        latencies: &mut Histogram<u64>,
    ) -> Result<(), MicroError> {
        let mut before = Instant::now();
        let until = before + slice;
        while before < until {
            self.send(Kind::Request, ECHO, body)?;
            self.reply(body.len())?;
            let now = Instant::now();
            record(latencies, now - before);
            before = now;
        }
        Ok(())
    }

    /// Messages a second that nobody answers, until the last has been received.
    pub(in crate::micro) fn stream(
        &mut self,
        body: &[u8],
        slice: Duration,
    ) -> Result<f64, MicroError> {
        let began = Instant::now();
        let mut sent = 0;
        while began.elapsed() < slice {
            for _ in 0..CHUNK {
                self.send(Kind::OneWay, ECHO, body)?;
            }
            sent += CHUNK;
        }
        self.send(Kind::Request, FLUSH, &[])?;
        self.reply(0)?;
        Ok(sent as f64 / began.elapsed().as_secs_f64())
    }

    /// Calls a second with so many in flight.
    pub(in crate::micro) fn calls(
        &mut self,
        body: &[u8],
        in_flight: u64,
        slice: Duration,
    ) -> Result<f64, MicroError> {
        let mut flying = 0;
        let rate = rate_of(slice, || {
            let mut done = 0;
            while done < CHUNK {
                while flying < in_flight && self.try_send(Kind::Request, ECHO, body)? {
                    flying += 1;
                }
                let replies = self.take_replies(body.len())?;
                flying -= replies;
                done += replies;
            }
            Ok(done)
        });
        while flying > 0 {
            flying -= self.take_replies(body.len())?;
        }
        rate
    }

    fn send(&mut self, kind: Kind, message_id: u16, body: &[u8]) -> Result<(), MicroError> {
        while !self.try_send(kind, message_id, body)? {
            self.idle()?;
        }
        Ok(())
    }

    #[inline]
    fn try_send(&mut self, kind: Kind, message_id: u16, body: &[u8]) -> Result<bool, MicroError> {
        let header = Header {
            kind,
            to_worker: WORKER,
            message_id,
            token: 0,
        };
        match self.sender.try_send(&mut self.endpoint, header, &[body]) {
            Ok(()) => Ok(true),
            Err(SendError::Full) => Ok(false),
            Err(error) => Err(MicroError::broken(error)),
        }
    }

    /// Waits for one reply.
    #[inline]
    fn reply(&mut self, bytes: usize) -> Result<(), MicroError> {
        loop {
            if let Some(record) = self
                .receiver
                .peek(&mut self.endpoint, Nanos::default())
                .map_err(MicroError::broken)?
            {
                check_reply(&record, bytes)?;
                self.receiver.consume(&mut self.endpoint);
                return Ok(());
            }
            self.idle()?;
        }
    }

    /// Takes the replies that are there, and tells how many. Idles if there is none.
    #[inline]
    fn take_replies(&mut self, bytes: usize) -> Result<u64, MicroError> {
        let mut count = 0;
        while let Some(record) = self
            .receiver
            .peek(&mut self.endpoint, Nanos::default())
            .map_err(MicroError::broken)?
        {
            check_reply(&record, bytes)?;
            self.receiver.consume(&mut self.endpoint);
            count += 1;
        }
        if count == 0 {
            self.idle()?;
        }
        Ok(count)
    }

    #[inline]
    fn idle(&mut self) -> Result<(), MicroError> {
        spin_loop();
        self.spins += 1;
        if self.spins < SPINS {
            return Ok(());
        }
        self.spins = 0;
        std::thread::yield_now();
        check_peers(&mut self.endpoint, &mut self.unexpected)
    }

    /// Answers until the peer leaves.
    fn answer(&mut self) -> Result<(), MicroError> {
        loop {
            let Some(record) = self
                .receiver
                .peek(&mut self.endpoint, Nanos::default())
                .map_err(MicroError::broken)?
            else {
                // Its departure is the order to end.
                if self.idle().is_err() {
                    return Ok(());
                }
                continue;
            };
            if record.kind == Kind::Request {
                let body = if record.message_id == ECHO {
                    record.body
                } else {
                    &[]
                };
                let header = Header {
                    kind: Kind::Reply,
                    to_worker: WORKER,
                    message_id: record.message_id,
                    token: record.token,
                };
                match self.sender.try_send(&mut self.endpoint, header, &[body]) {
                    Ok(()) => {}
                    // The request stays where it is until the asker has made room.
                    Err(SendError::Full) if self.idle().is_ok() => continue,
                    Err(SendError::Full | SendError::Closed) => return Ok(()),
                    Err(error) => return Err(MicroError::broken(error)),
                }
            }
            self.receiver.consume(&mut self.endpoint);
        }
    }
}

fn check_reply(record: &Record<'_>, bytes: usize) -> Result<(), MicroError> {
    if record.kind == Kind::Reply && record.body.len() == bytes {
        return Ok(());
    }
    Err(MicroError::broken(format!(
        "{record:?} is not a reply of {bytes} bytes"
    )))
}

/// The first memory that a peer offers.
pub(in crate::micro) fn offered(
    met: &[PeerOffer],
    peer: MachineId,
) -> Result<Capability, MicroError> {
    let offer = met.iter().find(|offer| offer.machine == peer);
    let first = offer.and_then(|offer| offer.offer.first().copied());
    first.ok_or_else(|| MicroError::broken(format!("machine {peer} offers no memory")))
}

/// The other process: answers until its peer leaves.
pub(in crate::micro) fn serve(place: &Place, ring_bytes: u64) -> Result<(), MicroError> {
    Side::meet(place, ring_bytes, ANSWERING, ASKING)?.answer()
}
