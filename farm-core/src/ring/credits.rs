//! Credits for replies: how a requester keeps space for the answer in a ring that it does not write.

use super::layout::{Capacity, OVERHEAD_BYTES, record_bytes};
use crate::mem::WORD_BYTES;

/// The credits of one requesting worker in the ring that the replies of one worker of another
/// machine come by. Taken with a request, given back when its reply has been consumed.
///
/// The reserve of the ring is cut into one share for each requesting worker of the machine and one
/// more for a wrap filler, which is shorter than the reply it precedes, which is not larger than a
/// share. So all replies that are asked for fit the reserve, wherever in the buffer they come to lie.
/// The whole argument is at [`ring`](super).
///
/// ```
/// use farm_core::ring::{Capacity, ReplyCredits};
/// let ring = Capacity::new(1 << 20).unwrap();
/// let mut credits = ReplyCredits::new(ring, 3).unwrap();
/// assert_eq!(credits.max_body_bytes(), (64 << 10) - 24);
/// assert!(credits.try_take(40 << 10), "reply of at most 40 KiB");
/// assert!(!credits.try_take(40 << 10), "not two of them at a time");
/// credits.give(40 << 10);
/// assert!(credits.try_take(40 << 10));
/// ```
#[derive(Debug)]
pub struct ReplyCredits {
    share_bytes: u32,
    taken_bytes: u32,
}

/// So many workers ask that the ring's reserve has not one empty reply for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a ring of {capacity_bytes} bytes reserves no reply for each of {requesters} workers; give it \
     at least {needed_bytes} bytes or run fewer workers"
)]
pub struct NoShare {
    /// Bytes of the ring.
    pub capacity_bytes: u32,
    /// Workers of the requesting machine.
    pub requesters: usize,
    /// Least ring that would do.
    pub needed_bytes: u64,
}

impl ReplyCredits {
    /// The share of one of `requesters` workers in a ring of `capacity`.
    ///
    /// # Errors
    /// [`NoShare`] when a share would not hold the smallest reply.
    ///
    /// # Panics
    /// Without any requester.
    pub fn new(capacity: Capacity, requesters: usize) -> Result<Self, NoShare> {
        assert!(requesters > 0, "reply credits for nobody");
        let shares = requesters as u64 + 1;
        let share = u64::from(capacity.reply_reserve_bytes()) / shares;
        let whole_words = (share - share % WORD_BYTES as u64) as u32;
        let share_bytes = whole_words.min(capacity.max_record_bytes());
        if share_bytes < OVERHEAD_BYTES {
            let per_share = u64::from(OVERHEAD_BYTES) * super::layout::RESERVE_SHARE;
            return Err(NoShare {
                capacity_bytes: capacity.bytes(),
                requesters,
                needed_bytes: (per_share * shares).next_power_of_two(),
            });
        }
        // Shares and the filler's part, which is one share, fit the reserve.
        assert!(u64::from(share_bytes) * shares <= u64::from(capacity.reply_reserve_bytes()));
        Ok(Self {
            share_bytes,
            taken_bytes: 0,
        })
    }

    /// Bytes of the greatest reply body that can be asked for.
    pub fn max_body_bytes(&self) -> u32 {
        self.share_bytes - OVERHEAD_BYTES
    }

    /// Takes credit for a reply whose body has at most `max_body_bytes`; false while too much of it
    /// is out.
    ///
    /// # Panics
    /// Beyond [`ReplyCredits::max_body_bytes`]: waiting would never end.
    #[inline]
    pub fn try_take(&mut self, max_body_bytes: usize) -> bool {
        let bytes = self.cost(max_body_bytes);
        if bytes > self.share_bytes - self.taken_bytes {
            return false;
        }
        self.taken_bytes += bytes;
        true
    }

    /// Gives credit back, with the length it was taken with: the reply has been consumed, or the
    /// request was not sent after all.
    ///
    /// # Panics
    /// When more comes back than was taken.
    #[inline]
    pub fn give(&mut self, max_body_bytes: usize) {
        let bytes = self.cost(max_body_bytes);
        assert!(
            bytes <= self.taken_bytes,
            "{bytes} bytes of credit given back, none taken"
        );
        self.taken_bytes -= bytes;
    }

    /// Bytes of credit that are out: zero at rest.
    pub fn taken_bytes(&self) -> u32 {
        self.taken_bytes
    }

    #[inline]
    fn cost(&self, max_body_bytes: usize) -> u32 {
        match record_bytes(max_body_bytes) {
            Some(bytes) if bytes <= self.share_bytes => bytes,
            _ => panic!(
                "a reply of {max_body_bytes} bytes is beyond the {} that credits can cover",
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
                    assert!(capacity.bytes() <= 4096, "{capacity:?} for {requesters}");
                    continue;
                };
                let share = credits.max_body_bytes() + OVERHEAD_BYTES;
                let filler = share - WORD_BYTES as u32;
                assert!(share <= capacity.max_record_bytes());
                assert!(requesters as u32 * share + filler <= capacity.reply_reserve_bytes());
            }
        }
    }

    #[test]
    fn a_single_requester_may_ask_for_the_greatest_record() {
        let capacity = Capacity::new(4096).unwrap();
        let credits = ReplyCredits::new(capacity, 1).unwrap();
        assert_eq!(credits.max_body_bytes(), capacity.max_body_bytes());
    }

    #[test]
    fn too_many_requesters_learn_what_ring_would_do() {
        let refused = ReplyCredits::new(Capacity::new(512).unwrap(), 5).unwrap_err();
        assert_eq!(refused.needed_bytes, 1024);
        assert!(ReplyCredits::new(Capacity::new(1024).unwrap(), 5).is_ok());
    }

    #[test]
    #[should_panic(expected = "beyond the")]
    fn credit_that_can_never_be_had_is_a_programmer_error() {
        let mut credits = ReplyCredits::new(Capacity::new(4096).unwrap(), 2).unwrap();
        credits.try_take(1000);
    }

    #[test]
    #[should_panic(expected = "none taken")]
    fn giving_back_twice_is_a_programmer_error() {
        let mut credits = ReplyCredits::new(Capacity::new(4096).unwrap(), 2).unwrap();
        assert!(credits.try_take(8));
        credits.give(8);
        credits.give(8);
    }
}
