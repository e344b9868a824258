//! Experiment files: one model, one data set, several ways to average, several seeds.

use std::path::Path;
use std::time::Duration;

use dnode_gossip::{Policy, Schedule};
use dnode_protocol::frame::Codec;
use dnode_trainer::{DataConfig, ModelConfig, OptimizerConfig, OptimizerKind};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde::Deserialize;

use super::misbehaviour::{Misbehaviour, Wrong};
use crate::scenario::Scenario;
use crate::scenario::fault::{Fault, Scripted};
use crate::scenario::link::LinkModel;

/// An experiment; keys that the product's configuration has, too, have its names and meanings.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// How long, with how many peers.
    pub run: Run,
    /// The model.
    pub model: ModelConfig,
    /// The data; shards and their numbers follow from the peers.
    pub data: DataConfig,
    /// What is changed of the product's defaults for this kind of optimizer.
    pub optimizer: toml::Table,
    /// Virtual time.
    #[serde(default)]
    pub time: Timing,
    /// A partition.
    #[serde(default)]
    pub split: Option<Split>,
    /// A peer that joins later.
    #[serde(default)]
    pub newcomer: Option<Newcomer>,
    /// What is wrong with the last peer.
    #[serde(default)]
    pub misbehaviour: Option<Misbehaviour>,
    /// Measuring.
    #[serde(default)]
    pub evaluate: Evaluate,
    /// The ways to average, compared with the first.
    pub variant: Vec<LearnVariant>,
    /// Speeds, lines and faults; see [`Experiment::under`].
    #[serde(skip)]
    pub scenario: Option<Scenario>,
}

/// `[run]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Peers, 2 to 64.
    pub peers: u32,
    /// Steps of the run; a peer of mean speed does exactly so many local steps.
    pub steps: u64,
    /// Samples per local step of each peer.
    pub batch: usize,
    /// One run of every variant for each seed: initial weights, shards, batches, links and chance.
    pub seeds: Vec<u64>,
}

/// `[time]`: how long things take in virtual time.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Timing {
    /// Microseconds of a local step of a peer of factor 1.
    pub step_us: u64,
    /// Factors of the step times of the first peers; those of the others are 1.
    pub factors: Vec<f64>,
    /// Bits per second of every peer's line, up and down; 0 for no limit.
    pub bandwidth: f64,
    /// One-way delay, microseconds.
    pub delay_us: u64,
    /// Longest time of one piece of trainer work, microseconds.
    pub work_us: u64,
    /// Whether all peers begin at the same moment, instead of within one round.
    pub together: bool,
}

impl Default for Timing {
    fn default() -> Self {
        let (step_us, delay_us, work_us) = (100_000, 20_000, 5_000);
        let (factors, bandwidth, together) = (Vec::new(), 0.0, false);
        Self { step_us, factors, bandwidth, delay_us, work_us, together }
    }
}

/// `[split]`: the first peers are cut off from the others for a while; for the rules that gossip.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Split {
    /// How many.
    pub peers: u32,
    /// When it begins, virtual seconds.
    pub from_s: f64,
    /// How long it lasts.
    pub for_s: f64,
    /// Rounds of the slowest peer after which the merged model is measured.
    pub rounds: u32,
}

/// `[newcomer]`: the last peer joins later, and the others are compared with the same run without it;
/// for the rules that gossip.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Newcomer {
    /// When it joins, virtual seconds.
    pub from_s: f64,
    /// After how many rounds of a peer of mean speed the others are measured, ascending.
    pub rounds: Vec<u32>,
}

/// `[evaluate]`: when and on what losses are measured.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Evaluate {
    /// Steps of the run between two points of a curve.
    pub every: u64,
    /// Held-out samples of a point; the last one has all of them.
    pub samples: usize,
    /// Excess over the first variant's last loss at which time is taken, %.
    pub targets: Vec<f64>,
}

impl Default for Evaluate {
    fn default() -> Self {
        Self { every: 50, samples: 256, targets: vec![1.0, 2.0] }
    }
}

/// How replicas are averaged: the product's rules by their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// Synchronous: the mean gradient in every step, or with several local steps DiLoCo.
    AllReduce,
    /// Outer steps at the origin, exchanges of fragments.
    GossipOuter,
    /// Exchanges of the live weights.
    Pairwise,
    /// Weights and masses pushed one way.
    PushSum,
    /// Every contribution to everybody.
    DeltaSet,
    /// Weights pushed one way.
    Epidemic,
}

/// One way to average.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LearnVariant {
    /// Its name, of letters, digits, `.` and `-`, which names its files, too.
    pub name: String,
    /// The rule.
    pub rule: Rule,
    /// Local steps per commit, H.
    #[serde(default = "local_steps")]
    pub local_steps: u64,
    /// Local steps per round of exchanges.
    #[serde(default = "local_steps")]
    pub mix_every: u64,
    /// Learning rate of the outer step, α.
    #[serde(default = "outer_learning_rate")]
    pub outer_learning_rate: f32,
    /// Momentum of the outer step, β.
    #[serde(default = "outer_momentum")]
    pub outer_momentum: f32,
    /// The code of numbers on their way.
    #[serde(default = "codec")]
    pub codec: String,
    /// Whether what a code loses of a contribution is added to the next one.
    #[serde(default)]
    pub error_feedback: bool,
    /// How partners are chosen.
    #[serde(default)]
    pub schedule: Schedule,
    /// Peers that each fragment is pushed to in a round.
    #[serde(default = "one")]
    pub fanout: usize,
    /// Fragments.
    #[serde(default = "fragments")]
    pub fragments: usize,
    /// Whether peers guard against replicas that are unlike all others.
    #[serde(default = "yes")]
    pub guard: bool,
    /// Whether a slow peer does fewer local steps per commit.
    #[serde(default = "yes")]
    pub balance: bool,
    /// What is done about a peer that lags.
    #[serde(default)]
    pub staleness: Policy,
    /// Another peak learning rate of the optimizer than the experiment's.
    pub learning_rate: Option<f32>,
}

const fn local_steps() -> u64 {
    25
}

const fn outer_learning_rate() -> f32 {
    0.7
}

const fn outer_momentum() -> f32 {
    0.8
}

fn codec() -> String {
    "f32".to_owned()
}

const fn one() -> usize {
    1
}

const fn fragments() -> usize {
    4
}

const fn yes() -> bool {
    true
}

/// An experiment that cannot be run; the person who wrote it is at fault, or a file.
#[derive(Debug, thiserror::Error)]
pub enum ExperimentError {
    /// Not TOML, an unknown key, or a value of the wrong kind.
    #[error("read the experiment: {0}")]
    Syntax(#[from] toml::de::Error),
    /// A value out of range.
    #[error("read the experiment: {key} must be {range}")]
    Range {
        /// The key.
        key: &'static str,
        /// What is legal.
        range: &'static str,
    },
    /// The data.
    #[error(transparent)]
    Data(#[from] dnode_trainer::DataError),
    /// The model or the optimizer.
    #[error(transparent)]
    Model(#[from] dnode_trainer::ConfigError),
    /// The gossip configuration.
    #[error(transparent)]
    Gossip(#[from] dnode_gossip::ConfigError),
    /// The training.
    #[error("train {variant} with seed {seed}: {what}")]
    Training {
        /// The variant.
        variant: String,
        /// The seed.
        seed: u64,
        /// What happened.
        what: String,
    },
    /// A file.
    #[error("{what}: {reason}")]
    File {
        /// What was to be done.
        what: String,
        /// The reason.
        reason: std::io::Error,
    },
}

/// Most peers of an experiment; each holds a model, its gradient and its optimizer's state.
const PEERS_MAX: u32 = 64;

impl Experiment {
    /// Reads an experiment file's text; `data` replaces the path of the data.
    ///
    /// # Errors
    /// [`ExperimentError`] names the key.
    pub fn parse(text: &str, data: Option<&Path>) -> Result<Self, ExperimentError> {
        let mut experiment: Self = toml::from_str(text)?;
        if let Some(path) = data {
            experiment.data.path = Some(path.to_owned());
        }
        experiment.check()?;
        Ok(experiment)
    }

    /// The experiment under the speeds, lines, neighbours and faults of a scenario, for the rules
    /// that gossip; the rest of the scenario, and `[time]`'s factors and lines, do not count.
    ///
    /// Speeds are drawn once, so that they are those of every variant and seed.
    ///
    /// # Errors
    /// [`ExperimentError::Range`] for a fault of a peer that is not there, and for an experiment
    /// with a split or a newcomer of its own.
    pub fn under(mut self, scenario: Scenario) -> Result<Self, ExperimentError> {
        if self.split.is_some() || self.newcomer.is_some() {
            let (key, range) = ("split and newcomer", "absent under a scenario");
            return Err(ExperimentError::Range { key, range });
        }
        let peers = self.run.peers;
        let named = || scenario.script.iter().flat_map(|scripted| scripted.fault.peers());
        if named().any(|peer| peer >= peers) {
            let (key, range) = ("script.peer", "less than the experiment's run.peers");
            return Err(ExperimentError::Range { key, range });
        }
        let mut rng = ChaCha8Rng::seed_from_u64(0);
        self.time.factors =
            (0..peers).map(|peer| scenario.speed.draw(peer, peers, &mut rng)).collect();
        self.scenario = Some(scenario);
        Ok(self)
    }

    fn check(&self) -> Result<(), ExperimentError> {
        let run = &self.run;
        let letters = |name: &str| {
            let legal = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
            !name.is_empty() && name.chars().all(legal)
        };
        let factor = |factor: &f64| (0.01..=100.0).contains(factor);
        let every = |legal: fn(&LearnVariant) -> bool| self.variant.iter().all(legal);
        let rules = [
            ((2..=PEERS_MAX).contains(&run.peers), "run.peers", "2 to 64"),
            ((1..=1_000_000).contains(&run.steps), "run.steps", "1 to 1000000"),
            (!run.seeds.is_empty(), "run.seeds", "one seed or more"),
            (!self.variant.is_empty(), "variant", "one variant or more"),
            (
                self.variant.iter().all(|variant| letters(&variant.name)),
                "variant.name",
                "letters, digits, . and -",
            ),
            (every(|variant| variant.codec().is_some()), "variant.codec", "one of f32 to top-k"),
            (every(|variant| variant.local_steps > 0), "variant.local_steps", "at least 1"),
            (every(|variant| variant.mix_every > 0), "variant.mix_every", "at least 1"),
            (self.time.step_us > 0, "time.step_us", "at least 1"),
            (self.time.factors.iter().all(factor), "time.factors", "0.01 to 100"),
            (self.time.bandwidth >= 0.0, "time.bandwidth", "0 or more bits per second"),
            (self.split.is_none_or(|s| (1..run.peers).contains(&s.peers)), "split.peers", "some"),
            (self.split.is_none_or(|s| s.from_s >= 0.0 && s.for_s > 0.0), "split", "in the future"),
            (self.newcomer.iter().all(|n| n.from_s > 0.0), "newcomer.from_s", "in the future"),
            (
                self.newcomer.iter().all(|n| n.rounds.is_sorted() && !n.rounds.is_empty()),
                "newcomer.rounds",
                "one or more, ascending",
            ),
            (self.evaluate.every > 0, "evaluate.every", "at least 1"),
            (self.evaluate.samples > 0, "evaluate.samples", "at least 1"),
        ];
        if let Some((_, key, range)) = rules.into_iter().find(|(legal, _, _)| !legal) {
            return Err(ExperimentError::Range { key, range });
        }
        self.optimizer(&self.variant[0])?.validate()?;
        Ok(())
    }

    /// The optimizer of a variant: the product's defaults of its kind with what the file changes.
    ///
    /// # Errors
    /// [`ExperimentError::Syntax`] for keys that an optimizer does not have.
    pub fn optimizer(&self, variant: &LearnVariant) -> Result<OptimizerConfig, ExperimentError> {
        #[derive(Deserialize)]
        struct Kind {
            kind: OptimizerKind,
        }
        let Kind { kind } = toml::Value::Table(self.optimizer.clone()).try_into()?;
        let default = OptimizerConfig::default_of(kind);
        let table = toml::Table::try_from(default);
        let mut table = table.map_err(<toml::de::Error as serde::de::Error>::custom)?;
        table.extend(self.optimizer.clone());
        let mut optimizer: OptimizerConfig = toml::Value::Table(table).try_into()?;
        if let Some(rate) = variant.learning_rate {
            optimizer.learning_rate = rate;
        }
        Ok(optimizer)
    }

    /// What is wrong with a peer.
    #[must_use]
    pub fn wrong(&self, peer: u32) -> Option<Misbehaviour> {
        self.misbehaviour.filter(|_| peer + 1 == self.run.peers)
    }

    /// Time of a local step of a peer.
    #[must_use]
    pub fn step_time(&self, peer: usize) -> Duration {
        let factor = self.time.factors.get(peer).copied().unwrap_or(1.0);
        Duration::from_micros(self.time.step_us).mul_f64(factor)
    }

    /// The links and delays as a scenario of the simulator, without faults but those of
    /// [`Experiment::under`].
    #[must_use]
    pub fn scenario(&self, variant: &LearnVariant) -> Scenario {
        let fragments = u32::try_from(variant.fragments).unwrap_or(u32::MAX);
        let work = Duration::from_micros(self.time.work_us);
        if let Some(given) = &self.scenario {
            let (speed, link) = (given.speed.clone(), given.link.clone());
            let (faults, script) = (given.faults.clone(), given.script.clone());
            let Scenario { neighbours, faults_for, redial, drop_after, .. } = *given;
            let (peers, base) = (self.run.peers, Scenario::default());
            return Scenario {
                peers,
                neighbours,
                fragments,
                work,
                faults_for,
                redial,
                drop_after,
                speed,
                link,
                faults,
                script,
                ..base
            };
        }
        let link = LinkModel {
            delay: Duration::from_micros(self.time.delay_us),
            bandwidth: self.time.bandwidth,
            ..LinkModel::default()
        };
        let script = self.split.iter().flat_map(|split| {
            let [begin, end] =
                [split.from_s, split.from_s + split.for_s].map(Duration::from_secs_f64);
            let cut = Fault::Cut { side: (0..split.peers).collect(), both: true };
            [Scripted { at: begin, fault: cut }, Scripted { at: end, fault: Fault::Heal {} }]
        });
        let newcomer = self.newcomer.iter().map(|newcomer| Scripted {
            at: Duration::from_secs_f64(newcomer.from_s),
            fault: Fault::Join { peer: self.run.peers - 1 },
        });
        let absent = (0..self.run.peers).filter_map(|peer| {
            let absent = self.wrong(peer).is_some_and(|wrong| wrong.kind == Wrong::Absent);
            let (at, fault) = (Duration::from_millis(1), Fault::Crash { peer });
            absent.then_some(Scripted { at, fault })
        });
        Scenario {
            script: script.chain(newcomer).chain(absent).collect(),
            peers: self.run.peers,
            neighbours: self.run.peers,
            fragments,
            work,
            link,
            ..Scenario::default()
        }
    }
}

impl LearnVariant {
    /// The code by its name.
    #[must_use]
    pub fn codec(&self) -> Option<Codec> {
        self.codec.parse().ok().filter(|codec| Codec::CHOICES.contains(codec))
    }
}
