//! The learning rate as a function of the position in the run.

use crate::config::{OptimizerConfig, Schedule};

/// Learning rate at position `step` (from 0) of `total` steps of the run; unitless.
///
/// Linear warm-up reaches the peak at step `warmup_steps − 1`. Then [`Schedule::Cosine`] goes
/// down half a cosine to `final_fraction` of the peak at step `total` and stays there
/// (Loshchilov and Hutter, arXiv:1608.03983, eq. 5, one period); [`Schedule::Linear`] goes there by a line.
/// [`Schedule::Wsd`] stays at the peak
/// until `decay_fraction` of the run is left, and then goes down a line to the same end (Hägele et
/// al., arXiv:2405.18392, section 3).
#[must_use]
pub fn learning_rate(config: &OptimizerConfig, step: u64, total: u64) -> f32 {
    let peak = f64::from(config.learning_rate);
    let warmup = config.warmup_steps;
    if step < warmup {
        return (peak * (step + 1) as f64 / warmup as f64) as f32;
    }
    let span = total.saturating_sub(warmup).max(1);
    let done = ((step - warmup) as f64 / span as f64).min(1.0);
    match config.schedule {
        Schedule::Constant => config.learning_rate,
        Schedule::Cosine => between(config, 0.5 * (1.0 + (std::f64::consts::PI * done).cos())),
        Schedule::Linear => between(config, 1.0 - done),
        Schedule::Wsd => {
            let decay = (f64::from(config.decay_fraction) * total as f64).max(1.0);
            between(config, (total.saturating_sub(step) as f64 / decay).min(1.0))
        }
    }
}

/// The rate that is this share of the way from the last one to the peak.
fn between(config: &OptimizerConfig, share: f64) -> f32 {
    let last = f64::from(config.final_fraction);
    (f64::from(config.learning_rate) * (last + (1.0 - last) * share)) as f32
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "these values are exact")]
mod tests {
    use super::*;
    use crate::config::OptimizerKind;

    #[test]
    fn rates_at_key_steps() {
        let config = OptimizerConfig {
            learning_rate: 1.0,
            warmup_steps: 10,
            final_fraction: 0.2,
            ..OptimizerConfig::default_of(OptimizerKind::Adamw)
        };
        let check = |step, want: f32| {
            let got = learning_rate(&config, step, 110);
            assert!((got - want).abs() < 1e-6, "step {step}: {got}, not {want}");
        };
        check(0, 0.1);
        check(9, 1.0);
        check(10, 1.0);
        check(60, 0.6);
        check(110, 0.2);
        check(u64::MAX, 0.2);
        let linear = OptimizerConfig { schedule: Schedule::Linear, ..config.clone() };
        for (step, want) in [(9, 1.0), (10, 1.0), (35, 0.8), (85, 0.4), (110, 0.2), (999, 0.2)] {
            let got = learning_rate(&linear, step, 110);
            assert!((got - want).abs() < 1e-6, "linear, step {step}: {got}, not {want}");
        }
        let wsd =
            OptimizerConfig { schedule: Schedule::Wsd, decay_fraction: 0.5, ..config.clone() };
        for (step, want) in [(9, 1.0), (54, 1.0), (55, 1.0), (82, 0.607), (110, 0.2), (999, 0.2)] {
            let got = learning_rate(&wsd, step, 110);
            assert!((got - want).abs() < 1e-3, "wsd, step {step}: {got}, not {want}");
        }
        let constant = OptimizerConfig { schedule: Schedule::Constant, ..config };
        assert_eq!(learning_rate(&constant, 5000, 110), 1.0);
    }

    #[test]
    fn a_warm_up_longer_than_the_run_is_followed_by_the_lowest_rate() {
        let config = OptimizerConfig::default_of(OptimizerKind::Adamw);
        assert!(learning_rate(&config, 49, 50) <= config.learning_rate);
        assert!(learning_rate(&config, 200, 50) < 0.2 * config.learning_rate);
    }
}
