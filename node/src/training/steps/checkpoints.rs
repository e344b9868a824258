//! Checkpoints of the training thread: when one is due, and the last one.
//! A copy of the state is kept during a long step, so that the last one can be written meanwhile.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use dnode_protocol::Versions;
use dnode_trainer::{Interrupt, Replica, Source, TrainError};

use super::context::Context;
use super::cursor::Advance;
use super::end::End;
use super::pace::STATE_BYTES;
use crate::storage::checkpoint_lag::CheckpointLag;
use crate::training::standby::{Before, Standby};
use crate::training::{Ending, NotSaved, Plan, Position, Report};

/// Largest part of a run's time that checkpoints by time take: after one that took a second, the next
/// comes 50 s later at the earliest.
const WRITE_SHARE: f64 = 0.02;
/// Steps and evaluations that take at least this many seconds are preceded by a copy of the state, if
/// their trainer cannot break them off. Shorter ones end before the driver stops waiting.
const LONG_WORK: f64 = 0.5;
/// Part of the time of such work that the copy may take.
const COPY_SHARE: f64 = 0.01;
/// Bytes copied in a second before that is measured (guess: memory that is touched for the first time).
const COPY_RATE: f64 = 1e9;
/// When checkpoints are due by time.
#[derive(Clone, Copy, Debug)]
struct Schedule {
    /// Between the end of one and the beginning of the next; zero is never.
    interval: Duration,
    next: Instant,
}

impl Schedule {
    fn new(interval: Duration, now: Instant) -> Self {
        Self { interval, next: now + interval }
    }

    fn is_due(&self, now: Instant) -> bool {
        !self.interval.is_zero() && now >= self.next
    }

    /// One was written from `began` to `now`.
    fn written(&mut self, began: Instant, now: Instant) {
        let bound = (now - began).div_f64(WRITE_SHARE);
        self.next = now + self.interval.max(bound);
    }
}

/// The checkpoints of the training thread, and the copies of its state for the last one.
#[derive(Debug)]
pub(super) struct Checkpoints {
    schedule: Schedule,
    plan: Plan,
    /// What other threads share.
    shared: SavingShared,
    /// How long the last copy of the state took.
    copy_seconds: Option<f64>,
    /// The newest checkpoint's parameters, and those averaged over the last part of the run.
    parameters: Option<PathBuf>,
    tail_average: Option<PathBuf>,
}

/// What the training thread shares with other threads about checkpoints.
#[derive(Clone, Debug)]
pub(in crate::training) struct SavingShared {
    pub(in crate::training) lag: CheckpointLag,
    pub(in crate::training) interrupt: Interrupt,
    /// Whether the trainer obeys `interrupt`.
    pub(in crate::training) breaks_off: bool,
    pub(in crate::training) standby: Standby,
}

impl SavingShared {
    /// Of a replica that begins at `step`.
    pub(in crate::training) fn new(replica: &mut Replica, step: u64) -> Self {
        let interrupt = Interrupt::default();
        Self {
            lag: CheckpointLag::new(step),
            breaks_off: replica.set_interrupt(interrupt.clone()),
            interrupt,
            standby: Standby::default(),
        }
    }
}

impl Checkpoints {
    pub(super) fn new(shared: SavingShared, plan: Plan) -> Self {
        let schedule = Schedule::new(plan.checkpoint_interval, Instant::now());
        let (parameters, tail_average) = (None, None);
        Self { schedule, plan, shared, copy_seconds: None, parameters, tail_average }
    }

    /// A local step was taken. Returns whether a checkpoint is due after it.
    pub(super) fn stepped(&self, step: u64, advance: Advance) -> bool {
        self.shared.lag.stepped(step);
        advance.is_due(self.plan.checkpoint_every) || self.schedule.is_due(Instant::now())
    }

    /// Whether the process is to end: nothing long begins any more.
    pub(super) fn is_interrupted(&self) -> bool {
        self.shared.interrupt.is_raised()
    }

    /// Whether a copy of the state is worth its time before work of `work_seconds`.
    fn is_copy_due(&self, parameters: usize, work_seconds: f64) -> bool {
        let guess = || parameters as f64 * STATE_BYTES / COPY_RATE;
        let copy_seconds = self.copy_seconds.unwrap_or_else(guess);
        let worth = work_seconds >= LONG_WORK && copy_seconds <= COPY_SHARE * work_seconds;
        !self.shared.breaks_off && worth
    }

    /// The thread enters its trainer for about `seconds`. If that is long, the state is copied first,
    /// so that the last checkpoint need not wait for the trainer.
    pub(super) fn enter_trainer(&mut self, seconds: f64, context: &Context) -> Result<(), End> {
        let before = if self.is_copy_due(context.parameters(), seconds) {
            Some(Box::new(self.copy(context)?))
        } else {
            None
        };
        self.shared.standby.enter(before);
        Ok(())
    }

    /// The thread comes back from its trainer. An error says that the last checkpoint was written in
    /// its place meanwhile.
    pub(super) fn leave_trainer(&self) -> Result<(), End> {
        if self.shared.standby.leave() { Ok(()) } else { Err(End::Abandoned) }
    }

    /// The file of the newest checkpoint's parameters; empty before the first.
    pub(super) fn newest(&self) -> &Path {
        self.parameters.as_deref().unwrap_or_else(|| Path::new(""))
    }

    fn copy(&mut self, context: &Context) -> Result<Before, End> {
        let began = Instant::now();
        let held = context.replica.hold();
        let contents = if held.is_sum() { ask_contents(context)? } else { Vec::new() };
        let replica = held.to_copy();
        drop(held);
        self.copy_seconds = Some(began.elapsed().as_secs_f64());
        let (position, end) = (context.cursor.position(), context.cursor.end());
        Ok(Before { position, end, contents, replica })
    }

    /// Writes a checkpoint; a failure is reported and returned, and training goes on.
    pub(super) fn save(&mut self, context: &mut Context) -> Result<Result<(), NotSaved>, End> {
        let began = Instant::now();
        let held = context.replica.hold();
        let contents = if held.is_sum() { ask_contents(context)? } else { Vec::new() };
        let lag = &self.shared.lag;
        let at = (context.cursor.position(), context.cursor.end());
        let source = (Source::Held(&held), context.averaging.average());
        let saved = self.plan.save(lag, at, &contents, source);
        let now = Instant::now();
        self.schedule.written(began, now);
        context.pace.wrote((now - began).as_secs_f64());
        let told = match saved {
            Ok(saved) => {
                self.parameters = Some(saved.parameters.clone());
                self.tail_average.clone_from(&saved.tail_average);
                context.queues.tell(Report::Checkpointed { saved }).map(Ok)
            }
            Err(failed) => {
                let report = Report::CheckpointFailed { error: failed.error.clone() };
                context.queues.tell(report).map(|()| Err(failed))
            }
        };
        // The replica is held until the report is queued, so that the driver hears of later changes
        // after it.
        drop(held);
        told
    }

    /// The last checkpoint, and an evaluation if asked for.
    pub(super) fn end(
        &mut self,
        evaluate: bool,
        context: &mut Context,
    ) -> Result<Box<Ending>, TrainError> {
        let position = context.cursor.position();
        let mut not_saved = None;
        // A peer that never began leaves nothing that a later start must resume.
        if position != Position::default() && !self.plan.observes {
            let _ = context.queues.tell(Report::Saving { position });
            not_saved = self.save(context).ok().and_then(Result::err);
        }
        // A trainer with nothing to measure on has still trained.
        let evaluation = if evaluate { context.replica.evaluate().ok() } else { None };
        let mean = context.averaging.average().filter(|_| evaluation.is_some());
        let averaged = mean.and_then(|mean| context.replica.evaluate_at(mean.mean()).ok());
        let (train_s, wait_s) = context.pace.totals();
        let (parameters, tail_average) = (self.parameters.take(), self.tail_average.take());
        Ok(Box::new(Ending {
            position,
            evaluation,
            averaged,
            train_s,
            wait_s,
            revealed: context.revealed(),
            parameters,
            tail_average,
            not_saved,
        }))
    }
}

/// Which contributions the replica contains; to be called while it is held. So the driver hears of all
/// earlier changes before this question, and of no later one.
fn ask_contents(context: &Context) -> Result<Vec<Versions>, End> {
    let (answer, answered) = mpsc::sync_channel(1);
    context.queues.tell(Report::Contents { answer })?;
    answered.recv().map_err(|_| End::Abandoned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_by_time_are_spaced_by_the_interval_and_by_what_they_take() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut schedule = Schedule::new(Duration::from_secs(300), begin);
        assert!(!schedule.is_due(at(299)) && schedule.is_due(at(300)));
        // Two seconds are less than a fiftieth of the interval.
        schedule.written(at(300), at(302));
        assert!(!schedule.is_due(at(601)) && schedule.is_due(at(602)));
        // A minute is more: 50 minutes pass.
        schedule.written(at(602), at(662));
        assert!(!schedule.is_due(at(3661)) && schedule.is_due(at(3662)));
        let never = Schedule::new(Duration::ZERO, begin);
        assert!(!never.is_due(at(1_000_000)));
    }

    #[test]
    fn a_copy_is_made_of_long_work_that_cannot_be_broken_off_if_it_is_cheap() {
        let due = |breaks_off, copy_seconds, work_seconds| {
            let shared = SavingShared {
                lag: CheckpointLag::new(0),
                interrupt: Interrupt::default(),
                breaks_off,
                standby: Standby::default(),
            };
            let mut checkpoints = Checkpoints::new(shared, Plan::for_tests());
            checkpoints.copy_seconds = copy_seconds;
            checkpoints.is_copy_due(1_000_000, work_seconds)
        };
        // A million parameters are 20 MB: 20 ms as guessed.
        assert!(due(false, None, 2.1) && !due(false, None, 1.9));
        assert!(due(false, Some(0.001), 0.5) && !due(false, Some(0.001), 0.4));
        assert!(!due(false, Some(0.3), 20.0) && due(false, Some(0.3), 31.0));
        assert!(!due(true, Some(0.001), 20.0));
    }
}
