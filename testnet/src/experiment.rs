//! Experiment files: what is trained, in which ways, under which conditions.
//!
//! ```text
//! testnet/comparisons/*.toml ─┐
//! testnet/experiments/*.toml ─┴─ Experiment ──┬─▶ compare: real processes
//!                                             └─▶ learn: the simulator, in virtual time
//! ```
//! One vocabulary for both. A key that one of them cannot carry out it refuses.

mod condition;
mod rules;
pub(crate) mod settings;

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::file::{self, ReadError, duration};
use crate::local::experiment::{ALL_REDUCE, NO_GOSSIP};

pub use self::condition::{Churn, Condition, Newcomer, Slow, Split};

/// What stands for the folder of the data in settings of a workload.
pub const DATA: &str = "{data}";
/// Most runs of one comparison; a limit against typing errors.
pub const RUNS_MAX: usize = 20_000;
/// Most peers of a run.
const PEERS_MAX: usize = 60;
/// Name of the condition under which variants are tuned.
pub(crate) const TUNING: &str = "tuning";
/// Most peers of a synchronous run (`gossip.world`).
const RING_MAX: usize = 8;

/// An experiment: every way of every workload under every condition, once per seed.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// What the comparison is about, one sentence, the head of the report.
    pub title: String,
    /// Seeds: initial weights, data order and shards.
    pub seeds: Vec<u64>,
    /// Numbers of peers.
    pub peers: Vec<usize>,
    /// The variant that the others are compared with; the first if none is named.
    #[serde(default)]
    pub reference: String,
    /// Time and bytes are taken when the held-out loss is this close above the last loss of the
    /// reference, percent; for workloads without an accuracy to reach. Real processes have the first.
    #[serde(default = "target_percent")]
    pub target_percent: Vec<f64>,
    /// Evaluations of a run, which are the points of its curve.
    #[serde(default = "evaluations")]
    pub evaluations: u64,
    /// Cores of each peer, in `(0, 1]`; 0 for as many as let all peers and one more process run at
    /// the same time.
    #[serde(default)]
    pub share: f64,
    /// Longest time of one run.
    #[serde(default = "timeout", with = "duration")]
    pub timeout: Duration,
    /// How the settings of each variant are chosen.
    #[serde(default)]
    pub tuning: Option<Tuning>,
    /// How the simulator runs it.
    #[serde(default)]
    pub simulation: Simulation,
    /// What is trained.
    pub workload: Vec<Work>,
    /// The ways to train.
    pub variant: Vec<Way>,
    /// The conditions.
    pub condition: Vec<Condition>,
}

/// The tuning rule: every variant gets the same number of trials, and keeps the best.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tuning {
    /// The rule in words, for the report.
    pub rule: String,
    /// Seed of the trials, not one of the comparison.
    pub seed: u64,
}

/// How long things take in virtual time, and how much is measured.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Simulation {
    /// Time of a local step of a peer of mean speed.
    #[serde(with = "duration")]
    pub step_time: Duration,
    /// Longest time one piece of trainer work takes.
    #[serde(with = "duration")]
    pub work: Duration,
    /// Whether all peers begin at the same moment, instead of within one round.
    pub together: bool,
    /// Held-out samples of a point of a curve; the last one has all of them.
    pub samples: usize,
    /// Last parts of a run, shares of it, over which the mean model is averaged and measured beside its
    /// last weights.
    pub tails: Vec<f64>,
    /// On which held-out samples losses are measured.
    pub held_out: HeldOut,
}

/// A part of the held-out samples: settings are tuned on one, and results come from the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HeldOut {
    /// All of them.
    #[default]
    All,
    /// The first half: what settings are chosen by.
    Tuning,
    /// The second half: what is reported.
    Report,
}

impl HeldOut {
    /// Which of so many samples these are.
    #[must_use]
    pub const fn range(self, len: usize) -> Range<usize> {
        match self {
            Self::All => 0..len,
            Self::Tuning => 0..len / 2,
            Self::Report => len / 2..len,
        }
    }
}

impl Default for Simulation {
    fn default() -> Self {
        let [step_time, work] = [100, 5].map(Duration::from_millis);
        let (tails, held_out) = (Vec::new(), HeldOut::All);
        Self { step_time, work, together: false, samples: 256, tails, held_out }
    }
}

/// What is trained: samples are equal in every variant.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Work {
    /// Its name, of letters, digits and `-`.
    pub name: String,
    /// Local steps of each peer (`run.steps`).
    pub steps: u64,
    /// Samples of each step of each peer (`run.batch`).
    pub batch: u64,
    /// Local steps per commit, and per round of exchanges, of every variant that has some.
    #[serde(default = "local_steps")]
    pub local_steps: u64,
    /// Held-out accuracy at which time and bytes are taken, percent, in place of a loss.
    #[serde(default)]
    pub target_accuracy: Option<f64>,
    /// Model, data and optimizer: settings `section.key=value` for every peer.
    #[serde(default, rename = "set")]
    pub settings: Vec<String>,
    /// What the tuning rule tries for every variant that names no trials of its own.
    #[serde(default)]
    pub trials: Vec<Vec<String>>,
}

impl Work {
    /// What the tuning rule tries for a variant.
    #[must_use]
    pub fn trials_of<'a>(&'a self, way: &'a Way) -> &'a [Vec<String>] {
        if way.trials.is_empty() { &self.trials } else { &way.trials }
    }
}

/// How a variant trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// One peer alone, which does all the steps one after the other.
    Single,
    /// The mean gradient in every step: data-parallel training with one global batch.
    Sync,
    /// Local steps, then the mean of the weights.
    LocalSgd,
    /// Local steps, then an outer step on the mean progress.
    Diloco,
    /// The product's rule of this name.
    GossipOuter,
    /// The product's rule of this name.
    Pairwise,
    /// The product's rule of this name.
    DeltaSet,
    /// Asynchronous SGD through one process that holds the parameters.
    ParameterServer,
    /// PyTorch `DistributedDataParallel`, where it is installed.
    Ddp,
    /// A loop of PyTorch that joins by the package `dnode` with rule `pairwise`, where it is installed.
    DnodePython,
    /// `hivemind.Optimizer` with local updates, where it is installed.
    Hivemind,
}

/// One variant.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Way {
    /// Its name, of letters, digits and `-`.
    pub name: String,
    /// How it trains.
    pub kind: Kind,
    /// Where it is run, each `WORKLOAD-PEERS`; everywhere if there are none.
    #[serde(default)]
    pub places: Vec<String>,
    /// Settings `section.key=value` of this variant.
    #[serde(default, rename = "set")]
    pub settings: Vec<String>,
    /// What the tuning rule tries, in place of what the workload says: each trial is a list of settings;
    /// as many for every variant.
    #[serde(default)]
    pub trials: Vec<Vec<String>>,
}

const fn local_steps() -> u64 {
    25
}

fn target_percent() -> Vec<f64> {
    vec![1.0, 2.0]
}

const fn evaluations() -> u64 {
    20
}

const fn timeout() -> Duration {
    Duration::from_secs(1800)
}

impl Kind {
    /// Its mixing rule, `gossip.rule`.
    #[must_use]
    pub const fn rule(self) -> &'static str {
        match self {
            Self::Sync | Self::LocalSgd | Self::Diloco => ALL_REDUCE,
            Self::GossipOuter => "gossip-outer",
            Self::Pairwise | Self::DnodePython => "pairwise",
            Self::DeltaSet => "delta-set",
            Self::Single | Self::ParameterServer | Self::Ddp | Self::Hivemind => NO_GOSSIP,
        }
    }

    /// The settings that make it what it is.
    #[must_use]
    pub const fn settings(self) -> &'static [&'static str] {
        match matches!(self, Self::LocalSgd) {
            true => &["gossip.outer_learning_rate=1.0", "gossip.outer_momentum=0.0"],
            false => &[],
        }
    }
}

impl Way {
    /// Whether it is run in the place, `WORKLOAD-PEERS`.
    #[must_use]
    pub fn is_for(&self, place: &str) -> bool {
        self.places.is_empty() || self.places.iter().any(|own| own == place)
    }
}

impl Experiment {
    /// Reads an experiment file; [`DATA`] in settings becomes `data`.
    ///
    /// # Errors
    /// [`ReadError`] names the key.
    pub fn read(path: &Path, data: Option<&Path>) -> Result<Self, ReadError> {
        let mut experiment = Self::parse(&file::text(path)?)?;
        let Self { workload, variant, condition, .. } = &mut experiment;
        let of_workloads =
            workload.iter_mut().flat_map(|it| [&mut it.settings].into_iter().chain(&mut it.trials));
        let of_variants =
            variant.iter_mut().flat_map(|it| [&mut it.settings].into_iter().chain(&mut it.trials));
        let of_conditions = condition.iter_mut().map(|it| &mut it.settings);
        for setting in of_workloads.chain(of_variants).chain(of_conditions).flatten() {
            if setting.contains(DATA) {
                let data = data.ok_or_else(|| ReadError::Data(setting.clone()))?;
                *setting = setting.replace(DATA, &data.display().to_string());
            }
        }
        Ok(experiment)
    }

    /// Reads an experiment file's text.
    ///
    /// # Errors
    /// [`ReadError`] names the key.
    pub fn parse(text: &str) -> Result<Self, ReadError> {
        let mut experiment: Self = toml::from_str(text)?;
        if let (true, Some(first)) = (experiment.reference.is_empty(), experiment.variant.first()) {
            experiment.reference.clone_from(&first.name);
        }
        experiment.check()?;
        Ok(experiment)
    }

    /// Trials of each variant of a workload.
    #[must_use]
    pub fn trials(&self, work: &Work) -> usize {
        self.variant.first().map_or(0, |way| work.trials_of(way).len())
    }

    /// Every workload with every number of peers.
    pub fn places(&self) -> impl Iterator<Item = (&Work, usize)> {
        self.workload.iter().flat_map(|work| self.peers.iter().map(move |&peers| (work, peers)))
    }

    /// The variants that the condition lets run in a place.
    pub fn ways<'a>(
        &'a self,
        condition: &'a Condition,
        place: &str,
    ) -> impl Iterator<Item = &'a Way> {
        let place = place.to_owned();
        let runs = move |way: &&Way| way.is_for(&place) && !condition.without.contains(&way.name);
        self.variant.iter().filter(runs)
    }

    /// Runs in all, trials included.
    pub fn runs(&self) -> usize {
        let of = |(work, peers): (&Work, usize)| {
            let place = place(work, peers);
            let conditions = self.condition.iter().filter(|c| c.is_for(work));
            let compared: usize = conditions.map(|c| self.ways(c, &place).count()).sum();
            let tuned = self.variant.iter().filter(|way| way.is_for(&place)).count();
            self.trials(work) * tuned + compared * self.seeds.len()
        };
        self.places().map(of).sum()
    }

    /// Steps between two points of the curve of a run of `steps`.
    #[must_use]
    pub fn between_points(&self, steps: u64) -> u64 {
        (steps / self.evaluations).max(1)
    }

    /// Cores of each of `peers` peers on a machine of `cores`.
    pub fn share(&self, peers: usize, cores: usize) -> f64 {
        if self.share > 0.0 {
            return self.share;
        }
        // One more than there are peers: the emulator, or the process that serves parameters.
        #[expect(clippy::cast_precision_loss, reason = "a machine has few cores")]
        let share = cores as f64 / (peers + 1) as f64;
        share.min(1.0)
    }
}

/// Name of a workload with a number of peers.
#[must_use]
pub fn place(work: &Work, peers: usize) -> String {
    format!("{}-{peers}", work.name)
}

/// What a name may be.
#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"
        title = "small"
        seeds = [1, 2]
        peers = [4]
        [[workload]]
        name = "digits"
        steps = 100
        batch = 16
        [[variant]]
        name = "sync"
        kind = "sync"
        [[variant]]
        name = "gossip"
        kind = "gossip-outer"
        [[condition]]
        name = "undisturbed"
        [[condition]]
        name = "slow"
        slow = { factor = 4.0 }
        link = { delay = "5ms", bandwidth = 100e6 }
    "#;

    #[test]
    fn a_file_is_read_and_counted() {
        let plan = Experiment::parse(SMALL).unwrap();
        assert_eq!((plan.runs(), plan.reference.as_str()), (8, "sync"));
        assert_eq!(plan.condition[1].link.as_ref().unwrap().delay, Duration::from_millis(5));
        assert!((plan.share(4, 2) - 0.4).abs() < 1e-9 && (plan.share(4, 16) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn mistakes_are_named() {
        let error = |from: &str, to: &str| {
            assert!(SMALL.contains(from), "{from}");
            let read = Experiment::parse(&SMALL.replace(from, to));
            read.and_then(|plan| plan.check_for_processes()).unwrap_err().to_string()
        };
        assert!(error("seeds = [1, 2]", "seeds = []").contains("seeds"));
        assert!(error("peers = [4]", "peers = [9]").contains("2 to 8 with sync"));
        assert!(error("name = \"gossip\"", "name = \"sync\"").contains("variant.name"));
        assert!(error("name = \"slow\"", "name = \"so/me\"").contains("condition.name"));
        assert!(error("factor = 4.0", "factor = 0.5").contains("slow.factor"));
        let racks = "name = \"undisturbed\"\nracks = 2";
        assert!(error("name = \"undisturbed\"", racks).contains("with a link"));
        assert!(error("kind = \"sync\"", "kind = \"sync\"\ntrials = [[]]").contains("trials"));
        assert!(error("title = \"small\"", "titel = \"small\"").contains("titel"));
        assert!(error("peers = [4]", "peers = [4]\nreference = \"all\"").contains("reference"));
    }
}
