//! How much of the training thread's time the mixing thread gets.

use std::time::Instant;

use dnode_trainer::Replica;

/// Part of the time of steps that serving mixing may take, so that training keeps nine tenths.
const SHARE: f64 = 0.07;
/// What it may take of each step at least, seconds: models whose steps are that short are small
/// (guess), and one fragment of 4 MiB takes about 1 ms.
const SECONDS_MIN: f64 = 0.5e-3;
/// Steps whose share can be saved up, or be owed after a fragment that took longer.
const STEPS: f64 = 16.0;
/// Steps from this length on, seconds, show all of the live weights beforehand, where these are what
/// is exchanged; the end of a shorter one is soon enough for an answer (guess).
const LONG_STEP: f64 = 0.1;
/// Part of a long step that this copy may take.
const SHOW_SHARE: f64 = 0.02;
/// Parameters copied in a second, at least (guess: memory of any machine that trains is faster).
const COPY_RATE: f64 = 1e9;

/// A budget of time.
#[derive(Debug, Default)]
pub(super) struct Serving {
    /// Time that serving mixing may still take, seconds.
    left: f64,
    /// Whether all of the live weights are shown to mixing.
    shows: bool,
}

/// Time that serving mixing may take for a step of this length, seconds.
const fn share(step: f64) -> f64 {
    (SHARE * step).max(SECONDS_MIN)
}

impl Serving {
    /// A step took `seconds`, and takes `mean` as a rule.
    pub(super) const fn earn(&mut self, seconds: f64, mean: f64) {
        self.left = (self.left + share(seconds)).min(STEPS * share(mean));
    }

    /// Does what mixing has left for this thread, as far as its share of the time of steps reaches.
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
