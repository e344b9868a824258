//! What goes wrong: crashes, restarts, partitions, pauses, and how often.

use std::time::Duration;

use dnode_protocol::Time;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use serde::Deserialize;

use super::text::duration;

/// One fault, at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", tag = "kind")]
pub enum Fault {
    /// The process dies; its replica is gone.
    Crash {
        /// Index of the peer.
        peer: u32,
    },
    /// A dead process starts anew, with a new incarnation and a fresh replica.
    Restart {
        /// Index of the peer.
        peer: u32,
    },
    /// The process is told to leave; it goes [`LEAVE_GRACE`] later.
    Leave {
        /// Index of the peer.
        peer: u32,
    },
    /// The process does nothing for a while, as if swapped out.
    Pause {
        /// Index of the peer.
        peer: u32,
        /// For how long.
        #[serde(with = "duration")]
        time: Duration,
    },
    /// Messages from peers of one side to the others get lost.
    Cut {
        /// Indices of one side.
        side: Vec<u32>,
        /// Whether messages towards that side get lost as well.
        both: bool,
    },
    /// The first `percent` of the peers, by index, are cut off from the others.
    Split {
        /// Size of one side, percent of all peers.
        percent: u32,
        /// Whether messages towards that side get lost as well.
        both: bool,
    },
    /// All cuts are over.
    Heal,
}

impl Fault {
    /// The peers it names.
    pub(super) fn peers(&self) -> impl Iterator<Item = u32> + '_ {
        let (one, side): (Option<u32>, &[u32]) = match self {
            Self::Crash { peer }
            | Self::Restart { peer }
            | Self::Leave { peer }
            | Self::Pause { peer, .. } => (Some(*peer), &[]),
            Self::Cut { side, .. } => (None, side),
            Self::Split { .. } | Self::Heal => (None, &[]),
        };
        one.into_iter().chain(side.iter().copied())
    }
}

/// How long a leaving peer has to end what is open.
pub const LEAVE_GRACE: Duration = Duration::from_secs(5);

/// A fault of a scenario file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Scripted {
    /// When, after the start.
    #[serde(with = "duration")]
    pub at: Duration,
    /// What.
    #[serde(flatten)]
    pub fault: Fault,
}

/// How often faults happen, in faults per virtual minute and swarm; times are means.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FaultRates {
    /// Crashes per minute.
    pub crashes: f64,
    /// Probability that a crashed peer comes back.
    pub restart: f64,
    /// Mean time until it does.
    #[serde(with = "duration")]
    pub downtime: Duration,
    /// Graceful departures per minute.
    pub leaves: f64,
    /// Pauses per minute.
    pub pauses: f64,
    /// Mean length of a pause.
    #[serde(with = "duration")]
    pub pause_time: Duration,
    /// Partitions per minute; half of them one-way.
    pub cuts: f64,
    /// Mean length of a partition.
    #[serde(with = "duration")]
    pub cut_time: Duration,
}

impl Default for FaultRates {
    fn default() -> Self {
        Self {
            crashes: 0.0,
            restart: 1.0,
            downtime: Duration::from_secs(10),
            leaves: 0.0,
            pauses: 0.0,
            pause_time: Duration::from_secs(3),
            cuts: 0.0,
            cut_time: Duration::from_secs(10),
        }
    }
}

impl FaultRates {
    /// Draws the faults of the first `length` of a run of `peers` peers.
    #[must_use]
    pub fn draw(&self, peers: u32, length: Duration, rng: &mut ChaCha8Rng) -> Vec<(Time, Fault)> {
        let mut plan = Vec::new();
        for at in arrivals(self.crashes, length, rng) {
            let peer = rng.random_range(0..peers);
            plan.push((at, Fault::Crash { peer }));
            if rng.random_bool(self.restart) {
                plan.push((at + exponential(self.downtime, rng), Fault::Restart { peer }));
            }
        }
        for at in arrivals(self.leaves, length, rng) {
            plan.push((at, Fault::Leave { peer: rng.random_range(0..peers) }));
        }
        for at in arrivals(self.pauses, length, rng) {
            let time = exponential(self.pause_time, rng);
            plan.push((at, Fault::Pause { peer: rng.random_range(0..peers), time }));
        }
        for at in arrivals(self.cuts, length, rng) {
            let side = (0..peers).filter(|_| rng.random_bool(0.5)).collect();
            plan.push((at, Fault::Cut { side, both: rng.random_bool(0.5) }));
            plan.push((at + exponential(self.cut_time, rng), Fault::Heal));
        }
        plan
    }
}

/// A draw from the exponential distribution of this mean.
pub(super) fn exponential(mean: Duration, rng: &mut ChaCha8Rng) -> Duration {
    mean.mul_f64(-(1.0 - rng.random::<f64>()).ln())
}

fn arrivals(per_minute: f64, length: Duration, rng: &mut ChaCha8Rng) -> Vec<Time> {
    let mut times = Vec::new();
    if per_minute <= 0.0 {
        return times;
    }
    let mean = Duration::from_secs(60).div_f64(per_minute);
    let end = Time::ZERO + length;
    let mut at = Time::ZERO + exponential(mean, rng);
    while at < end {
        times.push(at);
        at = at + exponential(mean, rng);
    }
    times
}
