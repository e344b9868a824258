//! How long the work of the training thread takes, and for how long other ranks wait for it.

use std::time::Duration;

use dnode_trainer::Replica;

use crate::training::StepPace;
use crate::training::ring::RING_TIMEOUT;
use crate::training::step_time::StepTime;

/// How long a rank may be silent, beside the time of its steps, evaluations and checkpoints.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// How many times slower than this peer another may be before the ranks give it up.
const SLOWER_MAX: f64 = 10.0;
/// Bytes of the state per parameter, rarely more: two sets of weights, outer momentum, two moments.
pub(super) const STATE_BYTES: f64 = 20.0;
/// Slowest rate at which a checkpoint is written, bytes per second: ranks wait accordingly for one that
/// writes.
const WRITE_RATE: f64 = 200e6;

/// Steps, and seconds, that the mean time of a step is over, whichever is longer. The time is longer than
/// the pauses of a process that is held to a share of a core (Linux: 0.1 s) or that waits for its turn. Such
/// pauses fall on few of many short steps.
const STEPS: f64 = 10.0;
const SPAN: f64 = 1.0;

/// Times of the training thread.
#[derive(Debug)]
pub(super) struct Pace {
    step: StepTime,
    /// Samples of one local step.
    batch: u32,
    /// Whether the driver was told how long steps take.
    told: bool,
    /// The longest evaluation so far, and the longest checkpoint.
    evaluation_seconds: f64,
    write_seconds: f64,
    train_seconds: f64,
    wait_seconds: f64,
}

impl Pace {
    pub(super) fn new(batch: u32) -> Self {
        Self {
            step: StepTime::over(STEPS, SPAN),
            batch,
            told: false,
            evaluation_seconds: 0.0,
            write_seconds: 0.0,
            train_seconds: 0.0,
            wait_seconds: 0.0,
        }
    }

    /// A local step took so long.
    pub(super) fn stepped(&mut self, seconds: f64) {
        self.train_seconds += seconds;
        self.step.add(seconds);
    }

    /// What a local step takes, seconds; 0 before the first.
    pub(super) fn mean_step(&self) -> f64 {
        self.step.mean()
    }

    pub(super) const fn batch(&self) -> u32 {
        self.batch
    }

    /// Takes so many samples per step from now on, if the trainer can.
    pub(super) fn set_batch(&mut self, batch: u32, replica: &mut Replica) {
        let samples = usize::try_from(batch).unwrap_or(usize::MAX);
        if batch == self.batch || !replica.set_batch(samples) {
            return;
        }
        // What a step will take is guessed from its samples until it is measured.
        self.step.scale(f64::from(batch) / f64::from(self.batch.max(1)));
        self.batch = batch;
    }

    /// How long a local step takes, and of how many samples it is.
    pub(super) fn of_steps(&self) -> StepPace {
        StepPace { time: Duration::from_secs_f64(self.step.mean()), batch: self.batch }
    }

    /// The same, once: as soon as it is known. So a slow peer does less work than a peer of mean speed
    /// already for its first commit.
    pub(super) fn first_known(&mut self) -> Option<StepPace> {
        if self.told || !self.step.is_known() {
            return None;
        }
        self.told = true;
        Some(self.of_steps())
    }

    /// Training has waited so long for others: at a bound, or for the other ranks.
    pub(super) fn waited(&mut self, seconds: f64) {
        self.wait_seconds += seconds;
    }

    /// Seconds of local steps so far, waits for other ranks within them included, and seconds of waiting for
    /// others.
    pub(super) const fn totals(&self) -> (f64, f64) {
        (self.train_seconds, self.wait_seconds)
    }

    /// An evaluation, or this peer's part of one, took so long.
    pub(super) const fn evaluated(&mut self, seconds: f64) {
        self.evaluation_seconds = self.evaluation_seconds.max(seconds);
    }

    /// What an evaluation takes, seconds; 0 before the first.
    pub(super) const fn evaluation(&self) -> f64 {
        self.evaluation_seconds
    }

    /// A checkpoint took so long.
    pub(super) const fn wrote(&mut self, seconds: f64) {
        self.write_seconds = self.write_seconds.max(seconds);
    }

    /// How long a rank of a rack may be silent, with a model of so many parameters.
    pub(super) fn rack_patience(&self, parameters: usize) -> Duration {
        longer(SILENCE_MAX, SLOWER_MAX * self.step.mean() + self.pauses(parameters))
    }

    /// How long a peer of a synchronous run may be silent while it does so many local steps.
    pub(super) fn synchronous_patience(&self, steps: u64, parameters: usize) -> Duration {
        let work = SLOWER_MAX * self.step.mean() * steps as f64;
        longer(RING_TIMEOUT, work + self.pauses(parameters))
    }

    /// How long another peer may be silent because it evaluates and writes a checkpoint, seconds.
    fn pauses(&self, parameters: usize) -> f64 {
        let saves = (parameters as f64 * STATE_BYTES / WRITE_RATE).max(2.0 * self.write_seconds);
        // As in steps, it may be as many times slower.
        SLOWER_MAX * self.evaluation_seconds + saves
    }
}

fn longer(silence: Duration, seconds: f64) -> Duration {
    silence + Duration::try_from_secs_f64(seconds).unwrap_or(silence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_wait_for_slower_ones_and_for_their_checkpoints() {
        let mut pace = Pace::new(8);
        assert_eq!(pace.rack_patience(0), SILENCE_MAX);
        pace.stepped(0.5);
        pace.evaluated(2.0);
        pace.wrote(1.0);
        let seconds = |patience: Duration, silence: Duration| (patience - silence).as_secs_f64();
        let rack = seconds(pace.rack_patience(0), SILENCE_MAX);
        let ring = seconds(pace.synchronous_patience(3, 0), RING_TIMEOUT);
        assert!((rack - (5.0 + 20.0 + 2.0)).abs() < 1e-6, "{rack}");
        assert!((ring - (15.0 + 20.0 + 2.0)).abs() < 1e-6, "{ring}");
        // 20 bytes of state for each of 100 M parameters, at 200 MB/s.
        let large = seconds(pace.rack_patience(100_000_000), SILENCE_MAX);
        assert!((large - (5.0 + 20.0 + 10.0)).abs() < 1e-6, "{large}");
    }

    #[test]
    fn how_long_steps_take_is_told_once_it_is_known() {
        let mut pace = Pace::new(8);
        pace.stepped(0.2);
        assert_eq!(pace.first_known(), None);
        (0..3).for_each(|_| pace.stepped(0.2));
        assert_eq!(pace.first_known().map(|pace| pace.batch), Some(8));
        assert_eq!(pace.first_known(), None);
    }
}
