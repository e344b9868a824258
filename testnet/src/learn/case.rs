//! One workload of an experiment file under one condition, as the simulator trains it.

use std::path::Path;
use std::time::Duration;

use dnode_gossip::{Balance, Policy, Schedule, first_interval};
use dnode_protocol::frame::Codec;
use dnode_trainer::{DataConfig, ModelConfig, OptimizerConfig};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Deserializer};

use super::misbehaviour::{Misbehaviour, Wrong};
use crate::experiment::settings::{optimizer, section, sections};
use crate::experiment::{Condition, Experiment, Kind, Simulation, Way, Work, place};
use crate::file::{ReadError, Rule, check, codecs};
use crate::local::experiment::NO_GOSSIP;
use crate::scenario::Scenario;
use crate::scenario::fault::{Fault, Scripted};

/// One workload with one number of peers under one condition, in every way of the experiment.
#[derive(Clone, Debug)]
pub struct SimulatedCase {
    /// Workload, peers and condition.
    pub name: String,
    /// Number of peers, 2 to 64.
    pub peers: u32,
    /// Steps of the run; a peer of mean speed does exactly so many local steps.
    pub steps: u64,
    /// Samples per local step of each peer.
    pub batch: usize,
    /// One run of every variant for each seed: initial weights, shards, batches, links and chance.
    pub seeds: Vec<u64>,
    /// The model.
    pub model: ModelConfig,
    /// The data; shards and their numbers follow from the peers.
    pub data: DataConfig,
    /// Virtual time.
    pub simulation: Simulation,
    /// Lines, and what happens to peers.
    pub condition: Condition,
    /// How many times as long the work of each peer takes.
    pub factors: Vec<f64>,
    /// Steps of the run between two points of a curve.
    pub evaluate_every: u64,
    /// Excess over the reference's last loss at which time is taken, %.
    pub targets: Vec<f64>,
    /// The variant that the others are compared with.
    pub reference: String,
    /// The ways to average.
    pub variants: Vec<SimulatedVariant>,
    /// Speeds, lines and faults; see [`SimulatedCase::under`].
    pub scenario: Option<Scenario>,
}

/// How replicas are averaged: the product's rules by their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MixingName {
    /// Synchronous: the mean gradient in every step, or with several local steps DiLoCo.
    AllReduce,
    /// Outer steps at the origin, exchanges of fragments.
    GossipOuter,
    /// Exchanges of the live weights.
    Pairwise,
    /// Every contribution to everybody.
    DeltaSet,
}

impl MixingName {
    /// As it is written.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all-reduce",
            Self::GossipOuter => "gossip-outer",
            Self::Pairwise => "pairwise",
            Self::DeltaSet => "delta-set",
        }
    }
}

/// One way to average: the settings `gossip.*` that the simulator knows, by the product's names.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimulatedVariant {
    /// Its name, which names its files, too.
    #[serde(default)]
    pub name: String,
    /// The rule.
    pub rule: MixingName,
    /// Local steps per commit, H.
    pub local_steps: u64,
    /// Local steps per round of exchanges; `None`: the interval follows the link.
    #[serde(deserialize_with = "interval")]
    pub mix_every: Option<u64>,
    /// Bytes that a peer may send per local step, where the interval follows.
    #[serde(default)]
    pub budget: Option<u64>,
    /// Learning rate of the outer step, α.
    #[serde(default = "outer_learning_rate")]
    pub outer_learning_rate: f32,
    /// Momentum of the outer step, β.
    #[serde(default = "outer_momentum")]
    pub outer_momentum: f32,
    /// The codes of numbers on their way.
    #[serde(default = "plain", with = "codecs")]
    pub codecs: Vec<Codec>,
    /// Whether what a code loses of a contribution is added to the next one.
    #[serde(default)]
    pub error_feedback: bool,
    /// How partners are chosen.
    #[serde(default)]
    pub schedule: Schedule,
    /// Fragments.
    #[serde(default = "fragments")]
    pub fragments: usize,
    /// Whether the optimizer's first moments are averaged together with the weights.
    #[serde(default)]
    pub moments: bool,
    /// Longest progress of a commit; 0: no bound. For `gossip-outer` and `delta-set`, as the product has it.
    #[serde(default)]
    pub privacy_clip: f64,
    /// Noise of each commit, over that.
    #[serde(default)]
    pub privacy_noise: f64,
    /// Whether peers guard against replicas that are unlike all others.
    #[serde(default = "yes")]
    pub guard: bool,
    /// What a slow peer does less of.
    #[serde(default = "steps", deserialize_with = "balance")]
    pub balance: Balance,
    /// What is done about a peer that lags.
    #[serde(default)]
    pub staleness: Policy,
    /// The optimizer.
    #[serde(skip, default = "adamw")]
    pub optimizer: OptimizerConfig,
}

fn interval<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Word(String),
        Number(u64),
    }
    match Written::deserialize(from)? {
        Written::Number(number) => Ok(Some(number)),
        Written::Word(word) if word == "auto" => Ok(None),
        Written::Word(word) => Err(serde::de::Error::custom(format!("{word} is not \"auto\""))),
    }
}

const fn outer_learning_rate() -> f32 {
    0.7
}

const fn outer_momentum() -> f32 {
    0.8
}

fn plain() -> Vec<Codec> {
    vec![Codec::F32]
}

const fn fragments() -> usize {
    4
}

const fn yes() -> bool {
    true
}

const fn steps() -> Balance {
    Balance::Steps
}

fn adamw() -> OptimizerConfig {
    OptimizerConfig::default_of(dnode_trainer::OptimizerKind::Adamw)
}

fn balance<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Balance, D::Error> {
    match String::deserialize(deserializer)?.as_str() {
        "off" => Ok(Balance::Off),
        "steps" => Ok(Balance::Steps),
        "batch" => Ok(Balance::Batch),
        _ => Err(serde::de::Error::custom("gossip.balance must be off, steps or batch")),
    }
}

/// An experiment that cannot be run; the person who wrote it is at fault, or a file.
#[derive(Debug, thiserror::Error)]
pub enum LearnError {
    /// The experiment file.
    #[error(transparent)]
    Read(#[from] ReadError),
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
    /// The plot of the gaps.
    #[error(transparent)]
    Plot(#[from] crate::report::plot::PlotError),
}

/// Most peers of a case; each holds a model, its gradient and its optimizer's state.
const PEERS_MAX: u32 = 64;
/// What the simulator trains: a key of any other section is refused.
const SECTIONS: [&str; 4] = ["data", "gossip", "model", "optimizer"];

impl SimulatedCase {
    /// The cases of an experiment; `data` is the path of the data where the file names none.
    ///
    /// # Errors
    /// [`ReadError`] names the key that is wrong, or that only real processes can carry out.
    pub fn all(experiment: &Experiment, data: Option<&Path>) -> Result<Vec<Self>, ReadError> {
        let mut cases = Vec::new();
        for (work, peers) in experiment.places() {
            for condition in experiment.condition.iter().filter(|c| c.is_for(work)) {
                cases.push(Self::of(experiment, (work, peers), condition, data)?);
            }
        }
        Ok(cases)
    }

    fn of(
        experiment: &Experiment,
        (work, peers): (&Work, usize),
        condition: &Condition,
        data: Option<&Path>,
    ) -> Result<Self, ReadError> {
        let place = place(work, peers);
        let peers = u32::try_from(peers).unwrap_or(u32::MAX);
        let common = sections(None, work.settings.iter().chain(&condition.settings))?;
        let ways = experiment.ways(condition, &place);
        let mut case = Self {
            name: format!("{place}-{}", condition.name),
            peers,
            steps: work.steps,
            batch: usize::try_from(work.batch).unwrap_or(usize::MAX),
            seeds: experiment.seeds.clone(),
            model: section(&common, "model")?,
            data: section(&common, "data")?,
            simulation: experiment.simulation.clone(),
            condition: condition.clone(),
            factors: factors(condition, peers),
            evaluate_every: experiment.between_points(work.steps),
            targets: experiment.target_percent.clone(),
            reference: experiment.reference.clone(),
            variants: ways
                .map(|way| SimulatedVariant::of(work, condition, way))
                .collect::<Result<_, _>>()?,
            scenario: None,
        };
        if let (None, Some(path)) = (&case.data.path, data) {
            case.data.path = Some(path.to_owned());
        }
        check(case.rules(experiment))?;
        case.variants[0].optimizer.validate()?;
        Ok(case)
    }

    fn rules(&self, experiment: &Experiment) -> [Rule; 15] {
        let condition = &self.condition;
        let every = |legal: fn(&SimulatedVariant) -> bool| self.variants.iter().all(legal);
        let choices =
            |variant: &SimulatedVariant| variant.codecs.iter().all(|c| Codec::CHOICES.contains(c));
        let (split, newcomer) = (condition.split, &condition.newcomer);
        let processes = "absent: real processes alone carry it out";
        [
            ((2..=PEERS_MAX).contains(&self.peers), "peers", "2 to 64"),
            ((1..=1_000_000).contains(&self.steps), "workload.steps", "1 to 1000000"),
            (!self.variants.is_empty(), "variant", "one variant or more in every condition"),
            (every(choices), "gossip.codecs", "of f32 to top-k"),
            (
                every(|variant| !variant.moments || variant.rule == MixingName::Pairwise),
                "gossip.moments",
                "true with rule pairwise alone",
            ),
            (
                every(|variant| variant.privacy_clip <= 0.0 || variant.shows_commits_alone()),
                "gossip.privacy_clip",
                "0 with rules other than gossip-outer and delta-set",
            ),
            (every(|variant| variant.local_steps > 0), "gossip.local_steps", "at least 1"),
            (every(|variant| variant.mix_every != Some(0)), "gossip.mix_every", "at least 1"),
            (
                split.is_none_or(|s| (1..self.peers).contains(&s.peers) && !s.time.is_zero()),
                "condition.split",
                "of some of the peers, for some time",
            ),
            (newcomer.iter().all(|n| !n.at.is_zero()), "condition.newcomer.at", "in the future"),
            (
                newcomer.iter().all(|n| n.rounds.is_sorted() && !n.rounds.is_empty()),
                "condition.newcomer.rounds",
                "one or more, ascending",
            ),
            (
                self.simulation.tails.iter().all(|share| *share > 0.0 && *share <= 1.0),
                "simulation.tails",
                "shares of the run, more than 0, at most 1",
            ),
            (condition.racks == 0, "condition.racks", processes),
            (condition.churn.is_none(), "condition.churn", processes),
            (experiment.tuning.is_none(), "tuning", processes),
        ]
    }

    /// The case under the speeds, lines, neighbours and faults of a scenario, for the rules that
    /// gossip; the rest of the scenario, and the condition's speeds and lines, do not count.
    ///
    /// Speeds are drawn once, so that they are those of every variant and seed.
    ///
    /// # Errors
    /// [`ReadError::Range`] for a fault of a peer that is not there, and for a condition with a split
    /// or a newcomer of its own.
    pub fn under(mut self, scenario: Scenario) -> Result<Self, ReadError> {
        let own = self.condition.split.is_some() || self.condition.newcomer.is_some();
        let named = scenario.script.iter().flat_map(|scripted| scripted.fault.peers());
        let there = named.max().is_none_or(|peer| peer < self.peers);
        check([
            (!own, "split and newcomer", "absent under a scenario"),
            (there, "script.peer", "less than the experiment's peers"),
        ])?;
        let condition = Condition { speed: scenario.speed.clone(), ..Condition::default() };
        self.factors = factors(&condition, self.peers);
        self.scenario = Some(scenario);
        Ok(self)
    }

    /// What is wrong with a peer.
    #[must_use]
    pub fn wrong(&self, peer: u32) -> Option<Misbehaviour> {
        self.condition.misbehaviour.filter(|wrong| wrong.is_of(peer, self.peers))
    }

    /// Time of a local step of a peer.
    #[must_use]
    pub fn step_time(&self, peer: usize) -> Duration {
        let factor = self.factors.get(peer).copied().unwrap_or(1.0);
        self.simulation.step_time.mul_f64(factor)
    }

    /// Time of a local step of the slowest peer.
    #[must_use]
    pub fn slowest(&self) -> Duration {
        (0..self.peers as usize).map(|peer| self.step_time(peer)).max().unwrap_or_default()
    }

    /// The links and delays as a scenario of the simulator, without faults but those of
    /// [`SimulatedCase::under`].
    #[must_use]
    pub fn scenario(&self, variant: &SimulatedVariant) -> Scenario {
        let fragments = u32::try_from(variant.fragments).unwrap_or(u32::MAX);
        let (peers, work) = (self.peers, self.simulation.work);
        if let Some(given) = &self.scenario {
            let (speed, link) = (given.speed.clone(), given.link.clone());
            let (faults, script) = (given.faults.clone(), given.script.clone());
            let Scenario { neighbours, faults_for, redial, drop_after, .. } = *given;
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
                ..Scenario::default()
            };
        }
        let split = self.condition.split.iter().flat_map(|split| {
            let cut = Fault::Cut { side: (0..split.peers).collect(), both: true };
            let end = split.at + split.time;
            [Scripted { at: split.at, fault: cut }, Scripted { at: end, fault: Fault::Heal {} }]
        });
        let newcomer = self.condition.newcomer.iter().map(|newcomer| {
            let fault = Fault::Join { peer: peers - 1 };
            Scripted { at: newcomer.at, fault }
        });
        let absent = (0..peers).filter_map(|peer| {
            let absent = self.wrong(peer).is_some_and(|wrong| wrong.kind == Wrong::Absent);
            let (at, fault) = (Duration::from_millis(1), Fault::Crash { peer });
            absent.then_some(Scripted { at, fault })
        });
        let late = self.condition.misbehaviour.filter(|wrong| !wrong.joins_at.is_zero());
        let late = late.map(|wrong| {
            let fault = Fault::Join { peer: peers - 1 };
            Scripted { at: wrong.joins_at, fault }
        });
        Scenario {
            script: split.chain(newcomer).chain(absent).chain(late).collect(),
            peers,
            neighbours: peers,
            fragments,
            work,
            link: self.condition.link.clone().unwrap_or_default(),
            ..Scenario::default()
        }
    }
}

/// How many times as long the work of each peer takes.
fn factors(condition: &Condition, peers: u32) -> Vec<f64> {
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    let drawn = (0..peers).map(|peer| condition.speed.draw(peer, peers, &mut rng));
    let mut factors: Vec<f64> = drawn.collect();
    if let (Some(slow), Some(last)) = (condition.slow, factors.last_mut()) {
        *last *= slow.factor;
    }
    factors
}

impl SimulatedVariant {
    /// Whether others get what a peer commits, and nothing before.
    const fn shows_commits_alone(&self) -> bool {
        matches!(self.rule, MixingName::GossipOuter | MixingName::DeltaSet)
    }

    /// What the settings of workload, condition and variant make of the product's defaults; those of
    /// the variant are the strongest.
    fn of(work: &Work, condition: &Condition, way: &Way) -> Result<Self, ReadError> {
        let legal = "one of sync to delta-set: real processes alone have the others";
        check([(way.kind.rule() != NO_GOSSIP, "variant.kind", legal)])?;
        let local = ["local_steps", "mix_every"];
        let local = local.map(|key| format!("gossip.{key}={}", work.local_steps));
        let in_step = (way.kind == Kind::Sync).then(|| "gossip.local_steps=1".to_owned());
        let own: Vec<String> = way.kind.settings().iter().map(ToString::to_string).collect();
        let rule = [format!("gossip.rule={}", way.kind.rule())];
        let settings = local.iter().chain(&work.settings).chain(&condition.settings);
        let settings = settings.chain(&in_step).chain(&own).chain(&way.settings).chain(&rule);
        let sections = sections(None, settings)?;
        if let Some(name) = sections.keys().find(|name| !SECTIONS.contains(&name.as_str())) {
            let what = format!("{}: the simulator knows no settings of `{name}`", way.name);
            return Err(ReadError::Setting(what));
        }
        let mut variant: Self = section(&sections, "gossip")?;
        variant.name.clone_from(&way.name);
        variant.optimizer = optimizer(&sections)?;
        Ok(variant)
    }

    /// Local steps per round of exchanges, before the interval follows the link where it does.
    #[must_use]
    pub fn first_interval(&self) -> u64 {
        first_interval(self.mix_every)
    }

    /// The code that the simulator uses: the first.
    #[must_use]
    pub fn codec(&self) -> Codec {
        self.codecs.first().copied().unwrap_or(Codec::F32)
    }
}
