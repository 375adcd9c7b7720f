//! Doorbell registers of mlx5 devices, which queue pairs of different workers should not share (SMART §4.1).
//!
//! The driver has so many of them in all (`MLX5_TOTAL_UUARS`), of which some (`MLX5_NUM_LOW_LAT_UUARS`) take
//! one queue pair each, the first ones, and one is kept for other things; all further queue pairs share the
//! others, each going to one that has the fewest. Queue pairs are made peer by peer, one of each group of workers in order. So if the
//! number of groups divides that of shared doorbells, each of those serves one group alone.

/// What the driver does if nothing is said.
const TOTAL: u32 = 16;
const LOW_LATENCY: u32 = 4;

/// The driver's settings, as the environment has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Doorbells {
    total: u32,
    low_latency: u32,
}

impl Doorbells {
    /// From the variables, by their names.
    pub(super) fn of(variable: impl Fn(&str) -> Option<String>) -> Self {
        let number = |name, otherwise| {
            let text = variable(name);
            text.and_then(|text| text.trim().parse().ok())
                .unwrap_or(otherwise)
        };
        Self {
            total: number("MLX5_TOTAL_UUARS", TOTAL),
            low_latency: number("MLX5_NUM_LOW_LAT_UUARS", LOW_LATENCY),
        }
    }

    /// What to do if different groups of workers will share doorbells.
    pub(super) fn advice(self, groups: usize) -> Option<String> {
        // The driver makes the number even, and keeps one for what is not so urgent.
        let total = self.total.next_multiple_of(2);
        let shared = total.saturating_sub(self.low_latency + 1) as usize;
        if groups < 2 || shared > 0 && shared.is_multiple_of(groups) {
            return None;
        }
        let wanted = groups.max(12_usize.next_multiple_of(groups));
        let low_latency = 1 + wanted % 2;
        let total = low_latency + 1 + wanted;
        Some(format!(
            "{groups} workers will share {shared} doorbells of the device and wait for each other: set \
             MLX5_NUM_LOW_LAT_UUARS={low_latency} and MLX5_TOTAL_UUARS={total} in the environment"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(total: &'static str, low_latency: &'static str) -> Doorbells {
        Doorbells::of(|name| match name {
            "MLX5_TOTAL_UUARS" => Some(total.into()),
            _ => Some(low_latency.into()),
        })
    }

    #[test]
    fn groups_that_divide_the_shared_doorbells_have_their_own() {
        let usual = Doorbells::of(|_| None);
        for groups in [1, 11] {
            assert_eq!(usual.advice(groups), None, "{groups}");
        }
        for groups in [2, 4, 5, 8, 12, 16] {
            let advice = usual.advice(groups).expect("they share");
            assert!(advice.contains(&format!("{groups} workers")), "{advice}");
        }
    }

    #[test]
    fn who_follows_the_advice_hears_none() {
        for groups in [2, 5, 7, 8, 13, 16, 64] {
            let usual = Doorbells::of(|_| None);
            let advice = usual.advice(groups).expect("they share");
            let said = |name: &str| {
                let number = advice.split(name).nth(1).unwrap();
                number.split(' ').next().unwrap().to_owned()
            };
            let followed = Doorbells::of(|name| Some(said(&format!("{name}="))));
            assert!(followed.total.is_multiple_of(2), "{advice}");
            assert_eq!(followed.advice(groups), None, "{advice}");
        }
    }

    #[test]
    fn settings_that_leave_none_to_share_are_seen() {
        assert!(set("4", "4").advice(2).is_some());
        assert!(set("nonsense", "").advice(5).is_some(), "the usual ones");
    }
}
