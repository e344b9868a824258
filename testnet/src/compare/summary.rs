//! The numbers of a comparison: every run, and every variant over its seeds.

use std::collections::BTreeMap;

use super::case::Case;
use super::curve::{Curve, CurvePoint, Goal};
use super::earlier::CaseState;
use crate::experiment::Experiment;
use crate::local::Variant;
use crate::local::experiment::NO_GOSSIP;
use crate::metrics::Log;
use crate::report::Results;
use crate::report::consensus::{self, Exact};
use crate::report::record::RunResult;
use crate::report::stats::{MeanSd, MinMedianMax};
use crate::report::units::to_f64;

/// One run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunSummary {
    /// Seed.
    pub seed: u64,
    /// Seconds from the start of the first process to the end of the last.
    pub wall_s: f64,
    /// Held-out loss of the peers' own final models, nats.
    pub loss: MinMedianMax,
    /// Held-out loss of the mean of their parameters.
    pub mean_loss: f64,
    /// Held-out accuracy of the peers' final models, in `[0, 1]`.
    pub accuracy: MinMedianMax,
    /// Held-out accuracy of the mean of their parameters.
    pub mean_accuracy: f64,
    /// Held-out loss of the peers' parameters averaged over the last part of the run.
    pub averaged_loss: Option<MinMedianMax>,
    /// Samples trained on, all peers.
    pub samples: u64,
    /// Bytes sent, mean over the peers.
    pub bytes: f64,
    /// Samples per second of all peers, from the first step to the end of the last process.
    pub samples_per_s: f64,
    /// Time that the samples take a peer alone over the time that the peers took.
    pub utilisation: Option<f64>,
    /// Exchanges by clock lag, commits.
    pub staleness: Vec<u64>,
    /// Distance of the final models to their mean.
    pub consensus: Option<Exact>,
    /// The estimated distance on the way, over the samples of a peer.
    pub distances: Vec<(u64, f64)>,
    /// The run over time.
    pub curve: Curve,
    /// Where it reached the target.
    pub target: Option<CurvePoint>,
}

/// One variant over its seeds.
#[derive(Debug, Clone, PartialEq)]
pub struct VariantSummary {
    /// The variant as it was run.
    pub variant: Variant,
    /// Its runs that ended.
    pub runs: Vec<RunSummary>,
    /// Seeds whose run failed where that is a result, and how.
    pub failures: Vec<(u64, String)>,
}

/// One workload, number of peers and condition.
#[derive(Debug, Clone)]
pub struct CaseSummary {
    /// The case.
    pub case: Case,
    /// How its runs ended.
    pub state: CaseState,
    /// The metrics of its runs, as read.
    pub results: Results,
    /// What is to be reached: the accuracy of the workload, else the reference's last loss and as
    /// much more as the comparison says, mean over seeds; each run has to reach that of its seed.
    pub target: Option<Goal>,
    /// The variants, in order.
    pub variants: Vec<VariantSummary>,
}

impl CaseSummary {
    /// The numbers of a case.
    ///
    /// `results`: the metrics of its runs; `speed`: samples per second of one core that trains alone.
    #[must_use]
    pub fn of(
        case: &Case,
        state: &CaseState,
        results: Results,
        plan: &Experiment,
        speed: Option<f64>,
    ) -> Self {
        let mut variants: Vec<VariantSummary> = Vec::new();
        for variant in &case.experiment.variants {
            let own = results.runs.iter().filter(|run| run.variant.name == variant.name);
            let failed = state.record.runs.iter().filter(|run| run.variant == variant.name);
            variants.push(VariantSummary {
                variant: variant.clone(),
                runs: own.filter_map(|run| summary(run, case, speed)).collect(),
                failures: failed.filter_map(|run| Some((run.seed, run.failure.clone()?))).collect(),
            });
        }
        let reference = variants.iter().find(|variant| variant.variant.name == plan.reference);
        let accuracy = case.work.target_accuracy.map(|percent| Goal::Accuracy(percent / 100.0));
        let excess = 1.0 + plan.target_percent[0] / 100.0;
        let goal = |loss: f64| accuracy.unwrap_or(Goal::Loss(excess * loss));
        let last = reference.and_then(|variant| variant.over_seeds(|run| Some(run.loss.median)));
        let target = last.map(|last| goal(last.mean)).or(accuracy);
        let twins = reference.iter().flat_map(|variant| &variant.runs);
        let own: BTreeMap<u64, Goal> = twins.map(|run| (run.seed, goal(run.loss.median))).collect();
        for run in variants.iter_mut().flat_map(|variant| &mut variant.runs) {
            let target = own.get(&run.seed).copied().or(target);
            run.target = target.and_then(|target| run.curve.reach(target));
        }
        Self { case: case.clone(), state: state.clone(), results, target, variants }
    }

    /// The variant of this name.
    #[must_use]
    pub fn variant(&self, name: &str) -> Option<&VariantSummary> {
        self.variants.iter().find(|variant| variant.variant.name == name)
    }
}

impl VariantSummary {
    /// A number of each run that has it, over the seeds.
    pub fn over_seeds(&self, number: impl Fn(&RunSummary) -> Option<f64>) -> Option<MeanSd> {
        MeanSd::of(self.runs.iter().filter_map(number))
    }

    /// A number of the runs of two variants with the same seed, over those seeds.
    pub fn paired(
        &self,
        other: &Self,
        number: impl Fn(&RunSummary, &RunSummary) -> Option<f64>,
    ) -> Vec<f64> {
        let pairs = self.runs.iter().filter_map(|run| {
            let twin = other.runs.iter().find(|twin| twin.seed == run.seed)?;
            number(run, twin)
        });
        pairs.collect()
    }

    /// Exchanges by clock lag over all seeds.
    #[must_use]
    pub fn staleness(&self) -> Vec<u64> {
        let mut sum: Vec<u64> = Vec::new();
        for run in &self.runs {
            sum.resize(sum.len().max(run.staleness.len()), 0);
            sum.iter_mut().zip(&run.staleness).for_each(|(sum, count)| *sum += count);
        }
        sum
    }
}

/// Samples per second of a core with which a peer trains alone, from runs of one workload, each with
/// its case: all that these peers said they did, over the time that they said it took.
pub fn speed_alone<'a>(runs: impl Iterator<Item = (&'a Case, &'a Results)>) -> Option<f64> {
    let alone = |run: &&RunResult| run.variant.peers == 1 && run.variant.rule == NO_GOSSIP;
    let (mut samples, mut seconds) = (0.0, 0.0);
    for (case, results) in runs {
        for peer in results.runs.iter().filter(alone).flat_map(|run| &run.peers) {
            let mut before = 0;
            for (at, train) in peer.log.train.iter().filter(|(_, train)| train.samples_per_s > 0.0)
            {
                let done = to_f64(at.samples.saturating_sub(before));
                before = at.samples;
                samples += done;
                seconds += done / train.samples_per_s * case.share;
            }
        }
    }
    (seconds > 0.0).then(|| samples / seconds)
}

fn summary(result: &RunResult, case: &Case, speed: Option<f64>) -> Option<RunSummary> {
    let judged = result.judged.as_ref()?;
    let logs: Vec<&Log> = result.peers.iter().map(|peer| &peer.log).collect();
    let measured = || judged.peers.iter().flatten();
    let curve = Curve::of(&logs, result.run.began_unix_s);
    let samples: u64 = logs.iter().map(|log| log.samples()).sum();
    let seconds = result.run.wall_s - curve.startup_s;
    let shares = case.shares(&result.variant);
    let ideal = |speed: f64| -> f64 { shares.iter().map(|share| speed * share).sum() };
    let mut staleness: Vec<u64> = Vec::new();
    for (_, end) in logs.iter().filter_map(|log| log.end.as_ref()) {
        staleness.resize(staleness.len().max(end.staleness_histogram.len()), 0);
        staleness.iter_mut().zip(&end.staleness_histogram).for_each(|(sum, count)| *sum += count);
    }
    Some(RunSummary {
        seed: result.run.seed,
        wall_s: result.run.wall_s,
        loss: MinMedianMax::of(measured().map(|peer| peer.loss))?,
        mean_loss: judged.mean?.loss,
        accuracy: MinMedianMax::of(measured().map(|peer| peer.accuracy))?,
        mean_accuracy: judged.mean?.accuracy,
        averaged_loss: MinMedianMax::of(judged.averaged.iter().flatten().map(|peer| peer.loss)),
        samples,
        bytes: MeanSd::of(logs.iter().map(|log| to_f64(log.bytes_out())))?.mean,
        samples_per_s: to_f64(samples) / seconds,
        utilisation: speed.map(|speed| to_f64(samples) / (ideal(speed) * seconds)),
        staleness,
        consensus: judged.consensus,
        distances: consensus::over_samples(&logs),
        curve,
        target: None,
    })
}
