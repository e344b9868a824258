//! What a variant with one seed gave: curves, bytes, staleness; and how it is measured.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use dnode_trainer::DataConfig;
use serde::{Deserialize, Serialize};

use super::case::{SimulatedCase, SimulatedVariant};
use super::swarm::Evaluator;
use crate::experiment::Condition;
use crate::sim::Guarded;

/// One variant with one seed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The variant.
    pub variant: String,
    /// The seed.
    pub seed: u64,
    /// What it follows from besides the seed, in short: [`Outcome::digest_of`]. Files of before have none.
    #[serde(default)]
    pub digest: String,
    /// Parameters of the model.
    pub parameters: usize,
    /// The curve, in order; the last point is after the last step, on as many samples.
    pub points: Vec<Point>,
    /// At the end, on all held-out samples.
    pub last: Quality,
    /// After the peers have settled, on as many samples as a point of the curve.
    #[serde(default)]
    pub settled: Option<Quality>,
    /// The loss of the mean model averaged over each part of the run that the experiment names.
    #[serde(default)]
    pub tails: Vec<f64>,
    /// What a partition did, if there was one.
    #[serde(default)]
    pub healed: Option<Healed>,
    /// What a newcomer did to the others, if there was one.
    #[serde(default)]
    pub joined: Option<Joined>,
    /// Payload bytes that each peer sent: tensors, frames and all.
    pub tensor_bytes: Vec<u64>,
    /// Control bytes that each peer sent.
    pub control_bytes: Vec<u64>,
    /// Local steps of each peer.
    pub steps: Vec<u64>,
    /// Commits of each peer.
    pub commits: Vec<u64>,
    /// Exchanges or contributions applied, both ends counted, all peers.
    pub applied: u64,
    /// Exchanges that ended without effect, all peers.
    pub failed: u64,
    /// Blocks of offers that were written for replicas that are near, all peers.
    #[serde(default)]
    pub blocks: u64,
    /// Those of them that could not be read.
    #[serde(default)]
    pub blocks_unread: u64,
    /// How many were applied at which clock distance of the ends, commits.
    pub lags: BTreeMap<u64, u64>,
    /// How many snapshots or contributions were applied at which age, commits.
    pub ages: BTreeMap<u64, u64>,
    /// What the guards decided.
    #[serde(default)]
    pub guarded: Vec<Guarded>,
    /// Who was told by whom that it is left out.
    #[serde(default)]
    pub left_out_by: BTreeSet<(u32, u32)>,
    /// Virtual seconds until every peer had finished.
    pub seconds: f64,
}

/// Two sides that trained apart, on all held-out samples.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Healed {
    /// Each side when the partition ended.
    pub sides: [Quality; 2],
    /// The weighted mean of the two sides then, each as much as the steps that it did apart.
    pub weighted: Quality,
    /// All peers so many rounds later.
    pub merged: Quality,
    /// Local steps of each side while they were apart.
    pub steps: [u64; 2],
}

/// The peers that were there before a newcomer, after as many rounds as the experiment names: the mean
/// of their losses on all held-out samples.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Joined {
    /// Without the newcomer.
    pub alone: Vec<f64>,
    /// With it.
    pub beside: Vec<f64>,
}

/// A point of a curve.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Training samples processed by all peers together.
    pub samples: u64,
    /// Virtual seconds.
    pub seconds: f64,
    /// Loss and agreement.
    pub quality: Quality,
}

/// How good the swarm's weights are.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Quality {
    /// Held-out loss of the mean of all replicas, nats per sample or token.
    pub mean_model: f64,
    /// Held-out loss of every peer's replica.
    pub peers: Vec<f64>,
    /// Accuracy of every peer's replica, in `[0, 1]`.
    pub accuracy: Vec<f64>,
    /// Accuracy of the mean of all replicas.
    pub mean_accuracy: f64,
    /// Root mean square distance of the replicas to their mean, over the norm of the mean.
    pub distance: f64,
}

impl Quality {
    /// Measures replicas, each `[P]`.
    ///
    /// # Errors
    /// What the trainer says.
    pub(super) fn measure(
        evaluator: &mut Evaluator,
        replicas: &[Vec<f32>],
        all: bool,
    ) -> Result<Self, String> {
        let mean = mean(replicas);
        let of_mean = evaluator.evaluate(&mean, all)?;
        let mut quality = Self {
            mean_model: of_mean.loss,
            mean_accuracy: of_mean.accuracy,
            distance: distance(replicas, &mean),
            ..Self::default()
        };
        for (index, replica) in replicas.iter().enumerate() {
            let same = index.checked_sub(1).and_then(|before| replicas.get(before));
            if same.is_some_and(|before| before == replica) {
                quality.peers.extend(quality.peers.last().copied());
                quality.accuracy.extend(quality.accuracy.last().copied());
                continue;
            }
            let evaluation = evaluator.evaluate(replica, all)?;
            quality.peers.push(evaluation.loss);
            quality.accuracy.push(evaluation.accuracy);
        }
        Ok(quality)
    }

    /// The mean loss of the first so many peers.
    #[must_use]
    pub fn mean_of(&self, peers: usize) -> f64 {
        let losses = &self.peers[..peers.min(self.peers.len())];
        losses.iter().sum::<f64>() / losses.len().max(1) as f64
    }

    /// The largest loss of a peer.
    #[must_use]
    pub fn worst(&self) -> f64 {
        self.peers.iter().copied().fold(f64::NEG_INFINITY, f64::max)
    }

    /// The smallest loss of a peer.
    #[must_use]
    pub fn best(&self) -> f64 {
        self.peers.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// The median loss of the peers.
    #[must_use]
    pub fn median(&self) -> f64 {
        let mut losses = self.peers.clone();
        losses.sort_by(f64::total_cmp);
        losses.get(losses.len() / 2).copied().unwrap_or(f64::NAN)
    }

    /// The smallest accuracy of a peer.
    #[must_use]
    pub fn worst_accuracy(&self) -> f64 {
        self.accuracy.iter().copied().fold(f64::INFINITY, f64::min)
    }
}

/// The mean of replicas, each `[P]`.
pub(super) fn mean(replicas: &[Vec<f32>]) -> Vec<f32> {
    let count = replicas.len() as f64;
    let length = replicas.first().map_or(0, Vec::len);
    let at = |k: usize| replicas.iter().map(|replica| f64::from(replica[k])).sum::<f64>() / count;
    (0..length).map(|k| at(k) as f32).collect()
}

/// `√((1/n) Σ ‖φ_i − φ̄‖²) / ‖φ̄‖`.
fn distance(replicas: &[Vec<f32>], mean: &[f32]) -> f64 {
    let squares = |replica: &Vec<f32>| -> f64 {
        replica.iter().zip(mean).map(|(a, b)| f64::from(a - b).powi(2)).sum()
    };
    let total: f64 = replicas.iter().map(squares).sum();
    let norm: f64 = mean.iter().map(|value| f64::from(*value).powi(2)).sum();
    (total / replicas.len().max(1) as f64 / norm.max(f64::MIN_POSITIVE)).sqrt()
}

/// Hexadecimal digits of a digest: by chance two are equal once in 2⁶⁴.
const DIGEST_LEN: usize = 16;

impl Outcome {
    /// A digest of all that an outcome follows from besides its seed, so that files of unlike experiments
    /// are told apart. Of files of data only their own names count, whatever folder they are in.
    #[must_use]
    pub fn digest_of(case: &SimulatedCase, variant: &SimulatedVariant) -> String {
        let SimulatedCase {
            peers,
            steps,
            batch,
            model,
            data,
            simulation,
            condition,
            factors,
            evaluate_every,
            scenario,
            // These say what is run, and what outcomes are compared with.
            name: _,
            seeds: _,
            targets: _,
            reference: _,
            variants: _,
        } = case;
        let own_name = |path: &Option<PathBuf>| path.as_ref()?.file_name().map(PathBuf::from);
        let data = DataConfig {
            path: own_name(&data.path),
            vocabulary: own_name(&data.vocabulary),
            tokenizer: own_name(&data.tokenizer),
            ..data.clone()
        };
        // The settings of the condition are in those of model, data and variant.
        let condition = Condition {
            name: String::new(),
            what: String::new(),
            workloads: Vec::new(),
            without: Vec::new(),
            settings: Vec::new(),
            ..condition.clone()
        };
        let variant = SimulatedVariant { name: String::new(), ..variant.clone() };
        let sizes = (peers, steps, batch, evaluate_every);
        let all = (sizes, model, data, simulation, condition, factors, scenario, variant);
        let digest = blake3::hash(format!("{all:?}").as_bytes());
        digest.to_hex()[..DIGEST_LEN].to_owned()
    }

    /// Whether it is of this variant of the case, as far as is known.
    #[must_use]
    pub fn is_of(&self, case: &SimulatedCase, variant: &SimulatedVariant) -> bool {
        self.digest.is_empty() || self.digest == Self::digest_of(case, variant)
    }

    /// How much higher the loss of the mean model is at the end than that of `reference`, percent.
    #[must_use]
    pub fn gap_to(&self, reference: &Self) -> f64 {
        100.0 * (self.last.mean_model / reference.last.mean_model - 1.0)
    }

    /// Virtual seconds after which the mean model's loss stays at or below `loss` on the curve,
    /// between two points by a straight line; `None` if it never gets there.
    #[must_use]
    pub fn time_to(&self, loss: f64) -> Option<f64> {
        let reached = |point: &Point| point.quality.mean_model <= loss;
        let above = self.points.iter().rposition(|point| !reached(point));
        let first = above.map_or(0, |above| above + 1);
        let point = self.points.get(first)?;
        let Some(before) = above.and_then(|above| self.points.get(above)) else {
            return Some(point.seconds);
        };
        let (high, low) = (before.quality.mean_model, point.quality.mean_model);
        let share = ((high - loss) / (high - low)).clamp(0.0, 1.0);
        Some(before.seconds + share * (point.seconds - before.seconds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Experiment;

    const TINY: &str = include_str!("../../experiments/tiny.toml");

    fn case(text: &str) -> SimulatedCase {
        SimulatedCase::all(&Experiment::parse(text).unwrap(), None).unwrap().remove(0)
    }

    #[test]
    fn an_outcome_of_something_else_is_known() {
        let tiny = case(TINY);
        let digest = Outcome::digest_of(&tiny, &tiny.variants[0]);
        let outcome = Outcome { digest, ..Outcome::default() };
        let is_of = |other: &SimulatedCase| outcome.is_of(other, &other.variants[0]);
        assert!(is_of(&case(TINY)) && !outcome.is_of(&tiny, &tiny.variants[1]));
        for (from, to) in [
            ("peers = [8]", "peers = [4]"),
            ("steps = 200", "steps = 100"),
            ("batch = 16", "batch = 8"),
            ("evaluations = 4", "evaluations = 5"),
            ("step_time = \"100ms\"", "step_time = \"90ms\""),
            ("hidden=[32]", "hidden=[16]"),
            ("learning_rate=0.001", "learning_rate=0.002"),
            ("data.kind=digits", "data.kind=digits\", \"data.skew=0.1"),
            ("name = \"undisturbed\"", "name = \"slow\"\nslow = { factor = 4.0 }"),
        ] {
            assert!(TINY.contains(from), "{from}");
            assert!(!is_of(&case(&TINY.replace(from, to))), "{to}");
        }
        assert!(!is_of(&case(TINY).under(crate::scenario::Scenario::default()).unwrap()));
    }

    #[test]
    fn names_and_what_is_compared_do_not_count_and_neither_do_folders() {
        let mut tiny = case(TINY);
        tiny.data.path = Some("here/data.txt".into());
        let digest = Outcome::digest_of(&tiny, &tiny.variants[0]);
        let outcome = Outcome { digest, ..Outcome::default() };
        tiny.data.path = Some("/elsewhere/data.txt".into());
        (tiny.name, tiny.condition.what) = ("other".to_owned(), "in words".to_owned());
        (tiny.seeds, tiny.targets) = (vec![7], vec![3.0]);
        assert!(outcome.is_of(&tiny, &tiny.variants[0]));
        tiny.data.path = Some("here/other.txt".into());
        assert!(!outcome.is_of(&tiny, &tiny.variants[0]));
        let mut of_before = serde_json::to_value(&outcome).unwrap();
        of_before.as_object_mut().unwrap().remove("digest").unwrap();
        let of_before: Outcome = serde_json::from_value(of_before).unwrap();
        assert!(of_before.is_of(&tiny, &tiny.variants[0]));
    }
}
