//! The trainer of a simulated peer: when it steps, commits and begins rounds, and what blocks it.

use std::time::Duration;

use dnode_gossip::testing::Host;
use dnode_gossip::{Balance, Config, Input};
use dnode_protocol::{Clock, Time};

use super::context::Context;
use super::counts::Counts;
use super::learning::{Learning, LocalSteps};

/// The trainer of one peer.
#[derive(Debug)]
pub(super) struct Trainer {
    round_time: Duration,
    batch: u32,
    slowness: f64,
    /// Whether it goes on at a time that is scheduled.
    scheduled: bool,
    /// Whether it waits for a commit that is held back, or for its replica.
    blocked: bool,
    held_since: Option<Time>,
    /// At which clock the core was told that a commit is held back.
    said: Option<Clock>,
    /// Whether a piece of work for the core is under way.
    working: bool,
    round_open: bool,
    rounds_done_seen: u64,
    finished: bool,
    /// Whether it has yet to say that it begins.
    waits: bool,
    steps: LocalSteps,
}

impl Trainer {
    pub(super) fn new(round_time: Duration, batch: u32) -> Self {
        Self {
            round_time,
            batch,
            slowness: 1.0,
            scheduled: false,
            blocked: false,
            held_since: None,
            said: None,
            working: false,
            round_open: false,
            rounds_done_seen: 0,
            finished: false,
            waits: false,
            steps: LocalSteps::default(),
        }
    }

    /// The process begins anew; the trainer is as fast as before.
    pub(super) fn restart(&mut self, steps: LocalSteps) {
        let Self { round_time, batch, slowness, .. } = *self;
        *self = Self { slowness, steps, ..Self::new(round_time, batch) };
    }

    /// Samples in one of its steps: what its numbers weigh, if samples weigh.
    pub(super) const fn batch(&self) -> u32 {
        self.batch
    }

    /// Since when a commit of it is held back.
    pub(super) const fn held_since(&self) -> Option<Time> {
        self.held_since
    }

    /// Whether a round has begun and not ended.
    pub(super) const fn round_open(&self) -> bool {
        self.round_open
    }

    /// Whether it goes on at a time that is scheduled.
    pub(super) const fn is_scheduled(&self) -> bool {
        self.scheduled
    }

    pub(super) const fn finished(&self) -> bool {
        self.finished
    }

    pub(super) const fn finish(&mut self) {
        self.finished = true;
    }

    /// It waits before its first step.
    pub(super) const fn wait(&mut self) {
        self.waits = true;
    }

    /// Returns whether it has waited until now.
    pub(super) const fn begin(&mut self) -> bool {
        std::mem::replace(&mut self.waits, false)
    }

    /// Its work takes so many times as long as at the start.
    pub(super) const fn slow_down(&mut self, factor: f64) {
        self.slowness = factor;
    }

    pub(super) const fn block(&mut self) {
        self.blocked = true;
    }

    /// Returns whether it was not scheduled already.
    pub(super) const fn schedule(&mut self) -> bool {
        !std::mem::replace(&mut self.scheduled, true)
    }

    pub(super) const fn unschedule(&mut self) {
        self.scheduled = false;
    }

    /// Returns whether no work was under way.
    pub(super) const fn begin_work(&mut self) -> bool {
        !std::mem::replace(&mut self.working, true)
    }

    pub(super) const fn end_work(&mut self) {
        self.working = false;
    }

    /// Returns whether no round was open.
    pub(super) const fn open_round(&mut self) -> bool {
        !std::mem::replace(&mut self.round_open, true)
    }

    /// The core has ended so many rounds. Returns how many since it was last asked.
    pub(super) const fn rounds_ended(&mut self, rounds_done: u64) -> u64 {
        let new = rounds_done.saturating_sub(self.rounds_done_seen);
        if new > 0 {
            self.rounds_done_seen = rounds_done;
            self.round_open = false;
        }
        new
    }

    /// The mean time that the steps of a round take.
    pub(super) fn round_time(&self, host: Option<&Host>, config: &Config) -> Duration {
        let mean = self.round_time.mul_f64(self.slowness);
        if let (Balance::Steps | Balance::Batch, Some(host)) = (config.pace.balance, host) {
            let reference = config.pace.reference().samples();
            return mean.mul_f64(host.load.samples() as f64 / reference as f64);
        }
        mean
    }

    /// Commits, unless that is held back. Returns whether it was done.
    pub(super) fn commit(&mut self, host: &mut Host, increment: f64, context: &Context) -> bool {
        let (scenario, pace) = (context.scenario(), &context.config().pace);
        // What a commit of this many rounds takes, step by step.
        let rounds = u32::try_from(scenario.rounds_per_commit).unwrap_or(u32::MAX);
        let steps = u32::try_from(pace.local_steps).unwrap_or(u32::MAX);
        let mut step_time = self.round_time * rounds / steps;
        if pace.balance == Balance::Batch {
            step_time = step_time * host.load.batch / pace.batch;
        }
        let done = host.commit_after(increment, step_time, context.now());
        if done {
            (self.said, self.held_since) = (None, None);
        } else {
            self.said = host.training.then_some(host.clock);
        }
        done
    }

    /// Lets it go on when what blocked it is over. Returns whether it goes on now.
    pub(super) fn resume(&mut self, host: &Host, now: Time) -> bool {
        if !host.training {
            // A replica that is being replaced has no commit to hold.
            (self.held_since, self.said) = (None, None);
        } else if self.blocked && (host.limit > host.clock || self.said != Some(host.clock)) {
            (self.blocked, self.held_since) = (false, None);
            return true;
        } else if self.blocked {
            // The core was told once that this commit is wanted and has to remember it.
            self.held_since.get_or_insert(now);
        }
        false
    }

    /// A local step is done, or what kept the trainer from one is over: a commit and a round if they
    /// are due. Returns whether the next step begins.
    pub(super) fn local_step(
        &mut self,
        host: &mut Host,
        (learning, counts): (&mut Learning, &mut Counts),
        (step_time, now): (Duration, Time),
    ) -> bool {
        let steps = &mut self.steps;
        steps.follow(host, learning);
        if steps.end_step(host, &mut learning.seen) {
            counts.steps += 1;
            if steps.is_measured() {
                let batch = host.load.batch;
                host.handle(Input::StepMeasured { step_time, batch }, now);
            }
        }
        let ended = steps.has_done(learning.steps);
        let must = steps.must_commit(ended);
        let waits = self.round_open && !steps.rounds_overlap();
        let due = must || steps.may_commit() && !waits;
        if due && host.training {
            if host.clock < host.limit {
                host.commit_after(0.0, step_time, now);
                steps.committed(host.clock);
                (self.said, self.held_since) = (None, None);
                counts.commits += 1;
            } else if must {
                if self.said != Some(host.clock) {
                    host.commit_after(0.0, step_time, now);
                    self.said = Some(host.clock);
                }
                self.blocked = true;
                return false;
            }
        }
        if !host.training {
            self.blocked = true;
            return false;
        }
        if steps.takes_round() && (!self.round_open || steps.rounds_overlap()) {
            self.round_open = true;
            counts.rounds += 1;
            host.handle(Input::RoundDue, now);
        }
        if ended {
            self.finished = true;
            host.handle(Input::Finished, now);
            return false;
        }
        steps.begin_step();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_open_until_the_core_has_ended_it() {
        let mut trainer = Trainer::new(Duration::from_secs(1), 4);
        assert!(trainer.open_round() && !trainer.open_round());
        assert_eq!(trainer.rounds_ended(0), 0);
        assert!(trainer.round_open());
        assert_eq!((trainer.rounds_ended(2), trainer.rounds_ended(2)), (2, 0));
        assert!(!trainer.round_open());
    }

    #[test]
    fn a_process_that_begins_anew_is_as_slow_as_before() {
        let config = Config::default();
        let mut trainer = Trainer::new(Duration::from_secs(2), 4);
        trainer.slow_down(3.0);
        trainer.finish();
        assert!(trainer.schedule() && !trainer.schedule());
        trainer.restart(LocalSteps::default());
        assert!(!trainer.finished() && trainer.schedule());
        assert_eq!(
            (trainer.round_time(None, &config), trainer.batch()),
            (Duration::from_secs(6), 4)
        );
    }
}
