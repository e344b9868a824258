//! Sums that the compiler can vectorise: partial sums per lane, in a fixed order.

use super::vectorized;

/// Partial sums kept side by side; one AVX-512 register.
const LANES: usize = 16;

/// `Σ f(x)` over pairs of elements, lane by lane; the order depends only on the length.
#[inline(always)]
fn lane_sum(left: &[f32], right: &[f32], term: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    let (left_chunks, left_rest) = left.as_chunks::<LANES>();
    let (right_chunks, right_rest) = right.as_chunks::<LANES>();
    for (l, r) in left_chunks.iter().zip(right_chunks) {
        for ((lane, &l), &r) in lanes.iter_mut().zip(l).zip(r) {
            *lane += term(l, r);
        }
    }
    for ((lane, &l), &r) in lanes.iter_mut().zip(left_rest).zip(right_rest) {
        *lane += term(l, r);
    }
    lanes.iter().sum()
}

/// `Σ values`; call inside [`vectorized`].
#[inline(always)]
pub(crate) fn sum(values: &[f32]) -> f32 {
    lane_sum(values, values, |value, _| value)
}

/// `Σ left · right`; call inside [`vectorized`].
#[inline(always)]
pub(crate) fn dot(left: &[f32], right: &[f32]) -> f32 {
    lane_sum(left, right, |l, r| l * r)
}

/// Largest element, ignoring NaN; call inside [`vectorized`].
#[inline(always)]
pub(crate) fn maximum(values: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane = if value > *lane { value } else { *lane };
        }
    }
    for (lane, &value) in lanes.iter_mut().zip(rest) {
        *lane = if value > *lane { value } else { *lane };
    }
    lanes.iter().copied().fold(f32::NEG_INFINITY, f32::max)
}

/// Largest absolute value, ignoring NaN, 0 of none; call inside [`vectorized`].
#[inline(always)]
pub(crate) fn largest(values: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane = if value.abs() > *lane { value.abs() } else { *lane };
        }
    }
    for (lane, value) in lanes.iter_mut().zip(rest) {
        *lane = if value.abs() > *lane { value.abs() } else { *lane };
    }
    lanes.iter().copied().fold(0.0, f32::max)
}

/// Euclidean norm, summed in `f64`; NaN or infinite exactly if an element is.
pub(crate) fn norm(values: &[f32]) -> f64 {
    squares(values).sqrt()
}

/// Sum of squares in `f64`, which those of f32 cannot overflow; NaN or infinite exactly if an
/// element is, so one pass measures and validates.
pub(crate) fn squares(values: &[f32]) -> f64 {
    let mut squares = Squares::default();
    squares.add(values);
    squares.sum()
}

/// [`squares`] that go on from piece to piece. The bits are those of the whole while the pieces before
/// the last one have a multiple of [`LANES`] elements.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Squares([f64; LANES]);

impl Squares {
    pub(crate) fn add(&mut self, values: &[f32]) {
        let lanes = &mut self.0;
        vectorized(
            #[inline(always)]
            || {
                let (rows, rest) = values.as_chunks::<LANES>();
                let mut sums = *lanes;
                for row in rows {
                    add_row(&mut sums, row);
                }
                for (sum, &value) in sums.iter_mut().zip(rest) {
                    *sum += f64::from(value) * f64::from(value);
                }
                *lanes = sums;
            },
        );
    }

    pub(crate) fn sum(self) -> f64 {
        self.0.iter().sum()
    }
}

#[inline(always)]
fn add_row(sums: &mut [f64; LANES], row: &[f32; LANES]) {
    for (sum, &value) in sums.iter_mut().zip(row) {
        *sum += f64::from(value) * f64::from(value);
    }
}

/// The squares of `local`, of `remote` and of `local − remote`, in one pass.
pub(crate) fn measure_difference(
    (local, remote): (&[f32], &[f32]),
    [of_local, of_remote, of_difference]: &mut [Squares; 3],
) {
    let sums = [&mut of_local.0, &mut of_remote.0, &mut of_difference.0];
    vectorized(
        #[inline(always)]
        || {
            let (local_rows, local_rest) = local.as_chunks::<LANES>();
            let (remote_rows, remote_rest) = remote.as_chunks::<LANES>();
            let [mut l, mut r, mut d] = [*sums[0], *sums[1], *sums[2]];
            for (local, remote) in local_rows.iter().zip(remote_rows) {
                let difference: [f32; LANES] =
                    std::array::from_fn(|lane| local[lane] - remote[lane]);
                add_row(&mut l, local);
                add_row(&mut r, remote);
                add_row(&mut d, &difference);
            }
            for (index, (&local, &remote)) in local_rest.iter().zip(remote_rest).enumerate() {
                let difference = local - remote;
                l[index] += f64::from(local) * f64::from(local);
                r[index] += f64::from(remote) * f64::from(remote);
                d[index] += f64::from(difference) * f64::from(difference);
            }
            [*sums[0], *sums[1], *sums[2]] = [l, r, d];
        },
    );
}

/// `x ← local − remote`.
pub(crate) fn set_difference(values: &mut [f32], local: &[f32], remote: &[f32]) {
    vectorized(
        #[inline(always)]
        || {
            for ((value, &local), &remote) in values.iter_mut().zip(local).zip(remote) {
                *value = local - remote;
            }
        },
    );
}

/// `out[c] ← out[c] + Σ_n rows[n, c]`; `rows`: `[N, C]`, `out`: `[C]`.
pub(crate) fn add_column_sums(rows: &[f32], out: &mut [f32]) {
    vectorized(
        #[inline(always)]
        || {
            for row in rows.chunks_exact(out.len()) {
                for (sum, &value) in out.iter_mut().zip(row) {
                    *sum += value;
                }
            }
        },
    );
}

/// `rows[n, c] ← rows[n, c] + bias[c]`; `rows`: `[N, C]`, `bias`: `[C]`.
pub(crate) fn add_bias(rows: &mut [f32], bias: &[f32]) {
    vectorized(
        #[inline(always)]
        || {
            for row in rows.chunks_exact_mut(bias.len()) {
                for (value, &bias) in row.iter_mut().zip(bias) {
                    *value += bias;
                }
            }
        },
    );
}

/// `x ← x + weight · delta`.
pub(crate) fn add_scaled(values: &mut [f32], delta: &[f32], weight: f32) {
    vectorized(
        #[inline(always)]
        || {
            for (value, &delta) in values.iter_mut().zip(delta) {
                *value += weight * delta;
            }
        },
    );
}

/// `x ← weight · delta`.
pub(crate) fn set_scaled(values: &mut [f32], delta: &[f32], weight: f32) {
    vectorized(
        #[inline(always)]
        || {
            for (value, &delta) in values.iter_mut().zip(delta) {
                *value = weight * delta;
            }
        },
    );
}

/// `x ← weight · x`.
pub(crate) fn scale(values: &mut [f32], weight: f32) {
    vectorized(
        #[inline(always)]
        || {
            for value in values {
                *value *= weight;
            }
        },
    );
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "these values are exact")]
mod tests {
    use super::*;

    #[test]
    fn sums_take_every_element_once() {
        for length in [0_usize, 1, 15, 16, 17, 100] {
            let values: Vec<f32> = (0..length).map(|i| i as f32).collect();
            let want = (length * length.saturating_sub(1) / 2) as f32;
            assert_eq!(sum(&values), want);
            assert_eq!(dot(&values, &vec![2.0; length]), 2.0 * want);
            assert!((norm(&vec![3.0; length]) - 3.0 * (length as f64).sqrt()).abs() < 1e-9);
        }
        assert_eq!(maximum(&[-3.0, -1.0, -2.0]), -1.0);
        let mut columns = vec![1.0, 1.0];
        add_column_sums(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &mut columns);
        assert_eq!(columns, [10.0, 13.0]);
    }

    #[test]
    fn norm_shows_every_non_finite_element() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = vec![1.0; 37];
            values[36] = bad;
            assert!(!norm(&values).is_finite());
        }
        assert!(norm(&[f32::MAX; 64]).is_finite());
    }
}
