//! The origin of a report: program, command line, time, processor.

use std::fmt;
use std::time::{Instant, SystemTime};

use farm_core::config::host::cores_allowed;
use serde::Serialize;

use crate::micro::processor;

/// Version of the JSON of all reports. It increases when a field is renamed or removed, or changes its meaning. New
/// fields do not change it.
pub const SCHEMA_VERSION: u32 = 1;

/// The origin of a report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Header {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The command line, the program first.
    pub command: Vec<String>,
    /// When the command began, as in `2026-11-05T12:00:00Z`.
    pub started_at: String,
    /// Seconds from the start of the command to the report.
    pub took_s: f64,
    /// The commit of the program, if it is known.
    pub commit: Option<String>,
    /// Model of the host's processor.
    pub processor: String,
    /// Number of cores that the program may use.
    pub cores: usize,
}

/// When a command began.
#[derive(Clone, Copy, Debug)]
pub struct Started {
    at: SystemTime,
    since: Instant,
}

impl Started {
    /// Returns the current time as the start of a command.
    pub fn now() -> Self {
        Self {
            at: SystemTime::now(),
            since: Instant::now(),
        }
    }
}

impl Header {
    /// Creates the header of a report that is complete now.
    pub fn new(started: &Started, command: Vec<String>, commit: Option<&str>) -> Self {
        Self {
            schema_version: SCHEMA_VERSION,
            command,
            started_at: utc(started.at),
            took_s: started.since.elapsed().as_secs_f64(),
            commit: commit.map(str::to_owned),
            processor: processor(),
            cores: cores_allowed().len(),
        }
    }
}

impl fmt::Display for Header {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let commit = self.commit.as_deref().unwrap_or("of an unknown commit");
        writeln!(
            out,
            "{}, {} core(s); started {}, took {:.1} s; farm {commit}",
            self.processor, self.cores, self.started_at, self.took_s
        )
    }
}

/// Formats a time in UTC, as in RFC 3339.
fn utc(at: SystemTime) -> String {
    humantime::format_rfc3339_seconds(at).to_string()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn moments_are_written_in_utc() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (1_793_880_000, "2026-11-05T12:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn a_header_names_the_processor_and_the_command() {
        let command = vec!["farm".to_owned(), "ycsb".to_owned()];
        let header = Header::new(&Started::now(), command.clone(), Some("0123abc"));
        assert_eq!((header.schema_version, &header.command), (1, &command));
        assert!(header.cores > 0 && !header.processor.is_empty());
        let line = header.to_string();
        assert!(line.starts_with(&header.processor), "{line}");
        assert!(line.ends_with("farm 0123abc\n"), "{line}");
    }
}
