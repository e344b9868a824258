//! Distributions of initial parameters, built from additions and products only, so that every
//! machine draws the same bits.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;

/// Uniform in `[0, 1)`, 24 random bits.
pub(crate) fn unit(random: &mut ChaCha8Rng) -> f32 {
    (random.next_u32() >> 8) as f32 / 16_777_216.0
}

/// Uniform with mean 0 and variance `gain / fan_in`.
///
/// Gain 2 keeps the variance through a ReLU (He et al., arXiv:1502.01852, eq. 10).
pub(crate) fn uniform(random: &mut ChaCha8Rng, values: &mut [f32], fan_in: usize, gain: f32) {
    let bound = (3.0 * gain / fan_in as f32).sqrt();
    for value in values {
        *value = bound * (2.0 * unit(random) - 1.0);
    }
}

/// Normal with mean 0, as the sum of twelve uniform numbers; never beyond 6 deviations.
pub(crate) fn normal(random: &mut ChaCha8Rng, values: &mut [f32], deviation: f32) {
    for value in values {
        let sum: f32 = (0..12).map(|_| unit(random)).sum();
        *value = deviation * (sum - 6.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::initial_random;

    #[test]
    fn draws_have_the_stated_variance() {
        let mut values = vec![0.0; 40_000];
        let check = |values: &[f32], variance: f64| {
            let n = values.len() as f64;
            let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
            let second = values.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / n;
            assert!(mean.abs() < 0.02 * variance.sqrt(), "mean {mean}");
            assert!((second / variance - 1.0).abs() < 0.03, "variance {second}");
        };
        uniform(&mut initial_random(1), &mut values, 50, 2.0);
        check(&values, 0.04);
        normal(&mut initial_random(2), &mut values, 0.02);
        check(&values, 0.0004);
    }
}
