//! Where the own training stands: clock, samples, speed, and what the trainer is doing.

use std::time::Duration;

use dnode_protocol::{Clock, Heartbeat, Phase};

use crate::Load;

/// What of the own replica is being replaced by the neighbours'.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replacing {
    /// Some fragments; others go on to wait for this peer.
    Fragments,
    /// All of it: nobody is to wait for this peer meanwhile.
    Replica,
}

/// The own training, as far as gossip has to know it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    clock: Clock,
    samples: u64,
    /// Steps of the run that it has come to, as of the last commit.
    position: u64,
    /// Whether it has committed in this start of its process.
    committed: bool,
    /// Wall time of a local step; zero before it is known.
    step_time: Duration,
    /// Samples of the steps that took that time.
    step_batch: u32,
    /// Local work per commit.
    load: Load,
    /// The trainer waits, for example for peers that it requires.
    waiting: bool,
    /// Its weights are those that all begin from, and the time of its steps is not known yet.
    untrained: bool,
    /// It has done all its steps.
    finished: bool,
    /// The process is about to leave.
    leaving: bool,
    replacing: Option<Replacing>,
    /// This peer only watches; how many commits the others do between two of its looks.
    observes: Option<u64>,
}

impl Progress {
    pub(crate) const fn new(clock: Clock, load: Load) -> Self {
        Self {
            clock,
            samples: 0,
            position: 0,
            committed: false,
            step_time: Duration::ZERO,
            step_batch: load.batch,
            load,
            waiting: false,
            untrained: false,
            finished: false,
            leaving: false,
            replacing: None,
            observes: None,
        }
    }

    pub(crate) const fn clock(&self) -> Clock {
        self.clock
    }

    /// Whether the replica is the one that all begin from, or nearly: next to nothing would be lost with it.
    pub(crate) const fn is_untrained(&self) -> bool {
        self.untrained
    }

    pub(crate) const fn samples(&self) -> u64 {
        self.samples
    }

    /// The clock of a peer that has done as many local steps, and commits after so many each. The own one may be less
    /// than that: commits that a bound holds back have more steps.
    pub(crate) fn nominal_clock(&self, local_steps: u64) -> Clock {
        let samples = u64::from(self.step_batch).saturating_mul(local_steps);
        self.clock.max(Clock(self.samples.checked_div(samples).unwrap_or(0)))
    }

    pub(crate) const fn has_committed(&self) -> bool {
        self.committed
    }

    pub(crate) const fn step_time(&self) -> Duration {
        self.step_time
    }

    pub(crate) const fn load(&self) -> Load {
        self.load
    }

    /// Samples in a second; 0 before it is known.
    pub(crate) fn speed(&self) -> f64 {
        speed(self.step_time, self.step_batch)
    }

    /// How long the local steps between two commits take; zero before that is known.
    pub(crate) fn commit_time(&self) -> Duration {
        steps_time(self.step_time, self.load.local_steps)
    }

    pub(crate) const fn is_finished(&self) -> bool {
        self.finished
    }

    pub(crate) const fn is_leaving(&self) -> bool {
        self.leaving
    }

    pub(crate) const fn is_replacing(&self) -> bool {
        self.replacing.is_some()
    }

    /// Nothing forbids to take over a replica in place of the own one: neither a replica that is on its way, nor
    /// the wait for the first one, nor the end of this peer.
    pub(crate) const fn may_replace(&self) -> bool {
        !self.is_replacing() && !self.waiting && !self.leaving
    }

    /// Where this peer only watches, how many commits the others do between two of its looks.
    pub(crate) const fn observes(&self) -> Option<u64> {
        self.observes
    }

    /// This peer only watches.
    pub(crate) const fn observe(&mut self, every: u64) {
        self.observes = Some(every);
    }

    /// What neighbours are told that this peer is doing.
    pub(crate) const fn phase(&self) -> Phase {
        match (self.replacing, self.finished) {
            _ if self.observes.is_some() => Phase::Joining,
            (Some(Replacing::Replica), _) => Phase::Joining,
            (_, true) => Phase::Finished,
            (_, false) => Phase::Training,
        }
    }

    /// What neighbours are told of the own training.
    pub(crate) fn heartbeat(&self) -> Heartbeat {
        Heartbeat {
            clock: self.clock,
            samples: self.samples,
            position: self.position,
            step_micros: u32::try_from(self.step_time.as_micros()).unwrap_or(u32::MAX),
            batch: self.step_batch,
            phase: self.phase(),
        }
    }

    /// The clock is at least `clock` from now on.
    pub(crate) fn raise(&mut self, clock: Clock) {
        self.clock = self.clock.max(clock);
    }

    /// The position is at least `position` from now on; returns it.
    pub(crate) fn raise_position(&mut self, position: u64) -> u64 {
        self.position = self.position.max(position);
        self.position
    }

    pub(crate) const fn set_samples(&mut self, samples: u64) {
        self.samples = samples;
    }

    /// The trainer has committed.
    pub(crate) const fn committed(&mut self) {
        self.committed = true;
    }

    /// A local step of so many samples takes so long.
    pub(crate) const fn set_step(&mut self, time: Duration, batch: u32) {
        (self.step_time, self.step_batch) = (time, batch);
        self.untrained = false;
    }

    pub(crate) const fn set_load(&mut self, load: Load) {
        self.load = load;
    }

    pub(crate) const fn set_replacing(&mut self, replacing: Option<Replacing>) {
        self.replacing = replacing;
    }

    /// Says whether the trainer waits.
    pub(crate) const fn set_waiting(&mut self, waiting: bool) {
        self.waiting = waiting;
    }

    /// Says whether the weights are those that all begin from.
    pub(crate) const fn set_untrained(&mut self, untrained: bool) {
        self.untrained = untrained;
    }

    /// The trainer has done all its steps.
    pub(crate) const fn finish(&mut self) {
        self.finished = true;
    }

    /// The process is about to leave.
    pub(crate) const fn leave(&mut self) {
        self.leaving = true;
    }
}

/// Samples per second of steps of `batch` samples; 0 when it is not known.
pub(crate) fn speed(step: Duration, batch: u32) -> f64 {
    let seconds = step.as_secs_f64();
    if seconds > 0.0 { f64::from(batch) / seconds } else { 0.0 }
}

/// Time that so many steps take.
pub(crate) fn steps_time(step: Duration, steps: u64) -> Duration {
    step.saturating_mul(u32::try_from(steps).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretched_commits_count_as_those_that_their_steps_would_have_made() {
        let mut progress = Progress::new(Clock(3), Load::of_a_commit(4, 8));
        // No step is counted yet, as after taking over a replica.
        assert_eq!(progress.nominal_clock(4), Clock(3));
        progress.set_samples(8 * 4 * 5 + 8);
        assert_eq!(progress.nominal_clock(4), Clock(5));
    }
}
