//! Steps and commits of a rack: ranks that act as one replica (design: racks).
//!
//! Every local step takes the mean gradient of all ranks, so their live weights stay equal to the bit.
//! Each rank mixes its own part of the slow weights with other racks; a commit adds up what that moved
//! at all ranks and makes it everywhere, then every rank takes the same outer step.
//! When ranks get together, or together anew, they take over the state of the most advanced of them
//! (`equalize.rs`).

use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use dnode_collective::{Collective, Place, Reduction};
use dnode_trainer::{StepId, StepReport, TrainError};

use super::equalize::Failed;
use super::gradient::mean_gradient;
use super::standing::Mark;
use super::together::SLOWER_MAX;
use super::{End, Training};
use crate::training::{Activity, Command, Loss, Report, Together};

/// How long a rank may be silent, beside the time of its steps, evaluations and checkpoints.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// Pause between two looks at a bound that holds the commit of some rank.
const HOLD: Duration = Duration::from_millis(5);

/// The rack as one rank sees it.
#[derive(Debug)]
pub(super) struct Rack {
    /// `None` until the ranks have got together anew: training waits.
    group: Option<Box<dyn Collective>>,
    /// Whether its ranks reduce gradients in parts; `None` before the first.
    in_parts: Option<bool>,
    /// Names the slow weights that all ranks had last.
    pub(super) mark: Mark,
    /// Those weights, `[P]`.
    pub(super) base: Vec<f32>,
}

impl Rack {
    /// `None` while training waits.
    pub(super) fn group_mut(&mut self) -> Option<&mut dyn Collective> {
        // The type of the box's own lifetime is longer than that of this borrow.
        self.group.as_mut().map(|group| &mut **group as _)
    }

    /// The place of this rank; `None` while training waits.
    pub(super) fn place(&self) -> Option<Place> {
        self.group.as_ref().map(|group| group.place())
    }
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

impl Training {
    /// Ranks have got together, or this one is to train alone from now on.
    pub(super) fn change_rack(&mut self, together: Option<Together>) -> Result<(), End> {
        let Some(Together { id, mut group }) = together else {
            self.leave_rack();
            return Ok(());
        };
        if self.steps_done || !self.allowed {
            return Ok(());
        }
        group.set_patience(self.rank_patience());
        match self.equalize(&mut *group, id) {
            Ok(base) => {
                let mark = Mark { group: id, commits: 0 };
                self.rack = Some(Rack { group: Some(group), in_parts: None, mark, base });
                self.replica.defer(true);
                self.held = false;
                self.commit_again()
            }
            Err(Failed::Group(error)) => self.lose_group(id, (&error).into()),
            Err(Failed::End(end)) => Err(end),
        }
    }

    /// A commit that was due when the ranks were lost comes before the next step.
    fn commit_again(&mut self) -> Result<(), End> {
        if self.since_commit < self.stride.local_steps() {
            // Whether an evaluation is due, ranks know alike after a commit only.
            return Ok(());
        }
        self.commit_when_due()?;
        self.evaluate_when_due()
    }

    /// Trains alone from now on.
    pub(super) fn leave_rack(&mut self) {
        self.handed.clear();
        if self.rack.take().is_some() {
            self.replica.defer(false);
        }
    }

    /// Whether training waits until ranks have got together anew.
    pub(super) fn waits_for_rack(&self) -> bool {
        self.rack.as_ref().is_some_and(|rack| rack.group.is_none())
    }

    /// A local step with the mean gradient of all ranks; `None` when it is to be done again, because a
    /// rank was lost.
    pub(super) fn step_in_rack(&mut self, at: StepId) -> Result<Option<StepReport>, End> {
        let patience = self.rank_patience();
        let Some(Rack { group: Some(group), in_parts, .. }) = &mut self.rack else {
            return Ok(None);
        };
        let trainer = self.replica.trainer_mut().split().ok_or_else(unsplittable)?;
        group.set_patience(patience);
        let gradient = mean_gradient(trainer, (&mut **group, in_parts), at, &self.queues.meter)?;
        self.wait_seconds += gradient.waited;
        if let Err(error) = gradient.reduced {
            self.lose_rack((&error).into())?;
            return Ok(None);
        }
        let updated = match trainer.update(at) {
            Err(error @ TrainError::NotFinite { .. }) => {
                return self.lose_who_is_to_blame(at, error).map(|()| None);
            }
            updated => updated?,
        };
        let StepReport { loss, samples, .. } = gradient.report;
        Ok(Some(StepReport { loss, samples, ..updated }))
    }

    /// The mean gradient is not finite, with the same bits at all ranks: each looks whether its own is,
    /// which it computes again, as it was summed up before anybody knew its norm. Who is to blame
    /// ends, and the others get together anew; all end if nobody is.
    fn lose_who_is_to_blame(&mut self, at: StepId, error: TrainError) -> Result<(), End> {
        let Some(Rack { group: Some(group), .. }) = &mut self.rack else { return Ok(()) };
        let trainer = self.replica.trainer_mut().split().ok_or_else(unsplittable)?;
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
        match told {
            Ok(()) if blamed[0] < 0.5 => Err(End::Failed(error)),
            Ok(()) => self.lose_rack(Loss {
                why: "the gradient of a rank is not finite".into(),
                blames_the_way: false,
            }),
            Err(error) => self.lose_rack((&error).into()),
        }
    }

    /// Commits when all ranks may.
    pub(super) fn commit_in_rack_when_due(&mut self) -> Result<(), End> {
        let Some(vote) = self.vote()? else { return Ok(()) };
        self.stride.set(vote.local_steps);
        let longest = self.since_commit >= self.stride.longest();
        let last = self.at.run_steps() >= self.plan.steps;
        if !vote.may_commit || !(vote.all_exchanged || longest || last) {
            return Ok(());
        }
        self.evaluation_due = vote.evaluates;
        self.commit_in_rack()
    }

    /// Waits a moment while a bound holds back the commit of some rank, and looks again.
    pub(super) fn hold_in_rack(&mut self) -> Result<(), End> {
        let began = Instant::now();
        self.queues.meter.enter(Activity::Held, began);
        if self.at.clock >= self.limit && !self.held {
            self.held = true;
            self.tell(Report::CommitHeld)?;
        }
        let command = self.queues.commands.recv_timeout(HOLD);
        self.wait_seconds += began.elapsed().as_secs_f64();
        match command {
            Ok(command) => self.obey(command)?,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(End::Abandoned),
        }
        if self.rack.is_some() && !self.waits_for_rack() {
            self.commit_in_rack_when_due()?;
            self.evaluate_when_due()?;
        }
        Ok(())
    }

    /// Asks all ranks; `None` when one was lost.
    fn vote(&mut self) -> Result<Option<Vote>, End> {
        let (patience, limit) = (self.rank_patience(), self.limit);
        let wanted = self.wanted_steps.unwrap_or_else(|| self.stride.local_steps());
        let [allowed, exchanged] = [self.at.clock < limit, !self.round_open].map(truth);
        let mut votes =
            [allowed, exchanged, truth(self.evaluation_due), wanted.min(1 << 20) as f32];
        let Some(group) = self.rack.as_mut().and_then(|rack| rack.group.as_mut()) else {
            return Ok(None);
        };
        group.set_patience(patience);
        if let Err(error) = group.all_reduce(&mut votes, Reduction::Sum) {
            self.lose_rack((&error).into())?;
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

    fn commit_in_rack(&mut self) -> Result<(), End> {
        let patience = self.rank_patience();
        let commons = self.commons.clone();
        let mut turn = commons.turn();
        let Some(rack) = self.rack.as_mut() else { return Ok(()) };
        let Some(group) = rack.group.as_mut() else { return Ok(()) };
        let mut moved = turn.moved_since(&rack.base);
        let began = Instant::now();
        let before = self.queues.meter.enter(Activity::Ranks, began);
        group.set_patience(patience);
        let reduced = group.all_reduce(&mut moved, Reduction::Sum);
        self.wait_seconds += began.elapsed().as_secs_f64();
        self.queues.meter.enter(before, Instant::now());
        if let Err(error) = reduced {
            let committed = rack.mark.next();
            self.hand_in(committed, &turn.weights(), false);
            drop(turn);
            return self.lose_rack((&error).into());
        }
        rack.mark = rack.mark.next();
        self.replica.displace_together(&mut turn, &rack.base, &moved);
        let contributions = self.replica.commit_in(&mut turn, 1.0).contributions;
        rack.base.copy_from_slice(&turn.weights());
        self.committed();
        self.tell_committed(contributions)
    }

    /// A rank was lost, or this one: nothing goes on until the ranks have got together anew.
    pub(super) fn lose_rack(&mut self, loss: Loss) -> Result<(), End> {
        let group = self.rack.as_ref().map_or(0, |rack| rack.mark.group);
        self.lose_group(group, loss)
    }

    /// The same; the driver may have another group already, which this is not about.
    fn lose_group(&mut self, group: u64, loss: Loss) -> Result<(), End> {
        if self.queues.line.is_stopping() {
            return Err(self.stopped());
        }
        if let Some(rack) = &mut self.rack {
            rack.group = None;
        }
        self.tell(Report::RackLost { group, loss })
    }

    /// How long a rank may be silent.
    pub(super) fn rank_patience(&self) -> Duration {
        let saves = self.saving.patience(self.replica.fragments().parameters());
        let seconds = SLOWER_MAX * self.step_time.mean() + 2.0 * self.pause_seconds + saves;
        SILENCE_MAX + Duration::try_from_secs_f64(seconds).unwrap_or(SILENCE_MAX)
    }

    /// The order to stop, which is on its way.
    pub(super) fn stopped(&self) -> End {
        // It comes by way of the mixing thread.
        while let Ok(command) = self.queues.commands.recv() {
            if let Command::Stop { evaluate } = command {
                return End::Stopped { evaluate };
            }
        }
        End::Abandoned
    }
}

const fn truth(value: bool) -> f32 {
    if value { 1.0 } else { 0.0 }
}

fn unsplittable() -> TrainError {
    TrainError::Other("a rack needs a trainer whose step can be split: leave out --rack, or implement Trainer::split".to_owned())
}

#[cfg(test)]
mod tests;
