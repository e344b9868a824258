//! How long a local step takes.

/// Weight of the newest step in the mean, at most.
const GAIN: f64 = 0.1;
/// What the mean is over at least, seconds: longer than the pauses of a process that is held to a
/// share of a core (Linux: 0.1 s) or that waits for its turn, which fall on few of many short steps.
const SPAN: f64 = 1.0;
/// From so many steps on, and so much time, the mean says something: the first step warms up, and a
/// process that is held to a share of a core runs freely at first.
const KNOWN_STEPS: f64 = 2.5;
const KNOWN_SECONDS: f64 = 0.25;

/// Mean time of a local step, over the last ten steps or the last second, whichever is longer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StepTime {
    /// Time of the steps, seconds; older ones count less.
    seconds: f64,
    /// Their number, likewise.
    steps: f64,
}

impl StepTime {
    pub(super) fn add(&mut self, seconds: f64) {
        let keep = 1.0 - GAIN.min(seconds / SPAN);
        self.seconds = keep * self.seconds + seconds;
        self.steps = keep * self.steps + 1.0;
    }

    /// Whether there are enough steps to tell others of.
    pub(super) fn is_known(&self) -> bool {
        self.steps >= KNOWN_STEPS && self.seconds >= KNOWN_SECONDS
    }

    /// Seconds; 0 before the first step.
    pub(super) fn mean(&self) -> f64 {
        if self.steps > 0.0 { self.seconds / self.steps } else { 0.0 }
    }

    /// Steps take so many times as long from now on.
    pub(super) fn scale(&mut self, times: f64) {
        self.seconds *= times;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_steps_are_averaged_over_ten() {
        let mut time = StepTime::default();
        assert!(time.mean() <= 0.0);
        time.add(0.5);
        assert!((time.mean() - 0.5).abs() < 1e-9);
        (0..100).for_each(|_| time.add(2.0));
        assert!((time.mean() - 2.0).abs() < 1e-3, "{time:?}");
        time.add(4.0);
        assert!((time.mean() - 2.2).abs() < 1e-3, "{time:?}");
        time.scale(0.5);
        assert!((time.mean() - 1.1).abs() < 1e-3, "{time:?}");
    }

    #[test]
    fn pauses_among_short_steps_count_by_their_share() {
        // 0.2 ms each, but held for 60 ms after every 40 ms: 0.5 ms in the mean.
        let mut time = StepTime::default();
        let steps = (0..20_000_u32).map(|step| if step % 200 == 199 { 0.060_2 } else { 0.000_2 });
        for (done, seconds) in steps.enumerate() {
            time.add(seconds);
            let off = (time.mean() / 0.000_5 - 1.0).abs();
            assert!(done < 8_000 || off < 0.06, "{done}: {time:?}");
        }
    }
}
