//! Both ends of a pair of rings, without a worker around them.

use std::hint::spin_loop;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use farm_core::config::Config;
use farm_core::fabric::{ArenaConfig, Completion, Endpoint, FabricMachine, Remote};
use farm_core::ids::MachineId;
use farm_core::mem::LINE_BYTES;
use farm_core::ring::{
    Capacity, Header, Kind, ReceiverConfig, RecordIntegrity, RingReceiver, RingSender, SendError,
    SenderConfig,
};
use farm_core::time::Nanos;

use crate::micro::initiator::{check_completion, check_connected};
use crate::micro::machines::{WORKER, connect, ids, start};
use crate::micro::measure::{Sample, Slice, latencies, rate_of};

/// The only kind of message. Requests of it are answered by their own bodies.
const ECHO: u16 = 1;
/// Looks at an empty ring before the core is given up and the connection looked at.
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
    _machine: FabricMachine,
}

impl Side {
    /// The asking side: the first machine of the configuration. Meets the other one, which was started or
    /// soon will be.
    pub(in crate::micro) fn asking(config: &Config) -> Result<Self> {
        Self::meet(config, ids(config))
    }

    fn meet(config: &Config, machines: [MachineId; 2]) -> Result<Self> {
        let capacity = Capacity::new(config.rings.ring_bytes)?;
        let integrity = RecordIntegrity::by_checksum(config.rings.checksums);
        let ring_bytes = config.rings.ring_bytes as usize;
        let mut machine = start(config, machines[0])?;
        let (segment, ours) = machine.exporter().export(ring_bytes + LINE_BYTES, true)?;
        let offer = connect(&mut machine, machines, &[ours])?;
        let arena = ArenaConfig::for_reads(64, ring_bytes / 8);
        let mut endpoint = machine.endpoint(WORKER, &arena, 64)?;
        let theirs = offer.first().context("the peer offers no memory")?;
        let theirs = endpoint.import(theirs)?;
        let sending = SenderConfig {
            buffer: Remote {
                memory: theirs,
                offset: 0,
            },
            capacity,
            head_copy: segment.window(ring_bytes, LINE_BYTES),
            head_copy_offset: 0,
            reply_reserve_bytes: capacity.reply_reserve_bytes(),
            integrity,
            notify: None,
        };
        let receiving = ReceiverConfig {
            buffer: segment.window(0, ring_bytes),
            head_copy: Remote {
                memory: theirs,
                offset: ring_bytes as u64,
            },
            integrity,
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

    /// Round trips, the next after the one before has come back.
    pub(in crate::micro) fn round_trips(&mut self, slice: Slice) -> Result<Sample> {
        let body = vec![7; slice.bytes];
        latencies(slice.duration, || {
            self.send(Kind::Request, &body)?;
            self.await_reply(body.len())
        })
    }

    /// Messages a second without a reply, until the last has been received.
    pub(in crate::micro) fn stream(&mut self, slice: Slice) -> Result<Sample> {
        let body = vec![7; slice.bytes];
        let began = Instant::now();
        let mut sent = 0;
        while began.elapsed() < slice.duration {
            for _ in 0..CHUNK {
                self.send(Kind::OneWay, &body)?;
            }
            sent += CHUNK;
        }
        self.send(Kind::Request, &[])?;
        self.await_reply(0)?;
        Ok(Sample::Rate(sent as f64 / began.elapsed().as_secs_f64()))
    }

    /// Returns the calls per second; the slice determines the number in flight.
    pub(in crate::micro) fn calls(&mut self, slice: Slice) -> Result<Sample> {
        let body = vec![7; slice.bytes];
        let mut flying = 0;
        let rate = rate_of(slice.duration, || {
            let mut done = 0;
            while done < CHUNK {
                while flying < slice.in_flight as u64 && self.try_send(Kind::Request, &body)? {
                    flying += 1;
                }
                let replies = self.take_replies(body.len())?;
                flying -= replies;
                done += replies;
            }
            Ok(done)
        })?;
        while flying > 0 {
            flying -= self.take_replies(body.len())?;
        }
        Ok(Sample::Rate(rate))
    }

    fn send(&mut self, kind: Kind, body: &[u8]) -> Result<()> {
        while !self.try_send(kind, body)? {
            self.idle()?;
        }
        Ok(())
    }

    #[inline]
    fn try_send(&mut self, kind: Kind, body: &[u8]) -> Result<bool> {
        let header = Header {
            kind,
            to_worker: WORKER,
            message_id: ECHO,
            token: 0,
        };
        match self.sender.try_send(&mut self.endpoint, header, &[body]) {
            Ok(()) => Ok(true),
            Err(SendError::Full) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes a reply, if there is one.
    #[inline]
    fn take_reply(&mut self, bytes: usize) -> Result<bool> {
        let Some(record) = self.receiver.peek(&mut self.endpoint, Nanos::default())? else {
            return Ok(false);
        };
        ensure!(
            record.kind == Kind::Reply && record.body.len() == bytes,
            "{record:?} is not a reply of {bytes} bytes"
        );
        self.receiver.consume(&mut self.endpoint);
        Ok(true)
    }

    #[inline]
    fn await_reply(&mut self, bytes: usize) -> Result<()> {
        while !self.take_reply(bytes)? {
            self.idle()?;
        }
        Ok(())
    }

    /// Consumes the replies that have arrived, and returns their number. Idles if none has.
    #[inline]
    fn take_replies(&mut self, bytes: usize) -> Result<u64> {
        let mut count = 0;
        while self.take_reply(bytes)? {
            count += 1;
        }
        if count == 0 {
            self.idle()?;
        }
        Ok(count)
    }

    /// Spins once; after many times, gives up the core for a moment and looks at the connection.
    #[inline]
    fn idle(&mut self) -> Result<()> {
        spin_loop();
        self.spins += 1;
        if self.spins < SPINS {
            return Ok(());
        }
        self.spins = 0;
        std::thread::yield_now();
        self.endpoint.poll(1, &mut self.unexpected);
        check_connected(&mut self.endpoint)?;
        match self.unexpected.pop() {
            Some(completion) => check_completion(completion.status),
            None => Ok(()),
        }
    }

    /// Answers until the peer leaves.
    fn answer(&mut self) -> Result<()> {
        loop {
            let Some(record) = self.receiver.peek(&mut self.endpoint, Nanos::default())? else {
                // The departure of the peer is the order to end.
                if self.idle().is_err() {
                    return Ok(());
                }
                continue;
            };
            if record.kind == Kind::Request {
                let header = Header {
                    kind: Kind::Reply,
                    to_worker: WORKER,
                    message_id: record.message_id,
                    token: record.token,
                };
                let body = &[record.body];
                match self.sender.try_send(&mut self.endpoint, header, body) {
                    Ok(()) => {}
                    // The request stays where it is until the asker has made room.
                    Err(SendError::Full) if self.idle().is_ok() => continue,
                    Err(SendError::Full | SendError::Closed) => return Ok(()),
                    Err(error) => return Err(error.into()),
                }
            }
            self.receiver.consume(&mut self.endpoint);
        }
    }
}

/// The other process: the second machine of the configuration. Answers until its peer leaves.
pub(in crate::micro) fn serve(config: &Config) -> Result<()> {
    let [asking, answering] = ids(config);
    Side::meet(config, [answering, asking])?.answer()
}
