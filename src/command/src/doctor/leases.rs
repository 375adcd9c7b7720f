//! Checks how short the leases of machines can be on this host.

use std::time::Duration;

use farm_core::config::Config;
use farm_core::fabric::shm::Lateness;
use farm_core::limits::MAX_LEASE_MS;

use super::{Finding, Level};

/// Time for which the lateness of a thread is measured.
pub(super) const MEASURED: Duration = Duration::from_millis(300);
/// A lease is to be at least this many times as long as the thread that renews it is late.
const MARGIN: u32 = 4;

/// Returns the finding about the leases of a configuration.
pub(super) fn finding(config: &Config, lateness: Option<Lateness>) -> Finding {
    let lease = config.lease();
    let Some(Lateness { goes_first, most }) = lateness else {
        let fact = "cannot measure how late threads are on this host: they cannot be started";
        return Finding::new(Level::Note, "leases", fact);
    };
    let priority = match goes_first {
        true => "with priority over other threads",
        false => "without priority over other threads",
    };
    let fact = format!(
        "a thread {priority} was at most {most:.1?} late in {MEASURED:?} while all cores were busy; leases have {lease:?} (durability.lease_ms)"
    );
    if most * MARGIN > lease {
        let least = (most * MARGIN).as_millis().min(MAX_LEASE_MS.into());
        return Finding::new(Level::Advice, "leases", fact)
            .advice(format!(
                "machines can be taken for lost although they run: set durability.lease_ms = {least} or more"
            ));
    }
    if !goes_first {
        return Finding::new(Level::Note, "leases", fact).advice(
            "the host may delay it further under load: allow real-time priority for this user (ulimit -r 1; LimitRTPRIO=1 in a systemd unit)",
        );
    }
    Finding::new(Level::Ok, "leases", fact)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_that_are_too_short_for_the_host_are_reported() {
        let text = "[cluster]\nname = \"c\"\n[durability]\nmode = \"memory\"\nlease_ms = 50\n[[machine]]\nid = 1\n";
        let config = Config::from_str(text, "a test").unwrap();
        let of = |goes_first, micros| {
            let most = Duration::from_micros(micros);
            finding(&config, Some(Lateness { goes_first, most }))
        };
        assert_eq!(of(true, 12_500).level, Level::Ok);
        let late = of(true, 20_000);
        assert_eq!(late.level, Level::Advice);
        assert!(late.advice.unwrap().contains("lease_ms = 80 or more"));
        assert_eq!(of(false, 100).level, Level::Note);
        assert_eq!(finding(&config, None).level, Level::Note);
    }
}
