//! Credits for replies: how a requester reserves space for a reply in a ring that it does not
//! write.

use super::layout::{Capacity, OVERHEAD_BYTES, record_bytes};
use crate::limits::LARGEST_REPLY_BYTES;
use crate::mem::WORD_BYTES;

/// The credits that one requesting worker holds in the ring that carries the replies of one worker
/// of another machine. The requester takes credit when it sends a request, and returns the credit
/// when the reply has been consumed.
///
/// The reserve of the ring is divided into one share for each requesting worker of the machine.
/// Each worker also has room for one prompt reply, that is a reply which the receiver of the request
/// sends without waiting for anything. Requests that take long to answer, or whose receiver must
/// first query other machines, therefore do not hold the space that prompt requests need. One more
/// part is for the filler at the end of the buffer, which is shorter than the reply after it. So all
/// replies for which credit is taken fit the reserve, at whichever offsets they are placed. The whole
/// argument is at [`ring`](super).
///
/// ```
/// use farm_core::ring::{Capacity, ReplyCredits};
/// let ring = Capacity::new(1 << 20).unwrap();
/// let mut credits = ReplyCredits::new(ring, 3).unwrap();
/// assert_eq!(credits.max_body_bytes(), (64 << 10) - 72);
/// assert!(credits.try_take(40 << 10, false), "reply of at most 40 KiB");
/// assert!(!credits.try_take(40 << 10, false), "not two of them at a time");
/// credits.give(40 << 10);
/// assert!(credits.try_take(40 << 10, false));
/// ```
#[derive(Debug)]
pub struct ReplyCredits {
    share_bytes: u32,
    taken_bytes: u32,
}

/// Bytes of one prompt reply: a body of at most [`LARGEST_REPLY_BYTES`] and the record overhead.
const PROMPT_BYTES: u32 = LARGEST_REPLY_BYTES as u32 + OVERHEAD_BYTES;

/// There are too many requesting workers: the ring's reserve has no room for an empty reply and a
/// prompt reply for each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a ring of {capacity_bytes} bytes is too small to reserve a reply for each of {requesters} workers; \
     use a ring of at least {needed_bytes} bytes or run fewer workers"
)]
pub struct NoShare {
    /// Ring size in bytes.
    pub capacity_bytes: u32,
    /// Number of workers of the requesting machine.
    pub requesters: usize,
    /// Smallest sufficient ring size in bytes.
    pub needed_bytes: u64,
}

impl ReplyCredits {
    /// Creates the credits of one of `requesters` workers in a ring of `capacity`.
    ///
    /// # Errors
    /// [`NoShare`] when a share would not hold the smallest reply.
    ///
    /// # Panics
    /// When `requesters` is 0.
    pub fn new(capacity: Capacity, requesters: usize) -> Result<Self, NoShare> {
        assert!(requesters > 0, "reply credits need at least one requester");
        let requesters = requesters as u64;
        let reserve = u64::from(capacity.reply_reserve_bytes());
        let prompt = u64::from(PROMPT_BYTES);
        let shares = reserve.saturating_sub(requesters * prompt) / (requesters + 1);
        let share = match shares >= prompt {
            true => shares,
            // A filler before a prompt reply may be longer than a filler before a reply from a
            // share.
            false => reserve.saturating_sub((requesters + 1) * prompt) / requesters,
        };
        let whole_words = (share - share % WORD_BYTES as u64) as u32;
        let share_bytes = whole_words.min(capacity.max_record_bytes());
        if share_bytes < OVERHEAD_BYTES {
            let least = u64::from(OVERHEAD_BYTES) * requesters + prompt * (requesters + 1);
            return Err(NoShare {
                capacity_bytes: capacity.bytes(),
                requesters: requesters as usize,
                needed_bytes: (least * super::layout::RESERVE_SHARE).next_power_of_two(),
            });
        }
        // The owed replies and one filler, shorter than the largest of them, fit the reserve.
        let owed = requesters * (u64::from(share_bytes) + prompt);
        assert!(owed + u64::from(share_bytes).max(prompt) <= reserve);
        Ok(Self {
            share_bytes,
            taken_bytes: 0,
        })
    }

    /// Returns the largest reply body, in bytes, for which credit can be taken.
    pub fn max_body_bytes(&self) -> u32 {
        self.share_bytes - OVERHEAD_BYTES
    }

    /// Takes credit for a reply whose body has at most `max_body_bytes`. Returns false while too
    /// much credit is taken. A `prompt` reply is sent without its sender having to wait for
    /// anything.
    ///
    /// # Panics
    /// When `max_body_bytes` exceeds both [`ReplyCredits::max_body_bytes`] and
    /// [`LARGEST_REPLY_BYTES`]: waiting would never end.
    #[inline]
    pub fn try_take(&mut self, max_body_bytes: usize, prompt: bool) -> bool {
        let bytes = self.cost(max_body_bytes);
        let most = match prompt {
            true => self.share_bytes + PROMPT_BYTES,
            false => self.share_bytes,
        };
        if self.taken_bytes + bytes > most {
            return false;
        }
        self.taken_bytes += bytes;
        true
    }

    /// Returns credit. `max_body_bytes` must equal the value with which it was taken. To be called
    /// when the reply has been consumed, or when the request was not sent.
    ///
    /// # Panics
    /// When more credit is returned than was taken.
    #[inline]
    pub fn give(&mut self, max_body_bytes: usize) {
        let bytes = self.cost(max_body_bytes);
        assert!(
            bytes <= self.taken_bytes,
            "{bytes} bytes of reply credit returned, more than were taken"
        );
        self.taken_bytes -= bytes;
    }

    /// Returns the bytes of credit that are taken: zero when no request is in flight.
    pub fn taken_bytes(&self) -> u32 {
        self.taken_bytes
    }

    #[inline]
    fn cost(&self, max_body_bytes: usize) -> u32 {
        match record_bytes(max_body_bytes) {
            Some(bytes) if bytes <= self.share_bytes.max(PROMPT_BYTES) => bytes,
            _ => panic!(
                "a reply of {max_body_bytes} bytes exceeds the {} bytes that reply credits can cover",
                self.max_body_bytes()
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_one_filler_fit_the_reserve_at_every_size() {
        for shift in 9..=30 {
            let capacity = Capacity::new(1 << shift).unwrap();
            for requesters in 1..=64 {
                let Ok(credits) = ReplyCredits::new(capacity, requesters) else {
                    assert!(capacity.bytes() <= 16384, "{capacity:?} for {requesters}");
                    continue;
                };
                let share = credits.max_body_bytes() + OVERHEAD_BYTES;
                let owed = requesters as u32 * (share + PROMPT_BYTES);
                let filler = share.max(PROMPT_BYTES) - WORD_BYTES as u32;
                assert!(share <= capacity.max_record_bytes());
                assert!(owed + filler <= capacity.reply_reserve_bytes());
            }
        }
    }

    #[test]
    fn a_single_requester_may_request_the_largest_record() {
        let capacity = Capacity::new(4096).unwrap();
        let credits = ReplyCredits::new(capacity, 1).unwrap();
        let (asked, most) = (credits.max_body_bytes(), capacity.max_body_bytes());
        assert!(asked + PROMPT_BYTES >= most, "{asked} of {most}");
    }

    #[test]
    fn a_prompt_reply_has_room_when_the_share_is_taken() {
        let mut credits = ReplyCredits::new(Capacity::new(4096).unwrap(), 3).unwrap();
        assert!(credits.try_take(credits.max_body_bytes() as usize, false));
        assert!(!credits.try_take(0, false));
        assert!(credits.try_take(LARGEST_REPLY_BYTES as usize, true));
        assert!(!credits.try_take(0, true));
        credits.give(LARGEST_REPLY_BYTES as usize);
        assert!(!credits.try_take(0, false) && credits.try_take(9, true));
    }

    #[test]
    fn no_share_error_reports_the_needed_ring_size() {
        let refused = ReplyCredits::new(Capacity::new(512).unwrap(), 3).unwrap_err();
        assert_eq!(refused.needed_bytes, 2048);
        assert!(ReplyCredits::new(Capacity::new(2048).unwrap(), 3).is_ok());
    }

    #[test]
    #[should_panic(expected = "exceeds the")]
    fn taking_more_credit_than_can_exist_panics() {
        let mut credits = ReplyCredits::new(Capacity::new(4096).unwrap(), 2).unwrap();
        credits.try_take(1000, false);
    }

    #[test]
    #[should_panic(expected = "more than were taken")]
    fn returning_credit_twice_panics() {
        let mut credits = ReplyCredits::new(Capacity::new(4096).unwrap(), 2).unwrap();
        assert!(credits.try_take(8, false));
        credits.give(8);
        credits.give(8);
    }
}
