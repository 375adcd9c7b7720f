//! The reads, decisions and writes of each transaction of TATP (`WORKLOADS.md` §3.2, §3.3).
//!
//! | transaction | reads | writes | not found if |
//! |---|---|---|---|
//! | GET_SUBSCRIBER_DATA | SUBSCRIBER | | never |
//! | GET_NEW_DESTINATION | SPECIAL_FACILITY, and the CALL_FORWARDINGs that start at `start_time` or earlier: 2 to 4 rows | | the facility is absent or not active, or no forwarding ends after `end_time` |
//! | GET_ACCESS_DATA | ACCESS_INFO | | the access info is absent |
//! | UPDATE_SUBSCRIBER_DATA | SUBSCRIBER, SPECIAL_FACILITY | both | the facility is absent |
//! | UPDATE_LOCATION | index, SUBSCRIBER | SUBSCRIBER | never |
//! | INSERT_CALL_FORWARDING | index, SPECIAL_FACILITY, CALL_FORWARDING | CALL_FORWARDING | the facility is absent; declined if the forwarding exists |
//! | DELETE_CALL_FORWARDING | index, CALL_FORWARDING | CALL_FORWARDING | the forwarding is absent |
//!
//! All rows are requested at once, except that the index is read first. So GET_NEW_DESTINATION reads the facility and
//! its call forwardings in one round trip, even if the facility is not active. FaRM'15 counts its rows in the same way.

use super::names::{self, START_TIMES};
use super::row::{
    AccessInfo, CallForwarding, IndexEntry, NUMBERX_DIGITS, SpecialFacility, SubNbr, Subscriber,
};
use crate::oltp::{
    Decision, Names, Outcome, Row, RowName, Step, StepError, Write, decode, present, transactions,
};

// The standard mix is 80 % reads and 20 % writes.
transactions! {
    GetSubscriberData = "GET_SUBSCRIBER_DATA", get_subscriber_data: 35 { s_id: u32 }
    GetNewDestination = "GET_NEW_DESTINATION", get_new_destination: 10 {
        s_id: u32, sf_type: u8, start_time: u8, end_time: u8
    }
    GetAccessData = "GET_ACCESS_DATA", get_access_data: 35 { s_id: u32, ai_type: u8 }
    UpdateSubscriberData = "UPDATE_SUBSCRIBER_DATA", update_subscriber_data: 2 {
        s_id: u32, bit_1: bool, sf_type: u8, data_a: u8
    }
    UpdateLocation = "UPDATE_LOCATION", update_location: 14 { sub_nbr: SubNbr, vlr_location: u32 }
    InsertCallForwarding = "INSERT_CALL_FORWARDING", insert_call_forwarding: 2 {
        sub_nbr: SubNbr, sf_type: u8, start_time: u8, end_time: u8, numberx: [u8; NUMBERX_DIGITS]
    }
    DeleteCallForwarding = "DELETE_CALL_FORWARDING", delete_call_forwarding: 2 {
        sub_nbr: SubNbr, sf_type: u8, start_time: u8
    }
}

impl Kind {
    /// Returns whether it may write.
    pub const fn writes(self) -> bool {
        !matches!(
            self,
            Kind::GetSubscriberData | Kind::GetNewDestination | Kind::GetAccessData
        )
    }
}

/// The way in which a transaction identifies its subscriber.
enum Who {
    Id(u32),
    Number(SubNbr),
}

impl Transaction {
    /// Returns the next step, given all rows read so far in the order of the requests; initially there are none.
    ///
    /// # Errors
    /// [`StepError`]: a row is damaged, a subscriber is missing, or the rows do not match the request.
    pub fn step(&self, rows: &[Option<&[u8]>]) -> Result<Step, StepError> {
        let (s_id, rows, before) = match self.who() {
            Who::Id(s_id) => (s_id, rows, 0),
            Who::Number(sub_nbr) => {
                let name = names::index_entry(sub_nbr);
                let Some((entry, rows)) = rows.split_first() else {
                    return Ok(Step::Read([name].into_iter().collect()));
                };
                (present::<IndexEntry>(name, *entry)?.s_id, rows, 1)
            }
        };
        let names = self.names(s_id);
        if rows.is_empty() {
            return Ok(Step::Read(names));
        }
        if rows.len() != names.len() {
            return Err(StepError::Rows {
                given: before + rows.len(),
                asked: before + names.len(),
            });
        }
        self.decide(&names, rows).map(Step::End)
    }

    fn who(&self) -> Who {
        match *self {
            Transaction::GetSubscriberData { s_id }
            | Transaction::GetNewDestination { s_id, .. }
            | Transaction::GetAccessData { s_id, .. }
            | Transaction::UpdateSubscriberData { s_id, .. } => Who::Id(s_id),
            Transaction::UpdateLocation { sub_nbr, .. }
            | Transaction::InsertCallForwarding { sub_nbr, .. }
            | Transaction::DeleteCallForwarding { sub_nbr, .. } => Who::Number(sub_nbr),
        }
    }

    /// Returns the names of the rows of a subscriber that it reads: at least one.
    fn names(&self, s_id: u32) -> Names {
        let mut names = Names::new();
        match *self {
            Transaction::GetSubscriberData { .. } | Transaction::UpdateLocation { .. } => {
                names.push(names::subscriber(s_id));
            }
            Transaction::GetNewDestination {
                sf_type,
                start_time,
                ..
            } => {
                names.push(names::special_facility(s_id, sf_type));
                let starts = START_TIMES.iter().filter(|start| **start <= start_time);
                names.extend(starts.map(|start| names::call_forwarding(s_id, sf_type, *start)));
            }
            Transaction::GetAccessData { ai_type, .. } => {
                names.push(names::access_info(s_id, ai_type));
            }
            Transaction::UpdateSubscriberData { sf_type, .. } => {
                names.push(names::subscriber(s_id));
                names.push(names::special_facility(s_id, sf_type));
            }
            Transaction::InsertCallForwarding {
                sf_type,
                start_time,
                ..
            } => {
                names.push(names::special_facility(s_id, sf_type));
                names.push(names::call_forwarding(s_id, sf_type, start_time));
            }
            Transaction::DeleteCallForwarding {
                sf_type,
                start_time,
                ..
            } => names.push(names::call_forwarding(s_id, sf_type, start_time)),
        }
        names
    }

    /// Returns the decision, given the rows that it reads.
    fn decide(&self, names: &[RowName], rows: &[Option<&[u8]>]) -> Result<Decision, StepError> {
        match *self {
            Transaction::GetSubscriberData { .. } => {
                present::<Subscriber>(names[0], rows[0])?;
                Ok(Decision::commit([]))
            }
            Transaction::GetNewDestination { end_time, .. } => {
                new_destination(names, rows, end_time)
            }
            Transaction::GetAccessData { .. } => {
                let row: Option<AccessInfo> = decode(names[0], rows[0])?;
                Ok(found(row.map(|_| Decision::commit([]))))
            }
            Transaction::UpdateSubscriberData { bit_1, data_a, .. } => {
                update_subscriber(names, rows, bit_1, data_a)
            }
            Transaction::UpdateLocation { vlr_location, .. } => {
                let row = Subscriber {
                    vlr_location,
                    ..present(names[0], rows[0])?
                };
                Ok(Decision::commit([Write::Update(names[0], row.encode())]))
            }
            Transaction::InsertCallForwarding {
                end_time, numberx, ..
            } => {
                let row = CallForwarding { end_time, numberx };
                insert_forwarding(names, rows, row)
            }
            Transaction::DeleteCallForwarding { .. } => {
                let row: Option<CallForwarding> = decode(names[0], rows[0])?;
                let removed = row.map(|_| Decision::commit([Write::Remove(names[0])]));
                Ok(found(removed))
            }
        }
    }
}

/// Decides GET_NEW_DESTINATION: commits if the facility is active and a forwarding that has started ends after
/// `end_time`.
fn new_destination(
    names: &[RowName],
    rows: &[Option<&[u8]>],
    end_time: u8,
) -> Result<Decision, StepError> {
    let facility: Option<SpecialFacility> = decode(names[0], rows[0])?;
    let mut goes_on = false;
    for (name, row) in names.iter().zip(rows).skip(1) {
        let forwarding: Option<CallForwarding> = decode(*name, *row)?;
        goes_on |= forwarding.is_some_and(|forwarding| forwarding.end_time > end_time);
    }
    let answers = goes_on && facility.is_some_and(|facility| facility.is_active == 1);
    Ok(found(answers.then(|| Decision::commit([]))))
}

/// Updates both rows or none: `bit_1` is unchanged if the facility is absent.
fn update_subscriber(
    names: &[RowName],
    rows: &[Option<&[u8]>],
    bit_1: bool,
    data_a: u8,
) -> Result<Decision, StepError> {
    let subscriber: Subscriber = present(names[0], rows[0])?;
    let facility: Option<SpecialFacility> = decode(names[1], rows[1])?;
    Ok(found(facility.map(|facility| {
        let facility = SpecialFacility { data_a, ..facility };
        Decision::commit([
            Write::Update(names[0], subscriber.with_bit_1(bit_1).encode()),
            Write::Update(names[1], facility.encode()),
        ])
    })))
}

fn insert_forwarding(
    names: &[RowName],
    rows: &[Option<&[u8]>],
    row: CallForwarding,
) -> Result<Decision, StepError> {
    let facility: Option<SpecialFacility> = decode(names[0], rows[0])?;
    let there: Option<CallForwarding> = decode(names[1], rows[1])?;
    Ok(match (facility, there) {
        (None, _) => Decision::none(Outcome::NotFound),
        (Some(_), Some(_)) => Decision::none(Outcome::Declined),
        (Some(_), None) => Decision::commit([Write::Insert(names[1], row.encode())]),
    })
}

fn found(decision: Option<Decision>) -> Decision {
    decision.unwrap_or_else(|| Decision::none(Outcome::NotFound))
}
