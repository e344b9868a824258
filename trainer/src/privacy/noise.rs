//! The bound of a commit's progress, and the noise that is added to it.

use std::f64::consts::TAU;
use std::fmt;

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha20Rng;

/// Room for rounding: a factor and its products are rounded to f32, each by 2⁻²⁴ at most.
const ROUNDING: f64 = 1.0 - 1.0 / (1_u64 << 22) as f64;

/// Where noise comes from. Whoever knows it takes the noise off again, so it is of the operating system and
/// never of the run's seed, which all members know.
pub struct NoiseSeed(pub [u8; 32]);

impl fmt::Debug for NoiseSeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NoiseSeed(..)")
    }
}

/// Clips the progress of commits and adds noise to it.
pub struct CommitNoise {
    /// C, Euclidean norm of the progress of all parameters together.
    clip: f64,
    /// Standard deviation of the noise of each parameter, `z C`.
    deviation: f64,
    /// A cipher's key stream (ChaCha20, RFC 8439): whoever sees some noise cannot tell the rest.
    rng: ChaCha20Rng,
}

impl fmt::Debug for CommitNoise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { clip, deviation, .. } = self;
        f.debug_struct("CommitNoise")
            .field("clip", clip)
            .field("deviation", deviation)
            .finish_non_exhaustive()
    }
}

impl CommitNoise {
    /// `clip`: C, of the weights' unit, above 0. `multiplier`: z, unitless, 0 for a clip alone.
    #[must_use]
    pub fn new(clip: f64, multiplier: f64, seed: NoiseSeed) -> Self {
        let rng = ChaCha20Rng::from_seed(seed.0);
        Self { clip, deviation: multiplier * clip, rng }
    }

    /// What progress of this Euclidean `norm` is multiplied by, so that it is at most C.
    pub(crate) fn factor(&self, norm: f64) -> f64 {
        let limit = ROUNDING * self.clip;
        if norm <= limit {
            1.0
        } else if norm.is_finite() {
            limit / norm
        } else {
            0.0
        }
    }

    /// Clips a part of the progress by `factor` and adds noise to it.
    pub(crate) fn protect(&mut self, progress: &mut [f32], factor: f64) {
        clip(progress, factor);
        if self.deviation > 0.0 {
            for pair in progress.chunks_mut(2) {
                let noise = self.pair();
                pair.iter_mut().zip(noise).for_each(|(value, noise)| *value += noise as f32);
            }
        }
    }

    /// Two independent numbers of the noise (Box and Muller 1958).
    fn pair(&mut self) -> [f64; 2] {
        // In (0, 1], so that the logarithm is finite.
        let radius = 1.0 - self.rng.random::<f64>();
        let radius = self.deviation * (-2.0 * radius.ln()).sqrt();
        let (sine, cosine) = (TAU * self.rng.random::<f64>()).sin_cos();
        [radius * cosine, radius * sine]
    }
}

/// Multiplies by `factor`; 0 also removes what is not finite.
fn clip(progress: &mut [f32], factor: f64) {
    if factor <= 0.0 {
        progress.fill(0.0);
    } else if factor < 1.0 {
        progress.iter_mut().for_each(|value| *value *= factor as f32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mix::norm;

    fn noise(clip: f64, multiplier: f64) -> CommitNoise {
        CommitNoise::new(clip, multiplier, NoiseSeed([7; 32]))
    }

    #[test]
    fn progress_is_no_longer_than_the_clip_to_the_last_bit() {
        let progress: Vec<f32> = (0..10_007).map(|i| (i as f32 * 0.37).sin()).collect();
        for bound in [1e-6, 0.1, 0.3, 1.0, 7.0, 70.0] {
            let (mut clipped, mut noise) = (progress.clone(), noise(bound, 0.0));
            let factor = noise.factor(norm(&clipped));
            // In parts, as fragments are.
            clipped.chunks_mut(1_001).for_each(|part| noise.protect(part, factor));
            let length = norm(&clipped);
            assert!(length <= bound && length > bound * (1.0 - 1e-6), "{length} {bound}");
        }
        let (mut short, mut noise) = (progress.clone(), noise(1e3, 0.0));
        let factor = noise.factor(norm(&short));
        noise.protect(&mut short, factor);
        assert_eq!(short, progress);
    }

    #[test]
    fn progress_that_is_not_finite_is_none() {
        for bad in [f32::NAN, f32::INFINITY] {
            let (mut progress, mut noise) = (vec![1.0, bad, -2.0], noise(1.0, 0.0));
            let factor = noise.factor(norm(&progress));
            noise.protect(&mut progress, factor);
            assert_eq!(progress, [0.0; 3]);
        }
    }

    #[test]
    fn noise_is_normal_with_the_stated_deviation_and_of_its_seed() {
        let draw = |seed| {
            let mut values = vec![0.0_f32; 1_000_001];
            CommitNoise::new(0.5, 3.0, NoiseSeed([seed; 32])).protect(&mut values, 1.0);
            values
        };
        let values = draw(1);
        let count = values.len() as f64;
        let moment = |power: i32| {
            values.iter().map(|&v| (f64::from(v) / 1.5).powi(power)).sum::<f64>() / count
        };
        // Standard errors: 0.001, 0.0014, 0.004, 0.01.
        assert!(moment(1).abs() < 0.005, "{}", moment(1));
        assert!((moment(2) - 1.0).abs() < 0.007, "{}", moment(2));
        assert!(moment(3).abs() < 0.02, "{}", moment(3));
        assert!((moment(4) - 3.0).abs() < 0.05, "{}", moment(4));
        // Neighbours come from one pair, and are as independent as others.
        let product = |lag: usize| {
            let pairs = values.iter().zip(&values[lag..]);
            pairs.map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>() / count / 2.25
        };
        assert!(product(1).abs() < 0.005 && product(2).abs() < 0.005);
        let beyond = values.iter().filter(|v| v.abs() > 1.5 * 1.96).count() as f64 / count;
        assert!((beyond - 0.05).abs() < 0.002, "{beyond}");
        assert_eq!(values, draw(1));
        let other = draw(2);
        let equal = values.iter().zip(&other).filter(|(a, b)| a.to_bits() == b.to_bits());
        assert!(equal.count() < 10);
    }
}
