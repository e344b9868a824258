//! Fixed point: integers whose sums do not depend on the order, and are exact.

/// Fraction bits of push-sum's numerators: `X = integer · 2⁻²⁶`.
///
/// With weights near 1, `z = X/W` is stepped by 1.5e-8, the f32 step at 0.25. What travels are the
/// low 32 bits of running sums, so 26 leaves each unacknowledged span ±32, which is far above
/// the halves of weights of neural networks (guess: those stay below 10).
pub(super) const NUMERATOR_BITS: u32 = 26;

/// Fraction bits of delta-set's accumulators: `φ = integer · 2⁻³²`, range ±2³¹.
///
/// Finer than f32 for every value above 2⁻⁸, and no contribution or sum of them reaches the range.
pub(super) const ACCUMULATOR_BITS: u32 = 32;

/// The integer nearest to `value · 2^bits`, ties to even: the one rounding rule of all peers.
///
/// NaN gives 0 and what does not fit the nearest end of the range; callers bound their numbers.
pub(super) fn to_fixed(value: f64, bits: u32) -> i64 {
    (value * scale(bits)).round_ties_even() as i64
}

/// `integer · 2^−bits`, rounded to f64 and then to f32.
pub(super) fn to_float(integer: i64, bits: u32) -> f32 {
    (integer as f64 / scale(bits)) as f32
}

/// `2^bits`.
pub(super) fn scale(bits: u32) -> f64 {
    (1_u64 << bits) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f32_above_the_step_survives_the_round_trip() {
        for value in [0.0_f32, 1.0, -0.1, 3.25e-3, -17.125, 1234.5678] {
            let integer = to_fixed(f64::from(value), ACCUMULATOR_BITS);
            assert!((to_float(integer, ACCUMULATOR_BITS) - value).abs() <= 2e-10);
        }
        assert_eq!(to_fixed(0.75, NUMERATOR_BITS), 3 << 24);
        assert_eq!(to_fixed(f64::NAN, NUMERATOR_BITS), 0);
        assert_eq!((to_fixed(0.5, 0), to_fixed(1.5, 0), to_fixed(-0.5, 0)), (0, 2, 0));
    }
}
