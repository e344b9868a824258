//! Measures what a thread spends its time on; other threads can read it meanwhile.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What a thread can be doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum Activity {
    /// Nothing: it waits for work, or until it may train.
    #[default]
    Idle,
    /// Local steps and what belongs to them: batches, evaluations, checkpoints.
    Step,
    /// Local steps beyond those of a commit, which is put off while a round of exchanges is open.
    Late,
    /// It waits at a bound that holds the commit.
    Held,
    /// It waits for the other ranks of a ring or a rack.
    Ranks,
    /// It codes fragments that are to be sent.
    Coding,
    /// It decodes and mixes tensors that have arrived.
    Mixing,
}

/// Number of activities.
const COUNT: usize = Activity::Mixing as usize + 1;

/// Times of one thread. That thread enters activities; others read the times.
#[derive(Debug)]
pub(crate) struct Meter(Mutex<State>);

#[derive(Clone, Copy, Debug)]
struct State {
    activity: Activity,
    since: Instant,
    steps: u64,
    totals: [Duration; COUNT],
}

/// Times up to one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Times {
    /// What the thread is doing.
    pub(crate) activity: Activity,
    /// Local steps that were begun.
    pub(crate) steps: u64,
    totals: [Duration; COUNT],
}

impl Meter {
    pub(crate) fn new(now: Instant) -> Self {
        let totals = [Duration::ZERO; COUNT];
        Self(Mutex::new(State { activity: Activity::Idle, since: now, steps: 0, totals }))
    }

    /// The thread does something else from now on. Returns what it did before.
    pub(crate) fn enter(&self, activity: Activity, now: Instant) -> Activity {
        let mut state = self.lock();
        let before = state.activity;
        let spent = now.duration_since(state.since);
        state.totals[before as usize] += spent;
        (state.activity, state.since) = (activity, now);
        before
    }

    /// The thread begins a local step.
    pub(crate) fn step(&self, activity: Activity, now: Instant) {
        self.enter(activity, now);
        self.lock().steps += 1;
    }

    /// Times up to now, including the present activity.
    pub(crate) fn read(&self, now: Instant) -> Times {
        let State { activity, since, steps, mut totals } = *self.lock();
        totals[activity as usize] += now.duration_since(since);
        Times { activity, steps, totals }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock, and plain values are always whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Times {
    /// Seconds of `activity` since `before` was read.
    pub(crate) fn seconds(&self, activity: Activity, before: &Self) -> f64 {
        let index = activity as usize;
        self.totals[index].saturating_sub(before.totals[index]).as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_on_counts_before_it_has_ended() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let meter = Meter::new(start);
        meter.step(Activity::Step, at(1));
        let first = meter.read(at(3));
        assert_eq!((first.activity, first.steps), (Activity::Step, 1));
        assert_eq!(meter.enter(Activity::Held, at(4)), Activity::Step);
        let second = meter.read(at(10));
        let seconds = |activity| second.seconds(activity, &first).round() as u64;
        assert_eq!((seconds(Activity::Step), seconds(Activity::Held)), (1, 6));
        assert_eq!(second.seconds(Activity::Idle, &Times::default()).round() as u64, 1);
        assert_eq!(meter.read(start).activity, Activity::Held, "a clock that stands still is none");
    }
}
