//! The conditions of a measurement: cores, pinning, pages, and how much other processes disturbed it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use farm_core::config::host::cores_allowed;
use farm_core::config::rounded_size;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;

/// The conditions of a measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Conditions {
    /// Model of the processor, as the system names it.
    pub processor: String,
    /// Number of cores that this process may use.
    pub cores: usize,
    /// Cores that the measuring threads were pinned to; empty if they were not.
    pub pinned: Vec<u32>,
    /// Why the measuring threads were not pinned.
    pub not_pinned: Option<String>,
    /// Directory of the shared memory.
    pub memory_dir: PathBuf,
    /// Size of the pages of the shared memory, in bytes.
    pub page_bytes: u64,
    /// Number of time slices of each measurement; the median counts.
    pub repeats: usize,
    /// Duration of one time slice, in seconds.
    pub slice_s: f64,
    /// Duration of the whole benchmark, in seconds.
    pub took_s: f64,
    /// Share of `took_s` in which the thread that runs the benchmark was ready to run, but other threads had its core;
    /// `None` if the system does not report it. If the share is large, the figures are worthless.
    pub waited_share: Option<f64>,
}

impl Conditions {
    /// Returns the conditions that are known before the measurement.
    pub fn before(memory_dir: &Path, page_bytes: u64, repeats: usize, slice: Duration) -> Self {
        Self {
            processor: processor(),
            cores: cores_allowed().len(),
            memory_dir: memory_dir.to_owned(),
            page_bytes,
            repeats,
            slice_s: slice.as_secs_f64(),
            ..Self::default()
        }
    }
}

impl fmt::Display for Conditions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pinning = match (&self.not_pinned, self.pinned.as_slice()) {
            (Some(why), _) => format!("not pinned: {why}"),
            (None, cores) => format!("pinned to {cores:?}"),
        };
        writeln!(out, "  {}, {} cores, {pinning}", self.processor, self.cores)?;
        writeln!(
            out,
            "  memory in {}, pages of {}; median of {} slices of {:.0} ms, {:.0} s in all",
            self.memory_dir.display(),
            rounded_size(self.page_bytes),
            self.repeats,
            self.slice_s * 1e3,
            self.took_s
        )?;
        match self.waited_share {
            Some(share) if share > 0.01 => {
                writeln!(
                    out,
                    "  disturbed: other threads had the core for {:.0} % of the time",
                    share * 100.0
                )
            }
            _ => Ok(()),
        }
    }
}

/// Measures the duration of a benchmark, and how long the calling thread waited for a core.
pub(super) struct Watch {
    began: Instant,
    waited_ns: Option<u64>,
}

impl Watch {
    pub(super) fn begin() -> Self {
        Self {
            began: Instant::now(),
            waited_ns: waited_ns(),
        }
    }

    /// Stores both results in the conditions.
    pub(super) fn end(&self, conditions: &mut Conditions) {
        let took = self.began.elapsed();
        conditions.took_s = took.as_secs_f64();
        let waited = self.waited_ns.zip(waited_ns());
        conditions.waited_share =
            waited.map(|(before, after)| (after - before) as f64 / took.as_nanos() as f64);
    }
}

/// Repeats a chunk of operations for at least the duration of a slice, and returns the operations per second of the
/// core. `chunk` returns the number of its operations. Time in which other threads had the core is subtracted, if the
/// system reports it. So a busy host lowers the rate only by its effect on caches and memory.
pub(super) fn core_rate_of<E>(
    slice: Duration,
    mut chunk: impl FnMut() -> Result<u64, E>,
) -> Result<f64, E> {
    let waited_before = waited_ns();
    let began = Instant::now();
    let mut done = 0;
    loop {
        done += chunk()?;
        let elapsed = began.elapsed();
        if elapsed < slice {
            continue;
        }
        let waited = waited_before.zip(waited_ns());
        let waited = waited.map_or(0, |(before, after)| after - before);
        let ran = elapsed.saturating_sub(Duration::from_nanos(waited));
        if ran >= slice / 4 {
            return Ok(done as f64 / ran.as_secs_f64());
        }
    }
}

/// Returns the nanoseconds in which the calling thread was ready to run but did not run, since it was started; `None`
/// if the system does not report them.
fn waited_ns() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().nth(1)?.parse().ok()
}

/// Pins the calling thread to one core, until this value is dropped.
pub(super) struct Pin(CpuSet);

impl Pin {
    pub(super) fn to(core: u32) -> Result<Self> {
        let refused = || format!("cannot pin to core {core}");
        let before = sched_getaffinity(None).with_context(refused)?;
        let mut only = CpuSet::new();
        only.set(core as usize);
        sched_setaffinity(None, &only).with_context(refused)?;
        Ok(Self(before))
    }

    /// Pins the calling thread to `core`, if there is one.
    pub(super) fn to_any(core: Option<u32>) -> Result<Option<Self>> {
        core.map(Self::to).transpose()
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        // The thread was allowed on these cores before. If none of them is online any more, it stays pinned.
        let _ = sched_setaffinity(None, &self.0);
    }
}

/// Returns the cores for two processes: those of `asked` if they are two, otherwise the first two allowed cores. If
/// fewer than two cores are allowed, returns the reason why there are none.
pub(super) fn two_cores(asked: &[u32]) -> Result<[u32; 2], String> {
    match (asked, cores_allowed().as_slice()) {
        (&[first, second], _) | (_, &[first, second, ..]) => Ok([first, second]),
        (_, few) => Err(format!(
            "only {} core(s) are available for two processes",
            few.len()
        )),
    }
}

/// Returns the model of the host's processor.
pub(crate) fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    processor_of(&text)
}

/// Returns the model of the processor in the text of `/proc/cpuinfo`. On aarch64, the text contains the numbers of the
/// implementer and of the part instead of a name.
fn processor_of(cpuinfo: &str) -> String {
    let field = |name: &str| {
        cpuinfo.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == name).then(|| value.trim())
        })
    };
    if let Some(name) = field("model name").or_else(|| field("Model")) {
        return name.to_owned();
    }
    let (Some(implementer), Some(part)) = (field("CPU implementer"), field("CPU part")) else {
        return format!("unknown {} processor", std::env::consts::ARCH);
    };
    let name = match (implementer, part) {
        ("0x41", "0xd08") => "Arm Cortex-A72",
        ("0x41", "0xd0c") => "Arm Neoverse N1",
        ("0x41", "0xd40") => "Arm Neoverse V1",
        ("0x41", "0xd49") => "Arm Neoverse N2",
        ("0x41", "0xd4f") => "Arm Neoverse V2",
        ("0xc0", "0xac3") => "Ampere-1",
        _ => return format!("Arm processor, implementer {implementer}, part {part}"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::measure::rate_of;
    use super::*;

    #[test]
    fn processors_are_named_on_every_architecture() {
        let intel = "processor\t: 0\nmodel\t\t: 143\nmodel name\t: Intel(R) Xeon(R) @ 2.60GHz\n";
        assert_eq!(processor_of(intel), "Intel(R) Xeon(R) @ 2.60GHz");
        let arm = "processor\t: 0\nBogoMIPS\t: 50.00\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n";
        assert_eq!(processor_of(arm), "Arm Neoverse N1");
        let other = arm.replace("0xd0c", "0xfff");
        assert_eq!(
            processor_of(&other),
            "Arm processor, implementer 0x41, part 0xfff"
        );
        let raspberry = format!("{arm}\nModel\t\t: Raspberry Pi 5 Model B Rev 1.0\n");
        assert_eq!(processor_of(&raspberry), "Raspberry Pi 5 Model B Rev 1.0");
        assert!(processor_of("").starts_with("unknown "));
        assert!(!processor().is_empty());
    }

    #[test]
    fn pinning_ends_with_the_pin() {
        let before = cores_allowed();
        let core = *before.last().expect("there is a core");
        let pin = Pin::to(core).unwrap();
        assert_eq!(cores_allowed(), [core]);
        assert!(two_cores(&[]).unwrap_err().contains("only 1 core"));
        drop(pin);
        assert_eq!(cores_allowed(), before);
    }

    #[test]
    fn time_that_others_have_the_core_does_not_count() {
        let _pin = Pin::to(*cores_allowed().last().expect("there is a core")).unwrap();
        let stop = std::sync::atomic::AtomicBool::new(false);
        let rate = |core_only: bool| {
            let chunk = || {
                Ok::<u64, anyhow::Error>(
                    (0..1000).fold(1, |all, i| std::hint::black_box(all | i)) & 1,
                )
            };
            let slice = Duration::from_millis(100);
            match core_only {
                true => core_rate_of(slice, chunk),
                false => rate_of(slice, chunk),
            }
        };
        std::thread::scope(|scope| {
            // Threads inherit the pin, so each of these takes its share of the one core.
            for _ in 0..3 {
                scope.spawn(|| {
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        std::hint::spin_loop()
                    }
                });
            }
            let (core, wall) = (rate(true).unwrap(), rate(false).unwrap());
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(waited_ns().is_none() || core > 1.5 * wall, "{core} {wall}");
        });
    }

    #[test]
    fn a_core_that_is_not_there_is_named() {
        let refused = Pin::to(1000).err().unwrap().to_string();
        assert!(refused.contains("core 1000"), "{refused}");
    }
}
