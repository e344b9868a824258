//! Steps and commits of a rack, whose ranks act as one replica.
//!
//! Every local step takes the mean gradient of all ranks, so their live weights stay equal to the bit.
//! Each rank mixes its own part of the slow weights with other racks. A commit adds up what mixing
//! moved at all ranks, and every rank makes all of these moves. Then every rank takes the same outer
//! step. When ranks form a group, at first or anew, they take over the state of the most advanced of
//! them (`rack/equalize.rs`).

mod equalize;
pub(super) mod standing;
use std::time::Duration;

use dnode_collective::{Collective, Place, Reduction};
use dnode_trainer::{StepId, StepReport, TrainError};

use super::context::Context;
use super::end::End;
use super::gradient::mean_gradient;
use crate::training::{Loss, RankGroup, Report};
use equalize::{Failed, Handed};
use standing::WeightsMark;

/// What this peer is in a rack: nothing, or one of its ranks.
#[derive(Debug, Default)]
pub(super) struct RackMember {
    rack: Option<Rack>,
    /// What this rank gave to operations that failed here, oldest first; at most
    /// [`standing::HANDED_MAX`].
    handed: Vec<Handed>,
}

/// The rack as one rank sees it.
#[derive(Debug)]
struct Rack {
    /// `None` after a loss, until the ranks have formed a group anew: training waits.
    group: Option<Box<dyn Collective>>,
    /// Whether its ranks reduce gradients in parts; `None` before the first.
    in_parts: Option<bool>,
    /// Names the slow weights that all ranks had in common last.
    mark: WeightsMark,
    /// Those weights, `[P]`.
    base: Vec<f32>,
}

/// What the ranks have agreed on.
#[derive(Clone, Copy, Debug)]
struct Vote {
    /// The bounds of all ranks allow a commit.
    may_commit: bool,
    /// All exchanges of the last round have ended at all ranks.
    all_exchanged: bool,
    /// An evaluation is due at some rank.
    evaluates: bool,
    /// Local steps per commit.
    local_steps: u64,
}

impl RackMember {
    /// Whether this peer trains as a rank.
    pub(super) const fn is_joined(&self) -> bool {
        self.rack.is_some()
    }

    /// Whether training waits until ranks have got together anew.
    pub(super) fn is_waiting(&self) -> bool {
        self.rack.as_ref().is_some_and(|rack| rack.group.is_none())
    }

    /// The place of this rank; `None` while training waits.
    pub(super) fn place(&self) -> Option<Place> {
        self.rack.as_ref()?.group.as_ref().map(|group| group.place())
    }

    /// The group; `None` while training waits. No operation of it waits longer than the ranks may need.
    fn group(&mut self, context: &Context) -> Option<&mut dyn Collective> {
        // The type of the box's own lifetime is longer than that of this borrow.
        let group: &mut dyn Collective = &mut **self.rack.as_mut()?.group.as_mut()?;
        group.set_patience(patience(context));
        Some(group)
    }

    /// Joins a group of ranks that has formed. Returns whether they have become equal.
    pub(super) fn join(&mut self, joined: RankGroup, context: &mut Context) -> Result<bool, End> {
        let RankGroup { id, mut group } = joined;
        group.set_patience(patience(context));
        match self.equalize(&mut *group, id, context) {
            Ok(base) => {
                let mark = WeightsMark { group: id, commits: 0 };
                self.rack = Some(Rack { group: Some(group), in_parts: None, mark, base });
                context.replica.defer(true);
                context.bounds.release();
                Ok(true)
            }
            Err(Failed::Group(error)) => {
                self.lose_group(id, (&error).into(), context).map(|()| false)
            }
            Err(Failed::End(end)) => Err(end),
        }
    }

    /// Trains alone from now on.
    pub(super) fn leave(&mut self, context: &mut Context) {
        self.handed.clear();
        if self.rack.take().is_some() {
            context.replica.defer(false);
        }
    }

    /// The slow weights are this peer's own again: what it gave to operations with others counts no
    /// more.
    pub(super) fn forget_handed(&mut self) {
        self.handed.clear();
    }

    /// A local step with the mean gradient of all ranks; `None` when it has to be done again, because a
    /// rank was lost.
    pub(super) fn step(
        &mut self,
        at: StepId,
        context: &mut Context,
    ) -> Result<Option<StepReport>, End> {
        let patience = patience(context);
        let Some(Rack { group: Some(group), in_parts, .. }) = &mut self.rack else {
            return Ok(None);
        };
        let trainer = context.replica.trainer_mut().split().ok_or_else(unsplittable)?;
        group.set_patience(patience);
        let meter = context.queues.meter();
        let gradient = mean_gradient(trainer, (&mut **group, in_parts), at, meter)?;
        context.pace.waited(gradient.waited);
        if let Err(error) = gradient.reduced {
            self.lose((&error).into(), context)?;
            return Ok(None);
        }
        let updated = match trainer.update(at) {
            Err(error @ TrainError::NotFinite { .. }) => {
                return self.lose_who_is_to_blame(at, error, context).map(|()| None);
            }
            updated => updated?,
        };
        let StepReport { loss, samples, .. } = gradient.report;
        Ok(Some(StepReport { loss, samples, ..updated }))
    }

    /// The mean gradient is not finite, with the same bits at all ranks. Each rank checks its own
    /// gradient, and computes it again for that, as the sum has replaced it. A rank whose own is not
    /// finite ends, and the others form a group anew. If there is no such rank, all end.
    fn lose_who_is_to_blame(
        &mut self,
        at: StepId,
        error: TrainError,
        context: &mut Context,
    ) -> Result<(), End> {
        let Some(Rack { group: Some(group), .. }) = &mut self.rack else { return Ok(()) };
        let trainer = context.replica.trainer_mut().split().ok_or_else(unsplittable)?;
        let mine = match trainer.gradient(at) {
            Ok(report) if report.gradient_norm.is_finite() => None,
            Ok(_) => Some(TrainError::NotFinite { step: at.index, what: "gradient" }),
            Err(mine) => Some(mine),
        };
        let mut blamed = [truth(mine.is_some())];
        let told = group.all_reduce(&mut blamed, Reduction::Sum);
        if let Some(mine) = mine {
            return Err(End::Failed(mine));
        }
        let loss = match told {
            Ok(()) if blamed[0] < 0.5 => return Err(End::Failed(error)),
            Ok(()) => {
                Loss { why: "the gradient of a rank is not finite".into(), blames_the_way: false }
            }
            Err(error) => (&error).into(),
        };
        self.lose(loss, context)
    }

    /// Commits when all ranks may. `evaluates` is whether an evaluation is due here. If the ranks
    /// commit, returns whether one is due at any rank, else `evaluates`.
    pub(super) fn commit_when_due(
        &mut self,
        evaluates: bool,
        context: &mut Context,
    ) -> Result<bool, End> {
        let Some(vote) = self.vote(evaluates, context)? else { return Ok(evaluates) };
        let cursor = &mut context.cursor;
        cursor.set_local_steps(vote.local_steps);
        let last = cursor.is_at_end();
        if !vote.may_commit || !(vote.all_exchanged || cursor.is_stretched() || last) {
            return Ok(evaluates);
        }
        self.commit(context).map(|()| vote.evaluates)
    }

    /// Asks all ranks about the commit; `None` when one was lost.
    fn vote(&mut self, evaluates: bool, context: &Context) -> Result<Option<Vote>, End> {
        let Context { cursor, bounds, .. } = context;
        let wanted = bounds.wanted_steps().unwrap_or_else(|| cursor.local_steps());
        let commits = bounds.allows_commit(cursor.position().clock);
        let allowed = truth(commits && context.queues.allows_steps());
        let exchanged = truth(!cursor.is_round_open());
        let mut votes = [allowed, exchanged, truth(evaluates), wanted.min(1 << 20) as f32];
        let Some(group) = self.group(context) else { return Ok(None) };
        if let Err(error) = group.all_reduce(&mut votes, Reduction::Sum) {
            self.lose((&error).into(), context)?;
            return Ok(None);
        }
        let ranks = group.place().size as f32;
        let [may_commit, all_exchanged, evaluates, local_steps] = votes.map(|sum| sum / ranks);
        let all = |part: f32| part > 1.0 - 0.5 / ranks;
        Ok(Some(Vote {
            may_commit: all(may_commit),
            all_exchanged: all(all_exchanged),
            evaluates: evaluates > 0.0,
            local_steps: (local_steps.round() as u64).max(1),
        }))
    }

    fn commit(&mut self, context: &mut Context) -> Result<(), End> {
        let patience = patience(context);
        let shared = context.shared.clone();
        let mut lock = shared.lock();
        if !context.queues.allows_steps() {
            // The replica began to be replaced after the vote: what it has moved by is no work of this rank's.
            drop(lock);
            self.leave(context);
            return Ok(());
        }
        let Some(rack) = self.rack.as_mut() else { return Ok(()) };
        let Some(group) = rack.group.as_mut() else { return Ok(()) };
        let mut moved = lock.moved_since(&rack.base);
        let wait = context.queues.begin_rank_wait();
        group.set_patience(patience);
        let reduced = group.all_reduce(&mut moved, Reduction::Sum);
        context.pace.waited(context.queues.end_rank_wait(wait));
        if let Err(error) = reduced {
            let committed = rack.mark.next();
            self.hand_in(committed, &lock.weights(), false);
            drop(lock);
            return self.lose((&error).into(), context);
        }
        rack.mark = rack.mark.next();
        context.replica.displace_together(&mut lock, &rack.base, &moved);
        let contributions = context.replica.commit_in(&mut lock, 1.0).contributions;
        rack.base.copy_from_slice(&lock.weights());
        context.committed();
        context.tell_committed(contributions)
    }

    /// Replaces `values` by their sums over all ranks; `false` when a rank was lost.
    pub(super) fn add_up(&mut self, values: &mut [f32], context: &Context) -> Result<bool, End> {
        let Some(group) = self.group(context) else { return Ok(false) };
        match group.all_reduce(values, Reduction::Sum) {
            Ok(()) => Ok(true),
            Err(error) => self.lose((&error).into(), context).map(|()| false),
        }
    }

    /// A rank was lost, or this one: training waits until the ranks have formed a group anew.
    pub(super) fn lose(&mut self, loss: Loss, context: &Context) -> Result<(), End> {
        let group = self.rack.as_ref().map_or(0, |rack| rack.mark.group);
        self.lose_group(group, loss, context)
    }

    /// The same, of this group: the driver may have another one already, which is not lost.
    fn lose_group(&mut self, group: u64, loss: Loss, context: &Context) -> Result<(), End> {
        if context.queues.is_stopping() {
            return Err(context.queues.wait_for_stop(&context.shared));
        }
        if let Some(rack) = &mut self.rack {
            rack.group = None;
        }
        context.queues.tell(Report::RackLost { group, loss })
    }
}

/// How long a rank may be silent.
fn patience(context: &Context) -> Duration {
    context.pace.rack_patience(context.parameters())
}

const fn truth(value: bool) -> f32 {
    if value { 1.0 } else { 0.0 }
}

fn unsplittable() -> TrainError {
    TrainError::Other("a rack needs a trainer whose step can be split: leave out --rack, or implement Trainer::split".to_owned())
}

#[cfg(test)]
mod tests;
