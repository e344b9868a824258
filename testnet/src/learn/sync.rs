//! The synchronous variants, computed exactly: all-reduce of gradients, and DiLoCo.
//!
//! Nobody is ever ahead, so no core takes part. Time is that of the slowest peer and of a ring over
//! the lines: `2(n−1)` pieces of `4·P/n` bytes, each with one delay (Patarasuk and Yuan 2009).

use dnode_trainer::{LocalTrainer, Replica, StepId, TrainError, Trainer};

use super::case::{LearnError, SimulatedCase, SimulatedVariant};
use super::outcome::{Outcome, Point, Quality};
use super::swarm::{Evaluator, replica, trainer};
use super::tail::Tails;
use crate::file::ReadError;

/// Runs the variant with the seed: with one local step per commit the gradients are averaged, with more
/// the progress, and the outer step is taken on its mean.
///
/// # Errors
/// [`LearnError`].
pub(super) fn run(
    case: &SimulatedCase,
    variant: &SimulatedVariant,
    seed: u64,
) -> Result<Outcome, LearnError> {
    if case.scenario.is_some() {
        let (key, legal) = ("variant.kind", "one that gossips, under a scenario");
        return Err(ReadError::Range { key, legal }.into());
    }
    let fail = |what: String| LearnError::Training { variant: variant.name.clone(), seed, what };
    let mut evaluator = Evaluator::new(case, seed)?;
    let mut swarm = Swarm::new(case, variant, seed)?;
    let parameters = swarm.parameters();
    let peers = u64::from(case.peers);
    let ring = ring(case, parameters.len());
    let slowest = case.slowest().as_secs_f64();
    let mut outcome = Outcome {
        variant: variant.name.clone(),
        seed,
        parameters: parameters.len(),
        ..Outcome::default()
    };
    let mut commits = 0;
    let mut tails = Tails::new(&case.simulation.tails, case.steps);
    for step in 0..case.steps {
        let last = step + 1 == case.steps;
        let committed = swarm.step(step, (step + 1).is_multiple_of(variant.local_steps) || last);
        commits += u64::from(committed.map_err(|error| fail(error.to_string()))?);
        outcome.seconds = (step + 1) as f64 * slowest + commits as f64 * ring.seconds;
        if tails.next() == Some(step + 1) {
            tails.take(step + 1, &swarm.parameters());
        }
        if last || (step + 1).is_multiple_of(case.evaluate_every) {
            let replicas = vec![swarm.parameters(); case.peers as usize];
            let quality = Quality::measure(&mut evaluator, &replicas, false).map_err(fail)?;
            let samples = (step + 1) * peers * case.batch as u64;
            outcome.points.push(Point { samples, seconds: outcome.seconds, quality });
        }
    }
    let replicas = vec![swarm.parameters(); case.peers as usize];
    outcome.last = Quality::measure(&mut evaluator, &replicas, true).map_err(fail)?;
    outcome.tails = tails.losses(&replicas[0], &mut evaluator).map_err(fail)?;
    let count = case.peers as usize;
    outcome.tensor_bytes = vec![ring.bytes * commits; count];
    outcome.control_bytes = vec![0; count];
    (outcome.steps, outcome.commits) = (vec![case.steps; count], vec![commits; count]);
    Ok(outcome)
}

/// Cost of one ring all-reduce.
struct Ring {
    seconds: f64,
    /// That each peer sends.
    bytes: u64,
}

fn ring(case: &SimulatedCase, parameters: usize) -> Ring {
    let pieces = 2 * u64::from(case.peers - 1);
    let bytes = pieces * (4 * parameters as u64) / u64::from(case.peers);
    let link = case.condition.link.clone().unwrap_or_default();
    let on_line = if link.bandwidth > 0.0 { 8.0 * bytes as f64 / link.bandwidth } else { 0.0 };
    Ring { seconds: on_line + pieces as f64 * link.delay.as_micros() as f64 * 1e-6, bytes }
}

/// All peers; their weights are equal after every commit.
enum Swarm {
    Gradients(Vec<LocalTrainer>),
    Progress(Vec<Replica>),
}

impl Swarm {
    fn new(
        case: &SimulatedCase,
        variant: &SimulatedVariant,
        seed: u64,
    ) -> Result<Self, LearnError> {
        let peers = 0..case.peers;
        if variant.local_steps == 1 {
            let trainers = peers.map(|peer| trainer(case, variant, seed, peer));
            return Ok(Self::Gradients(trainers.collect::<Result<_, _>>()?));
        }
        let replicas = peers.map(|peer| replica(case, variant, seed, peer));
        Ok(Self::Progress(replicas.collect::<Result<_, _>>()?))
    }

    /// The weights that all peers had at the last commit.
    fn parameters(&self) -> Vec<f32> {
        match self {
            Self::Gradients(trainers) => {
                let trainer = &trainers[0];
                let mut out = vec![0.0; trainer.layout().parameters()];
                trainer.read(0..out.len(), &mut out);
                out
            }
            Self::Progress(replicas) => replicas[0].parameters(),
        }
    }

    /// One local step of every peer, and a commit if one is due; returns whether it was done.
    fn step(&mut self, step: u64, due: bool) -> Result<bool, TrainError> {
        let at = StepId::alone(step);
        match self {
            Self::Gradients(trainers) => {
                reduce_gradients(trainers, at)?;
                Ok(true)
            }
            Self::Progress(replicas) => {
                for replica in replicas.iter_mut() {
                    replica.step(at)?;
                }
                if due {
                    commit_mean(replicas);
                }
                Ok(due)
            }
        }
    }
}

fn split(trainer: &mut LocalTrainer) -> Result<&mut dyn dnode_trainer::GradientStep, TrainError> {
    let missing = || TrainError::Other("the trainer's step cannot be split".to_owned());
    trainer.split().ok_or_else(missing)
}

fn reduce_gradients(trainers: &mut [LocalTrainer], at: StepId) -> Result<(), TrainError> {
    let mut sum: Vec<f64> = Vec::new();
    for trainer in trainers.iter_mut() {
        let trainer = split(trainer)?;
        trainer.gradient(at)?;
        let gradient = trainer.gradient_mut();
        sum.resize(gradient.len(), 0.0);
        sum.iter_mut().zip(gradient).for_each(|(sum, g)| *sum += f64::from(*g));
    }
    let count = trainers.len() as f64;
    for trainer in trainers {
        let trainer = split(trainer)?;
        let gradient = trainer.gradient_mut();
        gradient.iter_mut().zip(&sum).for_each(|(g, sum)| *g = (sum / count) as f32);
        trainer.update(at)?;
    }
    Ok(())
}

fn commit_mean(replicas: &mut [Replica]) {
    let count = replicas.len() as f64;
    let parameters = replicas.first().map_or(0, |replica| replica.fragments().parameters());
    let (mut sum, mut own) = (vec![0.0_f64; parameters], vec![0.0; parameters]);
    for replica in replicas.iter_mut() {
        replica.progress(&mut own);
        sum.iter_mut().zip(&own).for_each(|(sum, own)| *sum += f64::from(*own));
    }
    for replica in replicas {
        own.iter_mut().zip(&sum).for_each(|(own, sum)| *own = (sum / count) as f32);
        replica.commit_mean(&mut own);
    }
}
