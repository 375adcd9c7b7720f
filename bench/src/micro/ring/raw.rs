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

/// The id of all messages. The reply to a request contains the body of the request.
const ECHO: u16 = 1;
/// Number of polls of an empty ring before the thread yields its core and checks the connection.
const SPINS: u32 = 2000;
/// Number of operations between two readings of the clock.
const CHUNK: u64 = 64;

/// One side of a pair of rings. Its segment contains the ring that the peer writes, and then the line in which the peer
/// reports how far it has read the messages of this side.
pub(in crate::micro) struct Side {
    // The sender, the receiver and the endpoint use the machine's memory. They are declared before the machine, so that
    // they are dropped first.
    sender: RingSender,
    receiver: RingReceiver,
    endpoint: Endpoint,
    spins: u32,
    unexpected: Vec<Completion>,
    _machine: FabricMachine,
}

impl Side {
    /// Starts the first machine of the configuration, which sends the requests, and connects it to the second machine.
    /// The second machine may be started a little later.
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
        let theirs = offer
            .first()
            .context("the other machine did not offer its memory")?;
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
            kept: None,
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

    /// Measures the latency of round trips, one at a time.
    pub(in crate::micro) fn round_trips(&mut self, slice: Slice) -> Result<Sample> {
        let body = vec![7; slice.bytes];
        latencies(slice.duration, || {
            self.send(Kind::Request, &body)?;
            self.await_reply(body.len())
        })
    }

    /// Measures the one-way messages per second, until the peer has received the last one.
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

    /// Measures the calls per second; the slice determines the number in flight.
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

    /// Consumes a reply, if there is one. Returns whether there was one.
    #[inline]
    fn take_reply(&mut self, bytes: usize) -> Result<bool> {
        let Some(record) = self.receiver.peek(&mut self.endpoint, Nanos::default())? else {
            return Ok(false);
        };
        ensure!(
            record.kind == Kind::Reply && record.body.len() == bytes,
            "received {record:?} instead of a reply of {bytes} bytes"
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

    /// Spins once. After [`SPINS`] calls, yields the core and checks the connection.
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

    /// Answers requests until the peer leaves.
    fn answer(&mut self) -> Result<()> {
        loop {
            let Some(record) = self.receiver.peek(&mut self.endpoint, Nanos::default())? else {
                // This side ends when the peer leaves.
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
                    // The request stays in its ring until the peer has made room for the reply.
                    Err(SendError::Full) if self.idle().is_ok() => continue,
                    Err(SendError::Full | SendError::Closed) => return Ok(()),
                    Err(error) => return Err(error.into()),
                }
            }
            self.receiver.consume(&mut self.endpoint);
        }
    }
}

/// Runs the second machine of the configuration in the other process. It answers requests until its peer leaves.
pub(in crate::micro) fn serve(config: &Config) -> Result<()> {
    let [asking, answering] = ids(config);
    Side::meet(config, [answering, asking])?.answer()
}
