//! How a quantity differs from peer to peer: speeds, bandwidths.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use serde::Deserialize;

/// A distribution of factors over peers; the median (of classes: the first unnamed share) is 1.
///
/// In a scenario file: `{ kind = "uniform", ratio = 1.5 }`, `{ kind = "log-normal", sigma = 0.5 }`
/// or `{ kind = "classes", classes = [{ share = 0.125, factor = 4.0 }] }`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", tag = "kind")]
pub enum Spread {
    /// The logarithm is uniform; `ratio` is the largest factor over the smallest, at least 1.
    Uniform {
        /// Largest over smallest.
        ratio: f64,
    },
    /// The logarithm is normal; draws beyond [`SIGMAS_MAX`] standard deviations are cut.
    LogNormal {
        /// Standard deviation of the logarithm, 0 to 2.
        sigma: f64,
    },
    /// Named shares of the peers have named factors, all others 1. The first peers by index.
    Classes {
        /// The classes, in order of peers.
        classes: Vec<Class>,
    },
}

/// Peers of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Class {
    /// Share of all peers, 0 to 1.
    pub share: f64,
    /// Their factor, greater than 0.
    pub factor: f64,
}

/// Log-normal factors lie within this many standard deviations. Guess: beyond it a machine is not
/// slow but broken, and bounds of simulated time stay finite.
pub const SIGMAS_MAX: f64 = 4.0;
/// Most classes of a [`Spread::Classes`].
const CLASSES_MAX: usize = 16;

impl Spread {
    /// All peers alike.
    pub const NONE: Self = Self::Uniform { ratio: 1.0 };

    /// Whether the numbers are in range.
    #[must_use]
    pub fn is_legal(&self) -> bool {
        match self {
            Self::Uniform { ratio } => (1.0..=1e6).contains(ratio),
            Self::LogNormal { sigma } => (0.0..=2.0).contains(sigma),
            Self::Classes { classes } => {
                let legal = |class: &Class| {
                    (0.0..=1.0).contains(&class.share) && (1e-3..=1e3).contains(&class.factor)
                };
                classes.len() <= CLASSES_MAX
                    && classes.iter().all(legal)
                    && classes.iter().map(|class| class.share).sum::<f64>() <= 1.0 + 1e-9
            }
        }
    }

    /// The factor of one of `peers` peers.
    pub fn draw(&self, peer: u32, peers: u32, rng: &mut ChaCha8Rng) -> f64 {
        match self {
            Self::Uniform { ratio } => ratio.powf(rng.random::<f64>() - 0.5),
            Self::LogNormal { sigma } => {
                (sigma * standard_normal(rng).clamp(-SIGMAS_MAX, SIGMAS_MAX)).exp()
            }
            Self::Classes { classes } => {
                let place = (f64::from(peer) + 0.5) / f64::from(peers);
                let mut end = 0.0;
                let class = classes.iter().find(|class| {
                    end += class.share;
                    place < end
                });
                class.map_or(1.0, |class| class.factor)
            }
        }
    }

    /// The largest factor that can be drawn.
    #[must_use]
    pub fn largest(&self) -> f64 {
        match self {
            Self::Uniform { ratio } => ratio.sqrt(),
            Self::LogNormal { sigma } => (SIGMAS_MAX * sigma).exp(),
            Self::Classes { classes } => classes.iter().fold(1.0, |most, c| c.factor.max(most)),
        }
    }

    /// The smallest factor that can be drawn.
    #[must_use]
    pub fn smallest(&self) -> f64 {
        match self {
            Self::Uniform { .. } | Self::LogNormal { .. } => 1.0 / self.largest(),
            Self::Classes { classes } => classes.iter().fold(1.0, |least, c| c.factor.min(least)),
        }
    }
}

/// A draw from the standard normal distribution (Box and Muller 1958).
pub(super) fn standard_normal(rng: &mut ChaCha8Rng) -> f64 {
    let radius: f64 = (-2.0 * (1.0 - rng.random::<f64>()).ln()).sqrt();
    radius * (std::f64::consts::TAU * rng.random::<f64>()).cos()
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    fn factors(spread: &Spread, peers: u32) -> Vec<f64> {
        let mut rng = ChaCha8Rng::from_seed([2; 32]);
        (0..peers).map(|peer| spread.draw(peer, peers, &mut rng)).collect()
    }

    #[test]
    fn log_normal_factors_have_median_one_and_the_deviation_of_the_logarithm() {
        let logs: Vec<f64> =
            factors(&Spread::LogNormal { sigma: 0.5 }, 20_000).iter().map(|f| f.ln()).collect();
        let mean = logs.iter().sum::<f64>() / logs.len() as f64;
        let variance = logs.iter().map(|l| (l - mean).powi(2)).sum::<f64>() / logs.len() as f64;
        assert!(mean.abs() < 0.02 && (variance.sqrt() - 0.5).abs() < 0.02, "{mean} {variance}");
    }

    #[test]
    fn classes_have_their_share() {
        let classes = vec![Class { share: 0.125, factor: 4.0 }, Class { share: 0.25, factor: 0.5 }];
        let spread = Spread::Classes { classes };
        let drawn = factors(&spread, 8);
        assert_eq!(drawn, [4.0, 0.5, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0]);
        assert_eq!((spread.largest(), spread.smallest()), (4.0, 0.5));
    }

    #[test]
    fn every_factor_lies_between_the_smallest_and_the_largest() {
        for spread in [
            Spread::Uniform { ratio: 4.0 },
            Spread::LogNormal { sigma: 1.0 },
            Spread::Classes { classes: vec![Class { share: 0.5, factor: 3.0 }] },
        ] {
            let legal = spread.smallest()..=spread.largest();
            assert!(factors(&spread, 5000).iter().all(|factor| legal.contains(factor)));
        }
    }

    #[test]
    fn shares_beyond_the_whole_are_refused() {
        let class = Class { share: 0.6, factor: 1.0 };
        assert!(!Spread::Classes { classes: vec![class; 2] }.is_legal());
        assert!(!Spread::Uniform { ratio: 0.5 }.is_legal());
        assert!(Spread::NONE.is_legal());
    }
}
