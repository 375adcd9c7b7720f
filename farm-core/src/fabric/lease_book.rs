//! Leases by time (`FaRM'15 §5.1`), for fabrics on which a machine cannot write a word into the memory of one that it does not reach, as
//! when a cable is cut. A value without threads, clocks and sockets: the backend has it send and receive.
//!
//! - A process asks all members of its configuration for a lease, several times in the time of one. It *holds* a lease until a duration
//!   after it has **sent** the request to which the answer belongs.
//! - A member *grants* that unless it has applied a configuration without the asking process. The grant ends a duration after it has been
//!   **given**, and a margin later, because clocks differ.
//! - A process may report what it finds while a majority of the members that store regions grants it a lease: a majority of those of
//!   the configuration that is in effect, and of those of each configuration that it has applied since. A process that others go on without
//!   is thus not served by enough of them: a next configuration needs a majority of the same members
//!   ([`Reconfiguration`](crate::membership::reconfiguration::Reconfiguration)), and each of these answers that it has applied it only when
//!   what it has granted has ended.
//!
//! The manager needs no authority of its own: what it may do follows from its lease, as for all others. The price is that each pair of
//! machines exchanges two small datagrams five times in a lease.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Lease;
use crate::ids::MachineId;
use crate::mutants;
use crate::time::Nanos;

/// Number of requests in the time of a lease.
pub(super) const REQUESTS: u32 = 5;
/// A grant lasts longer than the lease by one part in this number: the clocks of two machines may each differ from the time by 1 %.
const MARGIN: u32 = 32;

/// One start of a machine, with its number.
pub type Start = (MachineId, u64);

/// What processes send each other about leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseMessage {
    /// Grant me a lease.
    Request {
        /// When it was sent, by the clock of the sender.
        sent: Nanos,
        /// The newest configuration that the sender has applied.
        knows: u64,
    },
    /// The lease is granted.
    Grant {
        /// The field of the request.
        sent: Nanos,
    },
    /// The cluster has gone on without you, in this configuration.
    Evicted {
        /// The configuration.
        by: u64,
    },
}

/// Who grants leases to whom, as a process knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseTerms {
    /// The newest configuration that the process has applied.
    pub id: u64,
    /// Its members.
    pub members: Vec<Start>,
    /// Members that store regions: of the configuration in effect, and of each that was applied since. A majority of each has to grant
    /// a lease.
    pub quorums: Vec<Vec<Start>>,
}

/// What is known of a peer.
#[derive(Clone, Copy, Debug, Default)]
struct Peer {
    /// Until when it may hold a lease that this process has granted.
    granted: Option<Nanos>,
    /// Until when this process holds a lease that it has granted.
    held: Option<Nanos>,
    /// Time without a request, as far as this process was awake.
    silent: Duration,
    has_expired: bool,
}

/// The leases of a process: those that it holds, and those that it has granted.
#[derive(Clone, Debug)]
pub struct LeaseBook {
    me: Start,
    lease: Duration,
    terms: LeaseTerms,
    peers: BTreeMap<Start, Peer>,
    /// When peers were last looked at.
    looked: Option<Nanos>,
    /// The configuration by which this process is evicted.
    evicted_by: Option<u64>,
}

impl LeaseBook {
    /// Creates the book of a process that is in no configuration yet.
    pub fn new(me: Start, lease: Duration) -> Self {
        Self {
            me,
            lease,
            terms: LeaseTerms::default(),
            peers: BTreeMap::new(),
            looked: None,
            evicted_by: None,
        }
    }

    /// Returns the time between two requests.
    pub fn period(&self) -> Duration {
        self.lease / REQUESTS
    }

    /// Sets who takes part from now on.
    pub fn set_terms(&mut self, terms: LeaseTerms) {
        let all = terms.quorums.iter().flatten().chain(&terms.members);
        let all: BTreeSet<Start> = all.copied().filter(|one| *one != self.me).collect();
        // The next look removes those that do not count any more.
        for one in all {
            self.peers.entry(one).or_default();
        }
        self.terms = terms;
    }

    /// Returns those to whom a request is to be sent now, and the request. A process that joins asks, too: if the others have changed the
    /// configuration without it, it finds out.
    pub fn requests(&self, now: Nanos) -> (LeaseMessage, Vec<Start>) {
        let request = LeaseMessage::Request {
            sent: now,
            knows: self.terms.id,
        };
        let others = match self.evicted_by {
            None => self.peers.keys().copied().collect(),
            Some(_) => Vec::new(),
        };
        (request, others)
    }

    /// Handles a message that has just arrived. Returns the answer, if there is one.
    pub fn on_message(
        &mut self,
        from: Start,
        message: LeaseMessage,
        now: Nanos,
    ) -> Option<LeaseMessage> {
        match message {
            // It may have become a member in a configuration that this process does not know yet.
            LeaseMessage::Request { sent, knows }
                if self.is_member(from) || knows >= self.terms.id =>
            {
                let until = now.after(self.lease + self.lease / MARGIN);
                let peer = self.peers.entry(from).or_default();
                peer.granted = peer.granted.max(Some(until));
                peer.silent = Duration::ZERO;
                Some(LeaseMessage::Grant { sent })
            }
            // It is no member of this configuration, which is later than the one that it knows.
            LeaseMessage::Request { .. } => Some(LeaseMessage::Evicted { by: self.terms.id }),
            LeaseMessage::Grant { sent } => {
                let since = match mutants::is_on("lease counted from its grant") {
                    true => now,
                    false => sent,
                };
                let peer = self.peers.get_mut(&from)?;
                peer.held = peer.held.max(Some(since.after(self.lease)));
                None
            }
            LeaseMessage::Evicted { by } => {
                if by > self.terms.id {
                    self.evicted_by = Some(by);
                }
                None
            }
        }
    }

    /// Returns until when this process may report what it finds. It may be in the past.
    pub fn end(&self) -> Nanos {
        if self.evicted_by.is_some() {
            return Nanos(0);
        }
        let ends = self.terms.quorums.iter().map(|quorum| self.end_of(quorum));
        ends.min().unwrap_or(Nanos(0))
    }

    /// Returns until when a majority of these processes grants this one a lease.
    fn end_of(&self, quorum: &[Start]) -> Nanos {
        let until = |one: &Start| match *one == self.me {
            true => Nanos(u64::MAX),
            false => {
                let peer = self.peers.get(one);
                peer.and_then(|peer| peer.held).unwrap_or(Nanos(0))
            }
        };
        let mut ends: Vec<Nanos> = quorum.iter().map(until).collect();
        ends.sort_unstable_by(|one, other| other.cmp(one));
        ends.get(quorum.len() / 2).copied().unwrap_or(Nanos(0))
    }

    /// Returns the configuration by which this process is evicted.
    pub fn evicted_by(&self) -> Option<u64> {
        self.evicted_by
    }

    /// Returns whether a process may hold a lease that this one has granted.
    pub fn may_hold(&self, process: Start, now: Nanos) -> bool {
        let peer = self.peers.get(&process);
        let until = peer.and_then(|peer| peer.granted);
        until.is_some_and(|until| now <= until)
    }

    /// Returns the processes that may hold a lease that this one has granted, with the ends of these leases.
    pub fn granted(&self) -> impl Iterator<Item = (Start, Nanos)> + '_ {
        let peers = self.peers.iter();
        peers.filter_map(|(one, peer)| Some((*one, peer.granted?)))
    }

    /// Looks at all members, and returns those from which no request has come for the time of a lease, and those from which one has come
    /// after that. To be called about as often as requests are sent; a look that is late counts little, so that nobody is suspected
    /// because this process has paused.
    pub fn look(&mut self, now: Nanos) -> Vec<Lease> {
        let passed = self.looked.replace(now).map_or(Duration::ZERO, |looked| {
            now.since(looked).min(2 * self.period())
        });
        let (terms, mut changes) = (&self.terms, Vec::new());
        self.peers.retain(|one, peer| {
            let is_member = terms.members.contains(one);
            let is_in_quorum = terms.quorums.iter().any(|quorum| quorum.contains(one));
            is_member || is_in_quorum || peer.granted.is_some_and(|until| now <= until)
        });
        for (one, peer) in &mut self.peers {
            if !terms.members.contains(one) {
                continue;
            }
            peer.silent += passed;
            let has_expired = peer.silent >= self.lease;
            if std::mem::replace(&mut peer.has_expired, has_expired) != has_expired {
                changes.push(Lease {
                    machine: one.0,
                    boot: one.1,
                    has_expired,
                });
            }
        }
        changes
    }

    fn is_member(&self, process: Start) -> bool {
        self.terms.members.contains(&process)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: u64 = 1_000;

    fn start(id: u16) -> Start {
        (MachineId::new(id).unwrap(), 7)
    }

    fn terms(id: u64, members: &[u16], quorums: &[&[u16]]) -> LeaseTerms {
        let starts = |ids: &[u16]| ids.iter().map(|id| start(*id)).collect();
        LeaseTerms {
            id,
            members: starts(members),
            quorums: quorums.iter().map(|ids| starts(ids)).collect(),
        }
    }

    fn book(id: u16, terms: LeaseTerms) -> LeaseBook {
        let mut book = LeaseBook::new(start(id), Duration::from_nanos(LEASE));
        book.set_terms(terms);
        book
    }

    /// Has a process ask another one, with this time of its request and of the grant.
    fn ask(one: &mut LeaseBook, other: &mut LeaseBook, sent: u64, given: u64) {
        let (request, _) = one.requests(Nanos(sent));
        let answer = other.on_message(one.me, request, Nanos(given)).unwrap();
        assert_eq!(one.on_message(other.me, answer, Nanos(given + 1)), None);
    }

    #[test]
    fn a_lease_lasts_while_a_majority_grants_it_counted_from_the_requests() {
        let of = || terms(1, &[1, 2, 3, 4], &[&[1, 2, 3]]);
        let mut books = [1, 2, 3, 4].map(|id| book(id, of()));
        let [one, two, three, four] = &mut books;
        assert_eq!(one.end(), Nanos(0));
        ask(one, two, 10, 500);
        assert_eq!(one.end(), Nanos(10 + LEASE));
        ask(one, three, 30, 31);
        assert_eq!(one.end(), Nanos(30 + LEASE), "two of three are enough");
        // Machine 4 stores nothing: it needs two others, and its grants do not count.
        ask(one, four, 700, 701);
        assert_eq!(one.end(), Nanos(30 + LEASE));
        ask(four, two, 50, 51);
        assert_eq!(four.end(), Nanos(0));
        ask(four, three, 60, 61);
        assert_eq!(four.end(), Nanos(50 + LEASE));
    }

    #[test]
    fn a_grant_lasts_longer_than_the_lease_by_all_clocks() {
        let of = || terms(1, &[1, 2, 3], &[&[1, 2, 3]]);
        let (mut one, mut two) = (book(1, of()), book(2, of()));
        ask(&mut one, &mut two, 10, 10);
        // The clock of the holder is slow by 1 %, that of the granter is fast by 1 %.
        let held = LEASE * 100 / 99;
        assert!(two.may_hold(one.me, Nanos(10 + held * 101 / 100)));
        assert!(!two.may_hold(one.me, Nanos(10 + LEASE + LEASE / 16)));
        assert!(!two.may_hold(start(3), Nanos(10)));
    }

    /// Nothing is granted any more to a process that the newest applied configuration does not have, and it finds out.
    #[test]
    fn a_process_that_has_left_is_told() {
        let first = || terms(1, &[1, 2, 3], &[&[1, 2, 3]]);
        let (mut one, mut two) = (book(1, first()), book(2, first()));
        ask(&mut one, &mut two, 10, 10);
        two.set_terms(terms(2, &[2, 3], &[&[2, 3], &[1, 2, 3]]));
        assert!(two.may_hold(one.me, Nanos(20)), "what was granted lasts");
        let (request, others) = one.requests(Nanos(30));
        assert_eq!(others, [start(2), start(3)]);
        let answer = two.on_message(one.me, request, Nanos(31)).unwrap();
        assert_eq!(answer, LeaseMessage::Evicted { by: 2 });
        assert_eq!(one.on_message(two.me, answer, Nanos(32)), None);
        assert_eq!((one.evicted_by(), one.end()), (Some(2), Nanos(0)));
        assert_eq!(one.requests(Nanos(40)).1, []);
        // One that knows a newer configuration is granted what it asks for.
        let request = LeaseMessage::Request {
            sent: Nanos(50),
            knows: 3,
        };
        let granted = two.on_message(start(4), request, Nanos(51));
        assert_eq!(granted, Some(LeaseMessage::Grant { sent: Nanos(50) }));
        assert!(two.may_hold(start(4), Nanos(60)));
    }

    /// A process that has applied a configuration which is not in effect needs a majority of both: the others may go on without it from
    /// either.
    #[test]
    fn a_majority_of_each_configuration_since_the_one_in_effect_counts() {
        let both = terms(2, &[1, 2, 3], &[&[1, 2, 3], &[1, 2, 3, 4, 5]]);
        let mut one = book(1, both.clone());
        let [mut two, mut three] = [2, 3].map(|id| book(id, both.clone()));
        let mut four = book(4, terms(1, &[1, 2, 3, 4, 5], &[&[1, 2, 3, 4, 5]]));
        ask(&mut one, &mut four, 500, 501);
        assert_eq!(one.end(), Nanos(0), "it needs two of three");
        ask(&mut one, &mut two, 10, 11);
        assert_eq!(one.end(), Nanos(10 + LEASE));
        let mut other = book(1, both);
        ask(&mut other, &mut two, 10, 11);
        ask(&mut other, &mut three, 400, 401);
        assert_eq!(other.end(), Nanos(10 + LEASE), "it needs three of five");
        other.set_terms(terms(2, &[1, 2, 3], &[&[1, 2, 3]]));
        assert_eq!(other.end(), Nanos(400 + LEASE));
    }

    #[test]
    fn silent_members_are_found_and_a_late_look_counts_little() {
        let of = || terms(1, &[1, 2], &[&[1, 2]]);
        let (mut one, mut two) = (book(1, of()), book(2, of()));
        let renewed = Lease {
            machine: two.me.0,
            boot: two.me.1,
            has_expired: false,
        };
        assert_eq!(one.look(Nanos(0)), []);
        // This process was stopped for a minute.
        assert_eq!(one.look(Nanos(60_000_000_000)), []);
        let mut now = 60_000_000_000;
        let looks = (1..).find(|_| {
            now += LEASE / u64::from(REQUESTS);
            !one.look(Nanos(now)).is_empty()
        });
        assert_eq!(looks, Some(3), "two counted for the late one");
        ask(&mut two, &mut one, now, now);
        assert_eq!(one.look(Nanos(now + 1)), [renewed]);
    }

    #[test]
    fn a_cluster_of_one_needs_nobody_and_one_that_joins_finds_out_that_it_cannot() {
        let one = book(1, terms(1, &[1], &[&[1]]));
        assert_eq!(one.end(), Nanos(u64::MAX));
        let (mut joins, mut two) = (
            book(1, terms(1, &[2], &[&[2]])),
            book(2, LeaseTerms::default()),
        );
        two.set_terms(terms(2, &[2], &[&[2]]));
        ask(&mut joins, &mut two, 10, 11);
        assert_eq!(joins.evicted_by(), Some(2));
    }
}
