//! Credits for replies: how a requester keeps space for the answer in a ring that it does not write.

use super::layout::{Capacity, OVERHEAD_BYTES, record_bytes};
use crate::limits::LARGEST_REPLY_BYTES;
use crate::mem::WORD_BYTES;

/// The credits of one requesting worker in the ring that the replies of one worker of another
/// machine come by. Taken with a request, given back when its reply has been consumed.
///
/// The reserve of the ring is cut into one share for each requesting worker of the machine, and each
/// has room for one prompt reply besides: of a request that its receiver answers at once, whatever it
/// waits for otherwise. So requests that take long to answer, and to answer which others have to be
/// asked, do not hold what the others need. One part more is for a wrap filler, which is shorter than the
/// reply it precedes. So all replies that are asked for fit the reserve, wherever in the buffer they come
/// to lie. The whole argument is at [`ring`](super).
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

/// Room for one prompt reply, of at most [`LARGEST_REPLY_BYTES`].
const PROMPT_BYTES: u32 = LARGEST_REPLY_BYTES as u32 + OVERHEAD_BYTES;

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
        let requesters = requesters as u64;
        let reserve = u64::from(capacity.reply_reserve_bytes());
        let prompt = u64::from(PROMPT_BYTES);
        let shares = reserve.saturating_sub(requesters * prompt) / (requesters + 1);
        let share = match shares >= prompt {
            true => shares,
            // A filler before a prompt reply is longer than one before any other.
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
        // What is owed and a filler, shorter than any of it, fit the reserve.
        let owed = requesters * (u64::from(share_bytes) + prompt);
        assert!(owed + u64::from(share_bytes).max(prompt) <= reserve);
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
    /// is out. A `prompt` reply comes without its sender having to wait for anything.
    ///
    /// # Panics
    /// Beyond [`ReplyCredits::max_body_bytes`], or beyond [`LARGEST_REPLY_BYTES`] of a prompt reply:
    /// waiting would never end.
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
            Some(bytes) if bytes <= self.share_bytes.max(PROMPT_BYTES) => bytes,
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
    fn a_single_requester_may_ask_for_the_greatest_record() {
        let capacity = Capacity::new(4096).unwrap();
        let credits = ReplyCredits::new(capacity, 1).unwrap();
        let (asked, most) = (credits.max_body_bytes(), capacity.max_body_bytes());
        assert!(asked + PROMPT_BYTES >= most, "{asked} of {most}");
    }

    #[test]
    fn a_prompt_reply_has_room_whatever_else_is_owed() {
        let mut credits = ReplyCredits::new(Capacity::new(4096).unwrap(), 3).unwrap();
        assert!(credits.try_take(credits.max_body_bytes() as usize, false));
        assert!(!credits.try_take(0, false));
        assert!(credits.try_take(LARGEST_REPLY_BYTES as usize, true));
        assert!(!credits.try_take(0, true));
        credits.give(LARGEST_REPLY_BYTES as usize);
        assert!(!credits.try_take(0, false) && credits.try_take(9, true));
    }

    #[test]
    fn too_many_requesters_learn_what_ring_would_do() {
        let refused = ReplyCredits::new(Capacity::new(512).unwrap(), 3).unwrap_err();
        assert_eq!(refused.needed_bytes, 2048);
        assert!(ReplyCredits::new(Capacity::new(2048).unwrap(), 3).is_ok());
    }

    #[test]
    #[should_panic(expected = "beyond the")]
    fn credit_that_can_never_be_had_is_a_programmer_error() {
        let mut credits = ReplyCredits::new(Capacity::new(4096).unwrap(), 2).unwrap();
        credits.try_take(1000, false);
    }

    #[test]
    #[should_panic(expected = "none taken")]
    fn giving_back_twice_is_a_programmer_error() {
        let mut credits = ReplyCredits::new(Capacity::new(4096).unwrap(), 2).unwrap();
        assert!(credits.try_take(8, false));
        credits.give(8);
        credits.give(8);
    }
}
