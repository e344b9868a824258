//! How much of the training thread's time the mixing thread gets.

use std::time::Instant;

use dnode_trainer::Replica;

/// Part of the time of steps that work for the mixing thread may take, so that training keeps nine
/// tenths.
const SHARE: f64 = 0.07;
/// Seconds of each step that it may take at least. Models whose steps are that short are small (guess),
/// and one fragment of 4 MiB takes about 1 ms.
const SECONDS_MIN: f64 = 0.5e-3;
/// Steps whose share can be saved up, or be owed after a fragment that took longer.
const STEPS: f64 = 16.0;
/// Steps that take at least this many seconds show all live weights to mixing beforehand, if live
/// weights are exchanged. The end of a shorter step is soon enough for an answer (guess).
const LONG_STEP: f64 = 0.1;
/// Part of a long step that this copy may take.
const SHOW_SHARE: f64 = 0.02;
/// Parameters copied in a second, at least (guess: memory of any machine that trains is faster).
const COPY_RATE: f64 = 1e9;

/// The time budget of work for the mixing thread.
#[derive(Debug, Default)]
pub(super) struct Serving {
    /// Time that this work may still take, seconds; negative after a fragment that took longer.
    left: f64,
    /// Whether all of the live weights are shown to mixing.
    shows: bool,
}

/// Time that this work may take for a step of `step` seconds, seconds.
const fn share(step: f64) -> f64 {
    (SHARE * step).max(SECONDS_MIN)
}

impl Serving {
    /// A step took `seconds`, and takes `mean` on average.
    pub(super) const fn earn(&mut self, seconds: f64, mean: f64) {
        self.left = (self.left + share(seconds)).min(STEPS * share(mean));
    }

    /// Does the work that mixing has left for this thread, within the time budget.
    pub(super) fn serve(&mut self, replica: &mut Replica, step: f64) {
        let began = Instant::now();
        let mut left = self.left;
        while left >= 0.0 && replica.serve() {
            left = self.left - began.elapsed().as_secs_f64();
        }
        self.left = left.max(-STEPS * share(step));
        let copy_seconds = replica.shown_elements() as f64 / COPY_RATE;
        if step >= LONG_STEP && copy_seconds <= SHOW_SHARE * step {
            self.shows = replica.show_all();
        } else if std::mem::take(&mut self.shows) {
            replica.hide_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_many_steps_is_saved_up_to_a_bound() {
        let mut serving = Serving::default();
        serving.earn(1.0, 1.0);
        assert!((serving.left - SHARE).abs() < 1e-9, "{serving:?}");
        (0..100).for_each(|_| serving.earn(1.0, 1.0));
        assert!((serving.left - STEPS * SHARE).abs() < 1e-9, "{serving:?}");
        serving.earn(1e-6, 1e-6);
        assert!((serving.left - STEPS * SECONDS_MIN).abs() < 1e-9, "{serving:?}");
    }
}
