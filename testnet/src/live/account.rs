//! What a scenario run through a scenario did and found: journal as it happens, summary at the end.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use tokio::time::Instant;

use super::lives::Lives;
use super::recovery::{Aftermath, Recovery, aftermath};

/// Name of the journal in the folder of a scenario run.
const JOURNAL_FILE: &str = "journal.txt";
/// Most findings kept; a scenario run that goes on after more says only how many there were.
const FINDINGS_MAX: usize = 100;

/// Something that no fault excuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// When, after the start of the scenario run.
    pub at: Duration,
    /// Index of the peer.
    pub peer: u32,
    /// Which of its lives, from 1.
    pub life: u32,
    /// What.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.at.as_secs_f64();
        write!(formatter, "at {at:.1} s peer {} (life {}): {}", self.peer, self.life, self.what)
    }
}

/// The longest time without something, and whose it was.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Gap {
    /// How long.
    pub time: Duration,
    /// When it ended, after the start of the scenario run.
    pub at: Duration,
    /// Index of the peer.
    pub peer: u32,
}

impl Gap {
    /// Keeps the longer one.
    pub(super) fn longest(&mut self, other: Self) {
        if other.time > self.time {
            *self = other;
        }
    }
}

impl fmt::Display for Gap {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (time, at) = (self.time.as_secs_f64(), self.at.as_secs_f64());
        write!(formatter, "{time:.1} s (peer {} at {at:.0} s)", self.peer)
    }
}

/// Everything a scenario run did and found.
#[derive(Debug)]
pub struct Account {
    begun: Instant,
    journal: File,
    /// When faults struck, seconds after the start; and which of them were kills, of whom.
    faults_s: Vec<f64>,
    kills_s: Vec<(u32, f64)>,
    /// Reports of training, life by running.
    recoveries: Vec<Recovery>,
    /// How often each kind of fault struck.
    pub faults: BTreeMap<String, u64>,
    /// Faults that could not strike, by reason.
    pub skipped: BTreeMap<String, u64>,
    /// Events that the peers reported, by name.
    pub events: BTreeMap<String, u64>,
    /// Longest time between two reports of training of a live peer.
    pub still: Gap,
    /// Longest time from the start of a process to its first report of training.
    pub arrival: Gap,
    /// Longest time from a request to leave to the end of the process.
    pub departure: Gap,
    /// Local steps reported, all lives.
    pub steps: u64,
    /// Highest clock reported, commits.
    pub clock: u64,
    /// Processes started.
    pub starts: u64,
    /// What processes held and used.
    pub lives: Lives,
    /// Held-out loss by peer at the end, nats.
    pub losses: Vec<(u32, f64)>,
    /// Consensus distance at the end over the norm of the mean.
    pub distance: Option<f64>,
    /// What no fault excuses.
    pub findings: Vec<Finding>,
    /// Findings beyond those that are kept.
    pub more_findings: u64,
}

impl Account {
    /// An empty account that begins now; its journal is in `directory`.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn begin(directory: &Path) -> io::Result<Self> {
        Ok(Self {
            begun: Instant::now(),
            journal: File::create(directory.join(JOURNAL_FILE))?,
            faults_s: Vec::new(),
            kills_s: Vec::new(),
            recoveries: Vec::new(),
            faults: BTreeMap::new(),
            skipped: BTreeMap::new(),
            events: BTreeMap::new(),
            still: Gap::default(),
            arrival: Gap::default(),
            departure: Gap::default(),
            steps: 0,
            clock: 0,
            starts: 0,
            lives: Lives::default(),
            losses: Vec::new(),
            distance: None,
            findings: Vec::new(),
            more_findings: 0,
        })
    }

    /// Time since the scenario run began.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Adds a line to the journal.
    pub(super) fn note(&mut self, what: &str) -> io::Result<()> {
        writeln!(self.journal, "{:9.3} {what}", self.begun.elapsed().as_secs_f64())
    }

    /// A fault of this kind struck.
    pub(super) fn struck(&mut self, kind: &str, what: &str) -> io::Result<()> {
        *self.faults.entry(kind.to_owned()).or_default() += 1;
        self.faults_s.push(self.begun.elapsed().as_secs_f64());
        self.note(what)
    }

    /// A peer was killed.
    pub(super) fn killed(&mut self, peer: u32) {
        self.kills_s.push((peer, self.begun.elapsed().as_secs_f64()));
    }

    /// A life has ended.
    pub(super) fn keep(&mut self, recovery: Recovery) {
        self.recoveries.push(recovery);
    }

    /// What kills did to those that lived on; of the first peer alone, or of all others.
    #[must_use]
    pub fn aftermath(&self, first: bool) -> Aftermath {
        let kills = self.kills_s.iter().filter(|(peer, _)| (*peer == 0) == first);
        let kills: Vec<f64> = kills.map(|(_, at)| *at).collect();
        aftermath(&kills, &self.faults_s, &self.recoveries)
    }

    /// A fault could not strike.
    pub(super) fn skip(&mut self, reason: &str, what: &str) -> io::Result<()> {
        *self.skipped.entry(reason.to_owned()).or_default() += 1;
        self.note(&format!("skipped: {what}: {reason}"))
    }

    /// A finding.
    pub(super) fn find(&mut self, peer: u32, life: u32, what: String) -> io::Result<()> {
        let finding = Finding { at: self.begun.elapsed(), peer, life, what };
        self.note(&format!("FOUND {finding}"))?;
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(finding);
        } else {
            self.more_findings += 1;
        }
        Ok(())
    }
}

/// `name 3, other 4`, or what is said when there are none.
fn counts(counts: &BTreeMap<String, u64>, none: &str) -> String {
    let words: Vec<String> = counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
    if words.is_empty() { none.to_owned() } else { words.join(", ") }
}

impl fmt::Display for Account {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.begun.elapsed().as_secs_f64();
        writeln!(formatter, "scenario run of {seconds:.0} s, {} processes started", self.starts)?;
        writeln!(formatter, "faults: {}", counts(&self.faults, "none"))?;
        writeln!(formatter, "faults left out: {}", counts(&self.skipped, "none"))?;
        writeln!(formatter, "progress: {} local steps, clock {}", self.steps, self.clock)?;
        writeln!(formatter, "longest without progress: {}", self.still)?;
        writeln!(formatter, "longest from start to training: {}", self.arrival)?;
        writeln!(formatter, "longest departure: {}", self.departure)?;
        writeln!(formatter, "events: {}", counts(&self.events, "none"))?;
        for (of, first) in [("the first peer", true), ("others", false)] {
            let aftermath = self.aftermath(first);
            if aftermath.kills > 0 {
                writeln!(formatter, "of {of}: {aftermath}")?;
            }
        }
        write!(formatter, "{}", self.lives)?;
        if !self.losses.is_empty() {
            let losses = self.losses.iter().map(|(_, loss)| *loss);
            let (least, most) = losses.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), loss| {
                (a.min(loss), b.max(loss))
            });
            let count = self.losses.len();
            writeln!(formatter, "held-out loss of {count} peers: {least:.4} to {most:.4} nats")?;
        }
        if let Some(distance) = self.distance {
            writeln!(formatter, "consensus distance over the norm of the mean: {distance:.4}")?;
        }
        for finding in &self.findings {
            writeln!(formatter, "FOUND {finding}")?;
        }
        match self.findings.len() as u64 + self.more_findings {
            0 => writeln!(formatter, "nothing found"),
            count => writeln!(formatter, "{count} findings"),
        }
    }
}
