//! Scenario files: how many peers, on which lines, and what happens to them when.
//!
//! ```text
//! testnet/scenarios/*.toml ── Scenario ──┬─▶ sim: virtual peers in virtual time
//!                                        ├─▶ live: real processes, killed, paused, started
//!                                        └─▶ network ─▶ wan: the lines between real processes
//! ```
//! One vocabulary for all; what one of them cannot carry out it names in one line ([`Reader`]).

pub mod fault;
pub mod link;
pub mod network;
pub mod reader;
pub mod rules;
pub mod spread;

use std::collections::BTreeSet;
use std::time::Duration;

use dnode_gossip::{Bounds, Config, Interval, Pace};
use dnode_protocol::FragmentId;
use serde::Deserialize;

use self::fault::{Fault, FaultRates, Scripted};
use self::link::LinkModel;
use crate::file::{ReadError, check, duration};

pub use self::reader::Reader;
pub use self::rules::{MixingRule, RuleSettings};
pub use self::spread::{Class, Spread};

/// A scenario; every field has a default, so a file names only what it changes.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Scenario {
    /// Number of peers, 1 to 1,000,000; all are there from the start but those that join by the
    /// script.
    pub peers: u32,
    /// Fragments of each replica.
    pub fragments: u32,
    /// Elements of each fragment.
    pub width: usize,
    /// Parameters of the model that the replicas stand for, which gives tensors their size on the
    /// links; 0 for the toy replica itself.
    pub parameters: u64,
    /// Bits of one parameter on the links, 1 to 64.
    pub codec_bits: u32,
    /// Peers that each peer is connected to, at least 2: those beside it on the ring of all peers,
    /// and others at random.
    pub neighbours: u32,
    /// How long faults are on.
    #[serde(with = "duration")]
    pub faults_for: Duration,
    /// How long after the faults every live peer must have committed and ended a round again.
    #[serde(with = "duration")]
    pub settle: Duration,
    /// Time the median peer's trainer needs for the steps of one round.
    #[serde(with = "duration")]
    pub round_time: Duration,
    /// How round times differ: factors of `round_time`.
    pub speed: Spread,
    /// Whether the times between rounds are exponential instead of constant.
    pub poisson: bool,
    /// Rounds per commit.
    pub rounds_per_commit: u64,
    /// Standard size of what a commit adds to every parameter.
    pub increment: f64,
    /// Rounds after which a peer says that it has finished; 0 for never.
    pub rounds: u64,
    /// Longest time for which the trainer of a process that begins waits, as for peers that it requires.
    #[serde(skip)]
    pub wait: Duration,
    /// Whether a process that begins with nothing says that no step was done with its weights.
    #[serde(skip)]
    pub untrained: bool,
    /// Longest time one piece of trainer work takes.
    #[serde(with = "duration")]
    pub work: Duration,
    /// Time between attempts to connect.
    #[serde(with = "duration")]
    pub redial: Duration,
    /// How long a dead or cut connection goes unnoticed, at most.
    #[serde(with = "duration")]
    pub drop_after: Duration,
    /// How numbers travel.
    pub rule: RuleSettings,
    /// The links.
    pub link: LinkModel,
    /// What is changed of the gossip configuration.
    pub gossip: GossipSettings,
    /// Random faults.
    pub faults: FaultRates,
    /// Faults at given times.
    pub script: Vec<Scripted>,
}

/// The part of the gossip configuration that scenarios set.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GossipSettings {
    /// Bound B1, commits.
    pub progress_gap: u64,
    /// Bound B2, commits.
    pub snapshot_age: u64,
    /// Bound B3, commits; 0 for the automatic value.
    pub information_age: u64,
    /// Longest hold of a commit; 0 for what follows from the measured step time.
    #[serde(with = "duration")]
    pub gate_timeout: Duration,
    /// How much of what work each peer does.
    #[serde(skip)]
    pub pace: Pace,
    /// Whether intervals between rounds follow the links.
    #[serde(skip)]
    pub interval: Interval,
    /// Whether the later half of the fragments holds moments of an optimizer.
    #[serde(skip)]
    pub moments: bool,
    /// How often silent neighbours are spoken to.
    #[serde(with = "duration")]
    pub heartbeat: Duration,
    /// How long undecided exchanges are kept.
    #[serde(with = "duration")]
    pub journal_window: Duration,
    /// Longest back-off.
    #[serde(with = "duration")]
    pub back_off_max: Duration,
    /// Most own exchanges.
    pub own_max: usize,
    /// Most answered exchanges.
    pub answered_max: usize,
}

impl Default for GossipSettings {
    fn default() -> Self {
        let config = Config::default();
        Self {
            progress_gap: config.bounds.progress_gap,
            snapshot_age: config.bounds.snapshot_age,
            information_age: 0,
            gate_timeout: Duration::from_secs(10),
            pace: config.pace,
            interval: config.interval,
            moments: false,
            heartbeat: config.heartbeat,
            journal_window: config.journal_window,
            back_off_max: config.back_off_max,
            own_max: config.own_max,
            answered_max: config.answered_max,
        }
    }
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            peers: 8,
            fragments: 3,
            width: 2,
            parameters: 0,
            codec_bits: 32,
            neighbours: 4,
            faults_for: Duration::from_secs(60),
            settle: Duration::from_secs(120),
            round_time: Duration::from_millis(500),
            speed: Spread::Uniform { ratio: 1.5 },
            poisson: false,
            rounds_per_commit: 1,
            increment: 0.1,
            rounds: 0,
            wait: Duration::ZERO,
            untrained: false,
            work: Duration::from_millis(10),
            redial: Duration::from_secs(1),
            drop_after: Duration::from_secs(6),
            rule: RuleSettings::default(),
            link: LinkModel::default(),
            gossip: GossipSettings::default(),
            faults: FaultRates::default(),
            script: Vec::new(),
        }
    }
}

impl Scenario {
    /// Reads a scenario file's text.
    ///
    /// # Errors
    /// [`ReadError`] names the first key that is wrong.
    pub fn parse(text: &str) -> Result<Self, ReadError> {
        let scenario: Self = toml::from_str(text)?;
        scenario.check()?;
        Ok(scenario)
    }

    /// Reads a scenario file's text for who is to carry it out, with one line about what that one
    /// cannot, if there is such a thing.
    ///
    /// # Errors
    /// As [`Scenario::parse`].
    pub fn read(text: &str, reader: Reader) -> Result<(Self, Option<String>), ReadError> {
        let scenario = Self::parse(text)?;
        Ok((scenario, reader.unheeded(&toml::from_str(text)?)))
    }

    /// The peers that are not there from the start.
    pub fn joiners(&self) -> impl Iterator<Item = u32> + '_ {
        self.script.iter().filter_map(|scripted| {
            if let Fault::Join { peer } = scripted.fault { Some(peer) } else { None }
        })
    }

    /// Checks ranges and relations.
    ///
    /// # Errors
    /// [`ReadError`] names the first key out of range.
    pub fn check(&self) -> Result<(), ReadError> {
        let index = |peer: u32| peer < self.peers;
        let named = self.script.iter().all(|scripted| scripted.fault.peers().all(index));
        let legal = self.script.iter().all(|scripted| scripted.fault.is_legal());
        let joiners: BTreeSet<u32> = self.joiners().collect();
        let start = joiners.len() < self.peers as usize;
        let rules = [
            ((1..=1_000_000).contains(&self.peers), "peers", "1 to 1000000"),
            ((1..=1024).contains(&self.fragments), "fragments", "1 to 1024"),
            ((1..=1024).contains(&self.width), "width", "1 to 1024"),
            (self.speed.is_legal(), "speed", "a legal distribution"),
            ((1..=64).contains(&self.codec_bits), "codec_bits", "1 to 64"),
            (self.rounds_per_commit >= 1, "rounds_per_commit", "at least 1"),
            (!self.round_time.is_zero(), "round_time", "longer than 0s"),
            (!self.redial.is_zero(), "redial", "longer than 0s"),
            (
                self.faults.are_legal(),
                "faults",
                "0 to 1000 a minute, with probabilities from 0 to 1",
            ),
            (named, "script", "about peers that exist"),
            (legal, "script", "within the ranges of its entries"),
            (start, "script", "such that a peer is there at the start"),
        ];
        check(rules.into_iter().chain(self.link.rules()))?;
        self.config().check()?;
        Ok(())
    }

    /// The gossip configuration of every peer.
    #[must_use]
    pub fn config(&self) -> Config {
        let settings = &self.gossip;
        let age = settings.information_age;
        let defaults = Config::default();
        // Rare words are no silence.
        let suspect_min = defaults.suspect_min.max(2 * settings.heartbeat);
        let first_of_moments = settings.moments.then_some(FragmentId(self.fragments / 2));
        let config = Config {
            bounds: Bounds {
                progress_gap: settings.progress_gap,
                snapshot_age: settings.snapshot_age,
                information_age: (age > 0).then_some(age),
            },
            gate_timeout: Some(settings.gate_timeout).filter(|gate| !gate.is_zero()),
            pace: settings.pace,
            interval: settings.interval,
            first_of_moments,
            heartbeat: settings.heartbeat,
            suspect_min,
            journal_window: settings.journal_window,
            back_off_max: settings.back_off_max,
            own_max: settings.own_max,
            answered_max: settings.answered_max,
            ..defaults
        };
        self.rule.apply(config)
    }

    /// The scenario of the speed measurement: a healthy swarm whose peers do `rounds` rounds each.
    #[must_use]
    pub fn healthy(peers: u32, rounds: u64) -> Self {
        let link = LinkModel { jitter: 0.3, ..LinkModel::default() };
        Self { peers, rounds, fragments: 4, neighbours: 4, link, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_names_only_what_it_changes() {
        let text = r#"
            peers = 5
            [link]
            loss = 0.1
            delay = "3ms"
            [[script]]
            at = "4s"
            kind = "crash"
            peer = 2
            [rule]
            schedule = "nearest"
            policy = "down-weight"
            codecs = ["int8", "int4"]
        "#;
        let scenario = Scenario::parse(text).unwrap();
        assert_eq!((scenario.peers, scenario.script.len()), (5, 1));
        assert_eq!(scenario.link.delay, Duration::from_millis(3));
        assert_eq!(scenario.rule.schedule, dnode_gossip::Schedule::Nearest);
        assert_eq!(scenario.rule.codecs.len(), 2);
        assert_eq!(scenario.width, Scenario::default().width);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, want) in [
            ("piers = 3", "piers"),
            ("peers = 0", "peers must be 1 to 1000000"),
            ("[link]\nloss = 2.0", "link.loss must be 0 to 1"),
            ("round_time = \"fast\"", "\"fast\" is no duration"),
            ("[rule]\ncodecs = [\"int3\"]", "one of f32, bf16"),
            ("[gossip]\nprogress_gap = 0", "progress_gap is 0, must be 1 to 1000"),
            ("peers = 2\n[[script]]\nat = \"1s\"\nkind = \"crash\"\npeer = 2", "script must be"),
            ("[[script]]\nat = \"1s\"\nkind = \"slow\"\npeer = 2\nfactor = 0.5", "script must be"),
            ("[[script]]\nat = \"1s\"\nkind = \"heal\"\npeer = 2", "peer"),
            ("[[script]]\nat = \"1s\"\nkind = \"explode\"\npeer = 2", "explode"),
        ] {
            let error = Scenario::parse(text).unwrap_err().to_string();
            assert!(error.contains(want), "{text}: {error}");
        }
    }
}
