//! What happens to peers and when: they join, leave, crash, pause, are cut off or slowed.

use std::fmt;
use std::time::Duration;

use dnode_protocol::Time;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use serde::Deserialize;

use crate::file::duration;

/// Faults of a kind in a minute: more are none that could be told apart, and with less none comes in a year.
const RATE_MAX: f64 = 1000.0;
const RATE_MIN: f64 = 1e-6;

/// One thing that happens to a swarm.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", tag = "kind")]
pub enum Fault {
    /// The process of a peer starts for the first time; until then there is none.
    Join {
        /// Index of the peer.
        peer: u32,
    },
    /// The process dies; its replica is gone.
    Crash {
        /// Index of the peer.
        peer: u32,
    },
    /// A dead process starts anew, with a new incarnation.
    Restart {
        /// Index of the peer.
        peer: u32,
        /// What it has of its life before.
        #[serde(default)]
        with: Return,
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
    /// The machine gets slower: its work takes this many times as long as at the start.
    Slow {
        /// Index of the peer.
        peer: u32,
        /// How many times as long, 1 to [`SLOW_MAX`]; 1 ends it.
        factor: f64,
    },
    /// The peer's own line changes, each way, beside what `[link]` says; as at the start where
    /// nothing is named.
    Line {
        /// Index of the peer.
        peer: u32,
        /// What is added to each delay.
        #[serde(default, with = "duration")]
        delay: Duration,
        /// Share of what is sent that gets lost.
        #[serde(default)]
        loss: f64,
        /// Bits per second; 0 for that of the start.
        #[serde(default)]
        bandwidth: f64,
    },
    /// The peer is put behind a NAT of its own with an empty table, or in the open.
    Nat {
        /// Index of the peer.
        peer: u32,
        /// What kind.
        nat: Nat,
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
    Heal {},
}

impl Fault {
    /// Whether its numbers are in range.
    pub(super) fn is_legal(&self) -> bool {
        match self {
            Self::Slow { factor, .. } => (1.0..=SLOW_MAX).contains(factor),
            Self::Line { loss, bandwidth, .. } => {
                (0.0..=1.0).contains(loss) && *bandwidth >= 0.0 && bandwidth.is_finite()
            }
            Self::Split { percent, .. } => *percent <= 100,
            Self::Join { .. }
            | Self::Crash { .. }
            | Self::Restart { .. }
            | Self::Leave { .. }
            | Self::Pause { .. }
            | Self::Nat { .. }
            | Self::Cut { .. }
            | Self::Heal {} => true,
        }
    }

    /// The peers it names.
    pub(crate) fn peers(&self) -> impl Iterator<Item = u32> + '_ {
        let (one, side): (Option<u32>, &[u32]) = match self {
            Self::Join { peer }
            | Self::Slow { peer, .. }
            | Self::Line { peer, .. }
            | Self::Nat { peer, .. }
            | Self::Crash { peer }
            | Self::Restart { peer, .. }
            | Self::Leave { peer }
            | Self::Pause { peer, .. } => (Some(*peer), &[]),
            Self::Cut { side, .. } => (None, side),
            Self::Split { .. } | Self::Heal {} => (None, &[]),
        };
        one.into_iter().chain(side.iter().copied())
    }
}

/// Most times that a machine gets slower. Beyond it, it is paused rather than slow.
pub const SLOW_MAX: f64 = 20.0;

/// Kinds of NAT, by who may answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Nat {
    /// In the open.
    None,
    /// A port has one outer port for all remote ends.
    Cone,
    /// A port has another outer port for each remote end.
    Symmetric,
}

/// What a process that starts again has of its life before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Return {
    /// Its name; the replica is fresh.
    #[default]
    Name,
    /// Its name and its newest checkpoint.
    Checkpoint,
    /// Nothing: to the others it is a stranger.
    Nothing,
}

impl fmt::Display for Return {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Name => "with its name",
            Self::Checkpoint => "with its checkpoint",
            Self::Nothing => "as a stranger",
        })
    }
}

/// How long a leaving peer has to end what is open.
pub const LEAVE_GRACE: Duration = Duration::from_secs(5);

/// A fault of a scenario file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
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
    /// Probability that it comes back with its checkpoint.
    pub resume: f64,
    /// Probability that it comes back as a stranger.
    pub rename: f64,
    /// Graceful departures per minute.
    pub leaves: f64,
    /// Probability that a peer that left comes back.
    pub returns: f64,
    /// Peers that neither crash nor leave: the last ones by index.
    pub spare: u32,
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
            resume: 0.0,
            rename: 0.0,
            leaves: 0.0,
            returns: 0.0,
            spare: 0,
            pauses: 0.0,
            pause_time: Duration::from_secs(3),
            cuts: 0.0,
            cut_time: Duration::from_secs(10),
        }
    }
}

impl FaultRates {
    /// Whether faults come at a rate that can be drawn, and probabilities are some.
    pub(crate) fn are_legal(&self) -> bool {
        let Self { crashes, leaves, pauses, cuts, restart, returns, resume, rename, .. } = *self;
        let mut rates = [crashes, leaves, pauses, cuts].into_iter();
        let mut probabilities = [restart, returns, resume, rename].into_iter();
        rates.all(|rate| (0.0..=RATE_MAX).contains(&rate))
            && probabilities.all(|share| (0.0..=1.0).contains(&share))
    }

    /// Draws the faults of the first `length` of a run of `peers` peers.
    #[must_use]
    pub fn draw(&self, peers: u32, length: Duration, rng: &mut ChaCha8Rng) -> Vec<(Time, Fault)> {
        let mut plan = Vec::new();
        let mortal = peers.saturating_sub(self.spare).max(1);
        for at in arrivals(self.crashes, length, rng) {
            let peer = rng.random_range(0..mortal);
            plan.push((at, Fault::Crash { peer }));
            if rng.random_bool(self.restart) {
                plan.push((at + exponential(self.downtime, rng), self.restart(peer, rng)));
            }
        }
        for at in arrivals(self.leaves, length, rng) {
            let peer = rng.random_range(0..mortal);
            plan.push((at, Fault::Leave { peer }));
            if self.returns > 0.0 && rng.random_bool(self.returns) {
                let back = at + LEAVE_GRACE + exponential(self.downtime, rng);
                plan.push((back, self.restart(peer, rng)));
            }
        }
        for at in arrivals(self.pauses, length, rng) {
            let time = exponential(self.pause_time, rng);
            plan.push((at, Fault::Pause { peer: rng.random_range(0..peers), time }));
        }
        for at in arrivals(self.cuts, length, rng) {
            let side = (0..peers).filter(|_| rng.random_bool(0.5)).collect();
            plan.push((at, Fault::Cut { side, both: rng.random_bool(0.5) }));
            plan.push((at + exponential(self.cut_time, rng), Fault::Heal {}));
        }
        plan
    }

    /// A restart; what the peer comes back with is drawn where there is a choice.
    fn restart(&self, peer: u32, rng: &mut ChaCha8Rng) -> Fault {
        if self.resume + self.rename <= 0.0 {
            return Fault::Restart { peer, with: Return::Name };
        }
        let drawn: f64 = rng.random();
        let with = match drawn {
            drawn if drawn < self.resume => Return::Checkpoint,
            drawn if drawn < self.resume + self.rename => Return::Nothing,
            _ => Return::Name,
        };
        Fault::Restart { peer, with }
    }
}

/// A draw from the exponential distribution of this mean.
pub(crate) fn exponential(mean: Duration, rng: &mut ChaCha8Rng) -> Duration {
    mean.mul_f64(-(1.0 - rng.random::<f64>()).ln())
}

fn arrivals(per_minute: f64, length: Duration, rng: &mut ChaCha8Rng) -> Vec<Time> {
    let mut times = Vec::new();
    if per_minute < RATE_MIN {
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
