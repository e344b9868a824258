//! When ranks do without backends that need a library or a device, and when they try these again.

use std::time::{Duration, Instant};

/// How long ranks do without a library or device after it has failed them, at first and at most
/// (guess). The time doubles with each failure.
const FALL_BACK: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(600));
/// Largest number of doublings that is counted: more than lead to the longest pause.
const TIMES_MAX: u32 = 16;

/// Whether the ranks do without a failed backend for now; below, `it` is that backend.
#[derive(Debug, Default)]
pub(super) struct Fallen {
    times: u32,
    until: Option<Instant>,
    /// Whether it is tried again, beside a group that does without.
    again: bool,
    /// Since when the group in use runs on it, or on the best that is possible.
    well: Option<Instant>,
}

impl Fallen {
    fn pause(&self) -> Duration {
        let times = self.times.saturating_sub(1);
        FALL_BACK.0.saturating_mul(1 << times).min(FALL_BACK.1)
    }

    /// Whether this rank does without now.
    pub(super) const fn is_plain(&self) -> bool {
        self.until.is_some()
    }

    /// Whether it is tried again, beside a group that does without.
    pub(super) const fn again(&self) -> bool {
        self.again
    }

    /// Does without it; returns for how long.
    pub(super) fn fall(&mut self, now: Instant) -> Duration {
        let was_well = self.well.take();
        if was_well.is_some_and(|since| now.saturating_duration_since(since) >= FALL_BACK.1) {
            self.times = 0;
        }
        self.times = (self.times + 1).min(TIMES_MAX);
        self.until = Some(now + self.pause());
        self.again = false;
        self.pause()
    }

    /// Whether the time has come to try it again; true once.
    pub(super) fn look(&mut self, now: Instant) -> bool {
        let over = self.until.is_some_and(|until| now >= until);
        if over {
            self.follow();
        }
        over
    }

    /// Tries it again now, as another rank does.
    pub(super) const fn follow(&mut self) {
        (self.until, self.again) = (None, true);
    }

    /// A group has formed. `later`: all ranks could use it, but some rank does without, or it could not
    /// be set up. Otherwise there is nothing to try again, whatever failures this rank has seen before.
    pub(super) fn formed(&mut self, later: bool, now: Instant) {
        if !later {
            (self.until, self.again) = (None, false);
            self.well.get_or_insert(now);
        } else if self.again {
            self.fall(now);
        } else {
            self.until = Some(self.until.unwrap_or_else(|| now + self.pause()));
        }
    }

    pub(super) fn not_formed(&mut self, now: Instant) {
        if self.again {
            self.fall(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_ranks_have_again_is_not_tried_again() {
        let now = Instant::now();
        let mut fallen = Fallen::default();
        assert_eq!(fallen.fall(now), FALL_BACK.0);
        // Without it, it is tried when the pause is over.
        fallen.formed(true, now);
        assert!(fallen.look(now + FALL_BACK.0));
        assert!(fallen.again() && !fallen.is_plain());
        fallen.not_formed(now);
        assert_eq!(fallen.until, Some(now + 2 * FALL_BACK.0));
        // Another rank led all of them back to it meanwhile.
        fallen.formed(false, now);
        assert!(!fallen.look(now + FALL_BACK.1));
        assert!(!fallen.again() && !fallen.is_plain());
    }

    #[test]
    fn a_path_that_stays_down_is_tried_after_pauses_that_double_up_to_the_last() {
        let mut now = Instant::now();
        let mut fallen = Fallen::default();
        fallen.fall(now);
        let mut pauses = Vec::new();
        for _ in 0..40 {
            let until = fallen.until.unwrap();
            pauses.push((until - now).as_secs());
            now = until;
            assert!(fallen.look(now));
            // The ranks get together, but not by it.
            fallen.formed(true, now);
        }
        assert_eq!(pauses[..7], [30, 60, 120, 240, 480, 600, 600]);
        assert!(pauses[7..].iter().all(|pause| *pause == 600));
    }

    #[test]
    fn a_failure_after_a_long_success_is_the_first_again() {
        let mut now = Instant::now();
        let mut fallen = Fallen::default();
        for pause in [30, 60, 120] {
            assert_eq!(fallen.fall(now).as_secs(), pause);
            now += Duration::from_secs(pause);
            assert!(fallen.look(now));
            // It does not last.
            fallen.formed(false, now);
        }
        fallen.formed(false, now + Duration::from_secs(100));
        assert_eq!(fallen.fall(now + FALL_BACK.1), FALL_BACK.0);
    }

    #[test]
    fn ranks_whose_clocks_differ_try_it_at_the_same_time() {
        // One rank alone has seen some failures; a try needs both and takes up to five seconds.
        for more in 0..5 {
            let mut now = Instant::now();
            let mut ranks = [Fallen::default(), Fallen::default()];
            for _ in 0..=more {
                ranks[1].fall(now);
            }
            ranks.iter_mut().for_each(|rank| rank.formed(true, now));
            for _ in 0..10 {
                let first = ranks.iter().filter_map(|rank| rank.until).min().unwrap();
                now = now.max(first);
                let leads = ranks.iter_mut().map(|rank| rank.look(now)).collect::<Vec<_>>();
                assert!(leads.contains(&true));
                // Who leads calls the others, which wait yet.
                ranks.iter_mut().filter(|rank| !rank.again).for_each(Fallen::follow);
                assert!(ranks.iter().all(|rank| rank.again() && !rank.is_plain()));
                now += Duration::from_secs(5);
                ranks.iter_mut().for_each(|rank| rank.not_formed(now));
            }
        }
    }
}
