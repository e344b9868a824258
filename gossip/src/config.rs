//! What can be set about gossip, each with meaning, unit, legal range, default and source.

use std::time::Duration;

use dnode_protocol::FragmentId;
use dnode_protocol::frame::Codec;
use serde::{Deserialize, Serialize};

use crate::{Balance, Interval, Pace, Schedule, Stride};

/// Most peers of whom something is remembered after they left.
pub(crate) const STRANGERS_MAX: usize = 1024;

/// The coarsest code of moments: with offers of four bits, averaged moments gained nothing
/// (docs/math.md, rule `pairwise`).
const MOMENTS_COARSEST: Codec = Codec::Int8;

/// How numbers travel between replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mixing {
    /// Both ends of an exchange move by one difference (AD-PSGD, Lian et al. 2018, arXiv
    /// 1710.06952, atomic and without roles): rules `gossip-outer` and `pairwise`.
    #[default]
    Exchange,
    /// Every contribution reaches everybody, and a replica is the sum of those it contains: rule
    /// `delta-set`.
    Set,
}

/// What is done about staleness before a bound is reached, and at the bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Exchanges between clocks that are apart weigh less; a commit waits at a bound for at most the
    /// gate time, then the laggard no longer counts.
    #[default]
    DownWeight,
    /// Full weight; a commit waits at a bound for as long as the laggard lives (SSP, Ho et al. 2013).
    Block,
    /// Full weight; an exchange with a lag above the snapshot bound and above 1 is refused, and a
    /// laggard at a bound stops to count at once.
    Drop,
}

/// What the two ends of an exchange weigh against each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Weighting {
    /// The same. Progress grows with the number of steps, so every sample counts once.
    #[default]
    Equal,
    /// As many samples as go into their commits, or into their local steps where
    /// [`Balance::Batch`] makes those differ: the weighted mean is kept instead of the mean.
    Samples,
}

/// The three bounds on staleness, in commits (B1, B2 and B3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// B1, progress gap: how far a peer's clock may run ahead of the slowest active peer it knows.
    /// 1 to 1000; default 4.
    pub progress_gap: u64,
    /// B2, snapshot age: how many commits old a snapshot may be when it is applied. 0 to 1000;
    /// default 1.
    pub snapshot_age: u64,
    /// B3, information age: how many commits old the newest contribution of any active peer inside a
    /// fragment may be. 1 to 1,000,000; `None` takes `4·⌈log₂ n⌉ + 4` for `n` known peers
    /// (the bound of rumour spreading, with margin).
    pub information_age: Option<u64>,
}

/// Configuration of [`crate::Gossip`].
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// How numbers travel.
    pub mixing: Mixing,
    /// How partners are chosen.
    pub schedule: Schedule,
    /// Codes of differences that the run allows, finest first; at least one.
    pub codecs: Vec<Codec>,
    /// What is done about staleness.
    pub policy: Policy,
    /// What two ends weigh.
    pub weighting: Weighting,
    /// How local steps follow speed.
    pub pace: Pace,
    /// How many local steps lie between two rounds.
    pub interval: Interval,
    /// Shortest local step whose end no exchange waits for, because the trainer shows its weights beforehand.
    /// Default zero: exchanges wait for no step.
    pub shown_from: Duration,
    /// Whether replicas that are unlike all others are weighed down and left out. Default: yes.
    pub guard: bool,
    /// The first fragment that holds moments of an optimizer and no parameters; all behind it do, too.
    /// The guard lets moments be further apart, and draws no conclusion from them. Default: none.
    pub first_of_moments: Option<FragmentId>,
    /// Part of a hash of the name of this peer's rack; 0 without one.
    pub rack: u64,
    /// The staleness bounds.
    pub bounds: Bounds,
    /// Longest time a commit is held back by a bound before the laggards are demoted. Default `None`:
    /// two rounds at the measured step time, from 2 s to 60 s.
    pub gate_timeout: Option<Duration>,
    /// How often neighbours that were told nothing for half of it are spoken to, so the longest
    /// silence is one and a half. Default 500 ms (guess).
    pub heartbeat: Duration,
    /// Shortest time between two announcements of the clock after commits. Default 20 ms: a commit
    /// of a small model takes less, and a bound needs the news no faster than a round trip.
    pub announce_min: Duration,
    /// Silence after which a neighbour is suspected whatever others say of it, and asked before its
    /// silences were measured. Default 5 s: ten heartbeats.
    pub suspect_after: Duration,
    /// Shortest silence after which a measured neighbour is asked whether it lives, when no commit
    /// waits for it. Default 1 s: two heartbeats.
    pub suspect_min: Duration,
    /// Silence after which a suspected neighbour is disconnected. Default 20 s.
    pub forget_after: Duration,
    /// Most exchanges this peer has proposed and not finished; how many of them are open follows
    /// from how long they take. Default 16.
    pub own_max: usize,
    /// Most exchanges this peer answers at a time. Default 16.
    pub answered_max: usize,
    /// Most newcomers this peer gives its fragments to at a time. Default 2.
    pub newcomers_max: usize,
    /// Most snapshots this peer reads for newcomers at a time. Default 2.
    pub snapshots_max: usize,
    /// Most snapshots this peer asks for at a time, and that one newcomer may wait for here; how many
    /// it asks for follows from how long they take. Default 4.
    pub pulls_open_max: usize,
    /// Most further partners asked for one fragment in one round after BUSY. Default 3.
    pub redraws_max: usize,
    /// Shortest lease. Default 2 s.
    pub lease_min: Duration,
    /// Lease before an exchange with that partner was measured. Default 5 s.
    pub lease_initial: Duration,
    /// Longest lease. Default 30 s.
    pub lease_max: Duration,
    /// How long the two ends of an undecided exchange keep asking each other. Default 120 s.
    pub journal_window: Duration,
    /// First back-off of a partner that stalled or offended; doubles each time. Default 1 s.
    pub back_off_min: Duration,
    /// Longest back-off. Default 10 min.
    pub back_off_max: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            mixing: Mixing::default(),
            schedule: Schedule::default(),
            codecs: vec![Codec::F32],
            policy: Policy::default(),
            weighting: Weighting::default(),
            pace: Pace::default(),
            interval: Interval::Fixed(25),
            shown_from: Duration::ZERO,
            guard: true,
            first_of_moments: None,
            rack: 0,
            bounds: Bounds { progress_gap: 4, snapshot_age: 1, information_age: None },
            gate_timeout: None,
            heartbeat: Duration::from_millis(500),
            announce_min: Duration::from_millis(20),
            suspect_after: Duration::from_secs(5),
            suspect_min: Duration::from_secs(1),
            forget_after: Duration::from_secs(20),
            own_max: 16,
            answered_max: 16,
            newcomers_max: 2,
            snapshots_max: 2,
            pulls_open_max: 4,
            redraws_max: 3,
            lease_min: Duration::from_secs(2),
            lease_initial: Duration::from_secs(5),
            lease_max: Duration::from_secs(30),
            journal_window: Duration::from_secs(120),
            back_off_min: Duration::from_secs(1),
            back_off_max: Duration::from_secs(600),
        }
    }
}

/// A setting outside its legal range; the person who configures is at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("configure gossip: {key} is {value}, must be {range}")]
pub struct ConfigError {
    /// The setting.
    pub key: &'static str,
    /// Its value.
    pub value: String,
    /// What is legal.
    pub range: &'static str,
}

/// How moments are written where weights are written in `codec`.
pub(crate) fn of_moments(codec: Codec) -> Codec {
    let coarse = codec.bits_per_element() < MOMENTS_COARSEST.bits_per_element();
    if coarse { MOMENTS_COARSEST } else { codec }
}

impl Config {
    /// The stride of a peer of mean speed.
    pub(crate) fn stride(&self) -> Stride {
        let stride = Stride::new(self.pace.local_steps, 0);
        if self.mixing == Mixing::Set { stride.of_contributions() } else { stride }
    }

    /// Checks every range and relation.
    ///
    /// # Errors
    /// [`ConfigError`] names the first setting out of range.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.check_counts()?;
        self.check_order()?;
        if self.gate_timeout.is_some_and(|gate| gate.is_zero()) {
            let (key, range) = ("gate_timeout", "longer than 0s");
            return Err(ConfigError { key, value: "0s".to_owned(), range });
        }
        if self.rack != 0 && self.mixing != Mixing::Exchange {
            let (key, range) = ("rack", "0 in runs of contributions");
            return Err(ConfigError { key, value: self.rack.to_string(), range });
        }
        let by_samples = self.mixing == Mixing::Exchange && self.weighting == Weighting::Samples;
        if self.pace.balance == Balance::Batch && !by_samples {
            let (key, range) = ("balance", "steps or off where weights do not follow samples");
            return Err(ConfigError { key, value: "batch".to_owned(), range });
        }
        let finer = |pair: &[Codec]| pair[0].bits_per_element() > pair[1].bits_per_element();
        if self.codecs.is_empty() || !self.codecs.windows(2).all(finer) {
            let (key, range) = ("codecs", "one code or more, finest first");
            return Err(ConfigError { key, value: format!("{:?}", self.codecs), range });
        }
        Ok(())
    }

    /// How the numbers of `fragment` are written where a link's exchanges are written in `codec`:
    /// moments never coarser than [`MOMENTS_COARSEST`].
    pub(crate) fn codec_of(&self, fragment: FragmentId, codec: Codec) -> Codec {
        let moments = self.first_of_moments.is_some_and(|first| fragment >= first);
        if moments { of_moments(codec) } else { codec }
    }

    /// Bound B3 in commits where so many peers are known: as configured, or `4·⌈log₂ n⌉ + 4`.
    pub(crate) fn information_age_bound(&self, peers: usize) -> u64 {
        let peers = peers as u64;
        let usual = || 4 * u64::from(peers.next_power_of_two().ilog2()) + 4;
        self.bounds.information_age.unwrap_or_else(usual)
    }

    fn check_counts(&self) -> Result<(), ConfigError> {
        let bounds = &self.bounds;
        let age = bounds.information_age.unwrap_or(1);
        let counts = [
            ("progress_gap", bounds.progress_gap, 1..=1000, "1 to 1000 commits"),
            ("snapshot_age", bounds.snapshot_age, 0..=1000, "0 to 1000 commits"),
            ("information_age", age, 1..=1_000_000, "1 to 1000000 commits"),
            ("own_max", self.own_max as u64, 1..=64, "1 to 64 exchanges"),
            ("answered_max", self.answered_max as u64, 1..=64, "1 to 64 exchanges"),
            ("newcomers_max", self.newcomers_max as u64, 1..=64, "1 to 64 peers"),
            ("snapshots_max", self.snapshots_max as u64, 1..=64, "1 to 64 snapshots"),
            ("pulls_open_max", self.pulls_open_max as u64, 1..=64, "1 to 64 snapshots"),
            ("local_steps", self.pace.local_steps, 1..=1_000_000, "1 to 1000000 steps"),
        ];
        for (key, value, legal, range) in counts {
            if !legal.contains(&value) {
                return Err(ConfigError { key, value: value.to_string(), range });
            }
        }
        Ok(())
    }

    fn check_order(&self) -> Result<(), ConfigError> {
        let pairs = [
            ("heartbeat", self.heartbeat, self.suspect_min, "shorter than suspect_min"),
            ("suspect_min", self.suspect_min, self.suspect_after, "shorter than suspect_after"),
            ("suspect_after", self.suspect_after, self.forget_after, "shorter than forget_after"),
            ("lease_min", self.lease_min, self.lease_max, "shorter than lease_max"),
            ("lease_max", self.lease_max, self.journal_window, "shorter than journal_window"),
            ("back_off_min", self.back_off_min, self.back_off_max, "shorter than back_off_max"),
        ];
        for (key, shorter, longer, range) in pairs {
            if shorter.is_zero() || shorter >= longer {
                return Err(ConfigError { key, value: format!("{shorter:?}"), range });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_legal() {
        assert_eq!(Config::default().check(), Ok(()));
    }

    #[test]
    fn moments_are_never_written_with_less_than_eight_bits() {
        let config = Config { first_of_moments: Some(FragmentId(4)), ..Config::default() };
        assert_eq!(config.codec_of(FragmentId(3), Codec::Int4), Codec::Int4);
        assert_eq!(config.codec_of(FragmentId(4), Codec::Int4), Codec::Int8);
        assert_eq!(config.codec_of(FragmentId(5), Codec::Sign), Codec::Int8);
        assert_eq!(config.codec_of(FragmentId(4), Codec::Bf16), Codec::Bf16);
        assert_eq!(Config::default().codec_of(FragmentId(4), Codec::Int4), Codec::Int4);
    }

    #[test]
    fn a_value_out_of_range_is_named_with_its_range() {
        let mut config = Config::default();
        config.bounds.progress_gap = 0;
        let text = config.check().unwrap_err().to_string();
        assert!(text.contains("progress_gap is 0, must be 1 to 1000"), "{text}");
    }
}
