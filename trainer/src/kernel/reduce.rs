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

/// Rows whose squares are summed in f32 before they are added in `f64`: 1,024 elements. That is twice as
/// fast as to add each one in `f64`, and errs by a millionth at most.
const RUN: usize = 64;

/// Sums of a run that are smaller may have lost squares that f32 cannot hold: the run is summed in `f64`.
const RUN_MIN: f32 = 1e-24;

/// [`squares`] that go on from piece to piece. The bits are those of the whole while the pieces before
/// the last one have a multiple of [`LANES`] times [`RUN`] elements.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Squares([f64; LANES]);

impl Squares {
    pub(crate) fn add(&mut self, values: &[f32]) {
        vectorized(
            #[inline(always)]
            || {
                let (rows, rest) = values.as_chunks::<LANES>();
                for run in rows.chunks(RUN) {
                    let mut sums = [0.0; LANES];
                    for row in run {
                        add_row(&mut sums, row);
                    }
                    self.add_run(sums, run.iter().copied());
                }
                self.add_in_f64(rest);
            },
        );
    }

    /// Adds the rows of a run, whose sums in f32 are `sums`.
    #[inline(always)]
    fn add_run(&mut self, sums: [f32; LANES], rows: impl Iterator<Item = [f32; LANES]>) {
        if sums.iter().all(|sum| (RUN_MIN..f32::INFINITY).contains(sum)) {
            for (sum, of_run) in self.0.iter_mut().zip(sums) {
                *sum += f64::from(of_run);
            }
        } else {
            rows.for_each(|row| self.add_in_f64(&row));
        }
    }

    /// Adds the squares of a row or of less.
    #[inline(always)]
    fn add_in_f64(&mut self, row: &[f32]) {
        for (sum, &value) in self.0.iter_mut().zip(row) {
            *sum += f64::from(value) * f64::from(value);
        }
    }

    pub(crate) fn sum(self) -> f64 {
        self.0.iter().sum()
    }
}

#[inline(always)]
fn add_row(sums: &mut [f32; LANES], row: &[f32; LANES]) {
    for (sum, &value) in sums.iter_mut().zip(row) {
        *sum += value * value;
    }
}

/// The squares of `local`, of `remote` and of `local − remote`, in one pass.
pub(crate) fn measure_difference(
    (local, remote): (&[f32], &[f32]),
    [of_local, of_remote, of_difference]: &mut [Squares; 3],
) {
    vectorized(
        #[inline(always)]
        || {
            let (local_rows, local_rest) = local.as_chunks::<LANES>();
            let (remote_rows, remote_rest) = remote.as_chunks::<LANES>();
            for (local, remote) in local_rows.chunks(RUN).zip(remote_rows.chunks(RUN)) {
                let [mut l, mut r, mut d] = [[0.0; LANES]; 3];
                for (local, remote) in local.iter().zip(remote) {
                    add_row(&mut l, local);
                    add_row(&mut r, remote);
                    add_row(&mut d, &differences(local, remote));
                }
                of_local.add_run(l, local.iter().copied());
                of_remote.add_run(r, remote.iter().copied());
                let rows = local.iter().zip(remote);
                of_difference.add_run(d, rows.map(|(local, remote)| differences(local, remote)));
            }
            of_local.add_in_f64(local_rest);
            of_remote.add_in_f64(remote_rest);
            let mut rest = [0.0; LANES];
            for ((difference, &local), &remote) in rest.iter_mut().zip(local_rest).zip(remote_rest)
            {
                *difference = local - remote;
            }
            of_difference.add_in_f64(&rest);
        },
    );
}

#[inline(always)]
fn differences(local: &[f32; LANES], remote: &[f32; LANES]) -> [f32; LANES] {
    std::array::from_fn(|lane| local[lane] - remote[lane])
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

    #[test]
    fn squares_that_f32_cannot_hold_are_counted() {
        for value in [1e-30, 3e-20, 1e-6, 1.0, 1e15, 1e25_f32] {
            let mut values: Vec<f32> = (0..5000).map(|i| value * (1.0 + (i % 7) as f32)).collect();
            values[17] = 0.0;
            let exact = |values: &[f32]| values.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>();
            let near = |found: f64, wanted: f64| (found - wanted).abs() <= 1e-6 * wanted;
            assert!(near(squares(&values), exact(&values)), "{value}");
            let remote: Vec<f32> = values.iter().map(|v| v * 0.5).collect();
            let mut sums = <[Squares; 3]>::default();
            measure_difference((&values, &remote), &mut sums);
            let wanted = [exact(&values), exact(&remote), exact(&remote)];
            for (found, wanted) in sums.into_iter().zip(wanted) {
                assert!(near(found.sum(), wanted), "{value}: {} {wanted}", found.sum());
            }
        }
    }

    #[test]
    fn squares_in_pieces_are_those_of_the_whole() {
        let values: Vec<f32> = (0..5000).map(|i| (i % 977) as f32 / 977.0 - 0.5).collect();
        let mut pieces = Squares::default();
        values.chunks(2 * RUN * LANES).for_each(|piece| pieces.add(piece));
        assert_eq!(pieces.sum(), squares(&values));
    }
}
