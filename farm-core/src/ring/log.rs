//! The sending end of a log: a ring whose space is reserved before anything is sent
//! (`FaRM'15 §4`).
//!
//! The records of a transaction stay in a log until it is truncated, so a coordinator that found the
//! log full half-way through a commit could wait for itself. It reserves space for all records of the
//! transaction before the first; a record that was reserved for finds room.

use super::layout::{Capacity, record_bytes};
use super::{Header, RingSender, SendError, SenderConfig, SetupError, Words};
use crate::fabric::{Endpoint, Token};
use crate::mem::Memory;
use crate::mutants;

/// The sending end of a log.
///
/// Keeps: what lies in the ring, what is reserved, and the greatest record, which is more than a
/// filler can have, fit the ring together. The end of the buffer comes at most once between the head
/// and the head plus the ring's bytes, so there is at most one filler, and every record that was
/// reserved for has room wherever it comes to lie.
#[derive(Debug)]
pub struct LogSender<W = Memory> {
    ring: RingSender<W>,
    capacity: Capacity,
    reserved_bytes: u32,
}

impl<W: Words> LogSender<W> {
    /// The sending end of a new log, whose buffer is zero.
    ///
    /// # Errors
    /// [`SetupError`] when the fabric would break the ring's promises.
    pub fn new(config: SenderConfig<W>, endpoint: &mut Endpoint) -> Result<Self, SetupError> {
        let capacity = config.capacity;
        Ok(Self {
            ring: RingSender::new(config, endpoint)?,
            capacity,
            reserved_bytes: 0,
        })
    }

    /// Bytes of the greatest body of a record.
    pub fn max_body_bytes(&self) -> u32 {
        self.ring.max_body_bytes()
    }

    /// Most bytes that can be reserved at one time while nothing lies in the log but what was consumed
    /// and not reported, less than half of it: whoever waits for so much will have it.
    pub fn most_reservable(&self) -> u32 {
        self.capacity.bytes() - self.capacity.report_bytes() - self.capacity.max_record_bytes()
    }

    /// Bytes that are reserved: zero at rest.
    pub fn reserved_bytes(&self) -> u32 {
        self.reserved_bytes
    }

    /// Bytes sent since the log was made.
    pub fn tail(&self) -> u64 {
        self.ring.tail()
    }

    /// Reserves room for records of so many bytes together, as [`log_record_bytes`] counts them; false
    /// while there is not so much.
    ///
    /// # Errors
    /// [`SendError`] when the log is of no use any more.
    #[inline]
    pub fn try_reserve(&mut self, bytes: u32) -> Result<bool, SendError> {
        if mutants::is_on("log reservation not taken") {
            return Ok(true);
        }
        let kept = self.reserved_bytes + self.capacity.max_record_bytes();
        if self.ring.free_bytes_known() >= kept + bytes {
            self.reserved_bytes += bytes;
            return Ok(true);
        }
        let room = self.ring.free_bytes()? >= kept + bytes;
        if room {
            self.reserved_bytes += bytes;
        }
        Ok(room)
    }

    /// Gives back what was reserved and is not needed.
    ///
    /// # Panics
    /// When more comes back than was reserved.
    #[inline]
    pub fn release(&mut self, bytes: u32) {
        if mutants::is_on("log reservation not taken") {
            return;
        }
        assert!(
            bytes <= self.reserved_bytes,
            "{bytes} bytes of log given back, and {} are reserved",
            self.reserved_bytes
        );
        self.reserved_bytes -= bytes;
    }

    /// Appends a record, for which `reserved` bytes were reserved, of which none is reserved after.
    ///
    /// # Errors
    /// [`SendError::Full`] when the endpoint has no room: to be tried again, and still reserved for.
    /// All others are for good.
    #[inline]
    pub fn try_append(
        &mut self,
        endpoint: &mut Endpoint,
        header: Header,
        body: &[&[u8]],
        reserved: u32,
        signal: Option<Token>,
    ) -> Result<(), SendError> {
        self.ring.try_append(endpoint, header, body, signal)?;
        self.release(reserved);
        Ok(())
    }
}

/// Bytes that a record with a body of so many takes in a log, with the filler apart.
///
/// # Panics
/// If no ring carries such a record.
#[inline]
pub fn log_record_bytes(body_bytes: usize) -> u32 {
    record_bytes(body_bytes).expect("a record that a ring can carry")
}
