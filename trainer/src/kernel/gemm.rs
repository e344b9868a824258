//! Matrix products of strided `f32` views, on the kernels of `gemm-f32`.

use std::marker::PhantomData;

use gemm_common::Parallelism;

use super::Compute;

/// Multiply-adds below which a product runs on one thread (measured: 10 MFLOP).
const PARALLEL_MULTIPLY_ADDS_MIN: usize = 5_000_000;

/// Multiply-adds of a piece of a product of one row, 256 KiB of weights (guess: no other was tried).
const ROW_MULTIPLY_ADDS: usize = 1 << 16;

/// Rows or columns of a piece are a multiple of this: so many columns the kernels take at once.
const PIECE_MULTIPLE: usize = 16;

/// Rows or columns of a piece of a larger product, at least. Products of at most 64 of both are summed in
/// another order by the kernels, and a piece must not become one.
const PIECE_MIN: usize = 128;

/// A read-only matrix view with any strides, in elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix<'a> {
    values: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

/// A writable matrix view; elements of a row are adjacent.
#[derive(Debug)]
pub(crate) struct MatrixMut<'a> {
    /// Of a view of `extent` elements, of which it may use those of its rows and columns alone: the others may
    /// belong to other pieces of the same matrix.
    first: *mut f32,
    rows: usize,
    columns: usize,
    row_stride: usize,
    borrowed: PhantomData<&'a mut [f32]>,
}

#[expect(unsafe_code, reason = "pieces of a matrix go to threads")]
// SAFETY: a view borrows its elements exclusively, as a slice does, and pieces have no element in common.
unsafe impl Send for MatrixMut<'_> {}

/// A product, with its destination first.
type Factors<'a, 'b> = (MatrixMut<'a>, Matrix<'b>, Matrix<'b>);

/// What becomes of the old contents of a product's destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blend {
    /// They are overwritten.
    Replace,
    /// The product is added to them.
    Add,
}

/// Elements a strided view touches: index of its last element plus one.
fn extent(rows: usize, columns: usize, row_stride: usize, column_stride: usize) -> usize {
    if rows == 0 || columns == 0 {
        return 0;
    }
    (rows - 1) * row_stride + (columns - 1) * column_stride + 1
}

impl<'a> Matrix<'a> {
    /// `values` as `[rows, columns]`, row major without gaps.
    pub(crate) fn new(values: &'a [f32], rows: usize, columns: usize) -> Self {
        Self::strided(values, rows, columns, columns)
    }

    /// `values` as `[rows, columns]` whose rows start `row_stride` apart; rows may overlap.
    pub(crate) fn strided(
        values: &'a [f32],
        rows: usize,
        columns: usize,
        row_stride: usize,
    ) -> Self {
        assert!(extent(rows, columns, row_stride, 1) <= values.len());
        Self { values, rows, columns, row_stride, column_stride: 1 }
    }

    /// Rows and columns.
    pub(crate) const fn shape(&self) -> (usize, usize) {
        (self.rows, self.columns)
    }

    /// The transpose, without moving anything.
    pub(crate) const fn transposed(self) -> Self {
        Self {
            values: self.values,
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
        }
    }

    /// The first `at` rows, and the others.
    fn split_rows(self, at: usize) -> (Self, Self) {
        let values = &self.values[at * self.row_stride..];
        (Self { rows: at, ..self }, Self { values, rows: self.rows - at, ..self })
    }

    /// The first `at` columns, and the others.
    fn split_columns(self, at: usize) -> (Self, Self) {
        let (first, others) = self.transposed().split_rows(at);
        (first.transposed(), others.transposed())
    }
}

impl<'a> MatrixMut<'a> {
    /// `values` as `[rows, columns]`, row major without gaps.
    pub(crate) fn new(values: &'a mut [f32], rows: usize, columns: usize) -> Self {
        Self::strided(values, rows, columns, columns)
    }

    /// `values` as `[rows, columns]` whose rows start `row_stride` apart and do not overlap.
    pub(crate) fn strided(
        values: &'a mut [f32],
        rows: usize,
        columns: usize,
        row_stride: usize,
    ) -> Self {
        assert!(row_stride >= columns && extent(rows, columns, row_stride, 1) <= values.len());
        let first = values.as_mut_ptr();
        Self { first, rows, columns, row_stride, borrowed: PhantomData }
    }

    /// The first `at` rows, and the others.
    const fn split_rows(self, at: usize) -> (Self, Self) {
        let first = self.first.wrapping_add(at * self.row_stride);
        (Self { rows: at, ..self }, Self { first, rows: self.rows - at, ..self })
    }

    /// The first `at` columns, and the others.
    const fn split_columns(self, at: usize) -> (Self, Self) {
        let first = self.first.wrapping_add(at);
        (Self { columns: at, ..self }, Self { first, columns: self.columns - at, ..self })
    }

    /// `self ← left · right`, or `self ← self + left · right`, on the calling thread.
    pub(crate) fn product(self, left: Matrix<'_>, right: Matrix<'_>, blend: Blend) {
        assert_eq!(
            (self.rows, self.columns, left.columns),
            (left.rows, right.columns, right.rows),
            "matrix product shapes"
        );
        let stride = |elements: usize| isize::try_from(elements).unwrap_or(isize::MAX);
        let multiply = gemm_f32::gemm::f32::get_gemm_fn();
        // The kernels are fastest with a column-major destination: we compute the transpose,
        // so left and right, rows and columns change places.
        #[expect(unsafe_code, reason = "the product kernel takes raw pointers")]
        // SAFETY: the constructors checked that every element of the three views lies inside its
        // slice, and pieces are within their matrix; the shapes agree; the destination is borrowed
        // exclusively, so it aliases neither operand. Strides fit `isize` because slices do.
        unsafe {
            multiply(
                self.columns,
                self.rows,
                left.columns,
                self.first,
                stride(self.row_stride),
                1,
                blend == Blend::Add,
                right.values.as_ptr(),
                stride(right.row_stride),
                stride(right.column_stride),
                left.values.as_ptr(),
                stride(left.row_stride),
                stride(left.column_stride),
                1.0,
                1.0,
                false,
                false,
                false,
                Parallelism::None,
            );
        }
    }

    /// As [`MatrixMut::product`], on all threads of `compute` when it is worth it.
    pub(crate) fn product_on(
        self,
        compute: &Compute,
        left: Matrix<'_>,
        right: Matrix<'_>,
        blend: Blend,
    ) {
        let multiply_adds = self.rows * self.columns * left.columns;
        let along = self.rows.max(self.columns);
        let piece = if self.rows == 1 && multiply_adds >= 2 * ROW_MULTIPLY_ADDS {
            // The kernels use one thread for it, and how they sum may depend on the columns: pieces do not
            // depend on the threads.
            (ROW_MULTIPLY_ADDS / left.columns).max(1).next_multiple_of(PIECE_MULTIPLE)
        } else if multiply_adds >= PARALLEL_MULTIPLY_ADDS_MIN {
            along / compute.threads().min(along / PIECE_MIN).max(1)
        } else {
            along
        };
        if piece == along {
            return self.product(left, right, blend);
        }
        compute.for_each(self.pieces(piece, left, right), |(out, left, right)| {
            out.product(left, right, blend);
        });
    }

    /// The product in pieces of about so many rows, or columns where there are not fewer of them.
    fn pieces<'b>(self, piece: usize, left: Matrix<'b>, right: Matrix<'b>) -> Vec<Factors<'a, 'b>> {
        let by_rows = self.rows > self.columns;
        let (mut pieces, mut rest) = (Vec::new(), (self, left, right));
        loop {
            let (out, left, right) = rest;
            let along = if by_rows { out.rows } else { out.columns };
            if along < 2 * piece {
                pieces.push((out, left, right));
                return pieces;
            }
            let at = along / (along / piece) / PIECE_MULTIPLE * PIECE_MULTIPLE;
            if by_rows {
                let ((out, below), (left, others)) = (out.split_rows(at), left.split_rows(at));
                pieces.push((out, left, right));
                rest = (below, others, right);
            } else {
                let ((out, beside), (right, others)) =
                    (out.split_columns(at), right.split_columns(at));
                pieces.push((out, left, right));
                rest = (beside, left, others);
            }
        }
    }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "these values are exact")]
mod tests {
    use super::*;

    fn ramp(length: usize) -> Vec<f32> {
        (0..length).map(|i| ((i * 7) % 11) as f32 - 5.0).collect()
    }

    #[test]
    fn product_equals_the_sum_of_products_for_every_transposition() {
        let (rows, depth, columns) = (37, 19, 23);
        let (a, b) = (ramp(rows * depth), ramp(depth * columns));
        let mut want = vec![0.0; rows * columns];
        for r in 0..rows {
            for c in 0..columns {
                want[r * columns + c] =
                    (0..depth).map(|d| a[r * depth + d] * b[d * columns + c]).sum::<f32>();
            }
        }
        let transpose = |m: &[f32], rows: usize, columns: usize| {
            let mut t = vec![0.0; m.len()];
            for r in 0..rows {
                for c in 0..columns {
                    t[c * rows + r] = m[r * columns + c];
                }
            }
            t
        };
        let at = transpose(&a, rows, depth);
        let bt = transpose(&b, depth, columns);
        let lefts = [Matrix::new(&a, rows, depth), Matrix::new(&at, depth, rows).transposed()];
        let rights =
            [Matrix::new(&b, depth, columns), Matrix::new(&bt, columns, depth).transposed()];
        for left in lefts {
            for right in rights {
                let mut got = vec![f32::NAN; rows * columns];
                MatrixMut::new(&mut got, rows, columns).product(left, right, Blend::Replace);
                assert_eq!(got, want);
                MatrixMut::new(&mut got, rows, columns).product(left, right, Blend::Add);
                assert!(got.iter().zip(&want).all(|(g, w)| *g == 2.0 * w));
            }
        }
    }

    #[test]
    fn threads_change_no_bit() {
        // Pieces of rows, of columns, of both that do not divide, and products over much.
        let shapes =
            [(256, 192, 160), (160, 192, 256), (301, 77, 517), (517, 77, 300), (33, 3000, 131)];
        for (rows, depth, columns) in shapes {
            threads_change_no_bit_of(rows, depth, columns);
        }
    }

    fn threads_change_no_bit_of(rows: usize, depth: usize, columns: usize) {
        let a: Vec<f32> = ramp(rows * depth).iter().map(|x| x / 3.0).collect();
        let b: Vec<f32> = ramp(depth * columns).iter().map(|x| x / 7.0).collect();
        let run = |threads| {
            let compute = Compute::new(threads).unwrap();
            let mut out = vec![0.0; rows * columns];
            MatrixMut::new(&mut out, rows, columns).product_on(
                &compute,
                Matrix::new(&a, rows, depth),
                Matrix::new(&b, depth, columns),
                Blend::Replace,
            );
            out.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        };
        for threads in [2, 3, 5] {
            assert_eq!(run(1), run(threads), "{rows} {depth} {columns}");
        }
    }

    #[test]
    fn threads_change_no_bit_of_a_row() {
        for (depth, columns) in [(192, 3001), (70_000, 5), (64, 2048)] {
            let a: Vec<f32> = ramp(depth).iter().map(|x| x / 3.0).collect();
            let b: Vec<f32> = ramp(depth * columns).iter().map(|x| x / 7.0).collect();
            let run = |threads, right: Matrix<'_>| {
                let compute = Compute::new(threads).unwrap();
                let mut out = vec![1.0; columns];
                for blend in [Blend::Replace, Blend::Add] {
                    let row = MatrixMut::new(&mut out, 1, columns);
                    row.product_on(&compute, Matrix::new(&a, 1, depth), right, blend);
                }
                out.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
            };
            let weights = Matrix::new(&b, columns, depth).transposed();
            assert_eq!(run(1, weights), run(3, weights), "{depth} {columns}");
            let weights = Matrix::new(&b, depth, columns);
            assert_eq!(run(1, weights), run(2, weights), "{depth} {columns}");
        }
    }
}
