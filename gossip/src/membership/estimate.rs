//! Moving estimates of measured times, and the limits between which deadlines follow them.

use std::time::Duration;

/// Weight of the newest measurement in a moving average (RFC 6298: 1/8).
const GAIN: f64 = 0.125;
/// Why a deadline is no longer.
pub(crate) const LONGEST: &str = "the longest allowed";

/// A moving mean and mean deviation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Estimate {
    mean: f64,
    deviation: f64,
    count: u32,
}

impl Estimate {
    pub(crate) fn add(&mut self, sample: Duration) {
        let sample = sample.as_secs_f64();
        if self.count == 0 {
            (self.mean, self.deviation) = (sample, sample / 2.0);
        } else {
            self.deviation += GAIN * ((sample - self.mean).abs() - self.deviation);
            self.mean += GAIN * (sample - self.mean);
        }
        self.count = self.count.saturating_add(1);
    }

    /// Measurements so far.
    pub(crate) const fn count(&self) -> u32 {
        self.count
    }

    /// Seconds, once something was measured.
    pub(crate) fn mean(&self) -> Option<f64> {
        (self.count > 0).then_some(self.mean)
    }

    /// The mean and so many mean deviations, once something was measured.
    pub(crate) fn beyond(&self, deviations: f64) -> Option<Duration> {
        let seconds = self.mean + deviations * self.deviation;
        (self.count > 0).then(|| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
    }
}

/// `value` for that reason, or the shortest that is allowed.
pub(crate) fn at_least(
    least: Duration,
    value: Duration,
    why: &'static str,
) -> (Duration, &'static str) {
    if value > least { (value, why) } else { (least, "the shortest allowed") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_estimate_follows_its_samples() {
        let mut estimate = Estimate::default();
        assert_eq!(estimate.mean(), None);
        for _ in 0..100 {
            estimate.add(Duration::from_millis(250));
        }
        assert!((estimate.mean - 0.25).abs() < 1e-9 && estimate.deviation < 1e-3);
        estimate.add(Duration::from_millis(1050));
        assert!((estimate.mean - 0.35).abs() < 1e-6 && estimate.deviation > 0.09);
    }
}
