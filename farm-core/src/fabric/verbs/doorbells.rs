//! Doorbell registers of mlx5 devices, which queue pairs of different workers should not share
//! (SMART §4.1).
//!
//! The driver has `MLX5_TOTAL_UUARS` doorbells in total. The first `MLX5_NUM_LOW_LAT_UUARS` queue
//! pairs get a doorbell each, and one doorbell is reserved for other purposes. All further queue
//! pairs share the remaining doorbells: each new queue pair gets the doorbell that has the fewest
//! queue pairs. Queue pairs are created peer by peer, and for each peer one per group of workers, in
//! order. So if the number of groups divides the number of shared doorbells, each shared doorbell
//! serves only one group.

/// The driver's defaults.
const TOTAL: u32 = 16;
const LOW_LATENCY: u32 = 4;

/// The driver's settings from the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Doorbells {
    total: u32,
    low_latency: u32,
}

impl Doorbells {
    /// Reads the settings with `variable`, which returns a variable by its name.
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

    /// Returns advice if different groups of workers will share doorbells.
    pub(super) fn advice(self, groups: usize) -> Option<String> {
        // The driver rounds the number up to an even one, and reserves one for less urgent
        // requests.
        let total = self.total.next_multiple_of(2);
        let shared = total.saturating_sub(self.low_latency + 1) as usize;
        if groups < 2 || shared > 0 && shared.is_multiple_of(groups) {
            return None;
        }
        let wanted = groups.max(12_usize.next_multiple_of(groups));
        let low_latency = 1 + wanted % 2;
        let total = low_latency + 1 + wanted;
        Some(format!(
            "{groups} workers will share {shared} doorbells of the device and delay each other: set \
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
            let advice = usual.advice(groups).expect("groups that share get advice");
            assert!(advice.contains(&format!("{groups} workers")), "{advice}");
        }
    }

    #[test]
    fn settings_that_follow_the_advice_get_none() {
        for groups in [2, 5, 7, 8, 13, 16, 64] {
            let usual = Doorbells::of(|_| None);
            let advice = usual.advice(groups).expect("groups that share get advice");
            let advised = |name: &str| {
                let number = advice.split(name).nth(1).unwrap();
                number.split(' ').next().unwrap().to_owned()
            };
            let followed = Doorbells::of(|name| Some(advised(&format!("{name}="))));
            assert!(followed.total.is_multiple_of(2), "{advice}");
            assert_eq!(followed.advice(groups), None, "{advice}");
        }
    }

    #[test]
    fn settings_without_shared_doorbells_get_advice() {
        assert!(set("4", "4").advice(2).is_some());
        assert!(
            set("nonsense", "").advice(5).is_some(),
            "invalid values mean the defaults"
        );
    }
}
