//! The numbers of a report: per peer, per run, and per variant over its seeds, with gaps.

use std::path::{Path, PathBuf};

use super::consensus::{self, ConsensusError, Exact};
use super::record::{PeerResult, Results, RunResult};
use super::stats::{MeanSd, MinMedianMax, percentile};
use super::units::to_f64;
use crate::local::Variant;
use crate::local::experiment::ALL_REDUCE;

/// One peer at its end, or at its last report if it was killed.
#[derive(Debug, Clone, PartialEq)]
pub struct PeerNumbers {
    /// Held-out loss at the end, in nats.
    pub loss: Option<f64>,
    /// Held-out accuracy at the end, in `[0, 1]`.
    pub accuracy: Option<f64>,
    /// Steps made.
    pub steps: u64,
    /// Samples trained on.
    pub samples: u64,
    /// Seconds of training, waits included.
    pub train_s: Option<f64>,
    /// Seconds blocked by a bound.
    pub wait_s: f64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Exchanges by clock lag.
    pub staleness: Vec<u64>,
    /// The step at which it was killed.
    pub killed_at: Option<u64>,
}

/// One variant for one seed.
#[derive(Debug, Clone, PartialEq)]
pub struct RunNumbers {
    /// Seed.
    pub seed: u64,
    /// Seconds from the first start to the last end.
    pub wall_s: f64,
    /// The peers, by index.
    pub peers: Vec<PeerNumbers>,
    /// Final losses of the peers that ended, in nats.
    pub loss: Option<MinMedianMax>,
    /// Final accuracies of the peers that ended, in `[0, 1]`.
    pub accuracy: Option<MinMedianMax>,
    /// Consensus distance of the final parameters.
    pub consensus: Option<Exact>,
}

/// One variant over its seeds.
#[derive(Debug, Clone, PartialEq)]
pub struct VariantNumbers {
    /// The variant.
    pub variant: Variant,
    /// Its runs.
    pub runs: Vec<RunNumbers>,
    /// Distances to variants it should be compared with.
    pub gaps: Vec<LossGap>,
}

/// How much worse the worst peer of a variant is than the median peer of a reference variant, over the
/// seeds that both have.
#[derive(Debug, Clone, PartialEq)]
pub struct LossGap {
    /// Name of the reference variant.
    pub reference: String,
    /// Accuracy of the reference minus accuracy of the worst peer, in percentage points.
    pub accuracy_points: Option<MeanSd>,
    /// Loss of the worst peer divided by the loss of the reference, minus 1, in percent.
    pub loss_percent: Option<MeanSd>,
}

/// All numbers of an experiment, by variant in the order of the plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Numbers(pub Vec<VariantNumbers>);

impl Numbers {
    /// The numbers of `results`. Variants without a completed run are left out.
    ///
    /// # Errors
    /// [`ConsensusError`] if final parameters are named but cannot be compared.
    pub fn of(results: &Results) -> Result<Self, ConsensusError> {
        let mut variants: Vec<VariantNumbers> = Vec::new();
        for result in &results.runs {
            let run = run_numbers(result)?;
            match variants.iter_mut().find(|variant| variant.variant == result.variant) {
                Some(variant) => variant.runs.push(run),
                None => variants.push(VariantNumbers {
                    variant: result.variant.clone(),
                    runs: vec![run],
                    gaps: Vec::new(),
                }),
            }
        }
        let gaps: Vec<Vec<LossGap>> =
            variants.iter().map(|variant| gaps(variant, &variants)).collect();
        for (variant, gaps) in variants.iter_mut().zip(gaps) {
            variant.gaps = gaps;
        }
        Ok(Self(variants))
    }
}

impl RunNumbers {
    /// Samples of all peers together.
    pub fn samples(&self) -> u64 {
        self.peers.iter().map(|peer| peer.samples).sum()
    }

    /// Mean bytes sent by a peer that was not killed.
    pub fn bytes_out_per_peer(&self) -> Option<MeanSd> {
        MeanSd::of(self.ended().map(|peer| to_f64(peer.bytes_out)))
    }

    /// Longest training time of a peer, in seconds.
    pub fn train_s(&self) -> Option<f64> {
        Some(MinMedianMax::of(self.ended().filter_map(|peer| peer.train_s))?.max)
    }

    /// Exchanges of all peers by clock lag.
    pub fn staleness(&self) -> Vec<u64> {
        let mut sum = Vec::new();
        for peer in &self.peers {
            add_histogram(&mut sum, &peer.staleness);
        }
        sum
    }

    /// Peers that were not killed.
    fn ended(&self) -> impl Iterator<Item = &PeerNumbers> {
        self.peers.iter().filter(|peer| peer.killed_at.is_none())
    }
}

impl VariantNumbers {
    /// A number of each run that has it, over the seeds.
    pub fn over_seeds(&self, number: impl Fn(&RunNumbers) -> Option<f64>) -> Option<MeanSd> {
        MeanSd::of(self.runs.iter().filter_map(number))
    }

    /// `p50 / p95 / max` of the clock lag of all exchanges, in commits.
    pub fn staleness(&self) -> Option<String> {
        let mut sum = Vec::new();
        for run in &self.runs {
            add_histogram(&mut sum, &run.staleness());
        }
        show_staleness(&sum)
    }
}

/// `p50 / p95 / max` of a histogram by clock lag, if it has entries.
pub fn show_staleness(histogram: &[u64]) -> Option<String> {
    let at = |share| percentile(histogram, share);
    Some(format!("{} / {} / {}", at(0.5)?, at(0.95)?, at(1.0)?))
}

fn add_histogram(sum: &mut Vec<u64>, more: &[u64]) {
    sum.resize(sum.len().max(more.len()), 0);
    for (total, count) in sum.iter_mut().zip(more) {
        *total += count;
    }
}

fn run_numbers(result: &RunResult) -> Result<RunNumbers, ConsensusError> {
    let killed = |index: usize| result.run.killed_at.get(index).copied().flatten();
    let peers: Vec<PeerNumbers> = result
        .peers
        .iter()
        .enumerate()
        .map(|(index, peer)| peer_numbers(peer, killed(index)))
        .collect();
    let paths: Vec<PathBuf> = result.peers.iter().filter_map(parameters).collect();
    let judged = result.judged.as_ref();
    Ok(RunNumbers {
        seed: result.run.seed,
        wall_s: result.run.wall_s,
        loss: MinMedianMax::of(peers.iter().filter_map(|peer| peer.loss)),
        accuracy: MinMedianMax::of(peers.iter().filter_map(|peer| peer.accuracy)),
        consensus: judged
            .map_or_else(|| consensus::exact(&paths), |judged| Ok(judged.consensus))?,
        peers,
    })
}

/// The file of the final parameters, wherever the folder of the experiment lies by now.
pub(crate) fn parameters(peer: &PeerResult) -> Option<PathBuf> {
    let path = peer.log.end.as_ref()?.1.parameters_path.as_ref()?;
    (!path.as_os_str().is_empty()).then(|| here(peer, path))
}

/// Where a file lies that the peer names, as its own folder is seen from here.
pub(crate) fn here(peer: &PeerResult, path: &Path) -> PathBuf {
    let config = peer.log.start.as_ref().map(|start| &start.config);
    let home = config.and_then(|config| config.get("node")?.get("data_dir")?.as_str());
    let inside = home.and_then(|home| path.strip_prefix(home).ok());
    // An absolute path replaces the directory.
    peer.directory.join(inside.unwrap_or(path))
}

fn peer_numbers(peer: &PeerResult, killed_at: Option<u64>) -> PeerNumbers {
    let log = &peer.log;
    let last = log.train.last();
    match &log.end {
        Some((at, end)) if killed_at.is_none() => PeerNumbers {
            loss: Some(end.loss),
            accuracy: end.accuracy,
            steps: at.step,
            samples: at.samples,
            train_s: Some(end.train_s),
            wait_s: end.wait_s,
            bytes_out: end.bytes_out,
            bytes_in: end.bytes_in,
            staleness: end.staleness_histogram.clone(),
            killed_at,
        },
        Some(_) | None => PeerNumbers {
            loss: None,
            accuracy: None,
            steps: last.map_or(0, |(at, _)| at.step),
            samples: last.map_or(0, |(at, _)| at.samples),
            train_s: None,
            wait_s: last.map_or(0.0, |(_, train)| train.wait_s),
            bytes_out: last.map_or(0, |(_, train)| train.bytes_out),
            bytes_in: last.map_or(0, |(_, train)| train.bytes_in),
            staleness: Vec::new(),
            killed_at,
        },
    }
}

/// The synchronous variant, and for a variant with kills its undisturbed twin.
fn gaps(variant: &VariantNumbers, all: &[VariantNumbers]) -> Vec<LossGap> {
    let is_reference = |other: &&VariantNumbers| {
        let (mine, theirs) = (&variant.variant, &other.variant);
        let twin = theirs.rule == mine.rule && !mine.kills.is_empty();
        theirs.name != mine.name && theirs.kills.is_empty() && (theirs.rule == ALL_REDUCE || twin)
    };
    let references = all.iter().filter(is_reference);
    references.map(|reference| gap(variant, reference)).collect()
}

fn gap(variant: &VariantNumbers, reference: &VariantNumbers) -> LossGap {
    let pairs = || {
        variant.runs.iter().filter_map(|run| {
            let same = reference.runs.iter().find(|other| other.seed == run.seed);
            Some((run, same?))
        })
    };
    let accuracy = |(run, other): (&RunNumbers, &RunNumbers)| {
        Some(100.0 * (other.accuracy?.median - run.accuracy?.min))
    };
    let loss = |(run, other): (&RunNumbers, &RunNumbers)| {
        Some(100.0 * (run.loss?.max / other.loss?.median - 1.0))
    };
    LossGap {
        reference: reference.variant.name.clone(),
        accuracy_points: MeanSd::of(pairs().filter_map(accuracy)),
        loss_percent: MeanSd::of(pairs().filter_map(loss)),
    }
}
