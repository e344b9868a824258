//! Steps and commits that all peers of a ring do together: the synchronous baselines.

use std::time::Duration;

use dnode_collective::{Collective, Place, Reduction};
use dnode_trainer::{SharedReplica, StepId, StepReport, TrainError};

use super::context::Context;
use super::end::End;
use super::evaluation::Evaluations;
use super::gradient::mean_gradient;
use super::queues::Queues;
use crate::training::Report;
use crate::training::ring::Ring;

/// Bits of a number of steps that an f32 holds exactly, with bits left for a sum.
const STEP_BITS: u32 = 20;

/// The ranks of a synchronous run.
#[derive(Debug)]
pub(super) struct Ranks {
    place: Place,
    way: Way,
    /// Whether all have found that they began at the same step, so that they evaluate equal weights at the
    /// same time.
    equal: bool,
    /// Whether they reduce gradients in parts; `None` before the first.
    in_parts: Option<bool>,
}

/// How the ranks reach each other.
#[derive(Debug)]
enum Way {
    /// A group: all are near each other.
    Near(Box<dyn Collective>),
    /// A ring through the network.
    Far(Ring),
}

impl Ranks {
    /// The group, or a ring through the network without one.
    pub(super) fn new(place: Place, group: Option<Box<dyn Collective>>) -> Self {
        let way = group.map_or_else(|| Way::Far(Ring::new(place)), Way::Near);
        Self { place, way, equal: false, in_parts: None }
    }

    /// The place among ranks whose weights are equal and that evaluate at the same time.
    pub(super) fn equal(&self) -> Option<Place> {
        self.equal.then_some(self.place)
    }

    /// Finds out, before the first operation, whether all ranks are at the same step. From then on all
    /// evaluate as often as the one that does so most often. Returns where the last of them ends, which is then where
    /// all end.
    fn compare(
        &mut self,
        (at, end): (StepId, u64),
        evaluations: &mut Evaluations,
        (queues, patience): (&Queues, Duration),
    ) -> Result<Option<u64>, TrainError> {
        if self.equal {
            return Ok(None);
        }
        let Place { rank, size } = self.place;
        let own = [at.index, at.position, evaluations.every(), end].map(halves);
        let mut all = vec![[0.0; 2]; own.len() * size];
        all[own.len() * rank..][..own.len()].copy_from_slice(&own);
        self.all_reduce_mean(all.as_flattened_mut(), queues, patience)?;
        // All get the same bits, so all find the same.
        let ranks: Vec<&[[f32; 2]]> = all.chunks(own.len()).collect();
        self.equal = ranks.iter().all(|theirs| theirs[..2] == ranks[0][..2]);
        if !self.equal {
            // Mean gradients of unlike weights train none of them.
            let why = "the peers of a synchronous run stand at different steps: copy the checkpoints of one to all, and resume";
            return Err(TrainError::Other(why.to_owned()));
        }
        let every = ranks.iter().map(|theirs| whole(theirs[2], size));
        evaluations.set_every(every.filter(|every| *every > 0).min().unwrap_or(0));
        Ok(ranks.iter().map(|theirs| whole(theirs[3], size)).max())
    }

    /// Replaces `values` by their mean over all ranks, with equal bits at every one. No rank may be
    /// silent for longer than `patience`.
    fn all_reduce_mean(
        &mut self,
        values: &mut [f32],
        queues: &Queues,
        patience: Duration,
    ) -> Result<(), TrainError> {
        match &mut self.way {
            Way::Near(group) => {
                group.set_patience(patience);
                let reduced = group.all_reduce(values, Reduction::Mean);
                reduced.map_err(|error| ended(&error))
            }
            Way::Far(ring) => {
                let send = |chunk| queues.tell(Report::RingSend(chunk)).is_ok();
                ring.all_reduce_mean(values, send, (queues.ring(), patience))
            }
        }
    }

    /// A local step with the mean gradient of all peers: data parallelism.
    pub(super) fn step(
        &mut self,
        at: StepId,
        context: &mut Context,
        evaluations: &mut Evaluations,
    ) -> Result<StepReport, End> {
        let patience = patience(context, 1);
        let split = context.replica.trainer_mut().split();
        let trainer = split.ok_or_else(|| {
            TrainError::Other("all-reduce needs a trainer whose step can be split: choose another gossip.rule, or implement Trainer::split".to_owned())
        })?;
        let queues = &context.queues;
        let place = (at, context.cursor.end());
        let compared = self.compare(place, evaluations, (queues, patience));
        let end = compared.as_ref().copied().unwrap_or_default();
        let gradient = compared.and_then(|_| match &mut self.way {
            Way::Near(group) => {
                group.set_patience(patience);
                let in_parts = &mut self.in_parts;
                let mean = mean_gradient(trainer, (&mut **group, in_parts), at, queues.meter())?;
                mean.reduced.map_err(|error| ended(&error))?;
                context.pace.waited(mean.waited);
                Ok(mean.report)
            }
            Way::Far(_) => {
                let report = trainer.gradient(at)?;
                let wait = queues.begin_rank_wait();
                let reduced = self.all_reduce_mean(trainer.gradient_mut(), queues, patience);
                context.pace.waited(queues.end_rank_wait(wait));
                reduced.map(|()| report)
            }
        });
        let StepReport { loss, samples, .. } =
            gradient.map_err(|error| broken(error, (queues, &context.shared)))?;
        context.end_with(end);
        let trainer = context.replica.trainer_mut().split();
        let updated = trainer.map(|trainer| trainer.update(at)).transpose()?;
        Ok(StepReport { loss, samples, ..updated.unwrap_or_default() })
    }

    /// A commit with the mean progress of all peers: DiLoCo (Douillard et al. 2023, arXiv
    /// 2311.08105, Algorithm 1). Every peer computes the same outer step, so that all hold equal
    /// bits after it, if they did before. An evaluation is due then if one was at any peer.
    pub(super) fn commit(
        &mut self,
        context: &mut Context,
        evaluations: &mut Evaluations,
    ) -> Result<(), End> {
        let patience = patience(context, context.cursor.since_commit());
        let parameters = context.replica.layout().parameters();
        // Behind the progress is the part of the peers at which an evaluation is due.
        let mut values = vec![0.0; parameters + 1];
        context.replica.progress(&mut values[..parameters]);
        values[parameters] = f32::from(evaluations.is_due());
        let (queues, at) = (&context.queues, (context.cursor.step_id(), context.cursor.end()));
        let mut end = None;
        let wait = queues.begin_rank_wait();
        let reduced = self.compare(at, evaluations, (queues, patience)).and_then(|last| {
            end = last;
            self.all_reduce_mean(&mut values, queues, patience)
        });
        context.pace.waited(queues.end_rank_wait(wait));
        reduced.map_err(|error| broken(error, (queues, &context.shared)))?;
        context.end_with(end);
        evaluations.set_due(values[parameters] > 0.0);
        context.replica.commit_mean(&mut values[..parameters]);
        context.committed();
        Ok(())
    }

    /// Whether something holds at any rank; all of them ask.
    pub(super) fn any(&mut self, own: bool, context: &mut Context) -> Result<bool, End> {
        let mut sum = [f32::from(own)];
        let wait = context.queues.begin_rank_wait();
        let added = self.add_up(&mut sum, context);
        context.pace.waited(context.queues.end_rank_wait(wait));
        added.map(|()| sum[0] > 0.0)
    }

    /// Replaces `values` by their sums over all ranks.
    pub(super) fn add_up(&mut self, values: &mut [f32], context: &Context) -> Result<(), End> {
        let reduced = self.all_reduce_mean(values, &context.queues, patience(context, 1));
        reduced.map_err(|error| broken(error, (&context.queues, &context.shared)))?;
        let ranks = self.place.size as f32;
        values.iter_mut().for_each(|value| *value *= ranks);
        Ok(())
    }
}

/// A number as two that an f32 holds exactly.
fn halves(number: u64) -> [f32; 2] {
    [(number >> STEP_BITS) as f32, (number % (1 << STEP_BITS)) as f32]
}

/// A number of which each of so many ranks has the mean with zeros of the others.
fn whole(mean: [f32; 2], ranks: usize) -> u64 {
    let [high, low] = mean.map(|half| (half * ranks as f32).round() as u64);
    (high << STEP_BITS) + low
}

/// How long a peer may be silent while it does so many local steps.
fn patience(context: &Context, steps: u64) -> Duration {
    context.pace.synchronous_patience(steps, context.parameters())
}

/// Why an all-reduce has failed: the order to stop also breaks the ring.
fn broken(error: TrainError, (queues, shared): (&Queues, &SharedReplica)) -> End {
    if queues.is_stopping() { queues.wait_for_stop(shared) } else { End::Failed(error) }
}

/// Why the ranks of a group cannot go on.
fn ended(error: &dnode_collective::Error) -> TrainError {
    TrainError::Other(format!(
        "{error}; synchronous training needs every peer: start all again with --resume"
    ))
}
