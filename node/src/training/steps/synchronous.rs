//! Steps and commits that all peers of a ring do together: the synchronous baselines.

use std::time::Duration;

use dnode_collective::{Collective, Place, Reduction};
use dnode_trainer::{StepId, StepReport, TrainError};

use super::context::Context;
use super::end::End;
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
    /// Whether all began at the same step, so that they evaluate equal weights at the same time;
    /// `None` before the first operation.
    equal: Option<bool>,
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
        Self { place, way, equal: None, in_parts: None }
    }

    /// The place among ranks whose weights are equal and that evaluate at the same time.
    pub(super) fn equal(&self) -> Option<Place> {
        self.equal.filter(|equal| *equal).map(|_| self.place)
    }

    /// Finds out, before the first operation, whether all ranks are at the same step.
    fn compare(
        &mut self,
        step: u64,
        queues: &Queues,
        patience: Duration,
    ) -> Result<(), TrainError> {
        if self.equal.is_some() {
            return Ok(());
        }
        let Place { rank, size } = self.place;
        let own = [(step >> STEP_BITS) as f32, (step % (1 << STEP_BITS)) as f32];
        let mut all = vec![0.0; own.len() * size];
        all[own.len() * rank..][..own.len()].copy_from_slice(&own);
        self.all_reduce_mean(&mut all, queues, patience)?;
        // All get the same bits, so all find the same.
        let equal = all.chunks(own.len()).all(|theirs| *theirs == all[..own.len()]);
        self.equal = Some(equal);
        if !equal {
            // Mean gradients of unlike weights train none of them.
            let why = "the peers of a synchronous run stand at different steps: copy the checkpoints of one to all, and resume";
            return Err(TrainError::Other(why.to_owned()));
        }
        Ok(())
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
    pub(super) fn step(&mut self, at: StepId, context: &mut Context) -> Result<StepReport, End> {
        let patience = patience(context, 1);
        let split = context.replica.trainer_mut().split();
        let trainer = split.ok_or_else(|| {
            TrainError::Other("all-reduce needs a trainer whose step can be split: choose another gossip.rule, or implement Trainer::split".to_owned())
        })?;
        let queues = &context.queues;
        let compared = self.compare(at.index, queues, patience);
        let gradient = compared.and_then(|()| match &mut self.way {
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
        let StepReport { loss, samples, .. } = gradient.map_err(|error| broken(error, queues))?;
        let trainer = context.replica.trainer_mut().split();
        let updated = trainer.map(|trainer| trainer.update(at)).transpose()?;
        Ok(StepReport { loss, samples, ..updated.unwrap_or_default() })
    }

    /// A commit with the mean progress of all peers: DiLoCo (Douillard et al. 2023, arXiv
    /// 2311.08105, Algorithm 1). Every peer computes the same outer step, so that all hold equal
    /// bits after it, if they did before.
    pub(super) fn commit(&mut self, context: &mut Context) -> Result<(), End> {
        let patience = patience(context, context.cursor.since_commit());
        let mut progress = vec![0.0; context.replica.layout().parameters()];
        context.replica.progress(&mut progress);
        let (queues, step) = (&context.queues, context.cursor.position().step);
        let wait = queues.begin_rank_wait();
        let reduced = self
            .compare(step, queues, patience)
            .and_then(|()| self.all_reduce_mean(&mut progress, queues, patience));
        context.pace.waited(queues.end_rank_wait(wait));
        reduced.map_err(|error| broken(error, queues))?;
        context.replica.commit_mean(&mut progress);
        context.committed();
        Ok(())
    }

    /// Replaces `values` by their sums over all ranks.
    pub(super) fn add_up(&mut self, values: &mut [f32], context: &Context) -> Result<(), End> {
        let reduced = self.all_reduce_mean(values, &context.queues, patience(context, 1));
        reduced.map_err(|error| broken(error, &context.queues))?;
        let ranks = self.place.size as f32;
        values.iter_mut().for_each(|value| *value *= ranks);
        Ok(())
    }
}

/// How long a peer may be silent while it does so many local steps.
fn patience(context: &Context, steps: u64) -> Duration {
    context.pace.synchronous_patience(steps, context.parameters())
}

/// Why an all-reduce has failed: the order to stop also breaks the ring.
fn broken(error: TrainError, queues: &Queues) -> End {
    if queues.is_stopping() { queues.wait_for_stop() } else { End::Failed(error) }
}

/// Why the ranks of a group cannot go on.
fn ended(error: &dnode_collective::Error) -> TrainError {
    TrainError::Other(format!(
        "{error}; synchronous training needs every peer: start all again with --resume"
    ))
}
