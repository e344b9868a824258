//! What disturbs the peers of an experiment.

use std::time::Duration;

use serde::Deserialize;

use super::Work;
use crate::file::duration;
use crate::learn::Misbehaviour;
use crate::scenario::Spread;
use crate::scenario::link::LinkModel;

/// What disturbs the peers; every variant of a condition is disturbed alike.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Condition {
    /// Its name, of letters, digits, `.` and `-`.
    pub name: String,
    /// What it is, in words, for the report.
    pub what: String,
    /// A peer that is slower than the others.
    pub slow: Option<Slow>,
    /// How many times as long the work of each peer takes, in the words of a scenario's `speed`; for
    /// the simulator.
    pub speed: Spread,
    /// Lines between the peers, in the words of a scenario's `[link]`; if there are none, loopback of
    /// processes, and the usual lines of the simulator.
    pub link: Option<LinkModel>,
    /// Peers that are cut off for a while; for the simulator, and rules that gossip.
    pub split: Option<Split>,
    /// A peer that joins later; for the simulator, and rules that gossip.
    pub newcomer: Option<Newcomer>,
    /// What is wrong with the last peer; for the simulator.
    pub misbehaviour: Option<Misbehaviour>,
    /// Peers of a rack, one after the other, which are processes of one machine: `link` is then
    /// between the racks, its bandwidth that of each pair of them; 0 for a machine for each peer.
    pub racks: usize,
    /// Peers that are killed and come back.
    pub churn: Option<Churn>,
    /// Names of the workloads that it is for; all if there are none.
    pub workloads: Vec<String>,
    /// Names of variants that are left out here; the report says so.
    pub without: Vec<String>,
    /// Settings of this condition, stronger than those of the workload: skewed data, bounds.
    #[serde(rename = "set")]
    pub settings: Vec<String>,
    /// By how much the samples of a run may differ from the budget, percent; one global batch is
    /// always allowed. For conditions in which peers cannot do exactly their steps.
    pub samples_within_percent: f64,
}

impl Default for Condition {
    fn default() -> Self {
        Self {
            name: String::new(),
            what: String::new(),
            slow: None,
            speed: Spread::NONE,
            link: None,
            split: None,
            newcomer: None,
            misbehaviour: None,
            racks: 0,
            churn: None,
            workloads: Vec::new(),
            without: Vec::new(),
            settings: Vec::new(),
            samples_within_percent: 0.0,
        }
    }
}

/// The first peers are cut off from the others for a while.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Split {
    /// How many.
    pub peers: u32,
    /// When it begins.
    #[serde(with = "duration")]
    pub at: Duration,
    /// How long it lasts.
    #[serde(with = "duration")]
    pub time: Duration,
    /// Rounds of the slowest peer after which the merged model is measured.
    pub rounds: u32,
}

/// The last peer joins later, and the others are compared with the same run without it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Newcomer {
    /// When it joins.
    #[serde(with = "duration")]
    pub at: Duration,
    /// After how many rounds of a peer of mean speed the others are measured, ascending.
    pub rounds: Vec<u32>,
}

/// A slow peer: the last one.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slow {
    /// How many times as long its work takes.
    pub factor: f64,
}

/// Waves in which peers are killed (SIGKILL) and started again.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Churn {
    /// Waves, evenly spread over the steps.
    pub waves: u8,
    /// Peers of a wave, percent of all, at least one.
    pub percent: u8,
    /// How long the killed ones stay away.
    #[serde(with = "duration")]
    pub away: Duration,
}

impl Condition {
    /// Whether the simulator alone can carry it out.
    pub(super) fn is_simulated(&self) -> bool {
        let measured = self.split.is_some() || self.newcomer.is_some();
        measured || self.misbehaviour.is_some() || self.speed != Spread::NONE
    }

    /// Whether the workload is trained under it.
    #[must_use]
    pub fn is_for(&self, work: &Work) -> bool {
        self.workloads.is_empty() || self.workloads.contains(&work.name)
    }
}
