//! The mean time of a local step.

/// Mean time of a local step, over the last steps or the last seconds, whichever is longer.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepTime {
    /// Weight of the newest step in the mean, at most.
    gain: f64,
    /// Shortest time that the mean is over, seconds.
    span: f64,
    /// Time of the steps, seconds; older ones count less.
    seconds: f64,
    /// Number of the steps; older ones count less.
    steps: f64,
}

/// Number of steps, and time in seconds, from which on the mean is trusted. The first step warms up,
/// and a process that is held to a share of a core runs freely at first.
const KNOWN_STEPS: f64 = 2.5;
const KNOWN_SECONDS: f64 = 0.25;

impl StepTime {
    /// The mean over so many steps, or so many seconds where that is longer.
    pub(super) const fn over(steps: f64, seconds: f64) -> Self {
        Self { gain: 1.0 / steps, span: seconds, seconds: 0.0, steps: 0.0 }
    }

    /// A step took so long.
    pub(super) fn add(&mut self, seconds: f64) {
        let keep = 1.0 - self.gain.min(seconds / self.span);
        self.seconds = keep * self.seconds + seconds;
        self.steps = keep * self.steps + 1.0;
    }

    /// Whether there are enough steps to go by.
    pub(super) fn is_known(&self) -> bool {
        self.steps >= KNOWN_STEPS && self.seconds >= KNOWN_SECONDS
    }

    /// Seconds; 0 before the first step.
    pub(super) fn mean(&self) -> f64 {
        if self.steps > 0.0 { self.seconds / self.steps } else { 0.0 }
    }

    /// Steps take `times` as long from now on.
    pub(super) fn scale(&mut self, times: f64) {
        self.seconds *= times;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_steps_are_averaged_over_ten() {
        let mut time = StepTime::over(10.0, 1.0);
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
        let mut time = StepTime::over(10.0, 1.0);
        let steps = (0..20_000_u32).map(|step| if step % 200 == 199 { 0.060_2 } else { 0.000_2 });
        for (done, seconds) in steps.enumerate() {
            time.add(seconds);
            let off = (time.mean() / 0.000_5 - 1.0).abs();
            assert!(done < 8_000 || off < 0.06, "{done}: {time:?}");
        }
    }
}
