//! The experiment file of a comparison: what is trained, in which ways, under which conditions.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::scenario::link::LinkModel;
use crate::scenario::text::duration;

/// What stands for the folder of the data in settings of a workload.
pub const DATA: &str = "{data}";
/// Most runs of one comparison; a limit against typing errors.
pub const RUNS_MAX: usize = 20_000;
/// Most peers of a run.
const PEERS_MAX: usize = 60;
/// Most peers of a synchronous run (`gossip.world`).
const RING_MAX: usize = 8;

/// A comparison: every way of every workload under every condition, once per seed.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Comparison {
    /// What the comparison is about, one sentence, the head of the report.
    pub title: String,
    /// Seeds: initial weights, data order and shards.
    pub seeds: Vec<u64>,
    /// SavedNumbers of peers.
    pub peers: Vec<usize>,
    /// The variant that the others are compared with.
    #[serde(default = "sync")]
    pub reference: String,
    /// Time and bytes are taken when the held-out loss is this close above the last loss of the
    /// reference, percent; for workloads without an accuracy to reach.
    #[serde(default = "target_percent")]
    pub target_percent: f64,
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
    #[serde(default)]
    pub settings: Vec<String>,
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
    PushSum,
    /// The product's rule of this name.
    DeltaSet,
    /// The product's rule of this name.
    Epidemic,
    /// Asynchronous SGD through one process that holds the parameters.
    ParameterServer,
    /// PyTorch `DistributedDataParallel`, where it is installed.
    Ddp,
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
    #[serde(default)]
    pub settings: Vec<String>,
    /// What the tuning rule tries: each trial is a list of settings; as many for every variant.
    #[serde(default)]
    pub trials: Vec<Vec<String>>,
}

/// What disturbs the peers; every variant of a condition is disturbed alike.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Condition {
    /// Its name, of letters, digits, `.` and `-`.
    pub name: String,
    /// What it is, in words, for the report.
    pub what: String,
    /// A peer that is slower than the others.
    pub slow: Option<Slow>,
    /// Lines between the peers, in the words of a scenario's `[link]`; loopback if there are none.
    pub network: Option<LinkModel>,
    /// Peers of a rack, one after the other, which are processes of one machine: `network` is then
    /// between the racks, its bandwidth that of each pair of them; 0 for a machine for each peer.
    pub racks: usize,
    /// Peers that are killed and come back.
    pub churn: Option<Churn>,
    /// Names of the workloads that it is for; all if there are none.
    pub workloads: Vec<String>,
    /// Names of variants that are left out here; the report says so.
    pub without: Vec<String>,
    /// Settings of this condition, stronger than those of the workload: skewed data, bounds.
    pub settings: Vec<String>,
    /// By how much the samples of a run may differ from the budget, percent; one global batch is
    /// always allowed. For conditions in which peers cannot do exactly their steps.
    pub samples_within_percent: f64,
}

/// A slow peer: the last one.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slow {
    /// How many times as long its work takes.
    pub times: f64,
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

fn sync() -> String {
    "sync".to_owned()
}

const fn local_steps() -> u64 {
    25
}

const fn target_percent() -> f64 {
    1.0
}

const fn evaluations() -> u64 {
    20
}

const fn timeout() -> Duration {
    Duration::from_secs(1800)
}

/// An experiment file that cannot be run; its writer is at fault.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// Not TOML, an unknown key, or a value of the wrong kind.
    #[error("read the experiment: {0}")]
    Syntax(#[from] toml::de::Error),
    /// A setting needs the folder of the data.
    #[error("`{0}`: name the folder of the data with --data")]
    Data(String),
    /// A value out of range.
    #[error("read the experiment: {key} must be {legal}")]
    Range {
        /// The key.
        key: &'static str,
        /// What is legal.
        legal: &'static str,
    },
}

impl Way {
    /// Whether it is run in the place, `WORKLOAD-PEERS`.
    #[must_use]
    pub fn is_for(&self, place: &str) -> bool {
        self.places.is_empty() || self.places.iter().any(|own| own == place)
    }
}

impl Condition {
    /// Whether the workload is trained under it.
    #[must_use]
    pub fn is_for(&self, work: &Work) -> bool {
        self.workloads.is_empty() || self.workloads.contains(&work.name)
    }
}

impl Comparison {
    /// Reads an experiment file; [`DATA`] in settings becomes `data`.
    ///
    /// # Errors
    /// [`PlanError`] names the key.
    pub fn read(path: &Path, data: Option<&Path>) -> Result<Self, PlanError> {
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|source| PlanError::File { path: path.to_owned(), source })?;
        let mut comparison = Self::parse(&text)?;
        for setting in comparison.workload.iter_mut().flat_map(|work| &mut work.settings) {
            if setting.contains(DATA) {
                let data = data.ok_or_else(|| PlanError::Data(setting.clone()))?;
                *setting = setting.replace(DATA, &data.display().to_string());
            }
        }
        Ok(comparison)
    }

    /// Reads an experiment file's text.
    ///
    /// # Errors
    /// [`PlanError`] names the key.
    pub fn parse(text: &str) -> Result<Self, PlanError> {
        let comparison: Self = toml::from_str(text)?;
        comparison.check()?;
        Ok(comparison)
    }

    fn check(&self) -> Result<(), PlanError> {
        let names = |names: Vec<&str>| {
            let legal = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
            let plain = names.iter().all(|name| !name.is_empty() && name.chars().all(legal));
            let unique = (1..names.len()).all(|end| !names[..end].contains(&names[end]));
            plain && unique && !names.is_empty()
        };
        let trials = self.variant.first().map_or(0, |variant| variant.trials.len());
        let ring =
            |variant: &Way| matches!(variant.kind, Kind::Sync | Kind::LocalSgd | Kind::Diloco);
        let most = if self.variant.iter().any(ring) { RING_MAX } else { PEERS_MAX };
        let steps = self.workload.iter().all(|w| w.steps > 0 && w.batch > 0);
        let within_percent = |accuracy| accuracy > 0.0 && accuracy <= 100.0;
        let places: Vec<String> = self.places().map(|(work, peers)| place(work, peers)).collect();
        let unequal = "as many for every variant, and a [tuning] rule exactly if there are some";
        let rules = [
            (names(self.workload.iter().map(|work| &*work.name).collect()), "workload.name", NAMES),
            (
                names(self.variant.iter().map(|variant| &*variant.name).collect()),
                "variant.name",
                NAMES,
            ),
            (names(self.condition.iter().map(|c| &*c.name).collect()), "condition.name", NAMES),
            (!self.seeds.is_empty(), "seeds", "one seed or more"),
            (!self.peers.is_empty(), "peers", "one number or more"),
            (
                self.peers.iter().all(|n| (2..=most).contains(n)),
                "peers",
                "2 to 60, 2 to 8 with sync",
            ),
            (
                self.variant.iter().any(|variant| variant.name == self.reference),
                "reference",
                "name of a variant",
            ),
            (self.target_percent >= 0.0, "target_percent", "0 or more"),
            (
                self.workload.iter().filter_map(|w| w.target_accuracy).all(within_percent),
                "workload.target_accuracy",
                "more than 0 and at most 100 percent",
            ),
            (
                self.variant
                    .iter()
                    .flat_map(|variant| &variant.places)
                    .all(|place| places.contains(place)),
                "variant.places",
                "a workload and a number of peers, as `mnist-cnn-4`",
            ),
            (self.evaluations > 0, "evaluations", "at least 1"),
            ((0.0..=1.0).contains(&self.share), "share", "0 to 1"),
            (steps, "workload.steps", "positive"),
            (
                self.variant.iter().all(|variant| variant.trials.len() == trials),
                "variant.trials",
                unequal,
            ),
            (self.tuning.is_some() == (trials > 0), "variant.trials", unequal),
            (
                self.tuning.as_ref().is_none_or(|tuning| !self.seeds.contains(&tuning.seed)),
                "tuning.seed",
                "no seed of the comparison",
            ),
            (self.runs() <= RUNS_MAX, "seeds", "few enough: at most 20000 runs in all"),
        ];
        match rules.into_iter().chain(self.rules_of_conditions()).find(|(legal, _, _)| !legal) {
            Some((_, key, legal)) => Err(PlanError::Range { key, legal }),
            None => Ok(()),
        }
    }

    /// What is legal of conditions: whether it holds, the key, and what it must be.
    fn rules_of_conditions(&self) -> [(bool, &'static str, &'static str); 6] {
        let of_conditions = |legal: fn(&Condition) -> bool| self.condition.iter().all(legal);
        let all = |names: fn(&Condition) -> &Vec<String>| self.condition.iter().flat_map(names);
        [
            (
                of_conditions(|c| c.slow.is_none_or(|s| (1.0..=20.0).contains(&s.times))),
                "condition.slow.times",
                "1 to 20",
            ),
            (
                of_conditions(|c| c.racks != 1 && (c.racks == 0 || c.network.is_some())),
                "condition.racks",
                "0 or 2 and more, with a network",
            ),
            (
                of_conditions(|c| c.churn.is_none_or(|c| c.waves > 0 && c.percent < 100)),
                "condition.churn",
                "one wave or more of less than all peers",
            ),
            (
                of_conditions(|c| (0.0..100.0).contains(&c.samples_within_percent)),
                "condition.samples_within_percent",
                "0 to 100",
            ),
            (
                all(|c| &c.workloads)
                    .all(|name| self.workload.iter().any(|work| &work.name == name)),
                "condition.workloads",
                "names of workloads",
            ),
            (
                all(|c| &c.without).all(|name| self.variant.iter().any(|way| &way.name == name)),
                "condition.without",
                "names of variants",
            ),
        ]
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
        let trials = self.variant.first().map_or(0, |variant| variant.trials.len());
        let of = |(work, peers): (&Work, usize)| {
            let place = place(work, peers);
            let conditions = self.condition.iter().filter(|c| c.is_for(work));
            let compared: usize = conditions.map(|c| self.ways(c, &place).count()).sum();
            let tuned = self.variant.iter().filter(|way| way.is_for(&place)).count();
            trials * tuned + compared * self.seeds.len()
        };
        self.places().map(of).sum()
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
const NAMES: &str = "unique, of letters, digits, `.` and `-`";

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
        slow = { times = 4.0 }
        network = { delay = "5ms", bandwidth = 100e6 }
    "#;

    #[test]
    fn a_file_is_read_and_counted() {
        let plan = Comparison::parse(SMALL).unwrap();
        assert_eq!((plan.runs(), plan.reference.as_str()), (8, "sync"));
        assert_eq!(plan.condition[1].network.as_ref().unwrap().delay, Duration::from_millis(5));
        assert!((plan.share(4, 2) - 0.4).abs() < 1e-9 && (plan.share(4, 16) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn mistakes_are_named() {
        let error = |from: &str, to: &str| {
            assert!(SMALL.contains(from), "{from}");
            Comparison::parse(&SMALL.replace(from, to)).unwrap_err().to_string()
        };
        assert!(error("seeds = [1, 2]", "seeds = []").contains("seeds"));
        assert!(error("peers = [4]", "peers = [9]").contains("2 to 8 with sync"));
        assert!(error("name = \"gossip\"", "name = \"sync\"").contains("variant.name"));
        assert!(error("name = \"slow\"", "name = \"so/me\"").contains("condition.name"));
        assert!(error("times = 4.0", "times = 0.5").contains("slow.times"));
        let racks = "name = \"undisturbed\"\nracks = 2";
        assert!(error("name = \"undisturbed\"", racks).contains("with a network"));
        assert!(error("kind = \"sync\"", "kind = \"sync\"\ntrials = [[]]").contains("trials"));
        assert!(error("title = \"small\"", "titel = \"small\"").contains("titel"));
        assert!(error("name = \"sync\"", "name = \"all\"").contains("reference"));
    }
}
