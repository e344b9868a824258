//! Fixed point: integers whose sums do not depend on the order, and are exact.

/// One in delta-set's accumulators: `φ = integer · 2⁻³²`, range ±2³¹.
///
/// Finer than f32 for every value above 2⁻⁸, and no contribution or sum of them reaches the range.
const ONE: f64 = (1_u64 << 32) as f64;

/// The integer nearest to `value · 2³²`, ties to even: the one rounding rule of all peers.
///
/// NaN gives 0 and what does not fit the nearest end of the range; callers bound their numbers.
pub(super) fn to_fixed(value: f64) -> i64 {
    (value * ONE).round_ties_even() as i64
}

/// `integer · 2⁻³²`, rounded to f64 and then to f32.
pub(super) fn to_float(integer: i64) -> f32 {
    (integer as f64 / ONE) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f32_above_the_step_survives_the_round_trip() {
        for value in [0.0_f32, 1.0, -0.1, 3.25e-3, -17.125, 1234.5678] {
            assert!((to_float(to_fixed(f64::from(value))) - value).abs() <= 2e-10);
        }
        assert_eq!(to_fixed(0.75), 3 << 30);
        assert_eq!(to_fixed(f64::NAN), 0);
        assert_eq!([0.5, 1.5, -0.5].map(|units| to_fixed(units / ONE)), [0, 2, 0]);
    }
}
