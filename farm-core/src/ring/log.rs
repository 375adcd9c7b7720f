//! The sending end of a log: a ring whose space is reserved before anything is sent
//! (`FaRM'15 §4`).
//!
//! The records of a transaction stay in a log until the log is truncated. A coordinator that found
//! the log full half-way through a commit could therefore wait for itself. Before its first record,
//! the coordinator reserves space for all records of the transaction. A record with reserved space
//! always finds room in the ring.

use super::layout::{Capacity, record_bytes};
use super::{Header, RingSender, SendError, SenderConfig, SetupError, Words};
use crate::fabric::{Endpoint, Token};
use crate::mem::Memory;
use crate::mutants;

/// The sending end of a log.
///
/// Invariant: the bytes in the ring, the reserved bytes and the largest record together fit the
/// ring. A filler is shorter than the largest record. The end of the buffer occurs at most once
/// between the head and the head plus the ring's bytes, so there is at most one filler, and every
/// record with reserved space has room at whichever offset it is placed.
#[derive(Debug)]
pub struct LogSender<W = Memory> {
    ring: RingSender<W>,
    capacity: Capacity,
    reserved_bytes: u32,
}

impl<W: Words> LogSender<W> {
    /// Creates the sending end of a new log, whose buffer is zero.
    ///
    /// # Errors
    /// [`SetupError`] when the fabric would break the ring's guarantees.
    pub fn new(config: SenderConfig<W>, endpoint: &mut Endpoint) -> Result<Self, SetupError> {
        let capacity = config.capacity;
        Ok(Self {
            ring: RingSender::new(config, endpoint)?,
            capacity,
            reserved_bytes: 0,
        })
    }

    /// Returns the largest body of a record, in bytes.
    pub fn max_body_bytes(&self) -> u32 {
        self.ring.max_body_bytes()
    }

    /// Returns the size in bytes of the largest reservation that eventually succeeds. It succeeds
    /// when nothing else is reserved and the log contains only bytes that were consumed and not
    /// reported, which are less than half of the log.
    pub fn most_reservable(&self) -> u32 {
        self.capacity.bytes() - self.capacity.report_bytes() - self.capacity.max_record_bytes()
    }

    /// Returns the reserved bytes: zero when the machine is idle.
    pub fn reserved_bytes(&self) -> u32 {
        self.reserved_bytes
    }

    /// Returns the bytes sent since the log was created, fillers included.
    pub fn tail(&self) -> u64 {
        self.ring.tail()
    }

    /// Reserves `bytes` for records, counted by [`log_record_bytes`]. Returns false if the log does
    /// not have this much free space now.
    ///
    /// # Errors
    /// [`SendError`] when the log has failed permanently.
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

    /// Releases reserved bytes that are not needed.
    ///
    /// # Panics
    /// When `bytes` exceeds the reserved bytes.
    #[inline]
    pub fn release(&mut self, bytes: u32) {
        if mutants::is_on("log reservation not taken") {
            return;
        }
        assert!(
            bytes <= self.reserved_bytes,
            "{bytes} bytes of log space released, but only {} are reserved",
            self.reserved_bytes
        );
        self.reserved_bytes -= bytes;
    }

    /// Appends a record, for which `reserved` bytes were reserved, and releases this reservation.
    ///
    /// # Errors
    /// [`SendError::Full`] when the endpoint has no room: the reservation remains, and the caller
    /// should retry. All other errors are permanent.
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

/// Returns the bytes that a record with a body of `body_bytes` takes in a log, without a filler.
///
/// # Panics
/// If the body is too large for any ring.
#[inline]
pub fn log_record_bytes(body_bytes: usize) -> u32 {
    record_bytes(body_bytes).expect("the body of a log record fits a record of a ring")
}
