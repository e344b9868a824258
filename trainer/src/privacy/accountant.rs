//! What commits with noise reveal together, as (ε, δ) of differential privacy.
//!
//! Commits of one noise multiplier `z` and a sensitivity of `s` clips are together one Gaussian
//! mechanism with `μ = s √(Σ 1/z²)`, however each depends on what was shown before (Dong, Roth and
//! Su 2019, arXiv 1905.02383, Corollary 3.3). Its δ for each ε is known exactly (Balle and Wang 2018, arXiv
//! 1805.06530, Theorem 8):
//!
//! ```text
//! δ(ε) = Φ(−y) − e^ε Φ(−x)        x = ε/μ + μ/2,  y = ε/μ − μ/2
//! ```
//! Nothing is gained by sampling: every commit is shown, so none of the bounds for sampled steps is
//! needed.

use std::f64::consts::{SQRT_2, TAU};

/// From here on the ratio of tail and density is a continued fraction; below, a series for Φ is short.
const TAIL_FROM: f64 = 4.0;
/// Terms of that fraction: from [`TAIL_FROM`] on, f64 has converged (test).
const FRACTION_TERMS: u32 = 60;
/// Halvings of an interval, after which f64 knows nothing more of its end.
const HALVINGS: u32 = 200;

/// Which data a promise tells apart from this peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adjacency {
    /// None: each contribution is noise alone ("zero-out", Kairouz et al. 2021, arXiv 2103.00039). A commit
    /// then changes by one clip at most.
    ZeroedOut,
    /// Any other data in place of all of this peer's. A commit then changes by two clips at most.
    Replaced,
}

/// What commits with noise have revealed of their peer's data, whatever their multipliers were.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PrivacyLoss {
    commits: u64,
    /// `Σ 1/z²` over these commits.
    inverse_squares: f64,
}

impl PrivacyLoss {
    /// Of so many commits, where the sum of `1/z²` is known; `None` if no commits could have it.
    #[must_use]
    pub fn of(commits: u64, inverse_squares: f64) -> Option<Self> {
        let possible = inverse_squares.is_finite() && inverse_squares >= 0.0;
        possible.then_some(Self { commits, inverse_squares })
    }

    /// The loss after `commits` more with noise of this `multiplier`, `z > 0`.
    #[must_use]
    pub fn after(self, commits: u64, multiplier: f64) -> Self {
        Self {
            commits: self.commits.saturating_add(commits),
            inverse_squares: self.inverse_squares + commits as f64 / multiplier.powi(2),
        }
    }

    /// How many commits these are.
    #[must_use]
    pub const fn commits(self) -> u64 {
        self.commits
    }

    /// `Σ 1/z²`.
    #[must_use]
    pub const fn inverse_squares(self) -> f64 {
        self.inverse_squares
    }

    /// The smallest ε that holds with this `delta`, in `(0, 1)`.
    #[must_use]
    pub fn epsilon(self, delta: f64, adjacency: Adjacency) -> f64 {
        let sensitivity = match adjacency {
            Adjacency::ZeroedOut => 1.0,
            Adjacency::Replaced => 2.0,
        };
        epsilon(sensitivity * self.inverse_squares.sqrt(), delta)
    }
}

/// The smallest ε ≥ 0 with `δ(ε) ≤ delta` for a Gaussian mechanism of this μ.
fn epsilon(mu: f64, delta: f64) -> f64 {
    if mu <= 0.0 || delta_of(mu, 0.0) <= delta {
        return 0.0;
    }
    let (mut low, mut high) = (0.0, 1.0);
    while delta_of(mu, high) > delta {
        (low, high) = (high, 2.0 * high);
    }
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        if delta_of(mu, middle) > delta {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

/// δ(ε) of a Gaussian mechanism of this μ > 0.
///
/// The second term is `φ(y) M(x)` with `M(x) = Φ(−x) / φ(x)`, since `e^ε φ(x) = φ(y)`: nothing
/// overflows, however large ε is.
fn delta_of(mu: f64, epsilon: f64) -> f64 {
    let (x, y) = (epsilon / mu + mu / 2.0, epsilon / mu - mu / 2.0);
    if y >= TAIL_FROM {
        return (density(y) * (tail_ratio(y) - tail_ratio(x))).max(0.0);
    }
    (tail(y) - density(y) * tail_ratio(x)).max(0.0)
}

/// φ, the density of the standard normal distribution.
fn density(x: f64) -> f64 {
    (-x * x / 2.0).exp() / TAU.sqrt()
}

/// Φ(−x).
fn tail(x: f64) -> f64 {
    if x >= TAIL_FROM {
        density(x) * tail_ratio(x)
    } else if x <= -TAIL_FROM {
        1.0 - tail(-x)
    } else {
        0.5 - density(x) * odd_series(x)
    }
}

/// `M(x) = Φ(−x) / φ(x)`, for `x > −`[`TAIL_FROM`].
fn tail_ratio(x: f64) -> f64 {
    if x < TAIL_FROM {
        return tail(x) / density(x);
    }
    // Laplace: M(x) = 1 / (x + 1 / (x + 2 / (x + 3 / …))).
    let fraction = (1..=FRACTION_TERMS).rev().fold(0.0, |rest, k| f64::from(k) / (x + rest));
    1.0 / (x + fraction)
}

/// `(Φ(x) − 1/2) / φ(x) = x + x³/3 + x⁵/(3·5) + …` (Marsaglia 2004, "Evaluating the normal
/// distribution").
fn odd_series(x: f64) -> f64 {
    let (mut term, mut sum, mut k) = (x, x, 1.0);
    while term.abs() > f64::EPSILON * SQRT_2 * sum.abs() / 4.0 {
        k += 2.0;
        term *= x * x / k;
        sum += term;
    }
    sum
}

#[cfg(test)]
mod tests;
