//! The lines of a scenario: how long what is sent takes and what gets lost.

use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use serde::Deserialize;

use super::spread::{Spread, standard_normal};
use crate::file::{Rule, duration};

/// How all links of a scenario behave while faults are on.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LinkModel {
    /// Median one-way delay.
    #[serde(with = "duration")]
    pub delay: Duration,
    /// Standard deviation of the logarithm of the delay, unitless; 0 gives the median always.
    pub jitter: f64,
    /// Probability that a message is lost. A reliable stream never does this; the core must survive it.
    pub loss: f64,
    /// Probability that a message arrives twice.
    pub duplicate: f64,
    /// Whether messages of one direction may overtake each other.
    pub reorder: bool,
    /// Bits per second of the median peer's line, each direction; 0 for no limit.
    pub bandwidth: f64,
    /// How bandwidths differ: factors of `bandwidth`.
    pub spread: Spread,
    /// Bandwidth of an uplink over that of the downlink, more than 0 and at most 1.
    pub uplink: f64,
}

impl Default for LinkModel {
    fn default() -> Self {
        let delay = Duration::from_millis(20);
        let (bandwidth, spread, uplink) = (0.0, Spread::NONE, 1.0);
        let (loss, duplicate, reorder) = (0.0, 0.0, false);
        Self { delay, jitter: 0.0, loss, duplicate, reorder, bandwidth, spread, uplink }
    }
}

impl LinkModel {
    /// What is legal.
    pub(crate) fn rules(&self) -> [Rule; 6] {
        let probability = |p: f64| (0.0..=1.0).contains(&p);
        [
            (self.spread.is_legal(), "link.spread", "a legal distribution"),
            (self.bandwidth >= 0.0, "link.bandwidth", "0 or more bits per second"),
            (self.uplink > 0.0 && self.uplink <= 1.0, "link.uplink", "more than 0, at most 1"),
            ((0.0..=JITTER_MAX).contains(&self.jitter), "link.jitter", "0 to 10"),
            (probability(self.loss), "link.loss", "0 to 1"),
            (probability(self.duplicate), "link.duplicate", "0 to 1"),
        ]
    }

    /// The same delays without loss, duplicates and reordering.
    #[must_use]
    pub fn calm(&self) -> Self {
        Self { loss: 0.0, duplicate: 0.0, reorder: false, ..self.clone() }
    }

    /// Draws one delay: log-normal around the median.
    pub fn draw_delay(&self, rng: &mut ChaCha8Rng) -> Duration {
        if self.jitter <= 0.0 {
            return self.delay;
        }
        let factor = (self.jitter * standard_normal(rng)).exp();
        self.delay.mul_f64(factor.min(DELAY_FACTOR_MAX))
    }
}

/// Largest standard deviation of the logarithm of a delay: beyond it delays are those of no link.
const JITTER_MAX: f64 = 10.0;
/// Longest delay in medians; beyond it a message counts as lost on any real link.
const DELAY_FACTOR_MAX: f64 = 50.0;

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn delays_are_log_normal_around_the_median() {
        let mut rng = ChaCha8Rng::from_seed([1; 32]);
        let model = LinkModel { jitter: 0.5, ..LinkModel::default() };
        let logs: Vec<f64> = (0..20_000)
            .map(|_| (model.draw_delay(&mut rng).as_secs_f64() / model.delay.as_secs_f64()).ln())
            .collect();
        let count = logs.len() as f64;
        let mean = logs.iter().sum::<f64>() / count;
        let variance = logs.iter().map(|l| (l - mean).powi(2)).sum::<f64>() / count;
        assert!(mean.abs() < 0.02 && (variance.sqrt() - 0.5).abs() < 0.02, "{mean} {variance}");
    }
}
