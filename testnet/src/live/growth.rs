//! Memory, handles and processor time of a process while it runs, and whether what it holds grows.

use std::fs;
use std::io;
use std::time::Duration;

use super::lives::Life;

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
/// Clock ticks of `/proc` in a second, on every Linux that Rust runs on.
const TICKS: u32 = 100;

/// What a process held at one moment, and had used until then.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sample {
    /// Time since the process started.
    pub(super) age: Duration,
    /// Resident memory, bytes.
    pub(super) memory: u64,
    /// Open files, sockets and the like.
    pub(super) handles: usize,
    /// Processor time of all its threads.
    pub(super) cpu: Duration,
}

impl Sample {
    /// What process `id` holds now; `None` when it is gone or the system does not tell.
    #[must_use]
    pub(super) fn take(id: u32, age: Duration) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
        let memory = resident(&status)?;
        let handles = fs::read_dir(format!("/proc/{id}/fd")).and_then(count).ok()?;
        let cpu = cpu(&fs::read_to_string(format!("/proc/{id}/stat")).ok()?)?;
        Some(Self { age, memory, handles, cpu })
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

/// Processor time, of user and system, in a stat file.
fn cpu(stat: &str) -> Option<Duration> {
    // They are fields 14 and 15; field 2 is a name, which may have blanks, and ends with a bracket.
    let (_, behind) = stat.rsplit_once(')')?;
    let mut fields = behind.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u32>().ok();
    Some((Duration::from_secs(1) / TICKS).saturating_mul(ticks()?.saturating_add(ticks()?)))
}

/// What one life held and used, sample by sample.
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

    /// What the `number`-th life of `peer` held and used; `None` when nobody has looked at it.
    #[must_use]
    pub(super) fn life(&self, (peer, number): (u32, u32), warm_up: Duration) -> Option<Life> {
        let (first, last) = (self.samples.first()?, self.samples.last()?);
        let memory_most = self.samples.iter().map(|sample| sample.memory).max()?;
        let handles_most = self.samples.iter().map(|sample| sample.handles).max()?;
        Some(Life {
            peer,
            number,
            age: last.age,
            memory: [first.memory, last.memory, memory_most],
            handles: [last.handles, handles_most],
            cpu: last.cpu,
            slopes: self.slopes(warm_up),
        })
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
            let (memory, handles) = (memory(second), handles(second));
            growth.push(Sample { age, memory, handles, cpu: age / 4 });
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
        assert_eq!(Growth::default().life((0, 1), Duration::ZERO), None);
    }

    #[test]
    fn a_life_has_what_it_held_first_last_and_at_most() {
        let growth = life(|s| if s == 300 { 900 } else { 100 + s }, |s| if s < 9 { 8 } else { 7 });
        let life = growth.life((3, 2), Duration::from_secs(100)).unwrap();
        assert_eq!((life.peer, life.number, life.age), (3, 2, Duration::from_secs(599)));
        assert_eq!((life.memory, life.handles), ([100, 699, 900], [7, 8]));
        assert_eq!(life.cpu, Duration::from_millis(149_750));
        assert_eq!(life.slopes, growth.slopes(Duration::from_secs(100)));
    }

    #[test]
    fn this_process_can_be_sampled() {
        let sample = Sample::take(std::process::id(), Duration::ZERO).unwrap();
        assert!(sample.memory > 1 << 20 && sample.handles >= 3, "{sample:?}");
        assert_eq!(resident("Name:\tx\nVmRSS:\t   12 kB\n"), Some(12 * 1024));
        let stat = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 125 50 0 0";
        assert_eq!(cpu(stat), Some(Duration::from_millis(1_750)));
        assert_eq!(cpu("7 (a) S 1"), None);
    }
}
