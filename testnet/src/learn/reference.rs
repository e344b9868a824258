//! Robust aggregation as the literature has it: what the product's rules are measured beside.
//!
//! All peers show all their weights to all others at the same time, and every peer takes over the one
//! aggregate. Nobody is late, nobody loses a message, and the number of faulty peers is known. The product
//! has none of that, so these are bounds to compare with and not rules to use.

use dnode_trainer::{StepId, TrainError, Trainer};

use super::case::{LearnError, SimulatedCase};
use super::misbehaviour::{Mask, Wrong};
use super::outcome::{Outcome, Quality, mean as mean_replica};
use super::swarm::{Evaluator, put, trainer_of};

/// Steps of centered clipping; its paper uses one to three.
const CLIP_STEPS: usize = 3;

/// A way to make one replica of many, of which some may be anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aggregator {
    /// The mean: no defence.
    Mean,
    /// The median of each weight (Yin et al. 2018, arXiv 1803.01498).
    Median,
    /// The mean of each weight without the largest and smallest ones, as many as peers may be faulty (the
    /// same).
    TrimmedMean,
    /// The replica whose `n − f − 2` nearest are nearest (Blanchard et al. 2017, arXiv 1703.02757).
    Krum,
    /// The last aggregate, moved by the mean of what the replicas add, each shortened to a radius
    /// (Karimireddy et al. 2021, arXiv 2012.10333); the radius is the median of their lengths.
    CenteredClip,
}

impl Aggregator {
    /// All of them, in the order of the table.
    pub const ALL: [Self; 5] =
        [Self::Mean, Self::Median, Self::TrimmedMean, Self::Krum, Self::CenteredClip];

    /// For tables and the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::Median => "median",
            Self::TrimmedMean => "trimmed-mean",
            Self::Krum => "krum",
            Self::CenteredClip => "centered-clip",
        }
    }

    /// The aggregator of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.name() == name)
    }

    /// One replica, `[P]`, of those `shown`, each `[P]` and finite, of which so many may be faulty;
    /// `last` is the aggregate before, `[P]`.
    fn combine(self, last: &[f32], shown: &[Vec<f32>], faulty: usize) -> Vec<f32> {
        match self {
            Self::Mean => mean_replica(shown),
            Self::Median => each_weight(shown, |values| median(values)),
            Self::TrimmedMean => each_weight(shown, |values| {
                let cut = faulty.min(values.len().saturating_sub(1) / 2);
                values.sort_by(f64::total_cmp);
                mean(&values[cut..values.len() - cut])
            }),
            Self::Krum => krum(shown, faulty),
            Self::CenteredClip => centered_clip(last, shown),
        }
    }
}

fn each_weight(shown: &[Vec<f32>], one: impl Fn(&mut Vec<f64>) -> f64) -> Vec<f32> {
    let length = shown.first().map_or(0, Vec::len);
    let mut values = Vec::with_capacity(shown.len());
    let at = |k: usize| {
        values.clear();
        values.extend(shown.iter().map(|replica| f64::from(replica[k])));
        one(&mut values) as f32
    };
    (0..length).map(at).collect()
}

/// 0 of nothing.
pub(crate) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// The mean of the two in the middle where the count is even; 0 of nothing.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let (low, high) = (values.len().saturating_sub(1) / 2, values.len() / 2);
    let at = |index: usize| values.get(index).copied().unwrap_or_default();
    f64::midpoint(at(low), at(high))
}

fn distance(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum::<f64>().sqrt()
}

fn krum(shown: &[Vec<f32>], faulty: usize) -> Vec<f32> {
    let near = shown.len().saturating_sub(faulty + 2).max(1);
    let score = |replica: &Vec<f32>| -> f64 {
        let mut squares: Vec<f64> =
            shown.iter().map(|other| distance(replica, other).powi(2)).collect();
        squares.sort_by(f64::total_cmp);
        // The first is its distance to itself.
        squares.iter().skip(1).take(near).sum()
    };
    let best = shown.iter().min_by(|a, b| score(a).total_cmp(&score(b)));
    best.cloned().unwrap_or_default()
}

fn centered_clip(last: &[f32], shown: &[Vec<f32>]) -> Vec<f32> {
    let mut centre = last.to_vec();
    for _ in 0..CLIP_STEPS {
        let lengths: Vec<f64> = shown.iter().map(|replica| distance(replica, &centre)).collect();
        let radius = median(&mut lengths.clone());
        let share = |length: f64| if length > radius { radius / length } else { 1.0 };
        let mut moved = vec![0.0; centre.len()];
        for (replica, length) in shown.iter().zip(lengths) {
            let weight = share(length) / shown.len() as f64;
            for ((moved, x), c) in moved.iter_mut().zip(replica).zip(&centre) {
                *moved += weight * (f64::from(*x) - f64::from(*c));
            }
        }
        centre.iter_mut().zip(moved).for_each(|(c, moved)| *c += moved as f32);
    }
    centre
}

/// A peer: its trainer, and what it shows in place of its weights if it misbehaves in that way.
struct Peer {
    is_honest: bool,
    trainer: Box<dyn Trainer>,
    mask: Option<Mask>,
}

impl Peer {
    /// Its weights, `[P]`.
    fn weights(&self) -> Vec<f32> {
        let mut weights = vec![0.0; self.trainer.layout().parameters()];
        self.trainer.read(0..weights.len(), &mut weights);
        weights
    }

    fn step(&mut self, at: StepId) -> Result<(), TrainError> {
        self.trainer.step(at)?;
        if let Some(mask) = &mut self.mask {
            mask.step();
        }
        Ok(())
    }

    /// What it shows the others, `[P]`.
    fn show(&mut self) -> Vec<f32> {
        let own = self.weights();
        self.mask.as_mut().map_or_else(|| own.clone(), |mask| mask.show(0..own.len(), &own))
    }

    /// It is shown what others show.
    fn see(&mut self, shown: &[Vec<f32>]) {
        let own = self.weights();
        if let Some(mask) = &mut self.mask {
            shown.iter().for_each(|other| mask.see(0..own.len(), &own, other));
        }
    }
}

impl Outcome {
    /// The end of so many peers that have lost their weights.
    fn ruined(mut self, peers: usize) -> Self {
        self.last.peers = vec![f64::INFINITY; peers];
        self.last.accuracy = vec![0.0; peers];
        self
    }
}

/// Runs the case with the seed: an aggregate at every commit of its first variant, whose optimizer the
/// peers have. Peers that are absent are not there from the beginning.
///
/// # Errors
/// [`LearnError`].
pub fn run(case: &SimulatedCase, aggregator: Aggregator, seed: u64) -> Result<Outcome, LearnError> {
    let variant = &case.variants[0];
    let is_absent = |peer: &u32| case.wrong(*peer).is_some_and(|it| it.kind == Wrong::Absent);
    let faulty = case.condition.misbehaviour.map_or(0, |wrong| wrong.peers as usize);
    let build = |peer: u32| -> Result<Peer, LearnError> {
        let (wrong, trainer) = (case.wrong(peer), trainer_of(case, variant, seed, peer)?);
        let mut built = Peer { is_honest: wrong.is_none(), trainer, mask: None };
        built.mask = Mask::of(wrong, || built.weights());
        Ok(built)
    };
    let here = (0..case.peers).filter(|peer| !is_absent(peer));
    let mut peers = here.map(build).collect::<Result<Vec<_>, _>>()?;
    let mut aggregate = peers.first().map(Peer::weights).unwrap_or_default();
    let mut outcome = Outcome {
        variant: aggregator.name().to_owned(),
        seed,
        parameters: aggregate.len(),
        seconds: case.steps as f64 * case.slowest().as_secs_f64(),
        ..Outcome::default()
    };
    for step in 0..case.steps {
        // Numbers that are not finite end the training of who has them; whoever attacks goes on showing.
        let ended = |peer: &mut Peer| peer.step(StepId::alone(step)).is_err() && peer.is_honest;
        if peers.iter_mut().any(ended) {
            return Ok(outcome.ruined(peers.len()));
        }
        if (step + 1).is_multiple_of(variant.local_steps) || step + 1 == case.steps {
            let mut shown: Vec<Vec<f32>> = peers.iter_mut().map(Peer::show).collect();
            for (index, peer) in peers.iter_mut().enumerate() {
                peer.see(&shown[..index]);
                peer.see(&shown[index + 1..]);
            }
            shown.retain(|replica| replica.iter().all(|value| value.is_finite()));
            // What is not finite is plainly faulty, and nobody takes it.
            let left = faulty.saturating_sub(peers.len() - shown.len());
            aggregate = aggregator.combine(&aggregate, &shown, left);
            peers.iter_mut().for_each(|peer| put(peer.trainer.as_mut(), &aggregate));
        }
    }
    let mut evaluator = Evaluator::new(case, seed)?;
    let replicas = vec![aggregate; peers.len()];
    let Ok(last) = Quality::measure(&mut evaluator, &replicas, true) else {
        return Ok(outcome.ruined(peers.len()));
    };
    outcome.last = last;
    outcome.steps = vec![case.steps; peers.len()];
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Six replicas near 1 and `faulty` others.
    fn shown(wild: &[f32], faulty: usize) -> Vec<Vec<f32>> {
        let honest = (0..6).map(|peer| vec![1.0 + 0.01 * peer as f32; 3]);
        honest.chain((0..faulty).map(|_| wild.to_vec())).collect()
    }

    proptest! {
        #[test]
        fn nothing_that_two_of_eight_show_leads_a_robust_aggregate_away(
            wild in prop::collection::vec(-1e30_f32..1e30, 3)
        ) {
            let robust = [Aggregator::Median, Aggregator::TrimmedMean, Aggregator::Krum];
            for aggregator in robust {
                let one = aggregator.combine(&[1.0; 3], &shown(&wild, 2), 2);
                prop_assert!(one.iter().all(|x| (1.0..=1.05).contains(x)), "{aggregator:?} {one:?}");
            }
            let one = Aggregator::CenteredClip.combine(&[1.0; 3], &shown(&wild, 2), 2);
            // Two of eight move it by a quarter of the radius in each step.
            prop_assert!(one.iter().all(|x| (0.9..=1.15).contains(x)), "{one:?}");
        }
    }

    #[test]
    fn replicas_that_are_all_alike_are_the_aggregate() {
        for aggregator in Aggregator::ALL {
            let one = aggregator.combine(&[0.0; 3], &vec![vec![2.0; 3]; 4], 1);
            assert_eq!(one, [2.0; 3], "{aggregator:?}");
            assert_eq!(Aggregator::named(aggregator.name()), Some(aggregator));
        }
    }

    #[test]
    fn the_mean_has_no_defence_and_the_trimmed_one_cuts_at_both_ends() {
        let four = [vec![-9.0], vec![1.0], vec![2.0], vec![99.0]];
        assert_eq!(Aggregator::Mean.combine(&[0.0], &four, 1), [93.0 / 4.0]);
        assert_eq!(Aggregator::TrimmedMean.combine(&[0.0], &four, 1), [1.5]);
        assert_eq!(Aggregator::Median.combine(&[0.0], &four[..3], 1), [1.0]);
    }
}
