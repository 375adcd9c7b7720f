//! The conditions on the rows of a subscriber after any transactions: transactions change only some fields of some
//! rows, and insert and remove call forwardings.

use super::names::{self, START_TIMES};
use super::population;
use super::row::{CallForwarding, IndexEntry, SpecialFacility, Subscriber};
use crate::oltp::{Row, RowBytes, StepError, decode, present};

/// Compares the rows of a subscriber with the loaded rows. `rows` contains either all rows in the order of [`names::all`],
/// or only the first two of them.
///
/// # Errors
/// A description of the first error.
pub fn check(seed: u64, s_id: u32, rows: &[Option<RowBytes>]) -> Result<(), String> {
    const FIELDS: &str = "differs from the loaded row in fields that no transaction writes";
    let was = population::rows(seed, s_id);
    let name_of = |at: usize| {
        names::all(s_id)
            .nth(at)
            .expect("`names` yields the name of every row of a subscriber")
    };
    let wrong = |at: usize, why: &str| Err(format!("the row {} {why}", name_of(at)));
    let damaged = |why: StepError| why.to_string();
    let bytes_of = |at: usize| rows[at].as_deref();
    if rows.len() < 2 {
        return Err(format!(
            "the audit received only {} rows of subscriber {s_id}, but needs at least two",
            rows.len()
        ));
    }
    let now: Subscriber = present(name_of(0), bytes_of(0)).map_err(damaged)?;
    let unchanged = Subscriber {
        vlr_location: now.vlr_location,
        ..was.subscriber.with_bit_1(now.bits & 1 == 1)
    };
    if now != unchanged {
        return wrong(0, FIELDS);
    }
    let entry: IndexEntry = present(name_of(1), bytes_of(1)).map_err(damaged)?;
    if entry.s_id != s_id {
        return wrong(1, "refers to another subscriber");
    }
    if rows.len() < 6 {
        return Ok(());
    }
    for (at, was) in (2..).zip(was.access_info) {
        if rows[at] != was.map(|row| row.encode()) {
            return wrong(at, "differs from the loaded row, though nothing writes it");
        }
    }
    for (at, was) in (6..).zip(&was.special_facility) {
        let now: Option<SpecialFacility> = decode(name_of(at), bytes_of(at)).map_err(damaged)?;
        let unchanged = now.zip(*was).map(|(now, was)| SpecialFacility {
            data_a: now.data_a,
            ..was
        });
        if now.is_some() != was.is_some() || now != unchanged {
            return wrong(at, FIELDS);
        }
    }
    for at in 10..rows.len() {
        let now: Option<CallForwarding> = decode(name_of(at), bytes_of(at)).map_err(damaged)?;
        let facility = was.special_facility[(at - 10) / START_TIMES.len()];
        if now.is_some() && facility.is_none() {
            return wrong(at, "belongs to a special facility that does not exist");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the rows of a subscriber in the form that [`check`] requires.
    fn loaded(seed: u64, s_id: u32) -> Vec<Option<RowBytes>> {
        let rows: Vec<_> = population::rows(seed, s_id).encoded().collect();
        let find = |name| {
            let found = rows.iter().find(|(one, _)| *one == name);
            found.map(|(_, row)| *row)
        };
        names::all(s_id).map(find).collect()
    }

    #[test]
    fn only_fields_that_transactions_write_may_change() {
        assert_eq!(names::all(9).count(), 22);
        for s_id in 1..200 {
            let was = loaded(5, s_id);
            assert_eq!(check(5, s_id, &was), Ok(()));
            assert_eq!(check(5, s_id, &was[..2]), Ok(()));
            // The first bytes of vlr_location and of msc_location.
            for (byte, right) in [(36, true), (32, false)] {
                let mut now = was.clone();
                let mut row: [u8; 40] = now[0].unwrap().to_vec().try_into().unwrap();
                row[byte] ^= 1;
                now[0] = RowBytes::copied(&row);
                assert_eq!(check(5, s_id, &now).is_ok(), right);
            }
            for at in 0..22 {
                let mut now = was.clone();
                let there = now[at].take().is_some();
                // A call forwarding may be deleted.
                assert_eq!(check(5, s_id, &now).is_ok(), !there || at >= 10, "{at}");
            }
            let forwarding = was.iter().skip(10).flatten().next();
            for (facility, forwarding) in (0..4).zip([forwarding; 4]) {
                let mut now = was.clone();
                now[10 + 3 * facility] = forwarding.copied();
                let right = forwarding.is_none() || was[6 + facility].is_some();
                assert_eq!(check(5, s_id, &now).is_ok(), right);
            }
        }
    }
}
