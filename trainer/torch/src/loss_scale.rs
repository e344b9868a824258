//! The factor of the loss that keeps half-precision gradients within their range.
//!
//! Source: Micikevicius et al., arXiv:1710.03740, §3.2, with the numbers of PyTorch's `GradScaler`.

use crate::config::Precision;

/// The factor to begin with.
const FIRST: f32 = 65_536.0;
/// The least factor: the loss as it is.
const LEAST: f32 = 1.0;
/// The greatest factor, beyond which nothing is gained.
const GREATEST: f32 = 16_777_216.0;
/// Finite gradients in a row after which the factor is doubled.
const GROWTH_GRADIENTS: u32 = 2_000;

/// The factor, a power of two, and how it moves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LossScale {
    factor: f32,
    moves: bool,
    finite: u32,
}

impl LossScale {
    /// One for ever, except in half precision.
    pub(crate) fn new(precision: Precision) -> Self {
        let moves = precision == Precision::Fp16;
        Self { factor: if moves { FIRST } else { LEAST }, moves, finite: 0 }
    }

    /// The factor of the loss now.
    pub(crate) const fn factor(self) -> f32 {
        self.factor
    }

    /// Whether it is anything but one for ever.
    pub(crate) const fn moves(self) -> bool {
        self.moves
    }

    /// Takes note of a gradient; returns false when it has to be computed again with the factor
    /// that is now lower.
    pub(crate) fn accept(&mut self, finite: bool) -> bool {
        if !self.moves {
            return true;
        }
        if !finite {
            self.finite = 0;
            let lower = self.factor > LEAST;
            self.factor = if lower { 0.5 * self.factor } else { LEAST };
            return !lower;
        }
        self.finite += 1;
        if self.finite >= GROWTH_GRADIENTS && self.factor < GREATEST {
            self.factor *= 2.0;
            self.finite = 0;
        }
        true
    }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "powers of two are exact")]
mod tests {
    use super::*;

    #[test]
    fn the_factor_halves_until_gradients_are_finite_and_grows_when_they_stay_so() {
        let mut scale = LossScale::new(Precision::Fp16);
        assert!(!scale.accept(false) && !scale.accept(false));
        assert_eq!(scale.factor(), FIRST / 4.0);
        for _ in 0..GROWTH_GRADIENTS {
            assert!(scale.accept(true));
        }
        assert_eq!(scale.factor(), FIRST / 2.0);
        let retries = (0..100).take_while(|_| !scale.accept(false)).count();
        assert_eq!((scale.factor(), retries), (LEAST, 15), "a gradient of NaN is given up");
        assert!(scale.moves());
        assert!((0..GROWTH_GRADIENTS).all(|_| scale.accept(true)));
        assert_eq!(scale.factor(), 2.0, "it grows again");
    }

    #[test]
    fn other_precisions_do_not_scale() {
        for precision in [Precision::F32, Precision::Bf16] {
            let mut scale = LossScale::new(precision);
            assert!(!scale.moves() && scale.accept(false) && scale.accept(true));
            assert_eq!(scale.factor(), 1.0);
        }
    }
}
