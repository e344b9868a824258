//! Memory and handles of a process while it runs, and whether they grow.

use std::fs;
use std::io;
use std::time::Duration;

/// Growth of memory over the judged part of a life beyond which it counts as a leak, bytes.
///
/// Guess: allocators keep what a burst of joiners needed; a leak of 1 KiB per event of an hour of
/// events every two seconds is 2 MB, and one of a tensor per event is 400 MB.
pub(super) const MEMORY_GROWTH_MAX: f64 = 32.0 * 1024.0 * 1024.0;
/// The same for handles: two connections, each a socket, a file and a few wake-ups.
pub(super) const HANDLES_GROWTH_MAX: f64 = 16.0;
/// Most resident memory of one process, bytes: ten times what the default model needs.
pub(super) const MEMORY_MAX: u64 = 512 << 20;
/// Most handles of one process for each peer of the swarm.
pub(super) const HANDLES_PER_PEER: usize = 12;
/// Handles of a process that knows nobody, at most.
pub(super) const HANDLES_ALONE: usize = 64;
/// Fewest samples that a slope is drawn through.
const SAMPLES_MIN: usize = 20;
/// Most samples kept of one life: a day at one every two seconds.
const SAMPLES_MAX: usize = 43_200;

/// What a process held at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sample {
    /// Time since the process started.
    pub(super) age: Duration,
    /// Resident memory, bytes.
    pub(super) memory: u64,
    /// Open files, sockets and the like.
    pub(super) handles: usize,
}

impl Sample {
    /// What process `id` holds now; `None` when it is gone or the system does not tell.
    #[must_use]
    pub(super) fn take(id: u32, age: Duration) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
        let memory = resident(&status)?;
        let handles = fs::read_dir(format!("/proc/{id}/fd")).and_then(count).ok()?;
        Some(Self { age, memory, handles })
    }
}

fn count(folder: fs::ReadDir) -> io::Result<usize> {
    folder.into_iter().try_fold(0, |count, entry| entry.map(|_| count + 1))
}

/// `VmRSS` of a status file, bytes.
fn resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// What one life held, sample by sample.
#[derive(Clone, Debug, Default)]
pub(super) struct Growth {
    samples: Vec<Sample>,
}

/// How what a process holds grew over the judged part of its running.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slopes {
    /// Length of the judged part.
    pub span: Duration,
    /// Memory, bytes per hour.
    pub memory_per_hour: f64,
    /// Handles per hour.
    pub handles_per_hour: f64,
}

impl Slopes {
    fn over_span(&self, per_hour: f64) -> f64 {
        per_hour * self.span.as_secs_f64() / 3600.0
    }

    /// What is wrong with it, if something is.
    #[must_use]
    pub(super) fn complaint(&self) -> Option<String> {
        let memory = self.over_span(self.memory_per_hour);
        let handles = self.over_span(self.handles_per_hour);
        let span = self.span.as_secs();
        if memory > MEMORY_GROWTH_MAX {
            let mebibytes = memory / f64::from(1 << 20);
            return Some(format!("memory grew by {mebibytes:.1} MiB in {span} s after warm-up"));
        }
        (handles > HANDLES_GROWTH_MAX)
            .then(|| format!("handles grew by {handles:.0} in {span} s after warm-up"))
    }
}

impl Growth {
    /// Adds a sample, which is younger than none before.
    pub(super) fn push(&mut self, sample: Sample) {
        if self.samples.len() < SAMPLES_MAX {
            self.samples.push(sample);
        }
    }

    /// The newest sample.
    #[must_use]
    pub(super) fn last(&self) -> Option<Sample> {
        self.samples.last().copied()
    }

    /// The slopes of the least-squares lines through all samples older than `warm_up`; `None` for
    /// a life too short to tell.
    #[must_use]
    pub(super) fn slopes(&self, warm_up: Duration) -> Option<Slopes> {
        let judged: Vec<&Sample> = self.samples.iter().filter(|s| s.age >= warm_up).collect();
        let (first, last) = (judged.first()?, judged.last()?);
        if judged.len() < SAMPLES_MIN {
            return None;
        }
        let slope = |value: fn(&Sample) -> f64| {
            let points = judged.iter().map(|s| (s.age.as_secs_f64(), value(s)));
            3600.0 * least_squares(&points.collect::<Vec<_>>())
        };
        Some(Slopes {
            span: last.age.saturating_sub(first.age),
            memory_per_hour: slope(|sample| sample.memory as f64),
            handles_per_hour: slope(|sample| sample.handles as f64),
        })
    }
}

/// Slope of the line of least squares; 0 where all points are at one place.
fn least_squares(points: &[(f64, f64)]) -> f64 {
    let count = points.len() as f64;
    let mean = |value: fn(&(f64, f64)) -> f64| points.iter().map(value).sum::<f64>() / count;
    let (x, y) = (mean(|p| p.0), mean(|p| p.1));
    let across: f64 = points.iter().map(|p| (p.0 - x) * (p.1 - y)).sum();
    let along: f64 = points.iter().map(|p| (p.0 - x).powi(2)).sum();
    if along > 0.0 { across / along } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(memory: impl Fn(u64) -> u64, handles: impl Fn(u64) -> usize) -> Growth {
        let mut growth = Growth::default();
        for second in 0..600 {
            let age = Duration::from_secs(second);
            growth.push(Sample { age, memory: memory(second), handles: handles(second) });
        }
        growth
    }

    #[test]
    fn what_grows_after_warm_up_is_named() {
        let warm_up = Duration::from_secs(100);
        let steady = life(|s| if s < 60 { s << 20 } else { 60 << 20 }, |_| 30);
        assert_eq!(steady.slopes(warm_up).unwrap().complaint(), None);
        let leak = life(|s| (50 << 20) + (s << 17), |_| 30).slopes(warm_up).unwrap();
        assert!((leak.memory_per_hour / f64::from(1 << 20) - 450.0).abs() < 0.1, "{leak:?}");
        assert!(leak.complaint().unwrap().starts_with("memory grew by 62.4 MiB in 499 s"));
        let handles = life(|_| 1, |s| 30 + usize::try_from(s / 20).unwrap());
        let complaint = handles.slopes(warm_up).unwrap().complaint().unwrap();
        assert!(complaint.starts_with("handles grew by 25"), "{complaint}");
    }

    #[test]
    fn a_short_life_is_not_judged() {
        assert_eq!(life(|s| s << 24, |_| 1).slopes(Duration::from_secs(590)), None);
    }

    #[test]
    fn this_process_can_be_sampled() {
        let sample = Sample::take(std::process::id(), Duration::ZERO).unwrap();
        assert!(sample.memory > 1 << 20 && sample.handles >= 3, "{sample:?}");
        assert_eq!(resident("Name:\tx\nVmRSS:\t   12 kB\n"), Some(12 * 1024));
    }
}
