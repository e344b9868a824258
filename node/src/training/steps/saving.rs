//! Checkpoints of the training thread: when one is due, the last one, and the copy of the state that
//! stands by for it during a step that takes long.

use std::path::PathBuf;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use dnode_protocol::Versions;
use dnode_trainer::{Interrupt, Replica, Source, TrainError};

use super::{End, Training};
use crate::training::standby::{Before, Standby};
use crate::training::{Ending, NotSaved, Position, Report};
use crate::unsaved::Unsaved;

/// Part of the time of a run that checkpoints by time take at most: after one that took a second, the
/// next comes 50 s later at the earliest.
const WRITE_SHARE: f64 = 0.02;
/// Steps and evaluations from this length on, seconds, are preceded by a copy of the state, if their
/// trainer cannot break them off: shorter ones end before the driver loses patience.
const LONG_WORK: f64 = 0.5;
/// Part of the time of such work that the copy may take.
const COPY_SHARE: f64 = 0.01;
/// Bytes copied in a second before that is measured (guess: memory that is touched for the first time).
const COPY_RATE: f64 = 1e9;
/// Bytes of the state per parameter, at most as a rule: two sets of weights, outer momentum, two moments.
const STATE_BYTES: f64 = 20.0;
/// Bytes written in a second, at least: ranks wait so long for one that writes a checkpoint.
const WRITE_RATE: f64 = 200e6;

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

/// What the thread knows of its checkpoints, and what its steps do to be found whole by the last one.
#[derive(Debug)]
pub(super) struct Saving {
    schedule: Schedule,
    pub(super) unsaved: Unsaved,
    /// Raised when the process is asked to end.
    interrupt: Interrupt,
    /// Whether the trainer looks at that.
    breaks_off: bool,
    standby: Standby,
    /// How long the last copy of the state took.
    copy_seconds: Option<f64>,
    /// The longest checkpoint so far.
    write_seconds: f64,
    /// The newest checkpoint's parameters.
    parameters: Option<PathBuf>,
}

/// What of a thread's checkpoints others know, too.
#[derive(Clone, Debug)]
pub(in crate::training) struct SavingShared {
    pub(in crate::training) unsaved: Unsaved,
    pub(in crate::training) interrupt: Interrupt,
    /// Whether the trainer looks at that.
    pub(in crate::training) breaks_off: bool,
    pub(in crate::training) standby: Standby,
}

impl SavingShared {
    /// Of a replica that begins at `step`.
    pub(in crate::training) fn new(replica: &mut Replica, step: u64) -> Self {
        let interrupt = Interrupt::default();
        Self {
            unsaved: Unsaved::new(step),
            breaks_off: replica.set_interrupt(interrupt.clone()),
            interrupt,
            standby: Standby::default(),
        }
    }
}

impl Saving {
    pub(super) fn new(shared: SavingShared, interval: Duration) -> Self {
        let SavingShared { unsaved, interrupt, breaks_off, standby } = shared;
        Self {
            schedule: Schedule::new(interval, Instant::now()),
            unsaved,
            interrupt,
            breaks_off,
            standby,
            copy_seconds: None,
            write_seconds: 0.0,
            parameters: None,
        }
    }

    pub(super) fn is_due(&self) -> bool {
        self.schedule.is_due(Instant::now())
    }

    /// Whether the process is to end: nothing long begins any more.
    pub(super) fn is_interrupted(&self) -> bool {
        self.interrupt.is_raised()
    }

    /// How long a peer with as many parameters may be silent because it writes a checkpoint, seconds.
    pub(super) fn patience(&self, parameters: usize) -> f64 {
        (parameters as f64 * STATE_BYTES / WRITE_RATE).max(2.0 * self.write_seconds)
    }

    /// Whether a copy of the state is worth its time before work of so many seconds.
    fn is_copy_due(&self, parameters: usize, work_seconds: f64) -> bool {
        let guess = || parameters as f64 * STATE_BYTES / COPY_RATE;
        let copy_seconds = self.copy_seconds.unwrap_or_else(guess);
        !self.breaks_off && work_seconds >= LONG_WORK && copy_seconds <= COPY_SHARE * work_seconds
    }
}

impl Training {
    /// Does what may take long in the trainer, about as many seconds as said, so that the last checkpoint
    /// need not wait for its end.
    pub(super) fn in_trainer<R>(
        &mut self,
        seconds: f64,
        work: impl FnOnce(&mut Self) -> Result<R, End>,
    ) -> Result<R, End> {
        let parameters = self.replica.fragments().parameters();
        let before = if self.saving.is_copy_due(parameters, seconds) {
            Some(Box::new(self.copy()?))
        } else {
            None
        };
        let standby = self.saving.standby.clone();
        standby.enter(before);
        let done = work(self);
        if standby.leave() { done } else { Err(End::Abandoned) }
    }

    fn copy(&mut self) -> Result<Before, End> {
        let began = Instant::now();
        let held = self.replica.hold();
        let contents = if held.is_sum() { self.ask_contents()? } else { Vec::new() };
        let replica = held.to_copy();
        drop(held);
        self.saving.copy_seconds = Some(began.elapsed().as_secs_f64());
        Ok(Before { position: self.at, contents, replica })
    }

    /// Writes a checkpoint; a failure is reported and returned, and training goes on.
    pub(super) fn save(&mut self) -> Result<Result<(), NotSaved>, End> {
        let began = Instant::now();
        let held = self.replica.hold();
        let contents = if held.is_sum() { self.ask_contents()? } else { Vec::new() };
        let unsaved = &self.saving.unsaved;
        let saved = self.plan.save(unsaved, self.at, &contents, Source::Held(&held));
        let now = Instant::now();
        self.saving.schedule.written(began, now);
        self.saving.write_seconds = self.saving.write_seconds.max((now - began).as_secs_f64());
        let told = match saved {
            Ok(saved) => {
                self.saving.parameters = Some(saved.parameters.clone());
                self.tell(Report::Checkpointed { saved }).map(Ok)
            }
            Err(failed) => {
                let report = Report::CheckpointFailed { error: failed.error.clone() };
                self.tell(report).map(|()| Err(failed))
            }
        };
        // Held until it is told, so that the driver hears of what came later after it.
        drop(held);
        told
    }

    /// Which contributions the replica contains; to be called while it is held. The driver hears of all
    /// that changed it before this question, and of nothing later.
    fn ask_contents(&self) -> Result<Vec<Versions>, End> {
        let (answer, answered) = mpsc::sync_channel(1);
        self.tell(Report::Contents { answer })?;
        answered.recv().map_err(|_| End::Abandoned)
    }

    pub(super) fn last_words(&mut self, evaluate: bool) -> Result<Box<Ending>, TrainError> {
        let mut not_saved = None;
        // A peer that never began leaves nothing that a later start must resume.
        if self.at != Position::default() {
            let _ = self.tell(Report::Saving { position: self.at });
            not_saved = self.save().ok().and_then(Result::err);
        }
        // A trainer with nothing to measure on has still trained.
        let evaluation = if evaluate { self.replica.evaluate().ok() } else { None };
        Ok(Box::new(Ending {
            position: self.at,
            evaluation,
            train_s: self.train_seconds,
            wait_s: self.wait_seconds,
            parameters: self.saving.parameters.take(),
            not_saved,
        }))
    }
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
                unsaved: Unsaved::new(0),
                interrupt: Interrupt::default(),
                breaks_off,
                standby: Standby::default(),
            };
            let mut saving = Saving::new(shared, Duration::ZERO);
            saving.copy_seconds = copy_seconds;
            saving.is_copy_due(1_000_000, work_seconds)
        };
        // A million parameters are 20 MB: 20 ms as guessed.
        assert!(due(false, None, 2.1) && !due(false, None, 1.9));
        assert!(due(false, Some(0.001), 0.5) && !due(false, Some(0.001), 0.4));
        assert!(!due(false, Some(0.3), 20.0) && due(false, Some(0.3), 31.0));
        assert!(!due(true, Some(0.001), 20.0));
    }
}
