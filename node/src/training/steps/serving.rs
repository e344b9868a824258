//! How much of the training thread's time the mixing thread gets.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dnode_trainer::Replica;

use crate::training::giving::Giving;

/// Part of the time of steps that work for the mixing thread may take, so that training keeps nine
/// tenths.
const SHARE: f64 = 0.07;
/// Seconds of each step that it may take at least. Models whose steps are that short are small (guess),
/// and one fragment of 4 MiB takes about 1 ms.
const SECONDS_MIN: f64 = 0.5e-3;
/// Steps whose share can be saved up, or be owed after a fragment that took longer.
const STEPS: f64 = 16.0;
/// Pieces of work after a step beyond that, while a snapshot is given: one is shown, and one moved, by turns. What
/// they cost steps is bounded by [`Giving`].
const GIVEN_PIECES: usize = 2;

/// The time budget of work for the mixing thread.
#[derive(Debug)]
pub(super) struct Serving {
    /// As [`Replica::shown_from`], seconds.
    shown_from: f64,
    /// Time that this work may still take, seconds; negative after a fragment that took longer.
    left: f64,
    /// Whether all of the live weights are shown to mixing.
    shows: bool,
    /// Whether what is shown are the weights before the last step.
    is_behind: bool,
    /// When the last step ended, unless training has waited since.
    since: Option<Instant>,
    giving: Arc<Giving>,
}

/// Time that this work may take for a step of `step` seconds, seconds.
const fn share(step: f64) -> f64 {
    (SHARE * step).max(SECONDS_MIN)
}

impl Serving {
    /// Nothing is saved up, and nothing is shown. `shown_from`: as [`Replica::shown_from`].
    pub(super) fn new(shown_from: Option<Duration>, giving: Arc<Giving>) -> Self {
        let shown_from = shown_from.map_or(f64::INFINITY, |step| step.as_secs_f64());
        Self { shown_from, left: 0.0, shows: false, is_behind: false, since: None, giving }
    }

    /// A step of `batch` samples took `seconds`, and takes `mean` on average.
    pub(super) fn earn(&mut self, seconds: f64, mean: f64, batch: u32) {
        self.left = (self.left + share(seconds)).min(STEPS * share(mean));
        self.is_behind = true;
        // Commits and reports do some of this work as well, so all that comes between two steps counts.
        let now = Instant::now();
        let since = self.since.replace(now);
        let seconds = since.map_or(seconds, |since| now.duration_since(since).as_secs_f64());
        self.giving.stepped(now, seconds, batch);
    }

    /// Does the work that mixing has left for this thread, within the time budget. Where that is not used up
    /// and steps are long enough, shows all live weights to mixing, so that exchanges need not wait for the end
    /// of the step.
    pub(super) fn serve(&mut self, replica: &mut Replica, step: f64) {
        let began = Instant::now();
        let mut left = self.left;
        while left >= 0.0 && replica.serve() {
            left = self.left - began.elapsed().as_secs_f64();
        }
        self.left = left.max(-STEPS * share(step));
        // It ends with the first that there is none of, or that may cost nothing.
        let _ = (0..GIVEN_PIECES).all(|_| self.giving.may_cost(Instant::now()) && replica.serve());
        if left >= 0.0 && step >= self.shown_from {
            self.shows = replica.show_all();
            self.is_behind = false;
        } else if std::mem::take(&mut self.shows) {
            replica.hide_all();
        }
    }

    /// Training waits: does all that mixing has left for this thread, and brings up to date what is shown.
    pub(super) fn stand(&mut self, replica: &mut Replica) {
        self.giving.stands();
        self.since = None;
        replica.catch_up();
        if self.shows && std::mem::take(&mut self.is_behind) {
            replica.show_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_many_steps_is_saved_up_to_a_bound() {
        let mut serving = Serving::new(None, Giving::new());
        serving.earn(1.0, 1.0, 1);
        assert!((serving.left - SHARE).abs() < 1e-9, "{serving:?}");
        (0..100).for_each(|_| serving.earn(1.0, 1.0, 1));
        assert!((serving.left - STEPS * SHARE).abs() < 1e-9, "{serving:?}");
        serving.earn(1e-6, 1e-6, 1);
        assert!((serving.left - STEPS * SECONDS_MIN).abs() < 1e-9, "{serving:?}");
    }
}
