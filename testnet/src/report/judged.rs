//! What the harness itself measured of the final parameters of a run, beside what its peers say.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::consensus::Exact;
use crate::file::write_whole;
use crate::metrics::{Evaluate, Log, Stamp};

/// Name of the file inside the folder of a variant and seed.
pub const JUDGED_FILE: &str = "judged.json";

/// Quality of parameters on all held-out data.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Mean loss, nats.
    pub loss: f64,
    /// Share of right answers, in `[0, 1]`.
    pub accuracy: f64,
    /// Samples, or tokens.
    pub count: u64,
}

impl Measured {
    fn told(self) -> Evaluate {
        let Self { loss, accuracy, count } = self;
        Evaluate { loss, accuracy: Some(accuracy), count }
    }
}

/// What a peer had at a moment of a run: a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Waypoint {
    /// When it was written, seconds since the peer's first process started.
    pub time_s: f64,
    /// Local steps of the peer.
    pub step: u64,
    /// Samples that it had trained on.
    pub samples: u64,
    /// Its commits.
    pub clock: u64,
    /// The parameters.
    pub measured: Measured,
}

/// The parameters of a run, measured with the same data for every variant.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    /// Final parameters by peer; nothing for one that did not end in order.
    pub peers: Vec<Option<Measured>>,
    /// Parameters averaged over the last part of the run by peer; nothing for one that kept none.
    #[serde(default)]
    pub averaged: Vec<Option<Measured>>,
    /// Parameters on the way by peer, oldest first; none of a program that measures itself.
    #[serde(default)]
    pub way: Vec<Vec<Waypoint>>,
    /// The mean of the parameters of those that did.
    pub mean: Option<Measured>,
    /// Distance of the parameters to their mean; nothing for less than two.
    pub consensus: Option<Exact>,
}

impl Judged {
    /// Puts what was measured on the way in the place of the evaluations that the peer made itself, if
    /// it left something to measure.
    pub fn tell(&self, peer: usize, log: &mut Log) {
        let Some(way) = self.way.get(peer).filter(|way| !way.is_empty()) else { return };
        let told = way.iter().map(|point| {
            let Waypoint { time_s, step, samples, clock, measured } = *point;
            (Stamp { time_s, step, position: step, samples, clock }, measured.told())
        });
        log.evaluate = told.collect();
    }

    /// Writes it into the folder of a run.
    ///
    /// # Errors
    /// Whatever the system says.
    pub fn save(&self, folder: &Path) -> io::Result<()> {
        let text = serde_json::to_string_pretty(self).map_err(io::Error::other)?;
        write_whole(&folder.join(JUDGED_FILE), &(text + "\n"))
    }

    /// Reads it from the folder of a run; nothing if it was not measured.
    #[must_use]
    pub fn load(folder: &Path) -> Option<Self> {
        let text = std::fs::read_to_string(folder.join(JUDGED_FILE)).ok()?;
        serde_json::from_str(&text).ok()
    }
}
