//! Steps and commits that all peers of a ring do together: the synchronous baselines.

use std::time::{Duration, Instant};

use dnode_collective::{Collective, Place, Reduction};
use dnode_trainer::{StepId, StepReport, TrainError};

use super::gradient::mean_gradient;
use super::{End, Queues, Training};
use crate::training::ring::{RING_TIMEOUT, Ring};
use crate::training::{Activity, Report};

/// How many times slower than this peer another may be before the ranks give it up.
pub(super) const SLOWER_MAX: f64 = 10.0;
/// Bits of a number of steps that an f32 holds exactly, with room for a sum.
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

/// How they reach each other.
#[derive(Debug)]
enum Way {
    /// All near each other.
    Near(Box<dyn Collective>),
    /// Joined through the network.
    Far(Ring),
}

impl Ranks {
    /// The group, or a ring through the network without one.
    pub(super) fn new(place: Place, group: Option<Box<dyn Collective>>) -> Self {
        let way = group.map_or_else(|| Way::Far(Ring::new(place)), Way::Near);
        Self { place, way, equal: None, in_parts: None }
    }

    /// The place among ranks whose weights are equal and that evaluate at the same time.
    pub(super) fn equals(&self) -> Option<Place> {
        self.equal.filter(|equal| *equal).map(|_| self.place)
    }

    /// Finds out at the first of its operations whether all ranks are before the same step.
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
        self.equal = Some(all.chunks(own.len()).all(|theirs| *theirs == all[..own.len()]));
        Ok(())
    }

    /// Replaces `values` by their mean over all ranks, equal bits at every one. Nobody may be silent
    /// for longer than `patience`.
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
                let send = |chunk| queues.reports.blocking_send(Report::RingSend(chunk)).is_ok();
                ring.all_reduce_mean(values, send, (&queues.ring, patience))
            }
        }
    }
}

/// Why the ranks of a group cannot go on.
fn ended(error: &dnode_collective::Error) -> TrainError {
    TrainError::Other(format!(
        "{error}; synchronous training needs every peer: start all again with --resume"
    ))
}

impl Training {
    /// A local step with the mean gradient of all peers: data parallelism.
    pub(super) fn step_together(&mut self, at: StepId) -> Result<StepReport, End> {
        let patience = self.patience(1);
        let Some(ring) = self.ring.as_mut() else { return Ok(self.replica.step(at)?) };
        let split = self.replica.trainer_mut().split();
        let trainer = split.ok_or_else(|| {
            TrainError::Other("all-reduce needs a trainer whose step can be split: choose another gossip.rule, or implement Trainer::split".to_owned())
        })?;
        let compared = ring.compare(at.index, &self.queues, patience);
        let gradient = compared.and_then(|()| match &mut ring.way {
            Way::Near(group) => {
                group.set_patience(patience);
                let (in_parts, meter) = (&mut ring.in_parts, &self.queues.meter);
                let mean = mean_gradient(trainer, (&mut **group, in_parts), at, meter)?;
                mean.reduced.map_err(|error| ended(&error))?;
                self.wait_seconds += mean.waited;
                Ok(mean.report)
            }
            Way::Far(_) => {
                let report = trainer.gradient(at)?;
                let began = Instant::now();
                let before = self.queues.meter.enter(Activity::Ranks, began);
                let reduced = ring.all_reduce_mean(trainer.gradient_mut(), &self.queues, patience);
                self.wait_seconds += began.elapsed().as_secs_f64();
                self.queues.meter.enter(before, Instant::now());
                reduced.map(|()| report)
            }
        });
        let StepReport { loss, samples, .. } = gradient.map_err(|error| self.ring_end(error))?;
        let trainer = self.replica.trainer_mut().split();
        let updated = trainer.map(|trainer| trainer.update(at)).transpose()?;
        Ok(StepReport { loss, samples, ..updated.unwrap_or_default() })
    }

    /// A commit with the mean progress of all peers: DiLoCo (Douillard et al. 2023, arXiv
    /// 2311.08105, Algorithm 1). Every peer computes the same outer step, so that all hold equal
    /// bits after it, if they did before.
    pub(super) fn commit_together(&mut self) -> Result<(), End> {
        let patience = self.patience(self.since_commit);
        let Some(ring) = self.ring.as_mut() else {
            return Err(End::Failed(TrainError::Other(
                "commit before the ring is complete".into(),
            )));
        };
        let mut progress = vec![0.0; self.replica.layout().parameters()];
        self.replica.progress(&mut progress);
        let began = Instant::now();
        let before = self.queues.meter.enter(Activity::Ranks, began);
        let reduced = ring
            .compare(self.at.step, &self.queues, patience)
            .and_then(|()| ring.all_reduce_mean(&mut progress, &self.queues, patience));
        self.wait_seconds += began.elapsed().as_secs_f64();
        self.queues.meter.enter(before, Instant::now());
        reduced.map_err(|error| self.ring_end(error))?;
        self.replica.commit_mean(&mut progress);
        self.committed();
        Ok(())
    }

    /// Replaces the numbers of a part of an evaluation by their sums over all ranks.
    pub(super) fn add_up_together(&mut self, part: &mut [f32]) -> Result<(), End> {
        let patience = self.patience(1);
        let Some(ring) = self.ring.as_mut() else { return Ok(()) };
        let reduced = ring.all_reduce_mean(part, &self.queues, patience);
        let ranks = ring.place.size as f32;
        reduced.map_err(|error| self.ring_end(error))?;
        part.iter_mut().for_each(|value| *value *= ranks);
        Ok(())
    }

    /// How long a peer of the ring may be silent while it does so many local steps.
    fn patience(&self, steps: u64) -> Duration {
        let saves = self.saving.patience(self.replica.fragments().parameters());
        let seconds = SLOWER_MAX * self.step_time.mean() * steps as f64 + saves;
        RING_TIMEOUT + Duration::try_from_secs_f64(seconds).unwrap_or(RING_TIMEOUT)
    }

    /// A broken ring is what a stop looks like from inside an all-reduce.
    fn ring_end(&mut self, error: TrainError) -> End {
        if !self.queues.line.is_stopping() {
            return End::Failed(error);
        }
        self.stopped()
    }
}
