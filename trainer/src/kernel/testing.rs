//! What tests of kernels share: numbers, and difference quotients.

/// `count` numbers that look random, within ± `size`.
pub(crate) fn noise(count: usize, salt: usize, size: f32) -> Vec<f32> {
    let number = |index: usize| {
        let word = (index * 7919 + salt * 104_729).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (word >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    };
    (0..count).map(|index| size * number(index)).collect()
}

/// Slope of `value` along element `index` at `point`, by a central difference.
pub(crate) fn slope(point: &[f32], index: usize, value: impl Fn(&[f32]) -> f64) -> f64 {
    const STEP: f32 = 1e-2;
    let at = |step: f32| {
        let mut moved = point.to_vec();
        moved[index] += step;
        (value(&moved), f64::from(moved[index]))
    };
    let ((above, right), (below, left)) = (at(STEP), at(-STEP));
    (above - below) / (right - left)
}
